//! Medians with exact intervals, and spread that outliers do not move.
//!
//! Costs of slices have heavy tails: an interrupt or a neighbour adds microseconds to one slice in
//! twenty. A mean follows them, a median does not. The interval of a median needs no assumption on
//! the shape of the distribution: it lies between two order statistics whose ranks come from the
//! binomial distribution (David and Nagaraja, Order Statistics, 3rd ed., 7.1).

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal};

/// The median absolute deviation times this estimates the standard deviation of normal data.
const MAD_TO_SD: f64 = 1.482_602_218_505_602;

/// A closed range of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end, not below `low`.
    pub high: f64,
}

impl Interval {
    /// Half of the width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Whether `value` lies inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Both ends through a function that does not decrease.
    pub(crate) fn map(self, increasing: impl Fn(f64) -> f64) -> Interval {
        Interval { low: increasing(self.low), high: increasing(self.high) }
    }
}

/// The median; of an even number of values the mean of the middle two. Reorders `values`, in O(n).
/// `None` without values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    if n % 2 == 1 {
        return Some(upper);
    }
    let lower = below.iter().copied().max_by(f64::total_cmp)?;
    Some(lower + (upper - lower) / 2.0)
}

/// Interval of the median of independent values, at least `confidence` exactly. `None` when there
/// are too few values (below 6 at 95 %) or `confidence` is not between 0 and 1.
///
/// For values that may depend on their neighbours see [`crate::cluster`].
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let (low, high) = median_ranks(values.len(), confidence)?;
    Some(order_statistics(&mut values.to_vec(), low, high))
}

/// The ranks, counted from 1, between which the median of `n` independent values lies with at least
/// `confidence`: 10 and 21 of 30, 40 and 61 of 100, 86 and 115 of 200.
pub fn median_ranks(n: usize, confidence: f64) -> Option<(usize, usize)> {
    if n == 0 || !(confidence > 0.0 && confidence < 1.0) {
        return None;
    }
    let tail = (1.0 - confidence) / 2.0;
    let below = Binomial::new(0.5, n as u64).ok()?;
    let z = -Normal::standard().inverse_cdf(tail);
    // The normal approximation is within a rank or two; the exact tail decides.
    let mut low = (n as f64 / 2.0 - z * (n as f64).sqrt() / 2.0).max(0.0) as u64;
    while low > 0 && below.cdf(low - 1) > tail {
        low -= 1;
    }
    while low < n as u64 / 2 && below.cdf(low) <= tail {
        low += 1;
    }
    (low > 0).then_some((low as usize, n + 1 - low as usize))
}

/// The values of ranks `low` and `high` (from 1, `low` ≤ `high` ≤ length). Reorders `values`.
pub(crate) fn order_statistics(values: &mut [f64], low: usize, high: usize) -> Interval {
    let (_, &mut low_value, above) = values.select_nth_unstable_by(low - 1, f64::total_cmp);
    if high == low {
        return Interval { low: low_value, high: low_value };
    }
    let (_, &mut high_value, _) = above.select_nth_unstable_by(high - low - 1, f64::total_cmp);
    Interval { low: low_value, high: high_value }
}

/// The value below which `share` (0 to 1) of the values lie, with linear interpolation between
/// neighbours (Hyndman and Fan's type 7). Reorders `values`; `None` without values.
pub fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    let n = values.len();
    if n == 0 || !(0.0..=1.0).contains(&share) {
        return None;
    }
    let place = share * (n - 1) as f64;
    let rank = place.floor() as usize;
    let (_, &mut lower, above) = values.select_nth_unstable_by(rank, f64::total_cmp);
    let upper = above.iter().copied().min_by(f64::total_cmp).unwrap_or(lower);
    Some(lower + (upper - lower) * (place - rank as f64))
}

/// Standard deviation as the median absolute deviation gives it: right for normal data, unmoved by
/// outliers. `None` without values.
pub fn robust_sd(values: &[f64]) -> Option<f64> {
    let mut work = values.to_vec();
    let centre = median(&mut work)?;
    for value in &mut work {
        *value = (*value - centre).abs();
    }
    median(&mut work).map(|mad| mad * MAD_TO_SD)
}

/// The Hodges–Lehmann estimate of the centre: the median of the means of all pairs of values, each
/// value with itself included. It uses normal data better than the median does, and is shown beside
/// it: where the two differ much, the distribution is skewed. `None` without values or when one is
/// not finite. O(n log n).
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let means = sorted.len() as u64 * (sorted.len() as u64 + 1) / 2;
    let upper = walsh_sum(&sorted, means / 2);
    if means % 2 == 1 {
        return Some(upper / 2.0);
    }
    let lower = walsh_sum(&sorted, means / 2 - 1);
    Some((lower / 2.0 + upper / 2.0) / 2.0)
}

/// The sum x[i] + x[j], i ≤ j, of rank `rank` (from 0), found by halving the range of floating-point
/// numbers until one is left.
fn walsh_sum(sorted: &[f64], rank: u64) -> f64 {
    let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
    let (mut low, mut high) = (ordered_bits(first + first), ordered_bits(last + last));
    while low < high {
        let middle = low + (high - low) / 2;
        if sums_up_to(sorted, from_ordered_bits(middle)) > rank {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    from_ordered_bits(low)
}

/// How many sums x[i] + x[j], i ≤ j, are at most `bound`.
fn sums_up_to(sorted: &[f64], bound: f64) -> u64 {
    let mut count = 0;
    let mut end = sorted.len();
    for (i, &x) in sorted.iter().enumerate() {
        while end > i && x + sorted[end - 1] > bound {
            end -= 1;
        }
        if end <= i {
            break;
        }
        count += (end - i) as u64;
    }
    count
}

/// An integer that orders like the number.
fn ordered_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

fn from_ordered_bits(ordered: u64) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_are_those_of_the_binomial_tables() {
        for (n, ranks) in [(6, (1, 6)), (10, (2, 9)), (30, (10, 21)), (100, (40, 61)), (200, (86, 115))] {
            assert_eq!(median_ranks(n, 0.95), Some(ranks), "n = {n}");
        }
        assert_eq!(median_ranks(5, 0.95), None);
        assert_eq!(median_ranks(0, 0.95), None);
        assert_eq!(median_ranks(30, 1.0), None);
        assert_eq!(median_ranks(30, f64::NAN), None);
    }

    #[test]
    fn ranks_are_the_narrowest_that_keep_the_confidence() {
        for n in (6..400).chain([5_000, 50_000]) {
            let Some((low, high)) = median_ranks(n, 0.95) else { panic!("n = {n}") };
            assert_eq!(low + high, n + 1);
            assert!(tail(n, low - 1) <= 0.025, "n = {n}, low = {low}");
            assert!(tail(n, low) > 0.025, "n = {n}, low = {low} could be higher");
        }
    }

    /// P(X ≤ k) of a fair binomial, summed directly.
    fn tail(n: usize, k: usize) -> f64 {
        let mut log_term = -(n as f64) * std::f64::consts::LN_2;
        let mut sum = 0.0;
        for i in 0..=k {
            sum += log_term.exp();
            log_term += ((n - i) as f64).ln() - ((i + 1) as f64).ln();
        }
        sum
    }

    #[test]
    fn interval_takes_the_ranked_values() {
        let values: Vec<f64> = (1..=30).rev().map(f64::from).collect();
        assert_eq!(median_interval(&values, 0.95), Some(Interval { low: 10.0, high: 21.0 }));
        assert_eq!(median_interval(&values[..5], 0.95), None);
    }

    #[test]
    fn quantiles_interpolate() {
        let mut values: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.1), Some(1.0));
        assert_eq!(quantile(&mut values, 0.25), Some(2.5));
        assert_eq!(quantile(&mut values, 1.0), Some(10.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn robust_sd_ignores_a_tenth_of_outliers() {
        // Normal quantiles, a tenth of them replaced.
        let normal = Normal::new(5.0, 2.0).unwrap();
        let mut values: Vec<f64> = (1..1_000).map(|i| normal.inverse_cdf(f64::from(i) / 1_000.0)).collect();
        assert!((robust_sd(&values).unwrap() - 2.0).abs() < 0.01);
        values.iter_mut().step_by(20).for_each(|value| *value = 1e6);
        assert!((robust_sd(&values).unwrap() - 2.0).abs() < 0.2);
    }

    #[test]
    fn fifty_thousand_values_are_no_trouble() {
        let values: Vec<f64> = (0..50_000u64).map(|i| (i * 7_919 % 50_000) as f64).collect();
        assert_eq!(hodges_lehmann(&values), Some(24_999.5));
        assert_eq!(median(&mut values.clone()), Some(24_999.5));
    }

    proptest! {
        #[test]
        fn hodges_lehmann_is_the_median_of_the_means(values in prop::collection::vec(-1e6f64..1e6, 1..40)) {
            let mut means = Vec::new();
            for (i, x) in values.iter().enumerate() {
                means.extend(values[i..].iter().map(|y| (x + y) / 2.0));
            }
            let wanted = median(&mut means).unwrap();
            let got = hodges_lehmann(&values).unwrap();
            prop_assert!((got - wanted).abs() <= 1e-9 * wanted.abs().max(1.0), "{got} {wanted}");
        }

        #[test]
        fn median_is_the_middle_of_the_sorted(values in prop::collection::vec(-1e6f64..1e6, 1..60)) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let n = sorted.len();
            let wanted = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
            prop_assert!((median(&mut values.clone()).unwrap() - wanted).abs() < 1e-9);
        }

        #[test]
        fn ordered_bits_order(x in any::<f64>(), y in any::<f64>()) {
            prop_assert_eq!(x.total_cmp(&y), ordered_bits(x).cmp(&ordered_bits(y)));
            prop_assert_eq!(from_ordered_bits(ordered_bits(x)).to_bits(), x.to_bits());
        }
    }
}
