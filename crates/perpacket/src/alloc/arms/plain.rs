//! The least that a buffer can cost: none at all, and a list of free ones.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::alloc::arm::Arm;

/// Buffers that are there already. What this costs is the loop: touching a buffer, keeping it in the burst, and on the way to
/// another thread the ring.
pub(crate) struct Ready {
    memory: &'static [AtomicU8],
    next: usize,
}

/// Bytes that somebody has to touch.
pub(crate) struct Place {
    memory: &'static [AtomicU8],
    at: usize,
}

impl Ready {
    /// So many buffers of this size, for the rest of the program.
    pub(crate) fn new(count: usize, bytes: usize) -> Self {
        let memory: Vec<AtomicU8> = (0..count * bytes).map(|_| AtomicU8::new(0)).collect();
        Self { memory: memory.leak(), next: 0 }
    }
}

impl Arm for Ready {
    type Buffer = Place;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<Place> {
        if self.memory.len() - self.next < bytes {
            self.next = 0;
        }
        let at = self.next;
        self.next += bytes;
        Some(Place { memory: self.memory, at })
    }

    #[inline]
    fn touch(buffer: &mut Place, bytes: usize) {
        for (at, value) in [(buffer.at, 1), (buffer.at + bytes - 1, 2)] {
            if let Some(byte) = buffer.memory.get(at) {
                byte.store(value, Ordering::Relaxed);
            }
        }
        black_box(buffer.memory.as_ptr());
    }
}

/// Buffers of one size on a stack: the last one that ended is the next one that is taken.
pub(crate) struct FreeList {
    free: Vec<Box<[u8]>>,
    /// The size of all of them.
    bytes: usize,
}

impl FreeList {
    /// For buffers of up to so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { free: Vec::new(), bytes }
    }
}

impl Arm for FreeList {
    type Buffer = Box<[u8]>;

    #[inline]
    fn take(&mut self, _bytes: usize) -> Option<Box<[u8]>> {
        Some(self.free.pop().unwrap_or_else(|| vec![0; self.bytes].into_boxed_slice()))
    }

    #[inline]
    fn touch(buffer: &mut Box<[u8]>, bytes: usize) {
        crate::alloc::arm::touch(buffer, bytes);
    }

    #[inline]
    fn end(&mut self, buffer: Box<[u8]>) {
        self.free.push(buffer);
    }

    fn pinned_bytes(&self) -> Option<usize> {
        None
    }
}
