//! One poll loop of a device under test, from its receiving queue to the end of its path.

use std::sync::Arc;

use anyhow::{Result, bail};
use datapath::device::{DeviceError, Dummy, TxLock};
use datapath::queue::{Inlet, bounded};
use datapath::stage::{EarlyDrop, SendAll, Udp};
use datapath::{BUDGET, Ledger, Reason, Worker};
use linux::clock;

use super::wire::PORT_ADDRESS;
use super::{Destinations, RxQueue, Tables, Wire, receiver};
use crate::cell::{Cell, FIRST_PORT, PathName};

/// Packets that wait for a receiver at most: more than a poll has.
const SOCKET_PACKETS: usize = 4 * BUDGET;

/// Polls in a row that find no frame, after which none is waited for any more: a synthetic device always has one, unless
/// there is no memory for it.
const MOST_EMPTY_POLLS: u32 = 1_000;

/// A poll loop, and what reads behind it.
pub(crate) struct Lane {
    worker: Worker,
    /// Queues of receivers, read after each poll, as the thread that receives and the one that reads are one here.
    inlets: Vec<Inlet>,
    /// Packets that were read.
    read: u64,
    /// Packets of a poll.
    budget: u64,
}

/// What a lane did with a share of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Frames that came in.
    pub(crate) packets: u64,
    /// CPU time of the thread that polled.
    pub(crate) cpu_ns: u64,
}

impl Lane {
    /// The loops of a resolved cell, one for each thread; they send through this device.
    ///
    /// # Errors
    /// Where the device cannot be what the cell says.
    pub(crate) fn build_all(cell: &Cell, dummy: &Arc<Dummy>, tables: &mut Tables) -> Result<Vec<Self>> {
        let threads = cell.setting.threads as usize;
        let queues = cell.setting.device_queues() as usize;
        let routing = match cell.path {
            PathName::DatapathForward => Some(tables.of(cell.setting.prefixes)?),
            _ => None,
        };
        let mut routers = routing.iter().flat_map(|routing| routing.router.workers(threads));
        let mut lanes = Vec::new();
        for thread in 0..threads {
            let destinations = match &routing {
                Some(routing) => Destinations::List(Arc::clone(&routing.destinations)),
                None => Destinations::One(PORT_ADDRESS),
            };
            let lane = Self::receiving(cell, destinations)?;
            let port = dummy.queue(thread % queues)?;
            lanes.push(match (cell.path, routers.next()) {
                (PathName::DatapathDrop, _) => lane.with(|worker| worker.stage(EarlyDrop)),
                (PathName::DatapathDummy, _) => {
                    lane.with(|worker| worker.stage(SendAll::new(0)).port(Box::new(port)))
                }
                (PathName::DatapathForward, Some(router)) => {
                    // What goes back where it came from (errors) is not what was to be measured: it is counted nowhere.
                    let back = Dummy::new(1, TxLock::None).queue(0)?;
                    lane.with(|worker| worker.stage(router).port(Box::new(back)).port(Box::new(port)))
                }
                (PathName::DatapathUdp, _) => lane.delivering(cell.setting.flows),
                (other, _) => bail!("{other} is no path in user space with a router"),
            });
        }
        Ok(lanes)
    }

    /// One that receives, and does nothing more yet.
    fn receiving(cell: &Cell, destinations: Destinations) -> Result<Self> {
        let setting = &cell.setting;
        let wire = Wire { frame_bytes: cell.frame_bytes, flows: setting.flows, destinations };
        let frames = RxQueue::synthetic(wire.queue()?, setting.rx);
        let worker = Worker::new(receiver(frames, setting.alloc, setting.rx, wire.l2_bytes())?);
        Ok(Self { worker, inlets: Vec::new(), read: 0, budget: setting.batch.into() })
    }

    /// With a receiver for each flow.
    fn delivering(mut self, flows: u16) -> Self {
        let receivers = (0..flows).map(|flow| (FIRST_PORT + flow, flow));
        self.worker = self.worker.stage(Udp::new(receivers));
        for _ in 0..flows {
            let (outlet, inlet) = bounded(SOCKET_PACKETS, Reason::SocketFull);
            self.worker = self.worker.outlet(outlet);
            self.inlets.push(inlet);
        }
        self
    }

    fn with(self, more: impl FnOnce(Worker) -> Worker) -> Self {
        Self { worker: more(self.worker), ..self }
    }

    /// Takes so many packets all the way, fewer only where no more come. The time is from its call to its return.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn run(&mut self, packets: u64) -> Result<Sent, DeviceError> {
        let (mut left, mut empty) = (packets, 0);
        let cpu = clock::thread_cpu_ns();
        while left > 0 && empty < MOST_EMPTY_POLLS {
            // Once a poll, as any loop does that has timers.
            let now = clock::monotonic_ns();
            let frames = self.worker.poll(self.budget.min(left) as usize, now)? as u64;
            self.read();
            left -= frames.min(left);
            empty = if frames == 0 { empty + 1 } else { 0 };
        }
        Ok(Sent { packets: packets - left, cpu_ns: clock::thread_cpu_ns() - cpu })
    }

    /// Where its packets ended.
    pub(crate) fn ledger(&mut self) -> Ledger {
        self.worker.ledger()
    }

    /// Packets that receivers read.
    pub(crate) fn packets_read(&self) -> u64 {
        self.read
    }

    fn read(&mut self) {
        for inlet in &mut self.inlets {
            while let Some(packet) = inlet.pop() {
                drop(packet);
                self.read += 1;
            }
        }
    }
}
