//! Faster, slower, the same, or not known yet.
//!
//! "No significant difference" is not "the same": it may only mean that the run was short. *Same* is
//! given when the data exclude every difference larger than a margin, and never because a p-value is
//! large. What is neither is *inconclusive*, with the number of pairs that would settle it.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::holm;
use crate::paired::Comparison;

/// Probability with which the number of pairs that an inconclusive verdict names is to settle it.
const POWER: f64 = 0.9;

/// What can be said about B against A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Verdict {
    /// B costs less.
    Faster,
    /// B costs more.
    Slower,
    /// B costs the same within ±`margin` (0.01 is 1 %).
    Same {
        /// The margin asked for.
        margin: f64,
    },
    /// Neither is shown.
    Inconclusive {
        /// Pairs, those of this run included, that would settle it nine times in ten if the effect is
        /// what it seems now. `None` when no reasonable number would.
        pairs_needed: Option<u64>,
    },
}

/// What a verdict must show.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Criteria {
    /// *Same* means within ± this (0.01 is 1 %). Without one, *same* is never given.
    pub margin: Option<f64>,
    /// *Faster* and *slower* need an effect of at least this size; 0 for any.
    pub min_effect: f64,
}

/// The verdict on one comparison, at the confidence that it was made with.
pub fn judge(comparison: &Comparison, criteria: &Criteria) -> Verdict {
    judge_adjusted(comparison, criteria, true)
}

/// The verdicts on the comparisons of one family (the paths of one run): a difference must also be
/// significant after Holm's adjustment of all of them.
pub fn judge_family(comparisons: &[Comparison], criteria: &Criteria) -> Vec<Verdict> {
    let p_values: Vec<f64> = comparisons.iter().map(|comparison| comparison.p_value).collect();
    let adjusted = holm::adjust(&p_values);
    let verdict = |(comparison, p): (&Comparison, f64)| {
        judge_adjusted(comparison, criteria, p <= 1.0 - comparison.confidence)
    };
    comparisons.iter().zip(adjusted).map(verdict).collect()
}

fn judge_adjusted(comparison: &Comparison, criteria: &Criteria, significant_in_family: bool) -> Verdict {
    let differs = !comparison.ratio_interval.contains(1.0);
    let large_enough = comparison.effect().abs() >= criteria.min_effect;
    if differs && large_enough && significant_in_family {
        return if comparison.ratio < 1.0 { Verdict::Faster } else { Verdict::Slower };
    }
    if let Some(margin) = criteria.margin.filter(|&margin| margin > 0.0) {
        let bounds = comparison.equivalence_interval;
        if bounds.low > (1.0 + margin).recip() && bounds.high < 1.0 + margin {
            return Verdict::Same { margin };
        }
    }
    Verdict::Inconclusive { pairs_needed: pairs_needed(comparison, criteria) }
}

/// Pairs that would settle it, from how wide the intervals are now: widths shrink with the root of the
/// number of pairs (and of blocks, which must grow alike).
fn pairs_needed(comparison: &Comparison, criteria: &Criteria) -> Option<u64> {
    let alpha = 1.0 - comparison.confidence;
    let effect = comparison.ratio.ln().abs();
    let different = (comparison.effect().abs() >= criteria.min_effect)
        .then(|| growth(log_half_width(comparison.ratio_interval), effect, alpha / 2.0));
    let same = criteria.margin.map(|margin| {
        growth(log_half_width(comparison.equivalence_interval), margin.ln_1p() - effect, alpha)
    });
    let factor = different.into_iter().chain(same).flatten().min_by(f64::total_cmp)?;
    let pairs = (comparison.pairs as f64 * factor).ceil();
    (pairs < 1e12).then(|| (pairs as u64).max(comparison.pairs + 1))
}

/// How many times the data would make a distance of `room` visible at one-sided level `tail`.
fn growth(half_width: f64, room: f64, tail: f64) -> Option<f64> {
    if room <= 0.0 || !half_width.is_finite() {
        return None;
    }
    let normal = Normal::standard();
    let reach = 1.0 + normal.inverse_cdf(POWER) / -normal.inverse_cdf(tail);
    Some((half_width / room * reach).powi(2))
}

fn log_half_width(interval: crate::quantile::Interval) -> f64 {
    interval.map(f64::ln).half_width()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Bound;
    use crate::quantile::Interval;

    /// A comparison whose 95 % interval of the log ratio is `effect` ± `half_width`.
    fn comparison(effect: f64, half_width: f64) -> Comparison {
        let around = |half: f64| Interval { low: effect - half, high: effect + half }.map(f64::exp);
        Comparison {
            pairs: 1_000,
            unusable: 0,
            blocks: 1,
            confidence: 0.95,
            a_ns: 200.0,
            b_ns: 200.0 * effect.exp(),
            ratio: effect.exp(),
            ratio_interval: around(half_width),
            equivalence_interval: around(half_width * 1.645 / 1.96),
            difference_ns: 200.0 * effect.exp_m1(),
            difference_interval: Interval { low: 0.0, high: 0.0 },
            p_value: if effect.abs() > half_width { 0.04 } else { 0.3 },
            inflation: 1.0,
            bound: Bound::Pairs,
            pair_sd: 0.02,
            hodges_lehmann_ratio: effect.exp(),
        }
    }

    fn within(margin: f64) -> Criteria {
        Criteria { margin: Some(margin), min_effect: 0.0 }
    }

    #[test]
    fn a_difference_has_a_direction() {
        assert_eq!(judge(&comparison(0.01, 0.002), &Criteria::default()), Verdict::Slower);
        assert_eq!(judge(&comparison(-0.01, 0.002), &within(0.001)), Verdict::Faster);
    }

    #[test]
    fn same_needs_the_whole_interval_within_the_margin() {
        assert_eq!(judge(&comparison(0.001, 0.002), &within(0.005)), Verdict::Same { margin: 0.005 });
        assert!(matches!(judge(&comparison(0.001, 0.005), &within(0.005)), Verdict::Inconclusive { .. }));
        // However large the p-value, without a margin nothing is called the same.
        let unsure = Comparison { p_value: 0.99, ..comparison(0.0, 0.002) };
        assert_eq!(judge(&unsure, &Criteria::default()), Verdict::Inconclusive { pairs_needed: None });
        assert!(matches!(judge(&comparison(0.0, 0.002), &within(0.0)), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn a_difference_too_small_to_matter_may_be_the_same() {
        let criteria = Criteria { margin: Some(0.005), min_effect: 0.005 };
        assert_eq!(judge(&comparison(0.002, 0.001), &criteria), Verdict::Same { margin: 0.005 });
    }

    #[test]
    fn what_is_missing_is_said_in_pairs() {
        // Half width 2 at effect 1: (2 (1 + 1.28155 / 1.95996))² = 10.942 times the pairs.
        let verdict = judge(&comparison(0.001, 0.002), &Criteria::default());
        assert_eq!(verdict, Verdict::Inconclusive { pairs_needed: Some(10_942) });
        // Within 1 %: half width 1.0071 % of 0.9950 % room, (1.0122 (1 + 1.2816 / 1.6449))² = 3.24.
        let Verdict::Inconclusive { pairs_needed: Some(pairs) } =
            judge(&comparison(0.0, 0.012), &within(0.01))
        else {
            panic!("12 per mille is not within 10")
        };
        assert!((3_200..3_300).contains(&pairs), "{pairs}");
    }

    #[test]
    fn a_family_asks_more_of_each_of_its_members() {
        let one = comparison(0.01, 0.002);
        assert_eq!(judge_family(&[one], &Criteria::default()), [Verdict::Slower]);
        let verdicts = judge_family(&[one, comparison(0.0, 0.002)], &Criteria::default());
        assert!(matches!(verdicts[0], Verdict::Inconclusive { .. }), "p 0.04, twice, is 0.08");
        let sure = Comparison { p_value: 0.001, ..one };
        assert_eq!(judge_family(&[sure, one], &Criteria::default()), [Verdict::Slower, Verdict::Slower]);
    }
}
