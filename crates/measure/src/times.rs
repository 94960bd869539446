//! A histogram of times in ns: what gaps and delays are kept in.

use hdrhistogram::Histogram;

/// Significant digits that are kept of each time.
const DIGITS: u8 = 3;
/// The longest time that is told apart, in ns: an hour.
pub(crate) const LONGEST_NS: u64 = 3_600_000_000_000;

/// Times in ns, each to within a thousandth. Recording one costs some nanoseconds and allocates nothing. The 270 KB of
/// a histogram are touched only where times fall.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    histogram: Histogram<u64>,
}

impl Times {
    pub(crate) fn new() -> Self {
        #[allow(clippy::expect_used)] // both bounds and digits are constants that it takes
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are valid");
        Self { histogram }
    }

    /// Longer ones than an hour count as this long.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    pub(crate) fn record_n(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns, count);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can lie outside.
        let _always_fits = self.histogram.add(&other.histogram);
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// None without any time.
    pub(crate) fn quantile(&self, share: f64) -> Option<u64> {
        (self.count() > 0).then(|| self.histogram.value_at_quantile(share))
    }

    /// Shortest and longest. None without any time.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        (self.count() > 0).then(|| (self.histogram.min(), self.histogram.max()))
    }

    /// Number of times from `low` to `high` ns, inclusive, to within the resolution.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        self.histogram.count_between(low, high)
    }

    /// The times that there are, each with its number, shortest first.
    pub(crate) fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
    }
}
