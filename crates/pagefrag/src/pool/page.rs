//! A page, or a fragment of one: what is handed out.

use core::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use super::node::Part;

/// Bytes that nobody else has: a whole page of a [`PagePool`](super::PagePool), or a fragment of one. It may outlive its
/// pool, and may be sent to any thread.
///
/// Dropped anywhere, it goes back to its pool through the ring: a compare-and-exchange, for a fragment a subtraction
/// before that. Where the ring is full or the pool has ended, the page goes to the source. The owner of the pool saves
/// the atomic operation with [`recycle`](super::PagePool::recycle).
///
/// The bytes are initialised, and hold what an earlier packet left there.
pub struct Page {
    data: NonNull<u8>,
    len: usize,
    part: Part,
}

// SAFETY: a page owns its bytes alone, as a `Vec<u8>` does, and its part is Send.
unsafe impl Send for Page {}
// SAFETY: `&Page` gives only `&[u8]`, and its part is Sync.
unsafe impl Sync for Page {}

impl Page {
    /// # Safety
    ///
    /// `data` and the `len` bytes there are initialised, belong to the page of `part`, and to no other part until this one
    /// has ended.
    #[inline]
    pub(crate) unsafe fn new(data: NonNull<u8>, len: usize, part: Part) -> Page {
        Page { data, len, part }
    }

    /// Makes it shorter, as a buffer is that was larger than the packet. The next one who gets the page has all of it again.
    /// Does nothing if it is not longer than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// How much memory this keeps from being used again, together with the other fragments of its page: the size of the
    /// pool's pages, however short it is itself.
    #[inline]
    pub fn block_bytes(&self) -> usize {
        self.part.page_bytes()
    }

    #[inline]
    pub(crate) fn into_part(self) -> Part {
        self.part
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (NonNull<u8>, usize, Part) {
        (self.data, self.len, self.part)
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and belong to this value alone (`new`), the part keeps them alive, and `len` never grows.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl DerefMut for Page {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only way to them at the moment.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Page {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("len", &self.len)
            .field("block_bytes", &self.block_bytes())
            .finish_non_exhaustive()
    }
}

/// Without copying: the page goes home when the last clone is gone. Allocates what `bytes` needs to count its clones.
#[cfg(feature = "bytes")]
impl From<Page> for bytes::Bytes {
    fn from(page: Page) -> bytes::Bytes {
        bytes::Bytes::from_owner(page)
    }
}
