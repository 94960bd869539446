//! Faults that users of other tools reported of latencies, each with the right value.
#![allow(clippy::unwrap_used)]

mod common;
mod faults_support;

use std::time::Duration;

use common::{Running, plan};
use faults_support::{Pass, Relay, Toward, udp_flow};
use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::latency::{self, Figures, LONGEST_NS, PERCENTILES, Recorder};
use stream::limits::{Halt, Limits};
use stream::outcome::{Latency, Side};
use stream::own::client::{self, Asking};
use stream::plan::{Pace, Plan, Transport, Until, Work};

const RR: Work = Work::Transactions { request_bytes: 1, response_bytes: 1, outstanding: 1 };
const PATIENCE: Duration = Duration::from_secs(20);

/// A run of 24 h has a deviation of -nan and a negative mean (netperf #83: totals of 32 bits).
#[test]
fn a_day_of_transactions_has_a_mean_and_a_deviation() {
    let each = 86_400 * 50_000 / 2;
    let latency = Latency {
        counts: vec![(10_000, each), (30_000, each)],
        sum_ns: u128::from(each) * 40_000,
        from_due: false,
        min_ns: Some(10_000),
        max_ns: Some(30_000),
        out_of_range: 0,
    };
    let figures = Figures::of(&latency).unwrap();
    assert_eq!((figures.count, figures.mean_ns, figures.stddev_ns), (each * 2, 20_000, 10_000));
    assert_eq!((figures.percentiles_ns[0], figures.percentiles_ns[1]), (10_000, 30_000));
    // Ten of them together.
    let many = latency::sum(std::iter::repeat_n(&latency, 10)).unwrap();
    let figures = Figures::of(&many).unwrap();
    assert_eq!((figures.count, figures.mean_ns), (each * 20, 20_000));
}

/// A percentile of 0 µs is read from another bucket (netperf pull request #50): times far below a µs have their own.
#[test]
fn percentiles_below_a_microsecond_are_right() {
    let mut recorder = Recorder::new(false);
    (0..99).for_each(|_| recorder.record_ns(300));
    recorder.record_ns(5_000_000);
    let latency = recorder.latency();
    let figures = Figures::of(&latency).unwrap();
    assert_eq!((figures.percentiles_ns[0], figures.percentiles_ns[2]), (300, 300));
    assert_eq!((figures.min_ns, figures.max_ns), (300, 5_000_000));
    // And of 0 ns: the shortest that there is, said as such.
    let mut recorder = Recorder::new(false);
    recorder.record(7, 7);
    let latency = recorder.latency();
    assert_eq!((latency.out_of_range, Figures::of(&latency).unwrap().percentiles_ns[0]), (1, 1));
}

/// A percentile is 0 when the histogram has overflown (neper pull request #98): it is the longest that is told apart.
#[test]
fn percentiles_beyond_the_histogram_are_its_end() {
    let mut recorder = Recorder::new(false);
    (0..10).for_each(|_| recorder.record_ns(1000));
    (0..90).for_each(|_| recorder.record_ns(u64::MAX));
    let latency = recorder.latency();
    let figures = Figures::of(&latency).unwrap();
    assert_eq!((latency.out_of_range, figures.count), (90, 100));
    for (which, ns) in PERCENTILES.iter().zip(figures.percentiles_ns) {
        assert!(ns >= LONGEST_NS / 1000 * 999, "{which}: {ns}");
    }
}

fn asked(server: &Running, plan: &Plan, interval: Option<Duration>) -> (Side, Side) {
    let halt = Halt::new();
    let both = client::run(server.address(), plan, &Asking { interval, ..Asking::new(&halt) }).unwrap();
    (both.client, both.server)
}

fn transactions(side: &Side) -> u64 {
    side.flows.iter().filter_map(|flow| flow.transactions).sum()
}

/// Samples of the server repeat from period to period (neper #22): each transaction is in one period, at both ends.
#[test]
fn no_transaction_is_in_two_periods() {
    let server = Running::own(Limits::default());
    let plan = plan(Transport::Tcp, RR, Until::Time(Duration::from_millis(200)));
    let (client, theirs) = asked(&server, &plan, Some(Duration::from_millis(25)));
    for side in [&client, &theirs] {
        let flows: Vec<_> = side.intervals.iter().map(|interval| &interval.flows[0]).collect();
        assert!(flows.len() > 3);
        assert_eq!(flows.iter().filter_map(|flow| flow.transactions).sum::<u64>(), transactions(side));
    }
    let whole = Figures::of(client.flows[0].latency.as_ref().unwrap()).unwrap();
    assert_eq!(whole.count, transactions(&client));
    let periods: Vec<_> =
        client.intervals.iter().filter_map(|interval| interval.flows[0].latency.as_ref()).collect();
    if !periods.is_empty() {
        let sum = latency::sum(periods).unwrap();
        assert_eq!(Figures::of(&sum).unwrap().count, whole.count);
    }
}

/// A run of several threads prints no statistics (sockperf #65): each flow of each thread is in them.
#[test]
fn many_threads_have_statistics() {
    let server = Running::own(Limits::default());
    let mut plan = Plan { flows: 8, ..plan(Transport::Tcp, RR, Until::Units(800)) };
    plan.threads.client.count = Some(4);
    let (client, _) = asked(&server, &plan, None);
    let sum = latency::sum(client.flows.iter().filter_map(|flow| flow.latency.as_ref())).unwrap();
    let figures = Figures::of(&sum).unwrap();
    assert_eq!((client.flows.len(), figures.count, transactions(&client)), (8, 800, 800));
    assert!(figures.min_ns > 0 && figures.mean_ns >= figures.min_ns && figures.max_ns >= figures.mean_ns);
}

/// A low rate of messages aborts (sockperf #147): it is one message, and the rest of the time nothing.
#[test]
fn a_rate_of_one_an_hour_is_a_rate() {
    let server = Running::own(Limits::default());
    for (per_second, until) in
        [(1.0 / 3600.0, Until::Time(Duration::from_millis(100))), (1e-9, Until::Units(1))]
    {
        let pace = Some(Pace::Schedule { per_second });
        let (client, theirs) = asked(&server, &Plan { pace, ..plan(Transport::Tcp, RR, until) }, None);
        assert_eq!((transactions(&client), transactions(&theirs)), (1, 1));
    }
}

/// Runs requests through a relay.
fn requests(
    plan: &Plan,
    policy: impl Fn(Toward, Option<u64>) -> Pass + Send + Sync + 'static,
) -> (Side, Relay) {
    let [near, far] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let relay = Relay::start(far.local_addr().unwrap(), policy);
    let settings =
        |end| Settings { plan, end, interval: None, cpu: false, give_up_after: PATIENCE, on_interval: None };
    let (control, far_control) = (Control::new(), Control::new());
    control.begin();
    far_control.begin();
    let side = std::thread::scope(|scope| {
        let endpoint = Endpoint::Udp { socket: far, peer: None };
        let flow = Flow { endpoint, role: Role::Respond, marks: Marks::None };
        let far = scope.spawn(|| engine::run(vec![flow], &settings(End::Server), &far_control).unwrap());
        common::wait_for(|| far_control.ready());
        let flow = udp_flow(near, relay.address, Role::Request, Marks::None);
        let side = engine::run(vec![flow], &settings(End::Client), &control).unwrap();
        far_control.stop();
        far.join().unwrap();
        side
    });
    (side, relay)
}

/// UDP_RR stops for ever when one datagram is lost (flent #106): whichever of the two it is, it is asked again.
#[test]
fn one_lost_datagram_does_not_stop_transactions() {
    for lost in [Toward::Server, Toward::Client] {
        let counter = std::sync::atomic::AtomicU32::new(0);
        let plan = plan(Transport::Udp, RR, Until::Units(20));
        let (side, relay) = requests(&plan, move |toward, _| {
            let is_tenth = toward == lost && counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 9;
            if is_tenth { Pass::Drop } else { Pass::On }
        });
        assert_eq!((relay.dropped(lost), transactions(&side)), (1, 20), "{lost:?}");
        assert_eq!(side.flows[0].datagrams.unwrap().lost, 1, "{lost:?}");
        // Whoever waited is in the latencies with what it waited.
        let figures = Figures::of(side.flows[0].latency.as_ref().unwrap()).unwrap();
        assert_eq!(figures.count, 20);
        assert!(figures.max_ns > figures.percentiles_ns[0] && figures.max_ns >= 200_000_000);
    }
}

/// Gaps under delay (flent #265): each response comes when the relay lets it, and all are there, with the delay in them.
#[test]
fn delay_is_in_every_latency_and_leaves_no_gap() {
    // Behind one that does not come: until the relay sees that nothing more does.
    let plan = plan(Transport::Udp, RR, Until::Units(15));
    let (side, _relay) = requests(&plan, |toward, _| match toward {
        Toward::Client => Pass::Behind(1),
        Toward::Server => Pass::On,
    });
    assert_eq!(transactions(&side), 15);
    let figures = Figures::of(side.flows[0].latency.as_ref().unwrap()).unwrap();
    assert_eq!(figures.count, 15);
    assert!(figures.min_ns > 1_000_000, "{figures:?}");
}
