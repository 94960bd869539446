//! Shares of a few runs: what they have in common, and whether one setting receives more than another.
//!
//! A share received has no distribution that one would want to assume: it is 1 in most runs and 0.9 in one. So medians stand
//! here, with intervals between order statistics (as in [`crate::quantile`]), which hold for any distribution. With few runs
//! these cannot have 95 %: five runs give 93.75 % from the least to the greatest value, and that is what is said.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::quantile::{Interval, median, median_ranks, order_statistics};

/// What is asked of an interval where the runs are enough.
const CONFIDENCE: f64 = 0.95;
/// The least level of an interval that says anything: that of five values.
pub const VERDICT_CONFIDENCE: f64 = 0.9;

/// A median, its interval, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MedianOf {
    /// The median.
    pub median: f64,
    /// Between which values the true median lies.
    pub interval: Interval,
    /// With which probability: at least 0.95 from six runs on, less with fewer; 0 for a single one.
    pub confidence: f64,
}

/// B against A, in runs made in pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ShareDifference {
    /// Pairs of runs.
    pub pairs: u64,
    /// Share received with B less that with A.
    pub difference: MedianOf,
    /// What that says.
    pub verdict: ShareVerdict,
}

/// What a difference says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareVerdict {
    /// B receives more.
    MoreReceived,
    /// B receives fewer.
    FewerReceived,
    /// No pair differs.
    NoDifference,
    /// The interval has 0 in it, or there are fewer than five pairs, whose interval has no level worth the name.
    Inconclusive,
}

/// The median of a few independent values. The interval is the one of 95 % where there are enough of them, else from the
/// least to the greatest. `None` without values.
pub fn median_of(values: &[f64]) -> Option<MedianOf> {
    let n = values.len();
    let mut values = values.to_vec();
    let median = median(&mut values)?;
    let (low, high) = median_ranks(n, CONFIDENCE).unwrap_or((1, n));
    let below = Binomial::new(0.5, n as u64).ok()?.cdf(low as u64 - 1);
    // One value is no interval, whatever the rounding of the sum says.
    let confidence = if low == high { 0.0 } else { (1.0 - 2.0 * below).max(0.0) };
    Some(MedianOf { median, interval: order_statistics(&mut values, low, high), confidence })
}

/// Compares the shares of pairs of runs, each A and B. `None` without pairs.
pub fn compare(pairs: &[(f64, f64)]) -> Option<ShareDifference> {
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
    let difference = median_of(&differences)?;
    let Interval { low, high } = difference.interval;
    let verdict = match () {
        () if difference.confidence < VERDICT_CONFIDENCE => ShareVerdict::Inconclusive,
        () if differences.iter().all(|&difference| difference == 0.0) => ShareVerdict::NoDifference,
        () if low > 0.0 => ShareVerdict::MoreReceived,
        () if high < 0.0 => ShareVerdict::FewerReceived,
        () => ShareVerdict::Inconclusive,
    };
    Some(ShareDifference { pairs: pairs.len() as u64, difference, verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_level_that_its_number_of_values_allows() {
        let of = |n: usize| median_of(&(1..=n).map(|value| value as f64).collect::<Vec<_>>()).unwrap();
        for (values, confidence) in [(1, 0.0), (2, 0.5), (5, 0.9375)] {
            assert!((of(values).confidence - confidence).abs() < 1e-12, "{values} values");
        }
        assert_eq!(of(5).interval, Interval { low: 1.0, high: 5.0 });
        assert!((of(6).confidence - 0.96875).abs() < 1e-12);
        assert_eq!(of(9).interval, Interval { low: 2.0, high: 8.0 });
        assert!(of(9).confidence >= 0.95);
        assert_eq!(median_of(&[]), None);
    }

    #[test]
    fn a_difference_is_told_only_where_all_of_its_interval_is_on_one_side() {
        let verdict = |differences: &[f64]| {
            let pairs: Vec<_> = differences.iter().map(|difference| (0.5, 0.5 + difference)).collect();
            compare(&pairs).unwrap().verdict
        };
        assert_eq!(verdict(&[0.1, 0.2, 0.1, 0.3, 0.1]), ShareVerdict::MoreReceived);
        assert_eq!(verdict(&[-0.1, -0.2, -0.1, -0.3, -0.1]), ShareVerdict::FewerReceived);
        assert_eq!(verdict(&[0.1, 0.2, -0.1, 0.3, 0.1]), ShareVerdict::Inconclusive);
        assert_eq!(verdict(&[0.0; 5]), ShareVerdict::NoDifference);
        assert_eq!(verdict(&[0.2]), ShareVerdict::Inconclusive);
        assert_eq!(verdict(&[0.2; 4]), ShareVerdict::Inconclusive, "87.5 % is no level to judge at");
        // Of nine, the interval leaves the least and the greatest out.
        assert_eq!(verdict(&[0.1, 0.1, 0.1, 0.1, -0.5, 0.1, 0.1, 0.1, 0.1]), ShareVerdict::MoreReceived);
        assert_eq!(compare(&[]), None);
    }
}
