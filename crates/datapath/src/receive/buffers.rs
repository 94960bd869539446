//! The allocators that a driver can take its buffers from.

use std::sync::Arc;

use pagefrag::{
    Align, AllocError, Guard, HEADROOM, PacketBuf, PagePool, PollCache, SharedCache, Source, buffer_bytes,
};

/// Blocks of a fragment cache that may wait for their packets to end: as many as two polls of the longest frames of an MTU of
/// 1,500 take.
pub(super) const WAITING_BLOCKS: usize = 8;

/// Where packet buffers come from.
pub trait Buffers: Send {
    /// An empty buffer with room for so many bytes behind the usual headroom.
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError>;

    /// Ends a packet, as cheaply as this allocator can.
    fn give_back(&mut self, packet: PacketBuf);

    /// The same for a packet to which pages of this pool are attached: they go back there.
    #[inline]
    fn give_back_with(&mut self, packet: PacketBuf, pages: &mut PagePool) {
        pages.recycle_packet(packet);
    }

    /// Memory that is kept from other use, in bytes; where it can be told.
    fn pinned_bytes(&self) -> Option<u64>;
}

/// The page-fragment cache of this poll loop.
#[derive(Debug)]
pub struct Poll {
    cache: PollCache,
}

impl Poll {
    /// With blocks from this source.
    pub fn new(source: Arc<Source>) -> Self {
        Self { cache: PollCache::with_source(source).with_waiting_blocks(WAITING_BLOCKS) }
    }
}

impl Buffers for Poll {
    #[inline(always)] // as all of them: a call that one has and another has not would be in their difference
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError> {
        let frag = self.cache.alloc(buffer_bytes(data_bytes), Align::CACHE_LINE)?;
        Ok(PacketBuf::new(frag, HEADROOM))
    }

    #[inline(always)]
    fn give_back(&mut self, packet: PacketBuf) {
        self.cache.give_back_packet(packet);
    }

    #[inline(always)]
    fn give_back_with(&mut self, packet: PacketBuf, pages: &mut PagePool) {
        self.cache.give_back_packet_and_pages(packet, pages);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        Some(self.cache.stats().pinned_bytes as u64)
    }
}

/// The same cache, where packets end as they do far from their poll loop: each by an atomic operation of its own.
#[derive(Debug)]
pub struct PollDropped {
    poll: Poll,
}

impl PollDropped {
    /// With blocks from this source.
    pub fn new(source: Arc<Source>) -> Self {
        Self { poll: Poll::new(source) }
    }
}

impl Buffers for PollDropped {
    #[inline(always)]
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError> {
        self.poll.buffer(data_bytes)
    }

    #[inline(always)]
    fn give_back(&mut self, packet: PacketBuf) {
        drop(packet);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        self.poll.pinned_bytes()
    }
}

/// A page-fragment cache that every context may use, and so must guard.
#[derive(Debug)]
pub struct AnyContext<G: Guard> {
    cache: Arc<SharedCache<G>>,
}

impl<G: Guard> AnyContext<G> {
    /// A cache of its own that differs from that of [`Poll`] by its guard alone, with blocks from this source.
    pub fn alone(source: Arc<Source>) -> Self {
        Self::new(SharedCache::with_source(source).with_waiting_blocks(WAITING_BLOCKS).into())
    }

    /// This cache, which other workers may use as well.
    pub fn new(cache: Arc<SharedCache<G>>) -> Self {
        Self { cache }
    }
}

impl<G: Guard + Send + Sync> Buffers for AnyContext<G> {
    #[inline(always)]
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError> {
        let frag = self.cache.alloc(buffer_bytes(data_bytes), Align::CACHE_LINE)?;
        Ok(PacketBuf::new(frag, HEADROOM))
    }

    #[inline(always)]
    fn give_back(&mut self, packet: PacketBuf) {
        drop(packet);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        Some(self.cache.stats().pinned_bytes as u64)
    }
}

/// Whole pages, or pieces of them, from the pool of this queue.
#[derive(Debug)]
pub struct Pool {
    pool: PagePool,
    whole: bool,
}

impl Pool {
    /// Of this pool. `whole`: a page for each packet, whatever its size; otherwise several packets share one.
    pub fn new(pool: PagePool, whole: bool) -> Self {
        Self { pool, whole }
    }
}

impl Buffers for Pool {
    #[inline(always)]
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError> {
        let page = if self.whole {
            self.pool.alloc()?
        } else {
            self.pool.alloc_frag(buffer_bytes(data_bytes), Align::CACHE_LINE)?
        };
        Ok(PacketBuf::new(page, HEADROOM))
    }

    #[inline(always)]
    fn give_back(&mut self, packet: PacketBuf) {
        self.pool.recycle_packet(packet);
    }

    #[inline(always)]
    fn give_back_with(&mut self, packet: PacketBuf, pages: &mut PagePool) {
        self.pool.recycle_packet_and_pages(packet, pages);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}

/// The system's allocator: a call to it for each packet.
#[derive(Debug, Default)]
pub struct System;

impl Buffers for System {
    /// Zeroed, since nobody may see what was there before: this is part of its price here.
    fn buffer(&mut self, data_bytes: usize) -> Result<PacketBuf, AllocError> {
        // Aligned as it likes: a cache line more, so that the trailer can be.
        Ok(PacketBuf::new(vec![0; buffer_bytes(data_bytes) + 64], HEADROOM))
    }

    fn give_back(&mut self, packet: PacketBuf) {
        drop(packet);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn head_and_page_go_back_to_the_pools_that_they_came_from() {
        for whole in [true, false] {
            let mut buffers = Pool::new(PagePool::default(), whole);
            let mut pages = PagePool::default();
            let short = buffers.buffer(100).unwrap();
            let mut long = buffers.buffer(100).unwrap();
            long.put(100).unwrap();
            long.attach(pages.alloc().unwrap());
            for packet in [short, long] {
                buffers.give_back_with(packet, &mut pages);
            }
            for stats in [buffers.pool.stats(), pages.stats()] {
                assert_eq!((stats.in_flight, stats.in_ring, stats.foreign), (0, 0, 0), "{whole}: {stats:?}");
            }
        }
    }
}
