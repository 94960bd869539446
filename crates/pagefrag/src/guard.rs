//! What keeps the threads apart that share a cache.

use crate::sync::{AtomicBool, Ordering, spin_loop};

/// Lets one closure in at a time. A parameter of [`SharedCache`](crate::SharedCache), so that the price of guarding can
/// be measured.
///
/// # Safety
///
/// While a closure runs inside `enter`, no other one may run inside `enter` of the same guard, on whichever thread (one
/// that enters again from inside may wait for ever, or panic). What a closure did must be visible to the next one.
pub unsafe trait Guard: Default + Send + Sync {
    /// Runs `section` alone.
    fn enter<R>(&self, section: impl FnOnce() -> R) -> R;
}

/// A lock that is waited for with a busy loop. The cheapest where threads seldom meet, and run on CPUs of their own:
/// one that loses its CPU inside keeps the others busy until it has it again.
#[derive(Debug)]
pub struct SpinLock {
    taken: AtomicBool,
}

impl Default for SpinLock {
    fn default() -> SpinLock {
        SpinLock { taken: AtomicBool::new(false) }
    }
}

// SAFETY: only who changes `taken` from false to true goes on, and only `Taken` sets it to false, after the section.
// Acquire and release make the sections follow one another.
unsafe impl Guard for SpinLock {
    #[inline]
    fn enter<R>(&self, section: impl FnOnce() -> R) -> R {
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Others only read while they wait, so that the line stays with all of them.
            while self.taken.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        let _taken = Taken(self);
        section()
    }
}

/// Opens the lock, also where a section panics.
struct Taken<'a>(&'a SpinLock);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// A mutex of the operating system: who has to wait sleeps.
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub struct Mutex {
    inner: std::sync::Mutex<()>,
}

// SAFETY: `std::sync::Mutex` promises both.
#[cfg(feature = "std")]
unsafe impl Guard for Mutex {
    #[inline]
    fn enter<R>(&self, section: impl FnOnce() -> R) -> R {
        // A panic inside leaves nothing half done (`Cutter` changes its state after what can fail).
        let _held = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        section()
    }
}
