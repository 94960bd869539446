//! A stretch of memory that the kernel also reads or writes.
//!
//! Rings, user memory of AF_XDP, maps of BPF and buffers of batched calls all need the same: memory whose
//! address stays put, that is unmapped once, and that is never reached past its end. Words in it are read and
//! written as atomics only, because the other side may change them at any time; bytes are lent as a slice only
//! for a stretch that the protocol in use has handed to this process.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Mapped memory, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference only atomics are handed out.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process alone, zeroed, its pages present from the start.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a null hint lets the kernel choose an unused address, so no memory of ours is replaced.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::from_raw(start.cast(), bytes)
    }

    /// As [`Self::anonymous`], in huge pages where the kernel has them to spare (transparent huge pages).
    pub(crate) fn anonymous_huge(bytes: usize) -> io::Result<Self> {
        // SAFETY: a null hint lets the kernel choose an unused address, so no memory of ours is replaced.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // Both are advice: where they are refused, pages are small, or come when they are touched.
        // SAFETY: the range was mapped just now; huge pages do not change what is in it.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        // SAFETY: as above; populating writes nothing.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) };
        Self::from_raw(start.cast(), bytes)
    }

    /// `bytes` bytes of the object behind `fd` from `offset`, shared with the kernel.
    pub(crate) fn shared(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a null hint lets the kernel choose an unused address, so no memory of ours is replaced.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, flags, fd, offset) }?;
        Self::from_raw(start.cast(), bytes)
    }

    fn from_raw(start: *mut u8, bytes: usize) -> io::Result<Self> {
        NonNull::new(start)
            .map(|start| Self { start, bytes })
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// The 32-bit word at a byte offset.
    ///
    /// # Panics
    /// When the word is not aligned or not wholly inside.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>());
        // SAFETY: `at` checked bounds and alignment (a mapping starts on a page); the memory lives as long as
        // `self`; any value is valid; every access to it in this process is atomic or through `&mut self`,
        // and owners that give stretches out by `at` lend no words of them.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// The 64-bit word at a byte offset.
    ///
    /// # Panics
    /// When the word is not aligned or not wholly inside.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        let word = self.at(offset, size_of::<AtomicU64>(), align_of::<AtomicU64>());
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// The bytes from `offset`. The caller's protocol must have handed them to this process, and `&mut` keeps
    /// every other user of the mapping in this process away meanwhile.
    ///
    /// # Panics
    /// When the stretch is not wholly inside.
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.at(offset, len, 1);
        // SAFETY: `at` checked the bounds; `&mut self` excludes other references in this process; callers lend
        // only stretches that the kernel does not touch at that time (slots and chunks handed over by it).
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Asks the processor to bring the cache line of a byte here, to be read and written soon. Changes nothing else; does nothing
    /// where the byte is not in the mapping, or on a processor whose instruction is not known here.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        if offset >= self.bytes {
            return;
        }
        // For writing (PREFETCHW, which processors that lack it ignore): a forwarder changes the headers, and a line fetched
        // for reading would have to be asked for again.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction accesses no memory in the language's sense, cannot fault, and keeps flags and stack.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) self.start.as_ptr().wrapping_add(offset),
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    /// The address of a byte, to hand to the kernel; or for an owner that gives every stretch out once and lends nothing of it
    /// itself, as `xsk::Region` does.
    ///
    /// # Panics
    /// When the stretch of `len` bytes from `offset` is not wholly inside.
    pub(crate) fn at(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(
            inside && offset.is_multiple_of(align),
            "{len} bytes at {offset} of a mapping of {}",
            self.bytes
        );
        // SAFETY: `offset` is at most the length of the mapping, which is one allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `anonymous` or `shared`, and no reference outlives `self`.
        // An error is impossible for such a range, and nothing could be done about it here.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let mut mapping = Mapping::anonymous(4096).unwrap();
        mapping.word32(8).store(0x0102_0304, Ordering::Relaxed);
        assert_eq!(mapping.bytes_mut(8, 4), 0x0102_0304_u32.to_ne_bytes());
        mapping.bytes_mut(16, 8).copy_from_slice(&7_u64.to_ne_bytes());
        assert_eq!(mapping.word64(16).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn nothing_is_reached_past_the_end() {
        let mut mapping = Mapping::anonymous(4096).unwrap();
        let refused = |access: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(refused(&mut || drop(mapping.bytes_mut(4095, 2).to_vec())));
        assert!(refused(&mut || drop(mapping.bytes_mut(usize::MAX, 2).to_vec())));
        assert!(refused(&mut || _ = mapping.word32(4094)));
        assert!(refused(&mut || _ = mapping.word64(4)));
        assert!(!refused(&mut || drop(mapping.bytes_mut(4094, 2).to_vec())));
        for offset in [0, 4095, 4096, usize::MAX] {
            mapping.prefetch(offset);
        }
    }
}
