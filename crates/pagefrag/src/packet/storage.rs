//! Memory that a packet lies in, and who keeps it alive.

use alloc::{boxed::Box, sync::Arc};
use core::{mem, mem::ManuallyDrop, ptr, ptr::NonNull, slice};

use super::TRAILER_BYTES;
use crate::{Frag, Page, block::Reference, pool::Part};

/// Initialised bytes that stay where they are, and their owner.
///
/// Who has a `Storage` reads all of it. It is written only through [`bytes_mut`](Storage::bytes_mut), which refuses where
/// somebody else has the same bytes.
pub(super) struct Storage {
    base: NonNull<u8>,
    /// Ended by `Storage::drop`, so that to drop a storage without one is a comparison wherever it happens.
    owner: ManuallyDrop<Owner>,
    /// How many bytes are shown.
    len: usize,
    /// How many there are: `len`, and behind them what was [cut off](Storage::cut_trailer).
    whole: usize,
}

/// Whose the bytes are. Keeps them alive.
enum Owner {
    /// This storage's alone, of a block or page.
    Counted(Counted),
    /// This storage's alone: a `Box<[u8]>` of all of them.
    Heap,
    /// Those of all storages that have this; never written unless it is the only one.
    Shared(Arc<Keeper>),
    /// Nobody's: there are none.
    Nobody,
}

/// What stands for one fragment in the count of its block or page.
pub(crate) enum Counted {
    Block(Reference),
    Page(Part),
}

/// What several storages share.
enum Keeper {
    /// Never `Shared` itself.
    Storage(Storage),
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

/// What `Arc` has beside its content.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// What a storage was made of.
pub(super) enum Origin {
    Frag(Frag),
    Page(Page),
    Heap(Box<[u8]>),
    /// Not to be had alone: somebody else has it too, or it cannot be written.
    Other(Storage),
}

// SAFETY: the bytes are written only through `&mut Storage`, and only if no other storage has them; what keeps them
// alive is Send and Sync (`Reference`, `Part`, `Box<[u8]>`, `Arc<Keeper>`, `Bytes`).
unsafe impl Send for Storage {}
// SAFETY: `&Storage` gives only `&[u8]`.
unsafe impl Sync for Storage {}

impl Storage {
    pub(super) fn empty() -> Storage {
        Storage::new(NonNull::dangling(), Owner::Nobody, 0)
    }

    #[inline]
    pub(super) fn of_frag(frag: Frag) -> Storage {
        let (base, len, reference) = frag.into_parts();
        Storage::new(base, Owner::Counted(Counted::Block(reference)), len)
    }

    #[inline]
    pub(super) fn of_page(page: Page) -> Storage {
        let (base, len, part) = page.into_parts();
        Storage::new(base, Owner::Counted(Counted::Page(part)), len)
    }

    pub(super) fn of_heap(bytes: Box<[u8]>) -> Storage {
        let len = bytes.len();
        Storage::new(NonNull::from(Box::leak(bytes)).cast(), Owner::Heap, len)
    }

    /// Never written.
    #[cfg(feature = "bytes")]
    pub(super) fn of_bytes(bytes: bytes::Bytes) -> Storage {
        let (base, len) = (NonNull::from(&*bytes).cast(), bytes.len());
        Storage::new(base, Owner::Shared(Arc::new(Keeper::Bytes(bytes))), len)
    }

    #[inline]
    fn new(base: NonNull<u8>, owner: Owner, len: usize) -> Storage {
        Storage { base, owner: ManuallyDrop::new(owner), len, whole: len }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: whoever built this storage had initialised bytes there; the owner keeps them alive, and nobody writes them
        // while somebody else can read them (`bytes_mut`).
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// None if somebody else has them too, or if they cannot be written at all.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_exclusive() {
            return None;
        }
        // SAFETY: as in `bytes`, and there is no other storage of these bytes; `&mut self` is the only way to them.
        Some(unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) })
    }

    #[inline]
    pub(super) fn is_exclusive(&mut self) -> bool {
        match &mut *self.owner {
            Owner::Shared(keeper) => is_sole(keeper),
            Owner::Counted(_) | Owner::Heap | Owner::Nobody => true,
        }
    }

    /// Shows all bytes again, if they are this storage's alone and nobody uses what was cut off.
    #[inline]
    pub(super) fn restore(&mut self) {
        if let Owner::Counted(_) | Owner::Heap = *self.owner {
            self.len = self.whole;
        }
    }

    /// Shows the last [`TRAILER_BYTES`] no longer, and up to 63 before, so that they begin at a cache line; they are the
    /// caller's as long as the owner lives. None if less than `kept` would be left, or if the bytes are not this storage's
    /// alone.
    #[inline]
    pub(super) fn cut_trailer(&mut self, kept: usize) -> Option<NonNull<u8>> {
        let (Owner::Counted(_) | Owner::Heap) = *self.owner else { return None };
        let base = self.base.as_ptr().addr();
        let room = ((base + self.len).checked_sub(TRAILER_BYTES)? & !63).checked_sub(base)?;
        if room < kept {
            return None;
        }
        self.len = room;
        // SAFETY: `room` is less than the bytes that there are.
        Some(unsafe { self.base.add(room) })
    }

    /// Whether this address is within the memory, cut off or not.
    #[inline]
    pub(super) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.as_ptr().addr()) < self.whole
    }

    /// Another storage of the same bytes. Allocates the first time.
    pub(super) fn share(&mut self) -> Storage {
        let Storage { base, len, whole, .. } = *self;
        let keeper = match &*self.owner {
            Owner::Nobody => return Storage::empty(),
            Owner::Shared(keeper) => Arc::clone(keeper),
            Owner::Counted(_) | Owner::Heap => {
                let keeper = Arc::new(Keeper::Storage(mem::replace(self, Storage::empty())));
                let owner = ManuallyDrop::new(Owner::Shared(Arc::clone(&keeper)));
                *self = Storage { base, owner, len, whole };
                keeper
            }
        };
        Storage { base, owner: ManuallyDrop::new(Owner::Shared(keeper)), len, whole }
    }

    /// Which memory it is (two storages of one block have the same), and how much of it is pinned.
    pub(super) fn pinned(&self) -> (usize, usize) {
        match &*self.owner {
            Owner::Counted(Counted::Block(reference)) => (reference.identity(), reference.pinned_bytes()),
            Owner::Counted(Counted::Page(part)) => (part.identity(), part.pinned_bytes()),
            Owner::Heap => (self.base.as_ptr().addr(), self.whole),
            Owner::Nobody => (0, 0),
            Owner::Shared(keeper) => {
                let (identity, bytes) = match &**keeper {
                    Keeper::Storage(storage) => storage.pinned(),
                    #[cfg(feature = "bytes")]
                    Keeper::Bytes(bytes) => (bytes.as_ptr().addr(), bytes.len()),
                };
                (identity, bytes + COUNTS_BYTES + size_of::<Keeper>())
            }
        }
    }

    /// What counts these bytes in their block or page, unless they are shared; nothing is left here then. In place, and in
    /// words: to take the owner out as a whole would load two words as one, just after they were written as two.
    #[inline]
    pub(super) fn take_unshared(&mut self) -> Option<Counted> {
        let counted = match &*self.owner {
            // SAFETY: the owner is overwritten below without being dropped.
            Owner::Counted(Counted::Block(reference)) => Counted::Block(unsafe { ptr::read(reference) }),
            // SAFETY: as above.
            Owner::Counted(Counted::Page(part)) => Counted::Page(unsafe { ptr::read(part) }),
            Owner::Heap | Owner::Shared(_) | Owner::Nobody => return None,
        };
        self.owner = ManuallyDrop::new(Owner::Nobody);
        (self.base, self.len, self.whole) = (NonNull::dangling(), 0, 0);
        Some(counted)
    }

    /// What counts these bytes in their block or page, if nobody else has them. The storage ends.
    #[inline]
    pub(super) fn into_counted(mut self) -> Option<Counted> {
        self.take_unshared().or_else(|| self.take_shared())
    }

    /// From the last of those that shared it. For any other one the share ends.
    #[cold]
    fn take_shared(&mut self) -> Option<Counted> {
        let Owner::Shared(_) = *self.owner else { return None };
        let Owner::Shared(keeper) = self.take_owner() else { return None };
        match Arc::into_inner(keeper)? {
            Keeper::Storage(storage) => storage.into_counted(),
            #[cfg(feature = "bytes")]
            Keeper::Bytes(_) => None,
        }
    }

    pub(super) fn into_origin(mut self) -> Origin {
        let Storage { base, len, whole, .. } = self;
        match self.take_owner() {
            Owner::Counted(Counted::Block(reference)) => {
                // SAFETY: `of_frag` got these bytes and their reference from a fragment; nobody else has them, and they are given
                // up here.
                Origin::Frag(unsafe { Frag::new(base, whole, reference) })
            }
            Owner::Counted(Counted::Page(part)) => {
                // SAFETY: as above (`of_page`).
                Origin::Page(unsafe { Page::new(base, whole, part) })
            }
            Owner::Heap => {
                // SAFETY: the owner is taken, so that nobody makes another box of them.
                Origin::Heap(unsafe { boxed(base, whole) })
            }
            Owner::Nobody => Origin::Other(self),
            Owner::Shared(keeper) => {
                let keeper = match Arc::try_unwrap(keeper) {
                    Ok(Keeper::Storage(storage)) => return storage.into_origin(),
                    #[cfg(feature = "bytes")]
                    Ok(bytes @ Keeper::Bytes(_)) => Arc::new(bytes),
                    Err(keeper) => keeper,
                };
                Origin::Other(Storage { base, owner: ManuallyDrop::new(Owner::Shared(keeper)), len, whole })
            }
        }
    }

    /// The `Bytes` that it was made of, if it was made of one.
    #[cfg(feature = "bytes")]
    pub(super) fn as_shared_bytes(&self) -> Option<&bytes::Bytes> {
        match &*self.owner {
            Owner::Shared(keeper) => match &**keeper {
                Keeper::Bytes(bytes) => Some(bytes),
                Keeper::Storage(_) => None,
            },
            _ => None,
        }
    }

    #[inline(never)]
    fn end(&mut self) {
        let Storage { base, whole, .. } = *self;
        match self.take_owner() {
            // SAFETY: the owner is taken, so that nobody makes another box of them.
            Owner::Heap => drop(unsafe { boxed(base, whole) }),
            owner => drop(owner),
        }
    }

    /// Without its owner a storage has no bytes. Those of `Heap` are lost if the caller does not free them.
    #[inline]
    fn take_owner(&mut self) -> Owner {
        (self.base, self.len, self.whole) = (NonNull::dangling(), 0, 0);
        mem::replace(&mut *self.owner, Owner::Nobody)
    }
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        if !matches!(*self.owner, Owner::Nobody) {
            self.end();
        }
    }
}

/// Whether no other storage is left, and these bytes may be written. `get_mut` acquires what the others read.
#[cold]
fn is_sole(keeper: &mut Arc<Keeper>) -> bool {
    matches!(Arc::get_mut(keeper), Some(Keeper::Storage(_)))
}

/// # Safety
///
/// The bytes came from `Storage::of_heap`, this is called once for them, and nobody uses them otherwise afterwards.
unsafe fn boxed(base: NonNull<u8>, len: usize) -> Box<[u8]> {
    let bytes = NonNull::slice_from_raw_parts(base, len);
    // SAFETY: `of_heap` got both from a box of just this length, and the caller makes one box of them again.
    unsafe { Box::from_raw(bytes.as_ptr()) }
}
