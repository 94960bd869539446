//! Memory that is refused, at every point where it is asked for.
#![allow(unsafe_code)]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use pagefrag::{
    Align, AllocError, LARGE_BLOCK_BYTES, PagePool, PollCache, PoolConfig, SMALL_BLOCK_BYTES, SharedCache,
    SpinLock,
};
use support::Watched;

/// The heap, which refuses the lines of 64 bytes that the counts of blocks are in, where a test has said so.
struct Refusing;

thread_local! {
    static REFUSES_NODES: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: it is `System`, or no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() == 64 && REFUSES_NODES.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static HEAP: Refusing = Refusing;

#[test]
fn a_count_without_memory_is_a_failure_and_nothing_is_lost() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    REFUSES_NODES.set(true);
    let refused = cache.alloc(64, Align::BYTE);
    REFUSES_NODES.set(false);
    assert_eq!(refused.unwrap_err(), AllocError::OutOfMemory { bytes: 64 });
    assert_eq!((memory.calls(), cache.stats().pinned_bytes), (0, 0), "the data is not asked for before");
    cache.alloc(64, Align::BYTE).unwrap();
}

#[test]
fn each_call_refused_in_turn_is_survived() {
    // Undisturbed first, to know how many calls there are; then one of them refused.
    let calls = churn(&Watched::new()).0;
    assert!(calls > 10);
    for call in (0..calls).step_by(if cfg!(miri) { 9 } else { 1 }) {
        let memory = Watched::new();
        memory.refuse_call(call);
        let (_, failures) = churn(&memory);
        // A large block that is refused is replaced by a small one, where that is large enough.
        assert!(failures <= 1, "call {call}: {failures} failures");
        assert_eq!(memory.blocks(), 0, "call {call}");
    }
}

/// Allocations of several sizes, some of them held. Calls of the memory, and failed allocations.
fn churn(memory: &Watched) -> (u64, u64) {
    let source = memory.source().share();
    let mut cache = PollCache::with_source(source.clone());
    let shared = SharedCache::<SpinLock>::with_source(source.clone());
    let mut held = Vec::new();
    for round in 0..60u8 {
        let len = [64, 2048, 4096, 9000, 32768][usize::from(round) % 5];
        for frag in
            [cache.alloc(len, Align::CACHE_LINE), shared.alloc_zeroed(len, Align::PAGE)].into_iter().flatten()
        {
            let mut frag = frag;
            assert_eq!(frag.len(), len);
            frag.fill(round);
            held.push((round, frag));
        }
        if held.len() > 20 {
            let (round, frag) = held.remove(usize::from(round) % 7);
            assert_eq!(*frag, vec![round; frag.len()]);
            cache.give_back(frag);
        }
    }
    assert!(held.iter().all(|(round, frag)| **frag == vec![*round; frag.len()]));
    assert_eq!(source.alive_bytes(), memory.alive_bytes());
    let failures = cache.stats().failures + shared.stats().failures;
    drop(held);
    drop((cache, shared));
    assert_eq!(source.alive_bytes(), 0);
    (memory.calls(), failures)
}

#[test]
fn no_memory_at_all() {
    let memory = Watched::new();
    memory.refuse_larger_than(0);
    let mut cache = PollCache::with_source(memory.source().share());
    for bytes in [0, 1, SMALL_BLOCK_BYTES, SMALL_BLOCK_BYTES + 1, LARGE_BLOCK_BYTES] {
        assert_eq!(cache.alloc(bytes, Align::BYTE).unwrap_err(), AllocError::OutOfMemory { bytes });
    }
    assert_eq!((cache.stats().failures, cache.stats().pinned_bytes, memory.calls()), (5, 0, 8));
}

#[test]
fn what_no_block_holds_is_refused_without_asking_for_memory() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    for bytes in [LARGE_BLOCK_BYTES + 1, usize::MAX] {
        assert_eq!(cache.alloc(bytes, Align::PAGE).unwrap_err(), AllocError::TooLarge { bytes });
    }
    assert_eq!((cache.stats().too_large, cache.stats().failures, memory.calls()), (2, 0, 0));
    assert_eq!(cache.alloc(LARGE_BLOCK_BYTES, Align::PAGE).unwrap().len(), LARGE_BLOCK_BYTES);
}

#[test]
fn a_failed_refill_leaves_the_rest_of_the_block() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let held = cache.alloc(LARGE_BLOCK_BYTES - 1000, Align::BYTE).unwrap();
    memory.refuse_larger_than(0);
    assert!(cache.alloc(1001, Align::BYTE).is_err());
    let rest = cache.alloc(1000, Align::BYTE).unwrap();
    assert_eq!(memory.block_of(&rest), memory.block_of(&held));

    // And the block is reused as soon as it is whole, still without memory.
    assert!(cache.alloc(1, Align::BYTE).is_err());
    drop((held, rest));
    cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    assert_eq!((cache.stats().reuses, memory.blocks()), (1, 1));
}

#[test]
fn a_limit_below_a_large_block_leaves_small_ones() {
    let memory = Watched::new();
    let limit_bytes = 2 * SMALL_BLOCK_BYTES + 100;
    let mut cache = PollCache::with_source(memory.source().with_limit_bytes(limit_bytes).share());
    let held = [(); 2].map(|()| cache.alloc(SMALL_BLOCK_BYTES, Align::PAGE).unwrap());
    let refused = cache.alloc(1, Align::BYTE).unwrap_err();
    assert_eq!(refused, AllocError::Limit { bytes: 1, limit_bytes });
    assert!(refused.to_string().contains("raise the limit"), "{refused}");
    assert_eq!((cache.stats().pinned_bytes, memory.calls()), (2 * SMALL_BLOCK_BYTES, 2));
    drop(held);
    cache.alloc(1, Align::BYTE).unwrap();
}

#[test]
fn each_page_refused_in_turn_is_survived() {
    let calls = churn_pool(&Watched::new(), None).0;
    assert!(calls > 10);
    for call in (0..calls).step_by(if cfg!(miri) { 9 } else { 1 }) {
        let memory = Watched::new();
        memory.refuse_call(call);
        let (_, failures) = churn_pool(&memory, None);
        // The page that fragments are cut from is taken instead, where nobody has one of it.
        assert!(failures <= 1, "call {call}: {failures} failures");
        assert_eq!(memory.blocks(), 0, "call {call}");
    }
}

#[test]
fn nodes_refused_in_turn_are_survived() {
    for round in 0..40 {
        let memory = Watched::new();
        let (_, failures) = churn_pool(&memory, Some(round));
        assert!(failures <= 2, "round {round}: {failures} failures");
        assert_eq!(memory.blocks(), 0, "round {round}");
    }
}

/// Pages and fragments, some of them held; in one round nodes are refused. Calls of the memory, and failed allocations.
fn churn_pool(memory: &Watched, without_nodes: Option<u8>) -> (u64, u64) {
    let source = memory.source().share();
    let mut pool = PagePool::new(PoolConfig::default().with_source(source.clone()).with_ring_pages(2));
    let mut held = Vec::new();
    for round in 0..40u8 {
        REFUSES_NODES.set(without_nodes == Some(round));
        let len = [64, 2048, 700, 4000][usize::from(round) % 4];
        let pages = [pool.alloc(), pool.alloc_frag(len, Align::CACHE_LINE)];
        REFUSES_NODES.set(false);
        for mut page in pages.into_iter().flatten() {
            page.fill(round);
            held.push((round, page));
        }
        if held.len() > 12 {
            for ending in 0..3 {
                let (round, page) = held.remove(usize::from(round) % 7);
                assert_eq!(*page, vec![round; page.len()]);
                if ending == 0 { drop(page) } else { pool.recycle(page) }
            }
        }
        let stats = pool.stats();
        let found = stats.released + (stats.in_cache + stats.in_ring + stats.in_flight) as u64;
        assert_eq!((stats.slow, source.alive_bytes()), (found, memory.alive_bytes()));
    }
    assert!(held.iter().all(|(round, page)| **page == vec![*round; page.len()]));
    let failures = pool.stats().failures;
    let closing = pool.close();
    drop(held);
    assert_eq!((closing.in_flight(), source.alive_bytes()), (0, 0));
    (memory.calls(), failures)
}

#[test]
fn a_pool_without_memory() {
    let memory = Watched::new();
    memory.refuse_larger_than(0);
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    assert_eq!(pool.alloc().unwrap_err(), AllocError::OutOfMemory { bytes: 4096 });
    for bytes in [0, 1, 2048, 2049, 4096] {
        assert_eq!(pool.alloc_frag(bytes, Align::BYTE).unwrap_err(), AllocError::OutOfMemory { bytes });
    }
    assert_eq!((pool.stats().failures, pool.stats().slow, memory.calls()), (6, 0, 6));
    assert_eq!(pool.close().try_finish().unwrap().released, 0);
}

#[test]
fn a_page_larger_than_any_memory_is_refused() {
    let memory = Watched::new();
    memory.refuse_larger_than(1 << 30);
    let source = memory.source().share();
    let mut pool =
        PagePool::new(PoolConfig::default().with_page_bytes(usize::MAX).with_source(source.clone()));
    assert_eq!(pool.alloc().unwrap_err(), AllocError::OutOfMemory { bytes: 1 << 62 });
    assert_eq!(pool.alloc_frag(100, Align::BYTE).unwrap_err(), AllocError::OutOfMemory { bytes: 100 });
    assert_eq!(source.alive_bytes(), 0);
}

#[test]
fn the_last_page_is_the_one_in_hand() {
    let memory = Watched::new();
    let source = memory.source().with_limit_bytes(4096).share();
    let mut pool = PagePool::new(PoolConfig::default().with_source(source));
    let frag = pool.alloc_frag(100, Align::BYTE).unwrap();
    assert_eq!(pool.alloc().unwrap_err(), AllocError::Limit { bytes: 4096, limit_bytes: 4096 });
    pool.recycle(frag);
    let page = pool.alloc().unwrap();
    assert_eq!((page.len(), pool.in_flight(), memory.blocks()), (4096, 1, 1));
    assert!(pool.alloc_frag(100, Align::BYTE).is_err());
}
