//! Buffers from other allocators, to compare with.
//!
//! A buffer of a general allocator as a packet program would hold it: the address, the length, and whose it is. That is as
//! large as a [`Frag`](crate::Frag), so that what is compared is the allocators and not how much is moved.

use core::{
    alloc::{GlobalAlloc, Layout},
    fmt,
    mem::MaybeUninit,
    ptr::NonNull,
    slice,
};

/// Bytes of another allocator, freed when dropped, on any thread. Not initialised, and so only to be written.
///
/// ```
/// use std::alloc::System;
/// use pagefrag::foreign::Buffer;
///
/// let mut buffer = Buffer::new(&System, 2048).expect("memory");
/// buffer.as_uninit_mut()[0].write(0xff);
/// assert_eq!(buffer.as_uninit_mut().len(), 2048);
/// assert!(Buffer::new(&System, 0).is_none());
/// ```
pub struct Buffer<A: GlobalAlloc + 'static> {
    data: NonNull<u8>,
    bytes: usize,
    allocator: &'static A,
}

// SAFETY: the buffer owns its bytes alone, and its allocator may be used by every thread.
unsafe impl<A: GlobalAlloc + Sync> Send for Buffer<A> {}
// SAFETY: `&Buffer` gives access to nothing.
unsafe impl<A: GlobalAlloc + Sync> Sync for Buffer<A> {}

impl<A: GlobalAlloc> Buffer<A> {
    /// So many bytes, which may begin anywhere. None where the allocator has no memory, or for no bytes.
    #[inline]
    pub fn new(allocator: &'static A, bytes: usize) -> Option<Buffer<A>> {
        let layout = Layout::from_size_align(bytes, 1).ok().filter(|_| bytes > 0)?;
        // SAFETY: the size is not zero.
        let data = NonNull::new(unsafe { allocator.alloc(layout) })?;
        Some(Buffer { data, bytes, allocator })
    }

    /// The bytes, to be written.
    #[inline]
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: so many bytes came from the allocator, belong to this buffer alone, and need not be initialised for this type.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().cast(), self.bytes) }
    }
}

impl<A: GlobalAlloc> Drop for Buffer<A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `new` made a layout of this size and alignment, which is therefore a valid one.
        let layout = unsafe { Layout::from_size_align_unchecked(self.bytes, 1) };
        // SAFETY: it came from this allocator with this layout, and is dropped once.
        unsafe { self.allocator.dealloc(self.data.as_ptr(), layout) }
    }
}

impl<A: GlobalAlloc> fmt::Debug for Buffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
