//! When one may look at the data and stop.
//!
//! Looking after every few pairs and stopping at the first p < 0.05 finds a difference between a
//! program and itself in 26 to 32 % of runs. Either the number of pairs is fixed beforehand, or
//! there are a few planned looks, each at a stricter level (Pocock 1977), or neither is honest.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Pocock's nominal two-sided level of each look for 1 to 5 equally spaced looks at 5 % overall
/// (Pocock, Biometrika 64, 1977, table 1).
const POCOCK_ALPHA: [f64; 5] = [0.05, 0.0294, 0.0221, 0.0182, 0.0158];

/// A plan to look: equally spaced looks, the last one at the planned number of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LooksFields", into = "LooksFields")]
pub struct Looks {
    planned_pairs: u64,
    looks: u32,
}

/// A plan that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("plan {looks} looks at {planned_pairs} pairs: there must be 1 to 5 looks and a pair for each")]
pub struct LooksError {
    /// Pairs asked for.
    pub planned_pairs: u64,
    /// Looks asked for.
    pub looks: u32,
}

impl Looks {
    /// Looks at equal distances up to `planned_pairs`.
    ///
    /// # Errors
    /// Fewer than 1 or more than 5 looks, or fewer pairs than looks.
    pub fn new(planned_pairs: u64, looks: u32) -> Result<Looks, LooksError> {
        if looks == 0 || looks as usize > POCOCK_ALPHA.len() || planned_pairs < u64::from(looks) {
            return Err(LooksError { planned_pairs, looks });
        }
        Ok(Looks { planned_pairs, looks })
    }

    /// The usual plan: five looks.
    ///
    /// # Errors
    /// Fewer than five pairs.
    pub fn five(planned_pairs: u64) -> Result<Looks, LooksError> {
        Looks::new(planned_pairs, 5)
    }

    /// No early look: one verdict at exactly `planned_pairs`, at the full 95 %.
    ///
    /// # Errors
    /// No pairs.
    pub fn fixed(planned_pairs: u64) -> Result<Looks, LooksError> {
        Looks::new(planned_pairs, 1)
    }

    /// Pairs at the last look.
    pub fn planned_pairs(&self) -> u64 {
        self.planned_pairs
    }

    /// How many looks.
    pub fn count(&self) -> u32 {
        self.looks
    }

    /// Two-sided level at each look.
    pub fn nominal_alpha(&self) -> f64 {
        POCOCK_ALPHA[self.looks as usize - 1]
    }

    /// Confidence of the interval at each look: 0.9842 for five looks, 0.95 for a fixed number.
    pub fn nominal_confidence(&self) -> f64 {
        1.0 - self.nominal_alpha()
    }

    /// Pairs at look `look`, counted from 1; `None` when there is no such look.
    pub fn pairs_at(&self, look: u32) -> Option<u64> {
        if look == 0 || look > self.looks {
            return None;
        }
        let product = u128::from(self.planned_pairs) * u128::from(look);
        Some(product.div_ceil(u128::from(self.looks)) as u64)
    }

    /// How many looks have fallen due. For a caller whose pairs come several at a time: look when
    /// this number has grown.
    pub fn looks_due(&self, pairs_done: u64) -> u32 {
        (1..=self.looks)
            .take_while(|&look| self.pairs_at(look).is_some_and(|pairs| pairs <= pairs_done))
            .count() as u32
    }
}

#[derive(Serialize, Deserialize)]
struct LooksFields {
    planned_pairs: u64,
    looks: u32,
}

impl TryFrom<LooksFields> for Looks {
    type Error = LooksError;
    fn try_from(fields: LooksFields) -> Result<Looks, LooksError> {
        Looks::new(fields.planned_pairs, fields.looks)
    }
}

impl From<Looks> for LooksFields {
    fn from(looks: Looks) -> LooksFields {
        LooksFields { planned_pairs: looks.planned_pairs, looks: looks.looks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_looks_are_equally_spaced_and_strict() {
        let looks = Looks::five(5_000).unwrap();
        let at: Vec<u64> = (1..=5).filter_map(|look| looks.pairs_at(look)).collect();
        assert_eq!(at, [1_000, 2_000, 3_000, 4_000, 5_000]);
        assert!((looks.nominal_confidence() - 0.9842).abs() < 1e-12);
        let due = [999, 1_000, 2_001, 4_999, 5_000].map(|pairs| looks.looks_due(pairs));
        assert_eq!(due, [0, 1, 2, 4, 5]);
    }

    #[test]
    fn uneven_numbers_still_end_at_the_planned_pairs() {
        let looks = Looks::five(13).unwrap();
        assert_eq!(looks.pairs_at(5), Some(13));
        assert_eq!(looks.pairs_at(1), Some(3));
        assert_eq!(looks.pairs_at(6), None);
    }

    #[test]
    fn a_fixed_number_is_one_look_at_95_percent() {
        let fixed = Looks::fixed(300).unwrap();
        assert_eq!(fixed.nominal_confidence(), 0.95);
        assert_eq!((fixed.looks_due(299), fixed.looks_due(300)), (0, 1));
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(Looks::new(100, 0).is_err());
        assert!(Looks::new(100, 6).is_err());
        assert!(Looks::five(4).is_err());
        assert!(Looks::fixed(0).is_err());
    }
}
