//! What a pool and its pages share: the ring, the source, and the account of what left the pool.

use alloc::sync::Arc;
use core::ptr::NonNull;

use super::{
    PoolStats,
    node::{Node, Whole},
    ring::{Refused, Ring},
};
#[cfg(feature = "std")]
use crate::sync::{Condvar, Mutex};
use crate::{
    Source,
    sync::{AtomicUsize, Ordering},
};

/// In `released`: somebody waits for the pages that are out.
#[cfg(feature = "std")]
const AWAITED: usize = 1;
/// What `released` grows by, above that bit; it wraps.
const STEP: usize = 2;

/// Kept alive by the pool, by its closing, and by every page of it. Pages in the ring do so too: that circle ends when the
/// ring is closed.
pub(crate) struct Home {
    pub(crate) ring: Ring<Node>,
    pub(crate) source: Arc<Source>,
    pub(crate) page_bytes: usize,
    /// Pages given to the source, and whether somebody waits for that: one word, so that neither misses the other.
    released: AtomicUsize,
    ring_full: AtomicUsize,
    makeshift: AtomicUsize,
    #[cfg(feature = "std")]
    bell: Bell,
}

/// Rung when a page was released while somebody waits.
#[cfg(feature = "std")]
struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Home {
    pub(crate) fn new(source: Arc<Source>, page_bytes: usize, ring_pages: usize) -> Home {
        Home {
            ring: Ring::new(ring_pages),
            source,
            page_bytes,
            released: AtomicUsize::new(0),
            ring_full: AtomicUsize::new(0),
            makeshift: AtomicUsize::new(0),
            #[cfg(feature = "std")]
            bell: Bell { lock: Mutex::new(()), rung: Condvar::new() },
        }
    }

    /// Into the ring, or to the source.
    ///
    /// # Safety
    ///
    /// `page` is of this pool, so that it keeps the pool's home alive until the consumer has it.
    #[inline]
    pub(crate) unsafe fn take_back(home: *const Home, page: Whole) {
        let node = page.into_raw();
        // SAFETY: the page is not in the ring yet, and keeps its home alive.
        let ring = unsafe { &raw const (*home).ring };
        // SAFETY: as above, until the consumer has it.
        let Err(refused) = (unsafe { Ring::push(ring, node.as_ptr()) }) else { return };
        // SAFETY: it was refused, so it is still ours.
        let page = unsafe { Whole::from_raw(node) };
        if refused == Refused::Full {
            // SAFETY: the page keeps it alive.
            let ring_full = unsafe { &(*home).ring_full };
            ring_full.fetch_add(1, Ordering::Relaxed);
        }
        drop(page);
    }

    /// Takes up to so many pages out of the ring.
    ///
    /// # Safety
    ///
    /// Only the owner of the pool does this.
    pub(crate) unsafe fn consume(&self, most: usize, mut take: impl FnMut(Whole)) -> usize {
        // SAFETY: the pool's owner is the only consumer, and it is one thread.
        unsafe { self.ring.consume(most, |node| take(from_ring(node))) }
    }

    /// Ends the ring, and releases what was in it.
    ///
    /// # Safety
    ///
    /// Only the owner of the pool does this.
    pub(crate) unsafe fn close_ring(&self) {
        // SAFETY: the pool's owner is the only consumer, and it is one thread.
        unsafe { self.ring.close(|node| drop(from_ring(node))) }
    }

    /// After the page is back in its source.
    pub(crate) fn count_released(&self) {
        // Release: who finds that all are back finds them freed.
        let before = self.released.fetch_add(STEP, Ordering::Release);
        #[cfg(feature = "std")]
        if before & AWAITED != 0 {
            self.bell.ring();
        }
        #[cfg(not(feature = "std"))]
        let _ = before;
    }

    pub(crate) fn count_makeshift(&self) {
        self.makeshift.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages given to the source; wraps at half of `usize`.
    pub(crate) fn released(&self) -> usize {
        self.released.load(Ordering::Acquire) / STEP
    }

    /// Adds what is counted here to what the owner counts.
    pub(crate) fn complete(&self, owners: PoolStats) -> PoolStats {
        PoolStats {
            ring: self.ring.pushed() as u64,
            ring_full: self.ring_full.load(Ordering::Relaxed) as u64,
            waive: self.makeshift.load(Ordering::Relaxed) as u64,
            released: self.released() as u64,
            in_ring: self.ring.len(),
            ..owners
        }
    }

    /// Of so many pages that were taken from the source, how many are not back there.
    pub(crate) fn not_released(&self, taken: u64) -> usize {
        distance(taken, self.released() as u64)
    }

    /// Sleeps until so many pages are back in the source.
    #[cfg(feature = "std")]
    pub(crate) fn wait_released(&self, taken: u64) {
        // From here on everybody rings who releases a page; who did before is seen below.
        self.released.fetch_or(AWAITED, Ordering::AcqRel);
        let mut held = self.bell.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while self.not_released(taken) != 0 {
            held = self.bell.rung.wait(held).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// Of numbers that are counted modulo half of `usize`; there are not so many pages.
pub(crate) fn distance(more: u64, less: u64) -> usize {
    (more as usize).wrapping_sub(less as usize) & (usize::MAX / STEP)
}

#[cfg(feature = "std")]
impl Bell {
    #[cold]
    fn ring(&self) {
        // Inside the lock, so that nobody has looked and does not sleep yet.
        let held = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.rung.notify_all();
        drop(held);
    }
}

fn from_ring(node: *mut Node) -> Whole {
    debug_assert!(!node.is_null());
    // SAFETY: the ring gives no null out.
    let node = unsafe { NonNull::new_unchecked(node) };
    // SAFETY: `take_back` put it there with `into_raw`, and the ring gives it out once.
    unsafe { Whole::from_raw(node) }
}
