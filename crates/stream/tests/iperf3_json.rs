//! The JSON that is printed has the keys and types that iperf3 3.12 prints (recorded in `data/iperf3`).
#![allow(clippy::unwrap_used)]

mod iperf3_support;

use std::collections::BTreeSet;
use std::time::Duration;

use iperf3_support::{Ours, bulk, limits};
use serde_json::Value;
use stream::engine::End;
use stream::iperf3::client::{self, Options};
use stream::iperf3::json;
use stream::plan::{Direction, Pace, Plan, Transport};

/// What later versions print beside, and what only this program does.
const BEYOND: [&str; 11] = [
    "start.timestamp.timemillisecs",
    "start.fq_rate",
    "start.test_start.bidir",
    "start.test_start.fqrate",
    "start.test_start.interval",
    "start.test_start.gso",
    "start.test_start.gro",
    "end.cpu_utilization_of_hosts_percent",
    // Of a direction in which 3.12 does not sum retransmits up.
    "end.sum_sent.retransmits",
    "end.sum_sent_bidir_reverse.retransmits",
    "intervals.sum.retransmits",
];

/// Each path to a value, with its type.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                shape(value, &path, into);
            }
            return;
        }
        Value::Array(values) => {
            values.iter().for_each(|value| shape(value, path, into));
            return;
        }
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
    };
    into.insert(format!("{path}: {kind}"));
}

fn shape_of(value: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    shape(value, "", &mut paths);
    paths
}

fn compare(name: &str, plan: &Plan) {
    let recorded =
        std::fs::read_to_string(format!("{}/tests/data/iperf3/{name}.json", env!("CARGO_MANIFEST_DIR")))
            .unwrap();
    let theirs = shape_of(&serde_json::from_str(&recorded).unwrap());
    let server = Ours::with_limits(limits());
    let interval = Some(Duration::from_millis(100));
    let finished =
        client::run_whole(server.address, plan, &Options { interval, ..Options::default() }).unwrap();
    let test = json::Test {
        end: End::Client,
        plan,
        facts: &finished.facts,
        exchanged: &finished.exchanged,
        server_output: finished.server_output.as_ref(),
    };
    let document = json::document(&test);
    let ours = shape_of(&document);
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{name}: not as iperf3 has it: {missing:?} in {document}");
    let more: Vec<_> =
        ours.difference(&theirs).filter(|path| !BEYOND.iter().any(|known| path.starts_with(known))).collect();
    assert!(more.is_empty(), "{name}: iperf3 has no {more:?}");
    // The stream of events is the same in lines.
    let events = json::events(&test);
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"start"), Some(&"end")));
    assert_eq!(events.len(), 2 + document["intervals"].as_array().unwrap().len());
    assert_eq!(events[1]["data"], document["intervals"][0]);
    // Intervals add up to the whole.
    let sum: u64 = document["intervals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interval| interval["sum"]["bytes"].as_u64().unwrap())
        .sum();
    let side = if document["intervals"][0]["sum"]["sender"] == true { "sum_sent" } else { "sum_received" };
    assert_eq!(document["end"][side]["bytes"].as_u64().unwrap(), sum, "{name}");
}

#[test]
fn tcp_has_the_keys_of_iperf3() {
    let plan = |direction| bulk(Transport::Tcp, direction, Duration::from_millis(400));
    compare("tcp", &plan(Direction::ToServer));
    compare("tcp-reverse", &plan(Direction::ToClient));
    compare("tcp-bidir", &plan(Direction::Both));
    compare("tcp-parallel", &Plan { flows: 2, ..plan(Direction::ToServer) });
}

#[test]
fn udp_has_the_keys_of_iperf3() {
    let pace = Some(Pace::Spread { bits_per_second: 20_000_000 });
    let plan = |direction| Plan { pace, ..bulk(Transport::Udp, direction, Duration::from_millis(400)) };
    compare("udp", &plan(Direction::ToServer));
    compare("udp-reverse", &plan(Direction::ToClient));
    compare("udp-bidir", &plan(Direction::Both));
    compare("udp-parallel", &Plan { flows: 2, ..plan(Direction::ToServer) });
}
