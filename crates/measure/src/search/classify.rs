//! What the trials at one load say about one goal: the draft's "Load Classification Logic" and "Conditional Throughput".

use serde::{Deserialize, Serialize};

/// Sums of seconds are right to this share. Ten times 0.1 s is a little less than 1 s in binary, and must not be held for
/// a trial that is missing.
const ROUNDING: f64 = 1e-9;

/// What decides a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Criterion {
    /// A trial with a greater loss ratio is a high-loss trial.
    pub loss_ratio: f64,
    /// The share of seconds that may be high-loss at a lower bound. Below 1.
    pub exceed_ratio: f64,
    /// A trial at least this long is full-length, in seconds.
    pub trial_s: f64,
    /// So many seconds decide.
    pub duration_sum_s: f64,
}

/// What classification needs of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds asked for: decides whether the trial is full-length.
    pub duration_s: f64,
    /// Seconds that the trial counts for (the draft's "Trial Effective Duration").
    pub effective_s: f64,
    /// Lost of sent.
    pub loss_ratio: f64,
}

/// What a load is for a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The goal is met whatever the missing trials would show.
    Lower,
    /// The goal is missed whatever the missing trials would show.
    Upper,
    /// It depends on trials that have not been made.
    Undecided,
}

/// Seconds at one load that decide.
#[derive(Debug, Clone, Copy)]
struct Sums {
    /// All: the duration sum, or more where more was made.
    whole_s: f64,
    /// High-loss ones, if all that is missing were low-loss.
    high_at_best_s: f64,
    /// High-loss ones, if all that is missing were high-loss.
    high_at_worst_s: f64,
}

impl Sums {
    fn of(criterion: &Criterion, samples: &[Sample]) -> Sums {
        let (mut full_low, mut full_high, mut short_low, mut short_high) = (0.0, 0.0, 0.0, 0.0);
        for sample in samples {
            let is_full = sample.duration_s >= criterion.trial_s;
            let is_high = sample.loss_ratio > criterion.loss_ratio;
            *match (is_full, is_high) {
                (true, false) => &mut full_low,
                (true, true) => &mut full_high,
                (false, false) => &mut short_low,
                (false, true) => &mut short_high,
            } += sample.effective_s;
        }
        let offset_s = short_low * criterion.exceed_ratio / (1.0 - criterion.exceed_ratio);
        let high_at_best_s = full_high + f64::max(short_high - offset_s, 0.0);
        let whole_s = criterion.duration_sum_s.max(full_low + high_at_best_s);
        Sums { whole_s, high_at_best_s, high_at_worst_s: whole_s - full_low }
    }
}

/// Classifies a load from all trials that were made at it.
///
/// Short trials can make an upper bound but no lower one: what they lose beyond the exceed ratio counts as if it were
/// full-length; what they do not lose only offsets that.
#[must_use]
pub fn classify(criterion: &Criterion, samples: &[Sample]) -> Class {
    let sums = Sums::of(criterion, samples);
    let allowed_s = sums.whole_s * (criterion.exceed_ratio + ROUNDING);
    match (sums.high_at_best_s <= allowed_s, sums.high_at_worst_s <= allowed_s) {
        (true, true) => Class::Lower,
        (false, false) => Class::Upper,
        _ => Class::Undecided,
    }
}

/// The shares of seconds that are high-loss, if all that is missing were low-loss and if it were high-loss: what
/// [`classify`] compares with the exceed ratio (the draft's "optimistic" and "pessimistic exceed ratio").
#[must_use]
pub fn exceed_ratios(criterion: &Criterion, samples: &[Sample]) -> (f64, f64) {
    let sums = Sums::of(criterion, samples);
    (sums.high_at_best_s / sums.whole_s, sums.high_at_worst_s / sums.whole_s)
}

/// The forwarding rate that a load stands for, in packets per second: the load less the loss of one full-length trial, the
/// one at the quantile that the exceed ratio leaves. Trials that are missing from the duration sum count as lost whole.
///
/// It means something at a lower bound only. None where no full-length trial was made.
#[must_use]
pub fn conditional_throughput(load_pps: f64, criterion: &Criterion, samples: &[Sample]) -> Option<f64> {
    let mut full: Vec<&Sample> =
        samples.iter().filter(|sample| sample.duration_s >= criterion.trial_s).collect();
    full.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
    let full_s: f64 = full.iter().map(|sample| sample.effective_s).sum();
    let whole_s = criterion.duration_sum_s.max(full_s);
    let (mut remaining, rounding) = (whole_s * (1.0 - criterion.exceed_ratio), whole_s * ROUNDING);
    let mut loss_ratio = full.first()?.loss_ratio;
    for sample in full {
        if remaining <= rounding {
            break;
        }
        loss_ratio = sample.loss_ratio;
        remaining -= sample.effective_s;
    }
    if remaining > rounding {
        loss_ratio = 1.0;
    }
    Some(load_pps * (1.0 - loss_ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Criterion =
        Criterion { loss_ratio: 0.0, exceed_ratio: 0.5, trial_s: 1.0, duration_sum_s: 4.0 };

    fn sample(duration_s: f64, loss_ratio: f64) -> Sample {
        Sample { duration_s, effective_s: duration_s, loss_ratio }
    }

    #[test]
    fn half_of_the_seconds_decide() {
        let low = sample(1.0, 0.0);
        let high = sample(1.0, 0.1);
        assert_eq!(classify(&HALF, &[]), Class::Undecided);
        assert_eq!(classify(&HALF, &[low]), Class::Undecided);
        assert_eq!(classify(&HALF, &[low, low]), Class::Lower);
        assert_eq!(classify(&HALF, &[high, high]), Class::Undecided);
        assert_eq!(classify(&HALF, &[high, high, high]), Class::Upper);
        assert_eq!(classify(&HALF, &[high, high, low, low]), Class::Lower);
    }

    #[test]
    fn ten_tenths_are_one() {
        let strict = Criterion { loss_ratio: 0.0, exceed_ratio: 0.0, trial_s: 0.1, duration_sum_s: 1.0 };
        let samples = [sample(0.1, 0.0); 10];
        assert_ne!(samples.iter().map(|sample| sample.effective_s).sum::<f64>(), 1.0);
        assert_eq!(classify(&strict, &samples), Class::Lower);
        assert_eq!(classify(&strict, &samples[1..]), Class::Undecided);
        assert_eq!(conditional_throughput(1000.0, &strict, &samples), Some(1000.0));
    }

    #[test]
    fn short_trials_make_upper_bounds_only() {
        assert_eq!(classify(&HALF, &[sample(0.5, 0.0); 40]), Class::Undecided);
        assert_eq!(classify(&HALF, &[sample(0.5, 0.1); 5]), Class::Upper);
    }

    #[test]
    fn the_throughput_is_that_of_the_quantile_trial() {
        let samples = [sample(1.0, 0.3), sample(1.0, 0.0), sample(1.0, 0.1), sample(0.5, 0.9)];
        // Two of four seconds must be as good: the second best of the full-length ones.
        assert_eq!(conditional_throughput(1000.0, &HALF, &samples), Some(900.0));
        // Three of four, and then one that is missing.
        let strict = Criterion { exceed_ratio: 0.25, ..HALF };
        assert_eq!(conditional_throughput(1000.0, &strict, &samples), Some(700.0));
        let stricter = Criterion { exceed_ratio: 0.0, ..HALF };
        assert_eq!(conditional_throughput(1000.0, &stricter, &samples), Some(0.0));
        assert_eq!(conditional_throughput(1000.0, &HALF, &samples[3..]), None);
    }
}
