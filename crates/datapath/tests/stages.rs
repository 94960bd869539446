//! Filter, UDP and steering.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use datapath::queue::bounded;
use datapath::receive::Receive;
use datapath::stage::filter::{Action, Filter, Network, Rule};
use datapath::stage::forward::Forward;
use datapath::stage::steer::{Spread, Steer, Way};
use datapath::stage::udp::{Udp, Unclaimed};
use datapath::stage::{ForwardConfig, Stage};
use datapath::steering::{CpuMap, FlowLimit, Indirection, Key, Toeplitz};
use datapath::wire::udp::Verify;
use datapath::wire::{Addresses, Malformed, Ports, ipv4, protocol, udp};
use datapath::{BUDGET, Batch, Ledger, Reason, Verdict, Worker};

use router::{Rig, known_config, packet};
use support::{L3, kernel_frame, repair_ipv4};

mod router;
mod support;

/// What a stage says of a frame.
fn verdict(stage: &mut impl Stage, frame: &[u8]) -> Verdict {
    let mut batch = Batch::new();
    batch.push(packet(frame, None));
    stage.run(&mut batch, 0);
    batch.verdict(0)
}

fn net(address: &str, prefix_bits: u8) -> Option<Network> {
    Some(Network::new(address.parse().unwrap(), prefix_bits).unwrap())
}

#[test]
fn the_first_rule_that_matches_decides() {
    const DROPPED: Verdict = Verdict::Drop(Reason::Filter);
    let frames = ["v4-udp", "v6-udp", "v4-tcp-syn", "v6-echo-request"].map(kernel_frame);
    let (accept, drop) = (Rule::any(Action::Accept), Rule::any(Action::Drop));
    let from = |address, bits| Rule { source: net(address, bits), ..drop.clone() };
    let to = |address, bits| Rule { destination: net(address, bits), ..drop.clone() };
    let of = |number| Rule { protocol: Some(number), ..drop.clone() };
    let accept_tcp = Rule { protocol: Some(protocol::TCP), ..accept.clone() };
    for (rules, wanted) in [
        (vec![], [Verdict::Pass; 4]),
        (vec![drop.clone()], [DROPPED; 4]),
        (vec![accept.clone(), drop.clone()], [Verdict::Pass; 4]),
        (vec![from("10.0.1.0", 24)], [DROPPED, Verdict::Pass, DROPPED, Verdict::Pass]),
        (vec![from("10.0.2.0", 24)], [Verdict::Pass; 4]),
        (vec![to("10.0.2.2", 32)], [DROPPED, Verdict::Pass, DROPPED, Verdict::Pass]),
        (vec![to("2001:db8:2::", 48)], [Verdict::Pass, DROPPED, Verdict::Pass, Verdict::Pass]),
        (vec![of(protocol::UDP)], [DROPPED, DROPPED, Verdict::Pass, Verdict::Pass]),
        (
            vec![Rule { destination_ports: Some(7..=8), ..drop.clone() }],
            [Verdict::Pass, Verdict::Pass, DROPPED, Verdict::Pass],
        ),
        (
            vec![Rule { source_ports: Some(40000..=40000), ..drop.clone() }],
            [DROPPED, DROPPED, Verdict::Pass, Verdict::Pass],
        ),
        (
            vec![accept_tcp, from("10.0.0.0", 8), of(protocol::ICMPV6)],
            [DROPPED, Verdict::Pass, Verdict::Pass, DROPPED],
        ),
    ] {
        let mut filter = Filter::new(rules.clone(), Action::Accept);
        let verdicts = [0, 1, 2, 3].map(|at| verdict(&mut filter, &frames[at]));
        assert_eq!(verdicts, wanted, "{rules:?}");
        assert_eq!(filter.matched().iter().sum::<u64>(), 4);
    }
    let accept_udp = Rule { protocol: Some(protocol::UDP), ..accept };
    let mut closed = Filter::new(vec![accept_udp], Action::Drop);
    assert_eq!(verdict(&mut closed, &frames[0]), Verdict::Pass);
    assert_eq!(verdict(&mut closed, &frames[2]), DROPPED);
    assert_eq!(closed.matched(), [1, 1]);
    // ARP is nothing for such rules.
    assert_eq!(verdict(&mut closed, &kernel_frame("arp-request")), Verdict::Pass);
}

#[test]
fn fragments_without_ports_match_no_port() {
    let mut fragment = kernel_frame("v4-udp");
    fragment[L3 + 7] = 1;
    repair_ipv4(&mut fragment);
    let by_port = Rule { destination_ports: Some(0..=u16::MAX), ..Rule::any(Action::Drop) };
    assert_eq!(verdict(&mut Filter::new(vec![by_port], Action::Accept), &fragment), Verdict::Pass);
    let by_protocol = Rule { protocol: Some(protocol::UDP), ..Rule::any(Action::Drop) };
    let verdict = verdict(&mut Filter::new(vec![by_protocol], Action::Accept), &fragment);
    assert_eq!(verdict, Verdict::Drop(Reason::Filter));
}

#[test]
fn datagrams_get_to_the_queue_of_their_port() {
    for (version, head) in [("v4-udp", None), ("v6-udp", None), ("v4-udp", Some(30)), ("v6-udp", Some(60))] {
        let (outlet, mut inlet) = bounded(4, Reason::SocketFull);
        let mut rig = Rig::with(|worker| worker.outlet(outlet).stage(Udp::new([(8, 1), (9, 0)])), head);
        assert_eq!(rig.feed(0, &kernel_frame(version)), []);
        assert_eq!(inlet.pop().map(|packet| packet.data().to_vec()), Some((0..11).collect()), "{version}");
        assert_eq!(rig.ledger().delivered, 1);
    }
}

#[test]
fn what_udp_refuses_and_lets_pass() {
    let stage = || Udp::new([(7, 0)]);
    assert_eq!(verdict(&mut stage(), &kernel_frame("v4-udp")), Verdict::Drop(Reason::NoSocket));
    assert_eq!(verdict(&mut stage().with_unclaimed(Unclaimed::Pass), &kernel_frame("v4-udp")), Verdict::Pass);
    assert_eq!(verdict(&mut stage(), &kernel_frame("v4-tcp-syn")), Verdict::Pass);
    let elsewhere = vec!["10.9.9.9".parse().unwrap()];
    assert_eq!(
        verdict(&mut Udp::new([(9, 0)]).with_addresses(elsewhere), &kernel_frame("v4-udp")),
        Verdict::Pass
    );

    let mut wrong = kernel_frame("v4-udp");
    wrong[L3 + 30] ^= 1;
    let refused = Verdict::Drop(Reason::Malformed(Malformed::UdpChecksum));
    assert_eq!(verdict(&mut Udp::new([(9, 0)]), &wrong), refused);
    assert_eq!(verdict(&mut Udp::new([(9, 0)]).with_verify(Verify::Nothing), &wrong), Verdict::Deliver(0));
}

#[test]
fn a_full_queue_is_a_loss_of_its_own() {
    let (outlet, inlet) = bounded(3, Reason::SocketFull);
    let mut rig = Rig::with(|worker| worker.outlet(outlet).stage(Udp::new([(9, 0)])), None);
    (0..5).for_each(|_| rig.wire(0, &kernel_frame("v4-udp")));
    rig.poll();
    assert_eq!((rig.ledger().delivered, rig.reason(), inlet.len()), (3, Reason::SocketFull, 3));
}

#[test]
fn a_router_answers_for_ports_that_nobody_has() {
    let mut frame = kernel_frame("v4-udp");
    frame[L3 + 16..L3 + 20].copy_from_slice(&[10, 0, 1, 1]);
    frame[L3 + 26..L3 + 28].fill(0);
    repair_ipv4(&mut frame);
    let forward = Forward::new(&known_config()).unwrap();
    let own = vec!["10.0.1.1".parse().unwrap()];
    let udp = Udp::new([(53, 0)]).with_addresses(own).with_unclaimed(Unclaimed::Pass);
    let mut rig = Rig::with(|worker| worker.stage(udp).stage(forward), None);
    assert_eq!(rig.feed(0, &frame).len(), 1);
    assert_eq!(rig.event("sent: port unreachable"), 1);
}

/// UDP from one of some flows, with a number of its own.
fn of_flow(flow: u16, number: u32) -> Vec<u8> {
    let mut frame = kernel_frame("v4-udp");
    frame.truncate(L3 + 28 + 4);
    let header = ipv4::Header {
        protocol: protocol::UDP,
        source: 0x0a00_0102,
        destination: 0x0a00_0202,
        ..ipv4::Header::default()
    };
    header.write(&mut frame[L3..], 12).unwrap();
    frame[L3 + 28..].copy_from_slice(&number.to_be_bytes());
    let addresses = Addresses::V4 { source: header.source, destination: header.destination };
    udp::write_header(&mut frame[L3 + 20..], Ports { source: 1000 + flow, destination: 9 }, &addresses)
        .unwrap();
    frame
}

fn toeplitz() -> Toeplitz {
    Toeplitz::new(&Key::MICROSOFT)
}

/// One worker steers to two, each on a thread of its own, and all three deliver to one receiver. Nothing is lost, and the packets of a
/// flow come in their order.
#[test]
fn packets_of_a_flow_stay_in_order_over_two_workers() {
    const FLOWS: u16 = 37;
    const EACH: u32 = 200;
    let (socket, mut received) = bounded(usize::from(FLOWS) * EACH as usize, Reason::SocketFull);
    let mut backlogs = Vec::new();
    let mut threads = Vec::new();
    for _ in 0..2 {
        let (outlet, inlet) = bounded(usize::from(FLOWS) * EACH as usize, Reason::BacklogFull);
        let worker = Worker::new(Box::new(inlet)).outlet(socket.clone()).stage(Keep);
        threads.push(std::thread::spawn(move || run_to_end(worker)));
        backlogs.push(outlet);
    }
    let ways = vec![Way::Queue(0, backlogs[0].clone()), Way::Queue(1, backlogs[1].clone())];
    let steer = Steer::new(toeplitz(), Spread::Cpus(CpuMap::new(vec![0, 1]).unwrap()), ways).unwrap();
    let build = |worker: Worker| backlogs.iter().cloned().fold(worker, Worker::outlet).stage(steer);
    let mut rig = Rig::with(build, None);
    for number in 0..EACH {
        (0..FLOWS).for_each(|flow| rig.wire(0, &of_flow(flow, number)));
        rig.poll();
    }
    backlogs.iter().for_each(|backlog| backlog.close());
    let ledgers: Vec<Ledger> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let total = u64::from(FLOWS) * u64::from(EACH);
    assert_eq!((rig.ledger().delivered, rig.event("for other workers")), (total, total));
    assert!(ledgers.iter().all(|ledger| ledger.closes() && ledger.received > total / 10), "{ledgers:?}");
    let mut next: HashMap<u16, u32> = HashMap::new();
    while let Some(packet) = received.pop() {
        let frame = packet.data();
        let flow = u16::from_be_bytes([frame[L3 + 20], frame[L3 + 21]]);
        let number = u32::from_be_bytes(frame[L3 + 28..L3 + 32].try_into().unwrap());
        let next = next.entry(flow).or_default();
        assert_eq!(number, *next, "flow {flow}");
        *next += 1;
    }
    assert_eq!(next.len(), usize::from(FLOWS));
    assert!(next.values().all(|next| *next == EACH));
}

/// Delivers everything to queue 0.
struct Keep;

impl Stage for Keep {
    fn name(&self) -> &'static str {
        "keep"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        batch.decide_rest(Verdict::Deliver(0));
    }
}

fn run_to_end(mut worker: Worker) -> Ledger {
    while !worker.ended() {
        if worker.poll(BUDGET, 0).unwrap() == 0 {
            std::thread::yield_now();
        }
    }
    worker.ledger()
}

/// A rig whose flows all go to a backlog that nobody empties.
fn stuck(limited: bool) -> (Rig, datapath::queue::Inlet) {
    let (outlet, inlet) = bounded(1_000, Reason::BacklogFull);
    let spread = Spread::Device(Indirection::even(128, 1).unwrap());
    let mut steer = Steer::new(toeplitz(), spread, vec![Way::Queue(0, outlet.clone())]).unwrap();
    if limited {
        steer = steer.with_flow_limit(&FlowLimit::default());
    }
    (Rig::with(|worker| worker.outlet(outlet).stage(steer), None), inlet)
}

#[test]
fn a_backlog_that_nobody_empties_is_full() {
    let (mut rig, inlet) = stuck(false);
    (0..1_100).for_each(|number| rig.wire(0, &of_flow(1, number)));
    rig.poll();
    assert_eq!((inlet.len(), rig.reason(), rig.ledger().drops.total()), (1_000, Reason::BacklogFull, 100));
}

#[test]
fn a_large_flow_is_stopped_at_half_and_small_ones_get_through() {
    let (mut rig, inlet) = stuck(true);
    (0..1_000).for_each(|number| rig.wire(0, &of_flow(1, number)));
    rig.poll();
    // Half of the backlog, and half of the history.
    assert_eq!((inlet.len(), rig.reason(), rig.ledger().drops.total()), (564, Reason::FlowLimit, 436));
    (0..20).for_each(|flow| rig.wire(0, &of_flow(2 + flow, 0)));
    rig.poll();
    assert_eq!(inlet.len(), 584);
}

#[test]
fn own_flows_and_what_is_not_ip_stay_here() {
    let (outlet, inlet) = bounded(8, Reason::BacklogFull);
    let ways = vec![Way::Own, Way::Queue(0, outlet.clone())];
    let spread = Spread::Device(Indirection::even(128, 2).unwrap());
    let steer = Steer::new(toeplitz(), spread, ways).unwrap();
    let forward = Forward::new(&known_config()).unwrap();
    let mut rig = Rig::with(|worker| worker.outlet(outlet).stage(steer).stage(forward), None);
    assert_eq!(rig.feed(0, &kernel_frame("arp-request")).len(), 1);
    let here = (0..64).filter(|flow| rig.feed(0, &of_flow(*flow, 0)).len() == 1).count();
    assert!((16..=48).contains(&here) || inlet.len() == 8, "{here}");
    let ledger = rig.ledger();
    assert_eq!(ledger.transmitted + ledger.delivered + ledger.drops.of(Reason::BacklogFull), 65);
    let way =
        Steer::new(toeplitz(), Spread::Cpus(CpuMap::new(vec![3]).unwrap()), vec![Way::Own]).unwrap_err();
    assert_eq!(
        way.to_string(),
        "steering: flows are to go to worker 3, and there are 1 (from 0): name others"
    );
}

/// A backlog keeps the port that its packets came in by.
#[test]
fn a_steered_packet_is_forwarded_by_the_other_worker() {
    let (mut outlet, inlet) = bounded(8, Reason::BacklogFull);
    let mut frame = of_flow(1, 1);
    frame[..6].copy_from_slice(&router::ROUTER_FAR.0);
    outlet.push(packet(&frame, None)).unwrap();
    let config = ForwardConfig { ..known_config() };
    let mut rig = Rig::with(
        |worker| {
            worker.receive_at(1, Box::new(inlet) as Box<dyn Receive>).stage(Forward::new(&config).unwrap())
        },
        None,
    );
    assert_eq!(rig.poll().len(), 1);
}
