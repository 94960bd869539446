//! The allocators that a driver can take its buffers from.

use std::sync::Arc;

use pagefrag::{
    Align, AllocError, Guard, HEADROOM, PacketBuf, PagePool, PollCache, SharedCache, Source, buffer_bytes,
};

/// Blocks of a fragment cache that may wait for their packets to end: as many as two polls of the longest frames of an MTU of
/// 1,500 take.
pub const WAITING_BLOCKS: usize = 8;

/// Where packet buffers come from.
pub trait Buffers: Send {
    /// Gives an empty packet memory, with room for so many bytes behind the usual headroom. It is done in place: a packet that
    /// was put together a moment ago costs more to move than to make.
    fn fill(&mut self, packet: &mut PacketBuf, data_bytes: usize) -> Result<(), AllocError>;

    /// Ends a packet, as cheaply as this allocator can. An empty one is left.
    fn give_back(&mut self, packet: &mut PacketBuf);

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
    #[inline]
    fn fill(&mut self, packet: &mut PacketBuf, data_bytes: usize) -> Result<(), AllocError> {
        let frag = self.cache.alloc(buffer_bytes(data_bytes), Align::CACHE_LINE)?;
        *packet = PacketBuf::with_frag(frag, HEADROOM);
        Ok(())
    }

    #[inline]
    fn give_back(&mut self, packet: &mut PacketBuf) {
        self.cache.take_back(packet);
    }

    fn pinned_bytes(&self) -> Option<u64> {
        Some(self.cache.stats().pinned_bytes as u64)
    }
}

/// A page-fragment cache that every context may use, and so must guard.
#[derive(Debug)]
pub struct AnyContext<G: Guard> {
    cache: Arc<SharedCache<G>>,
}

impl<G: Guard> AnyContext<G> {
    /// This cache, which other workers may use as well.
    pub fn new(cache: Arc<SharedCache<G>>) -> Self {
        Self { cache }
    }
}

impl<G: Guard + Send + Sync> Buffers for AnyContext<G> {
    #[inline]
    fn fill(&mut self, packet: &mut PacketBuf, data_bytes: usize) -> Result<(), AllocError> {
        let frag = self.cache.alloc(buffer_bytes(data_bytes), Align::CACHE_LINE)?;
        *packet = PacketBuf::with_frag(frag, HEADROOM);
        Ok(())
    }

    #[inline]
    fn give_back(&mut self, packet: &mut PacketBuf) {
        *packet = PacketBuf::default();
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
    #[inline]
    fn fill(&mut self, packet: &mut PacketBuf, data_bytes: usize) -> Result<(), AllocError> {
        let page = if self.whole {
            self.pool.alloc()?
        } else {
            self.pool.alloc_frag(buffer_bytes(data_bytes), Align::CACHE_LINE)?
        };
        *packet = PacketBuf::new(page, HEADROOM);
        Ok(())
    }

    #[inline]
    fn give_back(&mut self, packet: &mut PacketBuf) {
        self.pool.recycle_packet(std::mem::take(packet));
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
    fn fill(&mut self, packet: &mut PacketBuf, data_bytes: usize) -> Result<(), AllocError> {
        *packet = PacketBuf::new(vec![0; buffer_bytes(data_bytes)], HEADROOM);
        Ok(())
    }

    fn give_back(&mut self, packet: &mut PacketBuf) {
        *packet = PacketBuf::default();
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}
