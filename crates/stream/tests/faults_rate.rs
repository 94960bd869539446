//! Faults that users of other tools reported of rates and summaries, each with the right value.
#![allow(clippy::unwrap_used)]

mod common;
mod faults_support;
mod iperf3_support;

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use common::Running;
use faults_support::{
    LONG, Pass, Relay, Toward, fake_server, frame, gentle, received, results, sent, udp_flow,
};
use iperf3_support::{Ours, bulk, eventually, limits};
use serde_json::{Value, json};
use stream::datagrams::Tracker;
use stream::engine::{self, Control, End, Marks, Role, Settings};
use stream::iperf3::client::{self, Finished, Options};
use stream::iperf3::json as printed;
use stream::limits::{Halt, Limits};
use stream::outcome::{Exchanged, Flow, Moved, Side};
use stream::own;
use stream::plan::{Direction, Pace, Plan, Transport, Until};

fn document(plan: &Plan, finished: &Finished) -> Value {
    printed::document(&printed::Test {
        end: End::Client,
        plan,
        facts: &finished.facts,
        exchanged: &finished.exchanged,
        server_output: finished.server_output.as_ref(),
    })
}

/// Drops each second number.
fn half(_: Toward, number: Option<u64>) -> Pass {
    if number.is_some_and(|number| number % 2 == 0) { Pass::Drop } else { Pass::On }
}

/// The summary of the receiver shows what the sender sent (iperf3 #238): it is what came.
#[test]
fn the_receivers_summary_is_what_it_received() {
    let ours = Ours::with_limits(limits());
    let relay = Relay::start(ours.address, half);
    let plan = gentle(Direction::ToServer, 200);
    let finished = client::run_whole(relay.address, &plan, &Options::default()).unwrap();
    let end = &document(&plan, &finished)["end"];
    assert_eq!((&end["sum_sent"]["bytes"], &end["sum_received"]["bytes"]), (&json!(20_000), &json!(10_000)));
    let both = finished.exchanged;
    assert_eq!((sent(&both.client), received(&both.server)), (20_000, 10_000));
}

/// Reverse UDP: the summary says 975 Mbit/s of 207 that came (iperf3 #391).
#[test]
fn in_reverse_the_receivers_summary_is_what_it_received() {
    let ours = Ours::with_limits(limits());
    let relay = Relay::start(ours.address, half);
    let plan = Plan { until: Until::Time(Duration::from_millis(200)), ..gentle(Direction::ToClient, 0) };
    let finished = client::run_whole(relay.address, &plan, &Options::default()).unwrap();
    let end = &document(&plan, &finished)["end"];
    let passed = relay.passed(Toward::Client) * 100;
    assert!(passed > 0);
    assert_eq!(end["sum_received"]["bytes"], passed);
    let [rate, seconds] =
        ["bits_per_second", "seconds"].map(|key| end["sum_received"][key].as_f64().unwrap());
    assert!((rate - passed as f64 * 8.0 / seconds).abs() < 1.0);
    assert_eq!(end["sum_sent"]["bytes"], passed + relay.dropped(Toward::Client) * 100);
}

/// The receiver reports 0 bytes of a short test (iperf3 #560).
#[test]
fn a_short_test_has_bytes_at_both_ends() {
    let ours = Ours::with_limits(limits());
    for bytes in [1, 1000, 128 * 1024 + 1] {
        let plan =
            Plan { until: Until::Bytes(bytes), ..bulk(Transport::Tcp, Direction::ToServer, Duration::ZERO) };
        let both = client::run(ours.address, &plan, &Options::default()).unwrap();
        assert_eq!((sent(&both.client), received(&both.server)), (bytes, bytes));
        assert!(both.client.wall_ns > 0 && both.server.wall_ns > 0);
    }
}

/// `seconds` of the receiver are those of the sender (iperf3 #836): each has those of its own clock, and its rate is of them.
#[test]
fn the_receivers_seconds_are_its_own() {
    let mut told = results(100_000);
    told["streams"][0]["end_time"] = json!(7.5);
    let to = fake_server(100_000, Some(frame(told.to_string().as_bytes())));
    let plan = Plan { until: Until::Bytes(100_000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    let finished = client::run_whole(to, &plan, &Options::default()).unwrap();
    let end = &document(&plan, &finished)["end"];
    assert_eq!(end["sum_received"]["seconds"], 7.5);
    assert!((end["sum_received"]["bits_per_second"].as_f64().unwrap() - 800_000.0 / 7.5).abs() < 1e-6);
    let own = finished.exchanged.client.wall_ns as f64 / 1e9;
    assert!((end["sum_sent"]["seconds"].as_f64().unwrap() - own).abs() < 1e-9 && own < 7.0);
}

/// Reverse with `omit`: the total exceeds that of all intervals (iperf3 #443).
#[test]
fn in_reverse_with_omit_the_total_is_that_of_the_intervals() {
    let ours = Ours::with_limits(limits());
    let check = |transport| {
        let pace = Some(Pace::Spread { bits_per_second: 8_000_000 });
        let plan = Plan {
            omit: Duration::from_secs(1),
            pace,
            send_bytes: 1000,
            ..bulk(transport, Direction::ToClient, Duration::from_millis(200))
        };
        let options = Options { interval: Some(Duration::from_millis(40)), ..Options::default() };
        let finished = client::run_whole(ours.address, &plan, &options).unwrap();
        let client = &finished.exchanged.client;
        let of = |omitted| -> u64 {
            let intervals = client.intervals.iter().filter(|interval| interval.omitted == omitted);
            intervals.flat_map(|interval| &interval.flows).map(|flow| flow.received.unwrap().bytes).sum()
        };
        assert!(of(true) > 0 && of(false) > 0);
        assert_eq!(of(false), received(client), "{transport:?}");
        assert_eq!(document(&plan, &finished)["end"]["sum_received"]["bytes"], of(false));
    };
    thread::scope(|scope| {
        scope.spawn(|| check(Transport::Udp));
        check(Transport::Tcp);
    });
}

/// The sum is above the rate limit, as bytes of the tail count without their time (iperf3 #692).
#[test]
fn the_sum_of_flows_stays_below_the_limit() {
    let server = Running::own(Limits::default());
    let bits_per_second = 8_000_000;
    let plan = Plan {
        flows: 3,
        send_bytes: 1000,
        pace: Some(Pace::Spread { bits_per_second }),
        ..common::plan(
            Transport::Tcp,
            common::bulk(Direction::ToServer),
            Until::Time(Duration::from_millis(300)),
        )
    };
    let began = Instant::now();
    let both = server.ask(&plan).unwrap();
    // However long it took: no more than that, and one message of each flow at the begin.
    let most = began.elapsed().as_secs_f64() * bits_per_second as f64 / 8.0 * 3.0 + 3000.0;
    assert!(sent(&both.client) as f64 <= most, "{} of {most}", sent(&both.client));
    assert_eq!(sent(&both.client), received(&both.server));
}

/// 1.8 Gbit/s over a link of 1 Gbit/s in intervals of 0.1 s (iperf3 #951): an interval is as long as it was, and nothing in it is
/// in another.
#[test]
fn intervals_below_a_second_have_their_own_length() {
    let server = Running::own(Limits::default());
    let halt = Halt::new();
    let asking =
        own::client::Asking { interval: Some(Duration::from_millis(20)), ..own::client::Asking::new(&halt) };
    let plan = common::plan(
        Transport::Tcp,
        common::bulk(Direction::ToServer),
        Until::Time(Duration::from_millis(250)),
    );
    let both = own::client::run(server.address(), &plan, &asking).unwrap();
    for (side, total) in [(&both.client, sent(&both.client)), (&both.server, received(&both.server))] {
        let bytes = |flow: &Flow| flow.sent.or(flow.received).unwrap().bytes;
        assert!(side.intervals.len() > 3);
        assert_eq!(side.intervals.iter().flat_map(|interval| &interval.flows).map(bytes).sum::<u64>(), total);
        assert_eq!(side.intervals[0].start_ns, 0);
        assert!(side.intervals.windows(2).all(|two| two[0].end_ns == two[1].start_ns));
    }
}

/// Sends for a while at a rate with a pause; how many datagrams went, with what was omitted, and the most that there may be.
fn paced(plan: &Plan) -> (u64, f64) {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = far.local_addr().unwrap();
    let flow = udp_flow(near, to, Role::Send, Marks::Iperf3 { wide: true });
    let settings = Settings {
        plan,
        end: End::Client,
        interval: None,
        cpu: false,
        give_up_after: LONG,
        on_interval: None,
    };
    let control = Control::new();
    control.begin();
    let began = Instant::now();
    let side = engine::run(vec![flow], &settings, &control).unwrap();
    let Some(Pace::Spread { bits_per_second }) = plan.pace else { panic!() };
    let most = began.elapsed().as_secs_f64() * bits_per_second as f64 / (f64::from(plan.send_bytes) * 8.0);
    (side.flows[0].numbered.unwrap(), most)
}

/// When what is omitted has ended the limit begins anew, and lets a burst go (iperf3 #419).
#[test]
fn the_end_of_omit_lets_no_burst_go() {
    let omit = Duration::from_millis(150);
    let plan =
        Plan { omit, until: Until::Time(Duration::from_millis(150)), ..gentle(Direction::ToServer, 0) };
    let (went, most) = paced(&plan);
    assert!(went > 0 && went as f64 <= most + 2.0, "{went} of {most}");
}

/// With a rate and bursts of several datagrams there is no limit (iperf3 #1192).
#[test]
fn a_rate_holds_for_batches() {
    for (batch, gso) in [(Some(10), None), (None, Some(10))] {
        let mut plan =
            Plan { until: Until::Time(Duration::from_millis(150)), ..gentle(Direction::ToServer, 0) };
        (plan.options.client.batch, plan.options.client.gso_segments) = (batch, gso);
        let (went, most) = paced(&plan);
        assert!(went > 0 && went as f64 <= most + 20.0, "{went} of {most}");
    }
}

/// Bursts each 100 ms lose the datagrams that they count as lost (iperf3 #386, #296): messages go one by one, so that a receiver with room
/// for few gets them all.
#[test]
fn a_rate_is_kept_without_bursts() {
    let went = {
        let plan = Plan { until: Until::Time(Duration::from_millis(300)), ..gentle(Direction::ToServer, 0) };
        paced(&plan).0
    };
    // More than two that are due at once would be a burst; a plan of a number is as long as its rate says.
    assert!(went > 2);
    let plan = gentle(Direction::ToServer, 200);
    let began = Instant::now();
    let (went, _) = paced(&plan);
    // Half of the distance is kept even by those that are late.
    assert!(went == 200 && began.elapsed() >= Duration::from_millis(199 / 2));
}

/// A jitter of 46,822,443,975 ms, or nan (iperf3 #1182, #1264): clocks that differ by anything, and wrap, make none.
#[test]
fn clocks_that_differ_make_no_jitter() {
    for offset in [0, 1 << 40, u64::MAX - 1_500_000, 1 << 63] {
        let mut tracker = Tracker::starting_at(1);
        for number in 1..=1000_u64 {
            let sent_ns = number * 1_000_000;
            tracker.record(number, Some((sent_ns, sent_ns.wrapping_add(offset))));
        }
        assert_eq!(tracker.total(None).jitter_ns, Some(0));
        // One that is 16 µs late changes it by as much as RFC 1889 says.
        tracker.record(1001, Some((0, offset.wrapping_add(16_000))));
        assert_eq!(tracker.total(None).jitter_ns, Some(1000));
    }
    let mut tracker = Tracker::starting_at(1);
    tracker.record(1, Some((5, 7)));
    assert_eq!(tracker.total(None).jitter_ns, None, "of one datagram there is none");
}

/// `-nan` in JSON (iperf3 #613): tests without time, bytes or datagrams have numbers everywhere.
#[test]
fn a_test_of_nothing_is_printed_in_numbers() {
    let nothing = Side { flows: vec![Flow::default()], ..Side::default() };
    let zero = Side {
        flows: vec![Flow {
            sent: Some(Moved::default()),
            received: Some(Moved::default()),
            datagrams: Some(Default::default()),
            ..Flow::default()
        }],
        ..Side::default()
    };
    for transport in [Transport::Tcp, Transport::Udp] {
        for side in [&nothing, &zero] {
            let plan = bulk(transport, Direction::ToServer, Duration::ZERO);
            let exchanged = Exchanged { client: side.clone(), server: side.clone() };
            let document = document(&plan, &Finished { exchanged, ..Finished::default() });
            for sum in ["sum_sent", "sum_received"] {
                for (key, value) in document["end"][sum].as_object().unwrap() {
                    let is = value.as_f64().is_some_and(f64::is_finite) || value.is_boolean();
                    assert!(is, "{transport:?} {sum}.{key}: {value}");
                }
            }
            let text = document.to_string();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
        }
    }
}

/// 4,294,967,294 retransmits (iperf3 #725): what a server does not know is not known.
#[test]
fn unknown_retransmits_are_not_four_thousand_million() {
    for unknown in [-1_i64, 4_294_967_294, 4_294_967_295] {
        let mut told = results(1000);
        told["streams"][0]["retransmits"] = json!(unknown);
        let to = fake_server(1000, Some(frame(told.to_string().as_bytes())));
        let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
        let finished = client::run_whole(to, &plan, &Options::default()).unwrap();
        let tcp = finished.exchanged.server.flows[0].tcp.clone().unwrap_or_default();
        assert_eq!(tcp.retransmits, None);
        let sum = &document(&plan, &finished)["end"]["sum_sent"];
        assert!(sum["retransmits"].as_u64().unwrap() < 1000, "{sum}");
    }
}

/// In reverse there are no retransmits and no round-trip time (iperf3 #71, #803): the server, which sends, tells them.
#[test]
fn in_reverse_the_server_tells_of_its_connections() {
    let server = Running::own(Limits::default());
    let plan = common::plan(Transport::Tcp, common::bulk(Direction::ToClient), Until::Bytes(1 << 20));
    let tcp = server.ask(&plan).unwrap().server.flows[0].tcp.clone().unwrap();
    assert!(tcp.retransmits.is_some() && tcp.rtt_us.is_some() && tcp.cwnd_segments.is_some(), "{tcp:?}");
    // iperf3's protocol has words for retransmits.
    let ours = Ours::with_limits(limits());
    let both = client::run(ours.address, &plan, &Options::default()).unwrap();
    assert!(both.server.flows[0].tcp.as_ref().unwrap().retransmits.is_some());
}

/// UDP throughput is counted where it is sent (uperf #52), with datagrams that have no numbers too.
#[test]
fn throughput_without_numbers_is_what_came() {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = far.local_addr().unwrap();
    // Of each ten datagrams one comes through: by hand, as nothing in them tells one from another.
    let between = UdpSocket::bind("127.0.0.1:0").unwrap();
    between.set_read_timeout(Some(LONG)).unwrap();
    let relay = between.local_addr().unwrap();
    let passing = thread::spawn(move || {
        let (mut room, mut number) = ([0; 2048], 0);
        loop {
            let count = between.recv(&mut room).unwrap();
            if count == 0 || number % 10 == 0 {
                between.send_to(&room[..count], to).unwrap();
            }
            if count == 0 {
                return;
            }
            number += 1;
        }
    });
    let plan = gentle(Direction::ToServer, 100);
    let settings = |end| Settings {
        plan: &plan,
        end,
        interval: None,
        cpu: false,
        give_up_after: LONG,
        on_interval: None,
    };
    let (control, far_control) = (Control::new(), Control::new());
    control.begin();
    far_control.begin();
    let (near, far) = thread::scope(|scope| {
        let flow = udp_flow(far, relay, Role::Receive, Marks::None);
        let far = scope.spawn(|| engine::run(vec![flow], &settings(End::Server), &far_control).unwrap());
        eventually("the receiver", || far_control.ready());
        let flow = udp_flow(near, relay, Role::Send, Marks::None);
        let near = engine::run(vec![flow], &settings(End::Client), &control).unwrap();
        passing.join().unwrap();
        far_control.stop();
        (near, far.join().unwrap())
    });
    assert_eq!((sent(&near), received(&far)), (10_000, 1000));
}

/// The client says 9.5 Gbit/s and the server 13.57 Mbit/s (ethr #171, #146): what lies in buffers on the way is not counted as moved,
/// so both ends count the same bytes through a relay that is slower than either.
#[test]
fn both_ends_count_the_same_through_a_slow_path() {
    let ours = Ours::with_limits(limits());
    let relay = Relay::start(ours.address, |_, _| Pass::On);
    for direction in [Direction::ToServer, Direction::ToClient] {
        let plan = Plan { until: Until::Bytes(20 << 20), ..bulk(Transport::Tcp, direction, LONG) };
        let both = client::run(relay.address, &plan, &Options::default()).unwrap();
        let (out, back) = match direction {
            Direction::ToServer => (sent(&both.client), received(&both.server)),
            _ => (sent(&both.server), received(&both.client)),
        };
        assert_eq!(out, back, "{direction:?}");
        assert!(out >= 20 << 20);
    }
}
