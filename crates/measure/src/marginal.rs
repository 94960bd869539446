//! What one packet costs, with the fixed cost of a kernel call kept apart.
//!
//! A call that sends packets costs something even with none in it (0.1 to 30 ms for
//! `BPF_PROG_TEST_RUN` with live frames on Linux 6.18). Dividing a call's time by its packets adds that
//! to every packet. So slices come in two lengths, adjacent in time: time = packets × cost + calls ×
//! fixed, twice, gives both unknowns.
//!
//! Such a figure holds for its run. Rounds of one run differ by more than the slices in a round let one
//! expect, so the rounds are the replicates here, and their spread stands beside the interval.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::cluster_median;
use crate::quantile::{Interval, median, quantile};

/// Fewest rounds that give an interval at 95 %.
pub const MIN_ROUNDS: usize = 6;

/// One slice as the cost needs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Packets sent.
    pub packets: u64,
    /// Kernel calls that sent them.
    pub calls: u64,
    /// Time of the path's clock in ns.
    pub ns: f64,
}

/// A long and a short slice of one variant, adjacent in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MarginalSample {
    /// The round that both belong to.
    pub round: u32,
    /// The slice with more packets a call.
    pub long: Work,
    /// The slice with fewer.
    pub short: Work,
}

impl MarginalSample {
    /// Cost per packet and fixed cost per call, both in ns, that explain the two slices. `None` when
    /// they cannot be told apart (both have the same packets per call) or a time is not finite.
    pub fn solve(&self) -> Option<(f64, f64)> {
        let count = |value: u64| value as f64;
        let (long, short) = (&self.long, &self.short);
        let determinant = count(long.packets) * count(short.calls) - count(short.packets) * count(long.calls);
        let ns = (long.ns * count(short.calls) - short.ns * count(long.calls)) / determinant;
        let fixed = (short.ns * count(long.packets) - long.ns * count(short.packets)) / determinant;
        (determinant != 0.0 && ns.is_finite() && fixed.is_finite()).then_some((ns, fixed))
    }
}

/// The median cost of one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundCost {
    /// The round.
    pub round: u32,
    /// Median cost per packet in ns over the round's samples.
    pub ns: f64,
}

/// What a packet costs in this run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AbsoluteCost {
    /// Cost per packet in ns: the median of the round medians.
    pub ns: f64,
    /// Its interval, from the round medians; `None` with fewer than [`MIN_ROUNDS`] rounds (more at a
    /// higher confidence than 95 %).
    pub interval: Option<Interval>,
    /// Confidence of the interval.
    pub confidence: f64,
    /// Rounds used.
    pub rounds: u64,
    /// Long and short slices used, counted in pairs.
    pub samples: u64,
    /// A tenth of the rounds cost less than this, in ns.
    pub round_low_ns: f64,
    /// A tenth of the rounds cost more than this, in ns.
    pub round_high_ns: f64,
    /// Fixed cost per kernel call in ns: the median over the rounds.
    pub fixed_ns_per_call: f64,
}

impl AbsoluteCost {
    /// Half width of the interval relative to the cost.
    pub fn relative_half_width(&self) -> Option<f64> {
        self.interval.map(|interval| interval.half_width() / self.ns)
    }
}

/// The cost per packet from long and short slices. `None` without a usable sample.
pub fn absolute_cost(samples: &[MarginalSample], confidence: f64) -> Option<AbsoluteCost> {
    let rounds = round_costs(samples);
    let mut costs: Vec<f64> = rounds.iter().map(|round| round.ns).collect();
    let mut fixed: Vec<f64> = round_medians(samples, |(_, fixed)| fixed).into_values().collect();
    Some(AbsoluteCost {
        interval: interval_of_rounds(&costs, confidence),
        ns: median(&mut costs)?,
        confidence,
        rounds: rounds.len() as u64,
        samples: samples.iter().filter(|sample| sample.solve().is_some()).count() as u64,
        round_low_ns: quantile(&mut costs, 0.1)?,
        round_high_ns: quantile(&mut costs, 0.9)?,
        fixed_ns_per_call: median(&mut fixed)?,
    })
}

/// The median cost of each round, in the order of rounds. Rounds without a usable sample are absent.
pub fn round_costs(samples: &[MarginalSample]) -> Vec<RoundCost> {
    let medians = round_medians(samples, |(ns, _)| ns);
    medians.into_iter().map(|(round, ns)| RoundCost { round, ns }).collect()
}

/// What a cell costs over the floor, or over any other cell measured in the same rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OverFloor {
    /// Median over the rounds of cell − floor, in ns per packet.
    pub ns: f64,
    /// Its interval; `None` with too few rounds.
    pub interval: Option<Interval>,
    /// Rounds that both have.
    pub rounds: u64,
}

/// The cost over the floor, round by round. Subtracting within a round removes what the whole machine
/// did to that round, so this is often better known than either cost. `None` when no round has both.
pub fn over_floor(cell: &[RoundCost], floor: &[RoundCost], confidence: f64) -> Option<OverFloor> {
    let floors: BTreeMap<u32, f64> = floor.iter().map(|round| (round.round, round.ns)).collect();
    let mut ordered = cell.to_vec();
    ordered.sort_by_key(|round| round.round);
    let mut differences: Vec<f64> =
        ordered.iter().filter_map(|round| Some(round.ns - floors.get(&round.round)?)).collect();
    Some(OverFloor {
        interval: interval_of_rounds(&differences, confidence),
        rounds: differences.len() as u64,
        ns: median(&mut differences)?,
    })
}

/// Interval of the median of round medians, which stand in the order of measurement. Neighbouring
/// rounds are not taken for independent where there are enough of them to see it.
pub(crate) fn interval_of_rounds(medians: &[f64], confidence: f64) -> Option<Interval> {
    cluster_median(medians, &vec![0; medians.len()], confidence).map(|estimate| estimate.interval)
}

/// The median over each round's samples of one of the two solved values.
pub(crate) fn round_medians(samples: &[MarginalSample], of: fn((f64, f64)) -> f64) -> BTreeMap<u32, f64> {
    let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        if let Some(solved) = sample.solve() {
            rounds.entry(sample.round).or_default().push(of(solved));
        }
    }
    rounds.into_iter().filter_map(|(round, mut values)| Some((round, median(&mut values)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Seed;

    /// Slices of a path of 200 ns a packet and 90 µs a call, whose rounds differ.
    fn samples(rounds: u32, calls: (u64, u64), round_sd_ns: f64, seed: u64) -> Vec<MarginalSample> {
        let mut order = Seed(seed).order();
        let mut noise = || order.below(1_000) as f64 / 500.0 - 1.0;
        let mut all = Vec::new();
        for round in 0..rounds {
            let cost = 200.0 + round_sd_ns * noise();
            for _ in 0..9 {
                let mut work = |packets: u64, calls: u64| Work {
                    packets,
                    calls,
                    ns: packets as f64 * (cost + noise()) + calls as f64 * 90_000.0,
                };
                all.push(MarginalSample { round, long: work(20_000, calls.0), short: work(2_000, calls.1) });
            }
        }
        all
    }

    #[test]
    fn two_lengths_separate_packet_and_call() {
        for calls in [(1, 1), (10, 10), (10, 4)] {
            let cost = absolute_cost(&samples(20, calls, 0.0, 1), 0.95).unwrap();
            assert!((cost.ns - 200.0).abs() < 0.5, "{cost:?}");
            assert!((cost.fixed_ns_per_call / 90_000.0 - 1.0).abs() < 0.05, "{cost:?}");
            assert!(cost.interval.unwrap().contains(200.0), "{cost:?}");
            assert_eq!((cost.rounds, cost.samples), (20, 180));
        }
    }

    #[test]
    fn same_packets_per_call_say_nothing() {
        let work = |packets, calls| Work { packets, calls, ns: 1e6 };
        let sample = MarginalSample { round: 0, long: work(2_000, 2), short: work(1_000, 1) };
        assert_eq!(sample.solve(), None);
        assert_eq!(absolute_cost(&[sample], 0.95), None);
        assert_eq!(absolute_cost(&[], 0.95), None);
    }

    #[test]
    fn rounds_not_slices_bound_the_interval() {
        let steady = absolute_cost(&samples(20, (1, 1), 0.0, 2), 0.95).unwrap();
        let moving = absolute_cost(&samples(20, (1, 1), 10.0, 2), 0.95).unwrap();
        let width = |cost: &AbsoluteCost| cost.interval.unwrap().half_width();
        assert!(width(&moving) > 5.0 * width(&steady), "{steady:?} {moving:?}");
        assert!(moving.round_high_ns - moving.round_low_ns > 10.0);
        assert!(moving.relative_half_width().unwrap() > 0.01);

        let few = absolute_cost(&samples(5, (1, 1), 10.0, 2), 0.95).unwrap();
        assert_eq!(few.interval, None);
        assert_eq!(few.relative_half_width(), None);
    }

    #[test]
    fn the_cost_over_the_floor_loses_what_both_share() {
        let shared = [0.0, 5.0, -3.0, 12.0, 1.0, 30.0, 2.0, -8.0];
        let cell: Vec<RoundCost> =
            (0..8).map(|round| RoundCost { round, ns: 240.0 + shared[round as usize] }).rev().collect();
        let floor: Vec<RoundCost> =
            (0..7).map(|round| RoundCost { round, ns: 40.0 + shared[round as usize] }).collect();
        let over = over_floor(&cell, &floor, 0.95).unwrap();
        assert_eq!((over.ns, over.rounds), (200.0, 7));
        assert_eq!(over.interval, Some(Interval { low: 200.0, high: 200.0 }));
        assert_eq!(over_floor(&cell, &[], 0.95), None);
    }
}
