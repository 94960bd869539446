//! Faults that page pools and page fragments had in the kernel, as tests of the pool; the commit that mended each is named
//! where it is known.

mod support;

use pagefrag::{Align, AllocError, Page, PagePool, PoolConfig};
use support::Watched;

fn pool(memory: &Watched) -> PagePool {
    PagePool::new(PoolConfig::default().with_source(memory.source().share()))
}

/// 2c2ade81741c: with as many references as bytes, fragments of one byte took the last one.
#[test]
fn fragments_of_one_byte_do_not_exhaust_the_references() {
    for len in [1, 0] {
        let memory = Watched::new();
        let mut pool = pool(&memory);
        let frags: Vec<Page> = (0..4096).map(|_| pool.alloc_frag(len, Align::BYTE).unwrap()).collect();
        assert_eq!((pool.stats().slow, pool.in_flight(), memory.blocks()), (1, 1, 1));
        drop(frags);
        assert_eq!((pool.in_flight(), pool.stats().in_cache, memory.blocks()), (0, 1, 1));
        let mut after = pool.alloc_frag(16, Align::BYTE).unwrap();
        after.fill(7);
        assert_eq!((pool.stats().in_place, memory.blocks()), (1, 1));
        drop(pool);
        assert_eq!(*after, [7; 16]);
        drop(after);
        assert_eq!(memory.blocks(), 0);
    }
}

/// d8c19014bba8, and the rule of the pool that pages of the emergency reserve are not recycled: what was only taken for want
/// of something better goes back as soon as it can, whichever way it comes.
#[test]
fn a_makeshift_does_not_outlast_the_shortage() {
    let memory = Watched::new();
    let mut pool = pool(&memory);
    memory.give_makeshift(true);
    let [recycled, dropped, sent] = [(); 3].map(|()| pool.alloc().unwrap());
    let frag = pool.alloc_frag(1000, Align::BYTE).unwrap();
    assert_eq!(memory.blocks(), 4);
    pool.recycle(recycled);
    drop(dropped);
    std::thread::spawn(move || drop(sent)).join().unwrap();
    assert_eq!((pool.stats().waive, pool.stats().released, memory.blocks()), (3, 3, 1));
    assert_eq!((pool.stats().in_cache, pool.stats().in_ring), (0, 0));

    // Also one that fragments are cut from: kept while there is nothing else, exchanged when there is.
    drop(frag);
    memory.refuse_larger_than(0);
    for _ in 0..10 {
        drop(pool.alloc_frag(2000, Align::BYTE).unwrap());
    }
    assert_eq!((memory.blocks(), pool.stats().waive), (1, 3));
    memory.refuse_larger_than(usize::MAX);
    memory.give_makeshift(false);
    for _ in 0..10 {
        drop(pool.alloc_frag(2000, Align::BYTE).unwrap());
    }
    assert_eq!((memory.blocks(), pool.stats().waive, pool.in_flight()), (1, 4, 0));
    pool.release_spare();
    assert_eq!(pool.stats().waive, 4, "the one that is left is none");
}

/// As above, where the limit has room for one page and not for both.
#[test]
fn the_limit_is_no_reason_to_keep_a_makeshift() {
    let memory = Watched::new();
    let source = memory.source().with_limit_bytes(4096).share();
    let mut pool = PagePool::new(PoolConfig::default().with_source(source));
    memory.give_makeshift(true);
    drop(pool.alloc_frag(2000, Align::BYTE).unwrap());
    memory.give_makeshift(false);
    for _ in 0..4 {
        drop(pool.alloc_frag(2000, Align::BYTE).unwrap());
    }
    assert_eq!((pool.stats().waive, memory.blocks()), (1, 1));
}

/// A page of another pool must not be kept: it is not in this pool's account, and the other one would miss it for ever.
#[test]
fn a_page_of_another_pool_goes_home() {
    let memory = Watched::new();
    let (mut mine, mut other) = (pool(&memory), pool(&memory));
    let page = other.alloc().unwrap();
    let frags = [(); 2].map(|()| other.alloc_frag(100, Align::BYTE).unwrap());
    mine.recycle(page);
    frags.into_iter().for_each(|frag| mine.recycle(frag));
    assert_eq!((mine.stats().foreign, mine.stats().in_cache, mine.stats().cached), (3, 0, 0));
    assert_eq!((other.in_flight(), other.stats().in_ring), (0, 1));

    // Also when it has ended.
    let page = other.alloc().unwrap();
    let closing = other.close();
    mine.recycle(page);
    assert_eq!((closing.try_finish().unwrap().released, memory.blocks()), (2, 0));
}

/// dac22531bbd4: more was cut from a page than it has.
#[test]
fn a_fragment_larger_than_a_page_is_refused() {
    let memory = Watched::new();
    let mut pool = pool(&memory);
    let kept = pool.alloc_frag(100, Align::BYTE).unwrap();
    for bytes in [4097, usize::MAX] {
        let refused = pool.alloc_frag(bytes, Align::PAGE).unwrap_err();
        assert_eq!(refused, AllocError::TooLarge { bytes });
        assert!(refused.to_string().contains("page size"), "{refused}");
    }
    assert_eq!((pool.stats().too_large, pool.stats().failures, memory.calls()), (2, 0, 1));
    let rest = pool.alloc_frag(2000, Align::BYTE).unwrap();
    assert_eq!(memory.block_of(&rest), memory.block_of(&kept));
}

/// 3226b158e67c: tiny buffers that were kept pinned whole pages, and were accounted as tiny.
#[test]
fn what_a_tiny_fragment_pins_is_told_and_limited() {
    let memory = Watched::new();
    let source = memory.source().with_limit_bytes(4 * 32768).share();
    let config = PoolConfig::default().with_page_bytes(32768).with_source(source.clone());
    let mut pool = PagePool::new(config);
    let mut kept = Vec::new();
    let refused = loop {
        match pool.alloc_frag(16384, Align::CACHE_LINE) {
            Ok(passing) => {
                let tiny = pool.alloc_frag(64, Align::CACHE_LINE).unwrap();
                assert_eq!(tiny.block_bytes(), 32768);
                drop(passing);
                kept.push(tiny);
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(kept.len(), 4, "256 bytes in all, and nothing more can be had");
    assert_eq!(refused, AllocError::Limit { bytes: 16384, limit_bytes: 4 * 32768 });
    assert_eq!((source.alive_bytes(), pool.in_flight()), (4 * 32768, 4));
    let closing = pool.close();
    assert_eq!(closing.in_flight(), 4);
    drop(kept);
    assert_eq!((source.alive_bytes(), closing.in_flight()), (0, 0));
}

/// A page is used again only if nothing is left after the bias was subtracted, and its count is set only then.
#[test]
fn a_page_is_used_again_only_if_nobody_has_a_part() {
    let memory = Watched::new();
    let mut pool = pool(&memory);
    let mut held = pool.alloc_frag(1024, Align::CACHE_LINE).unwrap();
    held.fill(0xa5);
    for round in 0..200u8 {
        let mut frag = pool.alloc_frag(1024, Align::CACHE_LINE).unwrap();
        frag.fill(round);
        let mut page = pool.alloc().unwrap();
        page.fill(round);
        if round % 2 == 0 {
            pool.recycle(frag);
            pool.recycle(page);
        }
    }
    assert_eq!(*held, [0xa5; 1024]);
    assert_eq!((pool.in_flight(), memory.blocks()), (1, 3));
    pool.recycle(held);
    assert_eq!((pool.in_flight(), pool.stats().in_cache + pool.stats().in_ring), (0, 3));
}

/// A pool that went away with pages out, which came back to freed memory.
#[test]
fn pages_outlive_their_pool() {
    let memory = Watched::new();
    let mut pool = pool(&memory);
    let mut pages: Vec<Page> = (0..10).map(|_| pool.alloc().unwrap()).collect();
    pages.extend((0..10).map(|_| pool.alloc_frag(500, Align::BYTE).unwrap()));
    for (number, page) in pages.iter_mut().enumerate() {
        page.fill(number as u8);
    }
    drop(pool);
    for (number, page) in pages.iter().enumerate() {
        assert!(page.iter().all(|&byte| byte == number as u8));
    }
    drop(pages);
    assert_eq!(memory.blocks(), 0);
}
