//! Random order from a seed that is written down.
//!
//! Order matters because the machine drifts: whatever always runs second is measured on another
//! machine than what always runs first. The order is random, and the seed in the record repeats it.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// The seed of a run, as the record keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl Seed {
    /// The generator that this seed starts: xoshiro256++, seeded through SplitMix64.
    pub fn order(self) -> Order {
        Order(Xoshiro256PlusPlus::seed_from_u64(self.0))
    }
}

/// A stream of order decisions. The same seed gives the same decisions.
#[derive(Debug, Clone)]
pub struct Order(Xoshiro256PlusPlus);

impl Order {
    /// Whether A runs first in the next pair. True and false are equally likely.
    pub fn pair_order(&mut self) -> bool {
        self.0.next_u64() >> 63 == 0
    }

    /// Puts `items` in a uniformly random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            items.swap(last, chosen);
        }
    }

    /// A uniformly random number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Values from the incomplete last cycle would favour small results, so they are drawn again.
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let drawn = self.0.next_u64();
            if drawn < limit {
                return drawn % bound;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_order() {
        let (mut one, mut two) = (Seed(7).order(), Seed(7).order());
        let first: Vec<bool> = (0..64).map(|_| one.pair_order()).collect();
        let second: Vec<bool> = (0..64).map(|_| two.pair_order()).collect();
        assert_eq!(first, second);
        let mut other = Seed(8).order();
        assert_ne!(first, (0..64).map(|_| other.pair_order()).collect::<Vec<_>>());
    }

    #[test]
    fn both_orders_are_equally_likely() {
        let mut order = Seed(1).order();
        let a_first = (0..10_000).filter(|_| order.pair_order()).count();
        assert!((4_850..=5_150).contains(&a_first), "{a_first}");
    }

    #[test]
    fn shuffling_keeps_every_item_and_reaches_every_order() {
        let mut order = Seed(3).order();
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..6_000 {
            let mut items = [1, 2, 3];
            order.shuffle(&mut items);
            *seen.entry(items).or_insert(0u32) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|&count| (850..=1_150).contains(&count)), "{seen:?}");
    }
}
