//! BPF programs, packet sockets and their rings against the running kernel, in namespaces of their own.
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use std::time::{Duration, Instant};

use linux::bpf::{
    AttachType, Link, LiveEnd, LiveRun, Map, Program, ProgramKind, ProgramSpec, XdpAction, XdpMode,
    count_objects,
};
use linux::btf::Btf;
use linux::netns::Netns;
use linux::packet::{FrameBatch, PROTOCOL_ALL, PROTOCOL_NONE, PacketSocket, RingSpec, TxRing};
use linux::route::{RouteSocket, VethEnd};
use linux::xsk::{BindMode, Descriptor, XskSocket, XskSpec};

const DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn live_frames_reach_the_program_and_the_stack() {
    if !linux::privilege::test_may_run("live_frames_reach_the_program_and_the_stack") {
        return;
    }
    in_pair(|pair| {
        let produced = Map::array(8, 1, true).unwrap();
        let words = produced.mmap_array().unwrap();
        let program = xdp(&count_then(produced.fd(), XdpAction::Pass));
        let before = pair.stats_rx_dropped(pair.near);
        let run =
            LiveRun { frame: &frame(60), ingress_ifindex: pair.near, rx_queue: 0, repeat: 1000, batch: 64 };
        assert_eq!(program.run_xdp_live(&run).unwrap(), LiveEnd::Complete);
        assert_eq!(words.load(0), 1000);
        // Nobody takes this EtherType: the stack drops each frame and counts it at the device.
        assert_eq!(pair.stats_rx_dropped(pair.near) - before, 1000);
    });
}

#[test]
fn live_frames_are_redirected_and_counted_per_cpu() {
    if !linux::privilege::test_may_run("live_frames_are_redirected_and_counted_per_cpu") {
        return;
    }
    in_pair(|pair| {
        let counter = Counter::attach(pair.far);
        let program = xdp(&redirect_to(pair.near));
        let run = LiveRun { frame: &frame(60), ingress_ifindex: 1, rx_queue: 0, repeat: 3000, batch: 32 };
        assert_eq!(program.run_xdp_live(&run).unwrap(), LiveEnd::Complete);
        counter.expect(3000);
    });
}

#[test]
fn a_signal_ends_a_live_run_between_batches() {
    if !linux::privilege::test_may_run("a_signal_ends_a_live_run_between_batches") {
        return;
    }
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: the handler does nothing, which is allowed at any moment.
    unsafe { libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t) };
    // Some ten seconds of work, so that the run ends by itself when no signal reaches it.
    const FRAMES: u32 = 200_000_000;
    let produced = Map::array(8, 1, true).unwrap();
    let words = produced.mmap_array().unwrap();
    let program = xdp(&count_then(produced.fd(), XdpAction::Drop));
    // SAFETY: takes nothing, and the thread outlives every use of its number.
    let runner = unsafe { libc::pthread_self() };
    let end = std::thread::scope(|scope| {
        scope.spawn(|| {
            while words.load(0) == 0 {
                std::thread::yield_now();
            }
            // SAFETY: the runner waits for this thread, so it is alive.
            unsafe { libc::pthread_kill(runner, libc::SIGUSR1) };
        });
        let run = LiveRun { frame: &frame(60), ingress_ifindex: 1, rx_queue: 0, repeat: FRAMES, batch: 64 };
        program.run_xdp_live(&run).unwrap()
    });
    assert_eq!(end, LiveEnd::Interrupted);
    assert!(words.load(0) < u64::from(FRAMES) && words.load(0).is_multiple_of(64));
}

#[test]
fn refusals_of_a_live_run_are_errors() {
    if !linux::privilege::test_may_run("refusals_of_a_live_run_are_errors") {
        return;
    }
    in_pair(|pair| {
        let program = xdp(&answer(XdpAction::Drop));
        let good = frame(60);
        let long = frame(linux::bpf::LIVE_FRAME_BYTES_MAX);
        let run = LiveRun { frame: &good, ingress_ifindex: pair.near, rx_queue: 0, repeat: 1, batch: 0 };
        let errno = |run: &LiveRun<'_>| program.run_xdp_live(run).unwrap_err().errno();
        assert_eq!(program.run_xdp_live(&LiveRun { frame: &long, ..run }).unwrap(), LiveEnd::Complete);
        assert_eq!(errno(&LiveRun { frame: &good[..13], ..run }), Some(libc::EINVAL));
        assert_eq!(errno(&LiveRun { frame: &frame(4096), ..run }), Some(libc::EINVAL));
        assert_eq!(errno(&LiveRun { rx_queue: 999, ..run }), Some(libc::EINVAL));
        assert_eq!(errno(&LiveRun { ingress_ifindex: 999, ..run }), Some(libc::ENODEV));
        assert_eq!(errno(&LiveRun { batch: linux::bpf::LIVE_BATCH_MAX + 1, ..run }), Some(libc::E2BIG));
    });
}

#[test]
fn a_plain_run_returns_answer_and_data() {
    if !linux::privilege::test_may_run("a_plain_run_returns_answer_and_data") {
        return;
    }
    // Write 0xab into the first byte of the frame, when there are 14.
    let mut code = vec![insn(0x61, 2, 1, 0, 0), insn(0x61, 3, 1, 4, 0), insn(0xbf, 4, 2, 0, 0)];
    code.extend([insn(0x07, 4, 0, 0, 14), insn(0x2d, 4, 3, 1, 0), insn(0x72, 2, 0, 0, 0xab)]);
    code.extend(answer(XdpAction::Tx));
    let run = xdp(&code).run_plain(&frame(60)).unwrap();
    let mut expected = frame(60);
    expected[0] = 0xab;
    assert_eq!((XdpAction::from(run.retval), run.data), (XdpAction::Tx, expected));
}

#[test]
fn a_refused_program_says_why() {
    if !linux::privilege::test_may_run("a_refused_program_says_why") {
        return;
    }
    let never_set = [insn(0xbf, 0, 5, 0, 0), insn(0x95, 0, 0, 0, 0)];
    let error = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bad", &never_set)).unwrap_err();
    assert!(error.detail.as_deref().unwrap_or_default().contains("R5 !read_ok"), "{error}");
}

#[test]
fn maps_hold_what_was_put_there() {
    if !linux::privilege::test_may_run("maps_hold_what_was_put_there") {
        return;
    }
    let map = Map::array(16, 4, true).unwrap();
    let words = map.mmap_array().unwrap();
    assert_eq!(words.len(), 8);
    words.store(7, 42);
    assert_eq!(map.lookup(3).unwrap()[8..], 42_u64.to_ne_bytes());
    map.update(0, &[1; 16]).unwrap();
    assert_eq!(words.load(0), u64::from_ne_bytes([1; 8]));
    assert!(map.update(0, &[1; 15]).is_err());
    assert_eq!(map.lookup(4).unwrap_err().errno(), Some(libc::ENOENT));
    assert!(Map::array(8, 1, false).unwrap().mmap_array().is_err());
    let percpu = Map::percpu_array(8, 2).unwrap();
    let mut values = percpu.lookup(1).unwrap();
    values.chunks_mut(8).for_each(|value| value.copy_from_slice(&5_u64.to_ne_bytes()));
    percpu.update(1, &values).unwrap();
    assert_eq!(percpu.percpu_sum(1).unwrap(), 5 * (values.len() / 8) as u64);
}

#[test]
fn attachments_end_with_their_link() {
    if !linux::privilege::test_may_run("attachments_end_with_their_link") {
        return;
    }
    in_pair(|pair| {
        let program = xdp(&answer(XdpAction::Pass));
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let link = Link::attach_xdp(&program, pair.far, mode).unwrap();
            let second = Link::attach_xdp(&program, pair.far, mode).unwrap_err();
            assert_eq!(second.errno(), Some(libc::EBUSY));
            drop(link);
        }
        let mut spec = ProgramSpec::new(ProgramKind::SchedCls, "pass", &[]);
        let code = answer(XdpAction::Aborted);
        spec.insns = &code;
        spec.expected_attach = Some(AttachType::TcxIngress);
        let program = Program::load(&spec).unwrap();
        drop(Link::attach_tcx_ingress(&program, pair.far).unwrap());
        let program = Program::load(&ProgramSpec::new(ProgramKind::RawTracepoint, "trace", &code)).unwrap();
        drop(Link::attach_raw_tracepoint(&program, "kfree_skb").unwrap());
        assert!(Link::attach_raw_tracepoint(&program, "no_such_tracepoint").is_err());
        assert!(Link::attach_raw_tracepoint(&program, "nul\0inside").is_err());
    });
}

#[test]
fn a_typed_tracepoint_is_found_by_its_name() {
    if !linux::privilege::test_may_run("a_typed_tracepoint_is_found_by_its_name") {
        return;
    }
    let id = Btf::kernel().unwrap().typedef_id("btf_trace_kfree_skb").unwrap();
    let code = answer(XdpAction::Aborted);
    let spec = ProgramSpec {
        expected_attach: Some(AttachType::TraceRawTracepoint),
        attach_btf_id: Some(id),
        ..ProgramSpec::new(ProgramKind::Tracing, "trace", &code)
    };
    drop(Link::attach_tracing(&Program::load(&spec).unwrap()).unwrap());
}

#[test]
fn objects_are_counted() {
    if !linux::privilege::test_may_run("objects_are_counted") {
        return;
    }
    // Other tests make and drop maps meanwhile, so only what this one adds is sure: more than a hundred.
    let maps: Vec<Map> = (0..100).map(|_| Map::array(8, 1, false).unwrap()).collect();
    assert!(count_objects().unwrap().maps >= maps.len());
}

#[test]
fn single_frames_and_batches_arrive_as_they_were() {
    if !linux::privilege::test_may_run("single_frames_and_batches_arrive_as_they_were") {
        return;
    }
    in_pair(|pair| {
        let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
        let sender = PacketSocket::open(pair.near, PROTOCOL_NONE).unwrap();
        sender.set_qdisc_bypass(true).unwrap();
        assert!(sender.send(&frame(60)).unwrap());
        let mut batch = FrameBatch::new(8, 100).unwrap();
        for index in 0..8 {
            let bytes = numbered(index as u64, 60 + index);
            batch.frame_mut(index)[..bytes.len()].copy_from_slice(&bytes);
            batch.set_len(index, bytes.len());
        }
        assert_eq!(sender.send_batch(&mut batch, 2, 6).unwrap(), 6);
        assert_eq!(receive(&receiver), frame(60));
        for index in 2..8 {
            assert_eq!(receive(&receiver), numbered(index as u64, 60 + index));
        }
        assert_eq!(receiver.receive(&mut [0; 100]).unwrap(), None);
        assert_eq!(receiver.statistics().unwrap().seen, 7);
        assert_eq!(receiver.statistics().unwrap().seen, 0);
    });
}

#[test]
fn a_frame_above_the_mtu_is_an_error() {
    if !linux::privilege::test_may_run("a_frame_above_the_mtu_is_an_error") {
        return;
    }
    in_pair(|pair| {
        let sender = PacketSocket::open(pair.near, PROTOCOL_NONE).unwrap();
        assert_eq!(sender.send(&frame(1600)).unwrap_err().errno(), Some(libc::EMSGSIZE));
        let spec = RingSpec { frames: 4, l2_bytes: 1600, skip_malformed: false, linear: true };
        let mut ring = TxRing::new(sender, &spec).unwrap();
        assert!(ring.push(|slot| Some(fill(slot, &frame(1600)))).unwrap());
        assert_eq!(ring.flush(DEADLINE).unwrap_err().errno(), Some(libc::EMSGSIZE));
        assert_eq!(ring.state().completed, 0);
    });
    assert_eq!(PacketSocket::open(9999, PROTOCOL_NONE).unwrap_err().errno(), Some(libc::ENODEV));
}

#[test]
fn the_ring_sends_everything_in_order() {
    if !linux::privilege::test_may_run("the_ring_sends_everything_in_order") {
        return;
    }
    for linear in [false, true] {
        in_pair(|pair| {
            let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let sender = PacketSocket::open(pair.near, PROTOCOL_NONE).unwrap();
            let mut ring =
                TxRing::new(sender, &RingSpec { frames: 32, l2_bytes: 60, skip_malformed: false, linear })
                    .unwrap();
            assert!(ring.slots() >= 32 && ring.l2_bytes_max() >= 60);
            assert_eq!(ring.is_linear(), linear);
            let total = ring.slots() as u64 * 3 + 1;
            let mut sequence = 0;
            while sequence < total {
                if ring.push(|slot| Some(fill(slot, &numbered(sequence, 60)))).unwrap() {
                    sequence += 1;
                } else {
                    ring.kick().unwrap();
                }
            }
            let state = ring.flush(DEADLINE).unwrap();
            assert_eq!((state.queued, state.completed, state.outstanding()), (total, total, 0));
            for sequence in 0..total {
                assert_eq!(receive(&receiver), numbered(sequence, 60));
            }
            // The slots still hold the last frames, and are sent again as they are.
            assert!(ring.push_as_is().unwrap());
            ring.flush(DEADLINE).unwrap();
            assert_eq!(receive(&receiver), numbered(total - ring.slots() as u64, 60));
        });
    }
}

#[test]
fn af_xdp_sends_and_receives() {
    if !linux::privilege::test_may_run("af_xdp_sends_and_receives") {
        return;
    }
    in_pair(|pair| {
        let sockets = Map::xskmap(1).unwrap();
        let _link =
            Link::attach_xdp(&xdp(&redirect_to_socket(sockets.fd())), pair.far, XdpMode::Native).unwrap();
        let mut receiver = XskSocket::open(&XskSpec::receiver(pair.far, 0, 64)).unwrap();
        sockets.update_socket(0, &receiver).unwrap();
        assert_eq!(receiver.fill(&(0..64).collect::<Vec<_>>()), 64);
        let lent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| receiver.chunk_mut(3).len()));
        assert!(lent.is_err(), "the kernel may write to it");
        let mut sender = XskSocket::open(&XskSpec::sender(pair.near, 0, 16, 64)).unwrap();
        assert!(!sender.is_zero_copy().unwrap() && sender.needs_kick());
        for chunk in 0..16 {
            sender.chunk_mut(chunk)[..100].copy_from_slice(&numbered(u64::from(chunk), 100));
        }
        let piece = |index| Descriptor { chunk: index % 16, offset: 0, bytes: 60 + index % 16, options: 0 };
        assert_eq!(sender.submit(100, piece), 64);
        assert_eq!(sender.submit(1, piece), 0);
        let completed = complete(&mut sender, 64);
        assert_eq!(completed, (0..64).map(|index| index % 16).collect::<Vec<_>>());
        let mut pieces = Vec::new();
        let end = Instant::now() + DEADLINE;
        while pieces.len() < 64 && Instant::now() < end {
            receiver.wait_readable(Duration::from_millis(10)).unwrap();
            receiver.receive(u32::MAX, |piece| pieces.push(piece));
        }
        for (index, piece) in (0_u64..).zip(&pieces) {
            let (start, bytes) = (piece.offset as usize, piece.bytes as usize);
            let frame = &receiver.chunk_mut(piece.chunk)[start..start + bytes];
            assert_eq!(frame, &numbered(index % 16, 100)[..60 + index as usize % 16]);
        }
        assert_eq!(pieces.len(), 64);
        assert_eq!(receiver.statistics().unwrap().rx_dropped, 0);
    });
}

#[test]
fn af_xdp_refusals_are_errors_and_bad_pieces_are_counted() {
    if !linux::privilege::test_may_run("af_xdp_refusals_are_errors_and_bad_pieces_are_counted") {
        return;
    }
    in_pair(|pair| {
        let good = XskSpec::sender(pair.near, 0, 4, 16);
        let errno = |spec: &XskSpec| XskSocket::open(spec).unwrap_err().errno();
        assert_eq!(errno(&XskSpec { ifindex: 999, ..good }), Some(libc::ENODEV));
        assert_eq!(errno(&XskSpec { queue: 999, ..good }), Some(libc::EINVAL));
        assert_eq!(errno(&XskSpec { tx_entries: 17, ..good }), Some(libc::EINVAL));
        assert_eq!(errno(&XskSpec { chunk_bytes: 0, ..good }), Some(libc::EINVAL));
        assert_eq!(errno(&XskSpec { mode: BindMode::ZeroCopy, ..good }), Some(libc::EOPNOTSUPP));
        let mut socket = XskSocket::open(&good).unwrap();
        assert_eq!(socket.submit(1, |_| Descriptor { chunk: 4, offset: 0, bytes: 60, options: 0 }), 1);
        socket.kick().unwrap();
        assert_eq!(socket.statistics().unwrap().tx_invalid, 1);
    });
}

fn complete(socket: &mut XskSocket, expected: usize) -> Vec<u32> {
    let mut chunks = Vec::new();
    let end = Instant::now() + DEADLINE;
    while chunks.len() < expected && Instant::now() < end {
        socket.kick().unwrap();
        socket.complete(|chunk| chunks.push(chunk));
    }
    chunks
}

/// Two ends of a veth pair, up and silent, in a namespace that the calling thread is in.
struct Pair {
    near: u32,
    far: u32,
}

impl Pair {
    fn stats_rx_dropped(&self, ifindex: u32) -> u64 {
        RouteSocket::open().unwrap().link_stats(ifindex).unwrap().rx_dropped
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
            test(&Pair { near, far });
        })
        .unwrap();
}

/// An XDP program on a device that counts and drops.
struct Counter {
    map: Map,
    _link: Link,
}

impl Counter {
    fn attach(ifindex: u32) -> Self {
        let map = Map::percpu_array(8, 1).unwrap();
        let program = xdp(&count_then(map.fd(), XdpAction::Drop));
        Self { map, _link: Link::attach_xdp(&program, ifindex, XdpMode::Native).unwrap() }
    }

    /// Waits for the count, and fails when it does not come or is passed.
    fn expect(&self, frames: u64) {
        let end = Instant::now() + DEADLINE;
        while self.map.percpu_sum(0).unwrap() < frames && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(self.map.percpu_sum(0).unwrap(), frames);
    }
}

fn receive(socket: &PacketSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    assert!(socket.wait_readable(DEADLINE).unwrap());
    let len = socket.receive(&mut buffer).unwrap().unwrap();
    buffer.truncate(len);
    buffer
}

fn fill(slot: &mut [u8], frame: &[u8]) -> usize {
    slot[..frame.len()].copy_from_slice(frame);
    frame.len()
}

/// A frame of the EtherType for local experiments (IEEE 802, 0x88b5).
fn frame(l2_bytes: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; l2_bytes];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

fn numbered(sequence: u64, l2_bytes: usize) -> Vec<u8> {
    let mut frame = frame(l2_bytes);
    frame[14..22].copy_from_slice(&sequence.to_be_bytes());
    frame
}

fn xdp(code: &[[u8; 8]]) -> Program {
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "test", code)).unwrap()
}

/// `struct bpf_insn`.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut bytes = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&off.to_ne_bytes());
    bytes[4..8].copy_from_slice(&imm.to_ne_bytes());
    bytes
}

fn answer(action: XdpAction) -> Vec<[u8; 8]> {
    let value = (0..5).find(|&value| XdpAction::from(value) == action).unwrap();
    vec![insn(0xb7, 0, 0, 0, value.cast_signed()), insn(0x95, 0, 0, 0, 0)]
}

/// Adds 1 to the first word of entry 0 of the map, then returns the action.
fn count_then(map_fd: i32, action: XdpAction) -> Vec<[u8; 8]> {
    let mut code = vec![
        insn(0x62, 10, 0, -4, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -4),
        insn(0x18, 1, 1, 0, map_fd),
        insn(0, 0, 0, 0, 0),
        insn(0x85, 0, 0, 0, 1),
        insn(0x15, 0, 0, 3, 0),
        insn(0x79, 1, 0, 0, 0),
        insn(0x07, 1, 0, 0, 1),
        insn(0x7b, 0, 1, 0, 0),
    ];
    code.extend(answer(action));
    code
}

/// `bpf_redirect_map(map, 0, XDP_ABORTED)`.
fn redirect_to_socket(map_fd: i32) -> Vec<[u8; 8]> {
    vec![
        insn(0x18, 1, 1, 0, map_fd),
        insn(0, 0, 0, 0, 0),
        insn(0xb7, 2, 0, 0, 0),
        insn(0xb7, 3, 0, 0, 0),
        insn(0x85, 0, 0, 0, 51),
        insn(0x95, 0, 0, 0, 0),
    ]
}

/// `bpf_redirect(ifindex, 0)`.
fn redirect_to(ifindex: u32) -> Vec<[u8; 8]> {
    vec![
        insn(0xb7, 1, 0, 0, ifindex.cast_signed()),
        insn(0xb7, 2, 0, 0, 0),
        insn(0x85, 0, 0, 0, 23),
        insn(0x95, 0, 0, 0, 0),
    ]
}
