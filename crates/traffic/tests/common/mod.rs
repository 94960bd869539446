//! What the tests of sending share: a veth pair of their own, frames with numbers, and programs that count.
// Each test file uses a part of it.
#![allow(dead_code)]

use std::time::Duration;

use linux::bpf::{Link, Map, Program, ProgramKind, ProgramSpec, XdpMode};
use linux::netns::Netns;
use linux::packet::PacketSocket;
use linux::route::{RouteSocket, VethEnd};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, ProgramSink,
    TxRingBackend, TxRingSpec,
};

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
pub(crate) const L2_BYTES: usize = 60;

pub(crate) const XDP_DROP: i32 = 1;
pub(crate) const XDP_PASS: i32 = 2;

/// The backends that take frames from this process.
pub(crate) const WITH_FRAMES: [BackendKind; 3] = [BackendKind::AfXdp, BackendKind::TxRing, BackendKind::Mmsg];

pub(crate) fn open(kind: BackendKind, pair: &Pair, frames: Frames) -> Box<dyn Backend> {
    match kind {
        BackendKind::AfXdp => Box::new(AfXdp::new(&AfXdpSpec::new(pair.near), frames).unwrap()),
        BackendKind::TxRing => Box::new(TxRingBackend::new(&TxRingSpec::new(pair.near), frames).unwrap()),
        _ => Box::new(Mmsg::new(&MmsgSpec::new(pair.near), frames).unwrap()),
    }
}

/// Two ends of a veth pair, up and silent, in a namespace that the calling thread is in.
pub(crate) struct Pair {
    pub(crate) near: u32,
    pub(crate) far: u32,
    links: std::cell::RefCell<Vec<Link>>,
}

impl Pair {
    /// Attaches a program to the far end that counts and then returns `action`.
    pub(crate) fn count(&self, action: i32) -> ProgramSink {
        let sink = ProgramSink::new().unwrap();
        let program = xdp(&counting(sink.map_fd(), &[insn(0xb7, 0, 0, 0, action)]));
        self.links.borrow_mut().push(Link::attach_xdp(&program, self.far, XdpMode::Native).unwrap());
        sink
    }

    /// Live frames redirected out of the near end.
    pub(crate) fn xdp_live(&self) -> Inject {
        let redirect =
            [insn(0xb7, 1, 0, 0, self.near.cast_signed()), insn(0xb7, 2, 0, 0, 0), insn(0x85, 0, 0, 0, 23)];
        self.live(BackendKind::XdpLive, &redirect)
    }

    pub(crate) fn live(&self, kind: BackendKind, verdict: &[[u8; 8]]) -> Inject {
        let control = Map::array(8, 1, true).unwrap();
        Inject::new(InjectSpec {
            kind,
            program: xdp(&counting(control.fd(), verdict)),
            control: control.mmap_array().unwrap(),
            frame: numbered(0),
            ingress_ifindex: self.near,
            rx_queue: 0,
            batch: 64,
        })
    }
}

pub(crate) fn in_pair(test: impl FnOnce(&Pair) + Send) {
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

pub(crate) fn receive(socket: &PacketSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    assert!(socket.wait_readable(DEADLINE).unwrap(), "no frame came");
    let len = socket.receive(&mut buffer).unwrap().unwrap();
    buffer.truncate(len);
    buffer
}

pub(crate) fn numbered_frames() -> Frames {
    Frames::generated(L2_BYTES, |sequence, frame| frame.copy_from_slice(&numbered(sequence))).unwrap()
}

/// A frame of the EtherType for local experiments (IEEE 802, 0x88b5), with a number in it.
pub(crate) fn numbered(sequence: u64) -> Vec<u8> {
    let mut frame = vec![0x5a; L2_BYTES];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&sequence.to_be_bytes());
    frame
}

pub(crate) fn xdp(code: &[[u8; 8]]) -> Program {
    Program::load(&ProgramSpec::new(ProgramKind::Xdp, "test", code)).unwrap()
}

/// `struct bpf_insn`.
pub(crate) fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let mut bytes = [code, src << 4 | dst, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&off.to_ne_bytes());
    bytes[4..8].copy_from_slice(&imm.to_ne_bytes());
    bytes
}

/// Adds 1 to the first word of entry 0 of the map, then runs `verdict`, which sets r0, and ends.
fn counting(map_fd: i32, verdict: &[[u8; 8]]) -> Vec<[u8; 8]> {
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
    code.extend_from_slice(verdict);
    code.push(insn(0x95, 0, 0, 0, 0));
    code
}
