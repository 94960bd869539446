//! Faults that users of other tools reported of hangs and of results that were lost, each with the right behaviour.
#![allow(clippy::unwrap_used)]

mod common;
mod faults_support;
mod iperf3_support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::Running;
use faults_support::{
    LONG, Pass, Relay, Toward, datagrams, fake_server, frame, gentle, received, results, sent,
};
use iperf3_support::{Ours, bulk, eventually, limits};
use serde_json::{Value, json};
use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::iperf3::client::{self, ClientError, Options};
use stream::iperf3::json as printed;
use stream::iperf3::results::ServerOutput;
use stream::limits::{Halt, Limits};
use stream::outcome::Interval;
use stream::own;
use stream::plan::{Direction, Pace, Plan, Transport, Until};

fn impatient() -> Limits {
    Limits { idle: Duration::from_millis(400), ..Limits::default() }
}

/// After a long test the control connection, idle all the time, is dead on the way, and the client hangs for 15 minutes
/// (iperf3 #320): a control connection that is silent for longer than anybody waits is no fault while data flows.
#[test]
fn a_test_may_be_longer_than_control_may_be_idle() {
    let time = Duration::from_millis(1000);
    let ours = Ours::with_limits(impatient());
    let server = Running::own(impatient());
    thread::scope(|scope| {
        scope.spawn(|| {
            let plan = bulk(Transport::Tcp, Direction::ToServer, time);
            let both = client::run(ours.address, &plan, &Options::default()).unwrap();
            assert_eq!(sent(&both.client), received(&both.server));
        });
        let plan = common::plan(Transport::Tcp, common::bulk(Direction::ToServer), Until::Time(time));
        let both = server.ask(&plan).unwrap();
        assert_eq!(sent(&both.client), received(&both.server));
    });
}

/// And where it died in the middle, the client says so as soon as nothing moves for its patience (iperf3 #320, the hang).
#[test]
fn a_path_that_dies_ends_the_client() {
    let ours = Ours::with_limits(impatient());
    for direction in [Direction::ToServer, Direction::ToClient] {
        let relay = Relay::start(ours.address, |_, _| Pass::On);
        let plan = bulk(Transport::Tcp, direction, LONG);
        let begun = AtomicBool::new(false);
        let moved = |interval: &Interval| {
            let bytes = |flow: &stream::outcome::Flow| flow.sent.or(flow.received).unwrap().bytes;
            if interval.flows.iter().map(bytes).sum::<u64>() > 0 {
                begun.store(true, Ordering::SeqCst);
            }
        };
        let options = Options {
            patience: Some(Duration::from_millis(400)),
            interval: Some(Duration::from_millis(20)),
            on_interval: Some(&moved),
            ..Options::default()
        };
        let ended = thread::scope(|scope| {
            let running = scope.spawn(|| client::run(relay.address, &plan, &options));
            eventually("data to flow", || begun.load(Ordering::SeqCst));
            relay.freeze();
            running.join().unwrap()
        });
        assert!(ended.is_err(), "{direction:?}");
        eventually("the server to forget it", || ours.server.clients() == 0);
    }
}

/// The control connection closes in the last interval and the result is lost (iperf3 #751): the client says which step failed,
/// at once.
#[test]
fn a_control_connection_that_closes_at_the_end_is_an_error_that_says_so() {
    let to = fake_server(1000, None);
    let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    let error = client::run(to, &plan, &Options::default()).unwrap_err();
    assert!(matches!(error, ClientError::Wire { .. }), "{error}");
    assert!(error.to_string().contains(&to.to_string()), "{error}");
}

/// The same at 100 kbit/s, at which a slow stream is taken for a dead one (iperf3 #1149).
#[test]
fn a_slow_test_has_results() {
    // 8 datagrams in a second, over more than the server lets anybody be idle.
    let ours = Ours::with_limits(Limits { idle: Duration::from_millis(300), ..Limits::default() });
    let pace = Some(Pace::Spread { bits_per_second: 100 * 8 * 8 });
    let plan = Plan { pace, ..gentle(Direction::ToServer, 5) };
    let both = client::run(ours.address, &plan, &Options::default()).unwrap();
    assert_eq!((sent(&both.client), received(&both.server)), (500, 500));
    let pace = Some(Pace::Spread { bits_per_second: 100_000 });
    let plan = Plan { pace, ..gentle(Direction::ToServer, 30) };
    let both = client::run(ours.address, &plan, &Options::default()).unwrap();
    assert_eq!((sent(&both.client), received(&both.server)), (3000, 3000));
}

/// A server hangs while it prints (iperf3 #1735): whoever is slow to take intervals delays neither data nor results.
#[test]
fn slow_printing_stops_nothing() {
    let server = Running::own(Limits::default());
    let halt = Halt::new();
    let slow = |_: &Interval| thread::sleep(Duration::from_millis(60));
    let asking = own::client::Asking {
        interval: Some(Duration::from_millis(20)),
        on_interval: Some(&slow),
        on_server_interval: Some(&slow),
        ..own::client::Asking::new(&halt)
    };
    let plan = common::plan(
        Transport::Tcp,
        common::bulk(Direction::ToServer),
        Until::Time(Duration::from_millis(200)),
    );
    let both = own::client::run(server.address(), &plan, &asking).unwrap();
    assert_eq!(sent(&both.client), received(&both.server));
    let bytes = |interval: &Interval| interval.flows[0].sent.unwrap().bytes;
    assert_eq!(both.client.intervals.iter().map(bytes).sum::<u64>(), sent(&both.client));
}

/// A server reports 0.00 for ever after its client has vanished (iperf3 #1986): it forgets it within its limit, with no end of
/// connection to be seen, over UDP too. (Where the server sends, nothing that it could hear ends: then it is the time of the test.)
#[test]
fn a_client_that_vanishes_is_forgotten() {
    let ours = Ours::with_limits(impatient());
    for (direction, time) in [(Direction::ToServer, LONG), (Direction::ToClient, Duration::from_secs(1))] {
        let relay = Relay::start(ours.address, |_, _| Pass::On);
        let plan = Plan { until: Until::Time(time), ..gentle(direction, 0) };
        let halt = Halt::new();
        let options = Options { halt: Some(&halt), ..Options::default() };
        let ended = thread::scope(|scope| {
            let running = scope.spawn(|| client::run(relay.address, &plan, &options));
            let toward = if direction == Direction::ToServer { Toward::Server } else { Toward::Client };
            eventually("data to flow", || relay.passed(toward) > 10);
            assert_eq!(ours.server.clients(), 1);
            relay.freeze();
            eventually("the server to forget it", || ours.server.clients() == 0);
            halt.halt();
            running.join().unwrap()
        });
        assert!(ended.is_err(), "{direction:?}");
    }
    ours.wait(0, 2);
}

/// Makes a test of 100 datagrams each way of which those behind the 90th are lost; how many came.
fn an_amount_without_its_end(direction: Direction) -> u64 {
    let ours = Ours::with_limits(limits());
    let relay = Relay::start(ours.address, |_, number| match number {
        Some(number) if number > 90 => Pass::Drop,
        _ => Pass::On,
    });
    let both = client::run(relay.address, &gentle(direction, 100), &Options::default()).unwrap();
    let flows = both.client.flows.iter().chain(&both.server.flows);
    let told: Vec<_> = flows.filter_map(|flow| flow.datagrams).collect();
    assert!(told.iter().all(|told| told.lost == 0 && told.tail_lost == Some(10)), "{told:?}");
    // Nobody gave up: that the end is missing is known, and a figure.
    let warnings: Vec<_> = both.client.warnings.iter().chain(&both.server.warnings).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    told.iter().map(|told| told.received).sum()
}

/// With an amount instead of a time a test hangs at its end (iperf3 #2003): also where the last of it was lost.
#[test]
fn an_amount_ends_a_test_whatever_was_lost() {
    assert_eq!(an_amount_without_its_end(Direction::ToServer), 90);
}

/// The same in reverse (iperf3 #2003), where only the server knows that it has sent all.
#[test]
fn an_amount_ends_a_test_in_reverse() {
    assert_eq!(an_amount_without_its_end(Direction::ToClient), 90);
}

/// The same both ways (iperf3 #2003).
#[test]
fn an_amount_ends_a_test_of_both_directions() {
    assert_eq!(an_amount_without_its_end(Direction::Both), 180);
}

/// A tiny test of an amount poisons those in reverse that follow (iperf3 #1363).
#[test]
fn a_tiny_test_leaves_nothing_behind() {
    let ours = Ours::with_limits(limits());
    let plan = |direction, bytes| Plan {
        until: Until::Bytes(bytes),
        ..bulk(Transport::Tcp, direction, Duration::ZERO)
    };
    for _ in 0..3 {
        let both = client::run(ours.address, &plan(Direction::ToServer, 1), &Options::default()).unwrap();
        assert_eq!((sent(&both.client), received(&both.server)), (1, 1));
        let both =
            client::run(ours.address, &plan(Direction::ToClient, 1 << 20), &Options::default()).unwrap();
        assert_eq!(sent(&both.server), received(&both.client));
        assert!(received(&both.client) >= 1 << 20);
    }
}

/// One lost hello of UDP ends the test (iperf3 #862, #351): it is said again.
#[test]
fn a_lost_hello_is_said_again() {
    let ours = Ours::with_limits(limits());
    let first = AtomicBool::new(true);
    let relay = Relay::start(ours.address, move |toward, _| {
        if toward == Toward::Server && first.swap(false, Ordering::SeqCst) { Pass::Drop } else { Pass::On }
    });
    let both = client::run(relay.address, &gentle(Direction::ToServer, 50), &Options::default()).unwrap();
    assert_eq!(relay.dropped(Toward::Server), 1);
    assert_eq!((datagrams(&both.server, 0).received, datagrams(&both.server, 0).lost), (50, 0));
}

/// `--get-server-output` fails with "JSON data length overflow" (iperf3 #1776, #1782): what a server prints may be long.
#[test]
fn long_output_of_a_server_comes_through() {
    let text = "a line of many\n".repeat(200_000);
    let mut told = results(1000);
    told["server_output_text"] = json!(text);
    let to = fake_server(1000, Some(frame(told.to_string().as_bytes())));
    let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    let options = Options { get_server_output: true, ..Options::default() };
    let finished = client::run_whole(to, &plan, &options).unwrap();
    assert_eq!(finished.server_output, Some(ServerOutput::Text(text)));
    // And one that says it were longer than anything costs no memory.
    let to = fake_server(1000, Some(vec![255; 4]));
    let error = client::run(to, &plan, &options).unwrap_err();
    assert!(matches!(error, ClientError::Wire { .. }), "{error}");
}

/// Text follows the JSON (iperf3 #1143, #1631): what a server printed is inside it, and the whole is one value.
#[test]
fn a_document_is_one_value_whatever_the_server_printed() {
    let mut told = results(1000);
    told["server_output_text"] = json!("}\niperf Done.\n\"\u{1}{");
    let to = fake_server(1000, Some(frame(told.to_string().as_bytes())));
    let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    let options = Options { get_server_output: true, ..Options::default() };
    let finished = client::run_whole(to, &plan, &options).unwrap();
    let document = printed::document(&printed::Test {
        end: End::Client,
        plan: &plan,
        facts: &finished.facts,
        exchanged: &finished.exchanged,
        server_output: finished.server_output.as_ref(),
    });
    let text = document.to_string();
    let values: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(values, [document]);
    assert_eq!(values[0]["server_output_text"], told["server_output_text"]);
}

/// What a frame has behind its JSON is an error and no silence (iperf3 #1143, from the other end).
#[test]
fn text_behind_results_is_an_error() {
    let mut told = results(1000).to_string().into_bytes();
    told.extend(b"iperf Done.");
    let to = fake_server(1000, Some(frame(&told)));
    let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    assert!(matches!(client::run(to, &plan, &Options::default()), Err(ClientError::Wire { .. })));
}

/// No interim result for 455 s (netperf #55: they are made when data comes): periods end by the clock while nothing moves.
#[test]
fn periods_end_while_nothing_moves() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let flow = Flow {
        endpoint: Endpoint::Tcp(listener.accept().unwrap().0),
        role: Role::Receive,
        marks: Marks::None,
    };
    let plan = bulk(Transport::Tcp, Direction::ToServer, LONG);
    let seen = std::sync::Mutex::new(Vec::new());
    let tell = |interval: &Interval| {
        seen.lock().unwrap().push(interval.flows[0].received.unwrap().bytes);
    };
    let settings = Settings {
        plan: &plan,
        end: End::Server,
        interval: Some(Duration::from_millis(20)),
        cpu: false,
        give_up_after: LONG,
        on_interval: Some(&tell),
    };
    let control = Control::new();
    control.begin();
    let count = || seen.lock().unwrap().len();
    let side = thread::scope(|scope| {
        let running = scope.spawn(|| engine::run(vec![flow], &settings, &control).unwrap());
        silent.write_all(&[1; 1000]).unwrap();
        eventually("the first bytes", || control.bytes() == 1000);
        let before = count();
        eventually("periods without data", || count() >= before + 5);
        silent.write_all(&[1; 500]).unwrap();
        eventually("the last bytes", || control.bytes() == 1500);
        drop(silent);
        running.join().unwrap()
    });
    let bytes: Vec<u64> = side.intervals.iter().map(|one| one.flows[0].received.unwrap().bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), 1500);
    assert!(bytes.iter().filter(|&&bytes| bytes == 0).count() >= 4, "{bytes:?}");
    assert!(side.intervals.windows(2).all(|two| two[0].end_ns == two[1].start_ns));
}

/// Interim throughput beats with the size of what is sent (flent #195): what a period counts are bytes, not whole calls, and together
/// they are the total.
#[test]
fn periods_of_large_messages_add_up() {
    let ours = Ours::with_limits(limits());
    let plan = Plan {
        pace: Some(Pace::Spread { bits_per_second: 30_000_000 }),
        ..bulk(Transport::Tcp, Direction::ToServer, Duration::from_millis(300))
    };
    let options = Options { interval: Some(Duration::from_millis(30)), ..Options::default() };
    let both = client::run(ours.address, &plan, &options).unwrap();
    let bytes: Vec<u64> =
        both.client.intervals.iter().map(|interval| interval.flows[0].sent.unwrap().bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), sent(&both.client));
    assert_eq!(sent(&both.client), received(&both.server));
    // A message of 128 KiB takes 35 ms: none has more than what is due in it and one that was begun.
    let longest = both.client.intervals.iter().map(|one| one.end_ns - one.start_ns).max().unwrap();
    let most = longest as f64 * 30e6 / 8e9 * 2.0 + 3.0 * f64::from(plan.send_bytes);
    assert!(bytes.iter().all(|&bytes| bytes as f64 <= most), "{bytes:?}");
}
