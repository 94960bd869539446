//! The page-fragment caches of `pagefrag`.

use std::sync::Arc;

use pagefrag::{
    Align, Frag, Guard, LARGE_BLOCK_BYTES, PollCache, SMALL_BLOCK_BYTES, SharedCache, Source, Stats, drop_all,
};

use crate::alloc::arm::{Arm, Pages, touch};

/// Buffers begin anywhere, as those of the other allocators do.
const ALIGN: Align = Align::BYTE;

/// Blocks that wait for their holders: more than a burst of 64 pages has.
const WAITING: usize = 16;

/// [`PollCache`]. `END` says how its buffers end.
pub(crate) struct Poll<const END: u8> {
    cache: PollCache,
    source: Arc<Source>,
}

/// To the cache, without an atomic operation.
pub(crate) const GIVE_BACK: u8 = 0;
/// To the cache, in which no block waits.
pub(crate) const LEAVE: u8 = 1;
/// As anybody else would.
pub(crate) const DROP: u8 = 2;
/// Those of a burst together.
pub(crate) const DROP_ALL: u8 = 3;
/// Those of a burst together, to the cache.
pub(crate) const GIVE_BACK_ALL: u8 = 4;

impl<const END: u8> Poll<END> {
    pub(crate) fn new() -> Self {
        let source = Source::default().share();
        let waiting = if END == LEAVE { 0 } else { WAITING };
        Self { cache: PollCache::with_source(Arc::clone(&source)).with_waiting_blocks(waiting), source }
    }
}

impl<const END: u8> Arm for Poll<END> {
    type Buffer = Frag;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<Frag> {
        self.cache.alloc(bytes, ALIGN).ok()
    }

    #[inline]
    fn touch(buffer: &mut Frag, bytes: usize) {
        touch(buffer, bytes);
    }

    #[inline]
    fn end(&mut self, buffer: Frag) {
        if END == GIVE_BACK || END == LEAVE || END == GIVE_BACK_ALL {
            self.cache.give_back(buffer)
        } else {
            drop(buffer)
        }
    }

    #[inline]
    fn empty(&mut self, buffers: &mut Vec<Frag>) {
        if END == DROP_ALL {
            return drop_all(buffers.drain(..));
        }
        if END == GIVE_BACK_ALL {
            return self.cache.give_back_all(buffers.drain(..));
        }
        for buffer in buffers.drain(..) {
            self.end(buffer);
        }
    }

    #[inline]
    fn empty_far(buffers: &mut Vec<Frag>) {
        empty_far(END == DROP_ALL, buffers);
    }

    fn pinned_bytes(&self) -> Option<usize> {
        Some(self.source.alive_bytes())
    }

    fn close(self) -> Option<Pages> {
        let stats = self.cache.stats();
        drop(self.cache);
        Some(pages(&stats, &self.source))
    }
}

/// [`SharedCache`], of which each thread that takes has one of these. `MANY`: a burst is taken and ended at once.
pub(crate) struct Shared<G: Guard, const MANY: bool> {
    cache: Arc<SharedCache<G>>,
    source: Arc<Source>,
}

impl<G: Guard, const MANY: bool> Shared<G, MANY> {
    pub(crate) fn new() -> Self {
        let source = Source::default().share();
        let cache = SharedCache::with_source(Arc::clone(&source)).with_waiting_blocks(WAITING);
        Self { cache: Arc::new(cache), source }
    }

    /// The same cache, for another thread.
    pub(crate) fn again(&self) -> Self {
        Self { cache: Arc::clone(&self.cache), source: Arc::clone(&self.source) }
    }
}

impl<G: Guard + Send + Sync + 'static, const MANY: bool> Arm for Shared<G, MANY> {
    type Buffer = Frag;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<Frag> {
        self.cache.alloc(bytes, ALIGN).ok()
    }

    #[inline]
    fn touch(buffer: &mut Frag, bytes: usize) {
        touch(buffer, bytes);
    }

    #[inline]
    fn fill(&mut self, count: usize, bytes: usize, buffers: &mut Vec<Frag>) -> bool {
        if MANY {
            let taken = self.cache.alloc_many(count, bytes, ALIGN, buffers);
            buffers.iter_mut().for_each(|buffer| touch(buffer, bytes));
            return taken == Ok(count);
        }
        for _ in 0..count {
            let Some(mut buffer) = self.take(bytes) else { return false };
            touch(&mut buffer, bytes);
            buffers.push(buffer);
        }
        true
    }

    #[inline]
    fn empty(&mut self, buffers: &mut Vec<Frag>) {
        if MANY { drop_all(buffers.drain(..)) } else { buffers.clear() }
    }

    #[inline]
    fn empty_far(buffers: &mut Vec<Frag>) {
        empty_far(MANY, buffers);
    }

    fn pinned_bytes(&self) -> Option<usize> {
        Some(self.source.alive_bytes())
    }

    fn close(self) -> Option<Pages> {
        let cache = Arc::into_inner(self.cache)?;
        let stats = cache.stats();
        drop(cache);
        Some(pages(&stats, &self.source))
    }
}

#[inline]
fn empty_far(together: bool, buffers: &mut Vec<Frag>) {
    if together { drop_all(buffers.drain(..)) } else { buffers.clear() }
}

/// What a cache that has ended had from its source, and what of it is alive still.
fn pages(stats: &Stats, source: &Source) -> Pages {
    let per_block = (LARGE_BLOCK_BYTES / SMALL_BLOCK_BYTES) as u64;
    Pages {
        taken: stats.large_refills * per_block + stats.small_refills,
        left: (source.alive_bytes() / SMALL_BLOCK_BYTES) as u64,
    }
}
