//! What tests of devices share: veth pairs of their own, ports, and a loop that passes frames on.
// Each test file uses a part of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapath::device::{AfPacketRx, AfPacketTx, AfPacketTxSpec, AfXdp, AfXdpSpec, PacketMemory, Transmit};
use datapath::receive::{Copying, Handing, Paged, Poll, Receive};
use datapath::stage::Stage;
use datapath::{BUDGET, Batch, Ledger, Verdict, Worker};
use linux::netns::Netns;
use linux::packet::{PROTOCOL_NONE, PacketSocket, SlotRingSpec};
use linux::route::{RouteSocket, VethEnd};
use pagefrag::Source;

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// The devices with rings.
#[allow(clippy::enum_variant_names, reason = "that is how they are called")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AfPacket,
    /// Pages are handed up.
    AfXdp,
    /// Frames are copied out of their pages.
    AfXdpCopying,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::AfPacket, Self::AfXdp, Self::AfXdpCopying];
}

pub(crate) struct Port {
    pub(crate) rx: Box<dyn Receive>,
    pub(crate) tx: Box<dyn Transmit>,
}

/// Opens a device, with small rings.
pub(crate) fn open(kind: Kind, ifindex: u32, memory: Option<&PacketMemory>) -> Port {
    let buffers = Poll::new(Source::default().share());
    if kind == Kind::AfPacket {
        let rx = AfPacketRx::open(ifindex, &SlotRingSpec { slots: 1024, ..SlotRingSpec::default() }).unwrap();
        let tx = AfPacketTx::open(ifindex, &AfPacketTxSpec::default()).unwrap();
        return Port { rx: Box::new(Copying::new(Box::new(rx), buffers)), tx: Box::new(tx) };
    }
    let spec = AfXdpSpec { open_checksums: true, ..AfXdpSpec::new(ifindex) };
    let own = PacketMemory::new(spec.pages()).unwrap();
    let memory = memory.unwrap_or(&own);
    let (rx, tx) = AfXdp::open(memory, &spec).unwrap().queues.pop().unwrap();
    let handing = if kind == Kind::AfXdp { Handing::Page } else { Handing::Copy };
    let rx = Paged::new(Box::new(rx), memory.pool(), buffers, handing, 1514);
    Port { rx: Box::new(rx), tx: Box::new(tx) }
}

/// Passes every frame of one port to the other until it is over; the account then.
pub(crate) fn forward(ports: [Port; 2], is_over: &AtomicBool, ready: impl FnOnce()) -> Ledger {
    let [left, right] = ports;
    let mut worker = Worker::new(left.rx).receive(right.rx).stage(Cross).port(left.tx).port(right.tx);
    worker.poll(BUDGET, 0).unwrap();
    ready();
    while !is_over.load(Ordering::Relaxed) {
        if worker.poll(BUDGET, 0).unwrap() == 0 {
            worker.wait(Duration::from_millis(1)).unwrap();
        }
    }
    let start = Instant::now();
    while worker.ledger().held > 0 && start.elapsed() < DEADLINE {
        worker.settle().unwrap();
    }
    worker.ledger()
}

struct Cross;

impl Stage for Cross {
    fn name(&self) -> &'static str {
        "cross"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        batch.decide_rest(Verdict::Transmit(1 - batch.ingress()));
    }
}

/// Two veth pairs, up and silent, in a namespace that the calling thread is in.
pub(crate) struct Pair {
    pub(crate) near: u32,
    pub(crate) far: u32,
    pub(crate) other_near: u32,
    pub(crate) other_far: u32,
}

impl Pair {
    pub(crate) fn send_from_far(&self, frames: &[Vec<u8>]) {
        let far = PacketSocket::open(self.far, PROTOCOL_NONE).unwrap();
        for frame in frames {
            until("the kernel has room", || far.send(frame).unwrap());
        }
    }
}

pub(crate) fn in_pair(test: impl FnOnce(&Pair) + Send) {
    let netns = Netns::unnamed().unwrap();
    netns
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            let end = |name| VethEnd { rx_queues: Some(1), tx_queues: Some(1), ..VethEnd::new(name) };
            route.create_veth(&end("near"), &end("far")).unwrap();
            route.create_veth(&end("near2"), &end("far2")).unwrap();
            let [near, far, other_near, other_far] =
                ["near", "far", "near2", "far2"].map(|name| up(&mut route, name));
            assert!(route.wait_until_carrying(&[near, far, other_near, other_far], DEADLINE).unwrap());
            test(&Pair { near, far, other_near, other_far });
        })
        .unwrap();
}

/// Takes a device up that says nothing by itself; its number.
pub(crate) fn up(route: &mut RouteSocket, name: &str) -> u32 {
    let ifindex = route.link_by_name(name).unwrap().unwrap().ifindex;
    route.set_no_link_local(ifindex).unwrap();
    route.set_up(ifindex).unwrap();
    ifindex
}

/// A frame of the EtherType for local experiments (IEEE 802, 0x88b5), with a number in it.
pub(crate) fn frame(number: usize, l2_bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..l2_bytes).map(|at| (at * 7 + number) as u8).collect();
    frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&(number as u64).to_be_bytes());
    frame
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "in vain: {what}");
        std::thread::yield_now();
    }
}
