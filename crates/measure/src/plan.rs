//! How many pairs will be needed, and what a given number can find.
//!
//! Printed before a run, so that nobody waits for an answer that the run cannot give.

use statrs::distribution::{ContinuousCDF, Normal};

/// Efficiency of the median under normal noise, about 2/π: a mean of 64 pairs is as precise as a median
/// of 100. With heavy tails the median does better than this, so plans err towards more pairs.
pub const MEDIAN_EFFICIENCY: f64 = 0.64;

/// Power that a plan aims at unless told otherwise.
pub const DEFAULT_POWER: f64 = 0.9;

/// Pairs that find a relative effect of `effect` (0.01 is 1 %) with probability `power`, at a two-sided
/// level of 1 − `confidence`, when the log ratio of a pair has the standard deviation `pair_sd`. `None`
/// when no number does or an argument makes no sense.
pub fn pairs_needed(effect: f64, pair_sd: f64, confidence: f64, power: f64) -> Option<u64> {
    let quantiles = two_sided(confidence)? + one_sided(power)?;
    median_pairs(quantiles, pair_sd, (1.0 + effect).ln().abs())
}

/// Pairs that show a true effect of 0 to be within ±`margin` with probability `power`, by two one-sided
/// tests at a level of 1 − `confidence` each.
pub fn pairs_needed_for_same(margin: f64, pair_sd: f64, confidence: f64, power: f64) -> Option<u64> {
    let quantiles = one_sided(confidence)? + one_sided(1.0 - (1.0 - power) / 2.0)?;
    median_pairs(quantiles, pair_sd, (1.0 + margin).ln().abs())
}

/// The smallest relative effect that `pairs` pairs find with probability `power`.
pub fn minimal_effect(pairs: u64, pair_sd: f64, confidence: f64, power: f64) -> Option<f64> {
    let quantiles = two_sided(confidence)? + one_sided(power)?;
    let effect = (quantiles * pair_sd / (MEDIAN_EFFICIENCY * pairs as f64).sqrt()).exp_m1();
    (pairs > 0 && effect.is_finite() && effect >= 0.0).then_some(effect)
}

fn median_pairs(quantiles: f64, pair_sd: f64, log_effect: f64) -> Option<u64> {
    let pairs = (quantiles * pair_sd / log_effect).powi(2) / MEDIAN_EFFICIENCY;
    // An effect too small for any run to find is answered by None, not by a number with 15 digits.
    (pairs.is_finite() && pair_sd >= 0.0 && pairs < 1e12).then(|| (pairs.ceil() as u64).max(1))
}

fn two_sided(confidence: f64) -> Option<f64> {
    one_sided(0.5 + confidence / 2.0)
}

fn one_sided(probability: f64) -> Option<f64> {
    (probability > 0.0 && probability < 1.0).then(|| Normal::standard().inverse_cdf(probability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_table_over_the_efficiency_of_the_median() {
        // (z + z)² (sd / ln(1 + δ))² gives 3, 11, 25, 67, 172 for a mean at δ = 2 %.
        for (pair_sd, for_a_mean) in [(0.01, 3.0), (0.02, 11.0), (0.03, 25.0), (0.05, 67.0), (0.08, 172.0)] {
            let pairs = pairs_needed(0.02, pair_sd, 0.95, 0.9).unwrap() as f64;
            let mean = pairs * MEDIAN_EFFICIENCY;
            assert!(mean > for_a_mean - 1.0 && mean <= for_a_mean + MEDIAN_EFFICIENCY, "{pair_sd}: {pairs}");
        }
        // Two one-sided tests at ±1 %: 44 and 99 for a mean.
        for (pair_sd, for_a_mean) in [(0.02, 44.0), (0.03, 99.0)] {
            let mean = pairs_needed_for_same(0.01, pair_sd, 0.95, 0.9).unwrap() as f64 * MEDIAN_EFFICIENCY;
            assert!(mean > for_a_mean - 1.0 && mean <= for_a_mean + MEDIAN_EFFICIENCY, "{pair_sd}: {mean}");
        }
    }

    #[test]
    fn the_minimal_effect_is_what_its_pairs_find() {
        let effect = minimal_effect(5_000, 0.025, 0.95, 0.9).unwrap();
        let pairs = pairs_needed(effect, 0.025, 0.95, 0.9).unwrap();
        assert!((4_999..=5_001).contains(&pairs), "{effect} {pairs}");
    }

    #[test]
    fn no_effect_cannot_be_planned_for() {
        assert_eq!(pairs_needed(0.0, 0.02, 0.95, 0.9), None);
        assert_eq!(pairs_needed(-1.5, 0.02, 0.95, 0.9), None);
        assert_eq!(pairs_needed(0.01, f64::NAN, 0.95, 0.9), None);
        assert_eq!(pairs_needed(0.01, 0.02, 1.0, 0.9), None);
        assert_eq!(minimal_effect(0, 0.02, 0.95, 0.9), None);
    }
}
