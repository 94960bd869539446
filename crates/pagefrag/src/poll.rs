//! The cache of one poll loop.

use alloc::sync::Arc;

use crate::{Align, AllocError, Frag, PacketBuf, PagePool, Source, Stats, cutter::Cutter, packet::Counted};

/// A page-fragment cache that one thread owns. Nothing in it is guarded: an allocation is a subtraction, a comparison
/// and a mask, and touches nothing that other threads touch. It may be moved to another thread, not shared:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<pagefrag::PollCache>();
/// ```
///
/// One for each queue, made and used by the thread that polls it. Fragments may be dropped anywhere.
pub struct PollCache {
    cutter: Cutter,
}

impl PollCache {
    /// Of blocks from the heap, without a limit. Takes the first one when it is needed.
    pub fn new() -> PollCache {
        PollCache::with_source(Source::default().share())
    }

    /// Of blocks from this source.
    pub fn with_source(source: Arc<Source>) -> PollCache {
        PollCache { cutter: Cutter::new(source) }
    }

    /// Lets so many large blocks wait for the holders of their fragments, instead of leaving them to these at once. A refill
    /// takes one of them that is whole again, which costs a load; a new block costs two allocations and 32 KiB of zeros.
    ///
    /// For who has more than one block's fragments alive at a time and ends them soon, as a poll does of 64 buffers of 2048
    /// bytes: as many blocks as these take. They are kept until they are used, so that at most so much more memory is pinned.
    /// Without this none waits, as in the kernel, whose page allocator keeps free pages for each CPU.
    pub fn with_waiting_blocks(mut self, blocks: usize) -> PollCache {
        self.cutter.set_most_waiting(blocks);
        self
    }

    /// A fragment of so many bytes, which hold anything.
    #[inline]
    pub fn alloc(&mut self, bytes: usize, align: Align) -> Result<Frag, AllocError> {
        self.cutter.alloc(bytes, align)
    }

    /// A fragment of so many zeros. Costs nothing more where the block has not been used before.
    #[inline]
    pub fn alloc_zeroed(&mut self, bytes: usize, align: Align) -> Result<Frag, AllocError> {
        let mut frag = self.cutter.alloc(bytes, align)?;
        if !self.cutter.is_fresh() {
            frag.fill(0);
        }
        Ok(frag)
    }

    /// Ends a fragment. One of the block in hand, or of one that waits, costs no atomic operation; any other is dropped as usual. Its bytes are
    /// cut again when the whole block is, not before.
    #[inline]
    pub fn give_back(&mut self, frag: Frag) {
        self.cutter.give_back(frag.into_reference());
    }

    /// The same for several: what the cache cut one after the other lies in few blocks, and is counted once for each run of them.
    #[inline]
    pub fn give_back_all(&mut self, frags: impl IntoIterator<Item = Frag>) {
        self.cutter.give_back_all(frags.into_iter().map(Frag::into_reference));
    }

    /// Ends a packet: as [`give_back`](PollCache::give_back) for every fragment that it has alone; the rest is dropped.
    #[inline]
    pub fn give_back_packet(&mut self, packet: PacketBuf) {
        packet.end(|counted| self.end_counted(counted));
    }

    /// The same for a packet to which pages of this pool may be attached: those go back to it, as by
    /// [`recycle`](crate::PagePool::recycle).
    #[inline]
    pub fn give_back_packet_and_pages(&mut self, packet: PacketBuf, pool: &mut PagePool) {
        packet.end(|counted| match counted {
            Counted::Block(reference) => self.cutter.give_back(reference),
            page @ Counted::Page(_) => pool.recycle_counted(page),
        });
    }

    #[inline]
    fn end_counted(&mut self, counted: Counted) {
        match counted {
            Counted::Block(reference) => self.cutter.give_back(reference),
            Counted::Page(part) => drop(part),
        }
    }

    /// What this cache has done so far.
    pub fn stats(&self) -> Stats {
        self.cutter.stats()
    }
}

impl Default for PollCache {
    fn default() -> PollCache {
        PollCache::new()
    }
}

impl core::fmt::Debug for PollCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PollCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
