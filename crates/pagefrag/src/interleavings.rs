//! Every interleaving of the count's operations, by loom: `./ci.sh loom`.
//!
//! Loom does not see plain memory. So each fragment has a cell beside it that loom does see: its holder writes it, and
//! whoever frees or reuses the block writes all of them. Loom objects where one of these is not ordered after another.

#![allow(clippy::unwrap_used)]

use core::{alloc::Layout, ptr::NonNull};
use std::sync::{Arc, atomic::AtomicUsize as Tally, atomic::Ordering::Relaxed};

use loom::{cell::UnsafeCell, thread};

use crate::{
    Align, Frag, Heap, LARGE_BLOCK_BYTES, Memory, PollCache, SharedCache, Source, SpinLock, drop_all,
};

const HALF: usize = LARGE_BLOCK_BYTES / 2;

/// Memory whose first block has two halves, and a cell for each.
#[derive(Clone, Default)]
struct Seen(Arc<State>);

#[derive(Default)]
struct State {
    halves: [UnsafeCell<()>; 2],
    allocated: Tally,
    freed: Tally,
    first: Tally,
}

// SAFETY: loom runs its threads one at a time, and tells where they only happened to be ordered: that is the test.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl Seen {
    fn touch(&self, half: usize) {
        self.0.halves[half].with_mut(|_| ());
    }

    fn touch_all(&self) {
        (0..2).for_each(|half| self.touch(half));
    }

    fn assert_all_freed(&self) {
        assert_eq!(self.0.allocated.load(Relaxed), self.0.freed.load(Relaxed), "blocks allocated and freed");
    }
}

// SAFETY: it is the heap.
unsafe impl Memory for Seen {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let data = Heap.alloc(layout)?;
        if self.0.allocated.fetch_add(1, Relaxed) == 0 {
            self.0.first.store(data.as_ptr().addr(), Relaxed);
        }
        Some(data)
    }

    unsafe fn free(&self, data: NonNull<u8>, layout: Layout) {
        if self.0.first.swap(0, Relaxed) == data.as_ptr().addr() {
            self.touch_all();
        }
        self.0.freed.fetch_add(1, Relaxed);
        // SAFETY: `alloc` got it from the heap with this layout.
        unsafe { Heap.free(data, layout) }
    }
}

fn halves(seen: &Seen) -> (PollCache, Frag, Frag) {
    let mut cache = PollCache::with_source(Source::new(seen.clone()).share());
    let second = cache.alloc(HALF, Align::BYTE).unwrap();
    let first = cache.alloc(HALF, Align::BYTE).unwrap();
    (cache, first, second)
}

fn end_elsewhere(seen: &Seen, half: usize, frag: Frag) -> thread::JoinHandle<()> {
    let seen = seen.clone();
    thread::spawn(move || {
        seen.touch(half);
        drop(frag);
    })
}

#[test]
fn the_last_holder_frees_once_and_after_all_others() {
    loom::model(|| {
        let seen = Seen::default();
        let (cache, first, second) = halves(&seen);
        let threads = [end_elsewhere(&seen, 0, first), end_elsewhere(&seen, 1, second)];
        drop(cache);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        seen.assert_all_freed();
    });
}

#[test]
fn a_block_is_reused_only_after_its_last_holder() {
    loom::model(|| {
        let seen = Seen::default();
        let (mut cache, first, second) = halves(&seen);
        let threads = [end_elsewhere(&seen, 0, first), end_elsewhere(&seen, 1, second)];
        let next = cache.alloc(HALF, Align::BYTE).unwrap();
        if cache.stats().reuses == 1 {
            seen.touch_all();
        }
        drop(cache);
        drop(next);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        seen.assert_all_freed();
    });
}

#[test]
fn a_block_that_waited_is_taken_again_only_after_its_last_holder() {
    loom::model(|| {
        let seen = Seen::default();
        let (cache, first, second) = halves(&seen);
        let mut cache = cache.with_waiting_blocks(1);
        let threads = [end_elsewhere(&seen, 0, first), end_elsewhere(&seen, 1, second)];
        // Either takes the first block again at once, or lets it wait and looks at it for the third half.
        let others = [(); 3].map(|()| cache.alloc(HALF, Align::BYTE).unwrap());
        let stats = cache.stats();
        if stats.reuses + stats.reuses_after_waiting > 0 {
            seen.touch_all();
        }
        drop((cache, others));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        seen.assert_all_freed();
    });
}

#[test]
fn giving_back_and_dropping_elsewhere_agree_on_the_count() {
    loom::model(|| {
        let seen = Seen::default();
        let (mut cache, first, second) = halves(&seen);
        let thread = end_elsewhere(&seen, 0, first);
        seen.touch(1);
        cache.give_back(second);
        let next = cache.alloc(HALF, Align::BYTE).unwrap();
        if cache.stats().reuses == 1 {
            seen.touch_all();
        }
        cache.give_back(next);
        drop(cache);
        thread.join().unwrap();
        seen.assert_all_freed();
    });
}

#[test]
fn fragments_that_are_dropped_together_end_after_all_was_done_with_them() {
    loom::model(|| {
        let seen = Seen::default();
        let (mut cache, first, second) = halves(&seen);
        let thread = {
            let seen = seen.clone();
            thread::spawn(move || {
                seen.touch_all();
                drop_all([first, second]);
            })
        };
        let next = cache.alloc(HALF, Align::BYTE).unwrap();
        if cache.stats().reuses == 1 {
            seen.touch_all();
        }
        drop((cache, next));
        thread.join().unwrap();
        seen.assert_all_freed();
    });
}

#[test]
fn the_spin_lock_lets_one_thread_cut_at_a_time() {
    loom::model(|| {
        let seen = Seen::default();
        let cache = Arc::new(SharedCache::<SpinLock>::with_source(Source::new(seen.clone()).share()));
        let other = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.alloc(HALF, Align::BYTE).unwrap())
        };
        let mine = cache.alloc(HALF, Align::BYTE).unwrap();
        let theirs = other.join().unwrap();
        assert_ne!(mine.as_ptr(), theirs.as_ptr());
        assert_eq!(cache.stats().large_refills, 1);
        drop((cache, mine, theirs));
        seen.assert_all_freed();
    });
}
