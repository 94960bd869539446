//! A worker between devices in memory: frames go in, frames come out, and the account must close.
#![allow(dead_code, reason = "each test file has its own copy")]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::device::{DeviceError, RxTotals, Transmit, TxTotals};
use datapath::receive::{Receive, ReceiveTotals};
use datapath::stage::forward::{Port, StaticNeighbour};
use datapath::stage::{ForwardConfig, PortAddress, Stage};
use datapath::wire::ethernet::MacAddress;
use datapath::{BUDGET, Batch, Ledger, Reason, Worker};
use pagefrag::{HEADROOM, PacketBuf};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// As in data/frames-linux-6.18.txt: the router and the first host. The far host's link address is ours to choose.
pub(crate) const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
pub(crate) const HOST: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
pub(crate) const ROUTER_FAR: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x11]);
pub(crate) const FAR: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x12]);

/// The router of those frames: 10.0.1.1 and 2001:db8:1::1 on port 0, 10.0.2.1 and 2001:db8:2::1 on port 1.
pub(crate) fn config() -> ForwardConfig {
    let port = |mac, addresses: &[&str]| Port {
        mac,
        mtu_bytes: 1500,
        addresses: addresses.iter().map(|of| own(of)).collect(),
    };
    ForwardConfig {
        ports: vec![
            port(ROUTER, &["10.0.1.1/24", "2001:db8:1::1/64", "fe80::ff:fe00:1/64"]),
            port(ROUTER_FAR, &["10.0.2.1/24", "2001:db8:2::1/64", "fe80::ff:fe00:11/64"]),
        ],
        ..ForwardConfig::default()
    }
}

/// The same, where nobody has to be asked.
pub(crate) fn known_config() -> ForwardConfig {
    let known = |address: &str, mac| StaticNeighbour { address: address.parse().unwrap(), port: None, mac };
    let neighbours = vec![
        known("10.0.1.2", HOST),
        known("2001:db8:1::2", HOST),
        known("10.0.2.2", FAR),
        known("2001:db8:2::2", FAR),
    ];
    ForwardConfig { neighbours, ..config() }
}

pub(crate) fn own(text: &str) -> PortAddress {
    let (address, bits) = text.split_once('/').unwrap();
    PortAddress { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
}

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A worker with two ports.
pub(crate) struct Rig {
    pub(crate) worker: Worker,
    pub(crate) now_ns: u64,
    rx: [Frames; 2],
    tx: [Frames; 2],
}

impl Rig {
    pub(crate) fn new(stage: impl Stage + 'static) -> Self {
        Self::with(|worker| worker.stage(stage), None)
    }

    /// `head`: how many bytes of a frame are in one piece, if not all.
    pub(crate) fn with(build: impl FnOnce(Worker) -> Worker, head: Option<usize>) -> Self {
        let (rx, tx): ([Frames; 2], [Frames; 2]) = Default::default();
        let wire = |frames: &Frames| Box::new(Wire { frames: Arc::clone(frames), head, received: 0 });
        let port = |frames: &Frames| Box::new(Recorder(Arc::clone(frames)));
        let worker = Worker::new(wire(&rx[0])).receive(wire(&rx[1])).port(port(&tx[0])).port(port(&tx[1]));
        Self { worker: build(worker), now_ns: SECOND, rx, tx }
    }

    /// A frame comes in by this port, and is worked on. What leaves, by port.
    pub(crate) fn feed(&mut self, port: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        self.wire(port, frame);
        self.poll()
    }

    /// A frame that is not looked at yet.
    pub(crate) fn wire(&mut self, port: usize, frame: &[u8]) {
        self.rx[port].lock().unwrap().push_back(frame.to_vec());
    }

    pub(crate) fn poll(&mut self) -> Vec<(usize, Vec<u8>)> {
        while self.worker.poll(BUDGET, self.now_ns).unwrap() > 0 {}
        assert!(self.ledger().closes(), "{:?}", self.ledger());
        let mut left = Vec::new();
        for (port, frames) in self.tx.iter().enumerate() {
            left.extend(frames.lock().unwrap().drain(..).map(|frame| (port, frame)));
        }
        left
    }

    pub(crate) fn wait(&mut self, ns: u64) -> Vec<(usize, Vec<u8>)> {
        self.now_ns += ns;
        self.poll()
    }

    pub(crate) fn ledger(&mut self) -> Ledger {
        self.worker.ledger()
    }

    /// The only reason that there was, or the test fails.
    pub(crate) fn reason(&mut self) -> Reason {
        let drops: Vec<_> = self.ledger().drops.iter().collect();
        assert_eq!(drops.len(), 1, "{drops:?}");
        drops[0].0
    }

    pub(crate) fn event(&self, wanted: &str) -> u64 {
        self.worker.events().iter().filter(|(_, event, _)| *event == wanted).map(|(_, _, count)| count).sum()
    }

    /// Lets go of what is held.
    pub(crate) fn settle(&mut self) -> Ledger {
        self.worker.settle().unwrap();
        let ledger = self.ledger();
        assert!(ledger.closes() && ledger.held == 0, "{ledger:?}");
        ledger
    }
}

struct Wire {
    frames: Frames,
    head: Option<usize>,
    received: u64,
}

impl Receive for Wire {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        let mut frames = self.frames.lock().unwrap();
        let count = budget.min(frames.len());
        for frame in frames.drain(..count) {
            batch.push(packet(&frame, self.head));
        }
        self.received += count as u64;
        Ok(count)
    }

    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>) {
        packets.clear();
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn totals(&mut self) -> ReceiveTotals {
        let queue = RxTotals { received: self.received, missed: Some(0), ..RxTotals::default() };
        ReceiveTotals { queue, ..ReceiveTotals::default() }
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}

/// A packet as a driver makes it, of which only so many bytes may be in one piece.
pub(crate) fn packet(frame: &[u8], head: Option<usize>) -> PacketBuf {
    let head = head.unwrap_or(frame.len()).min(frame.len());
    let mut packet = PacketBuf::new(vec![0xee; pagefrag::buffer_bytes(head) + 64], HEADROOM);
    packet.put(head).unwrap().copy_from_slice(&frame[..head]);
    packet.attach(frame[head..].to_vec());
    packet
}

struct Recorder(Frames);

impl Transmit for Recorder {
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        let bytes = |packet: &PacketBuf| packet.slices().flatten().copied().collect::<Vec<u8>>();
        self.0.lock().unwrap().extend(packets.iter().map(bytes));
        done.append(packets);
        Ok(())
    }

    fn totals(&mut self) -> TxTotals {
        TxTotals::default()
    }
}
