//! Packets to the CPU that works on their flow: receive packet steering.

use pagefrag::PacketBuf;

use super::Stage;
use crate::batch::{Batch, Verdict};
use crate::queue::Outlet;
use crate::reason::Reason;
use crate::wire::{self, Frame, Parsed};

/// Packets that may wait for another worker (`net.core.netdev_max_backlog`, net/core/hotdata.c, 6.18).
pub const BACKLOG_PACKETS: usize = 1000;
/// Entries of the usual table (RSS of most network cards).
pub const TABLE_ENTRIES: usize = 128;
/// Packets to one worker that a flow is counted among (FLOW_LIMIT_HISTORY, net/core/dev.h, 6.18).
const HISTORY: usize = 128;
/// Flows that are told apart (`net.core.flow_limit_table_len`).
const FLOWS: usize = 4096;

/// Tells the number of a flow.
pub type FlowHash = Box<dyn Fn(&Parsed) -> u32 + Send>;

/// Sends each packet to the worker that its flow belongs to; own ones pass. The packets of a flow take one way, so that they stay
/// in order.
///
/// What is not IP, or malformed, stays here. The queues are those of the worker that this stage is in, with the reason
/// [`Reason::BacklogFull`]; a packet goes to queue `n` as [`Verdict::Deliver`] has it.
pub struct Steer {
    hash: FlowHash,
    /// Whom the flows with these last bits of their hash belong to; as many entries as a power of two.
    table: Vec<Target>,
    backlogs: Vec<Backlog>,
    own: u64,
    steered: u64,
}

/// Where a flow is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Here.
    Own,
    /// By the worker at the end of this queue, by its place among those that the stage was given.
    Queue(u16),
}

/// A queue to another worker.
struct Backlog {
    /// Only to see how many wait.
    outlet: Outlet,
    /// Decided in this batch, and not yet put in.
    coming: usize,
    limit: Option<FlowLimit>,
}

/// Why there is no such steering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// The table cannot be asked with the last bits of a number.
    #[error("steering: a table of {0} entries; it must be a power of two")]
    Table(usize),
    /// A target that there is not.
    #[error("steering: entry {entry} is queue {queue}; there are {queues}")]
    Queue {
        /// Which entry.
        entry: usize,
        /// Its queue.
        queue: u16,
        /// How many queues there are.
        queues: usize,
    },
}

impl Steer {
    /// By this hash and table. `outlets`: copies of the queues that the worker was given, in their order.
    pub fn new(hash: FlowHash, table: Vec<Target>, outlets: Vec<Outlet>) -> Result<Self, SteerError> {
        if !table.len().is_power_of_two() {
            return Err(SteerError::Table(table.len()));
        }
        for (entry, target) in table.iter().enumerate() {
            if let Target::Queue(queue) = *target
                && usize::from(queue) >= outlets.len()
            {
                return Err(SteerError::Queue { entry, queue, queues: outlets.len() });
            }
        }
        let backlogs = outlets.into_iter().map(|outlet| Backlog { outlet, coming: 0, limit: None }).collect();
        Ok(Self { hash, table, backlogs, own: 0, steered: 0 })
    }

    /// A table that deals flows out evenly: to this worker first, then to each queue.
    pub fn even(queues: u16, own_too: bool) -> Vec<Target> {
        let targets: Vec<Target> =
            own_too.then_some(Target::Own).into_iter().chain((0..queues).map(Target::Queue)).collect();
        (0..TABLE_ENTRIES).filter_map(|entry| targets.get(entry % targets.len().max(1)).copied()).collect()
    }

    /// With a limit for large flows: where a queue is half full, those that have more than half of what came lately lose their
    /// packets, so that small ones get through (`skb_flow_limit`, net/core/dev.c, 6.18).
    #[must_use]
    pub fn with_flow_limit(mut self) -> Self {
        for backlog in &mut self.backlogs {
            backlog.limit = Some(FlowLimit::new());
        }
        self
    }

    #[inline]
    fn verdict(&mut self, packet: &PacketBuf) -> Verdict {
        let Ok(Frame::Ip(parsed)) = wire::parse_head(packet.data(), packet.len()) else { return Verdict::Pass };
        let hash = (self.hash)(&parsed);
        let Target::Queue(queue) = self.table[hash as usize & (self.table.len() - 1)] else {
            self.own += 1;
            return Verdict::Pass;
        };
        let backlog = &mut self.backlogs[usize::from(queue)];
        let waiting = backlog.outlet.len() + backlog.coming;
        if waiting >= backlog.outlet.limit() / 2
            && let Some(limit) = &mut backlog.limit
            && limit.is_over(hash)
        {
            return Verdict::Drop(Reason::FlowLimit);
        }
        backlog.coming += 1;
        self.steered += 1;
        Verdict::Deliver(queue)
    }
}

impl Stage for Steer {
    fn name(&self) -> &'static str {
        "steering"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        for backlog in &mut self.backlogs {
            backlog.coming = 0;
        }
        for (_, packet, verdict) in batch.undecided() {
            *verdict = self.verdict(packet);
        }
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        vec![("own", self.own), ("to other workers", self.steered)]
    }
}

impl std::fmt::Debug for Steer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (table, backlogs) = (self.table.len(), self.backlogs.len());
        f.debug_struct("Steer").field("table", &table).field("backlogs", &backlogs).finish_non_exhaustive()
    }
}

/// How the packets that came lately are shared among flows.
#[derive(Debug)]
struct FlowLimit {
    history: [u16; HISTORY],
    head: usize,
    counts: Box<[u8; FLOWS]>,
}

impl FlowLimit {
    fn new() -> Self {
        Self { history: [0; HISTORY], head: 0, counts: Box::new([0; FLOWS]) }
    }

    /// Counts a packet, and forgets the one of 128 packets ago.
    fn is_over(&mut self, hash: u32) -> bool {
        // `hash_32`, include/linux/hash.h.
        let new = (hash.wrapping_mul(0x61c8_8647) >> (u32::BITS - FLOWS.ilog2())) as u16;
        let old = std::mem::replace(&mut self.history[self.head], new);
        self.head = (self.head + 1) % HISTORY;
        let old = &mut self.counts[usize::from(old)];
        *old = old.saturating_sub(1);
        let count = &mut self.counts[usize::from(new)];
        *count = count.saturating_add(1);
        usize::from(*count) > HISTORY / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_with_more_than_half_of_what_came_is_over() {
        let mut limit = FlowLimit::new();
        assert_eq!((0..200).filter(|_| limit.is_over(7)).count(), 200 - HISTORY / 2);
        // Equal shares of three flows: none has half, once the past is forgotten.
        (0..HISTORY as u32).for_each(|at| drop(limit.is_over(at % 3)));
        assert_eq!((0..300).filter(|at| limit.is_over(at % 3)).count(), 0);
    }
}
