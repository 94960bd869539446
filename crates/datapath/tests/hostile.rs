//! Wrong frames through whole workers: nothing panics, every packet is accounted for, and malformed ones under what is wrong
//! with them.
#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use datapath::queue::{Inlet, bounded};
use datapath::stage::filter::{Action, Filter, Network, Rule};
use datapath::stage::forward::Router;
use datapath::stage::steer::{Spread, Steer, Way};
use datapath::stage::udp::{Udp, Unclaimed};
use datapath::steering::{Indirection, Key, Toeplitz};
use datapath::wire::{self, Malformed, protocol};
use datapath::{Reason, Worker};
use proptest::prelude::*;

use router::{ROUTER, Rig, SECOND, config, known_config};
use support::{L3, from_hex, kernel_frames, repair_ipv4};

mod router;
mod support;

/// Right frames of every kind that the stages know.
fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = kernel_frames().into_iter().map(|(_, frame)| frame).collect();
    let mut v4 = |fields: &str| {
        let mut frame = from_hex("020000000001 020000000002 0800");
        frame.extend(from_hex(fields));
        let bytes = (frame.len() - L3) as u16;
        frame[L3 + 2..L3 + 4].copy_from_slice(&bytes.to_be_bytes());
        repair_ipv4(&mut frame);
        frames.push(frame);
    };
    // With options; the first and a later fragment; ICMP to a host behind.
    v4("46000000 0001 0000 40 11 0000 0a000102 0a000202 94040000 9c40 0009 000c 0000 01020304");
    v4("45000000 0001 2000 40 11 0000 0a000102 0a000202 9c40 0009 0018 0000 0102030405060708");
    v4("45000000 0001 2001 40 11 0000 0a000102 0a000202 0102030405060708");
    v4("45000000 0001 0000 01 01 0000 0a000102 0a000202 0800 f7ff 0000 0000");
    v4("45000000 0001 4000 40 11 0000 0a000102 0a000101 9c40 1388 000c 0000 01020304");
    // Hop-by-hop, destination options and a fragment header before UDP.
    frames.push(from_hex(
        "020000000001 020000000002 86dd 60000000 0024 00 40
         20010db8000100000000000000000002 20010db8000200000000000000000002
         3c00 050200000100 2c00 010400000000 1100 0001 00000007 9c40 0009 000c 1234 01020304",
    ));
    frames
}

/// Workers of different stages. What is delivered stays in the queue, or overflows it.
fn rigs(head: Option<usize>) -> Vec<(Rig, Option<Inlet>)> {
    let net = |address: &str, bits| Network::new(address.parse().unwrap(), bits).ok();
    let rule = |action, number| Rule { protocol: Some(number), ..Rule::any(action) };
    let filter = move || {
        let rules = vec![
            Rule {
                source: net("10.0.1.77", 32),
                destination_ports: Some(7..=9),
                ..rule(Action::Drop, protocol::UDP)
            },
            Rule { destination: net("2001:db8:9::", 48), ..rule(Action::Drop, protocol::ICMPV6) },
            rule(Action::Accept, protocol::TCP),
        ];
        Filter::new(rules, Action::Accept)
    };
    // Tables are large; they are made once.
    static ROUTERS: LazyLock<[Router; 2]> =
        LazyLock::new(|| [config(), known_config()].map(|config| Router::new(&config).unwrap()));
    let forward = |which: usize| ROUTERS[which].workers(1).pop().unwrap();
    let mut rigs = vec![(Rig::with(|worker| worker.stage(forward(0)), head), None)];
    let (outlet, inlet) = bounded(8, Reason::SocketFull);
    let all = |worker: Worker| {
        let udp = Udp::new([(9, 0), (5000, 0)]).with_unclaimed(Unclaimed::Pass);
        worker.outlet(outlet).stage(filter()).stage(udp).stage(forward(1))
    };
    rigs.push((Rig::with(all, head), Some(inlet)));
    let (outlet, inlet) = bounded(8, Reason::BacklogFull);
    let steered = |worker: Worker| {
        let spread = Spread::Device(Indirection::even(128, 2).unwrap());
        let ways = vec![Way::Own, Way::Queue(0, outlet.clone())];
        let steer = Steer::new(Toeplitz::new(&Key::MICROSOFT), spread, ways)
            .unwrap()
            .with_flow_limit(&Default::default());
        worker.outlet(outlet).stage(steer).stage(Udp::new([(9, 0)]))
    };
    rigs.push((Rig::with(steered, head), Some(inlet)));
    rigs
}

/// What the router must count such a frame under, if it is for it and cannot be read.
fn refused(frame: &[u8]) -> Option<Malformed> {
    let is_ours = frame.get(..6).is_none_or(|to| *to == ROUTER.0 || to[0] & 1 != 0);
    wire::parse(frame).err().filter(|_| is_ours)
}

/// Each frame through each worker. The account is checked by the rig.
fn feed_all(rigs: &mut [(Rig, Option<Inlet>)], frame: &[u8]) {
    for (rig, inlet) in rigs {
        let before = rig.ledger().drops;
        rig.feed(0, frame);
        rig.now_ns += SECOND / 10;
        if let Some(inlet) = inlet
            && rig.now_ns % 3 == 0
        {
            while inlet.pop().is_some() {}
        }
        if let Some(why) = refused(frame) {
            let reason = Reason::Malformed(why);
            assert_eq!(rig.ledger().drops.of(reason), before.of(reason) + 1, "{why:?} of {frame:02x?}");
        }
    }
}

#[test]
fn every_byte_of_every_frame_changed() {
    let mut rigs = rigs(None);
    for frame in frames() {
        for at in 0..frame.len().min(160) {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                let mut frame = frame.clone();
                frame[at] ^= flip;
                feed_all(&mut rigs, &frame);
                if (L3..L3 + 60).contains(&at) && frame[12..14] == [0x08, 0x00] {
                    repair_ipv4(&mut frame);
                    feed_all(&mut rigs, &frame);
                }
            }
        }
    }
    for (rig, _) in &mut rigs {
        let ledger = rig.settle();
        assert!(ledger.received > 10_000 && ledger.drops.total() > 1_000, "{ledger:?}");
    }
}

#[test]
fn every_frame_cut_short() {
    let mut rigs = rigs(None);
    for frame in frames() {
        for bytes in 0..frame.len().min(160) {
            feed_all(&mut rigs, &frame[..bytes]);
        }
    }
    for (rig, _) in &mut rigs {
        assert_eq!(
            rig.settle().drops.of(Reason::Malformed(Malformed::EthernetShort)),
            14 * frames().len() as u64
        );
    }
}

#[derive(Debug, Clone)]
struct Damage {
    which: usize,
    bytes: Vec<(usize, u8)>,
    cut: Option<usize>,
    repair: bool,
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = proptest::collection::vec((0usize..120, any::<u8>()), 0..5);
    let cut = proptest::option::weighted(0.2, 0usize..120);
    (any::<prop::sample::Index>(), bytes, cut, any::<bool>()).prop_map(|(which, bytes, cut, repair)| Damage {
        which: which.index(1000),
        bytes,
        cut,
        repair,
    })
}

fn damaged(of: &Damage) -> Vec<u8> {
    let all = frames();
    let mut frame = all[of.which % all.len()].clone();
    for (at, value) in &of.bytes {
        let at = at % frame.len();
        frame[at] = *value;
    }
    frame.truncate(of.cut.unwrap_or(usize::MAX));
    if of.repair && frame.len() >= L3 + 20 && frame[12..14] == [0x08, 0x00] {
        repair_ipv4(&mut frame);
    }
    frame
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Many together, in one piece or two, one after another and in batches.
    #[test]
    fn damaged_frames_in_any_order(
        damages in proptest::collection::vec(damage(), 1..20),
        head in proptest::option::of(1usize..130),
        together in any::<bool>(),
    ) {
        let mut rigs = rigs(head);
        for damage in &damages {
            let frame = damaged(damage);
            if together {
                rigs.iter_mut().for_each(|(rig, _)| rig.wire(0, &frame));
            } else {
                feed_all(&mut rigs, &frame);
            }
        }
        for (rig, _) in &mut rigs {
            rig.poll();
            rig.wait(SECOND);
            let ledger = rig.settle();
            prop_assert_eq!(ledger.received, damages.len() as u64);
        }
    }

    #[test]
    fn bytes_that_are_no_frame(frame in proptest::collection::vec(any::<u8>(), 0..200), kind in 0usize..4) {
        let mut frame = frame;
        if frame.len() >= 14 && kind > 0 {
            frame[..6].copy_from_slice(&ROUTER.0);
            frame[12..14].copy_from_slice(&[[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]][kind - 1]);
        }
        feed_all(&mut rigs(None), &frame);
    }
}
