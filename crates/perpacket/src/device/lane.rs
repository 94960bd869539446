//! One poll loop of a device under test, from its receiving queue to the end of its path.

use std::sync::Arc;

use anyhow::{Result, bail};
use datapath::device::{DeviceError, Dummy};
use datapath::queue::Inlet;
use datapath::stage::{EarlyDrop, SendAll};
use datapath::{Ledger, Worker};
use linux::clock;

use super::wire::PORT_ADDRESS;
use super::{Destinations, RxQueue, Tables, Wire, receiver};
use crate::cell::{Cell, PathName};

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
    /// The loop of a cell that sends, where it does, out of this queue of the device.
    pub(crate) fn build(cell: &Cell, queue: usize, dummy: &Arc<Dummy>, _tables: &mut Tables) -> Result<Self> {
        let setting = &cell.setting;
        let wire = Wire {
            frame_bytes: cell.frame_bytes,
            flows: setting.flows,
            destinations: Destinations::One(PORT_ADDRESS),
        };
        let frames = RxQueue::Lands(Box::new(wire.queue()?));
        let worker = Worker::new(receiver(frames, setting.alloc, setting.rx, wire.l2_bytes())?);
        let port = || -> Result<_> { Ok(Box::new(dummy.queue(queue)?)) };
        let worker = match cell.path {
            PathName::DatapathDrop => worker.stage(EarlyDrop),
            PathName::DatapathDummy => worker.stage(SendAll::new(0)).port(port()?),
            other => bail!("{other} is not in this version"),
        };
        Ok(Self { worker, inlets: Vec::new(), read: 0, budget: setting.batch.into() })
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
