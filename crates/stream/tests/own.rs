//! perpacket's own protocol over loopback: what both ends count is the same, and what does not belong is turned away.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{LONG, Running, bulk, plan, small, wait_for};
use stream::limits::{Halt, Limits};
use stream::outcome::{Exchanged, Side};
use stream::own::client::{self, Asking};
use stream::own::wire::{Answer, Asked, Frames, Hello, LARGE_FRAME, Message, VERSION, Way, frame};
use stream::own::{Key, OwnError};
use stream::plan::{Direction, Pace, Plan, Transport, Until, Work};

fn sent(side: &Side) -> u64 {
    side.flows.iter().filter_map(|flow| flow.sent).map(|moved| moved.bytes).sum()
}

fn received(side: &Side) -> u64 {
    side.flows.iter().filter_map(|flow| flow.received).map(|moved| moved.bytes).sum()
}

/// The flows of a side that send, and those that receive.
fn ways(side: &Side) -> (usize, usize) {
    let sends = side.flows.iter().filter(|flow| flow.sent.is_some()).count();
    (sends, side.flows.iter().filter(|flow| flow.received.is_some()).count())
}

#[test]
fn tcp_in_each_direction_is_counted_alike_at_both_ends() {
    const BYTES: u64 = 8 << 20;
    let server = Running::own(Limits::default());
    for (direction, flows) in [(Direction::ToServer, 1), (Direction::ToClient, 3), (Direction::Both, 2)] {
        let plan = Plan { flows, ..plan(Transport::Tcp, bulk(direction), Until::Bytes(BYTES)) };
        let Exchanged { client, server: other } = server.ask(&plan).unwrap();
        assert_eq!(sent(&client), received(&other), "{direction:?}");
        assert_eq!(sent(&other), received(&client), "{direction:?}");
        let n = flows as usize;
        match direction {
            Direction::ToServer => assert_eq!((ways(&client), ways(&other)), ((n, 0), (0, n))),
            Direction::ToClient => assert_eq!((ways(&client), ways(&other)), ((0, n), (n, 0))),
            Direction::Both => assert_eq!((ways(&client), ways(&other)), ((n, n), (n, n))),
        }
        if direction != Direction::ToClient {
            assert_eq!(sent(&client), BYTES);
        }
        if direction != Direction::ToServer {
            assert_eq!(sent(&other), BYTES);
        }
        assert!(client.wall_ns > 0 && other.wall_ns > 0);
    }
    let served = server.served(3);
    assert!(served.iter().all(|one| one.outcome.as_ref().is_ok_and(|account| account.side.is_some())));
}

#[test]
fn datagrams_are_counted_alike_at_both_ends_and_none_are_lost_at_a_rate() {
    let server = Running::own(Limits::default());
    let pace = Some(Pace::Spread { bits_per_second: 16_000_000 });
    for (direction, flows) in [(Direction::ToServer, 2), (Direction::ToClient, 1), (Direction::Both, 1)] {
        let plan = Plan { flows, pace, ..plan(Transport::Udp, bulk(direction), Until::Units(400)) };
        let Exchanged { client, server: other } = server.ask(&plan).unwrap();
        assert_eq!(sent(&client), received(&other), "{direction:?}");
        assert_eq!(sent(&other), received(&client), "{direction:?}");
        let ways = if direction == Direction::Both { 2 } else { 1 };
        assert_eq!(sent(&client) + sent(&other), ways * 400 * 1000, "{direction:?}");
        let accounts: Vec<_> = [&client, &other]
            .into_iter()
            .flat_map(|side| &side.flows)
            .filter_map(|flow| flow.datagrams)
            .collect();
        assert_eq!(accounts.iter().map(|account| account.received).sum::<u64>(), ways * 400);
        assert!(
            accounts.iter().all(|account| account.lost == 0 && account.tail_lost == Some(0)),
            "{accounts:?}"
        );
    }
}

#[test]
fn transactions_and_connections_are_answered() {
    let server = Running::own(Limits::default());
    let transactions = Work::Transactions { request_bytes: 1, response_bytes: 100, outstanding: 1 };
    let connections = Work::Connections { exchange: Some((1, 1)) };
    for (transport, work) in [
        (Transport::Tcp, transactions),
        (Transport::Udp, transactions),
        (Transport::Tcp, connections),
        (Transport::Tcp, Work::Connections { exchange: None }),
    ] {
        let plan = Plan { flows: 2, ..plan(transport, work, Until::Units(50)) };
        let Exchanged { client, server: other } = server.ask(&plan).unwrap();
        let count = |side: &Side| side.flows.iter().filter_map(|flow| flow.transactions).sum::<u64>();
        assert_eq!(count(&client), 50, "{plan:?}");
        assert_eq!(count(&other), 50, "{plan:?}");
        assert!(client.flows.iter().all(|flow| flow.latency.is_some()));
    }
}

#[test]
fn what_two_hosts_cannot_do_is_refused_before_anything_is_sent() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let unix = plan(Transport::UnixStream, bulk(Direction::ToServer), Until::Bytes(1));
    let small = Plan { send_bytes: 31, ..plan(Transport::Udp, bulk(Direction::ToServer), Until::Bytes(1)) };
    let cc = plan(Transport::Udp, Work::Connections { exchange: None }, Until::Units(1));
    for plan in [unix, small, cc] {
        let refused = client::run(nowhere, &plan, &Asking::new(&Halt::new()));
        assert!(matches!(refused, Err(OwnError::Plan(_))), "{refused:?}");
    }
}

#[test]
fn it_speaks_ipv6() {
    let server = Running::at(IpAddr::V6(Ipv6Addr::LOCALHOST), Limits::default(), None);
    let both = server.ask(&small()).unwrap();
    assert_eq!(received(&both.server), 8 << 20);
}

#[test]
fn a_socket_for_both_families_serves_ipv4_too() {
    let server = Running::at(IpAddr::V6(Ipv6Addr::UNSPECIFIED), Limits::default(), None);
    let to = SocketAddr::from(([127, 0, 0, 1], server.address().port()));
    let both = client::run(to, &small(), &Asking::new(&Halt::new())).unwrap();
    assert_eq!(received(&both.server), 8 << 20);
}

#[test]
fn two_clients_at_once_each_get_their_own() {
    let server = Running::own(Limits::default());
    let time = Duration::from_millis(400);
    let plans = [
        plan(Transport::Tcp, bulk(Direction::ToServer), Until::Time(time)),
        Plan { flows: 2, ..plan(Transport::Tcp, bulk(Direction::ToClient), Until::Bytes(3 << 20)) },
    ];
    let results: Vec<Exchanged> = thread::scope(|scope| {
        let threads = plans.each_ref().map(|plan| scope.spawn(|| server.ask(plan).unwrap()));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert!(results[0].client.wall_ns >= time.as_nanos() as u64 * 9 / 10);
    assert_eq!(sent(&results[0].client), received(&results[0].server));
    assert_eq!(sent(&results[1].server), 3 << 20);
    assert_eq!(received(&results[1].client), 3 << 20);
}

#[test]
fn both_ends_tell_of_periods_while_it_runs() {
    let server = Running::own(Limits::default());
    let (own, theirs) = (AtomicU32::new(0), AtomicU32::new(0));
    let halt = Halt::new();
    let count = |counter: &AtomicU32| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let (on_interval, on_server_interval) = (|_: &_| count(&own), |_: &_| count(&theirs));
    let asking = Asking {
        interval: Some(Duration::from_millis(100)),
        on_interval: Some(&on_interval),
        on_server_interval: Some(&on_server_interval),
        ..Asking::new(&halt)
    };
    let plan = plan(Transport::Tcp, bulk(Direction::ToServer), Until::Time(Duration::from_millis(500)));
    let both = client::run(server.address(), &plan, &asking).unwrap();
    assert!(both.client.intervals.len() >= 4 && both.server.intervals.len() >= 4);
    assert_eq!(own.into_inner() as usize, both.client.intervals.len());
    // The last one may come with the results only.
    assert!(theirs.into_inner() as usize + 1 >= both.server.intervals.len());
    let sum: u64 = both
        .server
        .intervals
        .iter()
        .flat_map(|interval| &interval.flows)
        .filter_map(|f| f.received)
        .map(|m| m.bytes)
        .sum();
    assert_eq!(sum, received(&both.server));
}

fn key(byte: u8) -> Key {
    Key::from([byte; 32])
}

fn ask_with(server: &Running, key: Option<&Key>) -> Result<Exchanged, OwnError> {
    client::run(server.address(), &small(), &Asking { key, ..Asking::new(&Halt::new()) })
}

#[test]
fn a_key_is_needed_where_there_is_one_and_must_be_the_same() {
    let server = Running::at([127, 0, 0, 1].into(), Limits::default(), Some(key(1)));
    assert_eq!(received(&ask_with(&server, Some(&key(1))).unwrap().server), 8 << 20);
    assert!(matches!(ask_with(&server, Some(&key(2))), Err(OwnError::WrongKey)));
    assert!(matches!(ask_with(&server, None), Err(OwnError::TurnedAway(Answer::KeyNeeded))));
    let open = Running::own(Limits::default());
    assert!(matches!(ask_with(&open, Some(&key(1))), Err(OwnError::TurnedAway(Answer::NoKeyHere))));
    assert!(ask_with(&server, Some(&key(1))).is_ok() && ask_with(&open, None).is_ok());
}

/// A connection that has said these bytes.
fn said(server: &Running, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// All that comes until the server closes the connection; a reset is an end too.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => bytes,
    }
}

fn hello(version: u16, way: Way) -> [u8; 12] {
    Hello { version, code: way as u8 }.bytes()
}

#[test]
fn another_version_is_told_so_in_words_that_any_version_has() {
    let server = Running::own(Limits::default());
    for version in [0, 2, u16::MAX] {
        let answer = rest(said(&server, &hello(version, Way::Plain)));
        let expected = Hello { version: VERSION, code: Answer::OtherVersion as u8 };
        assert_eq!(Hello::read(&answer), Some(expected));
    }
    let answer = rest(said(&server, &Hello { version: VERSION, code: 77 }.bytes()));
    assert_eq!(answer[10], Answer::UnknownWay as u8);
    assert!(server.ask(&small()).is_ok());
}

/// The messages behind the server's hello.
fn messages(bytes: &[u8]) -> Vec<Message> {
    let mut frames = Frames::default();
    frames.push(&bytes[12..]);
    std::iter::from_fn(|| frames.next(LARGE_FRAME).unwrap()).collect()
}

#[test]
fn what_is_no_plan_is_refused_in_words_and_the_server_goes_on() {
    let server = Running::own(Limits::default());
    let start = hello(VERSION, Way::Plain);
    let begin = frame(&Message::Begin, LARGE_FRAME).unwrap();
    for bytes in [&[0, 0, 0, 0][..], &[255; 4], &[0, 4, 0, 1], b"\0\0\0\x02{]", b"\0\0\0\x04nul0", &begin] {
        let got = messages(&rest(said(&server, &[&start, bytes].concat())));
        assert!(matches!(&got[..], [Message::Error { .. }]), "{bytes:?}: {got:?}");
    }
    assert!(server.ask(&small()).is_ok());
}

#[test]
fn a_plan_beyond_the_limits_is_refused_in_words() {
    let server = Running::own(Limits { duration: Duration::from_secs(1), flows: 2, ..Limits::default() });
    let refused = |plan: Plan| match server.ask(&plan) {
        Err(OwnError::Peer(words)) => words,
        other => panic!("{other:?}"),
    };
    assert!(
        refused(Plan { until: Until::Time(Duration::from_secs(2)), ..small() })
            .contains("ends one after 1 s")
    );
    assert!(refused(Plan { flows: 3, ..small() }).contains("takes 1 to 2"));
    assert!(refused(Plan { flows: 0, ..small() }).contains("takes 1 to 2"));
    assert!(refused(Plan { receive_bytes: u32::MAX, ..small() }).contains("bytes for buffers"));
    assert!(server.ask(&small()).is_ok());
}

#[test]
fn a_client_from_elsewhere_is_not_answered() {
    let allow = vec!["192.0.2.0/24".parse().unwrap()];
    let server = Running::own(Limits { allow, ..Limits::default() });
    let mut stream = TcpStream::connect(server.address()).unwrap();
    // The connection may be closed before this is written.
    let _ = stream.write_all(&hello(VERSION, Way::Plain));
    assert!(rest(stream).is_empty());
    assert_eq!(server.count(), 0);
}

#[test]
fn silence_is_ended_whatever_was_said_before() {
    let limits = Limits { idle: Duration::from_millis(300), clients: 2, ..Limits::default() };
    let server = Running::own(limits);
    let start = hello(VERSION, Way::Plain);
    let asked = Message::Plan(Box::new(Asked { plan: small(), interval: None, cpu: false }));
    let asked = [&start[..], &frame(&asked, LARGE_FRAME).unwrap()].concat();
    let beginnings: [&[u8]; 6] =
        [b"", &start[..5], &start, &[&start[..], &[0, 0]].concat(), &asked[..asked.len() - 1], &asked];
    for bytes in beginnings {
        let got = rest(said(&server, bytes));
        assert!(bytes.len() >= 12 || got.is_empty());
    }
    // Each of them has given its place back.
    wait_for(|| server.ask(&small()).is_ok());
}

/// Runs without an end in sight until `then` has returned; what became of it.
fn while_it_runs(server: &Running, then: impl FnOnce(&Halt)) -> Result<Exchanged, OwnError> {
    let endless = plan(Transport::Tcp, bulk(Direction::Both), Until::Time(Duration::from_secs(600)));
    let (halt, intervals, address) = (Halt::new(), AtomicU32::new(0), server.address());
    let on_interval = |_: &_| {
        intervals.fetch_add(1, Ordering::Relaxed);
    };
    let interval = Some(Duration::from_millis(20));
    let asking = Asking { interval, on_interval: Some(&on_interval), ..Asking::new(&halt) };
    thread::scope(|scope| {
        let run = scope.spawn(|| client::run(address, &endless, &asking));
        wait_for(|| intervals.load(Ordering::Relaxed) > 0 || run.is_finished());
        assert!(!run.is_finished());
        then(&halt);
        run.join().unwrap()
    })
}

#[test]
fn a_client_that_vanishes_while_it_runs_frees_its_place() {
    let server = Running::own(Limits { clients: 1, ..Limits::default() });
    let ended = while_it_runs(&server, |halt| {
        assert!(matches!(server.ask(&small()), Err(OwnError::TurnedAway(Answer::Busy))));
        halt.halt();
    });
    assert!(matches!(ended, Err(OwnError::Halted)));
    wait_for(|| server.ask(&small()).is_ok());
    assert!(server.served(1)[0].outcome.is_err());
}

#[test]
fn the_server_ends_while_clients_run() {
    let server = Running::own(Limits::default());
    let ended = while_it_runs(&server, |_| server.halt.halt());
    // The client hears of it, in words where they come in time.
    assert!(matches!(ended, Err(OwnError::Peer(_) | OwnError::Closed { .. })), "{ended:?}");
    assert!(server.served(1)[0].outcome.is_err());
    let address = server.address();
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}
