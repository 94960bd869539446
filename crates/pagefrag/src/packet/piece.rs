//! A piece of a packet: bytes, and what keeps them alive.

use alloc::{boxed::Box, vec::Vec};
use core::{fmt, ops::Deref};

use super::storage::{self, Counted, Storage};
use crate::{Frag, Page};

/// Bytes of a packet where they lie: all or a part of a [`Frag`], of a [`Page`] or of memory from the heap, alone or shared with
/// other packets. What is attached to a [`PacketBuf`](crate::PacketBuf), and what it falls into at its end.
pub struct Piece {
    pub(super) storage: Storage,
    /// Of the bytes of the storage, these are shown: `start <= end <= storage.len()`.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// What a [`Piece`] was made of, whole again.
#[derive(Debug)]
#[non_exhaustive]
pub enum Origin {
    /// A fragment, for [`PollCache::give_back`](crate::PollCache::give_back).
    Frag(Frag),
    /// A page of a pool or a fragment of one, for [`PagePool::recycle`](crate::PagePool::recycle).
    Page(Page),
    /// Memory of the global allocator.
    Heap(Box<[u8]>),
    /// Nothing that could be had alone: another packet has the same bytes, or they are somebody else's.
    Other(Piece),
}

impl Piece {
    /// Shows no more than the first `len` bytes. The others stay where they are.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.start + self.len().min(len);
    }

    /// Leaves the first bytes out, all at most.
    pub fn advance(&mut self, bytes: usize) {
        self.start += self.len().min(bytes);
    }

    /// To write to; none if another packet has the same bytes.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let (start, end) = (self.start, self.end);
        self.storage.bytes_mut()?.get_mut(start..end)
    }

    /// The same bytes once more, without copying them. Neither can be written while both are there.
    pub fn share(&mut self) -> Piece {
        Piece { storage: self.storage.share(), start: self.start, end: self.end }
    }

    /// What it was made of.
    pub fn into_origin(self) -> Origin {
        let Piece { storage, start, end } = self;
        match storage.into_origin() {
            storage::Origin::Frag(frag) => Origin::Frag(frag),
            storage::Origin::Page(page) => Origin::Page(page),
            storage::Origin::Heap(bytes) => Origin::Heap(bytes),
            storage::Origin::Other(storage) => Origin::Other(Piece { storage, start, end }),
        }
    }

    #[inline]
    pub(super) fn whole(storage: Storage) -> Piece {
        Piece { start: 0, end: storage.len(), storage }
    }

    /// What counts it in its block or page, unless it is shared; it shows nothing then.
    #[inline]
    pub(super) fn take_unshared(&mut self) -> Option<Counted> {
        let counted = self.storage.take_unshared()?;
        (self.start, self.end) = (0, 0);
        Some(counted)
    }

    /// What counts it in its block or page, if nobody else has it; it ends otherwise.
    #[inline]
    pub(crate) fn into_counted(self) -> Option<Counted> {
        self.storage.into_counted()
    }
}

impl Deref for Piece {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.storage.bytes().get(self.start..self.end).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Frag> for Piece {
    #[inline]
    fn from(frag: Frag) -> Piece {
        Piece::whole(Storage::of_frag(frag))
    }
}

impl From<Page> for Piece {
    #[inline]
    fn from(page: Page) -> Piece {
        Piece::whole(Storage::of_page(page))
    }
}

impl From<Box<[u8]>> for Piece {
    fn from(bytes: Box<[u8]>) -> Piece {
        Piece::whole(Storage::of_heap(bytes))
    }
}

/// Copies nothing unless the vector has capacity to spare.
impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Piece {
        Piece::from(bytes.into_boxed_slice())
    }
}

/// Without copying. The bytes can be read only, as nobody knows who else has them.
#[cfg(feature = "bytes")]
impl From<bytes::Bytes> for Piece {
    fn from(bytes: bytes::Bytes) -> Piece {
        Piece::whole(Storage::of_bytes(bytes))
    }
}

/// Without copying: they stay where they are, and pin their memory until the last clone is gone.
#[cfg(feature = "bytes")]
impl From<Piece> for bytes::Bytes {
    fn from(piece: Piece) -> bytes::Bytes {
        if piece.is_empty() {
            return bytes::Bytes::new();
        }
        match piece.storage.as_shared_bytes() {
            Some(bytes) => bytes.slice(piece.start..piece.end),
            None => bytes::Bytes::from_owner(piece),
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("start", &self.start).field("len", &self.len()).finish_non_exhaustive()
    }
}
