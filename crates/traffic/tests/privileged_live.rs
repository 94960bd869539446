//! The generator inside the kernel: over a veth pair of the test's own, every packet counted at the far end.
#![allow(clippy::unwrap_used, missing_docs)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ebpf::{AluOp, Assembler, Condition, Insn, Reg, Size};
use linux::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::clock::monotonic_ns;
use linux::netns::Netns;
use linux::packet::{PROTOCOL_ALL, PacketSocket};
use linux::route::{RouteSocket, VethEnd};
use traffic::programs::{
    Action, Destination, GAP_BUCKETS, GeneratorProgram, counter, gap_bucket, gap_bucket_range,
    lower_gap_bucket,
};
use traffic::{
    BackendKind, Generator, LiveError, LiveGenerator, LiveSpec, Pace, ProgramSink, SendError, Sent,
};

const DEADLINE: Duration = Duration::from_secs(10);
const L2_BYTES: usize = 60;
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
/// Lengths of packets that differ, in turn.
const LENGTHS: [usize; 4] = [1200, 60, 300, 61];

static GO: AtomicBool = AtomicBool::new(false);

#[test]
fn the_kernel_puts_gaps_into_the_same_buckets() {
    if !linux::privilege::test_may_run("the_kernel_puts_gaps_into_the_same_buckets") {
        return;
    }
    let mut asm = Assembler::new();
    let short = asm.label();
    asm.load(Size::W, Reg::R6, Reg::R1, 0);
    asm.load(Size::W, Reg::R7, Reg::R1, 4);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu_imm(AluOp::Add, Reg::R2, 8);
    asm.jump_if(Condition::Gt, Reg::R2, Reg::R7, short);
    asm.load(Size::DW, Reg::R0, Reg::R6, 0);
    lower_gap_bucket(&mut asm, Reg::R0, Reg::R2, Reg::R3);
    asm.exit();
    asm.bind(short);
    asm.mov_imm(Reg::R0, -1);
    asm.exit();
    let program = load(asm);
    let edges = (0..GAP_BUCKETS).step_by(61).flat_map(|bucket| {
        let (low, width) = gap_bucket_range(bucket);
        [low, low + (width - 1)]
    });
    for ns in edges.chain([0, 1, 127, 128, 255, 256, 257, 67, 1_000_000, 1 << 32, 1 << 63, u64::MAX]) {
        let mut packet = [0; 60];
        packet[..8].copy_from_slice(&ns.to_ne_bytes());
        assert_eq!(program.run_plain(&packet).unwrap().retval as usize, gap_bucket(ns), "{ns} ns");
    }
}

#[test]
fn exactly_so_many_are_sent_without_a_pace() {
    if !linux::privilege::test_may_run("exactly_so_many_are_sent_without_a_pace") {
        return;
    }
    in_pair(|pair| {
        let sink = pair.end(Action::XdpDrop);
        let mut generator = pair.generator(None, None);
        check(&mut generator, &sink, &[1, 63, 64, 65, 1000, 123_457]);
        assert_eq!((generator.grain(), generator.gaps().is_none()), (None, true));
    });
}

#[test]
fn exactly_so_many_are_sent_at_a_pace() {
    if !linux::privilege::test_may_run("exactly_so_many_are_sent_at_a_pace") {
        return;
    }
    for (pps, batch) in [(2e5, 1), (1e6, 4), (4e6, 64)] {
        in_pair(|pair| {
            let sink = pair.end(Action::XdpDrop);
            let mut generator = pair.generator(Some(pps), Some(batch));
            check(&mut generator, &sink, &[1, 2, 63, 65, 1000, 12_345]);
            assert_eq!(generator.grain(), Some(batch));
        });
    }
}

#[test]
fn packets_go_on_counting_from_call_to_call() {
    if !linux::privilege::test_may_run("packets_go_on_counting_from_call_to_call") {
        return;
    }
    for pps in [None, Some(1e5)] {
        in_pair(|pair| {
            pair.pass();
            let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut generator = pair.generator(pps, None);
            for number in 0..30 {
                generator.send(1, &GO).unwrap();
                assert_eq!(receive(&receiver), numbered(number, L2_BYTES));
            }
        });
    }
}

#[test]
fn a_shortened_frame_comes_back_whole() {
    if !linux::privilege::test_may_run("a_shortened_frame_comes_back_whole") {
        return;
    }
    // Many times around, so that each page was short and long.
    const ROUNDS: u64 = 5000;
    for pps in [None, Some(2e5)] {
        in_pair(|pair| {
            pair.pass();
            let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut generator = pair.generator_of(&lengths, LENGTHS[0], pps, Some(16));
            // A live frame counts with its whole page against the receiving socket: some 40 find room.
            for number in 0..40 {
                generator.send(1, &GO).unwrap();
                assert_eq!(receive(&receiver), numbered(number, LENGTHS[number as usize % 4]));
            }
            drop(receiver);
            let before = RouteSocket::open().unwrap().link_stats(pair.far).unwrap();
            let sent = generator.send(4 * ROUNDS, &GO).unwrap();
            assert_eq!(sent.confirmed, 4 * ROUNDS);
            let bytes: u64 = LENGTHS.iter().map(|&length| length as u64).sum();
            let expected = (before.rx_packets + 4 * ROUNDS, before.rx_bytes + ROUNDS * bytes);
            let deadline = Instant::now() + DEADLINE;
            loop {
                let now = RouteSocket::open().unwrap().link_stats(pair.far).unwrap();
                if (now.rx_packets, now.rx_bytes) == expected {
                    break;
                }
                assert!(Instant::now() < deadline, "{now:?}, expected {expected:?}");
            }
        });
    }
}

#[test]
fn packets_keep_their_distance() {
    if !linux::privilege::test_may_run("packets_keep_their_distance") {
        return;
    }
    for (pps, batch, packets) in [(20e3, 1, 4000), (20e3, 4, 4000), (400.0, 1, 40)] {
        in_pair(|pair| {
            let sink = pair.end(Action::XdpDrop);
            let start = monotonic_ns();
            let mut generator = pair.generator(Some(pps), Some(batch));
            let sent = generator.send(packets, &GO).unwrap();
            let took = monotonic_ns() - start;
            assert_eq!((sent.offered, sent.confirmed), (packets, packets));
            assert_eq!(sink.wait_until(packets, DEADLINE).unwrap(), packets);
            let interval = 1e9 / pps;
            assert!(took as f64 >= (packets - u64::from(batch)) as f64 * interval, "{took} ns");
            let gaps = generator.gaps().unwrap();
            assert_eq!(gaps.count(), packets - 1);
            // A bucket's middle may be 0.4 % below what fell into it, and gaps are kept to a thousandth.
            let least = interval / 2.0 * f64::from(batch) * 0.99;
            assert_eq!(gaps.between(1, least as u64), 0, "{:?}", gaps.values().take(5).collect::<Vec<_>>());
            let within = gaps.between(0, 0);
            assert!(within >= (packets - packets / u64::from(batch)) / 2 && (batch > 1 || within == 0));
        });
    }
}

#[test]
fn it_stops_when_told_to() {
    if !linux::privilege::test_may_run("it_stops_when_told_to") {
        return;
    }
    // More than a day of each.
    for (pps, packets) in
        [(None, u64::MAX), (Some(1e5), 1 << 60), (Some(1e6), 1 << 60), (Some(0.01), 1 << 60)]
    {
        in_pair(|pair| {
            let sink = pair.end(Action::XdpDrop);
            let mut generator = pair.generator(pps, None);
            let stop = AtomicBool::new(false);
            let sent = std::thread::scope(|scope| {
                scope.spawn(|| {
                    sink.wait_until(1, DEADLINE).unwrap();
                    stop.store(true, Ordering::Relaxed);
                });
                generator.send(packets, &stop).unwrap()
            });
            assert!(sent.offered >= 1 && sent.offered < packets);
            assert_eq!(sink.wait_until(sent.confirmed, DEADLINE).unwrap(), sent.confirmed);
            // It goes on with the next packet.
            if pps != Some(0.01) {
                assert_eq!(generator.send(1, &GO).unwrap().confirmed, 1);
                assert_eq!(sink.wait_until(sent.confirmed + 1, DEADLINE).unwrap(), sent.confirmed + 1);
            }
        });
    }
}

#[test]
fn packets_reach_the_stack() {
    if !linux::privilege::test_may_run("packets_reach_the_stack") {
        return;
    }
    in_pair(|pair| {
        let mut generator = LiveGenerator::new(&LiveSpec {
            kind: BackendKind::Inject,
            destination: Destination::Stack,
            ..pair.spec(&constant_length, L2_BYTES, None, None)
        })
        .unwrap();
        let dropped = || RouteSocket::open().unwrap().link_stats(pair.near).unwrap().rx_dropped;
        let before = dropped();
        assert_eq!(generator.send(5000, &GO).unwrap(), Sent { offered: 5000, confirmed: 5000, calls: 1 });
        // Nobody takes this EtherType.
        assert_eq!(dropped() - before, 5000);
    });
}

#[test]
fn two_workers_do_not_get_into_each_others_way() {
    if !linux::privilege::test_may_run("two_workers_do_not_get_into_each_others_way") {
        return;
    }
    const PACKETS: u64 = 200_000;
    in_pair(|pair| {
        let sink = pair.end(Action::XdpDrop);
        let mut workers = [None, Some(1e6)].map(|pps| pair.generator(pps, None));
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| assert_eq!(worker.send(PACKETS, &GO).unwrap().confirmed, PACKETS));
            }
        });
        // Two senders into one queue may find it full; what was taken is counted.
        let stats = RouteSocket::open().unwrap().link_stats(pair.near).unwrap();
        assert_eq!(sink.wait_until(stats.tx_packets, DEADLINE).unwrap(), stats.tx_packets);
        assert_eq!(stats.tx_packets + stats.tx_dropped, 2 * PACKETS, "{stats:?}");
    });
}

#[test]
fn a_packet_of_an_impossible_length_is_an_error() {
    if !linux::privilege::test_may_run("a_packet_of_an_impossible_length_is_an_error") {
        return;
    }
    for length in [0, 13, L2_BYTES as i32 + 1, -1] {
        for pps in [None, Some(1e5)] {
            in_pair(|pair| {
                let sink = pair.end(Action::XdpDrop);
                let write = |asm: &mut Assembler, _: Reg, _: Reg, _: [Reg; 5]| {
                    asm.mov_imm(GeneratorProgram::<Infallible>::LENGTH, length);
                    Ok::<(), Infallible>(())
                };
                let mut generator = pair.generator_of(&write, L2_BYTES, pps, None);
                let error = generator.send(3, &GO).unwrap_err();
                assert!(matches!(error, SendError::Stalled { .. }) && error.sent().confirmed == 0, "{error}");
                assert_eq!(sink.received().unwrap(), 0);
            });
        }
    }
}

#[test]
fn the_verifier_takes_long_packet_programs() {
    if !linux::privilege::test_may_run("the_verifier_takes_long_packet_programs") {
        return;
    }
    // As long as 64 packets of a few hundred bytes each, and too long for a jump across it.
    const BRANCHES: i32 = 64;
    const STORES: i32 = 600;
    in_pair(|pair| {
        let sink = pair.end(Action::XdpDrop);
        let write = |asm: &mut Assembler, packet: Reg, index: Reg, scratch: [Reg; 5]| {
            let end = asm.label();
            for branch in 0..BRANCHES {
                let next = asm.label();
                asm.mov(scratch[0], index);
                asm.alu_imm(AluOp::Mod, scratch[0], BRANCHES);
                asm.jump_if_imm(Condition::Ne, scratch[0], branch, next);
                (0..STORES).for_each(|store| asm.store_imm(Size::B, packet, (store % 22) as i16, store));
                asm.mov_imm(GeneratorProgram::<Infallible>::LENGTH, 60 + branch);
                if branch > BRANCHES / 2 {
                    asm.jump(end);
                }
                asm.bind(next);
            }
            asm.bind(end);
            asm.mov_imm(GeneratorProgram::<Infallible>::LENGTH, 60);
            Ok(())
        };
        for (pps, batch) in [(None, 64), (Some(1e6), 1), (Some(1e6), 64)] {
            let before = sink.received().unwrap();
            let mut generator = pair.generator_of(&write, 200, pps, Some(batch));
            assert_eq!(generator.send(1000, &GO).unwrap().confirmed, 1000);
            assert_eq!(sink.wait_until(before + 1000, DEADLINE).unwrap(), before + 1000);
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    if !linux::privilege::test_may_run("what_cannot_be_is_refused") {
        return;
    }
    in_pair(|pair| {
        let spec = |batch| pair.spec(&constant_length, L2_BYTES, Some(1e3), Some(batch));
        for batch in [0, 3, 512] {
            assert!(matches!(LiveGenerator::new(&spec(batch)), Err(LiveError::Batch(_))));
        }
        let short = LiveSpec { frame: vec![0; 13], ..spec(1) };
        assert!(matches!(LiveGenerator::new(&short), Err(LiveError::Short { .. })));
        let write = |_: &mut Assembler, _: Reg, _: Reg, _: [Reg; 5]| Err::<(), &str>("too much");
        let error = LiveGenerator::new(&pair.spec(&write, L2_BYTES, None, None)).unwrap_err();
        assert!(error.to_string().contains("too much"), "{error}");
        let nowhere = LiveSpec { ingress_ifindex: 9999, ..spec(1) };
        let error = LiveGenerator::new(&nowhere).unwrap().send(1, &GO).unwrap_err();
        assert!(matches!(error, SendError::Syscall { .. }), "{error}");
    });
}

/// Sends in several parts and compares all counts.
fn check(generator: &mut LiveGenerator, sink: &ProgramSink, parts: &[u64]) {
    let mut all = Sent::default();
    for &packets in parts {
        let sent = generator.send(packets, &GO).unwrap();
        assert_eq!((sent.offered, sent.confirmed), (packets, packets));
        all += sent;
    }
    assert_eq!(generator.flush().unwrap(), Sent::default());
    assert_eq!(sink.wait_until(all.offered, DEADLINE).unwrap(), all.offered);
    assert_eq!(sink.received().unwrap(), all.offered);
    if let Some(gaps) = generator.gaps() {
        assert_eq!(gaps.count(), all.offered - 1);
    }
}

/// Writes the header and the index.
fn constant_length(
    asm: &mut Assembler,
    packet: Reg,
    index: Reg,
    scratch: [Reg; 5],
) -> Result<(), Infallible> {
    for (at, bytes) in HEADER.chunks(2).enumerate() {
        asm.store_imm(Size::H, packet, 2 * at as i16, i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])));
    }
    asm.mov(scratch[0], index);
    asm.to_big_endian(scratch[0], 64);
    asm.store(Size::DW, packet, 14, scratch[0]);
    Ok(())
}

/// The same, with the lengths of [`LENGTHS`] in turn.
fn lengths(asm: &mut Assembler, packet: Reg, index: Reg, scratch: [Reg; 5]) -> Result<(), Infallible> {
    constant_length(asm, packet, index, scratch)?;
    let length = GeneratorProgram::<Infallible>::LENGTH;
    let end = asm.label();
    asm.mov(scratch[0], index);
    asm.alu_imm(AluOp::And, scratch[0], 3);
    for (number, &bytes) in LENGTHS.iter().enumerate() {
        asm.mov_imm(length, bytes as i32);
        asm.jump_if_imm(Condition::Eq, scratch[0], number as i32, end);
    }
    asm.bind(end);
    Ok(())
}

fn numbered(index: u64, length: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; length];
    frame[..14].copy_from_slice(&HEADER);
    frame[14..22].copy_from_slice(&index.to_be_bytes());
    frame
}

type Write<'a, E> = dyn Fn(&mut Assembler, Reg, Reg, [Reg; 5]) -> Result<(), E> + 'a;

/// Two ends of a veth pair, up and silent, in a namespace that the calling thread is in.
struct Pair {
    near: u32,
    far: u32,
    links: std::cell::RefCell<Vec<Link>>,
}

impl Pair {
    /// Attaches a program to the far end that counts and ends what comes.
    fn end(&self, action: Action) -> ProgramSink {
        let sink = ProgramSink::new().unwrap();
        self.attach(&counter(action, sink.map_fd()).unwrap());
        sink
    }

    /// Attaches a program to the far end that lets everything pass.
    fn pass(&self) {
        self.attach(&[[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]]);
    }

    fn attach(&self, insns: &[[u8; 8]]) {
        let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "far", insns)).unwrap();
        self.links.borrow_mut().push(Link::attach_xdp(&program, self.far, XdpMode::Native).unwrap());
    }

    fn generator(&self, pps: Option<f64>, batch: Option<u32>) -> LiveGenerator {
        let spec = self.spec(&constant_length, L2_BYTES, pps, batch);
        LiveGenerator::new(&LiveSpec { shortens: false, ..spec }).unwrap()
    }

    fn generator_of(
        &self,
        write: &Write<'_, Infallible>,
        longest: usize,
        pps: Option<f64>,
        batch: Option<u32>,
    ) -> LiveGenerator {
        LiveGenerator::new(&LiveSpec { shortens: true, ..self.spec(write, longest, pps, batch) }).unwrap()
    }

    fn spec<'a, E>(
        &self,
        write: &'a Write<'a, E>,
        longest: usize,
        pps: Option<f64>,
        batch: Option<u32>,
    ) -> LiveSpec<'a, E> {
        LiveSpec {
            kind: BackendKind::XdpLive,
            destination: Destination::Device(self.near),
            ingress_ifindex: self.near,
            rx_queue: 0,
            frame: numbered(u64::MAX, longest),
            header_bytes: 22,
            write_packet: write,
            shortens: false,
            pace: pps.map(|pps| Pace { start_ns: monotonic_ns() + 1_000_000, interval_ns: 1e9 / pps }),
            batch,
        }
    }
}

fn in_pair(test: impl FnOnce(&Pair) + Send) {
    let netns = Netns::unnamed().unwrap();
    netns
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            route.create_veth(&VethEnd::new("near"), &VethEnd::new("far")).unwrap();
            let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap().ifindex);
            for ifindex in [1, near, far] {
                route.set_no_link_local(ifindex).unwrap();
                route.set_up(ifindex).unwrap();
            }
            assert!(route.wait_until_carrying(&[near, far], DEADLINE).unwrap());
            test(&Pair { near, far, links: Vec::new().into() });
        })
        .unwrap();
}

fn receive(socket: &PacketSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    assert!(socket.wait_readable(DEADLINE).unwrap(), "no frame came");
    let len = socket.receive(&mut buffer).unwrap().unwrap();
    buffer.truncate(len);
    buffer
}

fn load(asm: Assembler) -> Program {
    let insns: Vec<[u8; 8]> = asm.finish().unwrap().into_iter().map(Insn::to_bytes).collect();
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "test", &insns)).unwrap()
}
