//! Pages that end on other threads than they began on, while the pool lives, and while it ends.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::{Arc, mpsc},
    thread,
};

use pagefrag::{Align, Page, PagePool, PoolConfig, PoolStats};
use support::Watched;

const PAGES: u32 = if cfg!(miri) { 150 } else { 100_000 };
const QUEUED: usize = 64;

fn assert_accounted(stats: PoolStats) {
    let found = stats.released + (stats.in_cache + stats.in_ring + stats.in_flight) as u64;
    assert_eq!(stats.slow, found, "{stats:?}");
}

#[test]
fn three_threads_end_what_the_owner_hands_out() {
    for ring_pages in [1, 16, 1024] {
        let memory = Watched::new();
        let source = memory.source().share();
        let config = PoolConfig::default().with_source(Arc::clone(&source)).with_ring_pages(ring_pages);
        let mut pool = PagePool::new(config);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::sync_channel(QUEUED)).unzip();
        let threads: Vec<_> = receivers
            .into_iter()
            .map(|receive| {
                thread::spawn(move || receive.into_iter().for_each(|(number, page)| check(number, &page)))
            })
            .collect();
        for number in 0..PAGES {
            let page = filled(number, taken(&mut pool, number));
            match number as usize % 5 {
                3 => pool.recycle(page),
                4 => drop(page),
                thread => senders[thread].send((number, page)).unwrap(),
            }
            assert!(pool.in_flight() <= 4 * QUEUED, "more than were handed out");
        }
        drop(senders);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let stats = pool.stats();
        assert_accounted(stats);
        assert_eq!((stats.in_flight, stats.failures), (0, 0));
        assert_eq!(source.alive_bytes(), (stats.in_cache + stats.in_ring) * 4096);
        let stats = pool.close().try_finish().unwrap();
        assert_eq!((stats.released, source.alive_bytes(), memory.blocks()), (stats.slow, 0, 0));
    }
}

#[test]
fn the_end_of_a_pool_waits_for_what_is_out() {
    for round in 0..if cfg!(miri) { 5 } else { 300 } {
        let memory = Watched::new();
        let config = PoolConfig::default().with_source(memory.source().share()).with_ring_pages(8);
        let mut pool = PagePool::new(config);
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let pages: Vec<_> = (0..20)
                    .map(|number| (number, filled(number, taken(&mut pool, number + thread))))
                    .collect();
                thread::spawn(move || pages.into_iter().for_each(|(number, page)| check(number, &page)))
            })
            .collect();
        if round % 2 == 0 {
            let stats = pool.close().wait();
            assert_accounted(stats);
            assert_eq!((stats.in_flight, stats.released, memory.blocks()), (0, stats.slow, 0));
        } else {
            drop(pool);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.blocks(), 0);
    }
}

#[test]
fn a_pool_moves_to_another_thread_and_its_pages_stay() {
    let memory = Watched::new();
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    let here = filled(1, pool.alloc().unwrap());
    let (pool, there) = thread::spawn(move || {
        let there = filled(2, pool.alloc().unwrap());
        (pool, there)
    })
    .join()
    .unwrap();
    check(1, &here);
    check(2, &there);
    drop((here, there));
    assert_eq!((pool.in_flight(), pool.stats().in_ring), (0, 2));
    drop(pool);
    assert_eq!(memory.blocks(), 0);
}

/// Every third one a fragment.
fn taken(pool: &mut PagePool, number: u32) -> Page {
    match number % 3 {
        0 => pool.alloc_frag([64, 272, 1, 1514, 2048, 0][number as usize % 6], Align::CACHE_LINE).unwrap(),
        _ => pool.alloc().unwrap(),
    }
}

fn filled(number: u32, mut page: Page) -> Page {
    let kept = if cfg!(miri) { 64 } else { 1500 };
    page.truncate(kept);
    page.fill(number as u8);
    page
}

fn check(number: u32, page: &Page) {
    assert!(page.iter().all(|&byte| byte == number as u8), "page {number} was written by another");
}
