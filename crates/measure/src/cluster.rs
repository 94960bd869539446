//! The interval of a median when neighbouring values are not independent.
//!
//! Neighbouring slices share a busy neighbour, a cache state, a frequency; and all slices between two
//! reloads of a program share where its code happens to lie. An interval that takes them for
//! independent is too narrow, and finds differences between a program and itself.
//!
//! The error of a median depends on the data through the signs of the deviations from it alone. So
//! the values are cut into clusters, and the sums of the signs of each cluster are compared: if the
//! values are independent, the sum over n values has variance n; what is found beyond that is the
//! *inflation*. This is done with two kinds of clusters:
//!
//! - runs of consecutive values ([`Bound::SubBlocks`]), which show drift and bursts, and
//! - real blocks ([`Bound::Blocks`]): reloads and rebuilds, where there are several. They show also
//!   what stays fixed within a block and differs between blocks (layout), and only their number says
//!   how well that is known.
//!
//! Each gives an interval by order statistics with the inflated variance and Student's t for its
//! number of clusters; independence gives the exact binomial one ([`Bound::Pairs`]). The widest of
//! the three is the interval, and it is said which it was.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::quantile::{Interval, median, median_ranks, order_statistics};
use crate::sign;

/// Fewest runs of consecutive values from which their dependence is estimated: with fewer, Student's t
/// leaves nothing of the estimate. So below 36 values neighbours are taken for independent.
pub const MIN_SUB_BLOCKS: usize = 6;

/// Most runs of consecutive values. There are about √n runs of √n values up to this number; from there on
/// the runs get longer, so that they outlast what disturbs a machine for seconds.
pub const MAX_SUB_BLOCKS: usize = 32;

/// What made the interval as wide as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The spread of single values: the interval is that of independent values.
    Pairs,
    /// Consecutive values resemble each other.
    SubBlocks,
    /// Blocks differ from each other by more than their values do, or are few.
    Blocks,
}

/// A median and what is known about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterMedian {
    /// The median of all values.
    pub median: f64,
    /// Its interval at the confidence asked for.
    pub interval: Interval,
    /// How many times the variance of independent values, at the scale in `bound`; at least 1.
    pub inflation: f64,
    /// Which scale made the interval as wide as it is.
    pub bound: Bound,
}

/// Median of `values`, which stand in the order of measurement; `blocks` names the block of each and
/// has the same length. `None` when there are too few values or blocks for an interval at
/// `confidence` (below 6 independent values at 95 %), when a value is not finite, or when the lengths
/// differ.
pub fn cluster_median(values: &[f64], blocks: &[u32], confidence: f64) -> Option<ClusterMedian> {
    Clusters::new(values, blocks)?.at(confidence)
}

/// The values with their dependence estimated once, to be asked at several confidences.
#[derive(Debug, Clone)]
pub(crate) struct Clusters {
    values: Vec<f64>,
    median: f64,
    scales: Vec<Scale>,
}

/// The dependence found at one scale.
#[derive(Debug, Clone, Copy)]
struct Scale {
    bound: Bound,
    inflation: f64,
    degrees_of_freedom: f64,
}

impl Clusters {
    pub(crate) fn new(values: &[f64], blocks: &[u32]) -> Option<Clusters> {
        if values.len() != blocks.len() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let centre = median(&mut values.to_vec())?;
        let signs: Vec<f64> = values.iter().map(|&value| sign_of(value - centre)).collect();
        let runs = block_runs(blocks);
        let mut scales = Vec::new();
        if runs.len() > 1 {
            scales.extend(Scale::of(Bound::Blocks, &signs, &runs));
        }
        let root = (values.len() as f64).sqrt().ceil() as usize;
        let sub_blocks = cut_runs(&runs, root.max(values.len() / MAX_SUB_BLOCKS));
        if sub_blocks.len() >= MIN_SUB_BLOCKS {
            scales.extend(Scale::of(Bound::SubBlocks, &signs, &sub_blocks));
        }
        Some(Clusters { values: values.to_vec(), median: centre, scales })
    }

    /// The median with its interval at `confidence`.
    pub(crate) fn at(&self, confidence: f64) -> Option<ClusterMedian> {
        let n = self.values.len();
        let (exact_low, _) = median_ranks(n, confidence)?;
        let (mut low, mut bound, mut inflation) = (exact_low, Bound::Pairs, 1.0);
        for scale in &self.scales {
            let half_spread = scale.t(confidence) * (n as f64 * scale.inflation).sqrt() / 2.0;
            let rank = n as f64 / 2.0 - half_spread;
            if rank < 1.0 {
                return None;
            }
            if (rank as usize) < low {
                (low, bound, inflation) = (rank as usize, scale.bound, scale.inflation.max(1.0));
            }
        }
        let interval = order_statistics(&mut self.values.clone(), low, n + 1 - low);
        Some(ClusterMedian { median: self.median, interval, inflation, bound })
    }

    /// Two-sided p-value of the median being 0: the largest that any of the scales gives.
    pub(crate) fn p_value(&self) -> f64 {
        let positive = self.values.iter().filter(|&&value| value > 0.0).count() as u64;
        let negative = self.values.iter().filter(|&&value| value < 0.0).count() as u64;
        let independent = sign::two_sided_p(positive, negative, 1.0);
        self.scales.iter().fold(independent, |p, scale| p.max(scale.p_value(positive, negative)))
    }
}

impl Scale {
    /// Compares the sums of signs of the clusters with what independence predicts. `None` with fewer
    /// than two clusters that count.
    fn of(bound: Bound, signs: &[f64], clusters: &[std::ops::Range<usize>]) -> Option<Scale> {
        let whole = absorb_short(clusters);
        if whole.len() < 2 {
            return None;
        }
        let squares: f64 = whole.iter().map(|range| signs[range.clone()].iter().sum::<f64>().powi(2)).sum();
        let count = whole.len() as f64;
        let inflation = squares / signs.len() as f64 * count / (count - 1.0);
        // Clusters of unequal size are worth fewer equal ones.
        let sizes = whole.iter().map(|range| (range.len() as f64).powi(2)).sum::<f64>();
        let degrees_of_freedom = (signs.len() as f64).powi(2) / sizes - 1.0;
        (degrees_of_freedom > 0.0).then_some(Scale { bound, inflation, degrees_of_freedom })
    }

    /// Student's two-sided quantile.
    fn t(&self, confidence: f64) -> f64 {
        let Ok(student) = StudentsT::new(0.0, 1.0, self.degrees_of_freedom) else { return f64::INFINITY };
        student.inverse_cdf(0.5 + confidence / 2.0)
    }

    fn p_value(&self, positive: u64, negative: u64) -> f64 {
        let Ok(student) = StudentsT::new(0.0, 1.0, self.degrees_of_freedom) else { return 1.0 };
        if positive + negative == 0 || self.inflation <= 0.0 {
            return 0.0;
        }
        (2.0 * student.sf(sign::standardised(positive, negative, self.inflation))).min(1.0)
    }
}

fn sign_of(deviation: f64) -> f64 {
    if deviation > 0.0 {
        1.0
    } else if deviation < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// Ranges of consecutive values of one block.
fn block_runs(blocks: &[u32]) -> Vec<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for run in blocks.chunk_by(|one, next| one == next) {
        runs.push(start..start + run.len());
        start += run.len();
    }
    runs
}

/// Cuts each run into nearly equal parts of about `length`, never across two runs.
fn cut_runs(runs: &[std::ops::Range<usize>], length: usize) -> Vec<std::ops::Range<usize>> {
    let mut parts = Vec::new();
    for run in runs {
        let count = ((run.len() + length / 2) / length.max(1)).max(1);
        for part in 0..count {
            let start = run.start + run.len() * part / count;
            parts.push(start..run.start + run.len() * (part + 1) / count);
        }
    }
    parts
}

/// Joins a cluster shorter than a quarter of the longest (a block that was cut short by the end of
/// the run) to its neighbour: it would count as a replicate and weigh nothing.
fn absorb_short(clusters: &[std::ops::Range<usize>]) -> Vec<std::ops::Range<usize>> {
    let longest = clusters.iter().map(|cluster| cluster.len()).max().unwrap_or(0);
    let mut whole: Vec<std::ops::Range<usize>> = Vec::new();
    for cluster in clusters {
        match whole.last_mut() {
            Some(last) if cluster.len() * 4 < longest || last.len() * 4 < longest => last.end = cluster.end,
            _ => whole.push(cluster.clone()),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Seed;
    use crate::quantile::median_interval;

    fn uniform(len: usize, seed: u64) -> Vec<f64> {
        let mut order = Seed(seed).order();
        (0..len).map(|_| order.below(1 << 40) as f64 / (1u64 << 40) as f64).collect()
    }

    #[test]
    fn few_values_get_the_exact_interval() {
        let values = uniform(30, 1);
        let estimate = cluster_median(&values, &[0; 30], 0.95).unwrap();
        assert_eq!(Some(estimate.interval), median_interval(&values, 0.95));
        assert_eq!((estimate.bound, estimate.inflation), (Bound::Pairs, 1.0));
        assert_eq!(cluster_median(&values[..5], &[0; 5], 0.95), None);
    }

    #[test]
    fn a_slow_wave_widens_the_interval() {
        let values: Vec<f64> = uniform(1_000, 2)
            .iter()
            .zip(0u32..)
            .map(|(x, i)| x + 3.0 * (f64::from(i) / 60.0).sin())
            .collect();
        let estimate = cluster_median(&values, &[0; 1_000], 0.95).unwrap();
        assert_eq!(estimate.bound, Bound::SubBlocks);
        assert!(estimate.inflation > 10.0, "{estimate:?}");
        let plain = median_interval(&values, 0.95).unwrap();
        assert!(estimate.interval.half_width() > 3.0 * plain.half_width());
    }

    #[test]
    fn blocks_that_differ_bound_the_interval() {
        let blocks: Vec<u32> = (0..1_000).map(|i| i / 100).collect();
        let values: Vec<f64> =
            uniform(1_000, 3).iter().zip(&blocks).map(|(x, block)| x + f64::from(block * 7 % 10)).collect();
        let estimate = cluster_median(&values, &blocks, 0.95).unwrap();
        assert_eq!(estimate.bound, Bound::Blocks);
        // The blocks lie at 0 to 9: ten values, of which the median is known to about ± 3.
        assert!((2.0..=5.0).contains(&estimate.interval.half_width()), "{estimate:?}");
    }

    #[test]
    fn a_block_cut_short_is_no_replicate() {
        let mut blocks = vec![0u32; 500];
        blocks.extend([1; 20]);
        let estimate = cluster_median(&uniform(520, 4), &blocks, 0.95).unwrap();
        assert_ne!(estimate.bound, Bound::Blocks);
        assert_eq!(absorb_short(&[0..100, 100..200, 200..210]), [0..100, 100..210]);
        assert_eq!(absorb_short(&[0..5, 5..105, 105..205]), [0..105, 105..205]);
    }

    #[test]
    fn equal_and_useless_values_are_survived() {
        let estimate = cluster_median(&[7.0; 100], &[0; 100], 0.95).unwrap();
        assert_eq!(estimate.interval, Interval { low: 7.0, high: 7.0 });
        assert_eq!(cluster_median(&[f64::NAN; 100], &[0; 100], 0.95), None);
        assert_eq!(cluster_median(&[1.0; 100], &[0; 99], 0.95), None);
        assert_eq!(cluster_median(&[], &[], 0.95), None);
        assert_eq!(cluster_median(&[1.0; 100], &[0; 100], 1.5), None);
    }

    #[test]
    fn parts_cover_every_run_once() {
        let parts = cut_runs(&[0..10, 10..13, 13..30], 5);
        assert_eq!(parts, [0..5, 5..10, 10..13, 13..18, 18..24, 24..30]);
    }
}
