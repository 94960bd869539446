//! Clients that are wrong, silent, or up to no good.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use stream::limits::Limits;
use stream::netperf::ControlError;
use stream::netperf::server::ServeError;
use stream::netperf::wire::{Calibrated, MESSAGE_BYTES, Message, kind, omni};

use crate::recorded::exchanges;
use crate::{Served, limits};

fn quick() -> Limits {
    Limits { idle: Duration::from_millis(150), ..limits() }
}

fn request(test: &str) -> omni::Request {
    let exchange = exchanges().into_iter().find(|exchange| exchange.test == test).unwrap();
    omni::Request::decode(&exchange.said[0].1)
}

/// What the server answers to a request: `serv_errno`.
fn refused(request: &omni::Request) -> u32 {
    let served = Served::new("127.0.0.1", limits());
    let mut control = served.connect();
    control.write_all(&request.encode().0).unwrap();
    let mut bytes = [0; MESSAGE_BYTES];
    control.read_exact(&mut bytes).unwrap();
    // Nothing else comes.
    assert_eq!(control.read(&mut [0]).unwrap_or(0), 0);
    let error = served.ended().unwrap_err();
    let refused_or_failed = matches!(error, ServeError::Refused { .. } | ServeError::Arrange { .. });
    assert!(refused_or_failed, "{error}");
    Message(bytes).errno()
}

#[test]
fn a_client_that_says_nothing_is_let_go() {
    let served = Served::new("127.0.0.1", quick());
    let control = served.connect();
    let error = served.ended().unwrap_err();
    assert!(matches!(error, ServeError::Control(ControlError::Silent { bytes: 0, .. })), "{error}");
    drop(control);
}

#[test]
fn a_client_that_says_a_byte_now_and_then_is_let_go() {
    let served = Served::new("127.0.0.1", quick());
    let mut control = served.connect();
    let begin = Instant::now();
    while !served.session.is_finished() {
        // The server may have closed.
        let _ = control.write_all(&[0]);
        std::thread::yield_now();
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    assert!(served.ended().is_err());
}

#[test]
fn a_message_that_is_cut_ends_the_session() {
    for bytes in [1, 4, 255, 256, 655] {
        let served = Served::new("127.0.0.1", limits());
        let mut control = served.connect();
        control.write_all(&request("TCP_STREAM").encode().0[..bytes]).unwrap();
        control.shutdown(Shutdown::Write).unwrap();
        let error = served.ended().unwrap_err();
        match error {
            ServeError::Control(ControlError::Truncated { bytes: got, .. }) => assert_eq!(got, bytes),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn what_other_messages_ask_is_answered_as_netserver_does() {
    let served = Served::new("127.0.0.1", limits());
    let mut control = served.connect();
    let mut ask = |message: &Message| {
        control.write_all(&message.0).unwrap();
        let mut bytes = [0; MESSAGE_BYTES];
        control.read_exact(&mut bytes).unwrap();
        Message(bytes)
    };
    for unknown in [0, 4, 13, 94, 98, 300, 12345, u32::MAX] {
        assert_eq!(ask(&Message::new(unknown)).errno(), 998);
    }
    assert_eq!(ask(&Message::new(kind::DEBUG_ON)), Message::new(kind::DEBUG_OK));
    assert_eq!(ask(&Message::new(kind::DEBUG_OFF)), Message::new(kind::DEBUG_OK));
    let calibrated = Calibrated::decode(&ask(&Message::new(kind::CPU_CALIBRATE)));
    assert_eq!((calibrated.kind, calibrated.cpu_rate), (5, 100.0));
    assert!(calibrated.cpus > 0);
    assert_eq!(ask(&Message::new(600)).kind(), 601);
    drop(control);
    served.ended().unwrap();
}

#[test]
fn datagrams_for_somebody_else_are_refused() {
    let third = omni::address_field("192.0.2.7".parse().unwrap());
    for direction in [omni::RECEIVE, omni::RECEIVE | omni::TRANSMIT] {
        let request = omni::Request { netperf_ip: third, direction, netperf_port: 9, ..request("UDP_RR") };
        assert_eq!(refused(&request), 13);
    }
    // To be the first to send datagrams, even to the client itself.
    for ip in [third, [0; 16]] {
        let request = omni::Request { netperf_ip: ip, direction: omni::TRANSMIT, ..request("UDP_STREAM") };
        assert_eq!(refused(&request), 95);
    }
    assert_eq!(refused(&omni::Request { netperf_port: 0, ..request("UDP_RR") }), 22);
    assert_eq!(refused(&omni::Request { netperf_port: 1 << 16, ..request("UDP_RR") }), 22);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let stream = || request("TCP_STREAM");
    let huge = 1 << 30;
    assert_eq!(refused(&omni::Request { data_port: 80, ..stream() }), 13);
    assert_eq!(refused(&omni::Request { data_port: 1 << 16, ..stream() }), 13);
    assert_eq!(refused(&omni::Request { protocol: 132, ..stream() }), 93);
    assert_eq!(refused(&omni::Request { socket_type: 2, ..stream() }), 93);
    assert_eq!(refused(&omni::Request { ipfamily: 6, ..stream() }), 97);
    assert_eq!(refused(&omni::Request { ipfamily: 99, ..stream() }), 97);
    assert_eq!(refused(&omni::Request { direction: 0, ..stream() }), 95);
    assert_eq!(refused(&omni::Request { direction: 6, ..stream() }), 22);
    assert_eq!(refused(&omni::Request { receive_size: huge, ..stream() }), 12);
    assert_eq!(refused(&omni::Request { recv_buf_size: huge, ..stream() }), 12);
    assert_eq!(refused(&omni::Request { request_size: huge, ..request("TCP_RR") }), 12);
    assert_eq!(refused(&omni::Request { test_length: 1 << 20, ..stream() }), 62);
    let mut fill_file = [0; 32];
    fill_file[..11].copy_from_slice(b"/etc/shadow");
    assert_eq!(refused(&omni::Request { fill_file, ..stream() }), 13);
    // No address of this host.
    let netserver_ip = omni::address_field("192.0.2.7".parse().unwrap());
    assert_eq!(refused(&omni::Request { netserver_ip, ..stream() }), 99);
    let mut cong_control = [0; 16];
    cong_control[..4].copy_from_slice(b"none");
    assert_ne!(refused(&omni::Request { cong_control, ..stream() }), 0);
}

#[test]
fn a_client_that_never_sends_data_or_goes_away_ends_its_session() {
    for test in ["TCP_STREAM", "TCP_RR", "TCP_MAERTS"] {
        let served = Served::new("127.0.0.1", quick());
        let mut control = served.connect();
        control.write_all(&request(test).encode().0).unwrap();
        let error = served.ended().unwrap_err();
        assert!(matches!(error, ServeError::Vanished { .. }), "{test}: {error}");
    }
    for test in ["TCP_STREAM", "TCP_CRR", "UDP_STREAM"] {
        let served = Served::new("127.0.0.1", Limits { idle: Duration::from_secs(3600), ..limits() });
        let mut control = served.connect();
        control.write_all(&request(test).encode().0).unwrap();
        let mut response = [0; MESSAGE_BYTES];
        control.read_exact(&mut response).unwrap();
        drop(control);
        let error = served.ended().unwrap_err();
        assert!(matches!(error, ServeError::Vanished { .. }), "{test}: {error}");
    }
}

#[test]
fn a_server_that_is_halted_ends_its_sessions() {
    let served = Served::new("127.0.0.1", Limits { idle: Duration::from_secs(3600), ..limits() });
    let control = served.connect();
    served.halt.halt();
    assert!(matches!(served.ended(), Err(ServeError::Control(ControlError::Halted { .. }))));
    drop(control);
}

#[test]
fn datagrams_that_never_come_are_told_as_none() {
    let served = Served::new("127.0.0.1", quick());
    let mut control = served.connect();
    let request = omni::Request { netperf_port: 9, test_length: 1, ..request("UDP_STREAM") };
    control.write_all(&request.encode().0).unwrap();
    let mut bytes = [0; MESSAGE_BYTES];
    control.read_exact(&mut bytes).unwrap();
    control.read_exact(&mut bytes).unwrap();
    let results = omni::Results::decode(&Message(bytes));
    assert_eq!((results.errno, results.bytes_received, results.recv_calls), (0, 0, 0));
    drop(control);
    served.ended().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_message_is_answered_or_ends_the_session(
        known in prop::option::of(prop::sample::select(vec![kind::OMNI, kind::TCP_STREAM, kind::PASSPHRASE])),
        bytes in proptest::collection::vec(any::<u8>(), MESSAGE_BYTES),
        from in prop::sample::select(vec![8usize, 16, 60, 96, 108, 160, 656]),
    ) {
        // The first fields of a request that makes sense, and noise behind them.
        let mut message = request("TCP_STREAM").encode();
        message.0[from..].copy_from_slice(&bytes[from..]);
        if let Some(kind) = known {
            message.0[..4].copy_from_slice(&kind.to_be_bytes());
        }
        let idle = Duration::from_millis(20);
        let served = Served::new("127.0.0.1", Limits { idle, duration: Duration::from_secs(2), ..limits() });
        let mut control = served.connect();
        control.write_all(&message.0).unwrap();
        let _ = control.shutdown(Shutdown::Write);
        let begin = Instant::now();
        let _ = served.ended();
        prop_assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
