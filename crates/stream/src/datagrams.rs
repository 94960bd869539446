//! What the numbers in received datagrams tell: lost, twice, out of order, late, and the variation of their transit times.
//!
//! A sender numbers its datagrams one by one. [`Tracker`] takes the numbers as they arrive, over [`measure::window`]: exact as
//! long as a datagram is not overtaken by more than the window remembers, and those that are stand apart
//! ([`Datagrams::too_old`]). Memory and time do not depend on what the numbers are, so a hostile sender costs no more than
//! another. [`Unwrap`] makes numbers of 64 bits from counters of fewer.
//!
//! - **Lost** counts what is missing between the sender's first number and the highest that came. What was sent after that is
//!   the **tail loss**, known where the sender says how far it came ([`Tracker::total`]).
//! - A datagram that comes after the end of the interval in which it was counted as lost is **late** in the interval in which it
//!   comes. The interval that has ended is not corrected; the total is. So the losses of all intervals are those of the
//!   total, and as many more as came late.
//! - A late datagram is **reordered** too, as is every first copy that comes after a higher number (RFC 4737 section 3.3).
//! - A **duplicate** takes nothing from what is lost.
//!
//! ```
//! use stream::datagrams::{Fate, Tracker};
//!
//! let mut tracker = Tracker::starting_at(1);
//! for number in [1, 2, 4, 4] {
//!     tracker.record(number, None);
//! }
//! assert_eq!((tracker.end_interval().lost, tracker.record(3, None)), (1, Fate::Late));
//! let total = tracker.total(Some(7)); // 5 and 6 were sent as well
//! assert_eq!((total.received, total.lost, total.duplicate, total.late, total.tail_lost), (4, 0, 1, 1, Some(2)));
//! ```

use measure::window::{Arrival, Window};

use crate::outcome::Datagrams;

/// The datagrams of one flow, as they arrive.
#[derive(Clone, Debug)]
pub struct Tracker {
    window: Window,
    /// The number that counting begins with; none: the lowest that comes.
    first: Option<u64>,
    late: u64,
    omitted: u64,
    jitter: Jitter,
    /// The numbers that intervals which have ended account for: lowest and highest.
    accounted: Option<(u64, u64)>,
    /// The totals at the end of the last interval.
    before: Datagrams,
}

/// What one datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its number is above all before it.
    InOrder,
    /// The first copy of one that was overtaken.
    Reordered,
    /// As that, and an interval that has ended counts it as lost.
    Late,
    /// A further copy.
    Duplicate,
    /// Overtaken by more than is remembered: a further copy, or a first one, which stays counted as lost.
    TooOld,
    /// Sent before counting began: in no figure.
    Omitted,
}

impl Tracker {
    /// For a sender whose first number is known: what is missing from there on is lost.
    pub fn starting_at(first: u64) -> Self {
        Self { first: Some(first), ..Self::starting_anywhere() }
    }

    /// For a sender that may have begun with any number: the lowest that comes is taken for it.
    pub fn starting_anywhere() -> Self {
        Self {
            window: Window::new(),
            first: None,
            late: 0,
            omitted: 0,
            jitter: Jitter::default(),
            accounted: None,
            before: Datagrams::default(),
        }
    }

    /// Takes the next datagram that arrived. `stamps` are when it was sent, in ns of the sender's clock, and when it was received,
    /// in ns of one's own: what they differ by does not matter, only how that changes.
    #[inline]
    pub fn record(&mut self, number: u64, stamps: Option<(u64, u64)>) -> Fate {
        if self.first.is_some_and(|first| number < first) {
            self.omitted += 1;
            return Fate::Omitted;
        }
        let fate = match self.window.record(number) {
            Arrival::InOrder => Fate::InOrder,
            Arrival::Duplicate => return Fate::Duplicate,
            Arrival::TooOld => return Fate::TooOld,
            Arrival::Reordered { .. } if self.is_accounted(number) => {
                self.late += 1;
                Fate::Late
            }
            Arrival::Reordered { .. } => Fate::Reordered,
        };
        if let Some((sent_ns, received_ns)) = stamps {
            self.jitter.record(received_ns.wrapping_sub(sent_ns));
        }
        fate
    }

    /// Begins to count: what came before was omitted, and so is what was sent before and comes later. Numbers that were lost
    /// until now are in no figure.
    pub fn end_omit(&mut self) {
        let first = match self.window.account().range {
            Some((_, highest)) => Some(highest.saturating_add(1)),
            None => self.first,
        };
        // The variation of transit times is a running estimate, which it need not begin anew.
        *self = Self { first, jitter: self.jitter.next_interval(), ..Self::starting_anywhere() };
    }

    /// Ends an interval: what came in it, and what is missing now that was not before.
    pub fn end_interval(&mut self) -> Datagrams {
        let now = self.total(None);
        let then = self.before;
        let late = now.late - then.late;
        let interval = Datagrams {
            received: now.received - then.received,
            duplicate: now.duplicate - then.duplicate,
            reordered: now.reordered - then.reordered,
            late,
            // What came late is missing no more, and was counted before.
            lost: now.lost.saturating_add(late).saturating_sub(then.lost),
            tail_lost: None,
            jitter_ns: if self.jitter.is_fresh { self.jitter.ns() } else { None },
            too_old: now.too_old - then.too_old,
        };
        self.jitter = self.jitter.next_interval();
        self.before = now;
        self.accounted =
            self.window.account().range.map(|(lowest, highest)| (self.first.unwrap_or(lowest), highest));
        interval
    }

    /// The totals so far. `end` is the number that the sender would give the next datagram, which makes the tail loss known; it
    /// stays unknown where a higher number came, which cannot have been sent.
    pub fn total(&self, end: Option<u64>) -> Datagrams {
        let account = self.window.account();
        let before_lowest = match (account.range, self.first) {
            (Some((lowest, _)), Some(first)) => lowest - first,
            _ => 0,
        };
        let next = self.next();
        Datagrams {
            received: account.unique,
            duplicate: account.duplicates,
            reordered: account.reordered,
            late: self.late,
            // The whole range of numbers is one more than there is room for.
            lost: account.lost.saturating_add(before_lowest),
            tail_lost: end.zip(next).and_then(|(end, next)| end.checked_sub(next)),
            jitter_ns: self.jitter.ns(),
            too_old: account.too_old,
        }
    }

    /// The number after the highest that came, also before counting began.
    pub fn next(&self) -> Option<u64> {
        self.window.account().range.map_or(self.first, |(_, highest)| highest.checked_add(1))
    }

    /// Datagrams that came and were sent before counting began.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    fn is_accounted(&self, number: u64) -> bool {
        self.accounted.is_some_and(|(lowest, highest)| (lowest..=highest).contains(&number))
    }
}

/// The sum over flows; the variation of transit times is the mean of those that have one. None without any flow.
pub fn sum<'a>(flows: impl IntoIterator<Item = &'a Datagrams>) -> Option<Datagrams> {
    let (mut jitters, mut jitter_ns) = (0, 0_u128);
    let add = |mut sum: Datagrams, flow: &Datagrams| {
        let fields = [
            (&mut sum.received, flow.received),
            (&mut sum.duplicate, flow.duplicate),
            (&mut sum.reordered, flow.reordered),
            (&mut sum.late, flow.late),
            (&mut sum.lost, flow.lost),
            (&mut sum.too_old, flow.too_old),
        ];
        fields.into_iter().for_each(|(all, one)| *all = all.saturating_add(one));
        sum.tail_lost = sum.tail_lost.zip(flow.tail_lost).map(|(all, one)| all.saturating_add(one));
        sum
    };
    let mut flows = flows.into_iter().inspect(|flow| {
        if let Some(ns) = flow.jitter_ns {
            jitters += 1;
            jitter_ns += u128::from(ns);
        }
    });
    let first = *flows.next()?;
    let all = flows.fold(first, add);
    Some(Datagrams { jitter_ns: jitter_ns.checked_div(jitters).map(|ns| ns as u64), ..all })
}

/// Interarrival jitter (RFC 1889 appendix A.8): a running mean of how much transit times differ from one datagram to the next.
#[derive(Clone, Copy, Debug, Default)]
struct Jitter {
    /// The last transit time, modulo 2⁶⁴, as the clocks of both ends differ by anything.
    transit: Option<u64>,
    ns: Option<f64>,
    /// Whether the interval has a value of its own.
    is_fresh: bool,
}

impl Jitter {
    #[inline]
    fn record(&mut self, transit: u64) {
        // The first has nothing that it differs from.
        if let Some(before) = self.transit {
            let difference = transit.wrapping_sub(before).cast_signed().unsigned_abs() as f64;
            let ns = self.ns.unwrap_or(0.0);
            self.ns = Some(ns + (difference - ns) / 16.0);
            self.is_fresh = true;
        }
        self.transit = Some(transit);
    }

    fn ns(&self) -> Option<u64> {
        self.ns.map(|ns| ns.round() as u64)
    }

    fn next_interval(self) -> Self {
        Self { is_fresh: false, ..self }
    }
}

/// Makes numbers of 64 bits from a counter of fewer that wraps.
///
/// Each number is taken as the one nearest to the highest so far: exact as long as no datagram is overtaken, and no gap is
/// longer, than half of what the counter can tell apart.
#[derive(Clone, Copy, Debug)]
pub struct Unwrap {
    mask: u64,
    highest: u64,
}

impl Unwrap {
    /// For a counter of so many bits (1 to 64) that begins near a number.
    pub fn new(bits: u32, first: u64) -> Self {
        Self { mask: u64::MAX >> (u64::BITS - bits.clamp(1, u64::BITS)), highest: first }
    }

    /// The number in 64 bits; higher bits than the counter has are ignored.
    #[inline]
    pub fn unwrap(&mut self, number: u64) -> u64 {
        let ahead = number.wrapping_sub(self.highest) & self.mask;
        let behind = (self.mask - ahead).wrapping_add(1) & self.mask;
        // A number before the very first would be below 0: then it lies ahead.
        if behind != 0 && behind < ahead && behind <= self.highest {
            return self.highest - behind;
        }
        self.highest = self.highest.saturating_add(ahead);
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// The same from the definitions, with everything that ever arrived.
    #[derive(Default)]
    struct Naive {
        first: u64,
        came: BTreeMap<u64, u64>,
        reordered: u64,
        late: u64,
        given_up: BTreeSet<u64>,
        seen_until: u64,
    }

    impl Naive {
        fn record(&mut self, number: u64) {
            let highest = self.came.last_key_value().map(|(&number, _)| number);
            let copies = self.came.entry(number).or_default();
            *copies += 1;
            if *copies == 1 && highest.is_some_and(|highest| highest > number) {
                self.reordered += 1;
                self.late += u64::from(self.given_up.contains(&number));
            }
        }

        fn next(&self) -> u64 {
            self.came.last_key_value().map_or(self.first, |(&number, _)| number + 1)
        }

        /// What is missing of numbers that no interval before has looked at.
        fn lost_in_interval(&mut self) -> u64 {
            let from = self.seen_until.max(self.first);
            let missing: Vec<u64> =
                (from..self.next()).filter(|number| !self.came.contains_key(number)).collect();
            self.seen_until = self.next();
            self.given_up.extend(&missing);
            missing.len() as u64
        }

        fn lost(&self) -> u64 {
            (self.first..self.next()).filter(|number| !self.came.contains_key(number)).count() as u64
        }
    }

    /// The fate of each datagram sent (copies, delay), with an interval after some arrivals.
    fn arrivals(fates: &[(u8, i64)], first: u64) -> Vec<u64> {
        let mut all: Vec<(i64, u64)> = Vec::new();
        for (index, &(copies, shift)) in fates.iter().enumerate() {
            let number = first + index as u64;
            all.extend(
                (0..copies.saturating_sub(1))
                    .map(|copy| (index as i64 * 4 + shift * i64::from(copy + 1), number)),
            );
        }
        all.sort_unstable();
        all.into_iter().map(|(_, number)| number).collect()
    }

    proptest! {
        #[test]
        fn it_counts_as_the_definitions_say(
            first in prop_oneof![Just(0), Just(1), 0..u64::MAX - 1000],
            fates in prop::collection::vec((0..4_u8, -60..60_i64), 1..200),
            every in 1..50_usize,
        ) {
            let mut tracker = Tracker::starting_at(first);
            let mut naive = Naive { first, ..Naive::default() };
            let mut intervals = Vec::new();
            for (index, number) in arrivals(&fates, first).into_iter().enumerate() {
                tracker.record(number, None);
                naive.record(number);
                if index % every == 0 {
                    let interval = tracker.end_interval();
                    prop_assert_eq!(interval.lost, naive.lost_in_interval());
                    intervals.push(interval);
                }
            }
            let interval = tracker.end_interval();
            prop_assert_eq!(interval.lost, naive.lost_in_interval());
            intervals.push(interval);

            let end = first + fates.len() as u64;
            let total = tracker.total(Some(end));
            prop_assert_eq!(total.received, naive.came.len() as u64);
            prop_assert_eq!(total.duplicate, naive.came.values().map(|copies| copies - 1).sum::<u64>());
            prop_assert_eq!((total.reordered, total.late, total.lost), (naive.reordered, naive.late, naive.lost()));
            prop_assert_eq!(total.tail_lost, Some(end - naive.next()));
            // Every datagram that was sent came or did not.
            prop_assert_eq!(total.received + total.lost + total.tail_lost.unwrap(), fates.len() as u64);
            let sum = sum(&intervals).unwrap();
            prop_assert_eq!((sum.received, sum.duplicate, sum.late), (total.received, total.duplicate, total.late));
            prop_assert_eq!((sum.reordered, sum.lost - sum.late), (total.reordered, total.lost));
        }

        #[test]
        fn no_numbers_break_it(numbers in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), 0..9_u8), 0..300), first in any::<Option<u64>>()) {
            let mut tracker = first.map_or_else(Tracker::starting_anywhere, Tracker::starting_at);
            for (number, sent_ns, received_ns, what) in numbers {
                tracker.record(number, Some((sent_ns, received_ns)));
                match what {
                    0 => tracker.end_omit(),
                    1 => _ = tracker.end_interval(),
                    _ => {}
                }
                let _ = tracker.total(Some(received_ns));
            }
        }

        #[test]
        fn a_wrapping_counter_is_unwrapped(
            bits in 8..65_u32, start in prop_oneof![0..5_u64, any::<u64>().prop_map(|start| start >> 8)],
            steps in prop::collection::vec(-60..64_i64, 1..300),
        ) {
            let mask = u64::MAX >> (64 - bits);
            let mut unwrap = Unwrap::new(bits, start);
            let (mut at, mut highest) = (start, start);
            for step in steps {
                // Never further from the highest than half of what the smallest counter tells apart.
                at = at.saturating_add_signed(step).max(highest.saturating_sub(120)).min(highest + 120);
                highest = highest.max(at);
                prop_assert_eq!(unwrap.unwrap(at & mask), at, "{} bits from {}", bits, start);
            }
        }
    }

    fn take(tracker: &mut Tracker, numbers: &[u64]) {
        numbers.iter().for_each(|&number| _ = tracker.record(number, None));
    }

    #[test]
    fn a_counter_of_32_bits_goes_on_past_2_to_the_32() {
        // iperf3 #1892: loss was nonsense from here on.
        let mut unwrap = Unwrap::new(32, 1);
        let mut tracker = Tracker::starting_at(1);
        tracker.record(unwrap.unwrap(1), None);
        for third in [0x4000_0000, 0x8000_0000, 0xc000_0000, 0xffff_fffe_u32] {
            tracker.record(unwrap.unwrap(third.into()), None);
        }
        for number in [u32::MAX, 0, 2, 1, 3] {
            tracker.record(unwrap.unwrap(number.into()), None);
        }
        let total = tracker.total(Some((1 << 32) + 4));
        assert_eq!((total.received, total.reordered, total.tail_lost), (10, 1, Some(0)));
        assert_eq!(total.lost, (1 << 32) + 3 - 10);
    }

    #[test]
    fn a_duplicate_makes_no_loss_smaller() {
        // iperf3 decrements what is lost for it (iperf_udp.c).
        let mut tracker = Tracker::starting_at(1);
        take(&mut tracker, &[1, 3, 3, 3]);
        let total = tracker.total(None);
        assert_eq!((total.lost, total.duplicate, total.reordered, total.tail_lost), (1, 2, 0, None));
    }

    #[test]
    fn what_was_omitted_makes_nothing_negative() {
        // iperf3 #412: loss was negative where something had been omitted.
        let mut tracker = Tracker::starting_at(0);
        take(&mut tracker, &[0, 1, 5]);
        tracker.end_omit();
        assert_eq!([3, 5].map(|number| tracker.record(number, None)), [Fate::Omitted; 2]);
        assert_eq!((tracker.total(None), tracker.omitted()), (Datagrams::default(), 2));
        take(&mut tracker, &[7, 8]);
        let total = tracker.total(Some(10));
        assert_eq!((total.received, total.lost, total.tail_lost), (2, 1, Some(1)));
    }

    #[test]
    fn nothing_that_came_is_all_lost_at_the_tail() {
        let tracker = Tracker::starting_at(1);
        assert_eq!((tracker.total(Some(101)).tail_lost, tracker.total(Some(101)).lost), (Some(100), 0));
        assert_eq!(Tracker::starting_anywhere().total(Some(101)).tail_lost, None);
    }

    #[test]
    fn a_number_that_cannot_have_been_sent_leaves_the_tail_unknown() {
        let mut tracker = Tracker::starting_at(0);
        tracker.record(u64::MAX, None);
        let total = tracker.total(Some(10));
        assert_eq!((total.received, total.lost, total.tail_lost), (1, u64::MAX, None));
        assert_eq!(tracker.record(0, None), Fate::TooOld);
        assert_eq!(tracker.total(None).too_old, 1);
    }

    #[test]
    fn the_variation_of_transit_times_is_that_of_the_rfc() {
        // The clocks of both ends differ by more than an hour, either way; transit times are 10, 26, 26 and 10 µs.
        for offset in [0_u64, 4_000_000_000_000, 4_000_000_000_000_u64.wrapping_neg()] {
            let mut tracker = Tracker::starting_at(0);
            for (number, transit_us) in [10_u64, 26, 26, 10].into_iter().enumerate() {
                let sent_ns = 7_000_000 + number as u64 * 100_000;
                let received_ns = (sent_ns + transit_us * 1000).wrapping_add(offset);
                tracker.record(number as u64, Some((sent_ns, received_ns)));
                assert_eq!(tracker.total(None).jitter_ns.is_some(), number > 0);
            }
            // 1000, then 1000 · 15/16, then that and a sixteenth of what is missing to 16000.
            let expected: f64 = 937.5 + (16_000.0 - 937.5) / 16.0;
            assert_eq!(tracker.end_interval().jitter_ns, Some(expected.round() as u64));
            assert_eq!(tracker.end_interval().jitter_ns, None, "nothing came");
            assert_eq!(tracker.total(None).jitter_ns, Some(expected.round() as u64));
        }
    }

    #[test]
    fn flows_add_up() {
        let one = Datagrams {
            received: 3,
            lost: u64::MAX,
            tail_lost: Some(2),
            jitter_ns: Some(10),
            ..Datagrams::default()
        };
        let other = Datagrams {
            received: 4,
            lost: 1,
            tail_lost: Some(3),
            jitter_ns: Some(21),
            ..Datagrams::default()
        };
        let sum_of = |flows: &[Datagrams]| sum(flows);
        let all = sum_of(&[one, other]).unwrap();
        assert_eq!((all.received, all.lost, all.tail_lost, all.jitter_ns), (7, u64::MAX, Some(5), Some(15)));
        let unknown = Datagrams { tail_lost: None, jitter_ns: None, ..one };
        let all = sum_of(&[other, unknown]).unwrap();
        assert_eq!((all.tail_lost, all.jitter_ns), (None, Some(21)));
        assert_eq!(sum_of(&[]), None);
    }
}
