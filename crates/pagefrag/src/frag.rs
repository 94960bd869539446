//! A fragment: the buffer that is handed out.

use core::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use crate::block::{Bulk, Reference};

/// Bytes of a block that nobody else has. Keeps the whole block alive, may outlive its cache, and may be sent to and
/// dropped by any thread: that is one atomic subtraction. The owner of a [`PollCache`](crate::PollCache) saves it with
/// [`give_back`](crate::PollCache::give_back).
///
/// The bytes are initialised, but unless they were asked for zeroed they hold what an earlier fragment left there.
pub struct Frag {
    data: NonNull<u8>,
    len: usize,
    reference: Reference,
}

// SAFETY: a fragment owns its bytes alone, as a `Vec<u8>` does, and its reference is Send.
unsafe impl Send for Frag {}
// SAFETY: `&Frag` gives only `&[u8]`, and its reference is Sync.
unsafe impl Sync for Frag {}

impl Frag {
    /// # Safety
    ///
    /// `data` and the `len` bytes there are initialised, belong to the block of `reference`, and to no other fragment
    /// until this one has ended.
    #[inline]
    pub(crate) unsafe fn new(data: NonNull<u8>, len: usize, reference: Reference) -> Frag {
        Frag { data, len, reference }
    }

    /// Makes it shorter, as a buffer is that was larger than the packet. The rest is free again with the block, not
    /// before. Does nothing if it is not longer than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// How much memory this fragment keeps from being used again, together with the other fragments of its block. A
    /// buffer of 100 bytes pins 32768: account for this and not for its length, where memory is accounted for.
    #[inline]
    pub fn block_bytes(&self) -> usize {
        self.reference.block_bytes()
    }

    #[inline]
    pub(crate) fn into_reference(self) -> Reference {
        self.reference
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (NonNull<u8>, usize, Reference) {
        (self.data, self.len, self.reference)
    }
}

impl Deref for Frag {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `new` got initialised bytes that belong to this fragment alone, the reference keeps them alive, and `len`
        // never grows.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl DerefMut for Frag {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only way to them at the moment.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Frag {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Frag {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Frag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frag")
            .field("len", &self.len)
            .field("block_bytes", &self.block_bytes())
            .finish_non_exhaustive()
    }
}

/// Drops fragments with one atomic operation for each run of them that lie in one block, and not one for each. What a cache
/// cut one after the other lies in few blocks, so that a thread that ends what another one has taken should do it so.
///
/// ```
/// let mut cache = pagefrag::PollCache::new();
/// let frags: Vec<_> = (0..64).map(|_| cache.alloc(256, pagefrag::Align::BYTE)).collect::<Result<_, _>>()?;
/// std::thread::spawn(move || pagefrag::drop_all(frags)).join().unwrap();
/// # Ok::<(), pagefrag::AllocError>(())
/// ```
#[inline]
pub fn drop_all(frags: impl IntoIterator<Item = Frag>) {
    let mut run: Option<Bulk> = None;
    for frag in frags {
        let reference = frag.into_reference();
        let other = match &mut run {
            Some(run) => run.put_back(reference),
            None => Some(reference),
        };
        if let Some(reference) = other {
            // The run before ends here.
            run = Some(Bulk::of(reference));
        }
    }
}

/// Without copying the bytes: they stay where they are, and pin their block until the last clone is gone. Allocates
/// what `bytes` needs to count its clones.
#[cfg(feature = "bytes")]
impl From<Frag> for bytes::Bytes {
    fn from(frag: Frag) -> bytes::Bytes {
        bytes::Bytes::from_owner(frag)
    }
}
