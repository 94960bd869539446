//! What a pool has done.

/// Counters of a pool since it was made, and where its pages are. Named as those of the kernel where they mean the same
/// (`struct page_pool_stats`, include/net/page_pool/types.h, 6.18).
///
/// Every page is somewhere: `slow` = `released` + `in_cache` + `in_ring` + `in_flight`. Where other threads end pages at the
/// same time, what they did last may not show yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Pages taken from the owner's cache.
    pub fast: u64,
    /// Pages taken from the source, one at a time (the kernel takes 64 then).
    pub slow: u64,
    /// Refills of the cache from the ring, each of which gave a page out too. Pages handed out, or taken to cut fragments
    /// from, are `fast` + `refill` + `slow` + `in_place`.
    pub refill: u64,
    /// How often cache and ring were empty.
    pub empty: u64,
    /// Fragments cut. What is larger than half a page is a page, and not among them.
    pub frags: u64,
    /// Pages of which all fragments had ended, begun again where they were.
    pub in_place: u64,
    /// Pages that the owner recycled into its cache.
    pub cached: u64,
    /// Pages that the owner recycled while its cache was full, so that they took the way of the ring.
    pub cache_full: u64,
    /// Pages that came into the ring. Wraps at half of `usize`, as do `ring_full`, `waive` and `released`.
    pub ring: u64,
    /// Pages that came back while the ring was full, and were released.
    pub ring_full: u64,
    /// Pages that came back and were not kept, being a makeshift ([`Memory::is_makeshift`](crate::Memory::is_makeshift)).
    pub waive: u64,
    /// Pages that the owner recycled here, and that belong to another pool, where they went.
    pub foreign: u64,
    /// Pages given back to the source, for whatever reason.
    pub released: u64,
    /// Allocations that failed for want of memory or for the limit.
    pub failures: u64,
    /// Fragments that were refused because they are larger than a page. Not among `failures`.
    pub too_large: u64,
    /// Pages that the owner has at hand: its cache, and the page that fragments are cut from if nobody has one of it.
    pub in_cache: usize,
    /// Pages that wait in the ring.
    pub in_ring: usize,
    /// Pages that were handed out, whole or a fragment of them, and are not back.
    pub in_flight: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}
