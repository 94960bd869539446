//! Which blocks of a region are free: a buddy allocator over granules of 4096 bytes.
//!
//! As in mm/page_alloc.c (Linux 6.18): blocks are powers of two and aligned to their size; a large one is split for a small
//! one, and two free halves become one again, so that small blocks do not use large ones up for good. Everything it needs
//! is allocated at the start.

/// Not a granule: the end of a list.
const NONE: u32 = u32::MAX;
/// In `free_orders`: no free block begins here.
const NOT_FREE: u8 = u8::MAX;
/// Enough for every number of granules that fits.
const ORDERS: usize = 32;

#[derive(Debug)]
pub(super) struct Buddy {
    /// The first free block of each order.
    heads: [u32; ORDERS],
    /// For each granule: the order of the free block that begins there.
    free_orders: Vec<u8>,
    /// For each such granule: its neighbours in the list of its order.
    links: Vec<Link>,
    free_granules: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Buddy {
    /// So many granules, all free.
    pub(super) fn new(granules: u32) -> Buddy {
        let mut buddy = Buddy {
            heads: [NONE; ORDERS],
            free_orders: vec![NOT_FREE; granules as usize],
            links: vec![Link { before: NONE, after: NONE }; granules as usize],
            free_granules: 0,
        };
        let mut start = 0;
        while start < granules {
            let largest = (granules - start).ilog2();
            let order = if start == 0 { largest } else { largest.min(start.trailing_zeros()) };
            buddy.insert(start, order as usize);
            start += 1 << order;
        }
        buddy
    }

    /// The first granule of a block of `1 << order` of them, if there is one.
    pub(super) fn alloc(&mut self, order: usize) -> Option<u32> {
        let found = (order..ORDERS).find(|&order| self.heads[order] != NONE)?;
        let start = self.heads[found];
        self.remove(start, found);
        // The upper halves stay free.
        for half in (order..found).rev() {
            self.insert(start + (1 << half), half);
        }
        Some(start)
    }

    /// Takes back what `alloc` gave out for this order.
    pub(super) fn free(&mut self, mut start: u32, mut order: usize) {
        loop {
            let twin = start ^ (1 << order);
            if self.free_orders.get(twin as usize) != Some(&(order as u8)) {
                break;
            }
            self.remove(twin, order);
            start = start.min(twin);
            order += 1;
        }
        self.insert(start, order);
    }

    pub(super) fn free_granules(&self) -> usize {
        self.free_granules
    }

    fn insert(&mut self, start: u32, order: usize) {
        let after = self.heads[order];
        if after != NONE {
            self.links[after as usize].before = start;
        }
        self.links[start as usize] = Link { before: NONE, after };
        self.heads[order] = start;
        self.free_orders[start as usize] = order as u8;
        self.free_granules += 1 << order;
    }

    fn remove(&mut self, start: u32, order: usize) {
        let Link { before, after } = self.links[start as usize];
        match before {
            NONE => self.heads[order] = after,
            _ => self.links[before as usize].after = after,
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
        self.free_orders[start as usize] = NOT_FREE;
        self.free_granules -= 1 << order;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_blocks_become_a_large_one_again() {
        let mut buddy = Buddy::new(8);
        let small: Vec<_> = (0..8).map(|_| buddy.alloc(0).unwrap()).collect();
        assert_eq!((buddy.alloc(0), buddy.free_granules()), (None, 0));
        for start in small {
            buddy.free(start, 0);
        }
        assert_eq!((buddy.alloc(3), buddy.alloc(0)), (Some(0), None));
    }

    #[test]
    fn sizes_that_are_no_power_of_two_are_used_wholly() {
        for granules in [1, 3, 7, 100, 513] {
            let mut buddy = Buddy::new(granules);
            assert_eq!(buddy.free_granules(), granules as usize);
            let mut taken: Vec<_> = std::iter::from_fn(|| buddy.alloc(0)).collect();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..granules));
        }
    }

    proptest! {
        #[test]
        fn blocks_are_aligned_and_never_overlap(
            granules in 1u32..300,
            steps in prop::collection::vec((0usize..6, any::<prop::sample::Index>(), any::<bool>()), 1..300),
        ) {
            let mut buddy = Buddy::new(granules);
            let mut taken: Vec<(u32, usize)> = Vec::new();
            let mut used = vec![false; granules as usize];
            for (order, index, allocates) in steps {
                if allocates {
                    let Some(start) = buddy.alloc(order) else { continue };
                    prop_assert_eq!(start % (1 << order), 0);
                    for granule in start..start + (1 << order) {
                        prop_assert!(!std::mem::replace(&mut used[granule as usize], true));
                    }
                    taken.push((start, order));
                } else if !taken.is_empty() {
                    let (start, order) = taken.swap_remove(index.index(taken.len()));
                    buddy.free(start, order);
                    used[start as usize..start as usize + (1 << order)].fill(false);
                }
                let free = used.iter().filter(|&&used| !used).count();
                prop_assert_eq!(buddy.free_granules(), free);
            }
            // All of it back: the largest block can be had again.
            for (start, order) in taken {
                buddy.free(start, order);
            }
            prop_assert!(buddy.alloc(granules.ilog2() as usize).is_some());
        }
    }
}
