//! The page pool of `pagefrag`, on the three ways that the kernel's bench_page_pool_simple measures
//! (tools/testing/selftests/net/bench/page_pool, 6.18), and its fragments.

use std::sync::Arc;

use pagefrag::{Align, Page, PagePool, PoolConfig, SMALL_BLOCK_BYTES, Source};

use crate::alloc::arm::{Arm, Pages, touch};

/// Recycled by the owner (01, "fast path").
pub(crate) const FAST: u8 = 0;
/// Dropped, and so back through the ring, as if another thread had done it (02, "ptr_ring").
pub(crate) const RING: u8 = 1;
/// Back to the source (03, "slow path"); the kernel's goes to the page allocator, and is not filled with zeros.
pub(crate) const SLOW: u8 = 2;
/// Fragments of pages instead of whole ones, recycled by the owner.
pub(crate) const FRAGMENTS: u8 = 3;

/// A pool. `WAY` is one of the above.
pub(crate) struct Pool<const WAY: u8> {
    pool: PagePool,
    source: Arc<Source>,
}

impl<const WAY: u8> Pool<WAY> {
    pub(crate) fn new() -> Self {
        let source = Source::default().share();
        Self { pool: PagePool::new(PoolConfig::default().with_source(Arc::clone(&source))), source }
    }
}

impl<const WAY: u8> Arm for Pool<WAY> {
    type Buffer = Page;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<Page> {
        if WAY == FRAGMENTS { self.pool.alloc_frag(bytes, Align::BYTE).ok() } else { self.pool.alloc().ok() }
    }

    #[inline]
    fn touch(buffer: &mut Page, bytes: usize) {
        touch(buffer, bytes);
    }

    #[inline]
    fn end(&mut self, buffer: Page) {
        if WAY == RING {
            return drop(buffer);
        }
        self.pool.recycle(buffer);
        if WAY == SLOW {
            self.pool.release_spare();
        }
    }

    #[inline]
    fn empty(&mut self, buffers: &mut Vec<Page>) {
        for buffer in buffers.drain(..) {
            if WAY == RING { drop(buffer) } else { self.pool.recycle(buffer) }
        }
        if WAY == SLOW {
            self.pool.release_spare();
        }
    }

    fn pinned_bytes(&self) -> Option<usize> {
        Some(self.source.alive_bytes())
    }

    fn close(self) -> Option<Pages> {
        let taken = self.pool.close().stats().slow;
        Some(Pages { taken, left: (self.source.alive_bytes() / SMALL_BLOCK_BYTES) as u64 })
    }
}
