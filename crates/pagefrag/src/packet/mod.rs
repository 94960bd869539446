//! The packet buffer.

use alloc::vec::Vec;
use core::fmt;

use crate::Align;

mod copy_break;
mod error;
mod piece;
mod sizes;
mod slot;
mod storage;

pub use copy_break::copy_break;
pub use error::PacketError;
pub use piece::{Origin, Piece};
pub use sizes::{HEADERS_BYTES, HEADROOM, TRAILER_BYTES, buffer_bytes};

pub(crate) use storage::Counted;

use slot::{Rest, Slot};

/// A packet on its way: a head with room before and behind its data, and perhaps further pieces that were attached without
/// copying them. What `struct sk_buff` is to a driver. A handle of one word; what is known of the packet lies in the trailer.
///
/// ```text
///   head     |  headroom  |  data  |   tail room   |    trailer    |
///                push  <--  --> pull                 320 bytes: begin and end of the data,
///                     trim <--  --> put              owner of the memory, what is attached
///
///   attached              [  bytes  ] [  bytes  ]    read only, where they lie
/// ```
///
/// An operation that there is no room for is refused, and changes nothing. All memory is initialised, but `push` and `put`
/// show what an earlier packet left there.
///
/// One thread has it at a time; it may be sent to another one, and dropped there.
pub struct PacketBuf {
    slot: Slot,
}

impl PacketBuf {
    /// An empty packet in this memory, whose data will begin after `headroom` bytes (all that there are, if there are not so
    /// many): a [`Frag`](crate::Frag), a [`Page`](crate::Page), a `Box<[u8]>`, or a [`Piece`], of which all the memory is used.
    ///
    /// **For a frame that is in the memory already**, and is shown by [`put`](PacketBuf::put), the same holds as for the kernel's
    /// `build_skb`: it must end before the trailer, which is written now. Where it may not, make the packet
    /// [of a piece](PacketBuf#impl-From<Piece>-for-PacketBuf), or [`copy_break()`] it.
    ///
    /// The last [`TRAILER_BYTES`] are used for the trailer, and up to 63 before, so that it begins at a cache line: memory as
    /// [`buffer_bytes`] reckons it, aligned to one, has room for all the data it was reckoned for. Where there is no room for a
    /// trailer behind the headroom, or others have the memory too, it is allocated instead.
    #[inline]
    pub fn new(memory: impl Into<Piece>, headroom: usize) -> PacketBuf {
        let Piece { storage, .. } = memory.into();
        PacketBuf { slot: Slot::new(storage, headroom) }
    }

    /// The data of the head: all of a linear packet, the headers of one that has pieces attached.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.slot.head
    }

    /// The same, to be written. None if another packet has it too ([`share`](PacketBuf::share)) or if it came from `Bytes`.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        self.slot.head.bytes_mut()
    }

    /// The same, to be written in any case: what another packet has too is copied before, into the heap, with as much room
    /// before and behind it. Fails only for want of memory.
    pub fn make_mut(&mut self) -> Result<&mut [u8], PacketError> {
        if !self.slot.head.storage.is_exclusive() {
            let bytes = self.slot.head.storage.len();
            self.move_head(bytes)?;
        }
        self.slot.head.bytes_mut().ok_or(PacketError::Shared)
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
        self.slot.head.end - self.slot.head.start
    }

    /// How many bytes can be pushed.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.slot.head.start
    }

    /// How many bytes can be put. What is attached follows the head, so there is no room in between.
    #[inline]
    pub fn tailroom(&self) -> usize {
        if self.is_linear() { self.free_behind() } else { 0 }
    }

    /// Whether all bytes are in the head.
    #[inline]
    pub fn is_linear(&self) -> bool {
        self.slot.rest().is_none()
    }

    /// Room for a header in front: `bytes` more, which the data begins with from now on, and which hold anything.
    #[inline]
    pub fn push(&mut self, bytes: usize) -> Result<&mut [u8], PacketError> {
        let room = self.headroom();
        let Some(start) = room.checked_sub(bytes) else {
            return Err(PacketError::Headroom { bytes, room });
        };
        let Piece { storage, start: begin, .. } = &mut self.slot.head;
        let Some(new) = storage.bytes_mut().and_then(|all| all.get_mut(start..room)) else {
            return Err(PacketError::Shared);
        };
        *begin = start;
        Ok(new)
    }

    /// Takes a header off: the data begins `bytes` later. Returns what was taken off, which is headroom now.
    #[inline]
    pub fn pull(&mut self, bytes: usize) -> Result<&[u8], PacketError> {
        let len = self.head_len();
        if bytes > len {
            return Err(PacketError::Short { bytes, len });
        }
        let start = self.slot.head.start;
        self.slot.head.start += bytes;
        Ok(self.slot.head.storage.bytes().get(start..start + bytes).unwrap_or_default())
    }

    /// Room for data behind: `bytes` more, which the data ends with from now on, and which hold anything.
    #[inline]
    pub fn put(&mut self, bytes: usize) -> Result<&mut [u8], PacketError> {
        let room = self.tailroom();
        if bytes > room {
            return Err(PacketError::Tailroom { bytes, room });
        }
        let Piece { storage, end, .. } = &mut self.slot.head;
        let old = *end;
        let Some(new) = storage.bytes_mut().and_then(|all| all.get_mut(old..old + bytes)) else {
            return Err(PacketError::Shared);
        };
        *end += bytes;
        Ok(new)
    }

    /// Makes the whole packet no longer than `len`; pieces behind that are dropped.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        let in_rest = len.saturating_sub(self.head_len());
        if !self.is_linear() {
            self.trim_rest(in_rest);
        }
        self.slot.head.truncate(len);
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
        self.slot.head.start += bytes;
        self.slot.head.end += bytes;
        Ok(())
    }

    /// Adds these bytes at the end without copying them. Nothing can be put any more, until the packet is
    /// [made linear](PacketBuf::linearize). An empty piece is dropped. The first one
    /// allocates only where the packet has no trailer; the second one and those after it may.
    pub fn attach(&mut self, piece: impl Into<Piece>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.slot.attach(piece);
        }
    }

    /// What was attached, in its order.
    #[inline]
    pub fn fragments(&self) -> impl Iterator<Item = &Piece> {
        self.slot.rest().into_iter().flat_map(Rest::pieces)
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
        if more > self.free_behind() || !self.slot.head.storage.is_exclusive() {
            self.move_head(self.slot.head.end.saturating_add(more))?;
        }
        for piece in self.slot.take_rest().into_iter().flat_map(Rest::into_pieces) {
            self.put(piece.len())?.copy_from_slice(&piece);
        }
        Ok(())
    }

    /// The same packet once more, without copying its bytes, as `skb_clone` does. While both are there, neither can write or
    /// lengthen what they share; each has its own begin and end, and may attach what it likes. The last one that is left
    /// may write again. The first time costs an allocation for the head and one for each piece.
    pub fn share(&mut self) -> PacketBuf {
        let mut slot = Slot::boxed(self.slot.head.share());
        if let Some(rest) = self.slot.rest_mut() {
            rest.pieces_mut().for_each(|piece| slot.attach(piece.share()));
        }
        PacketBuf { slot }
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
        size_of::<PacketBuf>() + memory + self.slot.heap_bytes()
    }

    /// What it falls into: the head, then what was attached. For owners that take their memory back, of which
    /// [`Piece::into_origin`] tells the kind.
    pub fn into_pieces(mut self) -> impl Iterator<Item = Piece> {
        let rest = self.slot.take_rest();
        core::iter::once(self.slot.into_head()).chain(rest.into_iter().flat_map(Rest::into_pieces))
    }

    /// Ends the packet, and calls `take` for what counts each piece that is of a block or page and nobody else's.
    #[inline]
    pub(crate) fn end(self, take: impl FnMut(Counted)) {
        self.slot.end(take);
    }
}

// What callers need not know.
impl PacketBuf {
    /// Bytes of the head behind its data.
    #[inline]
    fn free_behind(&self) -> usize {
        self.slot.head.storage.len() - self.slot.head.end
    }

    /// Copies the data of the head to the same place in new memory that shows so many bytes or more, which are not fewer than
    /// its end.
    fn move_head(&mut self, bytes: usize) -> Result<(), PacketError> {
        let with_trailer = bytes.saturating_add(TRAILER_BYTES + Align::CACHE_LINE.bytes());
        let mut memory: Vec<u8> = Vec::new();
        memory
            .try_reserve_exact(with_trailer)
            .map_err(|_| PacketError::OutOfMemory { bytes: with_trailer })?;
        memory.resize(with_trailer, 0);
        let mut moved = PacketBuf::new(memory, self.headroom());
        moved.put(self.head_len())?.copy_from_slice(self.data());
        let rest = self.slot.take_rest();
        rest.into_iter().flat_map(Rest::into_pieces).for_each(|piece| moved.slot.attach(piece));
        *self = moved;
        Ok(())
    }

    #[cold]
    fn trim_rest(&mut self, len: usize) {
        match self.slot.rest_mut() {
            Some(rest) if len > 0 => rest.truncate(len),
            _ => drop(self.slot.take_rest()),
        }
    }

    fn pinned(&self) -> impl Iterator<Item = (usize, usize)> {
        core::iter::once(&self.slot.head).chain(self.fragments()).map(|piece| piece.storage.pinned())
    }
}

/// A packet of these bytes, with what room there is around them. Allocates, as the bytes may reach to where a trailer would
/// be.
impl From<Piece> for PacketBuf {
    fn from(head: Piece) -> PacketBuf {
        PacketBuf { slot: Slot::boxed(head) }
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
            return packet.slot.into_head().into();
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

const _: () = assert!(size_of::<Option<PacketBuf>>() == size_of::<usize>());
