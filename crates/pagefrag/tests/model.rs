//! Random operations on several caches, beside a model that knows of every fragment what is in it.

mod support;

use std::sync::Arc;

use pagefrag::{
    Align, AllocError, Frag, LARGE_BLOCK_BYTES, Mutex, PollCache, SMALL_BLOCK_BYTES, SharedCache, Source,
    Stats,
};
use proptest::{collection::vec, prelude::*};
use support::Watched;

const CACHES: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        cache: usize,
        bytes: usize,
        align: Align,
        zeroed: bool,
    },
    Drop(prop::sample::Index),
    /// To this cache, which need not be where it is from.
    GiveBack(prop::sample::Index, usize),
    Truncate(prop::sample::Index, usize),
    /// Its fragments stay.
    ReplaceCache(usize),
    RefuseLargerThan(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let cache = 0..CACHES;
    let frag = any::<prop::sample::Index>();
    let bytes = prop_oneof![
        4 => 0usize..300,
        4 => 300usize..3000,
        2 => prop::sample::select(vec![4095, 4096, 4097, 9000, LARGE_BLOCK_BYTES, LARGE_BLOCK_BYTES + 1]),
    ];
    let align = (0u32..=12).prop_map(|power| Align::new(1 << power).expect("a power of two"));
    let refused = prop::sample::select(vec![0, SMALL_BLOCK_BYTES, usize::MAX, usize::MAX, usize::MAX]);
    let op = prop_oneof![
        12 => (cache.clone(), bytes, align, any::<bool>())
            .prop_map(|(cache, bytes, align, zeroed)| Op::Alloc { cache, bytes, align, zeroed }),
        5 => frag.clone().prop_map(Op::Drop),
        5 => (frag.clone(), cache.clone()).prop_map(|(frag, cache)| Op::GiveBack(frag, cache)),
        1 => (frag, 0usize..5000).prop_map(|(frag, len)| Op::Truncate(frag, len)),
        1 => cache.prop_map(Op::ReplaceCache),
        1 => refused.prop_map(Op::RefuseLargerThan),
    ];
    vec(op, 1..if cfg!(miri) { 60 } else { 400 })
}

/// The last one is shared, the others belong to a poll loop.
enum Cache {
    Poll(PollCache),
    Shared(SharedCache<Mutex>),
}

impl Cache {
    fn new(index: usize, source: &Arc<Source>) -> Cache {
        match index {
            2 => Cache::Shared(SharedCache::with_source(Arc::clone(source)).with_waiting_blocks(1)),
            1 => Cache::Poll(PollCache::with_source(Arc::clone(source)).with_waiting_blocks(3)),
            _ => Cache::Poll(PollCache::with_source(Arc::clone(source))),
        }
    }

    fn alloc(&mut self, bytes: usize, align: Align, zeroed: bool) -> Result<Frag, AllocError> {
        match (self, zeroed) {
            (Cache::Poll(cache), false) => cache.alloc(bytes, align),
            (Cache::Poll(cache), true) => cache.alloc_zeroed(bytes, align),
            (Cache::Shared(cache), false) => cache.alloc(bytes, align),
            (Cache::Shared(cache), true) => cache.alloc_zeroed(bytes, align),
        }
    }

    fn give_back(&mut self, frag: Frag) {
        match self {
            Cache::Poll(cache) => cache.give_back(frag),
            Cache::Shared(_) => drop(frag),
        }
    }

    fn stats(&self) -> Stats {
        match self {
            Cache::Poll(cache) => cache.stats(),
            Cache::Shared(cache) => cache.stats(),
        }
    }
}

/// A fragment that is alive, and what was written into it.
struct Live {
    frag: Frag,
    pattern: u8,
    len: usize,
}

impl Live {
    fn assert_unharmed(&self) {
        assert_eq!(self.frag.len(), self.len);
        assert!(*self.frag == vec![self.pattern; self.len], "a fragment was written by another");
    }
}

struct World {
    memory: Watched,
    source: Arc<Source>,
    caches: Vec<Cache>,
    live: Vec<Live>,
    largest: usize,
    next_pattern: u8,
}

impl World {
    fn new(limit_bytes: usize) -> World {
        let memory = Watched::new();
        let source = memory.source().with_limit_bytes(limit_bytes).share();
        let caches = (0..CACHES).map(|index| Cache::new(index, &source)).collect();
        World { memory, source, caches, live: Vec::new(), largest: usize::MAX, next_pattern: 1 }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { cache, bytes, align, zeroed } => self.alloc(cache, bytes, align, zeroed),
            Op::Drop(index) => drop(self.take(&index)),
            Op::GiveBack(index, cache) => {
                if let Some(live) = self.take(&index) {
                    self.caches[cache].give_back(live.frag);
                }
            }
            Op::Truncate(index, len) => {
                if !self.live.is_empty() {
                    let live = index.get_mut(&mut self.live);
                    live.frag.truncate(len);
                    live.len = live.len.min(len);
                }
            }
            Op::ReplaceCache(index) => self.caches[index] = Cache::new(index, &self.source),
            Op::RefuseLargerThan(bytes) => {
                self.memory.refuse_larger_than(bytes);
                self.largest = bytes;
            }
        }
    }

    fn alloc(&mut self, cache: usize, bytes: usize, align: Align, zeroed: bool) {
        let before = self.caches[cache].stats();
        match self.caches[cache].alloc(bytes, align, zeroed) {
            Ok(mut frag) => {
                assert_eq!((frag.len(), frag.as_ptr().addr() % align.bytes()), (bytes, 0));
                assert!(!zeroed || *frag == vec![0; bytes]);
                let (_, block_bytes) =
                    self.memory.block_of(&frag).expect("a fragment lies within a block that is alive");
                assert_eq!(frag.block_bytes(), block_bytes);
                frag.fill(self.next_pattern);
                self.live.push(Live { frag, pattern: self.next_pattern, len: bytes });
                self.next_pattern = self.next_pattern.wrapping_add(1);
            }
            Err(AllocError::TooLarge { .. }) => assert!(bytes > LARGE_BLOCK_BYTES),
            Err(AllocError::OutOfMemory { .. }) => assert!(self.largest < LARGE_BLOCK_BYTES),
            Err(AllocError::Limit { .. }) => {
                let wanted = if bytes > SMALL_BLOCK_BYTES { LARGE_BLOCK_BYTES } else { SMALL_BLOCK_BYTES };
                assert!(before.pinned_bytes + wanted > self.source.limit_bytes());
                assert_eq!(self.caches[cache].stats().pinned_bytes, before.pinned_bytes);
            }
        }
    }

    fn take(&mut self, index: &prop::sample::Index) -> Option<Live> {
        if self.live.is_empty() {
            return None;
        }
        let live = self.live.swap_remove(index.index(self.live.len()));
        live.assert_unharmed();
        Some(live)
    }

    /// What must be true after every operation.
    fn check(&self) {
        let mut ranges: Vec<_> = self.live.iter().map(|live| live.frag.as_ptr_range()).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "two fragments overlap");

        let mut held: Vec<_> = self
            .live
            .iter()
            .map(|live| self.memory.block_of(&live.frag).expect("it lies within a block").0)
            .collect();
        held.sort_unstable();
        held.dedup();
        let kept = |cache: &Cache| {
            let stats = cache.stats();
            usize::from(stats.in_hand_bytes > 0) + stats.waiting_bytes / LARGE_BLOCK_BYTES
        };
        let kept: usize = self.caches.iter().map(kept).sum();
        let blocks = self.memory.blocks();
        assert!(held.len() <= blocks && blocks <= held.len() + kept, "a block is alive that nobody holds");
        assert_eq!(self.source.alive_bytes(), self.memory.alive_bytes());
        assert!(self.source.alive_bytes() <= self.source.limit_bytes());
    }

    /// In whatever order caches and fragments end, nothing is left.
    fn end(self, caches_first: bool) {
        let World { memory, source, caches, live, .. } = self;
        if caches_first {
            drop(caches);
            live.iter().for_each(Live::assert_unharmed);
            drop(live);
        } else {
            live.iter().for_each(Live::assert_unharmed);
            drop(live);
            let kept = |stats: Stats| stats.in_hand_bytes + stats.waiting_bytes;
            assert_eq!(source.alive_bytes(), caches.iter().map(|cache| kept(cache.stats())).sum::<usize>());
            drop(caches);
        }
        assert_eq!((source.alive_bytes(), memory.blocks()), (0, 0));
    }
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 12 } else { 400 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn caches_behave_as_the_model(
        ops in ops(),
        limit_bytes in prop::sample::select(vec![usize::MAX, 40_000, 200_000]),
        caches_first in any::<bool>(),
    ) {
        let mut world = World::new(limit_bytes);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.end(caches_first);
    }
}
