//! How long packets were on their way: a histogram of one-way delays.
//!
//! A delay is the time from when a packet was written until its receiver looked at the clock, both on
//! `CLOCK_MONOTONIC` of one machine. It includes what the packet waited at both ends: for the other frames of its batch, and
//! for the receiver to be woken up. Clocks of two machines are not compared.

use crate::times::{LONGEST_NS, Times};

/// One-way delays in ns, each to within a thousandth. Recording one costs some nanoseconds and allocates nothing.
#[derive(Debug, Clone)]
pub struct Delays {
    times: Times,
    negative: u64,
    too_long: u64,
}

/// What a person looks at, in ns, to within a thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayFigures {
    /// Delays that count.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The delay that half do not exceed.
    pub p50_ns: u64,
    /// The delay that 9 in 10 do not exceed.
    pub p90_ns: u64,
    /// The delay that 99 in 100 do not exceed.
    pub p99_ns: u64,
    /// The delay that 999 in 1,000 do not exceed.
    pub p999_ns: u64,
    /// The delay that 9,999 in 10,000 do not exceed; the longest where there are fewer.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Delays {
    /// No delay yet.
    pub fn new() -> Self {
        Self { times: Times::new(), negative: 0, too_long: 0 }
    }

    /// Adds the delay of a packet written and received at these times.
    #[inline]
    pub fn record_between(&mut self, sent_ns: u64, received_ns: u64) {
        match received_ns.checked_sub(sent_ns) {
            Some(ns) => self.record(ns),
            None => self.negative += 1,
        }
    }

    /// Adds one delay. One of more than an hour is counted apart ([`Self::too_long`]).
    #[inline]
    pub fn record(&mut self, ns: u64) {
        if ns > LONGEST_NS {
            self.too_long += 1;
        } else {
            self.times.record(ns);
        }
    }

    /// Adds several delays of one length.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        if ns > LONGEST_NS {
            self.too_long += count;
        } else if count > 0 {
            self.times.record_n(ns, count);
        }
    }

    /// Adds all delays of another receiver.
    pub fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.negative += other.negative;
        self.too_long += other.too_long;
    }

    /// Number of delays that count: without [`Self::negative`] and [`Self::too_long`].
    pub fn count(&self) -> u64 {
        self.times.count()
    }

    /// Packets received before they were sent. The receiver looked at its clock too early (before it took
    /// the packet out of the socket), or the clocks of two CPUs differ; either way these have no delay.
    pub fn negative(&self) -> u64 {
        self.negative
    }

    /// Packets that say that they were sent more than an hour before: no stamps of this run.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// The delay in ns that a share of all delays does not exceed: 0.5 for the median. None if there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        self.times.quantile(share)
    }

    /// Shortest and longest delay in ns.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.times.range()
    }

    /// Some quantiles. None if there are no delays.
    pub fn figures(&self) -> Option<DelayFigures> {
        let (min_ns, max_ns) = self.range()?;
        Some(DelayFigures {
            count: self.count(),
            min_ns,
            p50_ns: self.quantile(0.5)?,
            p90_ns: self.quantile(0.9)?,
            p99_ns: self.quantile(0.99)?,
            p999_ns: self.quantile(0.999)?,
            p9999_ns: self.quantile(0.9999)?,
            max_ns,
        })
    }

    /// The delays that there are, in ns, each with its number, shortest first: what a record keeps.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.times.values()
    }
}

impl Default for Delays {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_those_of_the_delays() {
        let mut delays = Delays::new();
        assert_eq!((delays.figures(), delays.quantile(0.5), delays.range()), (None, None, None));
        (1..=10_000).for_each(|ns| delays.record(1000 + ns));
        let figures = delays.figures().unwrap();
        let near = |ns: u64, exact: u64| ns.abs_diff(exact) <= exact / 1000 + 1;
        assert_eq!(figures.count, 10_000);
        for (ns, exact) in [
            (figures.min_ns, 1001),
            (figures.p50_ns, 6000),
            (figures.p90_ns, 10_000),
            (figures.p99_ns, 10_900),
            (figures.p999_ns, 10_990),
            (figures.p9999_ns, 10_999),
            (figures.max_ns, 11_000),
        ] {
            assert!(near(ns, exact), "{ns} is not {exact}: {figures:?}");
        }
    }

    #[test]
    fn what_is_no_delay_is_counted_apart() {
        let mut delays = Delays::new();
        delays.record_between(100, 99);
        delays.record_between(u64::MAX, 0);
        delays.record_between(0, u64::MAX);
        delays.record_n(LONGEST_NS + 1, 3);
        assert_eq!((delays.count(), delays.negative(), delays.too_long()), (0, 2, 4));
        assert_eq!(delays.figures(), None);
        delays.record_between(100, 100);
        delays.record(LONGEST_NS);
        delays.record_n(50, 0);
        assert_eq!(delays.count(), 2);
        let mut sum = delays.clone();
        sum.add(&delays);
        assert_eq!((sum.count(), sum.negative(), sum.too_long()), (4, 4, 8));
        assert_eq!(sum.range().unwrap().0, 0);
    }

    proptest! {
        #[test]
        fn several_receivers_add_up_to_one(delays in prop::collection::vec((0..4_u8, any::<u64>(), any::<u64>()), 0..200)) {
            let (mut all, mut parts) = (Delays::new(), [Delays::new(), Delays::new()]);
            for (part, sent_ns, received_ns) in delays {
                // Most of them near each other.
                let received_ns = if part < 3 { sent_ns.saturating_add(received_ns >> 34) } else { received_ns };
                all.record_between(sent_ns, received_ns);
                parts[usize::from(part % 2)].record_between(sent_ns, received_ns);
            }
            let [mut sum, other] = parts;
            sum.add(&other);
            prop_assert_eq!(sum.figures(), all.figures());
            prop_assert_eq!((sum.negative(), sum.too_long()), (all.negative(), all.too_long()));
            prop_assert_eq!(sum.values().map(|(_, count)| count).sum::<u64>(), all.count());
        }
    }
}
