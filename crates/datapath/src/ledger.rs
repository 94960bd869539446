//! Where the packets of a worker ended.

use crate::device::Injected;
use crate::reason::Reason;

/// Dropped packets by reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drops([u64; Reason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; Reason::COUNT])
    }
}

impl Drops {
    /// Counts so many more.
    #[inline]
    pub fn count(&mut self, reason: Reason, packets: u64) {
        self.0[reason.index()] += packets;
    }

    /// Those of one reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason.index()]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reasons that there were, with their packets.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::all().zip(self.0).filter(|(_, packets)| *packets > 0)
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own += more;
        }
    }
}

/// An account of packets. It closes when none is missing and none is there twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames that the device handed over.
    pub received: u64,
    /// Frames that were lost before that, as far as the device tells: none of `received`. None where it does not tell.
    pub missed: Option<u64>,
    /// What fault injection did, before that too.
    pub injected: Injected,
    /// Packets that stages made: requests for neighbours and the like.
    pub made: u64,
    /// Packets that a port took and is done with.
    pub transmitted: u64,
    /// Packets put into the queue of a receiver or of another worker.
    pub delivered: u64,
    /// Packets that a stage or a port still has.
    pub held: u64,
    /// Packets that ended, by reason.
    pub drops: Drops,
}

impl Ledger {
    /// Packets that came in, less all that are accounted for: 0 if it closes.
    pub fn unaccounted(&self) -> i64 {
        let came = self.received + self.made;
        let went = self.transmitted + self.delivered + self.held + self.drops.total();
        came.wrapping_sub(went) as i64
    }

    /// Whether every packet is accounted for, once.
    pub fn closes(&self) -> bool {
        self.unaccounted() == 0
    }

    /// Adds the account of another worker. What one delivered to the other stands in both, as delivered and as received.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.missed = self.missed.zip(other.missed).map(|(own, more)| own + more);
        self.injected.add(&other.injected);
        self.made += other.made;
        self.transmitted += other.transmitted;
        self.delivered += other.delivered;
        self.held += other.held;
        self.drops.add(&other.drops);
    }
}
