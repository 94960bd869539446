//! The packet buffer.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

mod copy_break;
mod error;
mod piece;
mod sizes;
mod storage;

pub use copy_break::copy_break;
pub use error::PacketError;
pub use piece::{Origin, Piece};
pub use sizes::{HEADERS_BYTES, HEADROOM, TRAILER_BYTES, buffer_bytes};

use crate::block::Reference;
use storage::Storage;

/// A packet on its way: a head with room before and behind its data, and perhaps further pieces that were attached without
/// copying them. What `struct sk_buff` is to a driver, in 56 bytes.
///
/// ```text
///            0        headroom                      capacity
///   head     |  headroom  |  data  |    tail room    |
///                push  <--  --> pull
///                              trim <--  --> put
///   pieces                [  bytes  ] [  bytes  ]       attached: read only, where they lie
/// ```
///
/// An operation that there is no room for is refused, and changes nothing. All memory is initialised, but `push` and `put`
/// show what an earlier packet left there.
///
/// One thread has it at a time; it may be sent to another one, and dropped there.
pub struct PacketBuf {
    head: Piece,
    rest: Option<Box<Rest>>,
}

/// What is attached; none of it is empty. The first one lies here, so that a packet with one piece, as copy-break makes it,
/// takes one allocation.
struct Rest {
    first: Piece,
    more: Vec<Piece>,
}

impl PacketBuf {
    /// An empty packet in this memory, whose data will begin after `headroom` bytes (all that there are, if there are not so
    /// many): a [`Frag`](crate::Frag), a `Box<[u8]>`, or a [`Piece`], of which all is used.
    #[inline]
    pub fn new(memory: impl Into<Piece>, headroom: usize) -> PacketBuf {
        let Piece { storage, .. } = memory.into();
        let start = headroom.min(storage.len());
        PacketBuf { head: Piece { storage, start, end: start }, rest: None }
    }

    /// An empty packet in a fragment.
    #[inline]
    pub fn with_frag(frag: crate::Frag, headroom: usize) -> PacketBuf {
        PacketBuf::new(frag, headroom)
    }

    /// The data of the head: all of a linear packet, the headers of one that has pieces attached.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.head
    }

    /// The same, to be written. None if another packet has it too ([`share`](PacketBuf::share)) or if it came from `Bytes`.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        self.head.bytes_mut()
    }

    /// The same, to be written in any case: what another packet has too is copied before, into the heap, with as much room
    /// before and behind it. Fails only for want of memory.
    pub fn make_mut(&mut self) -> Result<&mut [u8], PacketError> {
        if !self.head.storage.is_exclusive() {
            let bytes = self.head.storage.len();
            self.move_head(bytes)?;
        }
        self.head.bytes_mut().ok_or(PacketError::Shared)
    }

    /// Bytes of the whole packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.head_len() + self.fragments().map(|piece| piece.len()).sum::<usize>()
    }

    /// Whether the whole packet has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head_len() == 0 && self.is_linear()
    }

    /// Bytes of the head, those of [`data`](PacketBuf::data).
    #[inline]
    pub fn head_len(&self) -> usize {
        self.head.end - self.head.start
    }

    /// How many bytes can be pushed.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.head.start
    }

    /// How many bytes can be put. What is attached follows the head, so there is no room in between.
    #[inline]
    pub fn tailroom(&self) -> usize {
        if self.is_linear() { self.free_behind() } else { 0 }
    }

    /// Whether all bytes are in the head.
    #[inline]
    pub fn is_linear(&self) -> bool {
        self.rest.is_none()
    }

    /// Room for a header in front: `bytes` more, which the data begins with from now on, and which hold anything.
    #[inline]
    pub fn push(&mut self, bytes: usize) -> Result<&mut [u8], PacketError> {
        let room = self.headroom();
        let Some(start) = room.checked_sub(bytes) else {
            return Err(PacketError::Headroom { bytes, room });
        };
        let Some(new) = self.head.storage.bytes_mut().and_then(|all| all.get_mut(start..room)) else {
            return Err(PacketError::Shared);
        };
        self.head.start = start;
        Ok(new)
    }

    /// Takes a header off: the data begins `bytes` later. Returns what was taken off, which is headroom now.
    #[inline]
    pub fn pull(&mut self, bytes: usize) -> Result<&[u8], PacketError> {
        let len = self.head_len();
        if bytes > len {
            return Err(PacketError::Short { bytes, len });
        }
        let start = self.head.start;
        self.head.start += bytes;
        Ok(self.head.storage.bytes().get(start..start + bytes).unwrap_or_default())
    }

    /// Room for data behind: `bytes` more, which the data ends with from now on, and which hold anything.
    #[inline]
    pub fn put(&mut self, bytes: usize) -> Result<&mut [u8], PacketError> {
        let room = self.tailroom();
        if bytes > room {
            return Err(PacketError::Tailroom { bytes, room });
        }
        let old = self.head.end;
        let Some(new) = self.head.storage.bytes_mut().and_then(|all| all.get_mut(old..old + bytes)) else {
            return Err(PacketError::Shared);
        };
        self.head.end += bytes;
        Ok(new)
    }

    /// Makes the whole packet no longer than `len`; pieces behind that are dropped.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        let in_rest = len.saturating_sub(self.head_len());
        if self.rest.is_some() {
            self.trim_rest(in_rest);
        }
        self.head.truncate(len);
    }

    /// More headroom for a packet that is still empty, from its tail room.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Result<(), PacketError> {
        if !self.is_empty() {
            return Err(PacketError::NotEmpty { len: self.len() });
        }
        let room = self.tailroom();
        if bytes > room {
            return Err(PacketError::Tailroom { bytes, room });
        }
        self.head.start += bytes;
        self.head.end += bytes;
        Ok(())
    }

    /// Adds these bytes at the end without copying them. Nothing can be put any more, until the packet is
    /// [made linear](PacketBuf::linearize). An empty piece is dropped. The first one allocates.
    pub fn attach(&mut self, piece: impl Into<Piece>) {
        let piece = piece.into();
        if piece.is_empty() {
            return;
        }
        match &mut self.rest {
            Some(rest) => rest.more.push(piece),
            None => self.rest = Some(Box::new(Rest { first: piece, more: Vec::new() })),
        }
    }

    /// What was attached, in its order.
    #[inline]
    pub fn fragments(&self) -> impl Iterator<Item = &Piece> {
        self.rest.iter().flat_map(|rest| core::iter::once(&rest.first).chain(&rest.more))
    }

    /// All bytes of the packet in their order, those of the head first: for a system call that takes a list.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.data()).chain(self.fragments().map(|piece| &**piece))
    }

    /// Copies what is attached behind the data of the head: into its tail room if that is enough, else all into the heap, with
    /// the same headroom. Fails only for want of memory.
    pub fn linearize(&mut self) -> Result<(), PacketError> {
        let more: usize = self.fragments().map(|piece| piece.len()).sum();
        if more == 0 {
            return Ok(());
        }
        if more > self.free_behind() || !self.head.storage.is_exclusive() {
            self.move_head(self.head.end.saturating_add(more))?;
        }
        if let Some(rest) = self.rest.take() {
            for piece in rest.pieces() {
                self.put(piece.len())?.copy_from_slice(piece);
            }
        }
        Ok(())
    }

    /// The same packet once more, without copying its bytes, as `skb_clone` does. While both are there, neither can write or
    /// lengthen what they share; each has its own begin and end, and may attach what it likes. The last one that is left
    /// may write again. The first time costs an allocation for the head and one for each piece.
    pub fn share(&mut self) -> PacketBuf {
        PacketBuf { head: self.head.share(), rest: self.rest.as_mut().map(|rest| Box::new(rest.share())) }
    }

    /// Memory that may be pinned by this packet alone, in bytes: for every piece of memory that it holds the whole block, page
    /// or allocation, and what keeps account of it.
    ///
    /// A fragment counts as its **whole block**, not as the bytes that were cut for it, since whichever of its siblings ends
    /// last keeps the block alive: a queue of small packets, one left over of each block, would be accounted 32 times too
    /// small otherwise. So the sum over packets that have one block, or share bytes, is more than what they pin, and never
    /// less. What all of them pin exactly is told by [`Source::alive_bytes`](crate::Source::alive_bytes). Within a packet a
    /// block counts once. Of `Bytes` only the length is known, not what they pin.
    pub fn truesize(&self) -> usize {
        let seen_before = |identity, upto| self.pinned().take(upto).any(|(other, _)| other == identity);
        let once = self.pinned().enumerate().filter(|&(at, (identity, _))| !seen_before(identity, at));
        let memory: usize = once.map(|(_, (_, bytes))| bytes).sum();
        let rest = self
            .rest
            .as_ref()
            .map_or(0, |rest| size_of::<Rest>() + rest.more.capacity() * size_of::<Piece>());
        size_of::<PacketBuf>() + memory + rest
    }

    /// What it falls into: the head, then what was attached. For owners that take their memory back, of which
    /// [`Piece::into_origin`] tells the kind.
    pub fn into_pieces(self) -> impl Iterator<Item = Piece> {
        let rest = self.rest.into_iter().flat_map(|rest| core::iter::once(rest.first).chain(rest.more));
        core::iter::once(self.head).chain(rest)
    }
}

// What callers need not know.
impl PacketBuf {
    /// Bytes of the head behind its data.
    #[inline]
    fn free_behind(&self) -> usize {
        self.head.storage.len() - self.head.end
    }

    /// Copies the data of the head to the same place in new memory of so many bytes, which are not fewer than its end.
    fn move_head(&mut self, bytes: usize) -> Result<(), PacketError> {
        let mut memory: Vec<u8> = Vec::new();
        memory.try_reserve_exact(bytes).map_err(|_| PacketError::OutOfMemory { bytes })?;
        memory.resize(self.head.start, 0);
        memory.extend_from_slice(&self.head);
        memory.resize(bytes, 0);
        self.head.storage = Storage::of_heap(memory.into_boxed_slice());
        Ok(())
    }

    #[cold]
    fn trim_rest(&mut self, len: usize) {
        let Some(mut rest) = self.rest.take() else { return };
        if len > 0 {
            rest.truncate(len);
            self.rest = Some(rest);
        }
    }

    fn pinned(&self) -> impl Iterator<Item = (usize, usize)> {
        core::iter::once(&self.head).chain(self.fragments()).map(|piece| piece.storage.pinned())
    }

    /// As `Piece::take_reference` of the head, if there is nothing else.
    #[inline]
    pub(crate) fn take_only_reference(&mut self) -> Option<Reference> {
        if self.is_linear() { self.head.take_reference() } else { None }
    }

    /// The head, then what was attached.
    pub(crate) fn pieces_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        let rest = self.rest.as_mut().map(|rest| core::iter::once(&mut rest.first).chain(&mut rest.more));
        core::iter::once(&mut self.head).chain(rest.into_iter().flatten())
    }
}

/// Without bytes and without room.
impl Default for PacketBuf {
    #[inline]
    fn default() -> PacketBuf {
        PacketBuf { head: Piece::whole(Storage::empty()), rest: None }
    }
}

impl Rest {
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        core::iter::once(&self.first).chain(&self.more)
    }

    /// `len` is not zero.
    fn truncate(&mut self, len: usize) {
        self.first.truncate(len);
        let mut left = len - self.first.len();
        self.more.retain_mut(|piece| {
            piece.truncate(left);
            left -= piece.len();
            !piece.is_empty()
        });
    }

    fn share(&mut self) -> Rest {
        Rest { first: self.first.share(), more: self.more.iter_mut().map(Piece::share).collect() }
    }
}

/// A packet of these bytes, with nothing attached.
impl From<Piece> for PacketBuf {
    #[inline]
    fn from(head: Piece) -> PacketBuf {
        PacketBuf { head, rest: None }
    }
}

/// Without copying. The head can be read only, as nobody knows who else has these bytes.
#[cfg(feature = "bytes")]
impl From<bytes::Bytes> for PacketBuf {
    fn from(bytes: bytes::Bytes) -> PacketBuf {
        PacketBuf::from(Piece::from(bytes))
    }
}

/// Without copying if the packet is linear: the bytes stay where they are, and pin their memory until the last clone is gone.
/// Otherwise all are copied into one.
#[cfg(feature = "bytes")]
impl From<PacketBuf> for bytes::Bytes {
    fn from(packet: PacketBuf) -> bytes::Bytes {
        if packet.is_linear() {
            return packet.head.into();
        }
        let mut all = Vec::with_capacity(packet.len());
        packet.slices().for_each(|bytes| all.extend_from_slice(bytes));
        all.into()
    }
}

impl fmt::Debug for PacketBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketBuf")
            .field("headroom", &self.headroom())
            .field("head_len", &self.head_len())
            .field("fragments", &self.fragments().count())
            .field("tailroom", &self.tailroom())
            .finish()
    }
}

const _: () = assert!(size_of::<PacketBuf>() <= 64);
