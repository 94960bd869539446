//! Packet buffers cut from page blocks, as a network driver wants them.
//!
//! A driver needs a small buffer for every packet it receives, millions a second, and gives most of them away: to other
//! threads, for a time that it does not know. A general allocator pays for every one. A *page-fragment cache* takes
//! a block of 32 KiB and cuts buffers from it, from the end to the start:
//!
//! ```text
//!            0                                                             32768
//!   block    |          free           | fragment | fragment |/| fragment |/|
//!                                      ^                      ^             ^
//!                                      offset: the next one   lost to       the first one
//!                                      ends here              alignment     ended here
//!
//!   node     | count 32769 | data | bytes | source |      apart from the data, one cache line
//!
//!   count    =  bias (references in hand of the cache: 32766)  +  one for each fragment that is alive (3)
//! ```
//!
//! - **Taking a fragment** lowers the offset and the bias, two plain fields of the cache. The count holds 32769
//!   references from the start (one for each byte, and one that never leaves), so nothing is counted then.
//! - **Dropping a fragment** subtracts one from the count, atomically, on any thread. The owner of a [`PollCache`] can
//!   [give it back](PollCache::give_back) instead, which raises the bias, without an atomic operation.
//! - **At the end of a block**, the count tells whether fragments are left. If it equals the bias, there are none, and the
//!   block is begun again in place. Otherwise the bias is subtracted in one operation, the block is left to its
//!   holders, and the last of them frees it; or the block [waits](PollCache::with_waiting_blocks) for its holders and is
//!   begun again later.
//! - **A refill** asks for [`LARGE_BLOCK_BYTES`], then for [`SMALL_BLOCK_BYTES`], then fails; the cache keeps what it has.
//!   A small block is exchanged for a large one as soon as there is one. What is larger than the block that can be had is
//!   refused, never cut short.
//!
//! # Which cache
//!
//! | | [`PollCache`] | [`SharedCache`] |
//! |---|---|---|
//! | used by | the one thread that owns it | every thread |
//! | guarded by | nothing | its type parameter: [`SpinLock`], `Mutex` |
//! | atomic operations to take a fragment | 0 | those of the guard |
//! | to end it: given back, dropped | 0, 1 | –, 1 |
//! | at the end of a block that is reused | a load | a load |
//! | at the end of a block that others hold | 1, and two allocations | the same, inside the guard |
//! | to take many at once | 0 | [those of the guard, once](SharedCache::alloc_many) |
//!
//! Many fragments that end together, as those of one poll do, are [dropped together](drop_all): one atomic operation for
//! each block instead of each fragment.
//!
//! Neither is for buffers that are held long: **one byte pins its whole block**, which [`Frag::block_bytes`] and
//! [`Source::alive_bytes`] tell and [`Source::with_limit_bytes`] bounds. What is stored should be copied out, and what is
//! larger than a page comes better from the ordinary allocator.
//!
//! # What it costs
//!
//! Taken, written at both ends, and ended, in bursts of 64 on one thread, ns per buffer (`perpacket alloc`, AMD EPYC; the loop itself
//! is 1.8 of it; blocks wait but in the second row):
//!
//! | | 256 bytes | 1024 | 2048 |
//! |---|---|---|---|
//! | [`PollCache`], given back | 2.9 | 3.8 | 5.2 |
//! | the same without [blocks that wait](PollCache::with_waiting_blocks) | 3.0 | 29 | 79 |
//! | [`PollCache`], dropped; [together](drop_all) | 3.8; 3.2 | 4.7; 3.8 | 5.8; 4.5 |
//! | [`SharedCache`], spin lock; [a burst at once](SharedCache::alloc_many) | 5.2; 3.5 | 8.3; 4.6 | 8.6; 6.3 |
//! | [`PagePool`], recycled; through its ring | 10; 13 | 9.3; 13 | 8.8; 12 |
//! | system allocator (glibc) | 30 | 34 | 48 |
//!
//! # What it is not
//!
//! No general allocator: a fragment's bytes cannot be taken again before all fragments of its block have ended. No
//! container: the length only shrinks, and headroom, tail room and sharing are up to the user. It does not touch the kernel.
//!
//! # Example
//!
//! ```
//! use pagefrag::{Align, PollCache, Source};
//!
//! // At most 1 MiB of blocks, whoever holds them.
//! let source = Source::default().with_limit_bytes(1 << 20).share();
//! let mut cache = PollCache::with_source(source);
//!
//! let received = [0xff; 272];
//! let mut buffer = cache.alloc(2048, Align::CACHE_LINE)?;
//! buffer[..272].copy_from_slice(&received);
//! buffer.truncate(272);
//!
//! // Handed on to another thread, and dropped there,
//! let sum = std::thread::spawn(move || buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>());
//! assert_eq!(sum.join().unwrap(), 272 * 255);
//!
//! // or done with in the same loop.
//! let dropped_early = cache.alloc(2048, Align::CACHE_LINE)?;
//! cache.give_back(dropped_early);
//! assert_eq!(cache.stats().pinned_bytes, 32768);
//! # Ok::<(), pagefrag::AllocError>(())
//! ```
//!
//! # How it is checked
//!
//! Random operations against a model, allocation failure at every point, and threads, in `tests/`; every interleaving
//! of the counts under loom; all but loom's tests under Miri (two minutes) and AddressSanitizer too:
//!
//! ```text
//! ./ci.sh loom
//! MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p pagefrag
//! RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test -p pagefrag --tests --target x86_64-unknown-linux-gnu
//! ```
//!
//! # Features
//!
//! `std`: `Mutex` as a guard; without it the crate needs only `core` and `alloc`. `bytes`: a [`Frag`] becomes
//! `bytes::Bytes` without copying. Both are on by default.
//!
//! # Map
//!
//! `cutter` is the algorithm, over `block` (memory and its count) and `frag` (what is handed out); `poll` and `shared`
//! are the two caches around it, `guard` what keeps threads apart, `source` where memory comes from. [`foreign`] has buffers of
//! other allocators, for comparisons.
//!
//! The scheme is that of mm/page_frag_cache.c (Linux 6.18).

#![no_std]
#![allow(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod align;
mod block;
mod cutter;
mod error;
pub mod foreign;
mod frag;
mod guard;
mod poll;
mod pool;
mod shared;
mod source;
mod stats;
mod sync;

#[cfg(all(loom, test))]
mod interleavings;

pub use align::Align;
pub use error::AllocError;
pub use frag::{Frag, drop_all};
#[cfg(feature = "std")]
pub use guard::Mutex;
pub use guard::{Guard, SpinLock};
pub use poll::PollCache;
pub use pool::{Closing, Page, PagePool, PoolConfig, PoolStats};
pub use shared::SharedCache;
pub use source::{Heap, Memory, Source};
pub use stats::Stats;

/// What a refill asks for first, and the largest fragment.
pub const LARGE_BLOCK_BYTES: usize = 32 * 1024;

/// What a refill asks for if there is no large block; also the alignment of both.
pub const SMALL_BLOCK_BYTES: usize = 4 * 1024;
