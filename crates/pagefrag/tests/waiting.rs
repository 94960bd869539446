//! Blocks that wait for their holders.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use pagefrag::{Align, Frag, LARGE_BLOCK_BYTES, PollCache, SharedCache, SpinLock};
use support::Watched;

const SIZE: usize = LARGE_BLOCK_BYTES / 16;

fn burst(cache: &mut PollCache) -> Vec<Frag> {
    (0..64).map(|_| cache.alloc(SIZE, Align::BYTE).unwrap()).collect()
}

#[test]
fn bursts_over_several_blocks_take_the_same_ones_again() {
    for ends_by in ["giving back", "dropping"] {
        let memory = Watched::new();
        let mut cache = PollCache::with_source(memory.source().share()).with_waiting_blocks(16);
        for _ in 0..100 {
            for frag in burst(&mut cache) {
                if ends_by == "dropping" { drop(frag) } else { cache.give_back(frag) }
            }
        }
        let stats = cache.stats();
        assert_eq!((memory.calls(), stats.large_refills, stats.left_to_holders), (4, 4, 0), "{ends_by}");
        assert_eq!(stats.reuses + stats.reuses_after_waiting, 396, "{ends_by}: {stats:?}");
        assert_eq!((stats.waiting_bytes, stats.pinned_bytes), (3 * LARGE_BLOCK_BYTES, 4 * LARGE_BLOCK_BYTES));
        drop(cache);
        assert_eq!(memory.blocks(), 0, "{ends_by}");
    }
}

#[test]
fn a_block_with_a_holder_is_not_taken_again_and_in_the_end_is_left_to_it() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share()).with_waiting_blocks(2);
    let mut held = Vec::new();
    for number in 0..20 {
        let mut frag = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
        frag.fill(number);
        held.push(frag);
    }
    let stats = cache.stats();
    assert_eq!((stats.large_refills, stats.reuses_after_waiting), (20, 0));
    assert_eq!((stats.left_to_holders, stats.waiting_bytes), (17, 2 * LARGE_BLOCK_BYTES));
    for (number, frag) in held.iter().enumerate() {
        assert!(frag.iter().all(|&byte| byte == number as u8), "block {number}");
    }
    // Those that wait end last, so that they are there for the next ones.
    held.into_iter().for_each(|frag| cache.give_back(frag));
    assert_eq!(memory.blocks(), 3);
    let again: Vec<Frag> = (0..3).map(|_| cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap()).collect();
    assert_eq!((memory.calls(), cache.stats().reuses_after_waiting), (20, 2));
    drop((cache, again));
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn what_has_waited_is_not_taken_for_zeros() {
    let mut cache = PollCache::new().with_waiting_blocks(1);
    let mut dirty = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    dirty.fill(7);
    let other = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    drop(dirty);
    let zeroed = cache.alloc_zeroed(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    assert_eq!(cache.stats().reuses_after_waiting, 1);
    assert!(zeroed.iter().all(|&byte| byte == 0));
    drop(other);
}

#[test]
fn at_the_limit_every_block_that_waits_is_looked_at() {
    let memory = Watched::new();
    let source = memory.source().with_limit_bytes(8 * LARGE_BLOCK_BYTES).share();
    let mut cache = PollCache::with_source(Arc::clone(&source)).with_waiting_blocks(usize::MAX);
    let mut held: Vec<Option<Frag>> =
        (0..8).map(|_| Some(cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap())).collect();
    assert!(cache.alloc(1, Align::BYTE).is_err());
    drop(held[6].take());
    assert!(cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).is_ok(), "the seventh of those that wait");
    assert_eq!((memory.calls(), cache.stats().reuses_after_waiting), (8, 1));
}

#[test]
fn a_shared_cache_lets_blocks_wait_too() {
    let memory = Watched::new();
    let cache = SharedCache::<SpinLock>::with_source(memory.source().share()).with_waiting_blocks(4);
    for _ in 0..10 {
        let frags: Vec<Frag> = (0..64).map(|_| cache.alloc(SIZE, Align::BYTE).unwrap()).collect();
        drop(frags);
    }
    assert_eq!(memory.calls(), 4);
    drop(cache);
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn fewer_may_wait_from_now_on() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share()).with_waiting_blocks(16);
    drop(burst(&mut cache));
    assert_eq!((cache.stats().waiting_bytes, memory.blocks()), (3 * LARGE_BLOCK_BYTES, 4));
    let cache = cache.with_waiting_blocks(1);
    assert_eq!((cache.stats().waiting_bytes, memory.blocks()), (LARGE_BLOCK_BYTES, 2));
}
