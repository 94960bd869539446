//! Allocators for everything: that of the system, mimalloc, jemalloc, and what `bytes` makes of the first.

use std::alloc::{GlobalAlloc, System};

use bytes::BytesMut;
use mimalloc::MiMalloc;
use pagefrag::foreign::Buffer;

use crate::alloc::arm::{Arm, touch, touch_uninit};

/// An allocator as a type, of which there is one for the whole process.
pub(crate) trait Whole: 'static {
    type Allocator: GlobalAlloc + Sync;
    const ALLOCATOR: &'static Self::Allocator;
}

/// `malloc` and `free` of the C library.
pub(crate) struct OfSystem;

impl Whole for OfSystem {
    type Allocator = System;
    const ALLOCATOR: &'static System = &System;
}

pub(crate) struct OfMimalloc;

impl Whole for OfMimalloc {
    type Allocator = MiMalloc;
    const ALLOCATOR: &'static MiMalloc = &MiMalloc;
}

#[cfg(feature = "jemalloc")]
pub(crate) struct OfJemalloc;

#[cfg(feature = "jemalloc")]
impl Whole for OfJemalloc {
    type Allocator = tikv_jemallocator::Jemalloc;
    const ALLOCATOR: &'static Self::Allocator = &tikv_jemallocator::Jemalloc;
}

/// One of them.
pub(crate) struct General<W: Whole>(std::marker::PhantomData<fn() -> W>);

impl<W: Whole> General<W> {
    pub(crate) fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<W: Whole> Arm for General<W> {
    type Buffer = Buffer<W::Allocator>;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<Self::Buffer> {
        Buffer::new(W::ALLOCATOR, bytes)
    }

    #[inline]
    fn touch(buffer: &mut Self::Buffer, bytes: usize) {
        touch_uninit(buffer.as_uninit_mut(), bytes);
    }
}

/// `BytesMut::with_capacity`, dropped: the global allocator of this program, which is the system's, and the handle.
pub(crate) struct OneBytesMut;

impl Arm for OneBytesMut {
    type Buffer = BytesMut;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<BytesMut> {
        Some(BytesMut::with_capacity(bytes))
    }

    #[inline]
    fn touch(buffer: &mut BytesMut, bytes: usize) {
        touch_uninit(buffer.spare_capacity_mut(), bytes);
    }
}

/// `BytesMut::split_to` of a block of 32 KiB, as programs do that receive into one and hand parts of it on.
pub(crate) struct SplitBytesMut {
    block: BytesMut,
}

/// As large as a block of the page-fragment caches.
const BLOCK_BYTES: usize = pagefrag::LARGE_BLOCK_BYTES;

impl SplitBytesMut {
    pub(crate) fn new() -> Self {
        Self { block: BytesMut::new() }
    }
}

impl Arm for SplitBytesMut {
    type Buffer = BytesMut;

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<BytesMut> {
        if self.block.len() < bytes {
            self.block = BytesMut::zeroed(BLOCK_BYTES);
        }
        Some(self.block.split_to(bytes))
    }

    #[inline]
    fn touch(buffer: &mut BytesMut, bytes: usize) {
        touch(buffer, bytes);
    }
}
