//! The pages that the owner of a pool has at hand, the latest first: its bytes are the likeliest to be in the CPU's cache.

use core::mem;

use super::node::Whole;

/// As many as the kernel keeps (PP_ALLOC_CACHE_SIZE, include/net/page_pool/types.h, 6.18).
pub(crate) const CACHE_PAGES: usize = 128;
/// As many as the kernel takes out of the ring at a time (PP_ALLOC_CACHE_REFILL, the same file).
pub(crate) const REFILL_PAGES: usize = 64;

/// A stack. Dropped, its pages go to the source.
pub(crate) struct Cache {
    pages: [Option<Whole>; CACHE_PAGES],
    len: usize,
}

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache { pages: [const { None }; CACHE_PAGES], len: 0 }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Whole> {
        let last = self.len.wrapping_sub(1);
        let page = self.pages.get_mut(last)?.take();
        self.len = last;
        page
    }

    /// Gives the page back if the cache is full.
    #[inline]
    pub(crate) fn push(&mut self, page: Whole) -> Result<(), Whole> {
        let Some(free) = self.pages.get_mut(self.len) else { return Err(page) };
        // What is overwritten is `None`; without that, the compiler would see to its end.
        mem::forget(free.replace(page));
        self.len += 1;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        while let Some(page) = self.pop() {
            drop(page);
        }
    }
}
