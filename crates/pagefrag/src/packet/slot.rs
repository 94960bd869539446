//! Where a packet's few words lie: in the trailer of its own head, or in the heap.
//!
//! A handle of one word moves in a register. A structure of many words does not: where it is passed on just after it was
//! written, the wider loads of the copy wait for the narrower stores, which took longer (5 to 8 ns) than to build the
//! packet. So what is known of a packet lies behind its data, as `struct skb_shared_info` does, at a cache line of its own.
//!
//! The trailer's memory is handed on with the rest, and was initialised bytes before: so it is zeroed at the end, which also
//! keeps addresses of this process out of later packets.

use alloc::{boxed::Box, vec::Vec};
use core::{
    iter,
    mem::{self, ManuallyDrop},
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use super::{
    Piece, TRAILER_BYTES,
    storage::{Counted, Storage},
};

/// What is known of a packet. One cache line, if it is in the trailer.
#[repr(C)]
pub(super) struct Meta {
    pub(super) head: Piece,
    rest: Option<NonNull<Rest>>,
}

/// What is attached; none of it is empty. Lies behind `Meta` in the trailer, so that a packet with one piece, as copy-break
/// makes it, needs no allocation; in the heap where `Meta` does.
pub(super) struct Rest {
    first: Piece,
    more: Vec<Piece>,
}

const _: () = assert!(size_of::<Meta>() == 64 && 64 + size_of::<Rest>() <= TRAILER_BYTES);

/// The handle: one `Meta`, owned.
///
/// The pointer is valid, and what it points to belongs to this handle alone, until the handle ends. If
/// [`is_in_trailer`](Slot::is_in_trailer), it is in the memory of `head.storage`, behind what that shows, and the owner
/// that keeps it alive is in `Meta` itself; otherwise it is a box. Likewise for `rest`.
pub(super) struct Slot(NonNull<Meta>);

// SAFETY: a handle owns its `Meta` alone, and pieces are Send and Sync.
unsafe impl Send for Slot {}
// SAFETY: `&Slot` gives only `&Meta` and `&Piece`.
unsafe impl Sync for Slot {}

impl Slot {
    /// An empty packet. Its `Meta` is in the trailer of the storage, if there is room for one behind the first `start` bytes.
    #[inline]
    pub(super) fn new(mut storage: Storage, start: usize) -> Slot {
        storage.restore();
        let Some(trailer) = storage.cut_trailer(start) else {
            let start = start.min(storage.len());
            return Slot::boxed(Piece { storage, start, end: start });
        };
        let meta = trailer.cast::<Meta>();
        // SAFETY: the trailer is as large and aligned as `cut_trailer` says, which is enough, and nobody else uses it.
        unsafe { meta.write(Meta { head: Piece { storage, start, end: start }, rest: None }) };
        Slot(meta)
    }

    /// A packet of these bytes.
    #[cold]
    pub(super) fn boxed(head: Piece) -> Slot {
        Slot(NonNull::from(Box::leak(Box::new(Meta { head, rest: None }))))
    }

    #[inline]
    pub(super) fn is_in_trailer(&self) -> bool {
        self.head.storage.holds(self.0.as_ptr().addr())
    }

    /// Bytes of the heap that it takes.
    pub(super) fn heap_bytes(&self) -> usize {
        let rest = self.rest();
        let more = rest.map_or(0, |rest| rest.more.capacity() * size_of::<Piece>());
        let own = size_of::<Meta>() + rest.map_or(0, |_| size_of::<Rest>());
        more + if self.is_in_trailer() { 0 } else { own }
    }

    #[inline]
    pub(super) fn rest(&self) -> Option<&Rest> {
        // SAFETY: `rest` is valid and ours (see the type), and `self` is borrowed.
        self.rest.map(|rest| unsafe { rest.as_ref() })
    }

    #[inline]
    pub(super) fn rest_mut(&mut self) -> Option<&mut Rest> {
        // SAFETY: as in `rest`.
        self.rest.map(|mut rest| unsafe { rest.as_mut() })
    }

    pub(super) fn attach(&mut self, piece: Piece) {
        if let Some(rest) = self.rest_mut() {
            rest.more.push(piece);
            return;
        }
        let place = if self.is_in_trailer() {
            // SAFETY: the trailer has room for both (see the assertion).
            unsafe { self.0.add(1) }.cast::<Rest>()
        } else {
            NonNull::from(Box::leak(Box::<Rest>::new_uninit())).cast()
        };
        // SAFETY: the place is as large and aligned as a `Rest`, and nobody else uses it, as there was no rest.
        unsafe { place.write(Rest { first: piece, more: Vec::new() }) };
        self.rest = Some(place);
    }

    pub(super) fn take_rest(&mut self) -> Option<Rest> {
        let place = self.rest.take()?;
        if !self.is_in_trailer() {
            // SAFETY: then it is a box (see the type), and nobody has the pointer any more.
            return Some(*unsafe { Box::from_raw(place.as_ptr()) });
        }
        // SAFETY: it is valid, and nobody has the pointer any more.
        let rest = unsafe { place.read() };
        // SAFETY: the place is ours, and its content was moved out.
        unsafe { place.write_bytes(0, 1) };
        Some(rest)
    }

    /// The head; what was attached is dropped.
    pub(super) fn into_head(self) -> Piece {
        let mut slot = ManuallyDrop::new(self);
        drop(slot.take_rest());
        // SAFETY: the rest is gone, and the handle is not used again.
        unsafe { slot.free() }
    }

    /// Ends the packet, and calls `take` for what counts each piece of a block or page that nobody else has.
    #[inline]
    pub(super) fn end(self, mut take: impl FnMut(Counted)) {
        let mut slot = ManuallyDrop::new(self);
        match slot.take_only() {
            Some(counted) => take(counted),
            None => slot.end_pieces(&mut take),
        }
    }

    /// What counts the head, if that is all that there is to end: nothing is attached, and nobody else has the bytes. Then the
    /// handle has ended.
    #[inline]
    fn take_only(&mut self) -> Option<Counted> {
        if self.rest.is_some() || !self.is_in_trailer() {
            return None;
        }
        let counted = self.head.storage.take_unshared()?;
        // SAFETY: the trailer is ours (see the type), and `counted` keeps it alive; what is overwritten has no owner any more.
        unsafe { self.0.write_bytes(0, 1) };
        Some(counted)
    }

    /// In place, as far as possible. Then the handle has ended.
    #[inline(never)]
    fn end_pieces(&mut self, take: &mut dyn FnMut(Counted)) {
        if let Some(rest) = self.rest_mut() {
            rest.pieces_mut().filter_map(Piece::take_unshared).for_each(&mut *take);
            self.drop_rest(take);
        }
        if let Some(counted) = self.take_only() {
            return take(counted);
        }
        // SAFETY: the rest is gone, and the caller does not use the handle again.
        let head = unsafe { self.free() };
        head.into_counted().into_iter().for_each(take);
    }

    /// What is left of the rest: pieces that are shared or in the heap.
    fn drop_rest(&mut self, take: &mut dyn FnMut(Counted)) {
        let Some(place) = self.rest.take() else { return };
        if !self.is_in_trailer() {
            // SAFETY: then it is a box (see the type), and nobody has the pointer any more.
            let rest = unsafe { Box::from_raw(place.as_ptr()) };
            return rest.into_pieces().filter_map(Piece::into_counted).for_each(take);
        }
        // SAFETY: it is valid, and nobody has the pointer any more.
        unsafe { place.drop_in_place() };
        // SAFETY: the place is ours, and its content has ended.
        unsafe { place.write_bytes(0, 1) };
    }

    /// # Safety
    ///
    /// There is no rest, and the handle is not used again.
    unsafe fn free(&mut self) -> Piece {
        let in_trailer = self.is_in_trailer();
        let storage = mem::replace(&mut self.head.storage, Storage::empty());
        let Piece { start, end, .. } = self.head;
        if in_trailer {
            // SAFETY: the trailer is ours (see the type), and `storage` keeps it alive; what is overwritten has no owner any more.
            unsafe { self.0.write_bytes(0, 1) };
        } else {
            // SAFETY: then it is a box, and the caller does not use it again.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
        Piece { storage, start, end }
    }
}

impl Deref for Slot {
    type Target = Meta;

    #[inline]
    fn deref(&self) -> &Meta {
        // SAFETY: the pointer is valid (see the type), and `self` is borrowed.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut Meta {
        // SAFETY: as in `deref`; `&mut self` is the only way to it.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        match self.take_only() {
            Some(counted) => drop(counted),
            None => self.end_pieces(&mut drop),
        }
    }
}

impl Rest {
    #[inline]
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        iter::once(&self.first).chain(&self.more)
    }

    pub(super) fn into_pieces(self) -> impl Iterator<Item = Piece> {
        iter::once(self.first).chain(self.more)
    }

    #[inline]
    pub(super) fn pieces_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        iter::once(&mut self.first).chain(&mut self.more)
    }

    /// `len` is not 0.
    pub(super) fn truncate(&mut self, len: usize) {
        self.first.truncate(len);
        let mut left = len - self.first.len();
        self.more.retain_mut(|piece| {
            piece.truncate(left);
            left -= piece.len();
            !piece.is_empty()
        });
    }
}
