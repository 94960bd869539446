//! The exchanges that were recorded, read from the data beside these tests.

use std::ops::Range;

use serde_json::Value;
use stream::netperf::wire::{MESSAGE_BYTES, Message, omni, tcp_stream};

/// One test as it was recorded.
pub(crate) struct Exchange {
    pub(crate) test: String,
    pub(crate) options: String,
    pub(crate) output: String,
    /// Who said what, in order.
    pub(crate) said: Vec<(Who, Message)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Netperf,
    Netserver,
}

pub(crate) fn exchanges() -> Vec<Exchange> {
    let data: Value = serde_json::from_str(include_str!("../data/netperf-control.json")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let exchanges = data["exchanges"].as_array().unwrap();
    let read = exchanges.iter().map(|exchange| Exchange {
        test: text(&exchange["test"]),
        options: text(&exchange["options"]),
        output: text(&exchange["output"]),
        said: exchange["control"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|said| {
                let who = if said["from"] == "netperf" { Who::Netperf } else { Who::Netserver };
                let bytes = unhex(said["hex"].as_str().unwrap());
                assert_eq!(bytes.len() % MESSAGE_BYTES, 0);
                let messages: Vec<_> = bytes.chunks_exact(MESSAGE_BYTES).map(message).collect();
                messages.into_iter().map(move |message| (who, message))
            })
            .collect(),
    });
    read.collect()
}

fn message(bytes: &[u8]) -> Message {
    Message(bytes.try_into().unwrap())
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The names of fields in which two messages differ, of those in `fields`.
pub(crate) fn differences(
    fields: &[(&'static str, Range<usize>)],
    got: &Message,
    recorded: &Message,
) -> Vec<&'static str> {
    let differ = |range: &Range<usize>| got.0[range.clone()] != recorded.0[range.clone()];
    fields.iter().filter(|(_, range)| differ(range)).map(|(name, _)| *name).collect()
}

/// Panics unless every field in which two messages differ is one of those named.
pub(crate) fn assert_same_but(
    what: &str,
    fields: &[(&'static str, Range<usize>)],
    got: &Message,
    recorded: &Message,
    may_differ: &[&str],
) {
    let unexpected: Vec<_> = differences(fields, got, recorded)
        .into_iter()
        .filter(|name| !may_differ.contains(name))
        .map(|name| {
            let range = fields.iter().find(|(field, _)| *field == name).unwrap().1.clone();
            format!("{name}: {:x?}, recorded {:x?}", &got.0[range.clone()], &recorded.0[range])
        })
        .collect();
    assert!(unexpected.is_empty(), "{what}: {unexpected:#?}");
}

#[test]
fn every_recorded_message_is_read_and_written_back_the_same() {
    let mut messages = 0;
    for exchange in exchanges() {
        for (who, message) in &exchange.said {
            assert_eq!(&omni::Request::decode(message).encode(), message);
            assert_eq!(&omni::Response::decode(message).encode(), message);
            assert_eq!(&omni::Results::decode(message).encode(), message);
            assert_eq!(&tcp_stream::Request::decode(message).encode(), message);
            assert_eq!(&tcp_stream::Response::decode(message).encode(), message);
            assert_eq!(&tcp_stream::Results::decode(message).encode(), message);
            let expected: &[u32] = match (who, exchange.test.as_str()) {
                (Who::Netperf, "TCP_SENDFILE") => &[10],
                (Who::Netserver, "TCP_SENDFILE") => &[11, 0x0b00_0000],
                (Who::Netperf, _) => &[97],
                (Who::Netserver, _) => &[98, 0x6200_0000],
            };
            assert!(expected.contains(&message.kind()), "{}: {message:?}", exchange.test);
            messages += 1;
        }
    }
    assert_eq!(messages, 7 * 3 + 9);
}

#[test]
fn recorded_messages_say_what_the_command_line_said() {
    for exchange in exchanges() {
        let cpu = exchange.options.contains("-C");
        if exchange.test == "TCP_SENDFILE" {
            let request = tcp_stream::Request::decode(&exchange.said[0].1);
            assert_eq!((request.measure_cpu, request.test_length, request.ipfamily), (1, 1, 4));
            let results = tcp_stream::Results::decode(&exchange.said[2].1);
            // 16111.73 * 10^6 bit/s over 1.00 s, in the output.
            assert!(
                (results.bytes_received * 8e-6 / f64::from(results.elapsed_time) - 16111.73).abs() < 20.0
            );
            assert_eq!((results.cpu_method, results.num_cpus), (8, 2));
            continue;
        }
        let request = omni::Request::decode(&exchange.said[0].1);
        assert_eq!(request.flags & omni::MEASURE_CPU != 0, cpu, "{}", exchange.test);
        assert_eq!(request.test_length, 1);
        assert_eq!(request.cpu, -1);
        let results = omni::Results::decode(&exchange.said[2].1);
        assert_eq!(results.implausible(cpu), None, "{}", exchange.test);
        assert!((0.99..1.1).contains(&results.elapsed_time), "{}", exchange.test);
        if cpu {
            assert_eq!(results.num_cpus, 2);
        }
    }
}
