//! How evenly packets followed each other: a histogram of the times between them.
//!
//! A rate says how many packets left, not how: a second's packets in one burst have the same. Of a sender that keeps
//! its rate, nearly all gaps are what was asked for; after a delay it sends at most twice as fast, so that no
//! gap is below half of that.

use crate::times::Times;

/// Times between packets, in ns, each to within a thousandth. Recording one costs some nanoseconds and allocates
/// nothing. Gaps of more than an hour count as an hour.
#[derive(Debug, Clone)]
pub struct Gaps {
    times: Times,
}

impl Gaps {
    /// No gap yet.
    pub fn new() -> Self {
        Self { times: Times::new() }
    }

    /// Adds one gap.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.times.record(ns);
    }

    /// Adds several gaps of one length.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.times.record_n(ns, count);
    }

    /// Adds all gaps of another sender.
    pub fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
    }

    /// Number of gaps.
    pub fn count(&self) -> u64 {
        self.times.count()
    }

    /// The gap in ns that a share of all gaps does not exceed: 0.5 for the median. None if there are no gaps.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        self.times.quantile(share)
    }

    /// Shortest and longest gap in ns.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.times.range()
    }

    /// What a person looks at first. None if there are no gaps.
    pub fn figures(&self) -> Option<Figures> {
        let (shortest_ns, longest_ns) = self.range()?;
        Some(Figures {
            shortest_ns,
            p1_ns: self.quantile(0.01)?,
            median_ns: self.quantile(0.5)?,
            p99_ns: self.quantile(0.99)?,
            p999_ns: self.quantile(0.999)?,
            longest_ns,
        })
    }

    /// Number of gaps from `low` to `high` ns, inclusive, to within the resolution.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.times.between(low, high)
    }

    /// The gaps that there are, in ns, each with its number, shortest first: what a record keeps.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.times.values()
    }
}

/// Some quantiles of gaps, in ns, to within a thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// The shortest gap.
    pub shortest_ns: u64,
    /// The gap that one in a hundred does not exceed.
    pub p1_ns: u64,
    /// The gap that half do not exceed.
    pub median_ns: u64,
    /// The gap that 99 in a hundred do not exceed.
    pub p99_ns: u64,
    /// The gap that 999 in a thousand do not exceed.
    pub p999_ns: u64,
    /// The longest gap.
    pub longest_ns: u64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::LONGEST_NS;

    #[test]
    fn gaps_of_two_senders_are_added() {
        let (mut one, mut other) = (Gaps::new(), Gaps::new());
        (0..99).for_each(|_| one.record(1000));
        other.record_n(50, 1);
        other.record(u64::MAX);
        assert_eq!(Gaps::new().quantile(0.5), None);
        one.add(&other);
        assert_eq!((one.count(), one.quantile(0.5)), (101, Some(1000)));
        assert_eq!((one.between(0, 60), one.values().next()), (1, Some((50, 1))));
        let (shortest, longest) = one.range().unwrap();
        assert!(shortest == 50 && longest >= LONGEST_NS);
    }
}
