//! What a page pool does, one thing at a time.

mod support;

use pagefrag::{Align, AllocError, PagePool, PoolConfig};
use support::Watched;

#[test]
fn a_page_is_at_most_three_words() {
    assert!(size_of::<pagefrag::Page>() <= 3 * size_of::<usize>());
    assert_eq!(size_of::<Option<pagefrag::Page>>(), size_of::<pagefrag::Page>());
}

#[test]
fn pages_come_from_the_cache_then_the_ring_then_the_source() {
    let memory = Watched::new();
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    let first = pool.alloc().unwrap();
    let address = first.as_ptr();
    assert_eq!((first.len(), first.block_bytes(), address.addr() % 4096), (4096, 4096, 0));
    assert_eq!(*first, [0; 4096]);
    pool.recycle(first);
    let first = pool.alloc().unwrap();
    assert_eq!(first.as_ptr(), address);
    let mut second = pool.alloc().unwrap();
    second.truncate(100);
    std::thread::spawn(move || drop((first, second))).join().unwrap();
    assert_eq!((pool.stats().in_ring, pool.in_flight()), (2, 0));
    let pages = [pool.alloc().unwrap(), pool.alloc().unwrap()];
    assert!(pages.iter().all(|page| page.len() == 4096), "what was cut off is there again");
    let stats = pool.stats();
    assert_eq!((stats.slow, stats.empty, stats.refill, stats.fast, stats.ring), (2, 2, 1, 2, 2));
    assert_eq!((stats.cached, stats.in_flight, stats.in_cache, memory.blocks()), (1, 2, 0, 2));
    let closing = pool.close();
    assert_eq!((closing.in_flight(), memory.blocks()), (2, 2));
    let closing = closing.try_finish().unwrap_err();
    drop(pages);
    let stats = closing.try_finish().unwrap();
    assert_eq!((stats.released, stats.in_flight, stats.in_ring, memory.blocks()), (2, 0, 0, 0));
}

#[test]
fn fragments_share_a_page_and_the_page_begins_again_in_place() {
    let memory = Watched::new();
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    for _ in 0..10 {
        for bytes in [1024, 100, 0, 2048] {
            let frag = pool.alloc_frag(bytes, Align::CACHE_LINE).unwrap();
            assert_eq!((frag.len(), frag.as_ptr().addr() % 64, frag.block_bytes()), (bytes, 0, 4096));
            pool.recycle(frag);
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.frags, stats.slow, stats.in_place, stats.in_flight, stats.in_cache), (40, 1, 9, 0, 1));
    let kept = pool.alloc_frag(2000, Align::BYTE).unwrap();
    assert_eq!((pool.in_flight(), pool.stats().in_cache), (1, 0));
    drop(kept);
    let large = pool.alloc_frag(2049, Align::PAGE).unwrap();
    assert_eq!((large.len(), pool.stats().frags, memory.blocks()), (2049, 41, 2));
    assert_eq!(pool.alloc_frag(4097, Align::BYTE).unwrap_err(), AllocError::TooLarge { bytes: 4097 });
}

#[test]
fn what_the_ring_has_no_room_for_is_released() {
    let memory = Watched::new();
    let config = PoolConfig::default().with_source(memory.source().share()).with_ring_pages(4);
    let mut pool = PagePool::new(config);
    let pages: Vec<_> = (0..140).map(|_| pool.alloc().unwrap()).collect();
    pages.into_iter().for_each(|page| pool.recycle(page));
    let stats = pool.stats();
    assert_eq!(
        (stats.cached, stats.cache_full, stats.ring, stats.ring_full, stats.released),
        (128, 12, 4, 8, 8)
    );
    assert_eq!((stats.in_cache, stats.in_ring, memory.blocks()), (128, 4, 132));
    assert_eq!(pool.release_spare(), 132);
    assert_eq!(memory.blocks(), 0);
    let stats = pool.stats();
    assert_eq!((stats.slow, stats.released, stats.in_cache, stats.in_ring), (140, 140, 0, 0));
}

#[test]
fn a_dropped_pool_leaves_its_pages_to_their_holders() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut pool = PagePool::new(PoolConfig::default().with_source(source.clone()));
    let mut page = pool.alloc().unwrap();
    let mut frags = [pool.alloc_frag(100, Align::BYTE).unwrap(), pool.alloc_frag(100, Align::BYTE).unwrap()];
    drop(pool.alloc().unwrap());
    drop(pool);
    assert_eq!(memory.blocks(), 2);
    page.fill(1);
    frags[0].fill(2);
    frags[1].fill(3);
    assert_eq!((page[4095], frags[0][99], frags[1][99]), (1, 2, 3));
    drop(page);
    let [first, second] = frags;
    drop(first);
    assert_eq!(memory.blocks(), 1);
    drop(second);
    assert_eq!((memory.blocks(), source.alive_bytes()), (0, 0));
}
