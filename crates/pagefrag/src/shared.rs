//! The cache for any context.

use alloc::{sync::Arc, vec::Vec};

use crate::{
    Align, AllocError, Frag, Guard, Source, Stats, cutter::Cutter, guard::SpinLock, sync::UnsafeCell,
};

/// A page-fragment cache that every thread may use, guarded by `G`. The same core as [`PollCache`](crate::PollCache);
/// what it costs more is the guard.
///
/// A block is taken from the source inside the guard, so that all threads wait for a refill.
pub struct SharedCache<G: Guard = SpinLock> {
    guard: G,
    cutter: UnsafeCell<Cutter>,
}

// SAFETY: the cutter is reached only inside the guard (`with`), by one thread at a time, and is Send.
unsafe impl<G: Guard> Sync for SharedCache<G> {}

impl<G: Guard> SharedCache<G> {
    /// Of blocks from the heap, without a limit.
    pub fn new() -> SharedCache<G> {
        SharedCache::with_source(Source::default().share())
    }

    /// Of blocks from this source.
    pub fn with_source(source: Arc<Source>) -> SharedCache<G> {
        SharedCache { guard: G::default(), cutter: UnsafeCell::new(Cutter::new(source)) }
    }

    /// As [`PollCache::with_waiting_blocks`](crate::PollCache::with_waiting_blocks).
    pub fn with_waiting_blocks(self, blocks: usize) -> SharedCache<G> {
        self.with(|cutter| cutter.set_most_waiting(blocks));
        self
    }

    /// A fragment of so many bytes, which hold anything.
    #[inline]
    pub fn alloc(&self, bytes: usize, align: Align) -> Result<Frag, AllocError> {
        self.with(|cutter| cutter.alloc(bytes, align))
    }

    /// A fragment of so many zeros. Costs nothing more where the block has not been used before.
    #[inline]
    pub fn alloc_zeroed(&self, bytes: usize, align: Align) -> Result<Frag, AllocError> {
        let (mut frag, fresh) =
            self.with(|cutter| cutter.alloc(bytes, align).map(|frag| (frag, cutter.is_fresh())))?;
        if !fresh {
            frag.fill(0);
        }
        Ok(frag)
    }

    /// Puts `count` fragments of so many bytes each into `frags`, and enters the guard once for all of them. Fewer than that
    /// where memory ends on the way.
    ///
    /// # Errors
    /// Where there is not even one.
    pub fn alloc_many(
        &self,
        count: usize,
        bytes: usize,
        align: Align,
        frags: &mut Vec<Frag>,
    ) -> Result<usize, AllocError> {
        // Not inside, where others would wait for it.
        frags.reserve(count);
        self.with(|cutter| {
            for done in 0..count {
                match cutter.alloc(bytes, align) {
                    Ok(frag) => frags.push(frag),
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => return Ok(done),
                }
            }
            Ok(count)
        })
    }

    /// What this cache has done so far.
    pub fn stats(&self) -> Stats {
        self.with(|cutter| cutter.stats())
    }

    #[inline]
    fn with<R>(&self, section: impl FnOnce(&mut Cutter) -> R) -> R {
        self.guard.enter(|| {
            self.cutter.with_mut(|cutter| {
                // SAFETY: the guard lets one section in at a time, and none of them enters again: `section` calls the
                // cutter, which calls nothing but the memory, and that must not use the cache.
                let cutter = unsafe { &mut *cutter };
                section(cutter)
            })
        })
    }
}

impl<G: Guard> Default for SharedCache<G> {
    fn default() -> SharedCache<G> {
        SharedCache::new()
    }
}

impl<G: Guard> core::fmt::Debug for SharedCache<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
