//! Where blocks come from, and how many bytes of them may be alive.

use alloc::{boxed::Box, sync::Arc};
use core::{alloc::Layout, fmt, ptr::NonNull, sync::atomic::AtomicUsize, sync::atomic::Ordering};

/// Memory for blocks: the heap, huge pages, a region that a device knows, or a double in a test.
///
/// A cache asks for [`LARGE_BLOCK_BYTES`](crate::LARGE_BLOCK_BYTES) or [`SMALL_BLOCK_BYTES`](crate::SMALL_BLOCK_BYTES), a
/// pool for its page size, all of them aligned to 4096. Only the data comes from here; counts are kept elsewhere.
///
/// # Safety
///
/// What [`alloc`](Memory::alloc) returns must be valid for reads and writes of the whole layout, aligned as it asks,
/// initialised to zero, and used by nobody else until it is given to [`free`](Memory::free). The same holds for
/// [`alloc_used`](Memory::alloc_used), but for the zeros.
pub unsafe trait Memory: Send + Sync {
    /// Zeroed memory of this layout, or none at the moment. Must neither panic nor use the cache that asks.
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// The same, but the bytes may hold anything that is initialised, as an earlier packet left it: for memory that need not
    /// be cleared then. A [`PagePool`](crate::PagePool) asks for this.
    fn alloc_used(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.alloc(layout)
    }

    /// Takes memory back, from any thread. Must neither panic nor use the cache that the memory was for.
    ///
    /// # Safety
    ///
    /// `data` came from `alloc` or `alloc_used` of the same object with the same layout, was not freed since, and is not used any more.
    unsafe fn free(&self, data: NonNull<u8>, layout: Layout);

    /// Whether this, which `alloc` has just returned, is only a makeshift, and should be freed rather than used again: an
    /// ordinary page where huge ones ran out, a page of another NUMA node. A [`PagePool`](crate::PagePool) does so, as the
    /// kernel's does with pages of its emergency reserve; the fragment caches do not ask.
    fn is_makeshift(&self, data: NonNull<u8>) -> bool {
        let _ = data;
        false
    }
}

/// The global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the global allocator promises what `Memory` asks for, and `alloc_zeroed` the zeros.
unsafe impl Memory for Heap {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) })
    }

    unsafe fn free(&self, data: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller promises that `data` came from `alloc` above with this layout.
        unsafe { alloc::alloc::dealloc(data.as_ptr(), layout) }
    }
}

/// A memory with an account: the bytes of all blocks that are alive, and the most that may be.
///
/// A block counts from its refill until its last fragment is gone, also where the cache has long turned to another
/// one. Several caches may share one source, and then share its limit.
pub struct Source {
    memory: Box<dyn Memory>,
    limit_bytes: usize,
    alive_bytes: AtomicUsize,
}

impl Source {
    /// Blocks from this memory, as many as it gives.
    pub fn new(memory: impl Memory + 'static) -> Source {
        Source { memory: Box::new(memory), limit_bytes: usize::MAX, alive_bytes: AtomicUsize::new(0) }
    }

    /// Blocks of at most so many bytes in all. Where less than a large block is left of it, small ones are taken.
    ///
    /// While a cache exchanges an empty small block for a large one, both are alive for a moment, and the sum may exceed
    /// the limit by the small one.
    pub fn with_limit_bytes(self, limit_bytes: usize) -> Source {
        Source { limit_bytes, ..self }
    }

    /// The most that blocks may have in all; `usize::MAX` without a limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// The bytes of all blocks that are alive: what is really pinned, however small the fragments are.
    pub fn alive_bytes(&self) -> usize {
        self.alive_bytes.load(Ordering::Relaxed)
    }

    /// For a cache of its own: [`PollCache::with_source`](crate::PollCache::with_source) takes it so.
    pub fn share(self) -> Arc<Source> {
        Arc::new(self)
    }

    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// Whether so many more bytes may be alive, of which `returned_bytes` are about to be freed. If so, they count.
    pub(crate) fn charge(&self, bytes: usize, returned_bytes: usize) -> bool {
        let most = self.limit_bytes.saturating_add(returned_bytes);
        let charged = |alive: usize| alive.checked_add(bytes).filter(|&sum| sum <= most);
        // Relaxed: it is a number, and orders nothing.
        self.alive_bytes.try_update(Ordering::Relaxed, Ordering::Relaxed, charged).is_ok()
    }

    pub(crate) fn discharge(&self, bytes: usize) {
        self.alive_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Default for Source {
    fn default() -> Source {
        Source::new(Heap)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("limit_bytes", &self.limit_bytes)
            .field("alive_bytes", &self.alive_bytes())
            .finish_non_exhaustive()
    }
}
