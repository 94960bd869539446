//! What the trials at one load say about one goal: the draft's "Load Classification Logic" and "Conditional Throughput".

use serde::{Deserialize, Serialize};

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

/// Seconds at one load, of which kind.
#[derive(Debug, Clone, Copy, Default)]
struct Seconds {
    full_low: f64,
    full_high: f64,
    short_low: f64,
    short_high: f64,
}

impl Seconds {
    fn of(criterion: &Criterion, samples: &[Sample]) -> Seconds {
        let mut seconds = Seconds::default();
        for sample in samples {
            let is_full = sample.duration_s >= criterion.trial_s;
            let is_high = sample.loss_ratio > criterion.loss_ratio;
            *match (is_full, is_high) {
                (true, false) => &mut seconds.full_low,
                (true, true) => &mut seconds.full_high,
                (false, false) => &mut seconds.short_low,
                (false, true) => &mut seconds.short_high,
            } += sample.effective_s;
        }
        seconds
    }
}

/// Classifies a load from all trials that were made at it.
///
/// Short trials can make an upper bound but no lower one: what they lose beyond the exceed ratio counts as if it were
/// full-length; what they do not lose only offsets that.
#[must_use]
pub fn classify(criterion: &Criterion, samples: &[Sample]) -> Class {
    let seconds = Seconds::of(criterion, samples);
    let exceed = criterion.exceed_ratio;
    let offset = seconds.short_low * exceed / (1.0 - exceed);
    let high = seconds.full_high + (seconds.short_high - offset).max(0.0);
    let whole = criterion.duration_sum_s.max(seconds.full_low + high);
    let allowed = whole * exceed;
    // If all that is missing were without loss, and if all of it were with loss.
    let is_lower_at_best = high <= allowed;
    let is_lower_at_worst = whole - seconds.full_low <= allowed;
    match (is_lower_at_best, is_lower_at_worst) {
        (true, true) => Class::Lower,
        (false, false) => Class::Upper,
        _ => Class::Undecided,
    }
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
    let mut remaining = criterion.duration_sum_s.max(full_s) * (1.0 - criterion.exceed_ratio);
    let mut loss_ratio = full.first()?.loss_ratio;
    for sample in full {
        if remaining <= 0.0 {
            break;
        }
        loss_ratio = sample.loss_ratio;
        remaining -= sample.effective_s;
    }
    if remaining > 0.0 {
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
