//! How long transactions took: recorded while they are made, added up, and looked at.
//!
//! A [`Recorder`] is a histogram (hdrhistogram, counts of 64 bits) that keeps three significant digits of each time; sum, least
//! and greatest are kept to the ns. [`Figures`] are what a person looks at. All of it is integers: no number of transactions
//! makes a mean negative, or a deviation no number.
//!
//! # Coordinated omission
//!
//! Where transactions are due at set times, one that begins late because the one before took long has waited, and whoever
//! asked for it has waited with it. A recorder that is made with `from_due` is given when each was *due*, not when it
//! began: then nothing is omitted, and nothing needs to be corrected afterwards.
//!
//! ```
//! use stream::latency::{Figures, Recorder};
//!
//! // One transaction each ms is due. The second takes 10 ms, which those behind it wait for.
//! let mut recorder = Recorder::new(true);
//! for (due_ms, end_ms) in [(0, 1), (1, 11), (2, 12), (3, 12)] {
//!     recorder.record(due_ms * 1_000_000, end_ms * 1_000_000);
//! }
//! let figures = Figures::of(&recorder.latency()).unwrap();
//! assert_eq!((figures.count, figures.min_ns, figures.max_ns, figures.mean_ns), (4, 1_000_000, 10_000_000, 7_500_000));
//! ```

use hdrhistogram::Histogram;

use crate::outcome::Latency;

/// The longest time that is told apart, in ns: an hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;
/// Significant digits of a time.
const DIGITS: u8 = 3;

/// Percentiles that are looked at, in thousandths of a percent: 50, 90, 99, 99.9, 99.99 and 99.999 %.
pub const PERCENTILES: [u32; 6] = [50_000, 90_000, 99_000, 99_900, 99_990, 99_999];

/// Takes times as they are measured. It grows with the longest time to 270 KB, and allocates then only; of short times it is
/// smaller.
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
    out_of_range: u64,
    from_due: bool,
}

impl Recorder {
    /// Without any time. `from_due`: times count from when a transaction was due.
    pub fn new(from_due: bool) -> Self {
        #[allow(clippy::expect_used)] // a constant that it takes
        let mut histogram = Histogram::new(DIGITS).expect("three digits are possible");
        histogram.auto(true);
        Self { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, out_of_range: 0, from_due }
    }

    /// Adds a transaction from when it began (or was due) until its end, by the same clock in ns. One that ended before is
    /// out of range.
    #[inline]
    pub fn record(&mut self, begin_ns: u64, end_ns: u64) {
        self.record_ns(end_ns.saturating_sub(begin_ns));
    }

    /// Adds one time. Out of range, it counts as the shortest or the longest time that there is.
    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Transactions so far.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// All of another recorder.
    pub fn add(&mut self, other: &Self) {
        // Both have the same digits and grow: nothing can lie outside.
        let _always_fits = self.histogram.add(&other.histogram);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.out_of_range = self.out_of_range.saturating_add(other.out_of_range);
        self.from_due &= other.from_due;
    }

    /// Forgets all times, and keeps the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
        (self.sum_ns, self.min_ns, self.max_ns, self.out_of_range) = (0, u64::MAX, 0, 0);
    }

    /// What is kept of them.
    pub fn latency(&self) -> Latency {
        let counts = self.histogram.iter_recorded();
        let any = self.count() > 0;
        Latency {
            counts: counts
                .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
                .collect(),
            sum_ns: self.sum_ns,
            from_due: self.from_due,
            min_ns: any.then_some(self.min_ns),
            max_ns: any.then_some(self.max_ns),
            out_of_range: self.out_of_range,
        }
    }

    /// A recorder that has recorded what was kept. Times that lie outside what can be recorded count as they do there.
    pub fn of(latency: &Latency) -> Self {
        let mut recorder = Self::new(latency.from_due);
        for &(ns, count) in &latency.counts {
            recorder.record_many(ns, count);
        }
        recorder.sum_ns = latency.sum_ns;
        recorder.min_ns = latency.min_ns.unwrap_or(recorder.min_ns);
        recorder.max_ns = latency.max_ns.unwrap_or(recorder.max_ns);
        // What stands for an hour is a little more.
        recorder.out_of_range = latency.out_of_range;
        recorder
    }

    fn record_many(&mut self, ns: u64, count: u64) {
        let value = ns.clamp(1, LONGEST_NS);
        if value != ns {
            self.out_of_range = self.out_of_range.saturating_add(count);
        }
        // It grows, and no time is longer than the longest: nothing can lie outside.
        let _always_fits = self.histogram.record_n(value, count);
        self.sum_ns = self.sum_ns.saturating_add(u128::from(value) * u128::from(count));
        if count > 0 {
            self.min_ns = self.min_ns.min(value);
            self.max_ns = self.max_ns.max(value);
        }
    }
}

/// All of several flows or runs. None without any.
pub fn sum<'a>(all: impl IntoIterator<Item = &'a Latency>) -> Option<Latency> {
    let mut all = all.into_iter();
    let mut recorder = Recorder::of(all.next()?);
    all.for_each(|latency| recorder.add(&Recorder::of(latency)));
    Some(recorder.latency())
}

/// What a person looks at, in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Transactions.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean, rounded.
    pub mean_ns: u64,
    /// The standard deviation of all of them, from times of three digits.
    pub stddev_ns: u64,
    /// For each of [`PERCENTILES`], the time that so many do not exceed, to within a thousandth.
    pub percentiles_ns: [u64; PERCENTILES.len()],
    /// The longest.
    pub max_ns: u64,
}

impl Figures {
    /// None without any transaction.
    pub fn of(latency: &Latency) -> Option<Self> {
        let count = latency.counts.iter().fold(0_u64, |sum, &(_, count)| sum.saturating_add(count));
        if count == 0 {
            return None;
        }
        let (shortest, longest) = (latency.counts.first()?.0, latency.counts.last()?.0);
        Some(Self {
            count,
            min_ns: latency.min_ns.unwrap_or(shortest),
            mean_ns: rounded(latency.sum_ns, count),
            stddev_ns: stddev_ns(&latency.counts),
            percentiles_ns: PERCENTILES.map(|percentile| percentile_ns(latency, count, percentile)),
            max_ns: latency.max_ns.unwrap_or(longest),
        })
    }
}

/// The time that a percentile, in thousandths of a percent, of all do not exceed. None without any transaction.
pub fn percentile(latency: &Latency, thousandths: u32) -> Option<u64> {
    let count = latency.counts.iter().fold(0_u64, |sum, &(_, count)| sum.saturating_add(count));
    (count > 0).then(|| percentile_ns(latency, count, thousandths))
}

fn percentile_ns(latency: &Latency, count: u64, thousandths: u32) -> u64 {
    let rank = (u128::from(count) * u128::from(thousandths)).div_ceil(100_000).max(1);
    let mut below = 0_u128;
    let reached = latency.counts.iter().find(|&&(_, count)| {
        below += u128::from(count);
        below >= rank
    });
    // The last digits of a time are not known: those of the least and the greatest are.
    let ns = reached.or(latency.counts.last()).map_or(0, |&(ns, _)| ns);
    ns.max(latency.min_ns.unwrap_or(0)).min(latency.max_ns.unwrap_or(u64::MAX))
}

/// In two passes over the same times, so that nothing is taken from anything that it could be greater than.
fn stddev_ns(counts: &[(u64, u64)]) -> u64 {
    let all: u128 = counts.iter().map(|&(_, count)| u128::from(count)).sum();
    let sum = counts
        .iter()
        .fold(0, |sum: u128, &(ns, count)| sum.saturating_add(u128::from(ns) * u128::from(count)));
    let mean = (sum / all.max(1)) as u64;
    let squares = counts.iter().fold(0, |sum: u128, &(ns, count)| {
        let off = u128::from(ns.abs_diff(mean));
        sum.saturating_add((off * off).saturating_mul(u128::from(count)))
    });
    (squares / all.max(1)).isqrt() as u64
}

fn rounded(sum: u128, count: u64) -> u64 {
    let count = u128::from(count);
    u64::try_from(sum.saturating_add(count / 2) / count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures(recorder: &Recorder) -> Option<Figures> {
        Figures::of(&recorder.latency())
    }

    fn near(value: u64, exact: u64) -> bool {
        value.abs_diff(exact) <= exact / 1000 + 1
    }

    #[test]
    fn nothing_has_no_figures() {
        let recorder = Recorder::new(false);
        assert_eq!((figures(&recorder), recorder.count(), recorder.latency().min_ns), (None, 0, None));
        assert_eq!(percentile(&recorder.latency(), 50_000), None);
    }

    #[test]
    fn percentiles_reach_to_one_in_100_000() {
        let mut recorder = Recorder::new(false);
        (1..=100_000_u64).for_each(|us| recorder.record_ns(us * 1000));
        let found = figures(&recorder).unwrap();
        assert_eq!((found.count, found.min_ns, found.max_ns), (100_000, 1000, 100_000_000));
        for (found, exact) in
            found.percentiles_ns.into_iter().zip([50_000, 90_000, 99_000, 99_900, 99_990, 99_999_u64])
        {
            assert!(near(found, exact * 1000), "{found} {exact}");
        }
        assert_eq!(found.mean_ns, 50_000_500);
        assert!(near(found.stddev_ns, 28_867_513), "{}", found.stddev_ns);
    }

    #[test]
    fn equal_times_do_not_deviate_and_no_percentile_exceeds_the_longest() {
        let mut recorder = Recorder::new(false);
        (0..1000).for_each(|_| recorder.record_ns(123_456_789));
        let found = figures(&recorder).unwrap();
        assert_eq!(
            (found.mean_ns, found.stddev_ns, found.percentiles_ns),
            (123_456_789, 0, [123_456_789; 6])
        );
    }

    #[test]
    fn what_is_out_of_range_counts_as_the_nearest() {
        // neper #98: after an overflow, percentiles were 0. netperf #50: a time of 0 µs came from another bucket.
        let mut recorder = Recorder::new(false);
        recorder.record(5, 5);
        recorder.record(5, 4);
        [u64::MAX, LONGEST_NS + 1, LONGEST_NS, 1].into_iter().for_each(|ns| recorder.record_ns(ns));
        let latency = recorder.latency();
        assert_eq!((latency.out_of_range, recorder.count()), (4, 6));
        let found = Figures::of(&latency).unwrap();
        assert_eq!((found.min_ns, found.max_ns, found.percentiles_ns[0]), (1, LONGEST_NS, 1));
        assert_eq!(found.percentiles_ns[5], LONGEST_NS);
    }

    #[test]
    fn a_day_at_any_rate_is_counted() {
        // netperf #83: totals of 32 bits made the deviation no number and the mean negative after 24 hours.
        let day_ns = 24 * LONGEST_NS;
        let counts = vec![(1, day_ns / 2), (LONGEST_NS, day_ns / 2)];
        let sum_ns = u128::from(day_ns / 2) * (1 + u128::from(LONGEST_NS));
        let latency = Latency { counts, sum_ns, from_due: true, min_ns: None, max_ns: None, out_of_range: 0 };
        let found = Figures::of(&latency).unwrap();
        assert_eq!((found.count, found.min_ns, found.max_ns), (day_ns, 1, LONGEST_NS));
        assert_eq!(found.mean_ns, LONGEST_NS / 2 + 1);
        assert!(near(found.stddev_ns, LONGEST_NS / 2), "{}", found.stddev_ns);
        assert_eq!(Recorder::of(&latency).count(), day_ns);
        let twice = sum([&latency, &latency]).unwrap();
        assert_eq!((Figures::of(&twice).unwrap().count, twice.from_due), (2 * day_ns, true));
    }

    #[test]
    fn a_recorder_is_used_again() {
        let mut recorder = Recorder::new(true);
        [7, 0, 9].into_iter().for_each(|ns| recorder.record_ns(ns));
        recorder.clear();
        assert_eq!(recorder.latency(), Recorder::new(true).latency());
        recorder.record_ns(8);
        let found = figures(&recorder).unwrap();
        assert_eq!((found.count, found.min_ns, found.max_ns, found.mean_ns), (1, 8, 8, 8));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_recorded_again(times in prop::collection::vec(prop_oneof![0..300_u64, 0..2 * LONGEST_NS, any::<u64>()], 0..100), cut in 0..100_usize) {
            let mut all = Recorder::new(true);
            times.iter().for_each(|&ns| all.record_ns(ns));
            let kept = all.latency();
            prop_assert_eq!(Recorder::of(&kept).latency(), kept.clone());
            // Text and back.
            let text = serde_json::to_string(&kept).unwrap();
            prop_assert_eq!(serde_json::from_str::<Latency>(&text).unwrap(), kept.clone());
            // In two parts.
            let (one, other) = times.split_at(cut.min(times.len()));
            let parts = [one, other].map(|part| {
                let mut recorder = Recorder::new(true);
                part.iter().for_each(|&ns| recorder.record_ns(ns));
                recorder.latency()
            });
            prop_assert_eq!(sum(&parts).unwrap(), kept);
        }

        #[test]
        fn figures_are_those_of_the_times(mut times in prop::collection::vec(1..LONGEST_NS, 1..200)) {
            let mut recorder = Recorder::new(false);
            times.iter().for_each(|&ns| recorder.record_ns(ns));
            times.sort_unstable();
            let found = figures(&recorder).unwrap();
            let mean = times.iter().map(|&ns| ns as f64).sum::<f64>() / times.len() as f64;
            let variance = times.iter().map(|&ns| (ns as f64 - mean).powi(2)).sum::<f64>() / times.len() as f64;
            prop_assert!((found.mean_ns as f64 - mean).abs() <= 1.0 + mean * 1e-9);
            prop_assert!((found.stddev_ns as f64 - variance.sqrt()).abs() <= 1.0 + LONGEST_NS as f64 / 1000.0);
            for (found, percentile) in found.percentiles_ns.into_iter().zip(PERCENTILES) {
                let rank = (times.len() * percentile as usize).div_ceil(100_000);
                prop_assert!(near(found, times[rank - 1]), "{} {}", found, times[rank - 1]);
            }
            prop_assert_eq!((found.min_ns, found.max_ns), (times[0], times[times.len() - 1]));
        }

        #[test]
        fn no_counts_break_the_figures(counts in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20), sum_ns in any::<u128>()) {
            let latency = Latency { counts, sum_ns, from_due: false, min_ns: None, max_ns: None, out_of_range: 0 };
            let _ = (Figures::of(&latency), sum([&latency, &latency]));
        }
    }
}
