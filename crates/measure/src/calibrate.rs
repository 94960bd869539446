//! The fixed cost of a call, measured once and then subtracted.
//!
//! Pairs for a comparison are all of one length, so the fixed cost cannot be seen in them; left in, it
//! pulls every ratio towards 1. It is measured beforehand from slices of two lengths, and what is not
//! known about it is carried along.

use serde::{Deserialize, Serialize};

use crate::marginal::{MarginalSample, Work, interval_of_rounds, round_medians};
use crate::quantile::{Interval, median};

/// The fixed cost of a kernel call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FixedCost {
    /// ns per call: the median of the round medians.
    pub ns_per_call: f64,
    /// Its interval; `None` with too few rounds.
    pub interval: Option<Interval>,
    /// Confidence of the interval.
    pub confidence: f64,
    /// Rounds used.
    pub rounds: u64,
}

impl FixedCost {
    /// ns per packet of a slice, this cost subtracted. `None` when the slice has no packets. It can be
    /// negative when the slice is too short for the fixed cost to be known well enough.
    pub fn ns_per_packet(&self, work: &Work) -> Option<f64> {
        (work.packets > 0).then(|| (work.ns - self.ns_per_call * work.calls as f64) / work.packets as f64)
    }

    /// How uncertain a cost per packet is because this cost is: half the interval's width, spread over
    /// the packets of a call. `None` without an interval or packets.
    pub fn uncertainty_ns_per_packet(&self, work: &Work) -> Option<f64> {
        let interval = self.interval?;
        (work.packets > 0).then(|| interval.half_width() * work.calls as f64 / work.packets as f64)
    }
}

/// The fixed cost per call from long and short slices of one variant. `None` without a usable sample.
pub fn fixed_cost(samples: &[MarginalSample], confidence: f64) -> Option<FixedCost> {
    let mut medians: Vec<f64> = round_medians(samples, |(_, fixed)| fixed).into_values().collect();
    Some(FixedCost {
        interval: interval_of_rounds(&medians, confidence),
        rounds: medians.len() as u64,
        ns_per_call: median(&mut medians)?,
        confidence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: u32, noise: f64) -> MarginalSample {
        let work = |packets: u64, ns: f64| Work { packets, calls: 2, ns };
        MarginalSample {
            round,
            long: work(10_000, 10_000.0 * 200.0 + 2.0 * 86_000.0),
            short: work(1_000, 1_000.0 * 200.0 + 2.0 * 86_000.0 + noise),
        }
    }

    #[test]
    fn the_fixed_cost_is_found_and_subtracted() {
        let samples: Vec<MarginalSample> = (0..20).map(|i| sample(i, f64::from(i % 5) - 2.0)).collect();
        let fixed = fixed_cost(&samples, 0.95).unwrap();
        assert!((fixed.ns_per_call - 86_000.0).abs() < 1.0, "{fixed:?}");
        assert!(fixed.interval.unwrap().contains(86_000.0));
        let cost = fixed.ns_per_packet(&samples[0].long).unwrap();
        assert!((cost - 200.0).abs() < 0.01, "{cost}");
        assert!(fixed.uncertainty_ns_per_packet(&samples[0].long).unwrap() < 0.001);
    }

    #[test]
    fn little_data_has_no_interval_and_none_has_no_cost() {
        let fixed = fixed_cost(&[sample(0, 0.0)], 0.95).unwrap();
        assert_eq!(fixed.interval, None);
        assert_eq!(fixed_cost(&[], 0.95), None);
        assert_eq!(fixed.ns_per_packet(&Work { packets: 0, calls: 1, ns: 5.0 }), None);
    }
}
