//! Is B dearer than A, and by how much?
//!
//! A and B run in adjacent slices, so that what the machine does to one it does to the other: the
//! logarithm of the ratio within a pair varies by 2 to 3 % where the slices themselves vary by 13 to
//! 45 %. The effect is the median of these log ratios; [`crate::cluster`] says how its interval
//! allows for pairs that depend on each other and for blocks that differ.

use serde::{Deserialize, Serialize};

use crate::cluster::{Bound, ClusterMedian, Clusters};
use crate::quantile::{Interval, hodges_lehmann, median, robust_sd};

/// One pair: two adjacent slices, in ns per packet of the same clock, the fixed cost per call
/// already subtracted (see [`crate::calibrate`]). Pairs stand in the order of measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairSample {
    /// The replicate: another number after each reload of the programs or rebuild of the lab. When
    /// nothing is rebuilt, all pairs have the same one.
    pub block: u32,
    /// Cost of A in ns per packet.
    pub a_ns: f64,
    /// Cost of B in ns per packet.
    pub b_ns: f64,
}

/// How to compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompareOptions {
    /// Confidence of the intervals; under a stop rule the one of
    /// [`Looks::nominal_confidence`](crate::sequential::Looks::nominal_confidence). Between 0.5 and 1.
    pub confidence: f64,
}

impl Default for CompareOptions {
    /// 95 %.
    fn default() -> CompareOptions {
        CompareOptions { confidence: 0.95 }
    }
}

/// B against A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Pairs used.
    pub pairs: u64,
    /// Pairs left out because a cost was not a positive number.
    pub unusable: u64,
    /// Different blocks among them.
    pub blocks: u64,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Median cost of A in ns per packet.
    pub a_ns: f64,
    /// Median cost of B in ns per packet.
    pub b_ns: f64,
    /// Cost of B over cost of A: the exponential of the median log ratio.
    pub ratio: f64,
    /// Interval of `ratio`.
    pub ratio_interval: Interval,
    /// Interval of `ratio` at 1 − 2(1 − confidence) (90 % for 95 %): the two one-sided tests for
    /// "same" pass when it lies inside the margin.
    pub equivalence_interval: Interval,
    /// Median of b − a in ns per packet. Not exactly `b_ns` − `a_ns`.
    pub difference_ns: f64,
    /// Interval of `difference_ns`.
    pub difference_interval: Interval,
    /// Two-sided p-value of no difference, with the same allowance for dependence as the interval.
    pub p_value: f64,
    /// How many times the variance of independent pairs, at the scale in `bound`; at least 1.
    pub inflation: f64,
    /// What made the interval of the ratio as wide as it is.
    pub bound: Bound,
    /// Robust standard deviation of the log ratio of a pair.
    pub pair_sd: f64,
    /// The Hodges–Lehmann estimate of the ratio, to stand beside `ratio`.
    pub hodges_lehmann_ratio: f64,
}

impl Comparison {
    /// The effect of B relative to A: 0.01 is 1 % dearer.
    pub fn effect(&self) -> f64 {
        self.ratio - 1.0
    }
}

/// Compares B with A. `None` when there are too few usable pairs or blocks for an interval at that
/// confidence, or the confidence is not between 0.5 and 1.
pub fn compare(samples: &[PairSample], options: &CompareOptions) -> Option<Comparison> {
    if !(options.confidence > 0.5 && options.confidence < 1.0) {
        return None;
    }
    let usable: Vec<PairSample> = samples.iter().copied().filter(is_usable).collect();
    let blocks: Vec<u32> = usable.iter().map(|sample| sample.block).collect();
    let log_ratios: Vec<f64> = usable.iter().map(|sample| (sample.b_ns / sample.a_ns).ln()).collect();
    let differences: Vec<f64> = usable.iter().map(|sample| sample.b_ns - sample.a_ns).collect();

    let ratios = Clusters::new(&log_ratios, &blocks)?;
    let ratio = ratios.at(options.confidence)?;
    let equivalence = ratios.at(2.0 * options.confidence - 1.0)?;
    let difference: ClusterMedian = Clusters::new(&differences, &blocks)?.at(options.confidence)?;
    Some(Comparison {
        pairs: usable.len() as u64,
        unusable: (samples.len() - usable.len()) as u64,
        blocks: count_different(&blocks),
        confidence: options.confidence,
        a_ns: median(&mut usable.iter().map(|sample| sample.a_ns).collect::<Vec<_>>())?,
        b_ns: median(&mut usable.iter().map(|sample| sample.b_ns).collect::<Vec<_>>())?,
        ratio: ratio.median.exp(),
        ratio_interval: ratio.interval.map(f64::exp),
        equivalence_interval: equivalence.interval.map(f64::exp),
        difference_ns: difference.median,
        difference_interval: difference.interval,
        p_value: ratios.p_value(),
        inflation: ratio.inflation,
        bound: ratio.bound,
        pair_sd: robust_sd(&log_ratios)?,
        hodges_lehmann_ratio: hodges_lehmann(&log_ratios)?.exp(),
    })
}

fn is_usable(sample: &PairSample) -> bool {
    let good = |ns: f64| ns > 0.0 && ns.is_finite();
    good(sample.a_ns) && good(sample.b_ns)
}

fn count_different(blocks: &[u32]) -> u64 {
    let mut different = blocks.to_vec();
    different.sort_unstable();
    different.dedup();
    different.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Seed;
    use proptest::prelude::*;

    fn pairs(count: u32, ratio: f64, seed: u64) -> Vec<PairSample> {
        let mut order = Seed(seed).order();
        let mut noise = || order.below(1 << 50) as f64 / (1u64 << 50) as f64 - 0.5;
        (0..count)
            .map(|i| {
                let a_ns = 200.0 * (1.0 + 0.2 * noise());
                PairSample { block: i / 50, a_ns, b_ns: a_ns * ratio * (1.0 + 0.02 * noise()) }
            })
            .collect()
    }

    #[test]
    fn an_effect_is_found_in_ns_and_as_a_ratio() {
        let comparison = compare(&pairs(300, 1.02, 1), &CompareOptions::default()).unwrap();
        assert!(comparison.ratio_interval.contains(1.02), "{comparison:?}");
        assert!(comparison.difference_interval.contains(4.0), "{comparison:?}");
        assert!(comparison.p_value < 1e-3 && comparison.ratio_interval.low > 1.0);
        assert!((comparison.hodges_lehmann_ratio - 1.02).abs() < 0.002);
        assert_eq!((comparison.pairs, comparison.blocks, comparison.unusable), (300, 6, 0));
        let (wide, narrow) = (comparison.ratio_interval, comparison.equivalence_interval);
        assert!(wide.low <= narrow.low && narrow.high <= wide.high);
    }

    #[test]
    fn pairs_without_a_cost_are_counted_and_left_out() {
        let mut samples = pairs(400, 1.0, 2);
        samples[3].a_ns = 0.0;
        samples[4].b_ns = f64::NAN;
        samples[5].b_ns = -1.0;
        let comparison = compare(&samples, &CompareOptions::default()).unwrap();
        assert_eq!((comparison.pairs, comparison.unusable), (397, 3));
    }

    #[test]
    fn too_little_gives_nothing() {
        assert_eq!(compare(&pairs(5, 1.0, 3), &CompareOptions::default()), None);
        assert_eq!(compare(&[], &CompareOptions::default()), None);
        assert_eq!(compare(&pairs(100, 1.0, 3), &CompareOptions { confidence: 1.0 }), None);
        assert_eq!(compare(&pairs(100, 1.0, 3), &CompareOptions { confidence: 0.3 }), None);
        // Two blocks that differ tell next to nothing about how blocks differ.
        let mut differing = pairs(100, 1.0, 3);
        differing[50..].iter_mut().for_each(|pair| pair.b_ns *= 1.02);
        assert_eq!(compare(&differing, &CompareOptions::default()), None);
    }

    proptest! {
        #[test]
        fn swapping_a_and_b_gives_the_reciprocal(count in 6u32..400, ratio in 0.5f64..2.0, seed in any::<u64>()) {
            let samples = pairs(count, ratio, seed);
            let swapped: Vec<PairSample> =
                samples.iter().map(|pair| PairSample { a_ns: pair.b_ns, b_ns: pair.a_ns, ..*pair }).collect();
            let options = CompareOptions::default();
            let both = (compare(&samples, &options), compare(&swapped, &options));
            let (Some(one), Some(other)) = both else {
                prop_assert_eq!(both, (None, None));
                return Ok(());
            };
            let close = |x: f64, y: f64| (x - y).abs() <= 1e-9 * x.abs().max(1e-3);
            prop_assert!(close(one.ratio, other.ratio.recip()));
            prop_assert!(close(one.ratio_interval.low, other.ratio_interval.high.recip()));
            prop_assert!(close(one.ratio_interval.high, other.ratio_interval.low.recip()));
            prop_assert!(close(one.difference_interval.low, -other.difference_interval.high));
            prop_assert!(close(one.p_value, other.p_value));
        }

        #[test]
        fn no_input_panics(raw in prop::collection::vec((any::<u32>(), any::<f64>(), any::<f64>()), 0..80)) {
            let samples: Vec<PairSample> =
                raw.into_iter().map(|(block, a_ns, b_ns)| PairSample { block, a_ns, b_ns }).collect();
            let _ = compare(&samples, &CompareOptions::default());
        }
    }
}
