//! Clients and servers that do not do what they should, and datagrams that do not come as they were sent.
#![allow(clippy::unwrap_used)]

mod iperf3_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use iperf3_support::{Ours, bulk, eventually, limits};
use serde_json::{Value, json};
use stream::iperf3::client::{self, ClientError, Options};
use stream::iperf3::wire::{self, Cookie, Header, State};
use stream::limits::Limits;
use stream::plan::{Direction, Pace, Plan, Transport, Until};

const SECONDS: Duration = Duration::from_secs(5);

/// A client that says what a test wants it to.
struct Hand {
    line: TcpStream,
    cookie: Cookie,
    to: SocketAddr,
}

impl Hand {
    fn connect(to: SocketAddr) -> Self {
        let mut line = TcpStream::connect(to).unwrap();
        line.set_read_timeout(Some(SECONDS)).unwrap();
        let cookie = Cookie::random().unwrap();
        line.write_all(cookie.as_bytes()).unwrap();
        Self { line, cookie, to }
    }

    fn expect(&mut self, state: State) {
        assert_eq!(wire::read_state(&mut self.line).unwrap(), state);
    }

    fn ask(&mut self, parameters: &Value) {
        self.expect(State::ParamExchange);
        wire::write_json(&mut self.line, parameters).unwrap();
    }

    fn say(&mut self, state: State) {
        wire::write_state(&mut self.line, state).unwrap();
    }

    /// A UDP stream of this client.
    fn stream(&mut self) -> UdpSocket {
        self.expect(State::CreateStreams);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.to).unwrap();
        socket.set_read_timeout(Some(SECONDS)).unwrap();
        socket.send(&wire::HELLO).unwrap();
        let mut reply = [0; 4];
        assert_eq!(socket.recv(&mut reply).unwrap(), 4);
        assert_eq!(reply, wire::REPLY);
        self.expect(State::TestStart);
        self.expect(State::TestRunning);
        socket
    }

    /// Ends the test having sent so many datagrams; what the server counted.
    fn results(&mut self, sent: u64) -> Value {
        self.say(State::TestEnd);
        self.expect(State::ExchangeResults);
        let mine = json!({
            "cpu_util_total": 1, "cpu_util_user": 1, "cpu_util_system": 0, "sender_has_retransmits": 0,
            "streams": [{ "id": 1, "bytes": sent * 100, "retransmits": -1, "jitter": 0, "errors": 0, "packets": sent }],
        });
        wire::write_json(&mut self.line, &mine).unwrap();
        let theirs = wire::read_json(&mut self.line, 1 << 20).unwrap();
        self.expect(State::DisplayResults);
        self.say(State::IperfDone);
        theirs["streams"][0].clone()
    }
}

fn udp_parameters() -> Value {
    json!({ "udp": true, "omit": 0, "time": 10, "num": 0, "blockcount": 0, "parallel": 1, "len": 100, "bandwidth": 1_000_000, "client_version": "3.12" })
}

/// Sends datagrams of these numbers; what the server counted when it is told that `sent` were sent.
fn counted(numbers: impl IntoIterator<Item = u64>, sent: u64, wide: bool) -> Value {
    let ours = Ours::with_limits(limits());
    let mut hand = Hand::connect(ours.address);
    let mut parameters = udp_parameters();
    if wide {
        parameters["udp_counters_64bit"] = json!(1);
    }
    hand.ask(&parameters);
    let stream = hand.stream();
    for number in numbers {
        let mut datagram = [0; 100];
        let header = datagram.first_chunk_mut::<{ wire::HEADER_BYTES }>().unwrap();
        Header { seconds: 1000, microseconds: 10, number }.write(header, wide);
        stream.send(&datagram).unwrap();
    }
    let result = hand.results(sent);
    drop(stream);
    ours.only();
    result
}

#[test]
fn all_that_comes_is_counted() {
    let result = counted(1..=200, 200, false);
    assert_eq!(
        (&result["bytes"], &result["packets"], &result["errors"]),
        (&json!(20_000), &json!(200), &json!(0))
    );
    assert!(result["jitter"].as_f64().unwrap().is_finite());
}

#[test]
fn copies_do_not_lower_the_loss() {
    // iperf3 subtracts one loss for each datagram that is not the next: here it would find none, or -5.
    let result = counted([1, 2, 3, 3, 3, 3, 3, 3, 10], 10, false);
    assert_eq!((&result["packets"], &result["errors"]), (&json!(10), &json!(6)));
}

#[test]
fn what_comes_in_another_order_is_not_lost() {
    let result = counted([2, 1, 4, 3, 6, 5], 6, false);
    assert_eq!((&result["packets"], &result["errors"]), (&json!(6), &json!(0)));
}

#[test]
fn what_was_lost_at_the_end_is_lost() {
    // iperf3 counts gaps between numbers, and would find none.
    let result = counted(1..=50, 80, false);
    assert_eq!((&result["packets"], &result["errors"]), (&json!(80), &json!(30)));
}

#[test]
fn numbers_of_32_bits_go_on_behind_the_last() {
    // The numbers of 2^32 datagrams, as far apart as can be told: none of 2^32 + 2 is lost but those left out.
    let steps = [1_u64 << 30, 2 << 30, 3 << 30, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 32) + 2];
    let result = counted(steps, (1 << 32) + 2, false);
    assert_eq!(result["packets"], json!((1_u64 << 32) + 2));
    assert_eq!(result["errors"], json!((1_u64 << 32) + 2 - 7));
}

#[test]
fn numbers_of_64_bits_are_read_as_they_are() {
    let result = counted([1, 1 << 40], 1 << 40, true);
    assert_eq!((&result["packets"], &result["errors"]), (&json!(1_u64 << 40), &json!((1_u64 << 40) - 2)));
}

/// Whether a test of an ordinary client works.
#[track_caller]
fn works(to: SocketAddr) {
    let plan = Plan { until: Until::Bytes(1 << 20), ..bulk(Transport::Tcp, Direction::ToServer, SECONDS) };
    let exchanged = client::run(to, &plan, &Options::default()).unwrap();
    assert_eq!(exchanged.server.flows[0].received.unwrap().bytes, 1 << 20);
}

#[test]
fn whoever_says_nothing_or_nonsense_disturbs_nobody() {
    let ours = Ours::with_limits(limits());
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(ours.address).unwrap()).collect();
    works(ours.address);
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    for length in [1, 36, 37, 38, 200] {
        let bytes: Vec<u8> = (0..length).map(|_| random()).collect();
        let _ = TcpStream::connect(ours.address).unwrap().write_all(&bytes);
    }
    for after_cookie in [
        &[0xff, 0xff, 0xff, 0xff][..],
        &[0, 0, 0, 0],
        &[0, 0, 32, 1],
        b"\0\0\0\x05nojs",
        b"\0\0\0\x02{}",
        b"\0\0\0\x0f{\"time\":[1,2,3]",
    ] {
        let mut hand = Hand::connect(ours.address);
        hand.expect(State::ParamExchange);
        hand.line.write_all(after_cookie).unwrap();
    }
    works(ours.address);
    drop(idle);
    eventually("all of them to be forgotten", || ours.server.clients() == 0);
}

#[test]
fn states_out_of_place_end_only_their_own_test() {
    let ours = Ours::with_limits(limits());
    for state in 0..=255_u8 {
        if [State::TestEnd.byte(), State::ClientTerminate.byte(), State::IperfDone.byte()].contains(&state) {
            continue;
        }
        let mut hand = Hand::connect(ours.address);
        hand.ask(&udp_parameters());
        let stream = hand.stream();
        hand.line.write_all(&[state]).unwrap();
        hand.expect(State::ServerError);
        assert_eq!(wire::read_error(&mut hand.line).unwrap(), (110, 0), "{state}");
        drop(stream);
        if state % 64 == 0 {
            works(ours.address);
        }
    }
}

#[test]
fn a_client_that_vanishes_is_noticed() {
    let ours = Ours::with_limits(Limits { idle: Duration::from_secs(1), ..limits() });
    // In each step: before the parameters, before the streams, while data should come, and before the results.
    let began = Instant::now();
    let one = Hand::connect(ours.address);
    let mut two = Hand::connect(ours.address);
    two.ask(&json!({ "tcp": true, "parallel": 1, "time": 10 }));
    let mut three = Hand::connect(ours.address);
    three.ask(&udp_parameters());
    let stream = three.stream();
    let mut four = Hand::connect(ours.address);
    four.ask(&udp_parameters());
    let other = four.stream();
    four.say(State::TestEnd);
    ours.wait(0, 4);
    assert!(began.elapsed() < Duration::from_secs(10));
    eventually("all of them to be forgotten", || ours.server.clients() == 0);
    drop((one, two, stream, other));
}

#[test]
fn a_hello_from_elsewhere_gets_no_stream() {
    let ours = Ours::with_limits(limits());
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut hand = Hand::connect(ours.address);
    let mut parameters = udp_parameters();
    parameters["reverse"] = json!(true);
    hand.ask(&parameters);
    hand.expect(State::CreateStreams);
    stranger.send_to(&wire::HELLO, ours.address).unwrap();
    let mut room = [0; 2000];
    assert!(stranger.recv(&mut room).is_err(), "a stranger was answered");
}

#[test]
fn a_stolen_cookie_is_of_no_use_elsewhere() {
    let ours = Ours::with_limits(limits());
    let mut hand = Hand::connect(ours.address);
    hand.ask(&json!({ "tcp": true, "parallel": 1, "time": 10, "reverse": true }));
    hand.expect(State::CreateStreams);
    let thief = linux::socket::stream(ours.address, false).unwrap();
    let mut thief =
        linux::socket::connect_within(thief, ours.address, Some("127.0.0.2:0".parse().unwrap()), SECONDS)
            .unwrap();
    thief.write_all(hand.cookie.as_bytes()).unwrap();
    thief.set_read_timeout(Some(SECONDS)).unwrap();
    assert_eq!(wire::read_state(&mut thief).unwrap(), State::AccessDenied);
}

#[test]
fn limits_are_told_by_iperf3s_numbers() {
    let ours = Ours::with_limits(Limits {
        duration: SECONDS,
        flows: 2,
        bits_per_second: Some(10_000_000),
        clients: 1,
        ..limits()
    });
    let pace = Some(Pace::Spread { bits_per_second: 1_000_000 });
    let plan = Plan { pace, ..bulk(Transport::Tcp, Direction::ToServer, Duration::from_secs(2)) };
    for (plan, expected) in [
        (Plan { until: Until::Time(Duration::from_secs(60)), ..plan.clone() }, 37),
        (Plan { flows: 3, ..plan.clone() }, 6),
        (Plan { pace: None, ..plan.clone() }, 27),
        (Plan { pace: Some(Pace::Spread { bits_per_second: 20_000_000 }), ..plan.clone() }, 27),
    ] {
        let error = client::run(ours.address, &plan, &Options::default()).unwrap_err();
        assert!(matches!(error, ClientError::Server { number, .. } if number == expected), "{error}");
        eventually("it to be forgotten", || ours.server.clients() == 0);
    }
    let hand = Hand::connect(ours.address);
    eventually("a client to be there", || ours.server.clients() == 1);
    assert!(matches!(client::run(ours.address, &plan, &Options::default()), Err(ClientError::Busy { .. })));
    drop(hand);
}

#[test]
fn a_server_that_ends_says_so() {
    let ours = Ours::with_limits(limits());
    let plan = bulk(Transport::Tcp, Direction::ToClient, Duration::from_secs(20));
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| client::run(ours.address, &plan, &Options::default()));
        eventually("the test to begin", || ours.server.clients() == 1);
        std::thread::sleep(Duration::from_millis(50));
        ours.halt();
        running.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, ClientError::Terminated { .. }), "{error}");
}

#[test]
fn a_server_that_talks_nonsense_is_an_error() {
    for answer in [
        &[][..],
        &[0xff],
        &[0xfe, 0, 0],
        &[77],
        &[9, 9],
        &[9, 10, 1, 2, 13, 0xff, 0xff, 0xff, 0xff],
        &[9, 10, 1, 2, 13, 0, 0, 0, 2, b'{', b'}'],
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let plan = Plan { until: Until::Bytes(1000), ..bulk(Transport::Tcp, Direction::ToServer, SECONDS) };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut line, _) = listener.accept().unwrap();
                let _ = line.write_all(answer);
                // Streams of the client are taken and read.
                let stream = if answer.len() > 3 { listener.accept().ok() } else { None };
                if let Some((mut stream, _)) = stream {
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
                let mut rest = Vec::new();
                let _ = line.set_read_timeout(Some(Duration::from_millis(300)));
                let _ = line.read_to_end(&mut rest);
            });
            let options = Options { patience: Some(Duration::from_secs(2)), ..Options::default() };
            let error = client::run(to, &plan, &options).unwrap_err();
            assert!(!error.to_string().is_empty());
        });
    }
}
