//! From slices to figures: what a buffer costs, how many times what one of the poll cache costs, and what guarding adds.

use measure::holm;
use measure::marginal::{RoundCost, absolute_cost, round_costs};
use measure::paired::{CompareOptions, Comparison, PairSample, compare};
use measure::record::{Clock, ComparisonRow, CostRow, Extra};
use measure::verdict::{Criteria, judge_family};

use super::kind::{Allocator, Cell, Threads};
use super::rounds::Measured;

/// Confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// Rows as the record has them; both name cells by their index.
pub(crate) struct Figures {
    pub(crate) rows: Vec<CostRow>,
    pub(crate) comparisons: Vec<ComparisonRow>,
}

impl Figures {
    pub(crate) fn row(&self, index: usize) -> Option<&CostRow> {
        self.rows.iter().find(|row| usize::from(row.variant) == index)
    }

    /// The comparison of a cell with another one.
    pub(crate) fn against(&self, base: usize, index: usize) -> Option<&ComparisonRow> {
        let wanted = |row: &&ComparisonRow| (usize::from(row.a), usize::from(row.b)) == (base, index);
        self.comparisons.iter().find(wanted)
    }
}

/// Everything that a run tells.
pub(crate) fn figures(measured: &[Measured]) -> Figures {
    let row = |(index, m): (usize, &Measured)| {
        Some(CostRow {
            variant: u16::try_from(index).ok()?,
            clock: Clock::ThreadCpu,
            cost: absolute_cost(&m.samples, CONFIDENCE)?,
            over_floor: None,
            void_slices: 0,
            counters_per_packet: Default::default(),
            extra: Extra::new(),
        })
    };
    Figures {
        rows: measured.iter().enumerate().filter_map(row).collect(),
        comparisons: comparisons(measured),
    }
}

/// The cells that a cell is compared with.
pub(crate) fn bases(cell: &Cell) -> Vec<Cell> {
    let Cell::Allocator { allocator, sizes, threads } = cell else { return Vec::new() };
    let like = |allocator| Cell::Allocator { allocator, sizes: sizes.clone(), threads: *threads };
    let mut bases = vec![like(usual(*threads))];
    // What guarding adds: the same way to end, without a guard.
    match allocator {
        Allocator::Spin | Allocator::Mutex => bases.push(like(Allocator::PollDrop)),
        Allocator::SpinMany => bases.push(like(Allocator::PollDropAll)),
        _ => {}
    }
    bases.dedup();
    bases.retain(|base| base != cell);
    bases
}

/// What all others are held against: the poll cache, as its owner uses it or, where another thread ends, as that one can.
pub(crate) fn usual(threads: Threads) -> Allocator {
    if threads == Threads::Across { Allocator::PollDrop } else { Allocator::Poll }
}

fn comparisons(measured: &[Measured]) -> Vec<ComparisonRow> {
    let costs: Vec<Vec<RoundCost>> = measured.iter().map(|m| round_costs(&m.samples)).collect();
    let mut found: Vec<(u16, u16, Comparison)> = Vec::new();
    for (index, m) in measured.iter().enumerate() {
        for base in bases(&m.cell) {
            let Some(place) = measured.iter().position(|m| m.cell == base) else { continue };
            let options = CompareOptions { confidence: CONFIDENCE };
            found.extend(
                compare(&pairs(&costs[place], &costs[index]), &options)
                    .map(|comparison| (place as u16, index as u16, comparison)),
            );
        }
    }
    let all: Vec<Comparison> = found.iter().map(|(_, _, comparison)| *comparison).collect();
    let criteria = Criteria::default();
    let adjusted = holm::adjust(&all.iter().map(|comparison| comparison.p_value).collect::<Vec<_>>());
    let verdicts = judge_family(&all, &criteria);
    let row = |((a, b, comparison), (p, verdict))| ComparisonRow {
        a,
        b,
        clock: Clock::ThreadCpu,
        comparison,
        adjusted_p_value: Some(p),
        criteria,
        verdict,
        looks: None,
        look: None,
        warmup_pairs: 0,
        trend_left: None,
        void_pairs: 0,
        extra: Extra::new(),
    };
    found.into_iter().zip(adjusted.into_iter().zip(verdicts)).map(row).collect()
}

/// The costs of both in the rounds that have both.
fn pairs(a: &[RoundCost], b: &[RoundCost]) -> Vec<PairSample> {
    let pair = |b: &RoundCost| {
        let a = a.iter().find(|a| a.round == b.round)?;
        Some(PairSample { block: 0, a_ns: a.ns, b_ns: b.ns })
    };
    b.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use measure::marginal::{MarginalSample, Work};

    use super::*;
    use crate::alloc::load::Sizes;

    fn measured(allocator: Allocator, threads: Threads, ns: f64) -> Measured {
        let sample = |round: u32| {
            let drift = 1.0 + f64::from(round % 7) / 10.0;
            let work = |packets: u64| Work { packets, calls: 1, ns: 500.0 + packets as f64 * ns * drift };
            MarginalSample { round, long: work(10_000), short: work(0) }
        };
        let cell = Cell::Allocator { allocator, sizes: Sizes::One(256), threads };
        Measured { cell, samples: (0..40).map(sample).collect() }
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let all = [
            measured(Allocator::System, Threads::One, 12.0),
            measured(Allocator::Poll, Threads::One, 3.0),
            measured(Allocator::PollDrop, Threads::One, 8.0),
            measured(Allocator::Spin, Threads::One, 18.0),
            measured(Allocator::System, Threads::Across, 50.0),
        ];
        let figures = figures(&all);
        assert_eq!(figures.rows.len(), 5);
        let ratio = |base, index| {
            figures.against(base, index).map(|row| (row.comparison.ratio * 100.0).round() / 100.0)
        };
        assert_eq!(ratio(1, 0), Some(4.0));
        assert_eq!((ratio(1, 3), ratio(2, 3)), (Some(6.0), Some(2.25)));
        assert_eq!(ratio(2, 4), None, "another thread's cost is held against nothing here");
        assert!((figures.row(1).unwrap().cost.fixed_ns_per_call - 500.0).abs() < 1.0);
        let c = &figures.against(1, 0).unwrap().comparison;
        assert!(c.ratio_interval.high - c.ratio_interval.low < 1e-6, "all rounds drift alike: {c:?}");
    }

    #[test]
    fn each_is_held_against_the_poll_cache_on_the_same_threads() {
        let cell = |allocator, threads| Cell::Allocator { allocator, sizes: Sizes::One(64), threads };
        let one = |allocator| cell(allocator, Threads::One);
        assert_eq!(bases(&one(Allocator::System)), [one(Allocator::Poll)]);
        assert_eq!(bases(&one(Allocator::Poll)), []);
        assert_eq!(bases(&one(Allocator::Spin)), [one(Allocator::Poll), one(Allocator::PollDrop)]);
        let across = |allocator| cell(allocator, Threads::Across);
        assert_eq!(bases(&across(Allocator::Mutex)), [across(Allocator::PollDrop)]);
        assert_eq!(bases(&across(Allocator::PollDrop)), []);
    }
}
