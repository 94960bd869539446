//! Faults that the kernel's page fragments had, as tests; the commit that mended each is named.

mod support;

use pagefrag::{
    Align, AllocError, Frag, HEADROOM, LARGE_BLOCK_BYTES, PacketBuf, PollCache, SMALL_BLOCK_BYTES,
    buffer_bytes,
};
use support::Watched;

/// 2c2ade81741c: with as many references as bytes, fragments of one byte took the last one that belonged to the cache, and
/// the page was freed under it.
#[test]
fn fragments_of_one_byte_do_not_exhaust_the_references() {
    for len in [1, 0] {
        let memory = Watched::new();
        let mut cache = PollCache::with_source(memory.source().share());
        let frags: Vec<Frag> =
            (0..LARGE_BLOCK_BYTES).map(|_| cache.alloc(len, Align::BYTE).unwrap()).collect();
        assert_eq!((cache.stats().large_refills, memory.blocks()), (1, 1));

        drop(frags);
        assert_eq!(memory.blocks(), 1, "the cache still has the block in hand");
        let mut after = cache.alloc(16, Align::BYTE).unwrap();
        after.fill(7);
        assert_eq!((cache.stats().reuses, memory.blocks()), (1, 1));
        drop(cache);
        assert_eq!(*after, [7; 16]);
        drop(after);
        assert_eq!(memory.blocks(), 0);
    }
}

/// d8c19014bba8: what was taken in a shortage was kept for ever, long after the shortage.
#[test]
fn a_small_block_does_not_outlast_the_shortage() {
    // The limit is no reason to keep it either: it has room for one large block, not for both.
    for limit_bytes in [usize::MAX, LARGE_BLOCK_BYTES] {
        let memory = Watched::new();
        let mut cache = PollCache::with_source(memory.source().with_limit_bytes(limit_bytes).share());
        memory.refuse_larger_than(SMALL_BLOCK_BYTES);
        for _ in 0..100 {
            cache.alloc(1000, Align::BYTE).unwrap();
        }
        assert_eq!(cache.stats().in_hand_bytes, SMALL_BLOCK_BYTES);
        assert_eq!(cache.stats().small_refills, 1, "it is reused meanwhile");

        memory.refuse_larger_than(usize::MAX);
        for _ in 0..5 {
            cache.alloc(1000, Align::BYTE).unwrap();
        }
        assert_eq!(cache.stats().in_hand_bytes, LARGE_BLOCK_BYTES);
        assert_eq!(memory.alive_bytes(), LARGE_BLOCK_BYTES, "the small one is gone");
        assert_eq!(cache.stats().pinned_bytes, LARGE_BLOCK_BYTES);
    }
}

/// dac22531bbd4: a single page in hand, and 4097 bytes were cut from it.
#[test]
fn a_fragment_larger_than_the_block_in_hand_is_refused() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    memory.refuse_larger_than(SMALL_BLOCK_BYTES);
    let kept = cache.alloc(100, Align::BYTE).unwrap();
    for _ in 0..3 {
        let refused = cache.alloc(SMALL_BLOCK_BYTES + 1, Align::BYTE).unwrap_err();
        assert_eq!(refused, AllocError::OutOfMemory { bytes: SMALL_BLOCK_BYTES + 1 });
    }
    let rest = cache.alloc(SMALL_BLOCK_BYTES - 100, Align::BYTE).unwrap();
    assert_eq!(memory.block_of(&rest), memory.block_of(&kept), "what was left of the block is still there");

    // Also where the block is whole again, and the large one comes back.
    drop((kept, rest));
    assert!(cache.alloc(SMALL_BLOCK_BYTES + 1, Align::BYTE).is_err());
    assert_eq!(cache.alloc(SMALL_BLOCK_BYTES, Align::BYTE).unwrap().len(), SMALL_BLOCK_BYTES);
    assert_eq!((cache.stats().small_refills, cache.stats().failures), (1, 4));
    memory.refuse_larger_than(usize::MAX);
    let large = cache.alloc(SMALL_BLOCK_BYTES + 1, Align::BYTE).unwrap();
    assert_eq!((large.len(), memory.block_of(&large).unwrap().1), (SMALL_BLOCK_BYTES + 1, LARGE_BLOCK_BYTES));
    assert_eq!(memory.blocks(), 1);
}

/// 3226b158e67c: tiny buffers that were kept pinned pages of 32 KiB, and were accounted as tiny.
#[test]
fn what_a_tiny_fragment_pins_is_told_and_limited() {
    let memory = Watched::new();
    let limit_bytes = 4 * LARGE_BLOCK_BYTES;
    let source = memory.source().with_limit_bytes(limit_bytes).share();
    let mut cache = PollCache::with_source(source.clone());
    let mut kept = Vec::new();
    let refused = loop {
        match cache.alloc(LARGE_BLOCK_BYTES - 64, Align::CACHE_LINE) {
            Ok(passing) => {
                let tiny = cache.alloc(64, Align::CACHE_LINE).unwrap();
                assert_eq!(tiny.block_bytes(), LARGE_BLOCK_BYTES);
                drop(passing);
                kept.push(tiny);
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(kept.len(), 4, "256 bytes in all, and nothing more can be had");
    assert_eq!(refused, AllocError::Limit { bytes: LARGE_BLOCK_BYTES - 64, limit_bytes });
    assert_eq!((source.alive_bytes(), memory.alive_bytes()), (limit_bytes, limit_bytes));

    drop(cache);
    assert_eq!(source.alive_bytes(), limit_bytes, "the fragments hold them without the cache");
    kept.pop();
    assert_eq!(source.alive_bytes(), limit_bytes - LARGE_BLOCK_BYTES);
    drop(kept);
    assert_eq!((source.alive_bytes(), memory.blocks()), (0, 0));
}

/// The rule that page references follow since the count may be shared: a block is begun again only if nothing is left
/// after the bias was subtracted, and its count is set only then.
#[test]
fn a_block_is_reused_only_if_nobody_holds_it() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let mut held = cache.alloc(2048, Align::CACHE_LINE).unwrap();
    held.fill(0xa5);
    for round in 0..200u8 {
        cache.alloc(2048, Align::CACHE_LINE).unwrap().fill(round);
    }
    assert_eq!(*held, [0xa5; 2048]);
    assert_eq!((cache.stats().left_to_holders, memory.blocks()), (1, 2));
    assert!(cache.stats().reuses > 10, "the second block is reused, as nobody holds it");
    drop(held);
    assert_eq!(memory.blocks(), 1);

    // The count was set back rightly, however the fragments of a pass ended.
    let blocks = cache.stats().large_refills;
    for round in 0..200 {
        let frag = cache.alloc(2048, Align::CACHE_LINE).unwrap();
        if round % 3 == 0 { cache.give_back(frag) } else { drop(frag) }
    }
    assert_eq!((cache.stats().large_refills, memory.blocks()), (blocks, 1));
    drop(cache);
    assert_eq!(memory.blocks(), 0);
}

/// tun asked for lengths of any size, and what was cut after them was no longer aligned.
#[test]
fn odd_lengths_leave_the_next_fragment_aligned() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let aligns = [1, 2, 8, 64, 512, 4096].map(|bytes| Align::new(bytes).unwrap());
    for len in (1..4096).step_by(if cfg!(miri) { 397 } else { 7 }) {
        let frags = aligns.map(|align| (align, cache.alloc(len, align).unwrap()));
        for (align, frag) in &frags {
            assert_eq!((frag.len(), frag.as_ptr().addr() % align.bytes()), (len, 0));
            assert!(memory.block_of(frag).is_some(), "it lies within a block");
        }
        let mut ranges = frags.each_ref().map(|(_, frag)| frag.as_ptr_range());
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "no two overlap");
    }
}

/// 3226b158e67c, of packets: what is accounted for a queue of tiny ones, one left over of each block.
#[test]
fn a_queue_of_tiny_packets_is_not_accounted_too_small() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let mut queue = Vec::new();
    while memory.alive_bytes() < 20 * LARGE_BLOCK_BYTES {
        let passing: Vec<Frag> = (0..80).map(|_| cache.alloc(384, Align::CACHE_LINE).unwrap()).collect();
        let mut tiny = PacketBuf::new(cache.alloc(buffer_bytes(1), Align::CACHE_LINE).unwrap(), HEADROOM);
        tiny.put(1).unwrap().fill(1);
        queue.push(tiny);
        drop(passing);
    }
    drop(cache);
    let accounted: usize = queue.iter().map(PacketBuf::truesize).sum();
    assert!(accounted >= memory.alive_bytes(), "{accounted} bytes for {}", memory.alive_bytes());
    let cut: usize = queue.iter().map(|packet| buffer_bytes(packet.len())).sum();
    assert!(cut * 20 < memory.alive_bytes(), "the bytes that were cut would understate it");
}

/// tun asked for lengths of any size: buffers are rounded to cache lines, so that the next one begins at one.
#[test]
fn buffers_of_odd_lengths_begin_and_end_at_cache_lines() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    for len in (1..2000).step_by(if cfg!(miri) { 333 } else { 3 }) {
        // Without an alignment asked for.
        let frag = cache.alloc(buffer_bytes(len), Align::BYTE).unwrap();
        assert_eq!((frag.as_ptr().addr() % 64, frag.len() % 64), (0, 0), "{len}");
        let mut packet = PacketBuf::new(frag, HEADROOM);
        packet.put(len).unwrap().fill(0xff);
        assert_eq!((packet.data().as_ptr().addr() + 14) % 4, 0, "the IP header is aligned");
    }
}
