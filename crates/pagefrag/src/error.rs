//! Why there is no fragment. By hand, as `core` alone has no derive for it.

use core::fmt;

use crate::LARGE_BLOCK_BYTES;

/// A fragment could not be had. Nothing was lost: the cache is as it was, and may be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// No block is as large as that.
    TooLarge {
        /// What was asked for.
        bytes: usize,
    },
    /// Another block would exceed the limit of the source.
    Limit {
        /// What was asked for.
        bytes: usize,
        /// How much the blocks of this source may have in all.
        limit_bytes: usize,
    },
    /// The memory refused a block.
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::TooLarge { bytes } => write!(
                f,
                "allocate a fragment of {bytes} bytes: a block of a cache has {LARGE_BLOCK_BYTES}, a page of a pool its \
                 page size; take larger buffers from the ordinary allocator"
            ),
            AllocError::Limit { bytes, limit_bytes } => write!(
                f,
                "allocate a fragment of {bytes} bytes: another block would exceed the limit of {limit_bytes} bytes; \
                 free fragments (each keeps its whole block alive), or raise the limit"
            ),
            AllocError::OutOfMemory { bytes } => write!(
                f,
                "allocate a fragment of {bytes} bytes: no memory for a block; drop the packet and try again with the \
                 next"
            ),
        }
    }
}

impl core::error::Error for AllocError {}
