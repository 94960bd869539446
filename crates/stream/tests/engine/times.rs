//! What is omitted, intervals, paces.

use std::sync::Mutex;

use stream::engine::{Marks, Role, Settings};
use stream::outcome::{Interval, Moved};
use stream::plan::{Pace, Until};

use super::*;

const INTERVAL: Duration = Duration::from_millis(50);

fn with_intervals<'a>(settings: Settings<'a>) -> Settings<'a> {
    Settings { interval: Some(INTERVAL), ..settings }
}

/// Intervals follow each other without a gap; the first of each phase begins at 0.
fn check(intervals: &[Interval]) {
    assert!(!intervals.is_empty());
    let mut at = (true, 0);
    for interval in intervals {
        if interval.omitted != at.0 {
            assert!(at.0, "nothing is omitted after counting has begun");
            at = (false, 0);
        }
        assert_eq!(interval.start_ns, at.1);
        assert!(interval.end_ns >= interval.start_ns);
        at.1 = interval.end_ns;
    }
}

fn sum(
    intervals: &[Interval],
    omitted: bool,
    flow: usize,
    of: impl Fn(&stream::outcome::Flow) -> u64,
) -> u64 {
    intervals
        .iter()
        .filter(|interval| interval.omitted == omitted)
        .map(|interval| of(&interval.flows[flow]))
        .sum()
}

#[test]
fn intervals_add_up_to_the_totals() {
    for (_, [near, far]) in streams([Role::Send, Role::Receive]) {
        let plan = copying(Until::Time(Duration::from_millis(220)));
        let told = Mutex::new(Vec::new());
        let tell = |interval: &Interval| told.lock().unwrap().push(interval.clone());
        let near_settings =
            Settings { on_interval: Some(&tell), ..with_intervals(settings(&plan, End::Client)) };
        let far_settings = with_intervals(settings(&plan, End::Server));
        let (near, far) = both_with(vec![near], vec![far], &near_settings, &far_settings, true);
        assert_eq!(*told.lock().unwrap(), near.intervals);
        check(&near.intervals);
        check(&far.intervals);
        assert!(near.intervals.len() >= 4, "{}", near.intervals.len());
        let sent = |flow: &stream::outcome::Flow| flow.sent.unwrap().bytes;
        let received = |flow: &stream::outcome::Flow| flow.received.unwrap().bytes;
        assert_eq!(sum(&near.intervals, false, 0, sent), super::sent(&near));
        assert_eq!(sum(&far.intervals, false, 0, received), super::received(&far));
        if let Some(tcp) = &near.flows[0].tcp {
            assert_eq!(tcp.series.len(), near.intervals.len());
        }
    }
}

#[test]
fn nothing_that_is_omitted_is_in_any_figure() {
    let mut plan = copying(Until::Bytes(5_000_000));
    plan.omit = Duration::from_millis(120);
    // Some 40 MB in all, in steps that can be told.
    plan.pace = Some(Pace::Spread { bits_per_second: 800_000_000 });
    let [near, far] = streams([Role::Send, Role::Receive]).swap_remove(0).1;
    let near_settings = with_intervals(settings(&plan, End::Client));
    let whole = Plan { omit: Duration::ZERO, ..plan.clone() };
    let far_settings = settings(&whole, End::Server);
    let (near, far) = both_with(vec![near], vec![far], &near_settings, &far_settings, true);
    check(&near.intervals);
    let bytes = |flow: &stream::outcome::Flow| flow.sent.unwrap().bytes;
    let omitted = sum(&near.intervals, true, 0, bytes);
    assert!(omitted > 0);
    assert_eq!((sent(&near), sum(&near.intervals, false, 0, bytes)), (5_000_000, 5_000_000));
    // The other end, which omits nothing, got both. What moved between the last look and the last call is in no interval.
    assert!(received(&far) >= 5_000_000 + omitted, "{} {omitted}", received(&far));
}

#[test]
fn losses_before_counting_began_do_not_count() {
    let own = Marks::Own { cookie: [1; 16] };
    let mut plan = datagrams(Until::Units(300));
    plan.omit = Duration::from_millis(100);
    plan.pace = Some(Pace::Schedule { per_second: 2000.0 });
    let [near, far] = udp_pair(V4, [Role::Send, Role::Receive], own).unwrap();
    let near_settings = with_intervals(settings(&plan, End::Client));
    let far_settings = with_intervals(settings(&plan, End::Server));
    let (near, far) = both_with(vec![near], vec![far], &near_settings, &far_settings, false);
    check(&far.intervals);
    assert_eq!(near.flows[0].sent.unwrap().messages, 300);
    let (flow, datagrams) = (&far.flows[0], far.flows[0].datagrams.unwrap());
    assert_eq!((datagrams.lost, datagrams.duplicate), (0, 0));
    assert!(datagrams.received <= flow.received.unwrap().messages && datagrams.received > 0);
    let lost = |flow: &stream::outcome::Flow| flow.datagrams.unwrap().lost;
    assert_eq!(sum(&far.intervals, false, 0, lost), 0);
}

#[test]
fn intervals_of_transactions() {
    let plan = transactions(1, 1, 1, Until::Time(Duration::from_millis(160)));
    let [near, far] = streams([Role::Request, Role::Respond]).swap_remove(0).1;
    let near_settings = with_intervals(settings(&plan, End::Client));
    let far_settings = with_intervals(settings(&plan, End::Server));
    let (near, far) = both_with(vec![near], vec![far], &near_settings, &far_settings, true);
    for side in [&near, &far] {
        check(&side.intervals);
        let count = |flow: &stream::outcome::Flow| flow.transactions.unwrap();
        assert_eq!(Some(sum(&side.intervals, false, 0, count)), side.flows[0].transactions);
    }
}

#[test]
fn a_rate_is_kept_by_whoever_keeps_it() {
    const BITS: u64 = 80_000_000;
    let paces = [Pace::Spread { bits_per_second: BITS }, Pace::Kernel { bits_per_second: BITS }];
    for pace in paces {
        let mut plan = copying(Until::Bytes(2_000_000));
        plan.pace = Some(pace);
        plan.options.client.send_buffer_bytes = Some(65_536);
        let [near, far] = streams([Role::Send, Role::Receive]).swap_remove(0).1;
        let (near, far) = both(&plan, vec![near], vec![far], true);
        assert_eq!((sent(&near), received(&far)), (2_000_000, 2_000_000));
        // 0.2 s; the kernel lets the first ten segments go at once, and some lie in buffers at the end. Never much faster.
        assert!(far.wall_ns >= 100_000_000, "{pace:?}: {}", far.wall_ns);
    }
}

#[test]
fn cpu_time_is_accounted_for_where_asked() {
    let plan = copying(Until::Time(Duration::from_millis(100)));
    let [near, far] = streams([Role::Send, Role::Receive]).swap_remove(0).1;
    let near_settings = Settings { cpu: true, ..settings(&plan, End::Client) };
    let (near, far) = both_with(vec![near], vec![far], &near_settings, &settings(&plan, End::Server), true);
    let cpu = near.cpu.unwrap();
    assert_eq!(cpu.threads_ns.len(), 1);
    assert!(cpu.threads_ns[0] > 0 && cpu.wall_ns >= 100_000_000);
    assert_eq!(far.cpu, None);
    assert_ne!(near.flows[0].sent, Some(Moved::default()));
}
