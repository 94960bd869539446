//! Blocks that have ended and are kept for the next refill.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::{self, NonNull};

use crate::{
    Memory,
    block::Block,
    sync::{AtomicPtr, Ordering},
};

/// A few places for one block each. A block is put in and taken out by exchanging the whole pointer, so no place
/// can be mistaken for what it held before.
pub(crate) struct Spares {
    places: Box<[AtomicPtr<Block>]>,
}

impl Spares {
    pub(crate) fn none() -> Spares {
        Spares::room_for(0)
    }

    pub(crate) fn room_for(blocks: usize) -> Spares {
        let places: Vec<_> = (0..blocks).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Spares { places: places.into_boxed_slice() }
    }

    /// Whether there was room. If so, the block belongs to the list; it must have no source, and nobody may refer to it.
    pub(crate) fn put(&self, block: NonNull<Block>) -> bool {
        // Release: what was done with the block comes before its next use.
        let exchange = |place: &AtomicPtr<Block>| {
            place.compare_exchange(ptr::null_mut(), block.as_ptr(), Ordering::Release, Ordering::Relaxed)
        };
        self.places.iter().any(|place| exchange(place).is_ok())
    }

    /// A block, which belongs to the caller.
    pub(crate) fn take(&self) -> Option<NonNull<Block>> {
        let full = |place: &&AtomicPtr<Block>| !place.load(Ordering::Relaxed).is_null();
        let exchange = |place: &AtomicPtr<Block>| place.swap(ptr::null_mut(), Ordering::Acquire);
        self.places.iter().filter(full).find_map(|place| NonNull::new(exchange(place)))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()).count()
    }

    /// Frees them all. The memory is that which they came from.
    pub(crate) fn release(&self, memory: &dyn Memory) {
        while let Some(block) = self.take() {
            // SAFETY: the list had it, so that nobody refers to it and it has no source (`put`).
            unsafe { Block::release(block, memory) }
        }
    }
}
