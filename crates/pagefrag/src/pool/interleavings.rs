//! Every interleaving of what a pool shares, by loom: `./ci.sh loom`.
//!
//! As for the caches, each half of a page has a cell beside it that loom sees: its holder writes it, whoever gets the bytes
//! next does, and whoever frees the page writes both. Loom objects where one of these is not ordered after another.

#![allow(clippy::unwrap_used)]

use core::{alloc::Layout, ptr::NonNull};
use std::{
    sync::{Arc, Mutex},
    vec::Vec,
};

use loom::{cell::UnsafeCell, thread, thread::JoinHandle};

use crate::{Align, Heap, Memory, Page, PagePool, PoolConfig, PoolStats, Source};

const PAGE: usize = 4096;
const HALF: usize = PAGE / 2;

#[derive(Clone, Default)]
struct Seen(Arc<State>);

#[derive(Default)]
struct State {
    /// Two for each page, in the order in which pages were allocated.
    halves: [UnsafeCell<()>; 6],
    /// Where each page begins; none when it is freed.
    pages: Mutex<Vec<Option<usize>>>,
}

// SAFETY: loom runs its threads one at a time, and tells where they only happened to be ordered: that is the test.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl Seen {
    fn pool(&self, ring_pages: usize) -> PagePool {
        let source = Source::new(self.clone()).share();
        PagePool::new(PoolConfig::default().with_source(source).with_ring_pages(ring_pages))
    }

    fn touch(&self, bytes: &[u8]) {
        self.touch_range(bytes.as_ptr().addr(), bytes.len());
    }

    fn touch_range(&self, first: usize, len: usize) {
        let page = |start: &Option<usize>| start.is_some_and(|start| (start..start + PAGE).contains(&first));
        let pages = self.0.pages.lock().unwrap();
        let index = pages.iter().position(page).expect("a page that is alive");
        let from = (first - pages[index].unwrap()) / HALF;
        drop(pages);
        (from..from + len.div_ceil(HALF)).for_each(|half| self.0.halves[2 * index + half].with_mut(|_| ()));
    }

    /// Pages allocated, and those that are alive.
    fn pages(&self) -> (usize, usize) {
        let pages = self.0.pages.lock().unwrap();
        (pages.len(), pages.iter().flatten().count())
    }

    fn drop_elsewhere(&self, page: Page) -> JoinHandle<()> {
        let seen = self.clone();
        thread::spawn(move || {
            seen.touch(&page);
            drop(page);
        })
    }
}

// SAFETY: it is the heap.
unsafe impl Memory for Seen {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let data = Heap.alloc(layout)?;
        self.0.pages.lock().unwrap().push(Some(data.as_ptr().addr()));
        Some(data)
    }

    unsafe fn free(&self, data: NonNull<u8>, layout: Layout) {
        let address = data.as_ptr().addr();
        self.touch_range(address, PAGE);
        *self.0.pages.lock().unwrap().iter_mut().find(|page| **page == Some(address)).unwrap() = None;
        // SAFETY: `alloc` got it from the heap with this layout.
        unsafe { Heap.free(data, layout) }
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn assert_accounted(stats: PoolStats) {
    let found = stats.released + (stats.in_cache + stats.in_ring + stats.in_flight) as u64;
    assert_eq!(stats.slow, found, "{stats:?}");
}

#[test]
fn pages_come_back_while_the_owner_refills() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(2);
        let pages = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        let threads = pages.map(|page| seen.drop_elsewhere(page));
        let next = pool.alloc().unwrap();
        seen.touch(&next);
        pool.recycle(next);
        join(threads);
        let stats = pool.stats();
        assert_accounted(stats);
        assert_eq!((stats.in_flight, stats.ring, stats.ring_full), (0, 2, 0));
        drop(pool);
        assert_eq!(seen.pages().1, 0);
    });
}

#[test]
fn a_ring_with_room_for_one() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(1);
        let pages = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        let threads = pages.map(|page| seen.drop_elsewhere(page));
        let next = pool.alloc().unwrap();
        seen.touch(&next);
        join(threads);
        let stats = pool.stats();
        assert_accounted(stats);
        assert_eq!((stats.in_flight, stats.ring + stats.ring_full), (1, 2));
        assert_eq!(stats.released, stats.ring_full);
        drop((pool, next));
        assert_eq!(seen.pages().1, 0);
    });
}

#[test]
fn pages_come_back_while_the_pool_ends() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(2);
        let pages = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        let threads = pages.map(|page| seen.drop_elsewhere(page));
        let closing = pool.close();
        assert!(closing.in_flight() <= 2);
        join(threads);
        let stats = closing.try_finish().unwrap();
        assert_accounted(stats);
        assert_eq!((stats.released, stats.in_ring, seen.pages()), (2, 0, (2, 0)));
    });
}

/// Without a `Closing` that keeps what they share alive: the last page does, also for a producer that has just filled its
/// slot.
#[test]
fn pages_come_back_while_the_pool_is_dropped() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(1);
        let pages = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        let threads = pages.map(|page| seen.drop_elsewhere(page));
        drop(pool);
        join(threads);
        assert_eq!(seen.pages(), (2, 0));
    });
}

/// One page: what two do to a lock and a bell has too many interleavings.
#[test]
#[cfg(feature = "std")]
fn nobody_who_waits_for_the_last_page_misses_it() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(1);
        let page = pool.alloc().unwrap();
        let thread = seen.drop_elsewhere(page);
        let stats = pool.close().wait();
        assert_eq!((stats.released, stats.in_flight, seen.pages()), (1, 0, (1, 0)));
        join([thread]);
    });
}

#[test]
fn the_last_fragment_takes_the_page_home() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(2);
        let frags = [(); 2].map(|()| pool.alloc_frag(HALF, Align::BYTE).unwrap());
        let threads = frags.map(|frag| seen.drop_elsewhere(frag));
        // Begun again in place, left to its holders, or got back from the last of them.
        let next = pool.alloc_frag(HALF, Align::BYTE).unwrap();
        seen.touch(&next);
        let after = pool.alloc_frag(HALF, Align::BYTE).unwrap();
        seen.touch(&after);
        pool.recycle(next);
        pool.recycle(after);
        join(threads);
        let stats = pool.stats();
        assert_accounted(stats);
        assert_eq!((stats.in_flight, stats.released), (0, 0));
        assert_eq!(stats.slow + stats.in_place + stats.refill, 2);
        drop(pool);
        assert_eq!(seen.pages().1, 0);
    });
}

/// One ends by the owner, one elsewhere, and the pool has turned to another page.
#[test]
fn the_owner_and_another_thread_end_the_fragments_of_a_page() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(2);
        let [first, second] = [(); 2].map(|()| pool.alloc_frag(HALF, Align::BYTE).unwrap());
        let next = pool.alloc_frag(HALF, Align::BYTE).unwrap();
        let thread = seen.drop_elsewhere(first);
        seen.touch(&second);
        pool.recycle(second);
        let again = pool.alloc().unwrap();
        seen.touch(&again);
        join([thread]);
        assert_accounted(pool.stats());
        assert_eq!(pool.in_flight(), 2);
        drop((next, again));
        assert_eq!(pool.in_flight(), 0);
        drop(pool);
        assert_eq!(seen.pages().1, 0);
    });
}

#[test]
fn fragments_end_while_the_pool_does() {
    loom::model(|| {
        let seen = Seen::default();
        let mut pool = seen.pool(1);
        let frags = [(); 2].map(|()| pool.alloc_frag(HALF, Align::BYTE).unwrap());
        let threads = frags.map(|frag| seen.drop_elsewhere(frag));
        let closing = pool.close();
        join(threads);
        let stats = closing.try_finish().unwrap();
        assert_eq!((stats.slow, stats.released, seen.pages()), (1, 1, (1, 0)));
    });
}
