//! Packet buffers cut from page blocks, and pages that come back, as a network driver wants them.
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
//! # The page pool
//!
//! A driver that gives whole pages to its device, and the packets in them to others, wants the pages back. A [`PagePool`]
//! belongs to one poll loop; its [`Page`]s find their way home from wherever they are dropped:
//!
//! ```text
//!            alloc                     recycle: by the owner, done with it in the same loop
//!   owner  <-------  cache, 128  <---------------------------------------------+
//!     |                 ^ refill: 64 at a time                                 |
//!     |                ring, 1024  <------------------------------+            |
//!     |                                                           |            |
//!     |              source  <--- the ring is full, or the        |            |
//!     |                 |         pool has ended ---------------- + <-- drop: on any thread
//!     |                 +--> when cache and ring are empty        |
//!     +--> page, or fragments of one -------------------------------------> other threads
//! ```
//!
//! - **A whole page** costs its owner no atomic operation and no call: that nobody else has a part of it is seen by a load.
//! - **Fragments** are cut from a page as a cache cuts them from a block, counted in the same way; the last one takes the page
//!   home. What is larger than half a page gets one of its own.
//! - **A makeshift** ([`Memory::is_makeshift`]) is not kept, and a page of another pool goes to that pool.
//! - **Every page is accounted for**: taken from the source = released + in the cache + in the ring + in flight
//!   ([`PoolStats`]). [`PagePool::close`] ends a pool, and tells when the last page is back.
//!
//! | a page | atomic operations | calls | order, one core |
//! |---|---|---|---|
//! | from the cache, recycled by the owner | 0 | 0 | 2 ns |
//! | a fragment of one, recycled by the owner | 0 | 0 | 2 to 3 ns |
//! | from the cache, through the ring | 1, and a part of the refill | 0 | 4 to 11 ns |
//! | a fragment dropped elsewhere | 1, the last of a page 2 | 0 | that of an atomic operation |
//! | from the source and back | 5, and those of the memory | 2 to allocate, 2 to free | 90 ns from a region, more from a heap |
//!
//! (Linux 6.18 on a virtual machine of 3.7 GHz, where an uncontended atomic addition takes 2 ns. When a page is dropped on
//! another CPU, the cache lines that move come on top.)
//!
//! Fragment cache or pool? Where buffers are small, of many sizes, and gone soon, the cache: it needs fewer lines of memory
//! and no ring. Where a buffer is about a page, or is handed to other threads at a high rate, or memory is dear to come by (huge
//! pages, memory that a device knows), the pool: nothing goes back to the source and comes again. From a general heap a
//! page of 4096 aligned bytes costs up to twice its size; a region that is carved into pages does not have that.
//!
//! # A packet
//!
//! A [`PacketBuf`] is one buffer (or several) with a packet in it: room before the data for headers that are pushed later, room
//! behind it, and a trailer in which its few words are, so that the handle is one word and costs nothing to move:
//!
//! ```text
//!   PacketBuf -----------------------------------------------.
//!                                                            v
//!   head        | headroom |     data     |    tail room     | trailer (320 bytes)  |
//!               66         <- push  put ->                     data begins, ends
//!                          pull ->  <- trim                    memory and its owner --> count of the block
//!                                                              attached ------------.
//!                                                                                   v
//!   fragments   where they lie, not copied            [ piece of a page ] [ piece of Bytes ]
//! ```
//!
//! | | costs | |
//! |---|---|---|
//! | [`new`](PacketBuf::new), ended by [`give_back_packet`](PollCache::give_back_packet) or [`recycle_packet`](PagePool::recycle_packet) | 2 ns above the fragment's | writes and clears one cache line in the trailer |
//! | the same, dropped | one atomic operation more | on any thread |
//! | [`push`](PacketBuf::push), [`pull`](PacketBuf::pull), [`put`](PacketBuf::put), [`trim`](PacketBuf::trim), [`reserve`](PacketBuf::reserve) | 1 to 2 ns each | refused where there is no room, or if it would write what others have |
//! | [`attach`](PacketBuf::attach) | 10 to 15 ns | the second piece and those after it may allocate |
//! | [`share`](PacketBuf::share) | 50 ns | two allocations; who is left alone may write again |
//! | to `Bytes` | 30 ns | an allocation; nothing is copied if it is linear |
//! | [`copy_break`] of 64, 257 bytes | 18, 50 ns | with both buffers taken and given back |
//!
//! (`cargo run --release -p pagefrag --example cost`, on one core of a virtual machine, where a fragment taken and given
//! back is 3.6 ns.) Memory that has no room for a trailer, and what comes from `Bytes`, takes an allocation instead.
//!
//! [`truesize`](PacketBuf::truesize) is what one packet may pin alone, whole blocks, and so more than its share where
//! several packets have one; [`Source::alive_bytes`] is what all pin together.
//!
//! ```
//! use pagefrag::{Align, HEADROOM, PacketBuf, PollCache, buffer_bytes};
//!
//! let mut cache = PollCache::new();
//! let frag = cache.alloc(buffer_bytes(1514), Align::CACHE_LINE)?;
//! let mut packet = PacketBuf::new(frag, HEADROOM);
//! packet.put(14 + 50)?.fill(0xff);
//!
//! // Another Ethernet header instead of the one it came with.
//! packet.pull(14)?;
//! packet.push(14)?.copy_from_slice(b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0");
//! assert_eq!((packet.len(), packet.headroom()), (64, 66));
//! cache.give_back_packet(packet);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
//! container: a packet has the room that it was made with. It does not touch the kernel.
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
//! of the counts, the ring and the end of a pool under loom; all but loom's tests under Miri (minutes) and AddressSanitizer
//! too:
//!
//! ```text
//! ./ci.sh loom
//! MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p pagefrag
//! RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test -p pagefrag --tests --target x86_64-unknown-linux-gnu
//! ```
//!
//! # Features
//!
//! `std`: `Mutex` as a guard, and waiting for the end of a pool; without it the crate needs only `core` and `alloc`. `bytes`: a
//! [`Frag`], a [`Page`] and a linear [`PacketBuf`] become `bytes::Bytes` without copying, and `Bytes` a packet that can be read.
//! Both are on by default.
//!
//! # Map
//!
//! `cutter` is the algorithm, over `block` (memory and its count) and `frag` (what is handed out); `poll` and `shared`
//! are the two caches around it, `guard` what keeps threads apart, `source` where memory comes from. `pool` has pages: its
//! `ring`, its owner's `cache`, what all pages share (`home`), and how a page is counted (`node`). `packet` is the packet
//! buffer: `storage` (memory and its owner), `piece` (a part of it), `slot` (where a packet's words lie), `copy_break`.
//! [`foreign`] has buffers of other allocators, for comparisons.
//!
//! The schemes are those of mm/page_frag_cache.c and net/core/page_pool.c (Linux 6.18).

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
mod packet;
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
pub use packet::{
    HEADERS_BYTES, HEADROOM, Origin, PacketBuf, PacketError, Piece, TRAILER_BYTES, buffer_bytes, copy_break,
};
pub use poll::PollCache;
pub use pool::{Closing, Page, PagePool, PoolConfig, PoolStats};
pub use shared::SharedCache;
pub use source::{Heap, Memory, Source};
pub use stats::Stats;

/// What a refill asks for first, and the largest fragment.
pub const LARGE_BLOCK_BYTES: usize = 32 * 1024;

/// What a refill asks for if there is no large block; also the alignment of both.
pub const SMALL_BLOCK_BYTES: usize = 4 * 1024;
