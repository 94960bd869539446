//! When the next message is due.

use std::num::NonZeroU64;
use std::thread;
use std::time::Duration;

use linux::{clock, process};

use crate::plan::{Pace, Plan, Work};

/// Below this a thread watches the clock instead of sleeping: waking up mostly takes as long.
const WATCH_NS: u64 = 60_000;

/// Messages at equal distances, counted from the first: being late does not move those that follow.
#[derive(Debug)]
pub(super) struct Pacer {
    interval_ns: f64,
    begin_ns: Option<u64>,
    /// How many were sent.
    count: u64,
    last_ns: u64,
    /// No two closer than half of the interval.
    without_bursts: bool,
}

impl Pacer {
    /// For the part of a plan's pace that the sending thread keeps; messages of so many bytes. None where it keeps none.
    pub(super) fn new(plan: &Plan, message_bytes: u32) -> Option<Self> {
        let (interval_ns, without_bursts) = match plan.pace? {
            Pace::Kernel { .. } => return None,
            Pace::DepartureTimes { bits_per_second } => (interval_ns(bits_per_second, message_bytes), false),
            Pace::Spread { bits_per_second } => (interval_ns(bits_per_second, message_bytes), true),
            // Transactions that are late follow at once: what they waited is in their latency.
            Pace::Schedule { per_second } => {
                (1e9 / per_second.max(1e-9), matches!(plan.work, Work::Bulk { .. }))
            }
        };
        // So that sleeps end when they should; without it they are less exact.
        let _ = process::set_timer_slack(NonZeroU64::MIN);
        Some(Self { interval_ns, begin_ns: None, count: 0, last_ns: 0, without_bursts })
    }

    /// When the next message was or will be due, ns of `CLOCK_MONOTONIC`.
    pub(super) fn due_ns(&mut self, now_ns: u64) -> u64 {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        // A product has 53 bits: within a ns for a hundred days.
        begin_ns.saturating_add((self.count as f64 * self.interval_ns) as u64)
    }

    /// When the next message may be sent: not before it is due, and no burst after a delay.
    pub(super) fn ready_ns(&mut self, now_ns: u64, messages: u64) -> u64 {
        let due_ns = self.due_ns(now_ns);
        if !self.without_bursts || self.last_ns == 0 {
            return due_ns;
        }
        let half_ns = (messages as f64 * self.interval_ns / 2.0) as u64;
        due_ns.max(self.last_ns.saturating_add(half_ns))
    }

    /// So many messages were sent.
    pub(super) fn sent(&mut self, now_ns: u64, messages: u64) {
        self.count += messages;
        self.last_ns = now_ns;
    }
}

fn interval_ns(bits_per_second: u64, message_bytes: u32) -> f64 {
    f64::from(message_bytes.max(1)) * 8e9 / bits_per_second.max(1) as f64
}

/// Sleeps until a time, or for so long at most.
pub(super) fn sleep_until(at_ns: u64, at_most: Duration) {
    let now_ns = clock::monotonic_ns();
    let left_ns = at_ns.saturating_sub(now_ns);
    if left_ns > WATCH_NS {
        thread::sleep(Duration::from_nanos(left_ns - WATCH_NS / 2).min(at_most));
    }
    // At most what is left after a sleep that was not cut short.
    while clock::monotonic_ns() < at_ns && left_ns <= WATCH_NS {
        std::hint::spin_loop();
    }
}

/// How long a wait for events may take until a time: nothing where it is so near that the clock is watched.
pub(super) fn wait_until(at_ns: u64, at_most: Duration) -> Duration {
    let left_ns = at_ns.saturating_sub(clock::monotonic_ns());
    if left_ns <= WATCH_NS {
        Duration::ZERO
    } else {
        Duration::from_nanos(left_ns - WATCH_NS / 2).min(at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(interval_ns: f64, without_bursts: bool) -> Pacer {
        Pacer { interval_ns, begin_ns: None, count: 0, last_ns: 0, without_bursts }
    }

    #[test]
    fn being_late_neither_moves_the_rest_nor_makes_a_burst() {
        let mut pacer = pacer(1000.0, true);
        assert_eq!(pacer.ready_ns(5000, 1), 5000);
        pacer.sent(5000, 1);
        assert_eq!(pacer.ready_ns(5001, 1), 6000);
        pacer.sent(9000, 1); // 3 µs late
        assert_eq!((pacer.due_ns(9000), pacer.ready_ns(9000, 1)), (7000, 9500));
        pacer.sent(9500, 1);
        assert_eq!((pacer.due_ns(9500), pacer.ready_ns(9500, 1)), (8000, 10_000));
    }

    #[test]
    fn transactions_that_are_late_follow_at_once() {
        let mut pacer = pacer(1000.0, false);
        pacer.ready_ns(0, 1);
        pacer.sent(5000, 1);
        assert_eq!(pacer.ready_ns(5000, 1), 1000);
    }

    #[test]
    fn a_rate_is_of_payload() {
        assert_eq!(interval_ns(8_000_000, 1000), 1_000_000.0);
        assert_eq!(interval_ns(0, 0), 8e9);
    }

    /// netperf's -b and -w halve a rate above 957 Mbit/s (netperf #39): its timer has whole steps, and what is due between two
    /// of them is left out. Here it is made up for, whatever the steps of the clock are.
    #[test]
    fn a_high_rate_is_not_halved_by_a_coarse_clock() {
        for clock_ns in [1, 1000, 4000, 50_000] {
            // 10 Gbit/s of 1000 bytes: each 800 ns, in batches of as many as a step is late by at most.
            let batch = (clock_ns / 800 + 1) * 2;
            let mut pacer = pacer(interval_ns(10_000_000_000, 1000), true);
            let (mut now_ns, mut sent) = (1_000_000, 0);
            while now_ns < 101_000_000 {
                let ready_ns = pacer.ready_ns(now_ns, batch);
                if ready_ns > now_ns {
                    now_ns = ready_ns.next_multiple_of(clock_ns);
                    continue;
                }
                pacer.sent(now_ns, batch);
                sent += batch;
            }
            let due = 100_000_000 / 800;
            assert!(sent.abs_diff(due) <= batch * 2, "{clock_ns}: {sent} of {due}");
        }
    }
}
