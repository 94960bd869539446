//! The sign test: does one of two outcomes come up more often than a coin would allow?
//!
//! It asks nothing of the size of the differences, so that no outlier can move it.

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal};

/// Two-sided p-value of `positive` against `negative` signs; ties are left out by the caller.
///
/// With `inflation` 1 it is exact (twice the smaller binomial tail). With a larger one the signs are
/// taken to depend on their neighbours so that their sum varies `inflation` times as much, and the
/// normal approximation with that variance and a continuity correction is used. An `inflation` below
/// 1 or not a number counts as 1. Without signs the result is 1.
pub fn two_sided_p(positive: u64, negative: u64, inflation: f64) -> f64 {
    let n = positive + negative;
    if n == 0 {
        return 1.0;
    }
    if inflation > 1.0 {
        return (2.0 * Normal::standard().sf(standardised(positive, negative, inflation))).min(1.0);
    }
    let Ok(coin) = Binomial::new(0.5, n) else { return 1.0 };
    (2.0 * coin.cdf(positive.min(negative))).min(1.0)
}

/// Chance that a fair coin shows heads at least `heads` times in `throws`; 1 without throws.
pub(crate) fn upper_tail(heads: u64, throws: u64) -> f64 {
    let Ok(coin) = Binomial::new(0.5, throws) else { return 1.0 };
    if heads == 0 { 1.0 } else { coin.sf(heads - 1) }
}

/// How many standard deviations the sum of the signs lies from 0, continuity corrected, not below 0.
pub(crate) fn standardised(positive: u64, negative: u64, inflation: f64) -> f64 {
    let n = (positive + negative) as f64;
    let excess = positive.abs_diff(negative) as f64;
    (excess - 1.0).max(0.0) / (n * inflation).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_values_are_those_of_the_binomial() {
        // 2 (1 + 10 + 45) / 1024 and 2 / 64.
        assert!((two_sided_p(8, 2, 1.0) - 0.109375).abs() < 1e-12);
        assert!((two_sided_p(6, 0, 1.0) - 0.03125).abs() < 1e-12);
        assert_eq!(two_sided_p(5, 5, 1.0), 1.0);
        assert_eq!(two_sided_p(0, 0, 1.0), 1.0);
    }

    #[test]
    fn approximation_meets_the_exact_value_for_many_signs() {
        let exact = two_sided_p(5_100, 4_900, 1.0);
        let approximate = two_sided_p(5_100, 4_900, 1.000_001);
        assert!((exact - approximate).abs() < 1e-3, "{exact} {approximate}");
    }

    #[test]
    fn dependence_makes_the_same_signs_say_less() {
        assert!(two_sided_p(5_100, 4_900, 4.0) > two_sided_p(5_100, 4_900, 1.0));
        assert_eq!(two_sided_p(70, 30, f64::NAN), two_sided_p(70, 30, 1.0));
    }
}
