//! Ended blocks that a source keeps for the next refill.
#![allow(clippy::unwrap_used)]

mod support;

use pagefrag::{Align, Frag, LARGE_BLOCK_BYTES, PollCache, SMALL_BLOCK_BYTES};
use support::Watched;

/// As a poll loop with more in hand than a block holds: none is ever empty when it ends.
fn overlapping(cache: &mut PollCache, rounds: usize) {
    let mut held: Option<Frag> = None;
    for _ in 0..rounds {
        let mut frag = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
        frag.fill(0xa5);
        held = Some(frag);
    }
    drop(held);
}

#[test]
fn a_refill_takes_a_block_that_ended_before() {
    let memory = Watched::new();
    let source = memory.source().with_spare_blocks(2).share();
    let mut cache = PollCache::with_source(source.clone());
    overlapping(&mut cache, 100);
    assert_eq!((memory.calls(), memory.blocks()), (2, 2), "two blocks in turn");
    assert_eq!(cache.stats().large_refills, 100);
    assert_eq!(source.alive_bytes() + source.spare_bytes(), 2 * LARGE_BLOCK_BYTES);

    drop(cache);
    assert_eq!((source.alive_bytes(), source.spare_bytes()), (0, 2 * LARGE_BLOCK_BYTES));
    drop(source);
    assert_eq!(memory.blocks(), 0, "the source frees what it kept");
}

#[test]
fn without_room_blocks_are_freed() {
    for (kept, calls) in [(0, 100), (1, 2)] {
        let memory = Watched::new();
        let source = memory.source().with_spare_blocks(kept).share();
        let mut cache = PollCache::with_source(source.clone());
        overlapping(&mut cache, 100);
        assert_eq!(memory.calls(), calls, "{kept} kept");
        let many: Vec<Frag> = (0..5).map(|_| cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap()).collect();
        drop((many, cache));
        assert_eq!((memory.blocks(), source.spare_bytes()), (kept, kept * LARGE_BLOCK_BYTES));
    }
}

#[test]
fn what_was_used_before_is_zeroed_where_zeros_are_asked_for() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().with_spare_blocks(1).share());
    overlapping(&mut cache, 10);
    let zeros = cache.alloc_zeroed(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn small_blocks_are_not_kept() {
    let memory = Watched::new();
    let source = memory.source().with_spare_blocks(4).share();
    let mut cache = PollCache::with_source(source.clone());
    memory.refuse_larger_than(SMALL_BLOCK_BYTES);
    let frags: Vec<Frag> = (0..10).map(|_| cache.alloc(4000, Align::BYTE).unwrap()).collect();
    drop((frags, cache));
    assert_eq!((memory.blocks(), source.spare_bytes()), (0, 0));
}

#[test]
fn spares_do_not_count_towards_the_limit() {
    let memory = Watched::new();
    let source = memory.source().with_spare_blocks(1).with_limit_bytes(2 * LARGE_BLOCK_BYTES).share();
    let mut cache = PollCache::with_source(source);
    overlapping(&mut cache, 10);
    let _both = (
        cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap(),
        cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap(),
    );
    cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap_err();
}

#[test]
fn blocks_that_end_on_several_threads_come_back_once() {
    let memory = Watched::new();
    let source = memory.source().with_spare_blocks(3).share();
    std::thread::scope(|scope| {
        for mark in 1..=3u8 {
            let source = source.clone();
            scope.spawn(move || {
                let mut cache = PollCache::with_source(source);
                for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                    let mut one = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
                    one[0] = mark;
                    let mut other = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
                    other[0] = mark;
                    assert_eq!((one[0], other[0]), (mark, mark), "nobody else has it");
                }
            });
        }
    });
    assert_eq!((source.alive_bytes(), memory.blocks()), (0, source.spare_bytes() / LARGE_BLOCK_BYTES));
    drop(source);
    assert_eq!(memory.blocks(), 0);
}
