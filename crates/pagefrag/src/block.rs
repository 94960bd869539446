//! A block: page-aligned data, and apart from it the count of those who hold it.
//!
//! The count lives in a heap node of one cache line, as the kernel keeps it in `struct page`, not in the data. In the
//! data it would cost the last fragment of every size that is a power of two, or a page more for memory that comes in
//! pages; and a device or a neighbouring fragment that writes too far could not be told from a holder. The price is
//! a second allocation for each refill, none where a block is reused in place.

use alloc::sync::Arc;
use core::{alloc::Layout, ptr::NonNull};

use crate::{
    LARGE_BLOCK_BYTES, SMALL_BLOCK_BYTES, Source,
    sync::{AtomicUsize, Ordering},
};

const _: () =
    assert!(SMALL_BLOCK_BYTES.is_power_of_two() && LARGE_BLOCK_BYTES.is_multiple_of(SMALL_BLOCK_BYTES));

/// The node. A line of its own: the counts of two blocks are not to be passed between CPUs together.
#[repr(align(64))]
pub(crate) struct Block {
    /// References, those that the cache keeps in hand included. At zero the block is freed.
    count: AtomicUsize,
    data: NonNull<u8>,
    bytes: usize,
    source: Arc<Source>,
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Limit,
    Memory,
}

/// One reference to a block, owned. Any thread may drop it, with one atomic subtraction.
pub(crate) struct Reference(NonNull<Block>);

// SAFETY: the node is only read through it, but for the count, which is atomic, and for its end, which comes once and
// after everything else (`Block::put`). `Source` is Send and Sync.
unsafe impl Send for Reference {}
// SAFETY: as above; `&Reference` gives access to what never changes.
unsafe impl Sync for Reference {}

impl Reference {
    /// The block, and what keeps account of it.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.block_bytes() + size_of::<Block>()
    }

    /// The same for two references to one block, and only for those while they are there.
    pub(crate) fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }

    #[inline]
    pub(crate) fn block_bytes(&self) -> usize {
        // SAFETY: this reference keeps the node alive, and `bytes` is never written again.
        unsafe { (*self.0.as_ptr()).bytes }
    }
}

impl Drop for Reference {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a `Reference` stands for one of the count, and ends here.
        unsafe { Block::put(self.0, 1) }
    }
}

/// References to one block in one hand: those that a cache took in bulk, or that are about to end together. Never none.
pub(crate) struct Bulk {
    block: NonNull<Block>,
    /// How many of the block's count are here.
    bias: usize,
}

// SAFETY: as for `Reference`; `bias` goes along with it.
unsafe impl Send for Bulk {}

impl Bulk {
    /// A new block with all its references: one for every byte, and one that never leaves, so that fragments of one byte
    /// cannot exhaust them. `returned_bytes`: what will be freed in exchange.
    pub(crate) fn obtain(source: &Arc<Source>, bytes: usize, returned_bytes: usize) -> Result<Bulk, Refusal> {
        if !source.charge(bytes, returned_bytes) {
            return Err(Refusal::Limit);
        }
        match Block::build(source, bytes) {
            Some(block) => Ok(Bulk { block, bias: bytes + 1 }),
            None => {
                source.discharge(bytes);
                Err(Refusal::Memory)
            }
        }
    }

    /// One reference, to which others of its block can be put.
    #[inline]
    pub(crate) fn of(reference: Reference) -> Bulk {
        let block = reference.0;
        core::mem::forget(reference);
        Bulk { block, bias: 1 }
    }

    /// Gives one reference out. Touches nothing that is shared.
    ///
    /// # Safety
    ///
    /// More than one must be in hand.
    #[inline]
    pub(crate) unsafe fn take(&mut self) -> Reference {
        debug_assert!(self.bias > 1, "the last reference of the cache was given out");
        self.bias -= 1;
        Reference(self.block)
    }

    /// Takes a reference to this block back without an atomic operation. One to another block is returned.
    #[inline]
    pub(crate) fn put_back(&mut self, reference: Reference) -> Option<Reference> {
        if reference.0 != self.block {
            return Some(reference);
        }
        self.bias += 1;
        core::mem::forget(reference);
        None
    }

    /// As [`put_back`](Self::put_back), for several.
    #[inline]
    pub(crate) fn put_back_bulk(&mut self, other: Bulk) -> Option<Bulk> {
        if other.block != self.block {
            return Some(other);
        }
        self.bias += other.bias;
        core::mem::forget(other);
        None
    }

    /// Takes all references in hand again if nobody else has any.
    ///
    /// One load instead of the subtraction of the bias: only the owner of a bulk gives references out, so that a count equal
    /// to the bias cannot become wrong. It acquires what the others did with their fragments before they dropped them.
    pub(crate) fn renew(&mut self) -> bool {
        let count = self.count();
        if count.load(Ordering::Acquire) != self.bias {
            return false;
        }
        let all = self.bytes() + 1;
        count.store(all, Ordering::Relaxed);
        self.bias = all;
        true
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the bulk keeps the node alive, and `bytes` is never written again.
        unsafe { (*self.block.as_ptr()).bytes }
    }

    pub(crate) fn data(&self) -> NonNull<u8> {
        // SAFETY: the bulk keeps the node alive, and `data` is never written again.
        unsafe { (*self.block.as_ptr()).data }
    }

    #[inline]
    pub(crate) fn bias(&self) -> usize {
        self.bias
    }

    fn count(&self) -> &AtomicUsize {
        // SAFETY: the bulk keeps the node alive.
        unsafe { &(*self.block.as_ptr()).count }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // SAFETY: `bias` of the count are here, and end here.
        unsafe { Block::put(self.block, self.bias) }
    }
}

impl Block {
    const NODE: Layout = Layout::new::<Block>();

    fn build(source: &Arc<Source>, bytes: usize) -> Option<NonNull<Block>> {
        let layout = Block::layout(bytes)?;
        // SAFETY: a node has a size.
        let node = NonNull::new(unsafe { alloc::alloc::alloc(Block::NODE) })?.cast::<Block>();
        let Some(data) = source.memory().alloc(layout) else {
            // SAFETY: it came from this allocator with this layout just now.
            unsafe { alloc::alloc::dealloc(node.as_ptr().cast(), Block::NODE) };
            return None;
        };
        let block = Block { count: AtomicUsize::new(bytes + 1), data, bytes, source: Arc::clone(source) };
        // SAFETY: the node is valid for writes, aligned, and nobody else knows it.
        unsafe { node.write(block) };
        Some(node)
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, SMALL_BLOCK_BYTES).ok()
    }

    /// Gives references up, and frees the block with the last one.
    ///
    /// # Safety
    ///
    /// The caller owns so many of the count, and uses neither node nor data afterwards.
    #[inline]
    unsafe fn put(block: NonNull<Block>, references: usize) {
        // SAFETY: the caller's references keep the node alive.
        let count = unsafe { &(*block.as_ptr()).count };
        // Release: what was done with the data comes before its end or its reuse.
        if count.fetch_sub(references, Ordering::Release) == references {
            // SAFETY: the count is zero, so nobody has a reference, and nobody can get one.
            unsafe { Block::free(block) };
        }
    }

    /// # Safety
    ///
    /// The count is zero, and only this thread knows the block.
    #[cold]
    unsafe fn free(block: NonNull<Block>) {
        // SAFETY: nobody has freed the node yet.
        let count = unsafe { &(*block.as_ptr()).count };
        // Acquire, from all who gave references up. A load and not a fence, so that thread sanitizers see it.
        count.load(Ordering::Acquire);
        // SAFETY: the node is valid, and freed below, so that its content is not used twice.
        let Block { data, bytes, source, .. } = unsafe { block.read() };
        // SAFETY: it came from this allocator with this layout (`build`).
        unsafe { alloc::alloc::dealloc(block.as_ptr().cast(), Block::NODE) };
        if let Some(layout) = Block::layout(bytes) {
            // SAFETY: `build` got it from this memory with this layout, and nobody holds a part of it.
            unsafe { source.memory().free(data, layout) };
        }
        source.discharge(bytes);
    }
}
