//! A fragment as `bytes::Bytes`.
#![cfg(feature = "bytes")]

mod support;

use bytes::Bytes;
use pagefrag::{Align, PagePool, PollCache, PoolConfig};
use support::Watched;

#[test]
fn bytes_are_the_same_memory_and_free_the_block_with_the_last_clone() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let mut frag = cache.alloc(100, Align::BYTE).unwrap();
    frag.fill(3);
    let first = frag.as_ptr();
    let bytes = Bytes::from(frag);
    assert_eq!((bytes.as_ptr(), &bytes[..]), (first, &[3; 100][..]));

    drop(cache);
    let part = bytes.slice(10..20);
    drop(bytes);
    assert_eq!((memory.blocks(), &part[..]), (1, &[3; 10][..]));
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn a_page_goes_home_with_the_last_clone() {
    let memory = Watched::new();
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    let mut page = pool.alloc().unwrap();
    page.fill(3);
    let first = page.as_ptr();
    let bytes = Bytes::from(page);
    assert_eq!((bytes.as_ptr(), bytes.len()), (first, 4096));
    let part = bytes.slice(10..20);
    drop(bytes);
    assert_eq!((pool.in_flight(), &part[..]), (1, &[3; 10][..]));
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!((pool.in_flight(), pool.stats().in_ring), (0, 1));
}
