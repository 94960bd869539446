//! What threads share, by one name each, so that loom can take its place in model tests.

#[cfg(all(loom, test, feature = "std"))]
pub(crate) use loom::sync::{Condvar, Mutex};
#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
};

#[cfg(not(all(loom, test)))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
};
#[cfg(all(not(all(loom, test)), feature = "std"))]
pub(crate) use std::sync::{Condvar, Mutex};

/// `core::cell::UnsafeCell` with the interface of loom's, which sees every access.
#[cfg(not(all(loom, test)))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
