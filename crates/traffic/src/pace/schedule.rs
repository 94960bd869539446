//! When to hand over what: the rules of pacing, without a clock.
//!
//! Packet i is due at start + i × interval, reckoned anew for each so that no error adds up. It is handed over then, or
//! half an interval after the one before it, whichever is later: after a delay the sender catches up at twice the rate
//! and never in a burst.
//!
//! Several packets that are handed over at once, a grain ([`super::grain`]), leave when the last of them is due: at no time
//! more was sent than is due.

use super::grain::{Grain, Handed};
use crate::generator::Pace;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time, in ns.
    Wait { until_ns: u64 },
    /// Hand over so many packets at once, now.
    Send { packets: u64 },
}

impl Step {
    fn when(ready_ns: u64, now_ns: u64, packets: u64) -> Self {
        if now_ns < ready_ns { Self::Wait { until_ns: ready_ns } } else { Self::Send { packets } }
    }
}

/// The schedule of a fixed rate. A pace without meaning (an interval that is negative, or no number) is one without
/// intervals.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: Pace,
    /// Number of the next packet.
    next: u64,
    grain: Grain,
    /// When packets were last handed over, and how many.
    last: Option<(u64, u64)>,
}

impl Schedule {
    pub(super) fn new(pace: Pace) -> Self {
        // Also for NaN.
        let interval_ns = if pace.interval_ns > 0.0 { pace.interval_ns } else { 0.0 };
        let pace = Pace { interval_ns, ..pace };
        Self { pace, next: 0, grain: Grain::new(interval_ns), last: None }
    }

    /// Moves the time that the first packet is due.
    pub(super) fn start_at(&mut self, start_ns: u64) {
        self.pace.start_ns = start_ns;
    }

    /// What to do now, if `left` more packets are wanted.
    pub(super) fn step(&self, now_ns: u64, left: u64) -> Step {
        let packets = self.grain.packets().min(left).max(1);
        let due_ns = self.due_ns(self.next + packets - 1);
        Step::when(due_ns.max(self.earliest_ns()), now_ns, packets)
    }

    /// So many packets were handed over at `at_ns`.
    pub(super) fn sent(&mut self, at_ns: u64, packets: u64) {
        self.next += packets;
        if let Some((last_ns, count)) = self.last.replace((at_ns, packets)) {
            let lag_ns = at_ns.saturating_sub(self.due_ns(self.next - 1));
            let cost_ns = at_ns.saturating_sub(last_ns) as f64 / count as f64;
            self.grain.note(Handed { at_ns, lag_ns, cost_ns });
        }
    }

    /// The most packets handed over at once.
    pub(super) fn grain(&self) -> u32 {
        self.grain.used() as u32
    }

    fn due_ns(&self, packet: u64) -> u64 {
        // A product has 53 bits: within a ns for a hundred days.
        let offset_ns = (packet as f64 * self.pace.interval_ns).round() as u64;
        self.pace.start_ns.saturating_add(offset_ns)
    }

    /// Before this the rate would be more than twice the one asked for.
    fn earliest_ns(&self) -> u64 {
        let Some((at_ns, packets)) = self.last else { return 0 };
        let half_ns = packets as f64 * self.pace.interval_ns / 2.0;
        at_ns.saturating_add(half_ns.ceil() as u64)
    }
}

/// The schedule of a recording: each packet is due at its own time.
#[derive(Debug)]
pub(super) struct Follow {
    start_ns: u64,
    speed: f64,
    /// When the packet was due that was seen last, and when it was handed over.
    last: Option<(u64, u64)>,
    /// When the next one is due.
    due_ns: u64,
}

impl Follow {
    pub(super) fn new(start_ns: u64, speed: f64) -> Self {
        Self { start_ns, speed, last: None, due_ns: 0 }
    }

    /// Moves the time that the beginning is due.
    pub(super) fn start_at(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// What to do now, if the next packet was seen `recorded_ns` after the beginning.
    pub(super) fn step(&mut self, now_ns: u64, recorded_ns: u64) -> Step {
        let offset_ns = (recorded_ns as f64 / self.speed).round() as u64;
        self.due_ns = self.start_ns.saturating_add(offset_ns);
        let mut ready_ns = self.due_ns;
        if let Some((last_due_ns, last_ns)) = self.last {
            self.due_ns = self.due_ns.max(last_due_ns);
            ready_ns = self.due_ns.max(last_ns.saturating_add((self.due_ns - last_due_ns).div_ceil(2)));
        }
        Step::when(ready_ns, now_ns, 1)
    }

    /// That packet was handed over at `at_ns`.
    pub(super) fn sent(&mut self, at_ns: u64) {
        self.last = Some((self.due_ns, at_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000;
    const KPPS_750: f64 = 1e9 / 750e3;

    fn fixed(interval_ns: f64) -> Schedule {
        Schedule::new(Pace { start_ns: START_NS, interval_ns })
    }

    /// Sends with a simulated clock: `cost_ns` is how long a call takes at a time for so many packets. The grains: when,
    /// how many.
    fn simulate(
        schedule: &mut Schedule,
        packets: u64,
        mut cost_ns: impl FnMut(u64, u64) -> u64,
    ) -> Vec<(u64, u64)> {
        let (mut now, mut sent, mut grains) = (START_NS, 0, Vec::new());
        while sent < packets {
            match schedule.step(now, packets - sent) {
                Step::Wait { until_ns } => {
                    assert!(until_ns > now);
                    now = until_ns;
                }
                Step::Send { packets: count } => {
                    assert!((1..=packets - sent).contains(&count));
                    schedule.sent(now, count);
                    grains.push((now, count));
                    sent += count;
                    now += cost_ns(now, count);
                }
            }
        }
        grains
    }

    /// Nothing early, and never more than twice the rate.
    fn check(grains: &[(u64, u64)], interval_ns: f64) {
        let mut sent = 0;
        for pair in grains.windows(2) {
            let [(before, packets), (at, _)] = [pair[0], pair[1]];
            assert!((at - before) as f64 >= packets as f64 * interval_ns / 2.0, "{pair:?}");
        }
        for &(at, packets) in grains {
            sent += packets;
            assert!((at - START_NS) as f64 + 1.0 >= (sent - 1) as f64 * interval_ns);
        }
    }

    /// How late the last packet was.
    fn lag_at_end(grains: &[(u64, u64)], interval_ns: f64) -> f64 {
        let packets: u64 = grains.iter().map(|&(_, packets)| packets).sum();
        let at = grains.last().map_or(0, |&(at, _)| at);
        (at - START_NS) as f64 - (packets - 1) as f64 * interval_ns
    }

    #[test]
    fn due_times_do_not_drift() {
        // 14.88 Mpps, 67.2 ns each, for an hour; and the rate of 64-byte frames at 10 Gbit/s exactly.
        for packet in [0, 1, 999_999_999, 14_880_952 * 3600] {
            let due = fixed(67.2).due_ns(packet) - START_NS;
            let exact = (u128::from(packet) * 672 + 5) / 10;
            assert!(u128::from(due).abs_diff(exact) <= 1, "{packet}: {due} {exact}");
            let due = fixed(1e9 / 14_880_952.0).due_ns(packet) - START_NS;
            let exact = u128::from(packet) * 1_000_000_000 / 14_880_952;
            assert!(u128::from(due).abs_diff(exact) <= 1, "{packet}: {due} {exact}");
        }
    }

    #[test]
    fn a_fast_backend_sends_each_packet_when_it_is_due() {
        let mut schedule = fixed(KPPS_750);
        let grains = simulate(&mut schedule, 75_000, |_, _| 600);
        check(&grains, KPPS_750);
        assert_eq!((grains.len(), schedule.grain()), (75_000, 1));
        assert!(lag_at_end(&grains, KPPS_750).abs() <= 1.0);
        assert!(grains.windows(2).all(|pair| (1333..=1334).contains(&(pair[1].0 - pair[0].0))));
    }

    #[test]
    fn after_a_stall_it_catches_up_at_twice_the_rate() {
        const STALL_NS: u64 = 30_000_000;
        let stalled = |now, _| if (20_000_000..20_001_334).contains(&now) { STALL_NS } else { 500 };
        let mut schedule = fixed(KPPS_750);
        let grains = simulate(&mut schedule, 100_000, stalled);
        check(&grains, KPPS_750);
        assert_eq!((grains.len(), schedule.grain()), (100_000, 1));
        let late =
            |&(at, _): &(u64, u64), packet: usize| (at - START_NS) as f64 - packet as f64 * KPPS_750 > 1.0;
        let first_late = grains.iter().enumerate().find(|(packet, grain)| late(grain, *packet)).unwrap();
        let last_late = grains.iter().enumerate().rfind(|(packet, grain)| late(grain, *packet)).unwrap();
        // Behind for as long as the stall; the gaps are rounded up to whole ns, so that it takes a little longer.
        let behind_ns = (last_late.1.0 - first_late.1.0) as f64 / STALL_NS as f64;
        assert!((0.999..1.005).contains(&behind_ns), "{behind_ns}");
        assert!(lag_at_end(&grains, KPPS_750) <= 1.0);
    }

    #[test]
    fn a_slow_backend_gets_the_grain_that_it_needs() {
        // 1.33 µs a packet are there: a call of 2 µs must take two.
        for (call_ns, packet_ns, grain) in [(1200, 50, 1), (2000, 50, 2), (7000, 100, 8), (50_000, 100, 64)] {
            let mut schedule = fixed(KPPS_750);
            let grains = simulate(&mut schedule, 750_000, |_, packets| call_ns + packet_ns * packets);
            check(&grains, KPPS_750);
            assert_eq!(schedule.grain(), grain, "{call_ns}");
            // The last one may be a part of a grain, soon after the one before it.
            assert!(lag_at_end(&grains, KPPS_750) < (call_ns + 64 * packet_ns) as f64, "{call_ns}");
            let tail = &grains[grains.len() - 100..grains.len() - 1];
            assert!(tail.iter().all(|&(_, packets)| packets == u64::from(grain)));
            let gap_ns = (f64::from(grain) * KPPS_750) as u64;
            assert!(tail.windows(2).all(|pair| (pair[1].0 - pair[0].0).abs_diff(gap_ns) <= 1));
        }
    }

    #[test]
    fn a_backend_that_never_keeps_up_sends_what_it_can() {
        const PACKETS: u64 = 500_000;
        // Where grains help, and where they do not: there it tries two and goes back to one.
        for (call_ns, packet_ns, used, last) in [(30_000, 100, 64, 64), (300, 700, 8, 4), (0, 1000, 2, 1)] {
            let mut schedule = fixed(100.0);
            let grains = simulate(&mut schedule, PACKETS, |_, packets| call_ns + packet_ns * packets);
            check(&grains, 100.0);
            assert_eq!(grains.iter().map(|grain| grain.1).sum::<u64>(), PACKETS);
            assert_eq!((schedule.grain(), schedule.grain.packets()), (used, last), "{call_ns}");
            assert!(lag_at_end(&grains, 100.0) > 1e8);
        }
    }

    #[test]
    fn on_a_shared_cpu_there_are_grains_only_where_they_help() {
        // 2 ms on and 1 ms off; twice the rate is a packet in 667 ns.
        for (call_ns, grain) in [(500, 1), (640, 1), (1000, 2)] {
            let mut off = 0;
            let shared = |now: u64, _| {
                let lost = now / 3_000_000 > off;
                off += u64::from(lost);
                call_ns + if lost { 1_000_000 } else { 0 }
            };
            let mut schedule = fixed(KPPS_750);
            let grains = simulate(&mut schedule, 1_500_000, shared);
            check(&grains, KPPS_750);
            assert_eq!(schedule.grain(), grain, "{call_ns}");
            // Not more than two lost slices behind.
            assert!(lag_at_end(&grains, KPPS_750) < 2e6, "{call_ns}");
        }
        // Half of the time lost: at twice the rate it is just not kept, and no grain would help.
        let half = |now: u64, _| 500 + if now % 6_000_000 < 1500 { 3_000_000 } else { 0 };
        let mut schedule = fixed(KPPS_750);
        check(&simulate(&mut schedule, 750_000, half), KPPS_750);
        assert_eq!(schedule.grain(), 1);
    }

    #[test]
    fn a_grain_is_given_up_when_it_is_not_needed_any_more() {
        let busy_ns = START_NS + 500_000_000;
        let cost = |now, packets| if now < busy_ns { 3000 + 10 * packets } else { 500 };
        let mut schedule = fixed(KPPS_750);
        let grains = simulate(&mut schedule, 3_000_000, cost);
        check(&grains, KPPS_750);
        assert_eq!((schedule.grain(), schedule.grain.packets()), (4, 1));
        // Where it is needed for ever, trying without it costs little.
        let mut schedule = fixed(KPPS_750);
        let grains = simulate(&mut schedule, 15_000_000, |_, packets| 3000 + 10 * packets);
        check(&grains, KPPS_750);
        assert_eq!((schedule.grain(), schedule.grain.packets()), (4, 4));
        let tried = grains.iter().filter(|grain| grain.1 < 4).count() as f64 / grains.len() as f64;
        assert!(tried < 0.02 && lag_at_end(&grains, KPPS_750) < 1e4, "{tried}");
    }

    #[test]
    fn a_slow_rate_is_held_after_long_delays() {
        // 100 pps, every tenth call 200 ms.
        let mut calls = 0;
        let cost = |_, _| {
            calls += 1;
            if calls % 10 == 0 { 200_000_000 } else { 5000 }
        };
        let mut schedule = fixed(1e7);
        let grains = simulate(&mut schedule, 1000, cost);
        check(&grains, 1e7);
        assert_eq!((grains.len(), schedule.grain()), (1000, 1));
    }

    #[test]
    fn workers_take_turns() {
        const WORKERS: u32 = 3;
        let whole = Pace { start_ns: START_NS, interval_ns: 200.0 };
        let mut times: Vec<u64> = (0..WORKERS)
            .flat_map(|worker| simulate(&mut Schedule::new(whole.share(worker, WORKERS)), 1000, |_, _| 10))
            .map(|(at, _)| at)
            .collect();
        times.sort_unstable();
        assert_eq!(times.len(), 3000);
        assert!(times.iter().zip(0..).all(|(&at, packet)| at == START_NS + packet * 200));
    }

    #[test]
    fn a_pace_without_meaning_does_no_harm() {
        for interval_ns in [0.0, -5.0, f64::NAN, f64::MIN_POSITIVE] {
            let grains = simulate(&mut fixed(interval_ns), 1000, |_, _| 100);
            assert_eq!(grains.iter().map(|grain| grain.1).sum::<u64>(), 1000);
        }
        for interval_ns in [f64::MAX, f64::INFINITY] {
            let mut schedule = fixed(interval_ns);
            let Step::Send { packets: 1 } = schedule.step(START_NS, 2) else { panic!() };
            schedule.sent(START_NS, 1);
            assert_eq!(schedule.step(u64::MAX - 1, 1), Step::Wait { until_ns: u64::MAX });
        }
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut follow = Follow::new(START_NS, speed);
            follow.step(START_NS, 0);
            follow.sent(START_NS);
            follow.step(START_NS, u64::MAX);
        }
    }

    #[test]
    fn a_recording_is_followed_at_its_speed() {
        let mut follow = Follow::new(START_NS, 2.0);
        let mut send = |recorded_ns, now| {
            let ready = match follow.step(now, recorded_ns) {
                Step::Wait { until_ns } => until_ns,
                Step::Send { .. } => now,
            };
            follow.sent(ready);
            ready - START_NS
        };
        assert_eq!(send(0, START_NS), 0);
        assert_eq!(send(10_000, START_NS), 5000);
        // The clock of the recording was set back: its packets are sent at once, and later ones on time.
        assert_eq!(send(4000, START_NS + 5100), 5100);
        assert_eq!(send(20_000, START_NS + 5200), 10_000);
        // 100 µs late: half the gaps until the time is made up for.
        assert_eq!(send(30_000, START_NS + 115_000), 115_000);
        assert_eq!(send(40_000, START_NS + 115_000), 117_500);
        assert_eq!(send(40_000, START_NS + 117_600), 117_600);
        assert_eq!(send(400_000, START_NS + 117_700), 207_600);
        assert_eq!(send(440_000, START_NS + 207_700), 220_000);
    }
}
