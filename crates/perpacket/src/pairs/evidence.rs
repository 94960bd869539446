//! What the pairs say. Pure: from slices to a comparison and a verdict.

use measure::calibrate::{FixedCost, fixed_cost};
use measure::marginal::{MarginalSample, Work};
use measure::paired::{CompareOptions, Comparison, PairSample, compare};
use measure::quantile::Interval;
use measure::sequential::Looks;
use measure::verdict::{Criteria, Verdict, judge};
use measure::warmup::{trend_left, warmup_pairs};

/// Confidence where no stop rule is planned yet.
const CONFIDENCE: f64 = 0.95;

/// Two adjacent slices, of A and of B.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    /// The replicate: another number where programs or labs were made anew.
    pub(super) block: u32,
    pub(super) works: [Work; 2],
}

/// All that was measured on one path.
#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) pairs: Vec<Pair>,
    /// Long and short slices of A and of B; all of them in the first where both share a lab.
    pub(super) calibrations: [Vec<MarginalSample>; 2],
    /// Pairs left out because packets of theirs are missing.
    pub(super) void_pairs: u64,
    /// Slices of A and of B of which packets are missing.
    pub(super) void_slices: [u64; 2],
    /// Blocks that a verdict needs: more than one where something is made anew.
    pub(super) blocks_needed: usize,
    /// Time in ns that ksoftirqd took from the measuring thread, and the packets of those slices, of A and of B.
    pub(super) deferred: [(f64, u64); 2],
    /// Whether A and B make the same calls. Their fixed cost is then one, and cancels in the difference: making and
    /// clearing away a call's pool of frames does not depend on what the path does with them.
    pub(super) same_calls: bool,
    /// What a verdict must show.
    pub(super) criteria: Criteria,
    /// Comparisons that are judged together.
    pub(super) family: usize,
}

/// The answer for one path.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) comparison: Option<Comparison>,
    pub(crate) verdict: Verdict,
    pub(crate) looks: Option<Looks>,
    pub(crate) look: Option<u32>,
    pub(crate) warmup_pairs: u64,
    pub(crate) trend_left: bool,
    pub(crate) void_pairs: u64,
    /// Pairs whose packets all arrived.
    pub(crate) pairs: u64,
    /// Blocks that there are and blocks that a verdict needs, where they are too few.
    pub(crate) too_few_blocks: Option<(usize, usize)>,
    pub(crate) stopped: String,
}

impl Answer {
    /// The comparison, where there is enough for a verdict.
    pub(crate) fn judged(&self) -> Option<Comparison> {
        self.comparison.filter(|_| self.too_few_blocks.is_none())
    }
}

impl Evidence {
    /// What the pairs say now, at a look or at the end.
    pub(super) fn answer(&self, looks: Option<&Looks>, look: Option<u32>) -> Answer {
        let confidence = looks.map_or(CONFIDENCE, Looks::nominal_confidence);
        let fixed = self.fixed_costs();
        let samples: Vec<PairSample> = self.pairs.iter().map(|pair| sample(pair, &fixed)).collect();
        let sums: Vec<f64> = samples.iter().map(|sample| sample.a_ns + sample.b_ns).collect();
        let warmup = warmup_pairs(&sums);
        let comparison = compare(&samples[warmup..], &CompareOptions { confidence })
            .and_then(|comparison| self.widened(comparison, &fixed));
        let enough = self.blocks() >= self.blocks_needed;
        let judged = comparison.as_ref().filter(|_| enough);
        let verdict =
            judged.map_or(Verdict::Inconclusive { pairs_needed: None }, |found| judge(found, &self.criteria));
        Answer {
            comparison,
            verdict,
            looks: looks.copied(),
            look,
            warmup_pairs: warmup as u64,
            trend_left: trend_left(&sums[warmup..]),
            void_pairs: self.void_pairs,
            pairs: self.pairs.len() as u64,
            too_few_blocks: (!enough).then(|| (self.blocks(), self.blocks_needed)),
            stopped: String::new(),
        }
    }

    /// Whether an answer at a look holds among all comparisons of the run, so that no more pairs are needed: a
    /// difference by Bonferroni's rule, which implies Holm's at the end.
    pub(super) fn is_decided(&self, answer: &Answer) -> bool {
        match (&answer.verdict, &answer.comparison) {
            (Verdict::Same { .. }, _) => true,
            (Verdict::Faster | Verdict::Slower, Some(comparison)) => {
                comparison.p_value * self.family as f64 <= 1.0 - comparison.confidence
            }
            _ => false,
        }
    }

    /// Blocks with whole pairs.
    fn blocks(&self) -> usize {
        let mut blocks: Vec<u32> = self.pairs.iter().map(|pair| pair.block).collect();
        blocks.dedup();
        blocks.len()
    }

    /// Whose packets are missing.
    pub(super) fn losers(&self) -> &'static str {
        match self.void_slices {
            [_, 0] => "A",
            [0, _] => "B",
            _ => "A and B",
        }
    }

    /// The fixed cost of a call of A and of B, as it is subtracted.
    pub(super) fn fixed_costs(&self) -> [Option<FixedCost>; 2] {
        if !self.same_calls {
            return [0, 1].map(|arm| fixed_cost(&self.calibrations[arm], CONFIDENCE));
        }
        let all: Vec<MarginalSample> = self.calibrations.iter().flatten().copied().collect();
        [fixed_cost(&all, CONFIDENCE); 2]
    }

    /// ns a packet of A's and B's work that ksoftirqd took from the measuring thread.
    pub(super) fn deferred_ns(&self) -> [Option<f64>; 2] {
        self.deferred.map(|(ns, packets)| (packets > 0).then(|| ns / packets as f64))
    }

    /// Intervals that also cover what is not known about the fixed costs. None where that is nothing at all, and they do
    /// not cancel.
    fn widened(&self, mut found: Comparison, fixed: &[Option<FixedCost>; 2]) -> Option<Comparison> {
        let pair = self.pairs.first()?;
        let unknown =
            [0, 1].map(|arm| fixed[arm].and_then(|f| f.uncertainty_ns_per_packet(&pair.works[arm])));
        let (difference_ns, log_ratio) = if self.same_calls {
            // One error in both: it cancels in the difference, and nearly in the ratio.
            (0.0, unknown[0].unwrap_or(0.0) * (1.0 / found.a_ns - 1.0 / found.b_ns).abs())
        } else {
            let [a, b] = [unknown[0]?, unknown[1]?];
            (a.hypot(b), (a / found.a_ns).hypot(b / found.b_ns))
        };
        widen(&mut found.difference_interval, found.difference_ns, difference_ns);
        widen(&mut found.ratio_interval, found.ratio, log_ratio * found.ratio);
        widen(&mut found.equivalence_interval, found.ratio, log_ratio * found.ratio);
        if found.ratio_interval.contains(1.0) {
            found.p_value = found.p_value.max(1.0 - found.confidence + f64::EPSILON);
        }
        Some(found)
    }
}

/// Both bounds moved away from the centre, as two independent errors add up.
fn widen(interval: &mut Interval, centre: f64, by: f64) {
    interval.low = centre - (centre - interval.low).hypot(by);
    interval.high = centre + (interval.high - centre).hypot(by);
}

/// A pair in ns per packet, the fixed cost taken off where it is known.
fn sample(pair: &Pair, fixed: &[Option<FixedCost>; 2]) -> PairSample {
    let cost = |arm: usize| {
        let work = &pair.works[arm];
        fixed[arm].and_then(|f| f.ns_per_packet(work)).unwrap_or(work.ns / work.packets as f64)
    };
    PairSample { block: pair.block, a_ns: cost(0), b_ns: cost(1) }
}
