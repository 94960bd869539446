//! Packets to the CPU that works on their flow: receive packet steering.

use pagefrag::PacketBuf;

use super::{Stage, parsed};
use crate::batch::{Batch, Verdict};
use crate::queue::Outlet;
use crate::reason::Reason;
use crate::steering::{CpuMap, FlowLimit, Indirection, Toeplitz};
use crate::wire::Frame;

/// Sends each packet to the worker that its flow belongs to; own ones pass. The packets of a flow take one way, so that they stay
/// in order.
///
/// What is not IP, or malformed, stays here.
#[derive(Debug)]
pub struct Steer {
    hash: Toeplitz,
    spread: Spread,
    ways: Vec<Option<Backlog>>,
    own: u64,
    steered: u64,
}

/// From the hash of a flow to the number of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// As a device with several queues does it.
    Device(Indirection),
    /// As `rps_cpus` does it.
    Cpus(CpuMap),
}

/// How packets get to a worker.
#[derive(Debug)]
pub enum Way {
    /// They are here.
    Own,
    /// By this queue (made with the reason [`Reason::BacklogFull`]), of which this is a copy: the worker of this stage has the queue too,
    /// for [`Verdict::Deliver`] with this number.
    Queue(u16, Outlet),
}

/// A spread that leads to a worker of which nobody knows the way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("steering: flows are to go to worker {worker}, and there are {workers} (from 0): name others")]
pub struct NoWay {
    /// Where to.
    pub worker: u16,
    /// How many there are.
    pub workers: usize,
}

#[derive(Debug)]
struct Backlog {
    queue: u16,
    /// Only to see how many wait.
    outlet: Outlet,
    /// Decided in this batch, and not yet put in.
    coming: usize,
    limit: Option<FlowLimit>,
}

impl Steer {
    /// With a way to each worker, by number.
    pub fn new(hash: Toeplitz, spread: Spread, ways: Vec<Way>) -> Result<Self, NoWay> {
        let (workers, targets) = (ways.len(), spread.targets());
        if let Some(&worker) = targets.iter().find(|worker| usize::from(**worker) >= workers) {
            return Err(NoWay { worker, workers });
        }
        let backlog = |way| match way {
            Way::Own => None,
            Way::Queue(queue, outlet) => Some(Backlog { queue, outlet, coming: 0, limit: None }),
        };
        Ok(Self { hash, spread, ways: ways.into_iter().map(backlog).collect(), own: 0, steered: 0 })
    }

    /// With a limit for large flows: where a queue is half full, those that have more than half of what came lately lose their
    /// packets, so that small ones get through (`skb_flow_limit`, net/core/dev.c, 6.18).
    #[must_use]
    pub fn with_flow_limit(mut self, limit: &FlowLimit) -> Self {
        for backlog in self.ways.iter_mut().flatten() {
            backlog.limit = Some(limit.clone());
        }
        self
    }

    #[inline]
    fn verdict(&mut self, packet: &mut PacketBuf) -> Verdict {
        let Ok(Frame::Ip(parsed)) = parsed(packet) else { return Verdict::Pass };
        let hash = self.hash.hash_packet(&parsed);
        let Some(Some(backlog)) = self.ways.get_mut(usize::from(self.spread.of(hash))) else {
            self.own += 1;
            return Verdict::Pass;
        };
        // That there is no room at all is found when it is put in: until then there may be.
        let Backlog { queue, outlet, coming, limit } = backlog;
        let waiting = outlet.len() + *coming;
        if limit.as_mut().is_some_and(|flows| flows.stops(hash, waiting, outlet.limit())) {
            return Verdict::Drop(Reason::FlowLimit);
        }
        *coming += 1;
        self.steered += 1;
        Verdict::Deliver(*queue)
    }
}

impl Spread {
    fn targets(&self) -> &[u16] {
        match self {
            Self::Device(table) => table.entries(),
            Self::Cpus(map) => map.cpus(),
        }
    }

    #[inline]
    fn of(&self, hash: u32) -> u16 {
        match self {
            Self::Device(table) => table.of(hash),
            Self::Cpus(map) => map.of(hash),
        }
    }
}

impl Stage for Steer {
    fn name(&self) -> &'static str {
        "steering"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        for backlog in self.ways.iter_mut().flatten() {
            backlog.coming = 0;
        }
        for (_, packet, verdict) in batch.undecided() {
            *verdict = self.verdict(packet);
        }
    }

    /// Those for other workers may have found no room with them, and then are dropped too.
    fn events(&self) -> Vec<(&'static str, u64)> {
        vec![("own", self.own), ("for other workers", self.steered)]
    }
}
