//! Memory that a packet lies in, and who keeps it alive.

use alloc::{boxed::Box, sync::Arc};
use core::{mem, mem::ManuallyDrop, ptr::NonNull, slice};

use crate::{Frag, block::Reference};

/// Initialised bytes that stay where they are, and their owner.
///
/// Who has a `Storage` reads all of it. It is written only through [`bytes_mut`](Storage::bytes_mut), which refuses where
/// somebody else has the same bytes.
pub(super) struct Storage {
    base: NonNull<u8>,
    /// Ended by `Storage::drop`, so that to drop a storage without one is a comparison wherever it happens.
    owner: ManuallyDrop<Owner>,
    len: usize,
}

/// Whose the bytes are. Keeps them alive.
enum Owner {
    /// This storage's alone, cut from a block.
    Block(Reference),
    /// This storage's alone, from the global allocator, as a `Box<[u8]>` of `len` bytes.
    Heap,
    /// Those of all storages that have this; never written unless it is the only one.
    Shared(Arc<Keeper>),
    /// Nobody's: there are none, or they were handed on.
    Nobody,
}

/// What `Arc` keeps beside its content.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// What several storages share.
enum Keeper {
    /// Never `Shared` itself.
    Storage(Storage),
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

/// What a storage was made of.
pub(super) enum Origin {
    Frag(Frag),
    Heap(Box<[u8]>),
    /// Not to be had alone: somebody else has it too, or it cannot be written.
    Other(Storage),
}

// SAFETY: the bytes are written only through `&mut Storage` and only if no other storage has them; what keeps them
// alive is Send and Sync (`Reference`, `Box<[u8]>`, `Arc<Keeper>`, `Bytes`).
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
        Storage::new(base, Owner::Block(reference), len)
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
        Storage { base, owner: ManuallyDrop::new(owner), len }
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
            Owner::Block(_) | Owner::Heap | Owner::Nobody => true,
            // With the last one of the others gone, this one may write again. `get_mut` acquires what they read.
            Owner::Shared(keeper) => matches!(Arc::get_mut(keeper), Some(Keeper::Storage(_))),
        }
    }

    /// Another storage of the same bytes. Allocates the first time.
    pub(super) fn share(&mut self) -> Storage {
        let (base, len) = (self.base, self.len);
        let owner = match &*self.owner {
            Owner::Shared(keeper) => Owner::Shared(Arc::clone(keeper)),
            Owner::Nobody => Owner::Nobody,
            Owner::Block(_) | Owner::Heap => {
                let alone = mem::replace(self, Storage::empty());
                let keeper = Arc::new(Keeper::Storage(alone));
                *self = Storage::new(base, Owner::Shared(Arc::clone(&keeper)), len);
                Owner::Shared(keeper)
            }
        };
        Storage::new(base, owner, len)
    }

    /// Which memory it is (two storages of one block have the same), and how much of it is pinned.
    pub(super) fn pinned(&self) -> (usize, usize) {
        match &*self.owner {
            Owner::Block(reference) => {
                (reference.identity(), reference.block_bytes() + Reference::NODE_BYTES)
            }
            Owner::Heap => (self.base.as_ptr().addr(), self.len),
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

    /// The reference to the block, if these bytes are of one and nobody else has them; nothing is left here then. Works in place:
    /// to move the storage would cost more than all the rest.
    #[inline]
    pub(super) fn take_reference(&mut self) -> Option<Reference> {
        if let Owner::Block(_) = *self.owner
            && let Owner::Block(reference) = self.take_owner()
        {
            return Some(reference);
        }
        self.take_shared_reference()
    }

    /// From the last of those that shared it. For any other one the share ends.
    #[cold]
    fn take_shared_reference(&mut self) -> Option<Reference> {
        let Owner::Shared(_) = *self.owner else { return None };
        match self.take_owner() {
            Owner::Shared(keeper) => match Arc::into_inner(keeper)? {
                Keeper::Storage(mut storage) => storage.take_reference(),
                #[cfg(feature = "bytes")]
                Keeper::Bytes(_) => None,
            },
            _ => None,
        }
    }

    /// Nothing is left here then.
    #[inline(never)]
    fn end(&mut self) {
        let (base, len) = (self.base, self.len);
        match self.take_owner() {
            // SAFETY: the owner is taken, so that nobody makes another box of them.
            Owner::Heap => drop(unsafe { boxed(base, len) }),
            owner => drop(owner),
        }
    }

    /// Without its owner a storage has no bytes. Those of `Heap` are lost if the caller does not free them.
    #[inline]
    fn take_owner(&mut self) -> Owner {
        (self.base, self.len) = (NonNull::dangling(), 0);
        mem::replace(&mut *self.owner, Owner::Nobody)
    }

    pub(super) fn into_origin(mut self) -> Origin {
        let (base, len) = (self.base, self.len);
        match self.take_owner() {
            Owner::Block(reference) => {
                // SAFETY: `of_frag` got these bytes and their reference from a fragment; nobody else has them, and they are given
                // up here.
                Origin::Frag(unsafe { Frag::new(base, len, reference) })
            }
            Owner::Heap => {
                // SAFETY: the owner is taken, so that nobody makes another box of them.
                Origin::Heap(unsafe { boxed(base, len) })
            }
            Owner::Nobody => Origin::Other(self),
            Owner::Shared(keeper) => {
                let keeper = match Arc::try_unwrap(keeper) {
                    Ok(Keeper::Storage(storage)) => return storage.into_origin(),
                    #[cfg(feature = "bytes")]
                    Ok(bytes @ Keeper::Bytes(_)) => Arc::new(bytes),
                    Err(keeper) => keeper,
                };
                Origin::Other(Storage::new(base, Owner::Shared(keeper), len))
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
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        if !matches!(*self.owner, Owner::Nobody) {
            self.end();
        }
    }
}

/// # Safety
///
/// The bytes came from `Storage::of_heap`, this is called once for them, and nobody uses them otherwise afterwards.
unsafe fn boxed(base: NonNull<u8>, len: usize) -> Box<[u8]> {
    let bytes = NonNull::slice_from_raw_parts(base, len);
    // SAFETY: `of_heap` got both from a box of just this length, and the caller makes one box of them again.
    unsafe { Box::from_raw(bytes.as_ptr()) }
}
