//! Random operations on two pools, beside a model that knows where every page is.

mod support;

use std::sync::Arc;

use pagefrag::{Align, AllocError, Closing, Page, PagePool, PoolConfig, Source};
use proptest::{collection::vec, prelude::*};
use support::Watched;

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    AllocFrag {
        pool: usize,
        bytes: usize,
        align: Align,
    },
    Drop(prop::sample::Index),
    DropMany(usize),
    /// To this pool, which need not be where it is from.
    Recycle(prop::sample::Index, usize),
    RecycleMany(usize, usize),
    Truncate(prop::sample::Index, usize),
    /// Its pages stay, and a new one takes its place.
    Close(usize),
    Replace(usize),
    ReleaseSpare(usize),
    Refuse(bool),
    Makeshift(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (pool, page) = (0..2usize, any::<prop::sample::Index>());
    let bytes = prop_oneof![
        4 => 0usize..300,
        4 => 300usize..2100,
        2 => prop::sample::select(vec![2048, 2049, 4095, 4096, 4097, 8192, 8193]),
    ];
    let align = (0u32..=12).prop_map(|power| Align::new(1 << power).expect("a power of two"));
    let op = prop_oneof![
        10 => pool.clone().prop_map(Op::Alloc),
        10 => (pool.clone(), bytes, align).prop_map(|(pool, bytes, align)| Op::AllocFrag { pool, bytes, align }),
        5 => page.clone().prop_map(Op::Drop),
        1 => (0usize..20).prop_map(Op::DropMany),
        5 => (page.clone(), pool.clone()).prop_map(|(page, pool)| Op::Recycle(page, pool)),
        1 => (0usize..200, pool.clone()).prop_map(|(count, pool)| Op::RecycleMany(count, pool)),
        1 => (page, 0usize..5000).prop_map(|(page, len)| Op::Truncate(page, len)),
        1 => pool.clone().prop_map(Op::Close),
        1 => pool.clone().prop_map(Op::Replace),
        1 => pool.prop_map(Op::ReleaseSpare),
        1 => any::<bool>().prop_map(Op::Refuse),
        1 => any::<bool>().prop_map(Op::Makeshift),
    ];
    vec(op, 1..if cfg!(miri) { 60 } else { 600 })
}

/// A page that is out, what was written into it, and which pool it is of.
struct Live {
    page: Page,
    pattern: u8,
    len: usize,
    /// Counts pools, ended ones included.
    pool: usize,
    block: usize,
}

impl Live {
    fn assert_unharmed(&self) {
        assert_eq!(self.page.len(), self.len);
        assert!(*self.page == vec![self.pattern; self.len], "a page was written by another");
    }
}

struct World {
    memory: Watched,
    source: Arc<Source>,
    pools: [(usize, PagePool); 2],
    closings: Vec<(usize, Closing)>,
    live: Vec<Live>,
    refusing: bool,
    made: usize,
    next_pattern: u8,
}

impl World {
    fn new(limit_bytes: usize) -> World {
        let memory = Watched::new();
        let source = memory.source().with_limit_bytes(limit_bytes).share();
        let pools = [0, 1].map(|index| (index, pool(index, &source)));
        World {
            memory,
            source,
            pools,
            closings: Vec::new(),
            live: Vec::new(),
            refusing: false,
            made: 2,
            next_pattern: 1,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc(index) => {
                let bytes = self.pools[index].1.stats().page_bytes;
                let page = self.pools[index].1.alloc();
                self.enter(index, bytes, page);
            }
            Op::AllocFrag { pool, bytes, align } => {
                let page = self.pools[pool].1.alloc_frag(bytes, align);
                if let Ok(page) = &page {
                    assert_eq!(page.as_ptr().addr() % align.bytes(), 0);
                }
                self.enter(pool, bytes, page);
            }
            Op::Drop(index) => drop(self.take(&index)),
            Op::DropMany(count) => drop(self.live.drain(self.live.len().saturating_sub(count)..)),
            Op::Recycle(index, pool) => {
                if let Some(live) = self.take(&index) {
                    self.pools[pool].1.recycle(live.page);
                }
            }
            Op::RecycleMany(count, pool) => {
                for live in self.live.drain(self.live.len().saturating_sub(count)..) {
                    self.pools[pool].1.recycle(live.page);
                }
            }
            Op::Truncate(index, len) => {
                if !self.live.is_empty() {
                    let live = index.get_mut(&mut self.live);
                    live.page.truncate(len);
                    live.len = live.len.min(len);
                }
            }
            Op::Close(index) => {
                let (number, ended) = self.replace(index);
                self.closings.push((number, ended.close()));
            }
            Op::Replace(index) => drop(self.replace(index)),
            Op::ReleaseSpare(index) => {
                let before = self.pools[index].1.stats();
                let released = self.pools[index].1.release_spare();
                let stats = self.pools[index].1.stats();
                assert_eq!(released, before.in_cache + before.in_ring);
                assert_eq!((stats.in_cache, stats.in_ring, stats.in_flight), (0, 0, before.in_flight));
            }
            Op::Refuse(refuses) => {
                self.memory.refuse_larger_than(if refuses { 0 } else { usize::MAX });
                self.refusing = refuses;
            }
            Op::Makeshift(is_makeshift) => self.memory.give_makeshift(is_makeshift),
        }
    }

    fn replace(&mut self, index: usize) -> (usize, PagePool) {
        self.made += 1;
        std::mem::replace(&mut self.pools[index], (self.made - 1, pool(index, &self.source)))
    }

    fn enter(&mut self, index: usize, bytes: usize, page: Result<Page, AllocError>) {
        let (number, pool) = &self.pools[index];
        let page_bytes = pool.stats().page_bytes;
        match page {
            Ok(mut page) => {
                let (block, block_bytes) =
                    self.memory.block_of(&page).expect("a page lies within a block that is alive");
                assert_eq!((page.len(), page.block_bytes(), block_bytes), (bytes, page_bytes, page_bytes));
                page.fill(self.next_pattern);
                self.live.push(Live { page, pattern: self.next_pattern, len: bytes, pool: *number, block });
                self.next_pattern = self.next_pattern.wrapping_add(1);
            }
            Err(AllocError::TooLarge { .. }) => assert!(bytes > page_bytes),
            Err(refused) => {
                // Only if there is nothing else left.
                let stats = pool.stats();
                assert_eq!((stats.in_cache, stats.in_ring), (0, 0), "{refused}");
                match refused {
                    AllocError::Limit { limit_bytes, .. } => {
                        assert!(self.source.alive_bytes() + page_bytes > limit_bytes);
                    }
                    _ => assert!(self.refusing),
                }
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
        let mut ranges: Vec<_> = self.live.iter().map(|live| live.page.as_ptr_range()).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "two pages overlap");

        let mut alive_bytes = 0;
        for (number, pool) in &self.pools {
            let stats = pool.stats();
            assert_eq!(stats.in_flight, self.in_flight(*number));
            let found = stats.released + (stats.in_cache + stats.in_ring + stats.in_flight) as u64;
            assert_eq!(stats.slow, found, "{stats:?}");
            alive_bytes += (stats.in_cache + stats.in_ring + stats.in_flight) * stats.page_bytes;
        }
        for (number, closing) in &self.closings {
            assert_eq!(closing.in_flight(), self.in_flight(*number));
            alive_bytes += closing.in_flight() * closing.stats().page_bytes;
        }
        assert_eq!(self.source.alive_bytes(), self.memory.alive_bytes());
        assert!(self.source.alive_bytes() <= self.source.limit_bytes());
        // Pools that were dropped are asked by nobody.
        assert!(alive_bytes <= self.source.alive_bytes());
    }

    /// Pages of which something is out.
    fn in_flight(&self, pool: usize) -> usize {
        let mut blocks: Vec<_> =
            self.live.iter().filter(|live| live.pool == pool).map(|live| live.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len()
    }

    fn end(self, pools_first: bool) {
        let World { memory, source, pools, closings, live, .. } = self;
        live.iter().for_each(Live::assert_unharmed);
        // In whatever order pools and pages end, nothing is left.
        let mut pools = Some(pools);
        if pools_first {
            pools = None;
            live.iter().for_each(Live::assert_unharmed);
        }
        drop(live);
        for (_, closing) in closings {
            let stats = closing.try_finish().expect("all pages are back");
            assert_eq!((stats.in_flight, stats.released), (0, stats.slow));
        }
        drop(pools);
        assert_eq!((source.alive_bytes(), memory.blocks()), (0, 0));
    }
}

/// Of different sizes, with rings that become full.
fn pool(index: usize, source: &Arc<Source>) -> PagePool {
    let config = PoolConfig::default().with_source(Arc::clone(source));
    PagePool::new(config.with_page_bytes(4096 << index).with_ring_pages(4 << index))
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 4 } else { 400 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pools_behave_as_the_model(
        ops in ops(),
        limit_bytes in prop::sample::select(vec![usize::MAX, 20_000, 200_000]),
        pools_first in any::<bool>(),
    ) {
        let mut world = World::new(limit_bytes);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.end(pools_first);
    }
}
