//! How a pool is made.

use alloc::sync::Arc;

use crate::{SMALL_BLOCK_BYTES, Source};

/// The most slots that a ring has, as in the kernel (net/core/page_pool.c, 6.18: `page_pool_init`).
const MOST_RING_PAGES: usize = 32768;

/// What a [`PagePool`](super::PagePool) is made of. What cannot be is rounded: there is no wrong one.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The size of a page: 4096 by default. Rounded up to a power of two of at least that.
    pub page_bytes: usize,
    /// How many pages that other threads gave back may wait in the ring: 1024 by default. Rounded up to a power of two of at
    /// most 32768. As many as there are packets under way to other threads; what does not fit goes to the source.
    pub ring_pages: usize,
    /// Where pages come from; the heap without a limit by default. Pools and caches may share one, and then share its limit.
    pub source: Arc<Source>,
}

impl PoolConfig {
    /// With pages of this size.
    pub fn with_page_bytes(self, page_bytes: usize) -> PoolConfig {
        PoolConfig { page_bytes, ..self }
    }

    /// With a ring of this length.
    pub fn with_ring_pages(self, ring_pages: usize) -> PoolConfig {
        PoolConfig { ring_pages, ..self }
    }

    /// With pages from this source.
    pub fn with_source(self, source: Arc<Source>) -> PoolConfig {
        PoolConfig { source, ..self }
    }

    /// The nearest that can be made. A page that is too large for any memory is refused when it is asked for.
    pub(crate) fn rounded(self) -> PoolConfig {
        let largest = isize::MAX.cast_unsigned() / 2 + 1;
        let page_bytes = self.page_bytes.clamp(SMALL_BLOCK_BYTES, largest).next_power_of_two();
        let ring_pages = self.ring_pages.clamp(1, MOST_RING_PAGES).next_power_of_two();
        PoolConfig { page_bytes, ring_pages, ..self }
    }
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig { page_bytes: SMALL_BLOCK_BYTES, ring_pages: 1024, source: Source::default().share() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_rounded() {
        let rounded = |page_bytes, ring_pages| {
            let config =
                PoolConfig::default().with_page_bytes(page_bytes).with_ring_pages(ring_pages).rounded();
            (config.page_bytes, config.ring_pages)
        };
        assert_eq!(rounded(0, 0), (4096, 1));
        assert_eq!(rounded(4097, 3), (8192, 4));
        assert_eq!(rounded(65536, 1024), (65536, 1024));
        let (page_bytes, ring_pages) = rounded(usize::MAX, usize::MAX);
        assert_eq!((page_bytes, ring_pages), (1 << (usize::BITS - 2), 32768));
    }
}
