//! Many fragments at once, and buffers of other allocators.
#![allow(clippy::unwrap_used, unsafe_code)]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    thread,
};

use pagefrag::{
    Align, AllocError, Frag, LARGE_BLOCK_BYTES, PollCache, SharedCache, SpinLock, drop_all, foreign::Buffer,
};
use support::Watched;

#[test]
fn what_is_dropped_together_is_counted_as_one_by_one() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut caches = [PollCache::with_source(Arc::clone(&source)), PollCache::with_source(source)];
    let size = LARGE_BLOCK_BYTES / 4;
    // Of both caches by turns, over several blocks of each, and one that stays.
    let mut frags: Vec<Frag> =
        (0..30).map(|number| caches[number % 7 % 2].alloc(size, Align::BYTE).unwrap()).collect();
    let mut stays = frags.swap_remove(3);
    stays.fill(7);
    let held = memory.blocks();
    assert!(held > 6, "{held} blocks");
    thread::spawn(move || drop_all(frags)).join().unwrap();
    assert_eq!(memory.blocks(), 3, "one in hand of each cache, and that of the fragment that stays");
    assert!(stays.iter().all(|&byte| byte == 7));
    drop_all([stays]);
    assert_eq!(memory.blocks(), 2);
    drop_all([]);
    drop(caches);
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn what_is_given_back_together_is_counted_as_one_by_one() {
    let memory = Watched::new();
    let source = memory.source().share();
    let cache = || PollCache::with_source(Arc::clone(&source)).with_waiting_blocks(2);
    let mut caches = [cache(), cache()];
    let size = LARGE_BLOCK_BYTES / 4;
    for round in 0..20 {
        // Of both caches by turns: blocks in hand, that wait, that were left to their holders, and those of another cache.
        let frags: Vec<Frag> =
            (0..30).map(|number| caches[number % 7 % 2].alloc(size, Align::BYTE).unwrap()).collect();
        caches[round % 2].give_back_all(frags);
        for (number, cache) in caches.iter().enumerate() {
            let stats = cache.stats();
            assert_eq!(stats.in_hand_bytes + stats.waiting_bytes, 3 * LARGE_BLOCK_BYTES, "cache {number}");
        }
        assert_eq!(memory.blocks(), 6, "round {round}: those in hand and those that wait");
    }
    caches[0].give_back_all([]);
    drop(caches);
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn a_block_whose_fragments_were_dropped_together_is_reused() {
    let mut cache = PollCache::new();
    for _ in 0..100 {
        let frags: Vec<Frag> = (0..16).map(|_| cache.alloc(2048, Align::BYTE).unwrap()).collect();
        drop_all(frags);
    }
    let stats = cache.stats();
    assert_eq!((stats.large_refills, stats.reuses), (1, 99));
}

#[test]
fn many_are_taken_in_one_go_and_do_not_overlap() {
    let cache = SharedCache::<SpinLock>::new();
    let mut frags = vec![cache.alloc(100, Align::BYTE).unwrap()];
    assert_eq!(cache.alloc_many(40, 2048, Align::CACHE_LINE, &mut frags), Ok(40));
    assert_eq!(frags.len(), 41);
    for (number, frag) in frags.iter_mut().enumerate() {
        frag.fill(number as u8);
    }
    for (number, frag) in frags.iter().enumerate() {
        assert!(frag.iter().all(|&byte| byte == number as u8), "fragment {number}");
    }
    assert!(frags[1..].iter().all(|frag| frag.len() == 2048 && frag.as_ptr().addr().is_multiple_of(64)));
    assert_eq!(cache.alloc_many(0, 2048, Align::BYTE, &mut frags), Ok(0));
}

#[test]
fn where_memory_ends_on_the_way_there_are_fewer_and_then_none() {
    let source = Watched::new().source().with_limit_bytes(LARGE_BLOCK_BYTES).share();
    let cache = SharedCache::<SpinLock>::with_source(source);
    let mut frags = Vec::new();
    assert_eq!(cache.alloc_many(5, LARGE_BLOCK_BYTES / 4, Align::BYTE, &mut frags), Ok(4));
    let refused = cache.alloc_many(5, LARGE_BLOCK_BYTES / 4, Align::BYTE, &mut frags);
    assert!(matches!(refused, Err(AllocError::Limit { .. })), "{refused:?}");
    assert_eq!(frags.len(), 4);
    drop_all(frags.drain(..));
    assert_eq!(cache.alloc_many(1, 1, Align::BYTE, &mut frags), Ok(1));
}

thread_local! {
    /// Bytes that this thread has from `Counting`, and whether it refuses.
    static ALIVE: Cell<isize> = const { Cell::new(0) };
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: it is `System`, or no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if REFUSES.get() {
            return std::ptr::null_mut();
        }
        ALIVE.set(ALIVE.get() + layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        ALIVE.set(ALIVE.get() - layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(data, layout) }
    }
}

#[test]
fn a_foreign_buffer_is_freed_once_with_its_own_layout() {
    let mut buffers: Vec<_> = (1..50).map(|bytes| Buffer::new(&Counting, bytes).unwrap()).collect();
    for buffer in &mut buffers {
        for byte in buffer.as_uninit_mut() {
            byte.write(1);
        }
    }
    assert_eq!(ALIVE.get(), (1..50).sum::<isize>());
    drop(buffers);
    assert_eq!(ALIVE.get(), 0);
}

#[test]
fn a_foreign_allocator_that_has_nothing_gives_no_buffer() {
    REFUSES.set(true);
    assert!(Buffer::new(&Counting, 64).is_none());
    REFUSES.set(false);
    for bytes in [0, usize::MAX] {
        assert!(Buffer::new(&Counting, bytes).is_none(), "{bytes}");
    }
    assert_eq!(ALIVE.get(), 0);
}

#[test]
fn a_foreign_buffer_is_as_large_as_a_fragment() {
    assert_eq!(size_of::<Buffer<System>>(), size_of::<Frag>());
}
