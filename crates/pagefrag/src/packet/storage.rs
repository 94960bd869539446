//! Memory that a packet lies in, and who keeps it alive.

use alloc::{boxed::Box, sync::Arc};
use core::{mem, ptr::NonNull, slice};

use crate::{Frag, block::Reference};

/// Initialised bytes that stay where they are, and their owner.
///
/// Who has a `Storage` reads all of it. It is written only through [`bytes_mut`](Storage::bytes_mut), which refuses where
/// somebody else has the same bytes.
pub(super) struct Storage {
    base: NonNull<u8>,
    owner: Owner,
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
        Storage { base: NonNull::dangling(), owner: Owner::Nobody, len: 0 }
    }

    #[inline]
    pub(super) fn of_frag(frag: Frag) -> Storage {
        let (base, len, reference) = frag.into_parts();
        Storage { base, owner: Owner::Block(reference), len }
    }

    pub(super) fn of_heap(bytes: Box<[u8]>) -> Storage {
        let len = bytes.len();
        Storage { base: NonNull::from(Box::leak(bytes)).cast(), owner: Owner::Heap, len }
    }

    /// Never written.
    #[cfg(feature = "bytes")]
    pub(super) fn of_bytes(bytes: bytes::Bytes) -> Storage {
        let (base, len) = (NonNull::from(&*bytes).cast(), bytes.len());
        Storage { base, owner: Owner::Shared(Arc::new(Keeper::Bytes(bytes))), len }
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
        match &mut self.owner {
            Owner::Block(_) | Owner::Heap | Owner::Nobody => true,
            // With the last one of the others gone, this one may write again. `get_mut` acquires what they read.
            Owner::Shared(keeper) => matches!(Arc::get_mut(keeper), Some(Keeper::Storage(_))),
        }
    }

    /// Another storage of the same bytes. Allocates the first time.
    pub(super) fn share(&mut self) -> Storage {
        let (base, len) = (self.base, self.len);
        let owner = match &self.owner {
            Owner::Shared(keeper) => Owner::Shared(Arc::clone(keeper)),
            Owner::Nobody => Owner::Nobody,
            Owner::Block(_) | Owner::Heap => {
                let alone = mem::replace(self, Storage::empty());
                let keeper = Arc::new(Keeper::Storage(alone));
                *self = Storage { base, owner: Owner::Shared(Arc::clone(&keeper)), len };
                Owner::Shared(keeper)
            }
        };
        Storage { base, owner, len }
    }

    /// Which memory it is (two storages of one block have the same), and how much of it is pinned.
    pub(super) fn pinned(&self) -> (usize, usize) {
        match &self.owner {
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

    /// The reference to the block, if these bytes are of one and nobody else has them. Otherwise they end as usual.
    #[inline]
    pub(super) fn into_reference(mut self) -> Option<Reference> {
        match mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Block(reference) => Some(reference),
            Owner::Shared(keeper) => match Arc::into_inner(keeper) {
                Some(Keeper::Storage(storage)) => storage.into_reference(),
                _ => None,
            },
            owner => {
                self.owner = owner;
                None
            }
        }
    }

    pub(super) fn into_origin(mut self) -> Origin {
        match mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Block(reference) => {
                // SAFETY: the storage was built of a fragment (`of_frag`) with this base and reference, of this length, or one
                // that had more; it gives its bytes up here.
                Origin::Frag(unsafe { Frag::new(self.base, self.len, reference) })
            }
            Owner::Heap => {
                // SAFETY: the bytes are a box's, and the owner was replaced, so that nobody makes another one of them.
                Origin::Heap(unsafe { boxed(self.base, self.len) })
            }
            Owner::Shared(keeper) => match Arc::try_unwrap(keeper) {
                Ok(Keeper::Storage(storage)) => storage.into_origin(),
                #[cfg(feature = "bytes")]
                Ok(bytes @ Keeper::Bytes(_)) => {
                    self.owner = Owner::Shared(Arc::new(bytes));
                    Origin::Other(self)
                }
                Err(keeper) => {
                    self.owner = Owner::Shared(keeper);
                    Origin::Other(self)
                }
            },
            Owner::Nobody => Origin::Other(self),
        }
    }

    /// The `Bytes` that it was made of, if it was made of one.
    #[cfg(feature = "bytes")]
    pub(super) fn as_shared_bytes(&self) -> Option<&bytes::Bytes> {
        match &self.owner {
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
        if let Owner::Heap = self.owner {
            // SAFETY: the bytes are a box's, and this storage, which alone had them, ends.
            drop(unsafe { boxed(self.base, self.len) });
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
