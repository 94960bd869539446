//! From which frame size on is the other variant cheaper?
//!
//! Answered from verdicts alone: a size at which two variants are the same, or at which it is not known, is on neither side.

use crate::verdict::Verdict;

/// The fewest sizes that an answer is given for: two cannot show that it changes just once.
pub const SIZES_LEAST: usize = 3;

/// One of the two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// The first.
    A,
    /// The second.
    B,
}

/// Which variant is cheaper, over frame sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crossover {
    /// The cheaper one changes at these places, in the order of sizes: at least one.
    At(Vec<Change>),
    /// One is cheaper at every size that is decided.
    Never {
        /// Which.
        cheaper: Arm,
        /// Sizes that are decided.
        decided: usize,
        /// All sizes.
        sizes: usize,
    },
    /// At no size one of them is known to be cheaper.
    Undecided,
}

/// Two sizes, of which the smaller has another cheaper variant than the larger, and none between them is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The last size before, in bytes.
    pub below: u32,
    /// The first one after.
    pub above: u32,
    /// What is cheaper from there on.
    pub cheaper_above: Arm,
}

/// Finds it in verdicts of B against A, one for each frame size in bytes, in any order. None for fewer than
/// [`SIZES_LEAST`] sizes.
pub fn crossover(points: &[(u32, Verdict)]) -> Option<Crossover> {
    if points.len() < SIZES_LEAST {
        return None;
    }
    let mut decided: Vec<(u32, Arm)> =
        points.iter().filter_map(|&(size, verdict)| Some((size, cheaper(verdict)?))).collect();
    decided.sort_by_key(|&(size, _)| size);
    let changes: Vec<Change> = decided
        .windows(2)
        .filter(|pair| pair[0].1 != pair[1].1)
        .map(|pair| Change { below: pair[0].0, above: pair[1].0, cheaper_above: pair[1].1 })
        .collect();
    Some(match decided.first() {
        None => Crossover::Undecided,
        Some(&(_, cheaper)) if changes.is_empty() => {
            Crossover::Never { cheaper, decided: decided.len(), sizes: points.len() }
        }
        Some(_) => Crossover::At(changes),
    })
}

fn cheaper(verdict: Verdict) -> Option<Arm> {
    match verdict {
        Verdict::Faster => Some(Arm::B),
        Verdict::Slower => Some(Arm::A),
        Verdict::Same { .. } | Verdict::Inconclusive { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: Verdict = Verdict::Same { margin: 0.005 };
    const OPEN: Verdict = Verdict::Inconclusive { pairs_needed: None };

    #[test]
    fn the_change_lies_between_the_decided_sizes() {
        let points = [
            (1024, SAME),
            (64, Verdict::Slower),
            (512, Verdict::Slower),
            (2048, OPEN),
            (9000, Verdict::Faster),
        ];
        let change = Change { below: 512, above: 9000, cheaper_above: Arm::B };
        assert_eq!(crossover(&points), Some(Crossover::At(vec![change])));
    }

    #[test]
    fn it_may_change_more_than_once() {
        let points = [(64, Verdict::Faster), (128, Verdict::Slower), (256, Verdict::Faster)];
        let Some(Crossover::At(changes)) = crossover(&points) else { panic!("{points:?}") };
        assert_eq!(changes.iter().map(|change| change.cheaper_above).collect::<Vec<_>>(), [Arm::A, Arm::B]);
    }

    #[test]
    fn without_a_change_one_is_cheaper_or_nothing_is_known() {
        let points = [(64, Verdict::Faster), (128, OPEN), (256, Verdict::Faster)];
        let never = Crossover::Never { cheaper: Arm::B, decided: 2, sizes: 3 };
        assert_eq!(crossover(&points), Some(never));
        assert_eq!(crossover(&[(64, OPEN), (128, SAME), (256, OPEN)]), Some(Crossover::Undecided));
    }

    #[test]
    fn two_sizes_tell_nothing() {
        assert_eq!(crossover(&[(64, Verdict::Faster), (128, Verdict::Slower)]), None);
    }
}
