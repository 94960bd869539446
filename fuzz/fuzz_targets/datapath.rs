//! Frames through whole workers: filter, UDP and router; steering. Every packet must be accounted for.
//!
//! The input is frames, each behind its length (2 bytes, the highest first) but for the last, which is the rest. The first byte
//! says how much time passes between them.
#![no_main]

use std::sync::LazyLock;

use datapath::device::{Dummy, Frames, Synthetic, TxLock};
use datapath::queue::bounded;
use datapath::receive::{Copying, Poll};
use datapath::stage::PortAddress;
use datapath::stage::filter::{Action, Filter, Network, Rule};
use datapath::stage::forward::{ForwardConfig, Port, Route, Router, StaticNeighbour, Towards};
use datapath::stage::steer::{Spread, Steer, Way};
use datapath::stage::udp::{Udp, Unclaimed};
use datapath::steering::{FlowLimit, Indirection, Key, Toeplitz};
use datapath::wire::ethernet::MacAddress;
use datapath::wire::protocol;
use datapath::{Reason, Worker};
use libfuzzer_sys::fuzz_target;
use pagefrag::Source;

fuzz_target!(|data: &[u8]| {
    let Some((pace, data)) = data.split_first() else { return };
    let frames = frames(data);
    if frames.iter().all(|frame| frame.is_empty()) {
        return;
    }
    run(router(&frames), frames.len(), *pace);
    run(steering(&frames), frames.len(), *pace);
});

fn frames(mut data: &[u8]) -> Vec<Box<[u8]>> {
    let mut frames = Vec::new();
    while let [high, low, rest @ ..] = data {
        let bytes = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (frame, rest) = rest.split_at(bytes);
        frames.push(frame.into());
        data = rest;
    }
    frames
}

fn run(mut worker: Worker, frames: usize, pace: u8) {
    let mut now_ns = 0;
    // Frames, and then time for what waits.
    for _ in 0..frames + 8 {
        let most = usize::from(pace & 7) + 1;
        worker.poll(most, now_ns).expect("these devices do not fail");
        assert!(worker.ledger().closes(), "{:?}", worker.ledger());
        now_ns += u64::from(pace) * 10_000_000;
    }
    worker.settle().expect("these devices do not fail");
    let ledger = worker.ledger();
    assert!(ledger.closes() && ledger.held == 0 && ledger.received == frames as u64, "{ledger:?}");
}

fn worker(frames: &[Box<[u8]>]) -> Worker {
    let queue = Synthetic::new(Frames::Cycle(frames.to_vec()), 0).expect("one is not empty");
    let queue = Box::new(queue.with_count(frames.len() as u64));
    let dummy = Dummy::new(2, TxLock::None);
    let port = |index| Box::new(dummy.queue(index).expect("its only user"));
    Worker::new(Box::new(Copying::new(queue, Poll::new(Source::default().share()))))
        .port(port(0))
        .port(port(1))
}

/// As the frames of the seeds have it: 10.0.1.1 and 2001:db8:1::1 before 10.0.2.0/24 and 2001:db8:2::/64.
fn router(frames: &[Box<[u8]>]) -> Worker {
    // Its tables are large; they are made once.
    static ROUTER: LazyLock<Router> =
        LazyLock::new(|| Router::new(&config()).expect("a right configuration"));
    let forward = ROUTER.workers(1).pop().expect("one");
    let net = |address: &str, bits| Network::new(address.parse().expect("an address"), bits).ok();
    let drop = Rule::any(Action::Drop);
    let rules = vec![
        Rule { source: net("10.0.1.77", 32), destination_ports: Some(1..=99), ..drop.clone() },
        Rule { destination: net("2001:db8:2::3", 128), ..drop.clone() },
        Rule { protocol: Some(protocol::SCTP), ..drop },
    ];
    let (outlet, _) = bounded(2, Reason::SocketFull);
    worker(frames)
        .outlet(outlet)
        .stage(Filter::new(rules, Action::Accept))
        .stage(Udp::new([(9, 0)]).with_unclaimed(Unclaimed::Pass))
        .stage(forward)
}

fn config() -> ForwardConfig {
    let own = |address: &str, prefix_bits| PortAddress {
        address: address.parse().expect("an address"),
        prefix_bits,
    };
    let port = |last, addresses| Port { mac: MacAddress([2, 0, 0, 0, 0, last]), mtu_bytes: 1300, addresses };
    let gateway = "10.0.2.2".parse().expect("an address");
    ForwardConfig {
        ports: vec![
            port(1, vec![own("10.0.1.1", 24), own("2001:db8:1::1", 64)]),
            port(0x11, vec![own("10.0.2.1", 24), own("2001:db8:2::1", 64)]),
        ],
        routes: vec![Route {
            network: "172.16.0.0".parse().expect("an address"),
            prefix_bits: 12,
            towards: Towards::Gateway { address: gateway, port: None },
        }],
        neighbours: vec![StaticNeighbour {
            address: gateway,
            port: None,
            mac: MacAddress([2, 0, 0, 0, 0, 0x12]),
        }],
        ..ForwardConfig::default()
    }
}

fn steering(frames: &[Box<[u8]>]) -> Worker {
    let (outlet, _) = bounded(4, Reason::BacklogFull);
    let spread = Spread::Device(Indirection::even(8, 2).expect("a power of two"));
    let ways = vec![Way::Own, Way::Queue(0, outlet.clone())];
    let steer = Steer::new(Toeplitz::new(&Key::MICROSOFT), spread, ways).expect("both are there");
    worker(frames)
        .outlet(outlet)
        .stage(steer.with_flow_limit(&FlowLimit::default()))
        .stage(Udp::new([(9, 0)]))
}
