//! What strangers did to other tools: denial of service, and worse. Whatever they say, others go on being served.
#![allow(clippy::unwrap_used)]

mod common;
mod faults_support;
mod iperf3_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use common::Running;
use faults_support::{LONG, datagrams, gentle, received, sent};
use iperf3_support::{Ours, bulk, eventually, limits};
use serde_json::{Value, json};
use stream::iperf3::auth::{Guard, Padding, SKEW, credential, private_key};
use stream::iperf3::client::{self, Options};
use stream::iperf3::server::Settings;
use stream::iperf3::wire::{self, Cookie, Header, State};
use stream::limits::Limits;
use stream::plan::{Direction, Plan, Transport, Until};

/// Whether an ordinary client of iperf3 is served.
#[track_caller]
fn works(to: SocketAddr) {
    let plan = Plan { until: Until::Bytes(1 << 20), ..bulk(Transport::Tcp, Direction::ToServer, LONG) };
    let both = client::run(to, &plan, &Options::default()).unwrap();
    assert_eq!((sent(&both.client), received(&both.server)), (1 << 20, 1 << 20));
}

/// Whether ordinary clients of perpacket's own protocol and of iperf3's are served.
#[track_caller]
fn all_work(server: &Running) {
    assert_eq!(received(&server.ask(&common::small()).unwrap().server), 8 << 20);
    works(server.addresses[2]);
}

/// A client of iperf3 that has said its cookie.
fn said_cookie(to: SocketAddr) -> TcpStream {
    let mut line = TcpStream::connect(to).unwrap();
    line.set_read_timeout(Some(LONG)).unwrap();
    line.write_all(Cookie::random().unwrap().as_bytes()).unwrap();
    assert_eq!(wire::read_state(&mut line).unwrap(), State::ParamExchange);
    line
}

/// What a server answers to these parameters.
fn answer(to: SocketAddr, parameters: &Value) -> State {
    let mut line = said_cookie(to);
    wire::write_json(&mut line, parameters).unwrap();
    wire::read_state(&mut line).unwrap_or(State::ClientTerminate)
}

/// A server of UDP as a source of denial of service (iperf3 #1072): without a control connection nothing is ever answered.
#[test]
fn nothing_answers_datagrams_without_a_control_connection() {
    let ours = Ours::with_limits(limits());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 4, 12, 16, 1400] {
        for _ in 0..10 {
            stranger.send_to(&vec![0x39; length], ours.address).unwrap();
        }
    }
    stranger.send_to(&wire::HELLO, ours.address).unwrap();
    // A whole test later all of it has been looked at.
    let both = client::run(ours.address, &gentle(Direction::ToClient, 20), &Options::default()).unwrap();
    assert_eq!(datagrams(&both.client, 0).lost, 0);
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv(&mut [0; 2000]).is_err(), "a stranger was answered");
}

/// An idle TCP connection blocks the server (iperf3 #788, #878): connections that say nothing, of which there are many, block none.
#[test]
fn idle_connections_block_nobody() {
    let server = Running::all(Limits { clients: 2, ..Limits::default() });
    let idle: Vec<TcpStream> = (0..60)
        .flat_map(|_| &server.addresses)
        .map(|&address| TcpStream::connect(address).unwrap())
        .collect();
    all_work(&server);
    drop(idle);
    all_work(&server);
}

/// The same for those that begin to say something: half of a cookie, of a hello, of a message.
#[test]
fn half_a_word_blocks_nobody() {
    let server = Running::all(Limits { clients: 2, ..Limits::default() });
    let words: [&[u8]; 3] = [b"per", &[0, 0, 0], b"abcdefgh"];
    let mut open = Vec::new();
    for _ in 0..20 {
        for (&address, word) in server.addresses.iter().zip(words) {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(word).unwrap();
            open.push(stream);
        }
    }
    all_work(&server);
}

/// Port scans end the server (iperf3 #445): connections that are closed at once, with and without a word, and reset.
#[test]
fn port_scans_end_nothing() {
    let server = Running::all(Limits::default());
    for number in 0..100 {
        for &address in &server.addresses {
            let mut stream = TcpStream::connect(address).unwrap();
            if number % 3 == 1 {
                let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            }
            if number % 3 == 2 {
                // Closed with data that was not read, which resets it.
                let _ = stream.write_all(&[0; 3]);
                let _ = stream.set_nonblocking(true);
                let _ = stream.read(&mut [0]);
            }
        }
    }
    all_work(&server);
}

/// Values of a wrong type crash the server (CVE-2024-53580): each key with each of them is refused, or counts as absent.
#[test]
fn wrong_types_of_parameters_harm_nothing() {
    let ours = Ours::with_limits(limits());
    let keys = [
        "tcp",
        "udp",
        "omit",
        "time",
        "num",
        "blockcount",
        "parallel",
        "len",
        "bandwidth",
        "MSS",
        "window",
        "TOS",
        "congestion",
        "authtoken",
        "client_version",
        "title",
        "extra_data",
        "server_affinity",
        "udp_counters_64bit",
        "repeating_payload",
        "burst",
        "fqrate",
        "pacing_timer",
        "get_server_output",
    ];
    let values =
        [json!(null), json!("x"), json!([1, 2]), json!({ "a": {} }), json!(true), json!(-1), json!(1e300)];
    for key in keys {
        for value in &values {
            let mut parameters = json!({ "tcp": true, "time": 1, "parallel": 1 });
            parameters[key] = value.clone();
            // Each gives its place back when it is seen to be gone.
            eventually("a place", || ours.server.clients() < 4);
            let got = answer(ours.address, &parameters);
            let known = [State::CreateStreams, State::ServerError, State::ClientTerminate];
            assert!(known.contains(&got), "{key} {value}: {got:?}");
        }
    }
    for whole in [json!([]), json!("x"), json!(1), json!(null)] {
        answer(ours.address, &whole);
    }
    works(ours.address);
    eventually("all to be forgotten", || ours.server.clients() == 0);
}

/// Results of a wrong type crash a server as well (CVE-2024-53580, the second message).
#[test]
fn wrong_types_of_results_harm_nothing() {
    let ours = Ours::with_limits(limits());
    let streams = [
        json!(null),
        json!({}),
        json!([1]),
        json!([{ "id": "x" }]),
        json!([{ "id": 1, "bytes": [] }]),
        json!(vec![json!({}); 1000]),
    ];
    for streams in streams {
        let mut line = said_cookie(ours.address);
        wire::write_json(&mut line, &udp_parameters()).unwrap();
        let _socket = udp_stream(&mut line, ours.address);
        wire::write_state(&mut line, State::TestEnd).unwrap();
        assert_eq!(wire::read_state(&mut line).unwrap(), State::ExchangeResults);
        let mut told = faults_support::results(0);
        told["streams"] = streams;
        wire::write_json(&mut line, &told).unwrap();
        // It is refused, or the connection is closed: nothing that is displayed.
        let got = wire::read_state(&mut line);
        assert!(!matches!(got, Ok(State::DisplayResults)), "{told}: {got:?}");
    }
    works(ours.address);
}

fn udp_parameters() -> Value {
    json!({ "udp": true, "omit": 0, "time": 10, "num": 0, "blockcount": 0, "parallel": 1, "len": 100,
        "bandwidth": 1_000_000, "client_version": "3.12" })
}

/// The stream of a client of UDP, until the test runs.
fn udp_stream(line: &mut TcpStream, to: SocketAddr) -> UdpSocket {
    assert_eq!(wire::read_state(line).unwrap(), State::CreateStreams);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.send(&wire::HELLO).unwrap();
    assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 4);
    for state in [State::TestStart, State::TestRunning] {
        assert_eq!(wire::read_state(line).unwrap(), state);
    }
    socket
}

fn guarded() -> Ours {
    let key = format!("{}/tests/data/iperf3/private.pem", env!("CARGO_MANIFEST_DIR"));
    let users = format!("who,{}\n", credential("who", "pass word"));
    let guard = Guard::new(private_key(key.as_ref()).unwrap(), &users, Padding::Oaep, SKEW);
    Ours::start(Settings { limits: limits(), guard: Some(guard), ..Settings::default() })
}

/// What is longer than the key overflows the heap of a server (CVE-2025-54349): a token of any length is denied.
#[test]
fn a_token_of_any_length_is_denied() {
    let ours = guarded();
    for length in [1, 171, 172, 173, 344, 1000, 4000, 7000] {
        let token = "QUJD".repeat(length / 4 + 1);
        let parameters = json!({ "tcp": true, "time": 1, "authtoken": token });
        assert_ne!(answer(ours.address, &parameters), State::CreateStreams, "{length}");
    }
    eventually("all to be forgotten", || ours.server.clients() == 0);
    assert_ne!(answer(ours.address, &json!({ "tcp": true, "time": 1 })), State::CreateStreams);
}

/// A token that is no base64 fails an assertion (CVE-2025-54350): it is denied.
#[test]
fn a_token_that_is_no_base64_is_denied() {
    let ours = guarded();
    for token in ["", "=", "====", "A", "A===", "äöü", "\u{0}\u{0}", "QUJD=QUJD", " QUJD", "-_-_"] {
        let parameters = json!({ "tcp": true, "time": 1, "authtoken": token });
        assert_ne!(answer(ours.address, &parameters), State::CreateStreams, "{token:?}");
    }
    eventually("all to be forgotten", || ours.server.clients() == 0);
}

/// `--skip-rx-copy` overflows a buffer (CVE-2025-54351): datagrams longer than agreed, and shorter than their header, are
/// counted or not, and nothing else.
#[test]
fn datagrams_of_any_length_harm_nothing() {
    let ours = Ours::with_limits(limits());
    for skip in [0, 1] {
        let mut line = said_cookie(ours.address);
        let mut parameters = udp_parameters();
        parameters["skip_rx_copy"] = json!(skip);
        wire::write_json(&mut line, &parameters).unwrap();
        let socket = udp_stream(&mut line, ours.address);
        for (length, number) in [(100, 1), (0, 0), (3, 0), (11, 0), (9000, 2), (60_000, 3), (100, 4)] {
            let mut datagram = vec![0; length];
            if let Some(header) = datagram.first_chunk_mut() {
                Header { seconds: 1, microseconds: 1, number }.write(header, false);
            }
            socket.send(&datagram).unwrap();
        }
        wire::write_state(&mut line, State::TestEnd).unwrap();
        // Or the server refused what it cannot do.
        if wire::read_state(&mut line).unwrap() != State::ExchangeResults {
            continue;
        }
        let mut mine = faults_support::results(400);
        mine["streams"][0]["packets"] = json!(4);
        wire::write_json(&mut line, &mine).unwrap();
        let theirs = wire::read_json(&mut line, 1 << 20).unwrap();
        let stream = &theirs["streams"][0];
        assert_eq!((&stream["packets"], &stream["errors"]), (&json!(4), &json!(0)), "{skip}");
        assert_eq!(wire::read_state(&mut line).unwrap(), State::DisplayResults);
        wire::write_state(&mut line, State::IperfDone).unwrap();
    }
    works(ours.address);
}

/// Only one client at a time (iperf3 #140, #285, #327): several at once each have what is theirs, on one port.
#[test]
fn several_clients_at_once_are_told_apart() {
    let ours = Ours::with_limits(limits());
    thread::scope(|scope| {
        for clients in 1..=4_u64 {
            let ours = &ours;
            scope.spawn(move || {
                let plan = gentle(Direction::ToServer, 30 * clients);
                let both = client::run(ours.address, &plan, &Options::default()).unwrap();
                assert_eq!(received(&both.server), 30 * clients * 100);
                assert_eq!(datagrams(&both.server, 0).lost, 0);
            });
            scope.spawn(move || {
                let plan = Plan {
                    until: Until::Bytes(clients << 18),
                    ..bulk(Transport::Tcp, Direction::ToServer, LONG)
                };
                let both = client::run(ours.address, &plan, &Options::default()).unwrap();
                assert_eq!(received(&both.server), clients << 18);
            });
        }
    });
}

/// A client that asks for results and does not read them, with the control connection half open (iperf3 #1735, from outside).
#[test]
fn a_client_that_does_not_read_results_is_forgotten() {
    let ours = Ours::with_limits(Limits { idle: Duration::from_millis(400), ..limits() });
    let mut line = said_cookie(ours.address);
    wire::write_json(&mut line, &udp_parameters()).unwrap();
    let socket = udp_stream(&mut line, ours.address);
    wire::write_state(&mut line, State::TestEnd).unwrap();
    assert_eq!(wire::read_state(&mut line).unwrap(), State::ExchangeResults);
    line.shutdown(std::net::Shutdown::Write).unwrap();
    eventually("it to be forgotten", || ours.server.clients() == 0);
    works(ours.address);
    drop((line, socket));
}
