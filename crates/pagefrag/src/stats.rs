//! What a cache has done.

/// Counters of a cache since it was made. All but the amounts of bytes only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Large blocks taken from the source.
    pub large_refills: u64,
    /// Small blocks taken from the source because there was no large one.
    pub small_refills: u64,
    /// Ends of a block at which nobody else held it, so that it was begun again.
    pub reuses: u64,
    /// Ends of a block at which another one that had waited for its holders was whole again, so that it was taken.
    pub reuses_after_waiting: u64,
    /// Blocks that were left to their holders: at once, or after they had waited too long.
    pub left_to_holders: u64,
    /// Allocations that failed for want of memory or for the limit.
    pub failures: u64,
    /// Allocations that were refused because no block is as large as that. Not among `failures`.
    pub too_large: u64,
    /// The bytes of all blocks of the source that are alive: in hand of this cache and of others that share its source,
    /// and those that only fragments hold.
    pub pinned_bytes: usize,
    /// The bytes of the block in hand; 0 before the first allocation.
    pub in_hand_bytes: usize,
    /// The bytes of the blocks that wait for their holders.
    pub waiting_bytes: usize,
}
