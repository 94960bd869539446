//! The ring that pages come back through: bounded, any number of producers, one consumer.
//!
//! The kernel has a spin lock for the producers (`ptr_ring`). In user space its holder may lose the CPU, and all others
//! would wait for it; so here a producer reserves its slot with one compare-and-exchange, and then fills it. Who loses
//! its CPU in between holds up the consumer at that slot, and no producer before the ring is full.
//!
//! ```text
//!   head (written by the consumer, once a batch)           tail (a producer adds one: the slot is its own)
//!    v                                                      v
//!    | page | page | page | reserved, not filled yet | page |   free (null)  ...
//! ```

use alloc::boxed::Box;
use core::ptr;

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, spin_loop};

/// In `tail`: nothing is taken any more.
const CLOSED: usize = 1;
/// What `head` and `tail` grow by, above that bit; both wrap.
const STEP: usize = 2;

pub(crate) struct Ring<T> {
    /// Next to be reserved, and whether the ring is closed.
    tail: Line,
    /// Next to be consumed.
    head: Line,
    /// Null where free. As many as a power of two.
    slots: Box<[AtomicPtr<T>]>,
}

/// Nothing else in this cache line.
#[repr(align(64))]
struct Line(AtomicUsize);

/// Why a ring took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl<T> Ring<T> {
    pub(crate) fn new(slots: usize) -> Ring<T> {
        let slots = (0..slots.next_power_of_two()).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Ring { tail: Line(AtomicUsize::new(0)), head: Line(AtomicUsize::new(0)), slots }
    }

    /// Passes `item` to the consumer. After that, the consumer may free the ring too, while this is still on its way out:
    /// so there is no reference to the ring as a whole here, and nothing of it is touched after the slot was filled.
    ///
    /// # Safety
    ///
    /// The ring is alive, and will be as long as the consumer has not got `item`, which is not null.
    #[inline]
    pub(crate) unsafe fn push(ring: *const Ring<T>, item: *mut T) -> Result<(), Refused> {
        // SAFETY: the ring is alive, as `item` is not yet in it.
        let tail_line = unsafe { &(*ring).tail.0 };
        // SAFETY: as above.
        let head_line = unsafe { &(*ring).head.0 };
        // SAFETY: as above. The slots are a box, which is not a part of the ring's memory.
        let slots: *const [AtomicPtr<T>] = unsafe { &raw const *(*ring).slots };
        let most = slots.len() * STEP;
        let mut tail = tail_line.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            // Acquire: the consumer emptied a slot before it moved the head beyond it, and we fill it after. A tail that is
            // older than the head gives a negative length; the exchange finds out.
            let used = tail.wrapping_sub(head_line.load(Ordering::Acquire));
            if used.cast_signed() >= most.cast_signed() {
                return Err(Refused::Full);
            }
            let next = tail.wrapping_add(STEP);
            match tail_line.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        let index = (tail / STEP) & (slots.len() - 1);
        // SAFETY: the index is below the number of slots.
        let slot = unsafe { slots.cast::<AtomicPtr<T>>().add(index) };
        // SAFETY: they live as long as the ring.
        let slot = unsafe { &*slot };
        // Release: what was done with the item comes before its next use.
        slot.store(item, Ordering::Release);
        Ok(())
    }

    /// Takes up to `most` items, the oldest first, and says how many. It stops at a slot that is reserved and not filled yet.
    ///
    /// # Safety
    ///
    /// One thread at a time consumes.
    pub(crate) unsafe fn consume(&self, most: usize, mut take: impl FnMut(*mut T)) -> usize {
        let head = self.head.0.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < most {
            let slot = self.slot(head.wrapping_add(taken * STEP));
            let item = slot.load(Ordering::Acquire);
            if item.is_null() {
                break;
            }
            slot.store(ptr::null_mut(), Ordering::Relaxed);
            take(item);
            taken += 1;
        }
        if taken > 0 {
            self.head.0.store(head.wrapping_add(taken * STEP), Ordering::Release);
        }
        taken
    }

    /// Closes the ring, and takes what is in it. Waits, busily, for producers that have a slot and have not filled it: that
    /// is one instruction of theirs.
    ///
    /// # Safety
    ///
    /// One thread at a time consumes.
    pub(crate) unsafe fn close(&self, mut take: impl FnMut(*mut T)) {
        let end = self.tail.0.fetch_or(CLOSED, Ordering::Relaxed) & !CLOSED;
        loop {
            // SAFETY: the caller's promise.
            unsafe { self.consume(self.slots.len(), &mut take) };
            if self.head.0.load(Ordering::Relaxed) == end {
                return;
            }
            spin_loop();
        }
    }

    /// How many items were ever pushed; wraps at half of `usize`.
    pub(crate) fn pushed(&self) -> usize {
        self.tail.0.load(Ordering::Relaxed) / STEP
    }

    /// How many items are in it, those included whose slot is not filled yet. Exact for the consumer, but for what comes
    /// at the same time.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.0.load(Ordering::Relaxed);
        (self.tail.0.load(Ordering::Relaxed) & !CLOSED).wrapping_sub(head) / STEP
    }

    fn slot(&self, position: usize) -> &AtomicPtr<T> {
        &self.slots[(position / STEP) & (self.slots.len() - 1)]
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use std::{boxed::Box, vec::Vec};

    use super::*;

    fn push(ring: &Ring<u32>, number: u32) -> Result<(), Refused> {
        let item = Box::into_raw(Box::new(number));
        // SAFETY: the ring outlives this call, and the item is not null.
        let pushed = unsafe { Ring::push(ring, item) };
        if pushed.is_err() {
            drop(owned(item));
        }
        pushed
    }

    fn owned(item: *mut u32) -> Box<u32> {
        // SAFETY: `push` made it of a box, and gives it out once.
        unsafe { Box::from_raw(item) }
    }

    fn consume(ring: &Ring<u32>, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        // SAFETY: only this thread knows the ring.
        unsafe { ring.consume(most, |item| taken.push(*owned(item))) };
        taken
    }

    #[test]
    fn items_come_out_in_order_and_a_full_ring_refuses() {
        let ring = Ring::new(3);
        for number in 0..4 {
            assert_eq!(push(&ring, number), Ok(()), "three slots are four");
        }
        assert_eq!((push(&ring, 9), ring.len(), ring.pushed()), (Err(Refused::Full), 4, 4));
        assert_eq!(consume(&ring, 3), [0, 1, 2]);
        assert_eq!((push(&ring, 4), push(&ring, 5), ring.len()), (Ok(()), Ok(()), 3));
        assert_eq!(consume(&ring, 9), [3, 4, 5]);
        assert_eq!((consume(&ring, 9).len(), ring.len(), ring.pushed()), (0, 0, 6));
    }

    #[test]
    fn the_positions_wrap() {
        let ring = Ring::new(2);
        let late = 0usize.wrapping_sub(3 * STEP);
        ring.tail.0.store(late, Ordering::Relaxed);
        ring.head.0.store(late, Ordering::Relaxed);
        for number in 0..10 {
            assert_eq!((push(&ring, number), push(&ring, 100)), (Ok(()), Ok(())));
            assert_eq!((push(&ring, 9), ring.len()), (Err(Refused::Full), 2));
            assert_eq!(consume(&ring, 9), [number, 100]);
        }
    }

    #[test]
    fn a_closed_ring_is_empty_and_takes_nothing() {
        let ring = Ring::new(4);
        push(&ring, 1).expect("there is room");
        push(&ring, 2).expect("there is room");
        let mut taken = Vec::new();
        // SAFETY: only this thread knows the ring.
        unsafe { ring.close(|item| taken.push(*owned(item))) };
        assert_eq!((&taken[..], push(&ring, 3), ring.len()), (&[1, 2][..], Err(Refused::Closed), 0));
        // SAFETY: as above.
        unsafe { ring.close(|item| taken.push(*owned(item))) };
        assert_eq!(taken.len(), 2);
    }
}
