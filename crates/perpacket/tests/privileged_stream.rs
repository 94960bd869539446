//! `stream` and `rr` between two namespaces of their own: what one end sent the other received, every datagram is accounted for,
//! and each end is paid for what it did.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Running, Scratch, assert_whole, perpacket, refused, wait_for};
use linux::privilege::test_may_run;
use measure::record::{self, Record, StreamRun, Streams};
use rustix::process::Signal;
use serde_json::Value;

/// Runs it; its record is whole.
fn record_of(args: &[&str]) -> Record {
    let done = perpacket(&[args, &["--quiet", "--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{args:?}: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    record
}

fn results(record: &Record) -> &Streams {
    record.summary.as_ref().unwrap().streams.as_ref().unwrap()
}

/// The sum of a number over the flows of an end.
fn sum(side: &Value, pointer: &str) -> u64 {
    let flows = side["flows"].as_array().unwrap();
    flows.iter().filter_map(|flow| flow.pointer(pointer)?.as_u64()).sum()
}

fn only(record: &Record) -> &StreamRun {
    let [run] = &results(record).runs[..] else { panic!("one run") };
    run
}

fn mean(record: &Record, variant: usize, name: &str) -> Option<f64> {
    Some(results(record).rows[variant].means.get(name)?.mean)
}

#[test]
fn every_byte_that_was_sent_over_a_stream_was_received() {
    if !test_may_run("every_byte_that_was_sent_over_a_stream_was_received") {
        return;
    }
    for more in [
        &["tcp"][..],
        &["sendfile"],
        &["maerts"],
        &["bidir"],
        &["tcp@1000", "-6", "--flows", "3", "--nodelay"],
        &["tcp", "--unix", "--flows", "2"],
        &["tcp", "--giving", "splice", "--taking", "discard", "--rcvbuf", "100000", "--mss", "1000"],
        &["tcp", "-T", "none", "--flows", "4", "--threads", "2", "--sndbuf", "50000", "--tos", "16"],
        &["tcp", "--pacing", "100Mbit", "--interval", "100ms"],
    ] {
        let record = record_of(&[&["stream", "--time", "300ms"], more].concat());
        let run = only(&record);
        let [client, server] = [&run.client, &run.server];
        for (sender, receiver) in [(client, server), (server, client)] {
            let (sent, received) = (sum(sender, "/sent/bytes"), sum(receiver, "/received/bytes"));
            assert_eq!(sent, received, "{more:?}");
        }
        let all = sum(client, "/sent/bytes") + sum(server, "/sent/bytes");
        assert!(all > 0, "{more:?}: {run:?}");
        for name in ["client_cpu_percent", "server_cpu_percent", "client_demand_us", "server_demand_us"] {
            let value = mean(&record, 0, name).unwrap();
            assert!((0.0..1e6).contains(&value), "{name} {value}");
        }
    }
}

#[test]
fn every_datagram_is_accounted_for() {
    if !test_may_run("every_datagram_is_accounted_for") {
        return;
    }
    for more in [
        &["udp@64"][..],
        &["udp@1024"],
        // The receiver has no room, and what it loses is counted where it is lost.
        &["udp@1024", "--rcvbuf", "2048"],
        &["udp@1024", "--rcvbuf", "2048", "-6"],
        &["udp@64", "--flows", "3", "-T", "none"],
        &["udp@100", "--pacing", "10Mbit"],
        &["udp@1200", "--rate", "1000"],
        &["udp@64", "--batch", "32"],
    ] {
        let record = record_of(&[&["stream", "--time", "300ms"], more].concat());
        let [book] = &record.ledgers().collect::<Vec<_>>()[..] else { panic!("a ledger: {more:?}") };
        assert!(book.closes(), "{more:?}: {book:?}");
        let run = only(&record);
        let (sent, received) = (sum(&run.client, "/sent/messages"), sum(&run.server, "/datagrams/received"));
        assert!(received > 0, "{more:?}");
        assert_eq!((book.sent.packets, book.received_packets()), (sent, received));
        assert_eq!(sum(&run.server, "/datagrams/duplicate"), 0);
    }
}

#[test]
fn joined_datagrams_arrive_one_by_one() {
    if !test_may_run("joined_datagrams_arrive_one_by_one") {
        return;
    }
    let args = ["stream", "--time", "300ms", "udp@64", "--gso", "32", "--gro", "--rcvbuf", "4000000"];
    let record = record_of(&args);
    let run = only(&record);
    let (received, bytes) = (sum(&run.server, "/received/messages"), sum(&run.server, "/received/bytes"));
    assert!(received > 0 && bytes == received * 64, "{received} {bytes}");
    assert!(
        sum(&run.server, "/datagrams/received") + sum(&run.server, "/datagrams/lost")
            <= sum(&run.client, "/sent/messages")
    );
}

#[test]
fn transactions_are_the_same_at_both_ends_and_have_latencies() {
    if !test_may_run("transactions_are_the_same_at_both_ends_and_have_latencies") {
        return;
    }
    let record = record_of(&["rr", "tcp", "udp", "crr", "cc", "--time", "300ms"]);
    for run in &results(&record).runs {
        let asked = sum(&run.client, "/transactions");
        assert!(asked > 10, "{run:?}");
        let latencies: u64 = run.client["flows"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|flow| flow["latency"]["counts"].as_array().unwrap())
            .map(|pair| pair[1].as_u64().unwrap())
            .sum();
        assert_eq!(latencies, asked, "variant {}", run.variant);
        let rate = mean(&record, run.variant.into(), "transactions_per_second").unwrap();
        assert!(rate > 10.0 && rate.is_finite(), "{rate}");
    }
    let text =
        perpacket(&["rr", "tcp", "--time", "200ms", "--quiet", "--request", "100", "--response", "2000"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.contains("p99.999") && text.stdout.contains("µs/Tran local"), "{}", text.stdout);
}

#[test]
fn due_transactions_are_as_many_as_were_due() {
    if !test_may_run("due_transactions_are_as_many_as_were_due") {
        return;
    }
    let record = record_of(&["rr", "tcp", "--rate", "100", "--time", "1s"]);
    let run = only(&record);
    let asked = sum(&run.client, "/transactions");
    assert!((90..=101).contains(&asked), "{asked}");
    assert_eq!(run.client["flows"][0]["latency"]["from_due"], true);
}

#[test]
fn what_is_omitted_is_in_no_figure() {
    if !test_may_run("what_is_omitted_is_in_no_figure") {
        return;
    }
    let record = record_of(&[
        "stream",
        "tcp",
        "udp@1000",
        "--omit",
        "300ms",
        "--time",
        "500ms",
        "--interval",
        "100ms",
    ]);
    for run in &results(&record).runs {
        let side = &run.client;
        let wall_ns = side["wall_ns"].as_u64().unwrap();
        assert!((400_000_000..5_000_000_000).contains(&wall_ns), "{wall_ns}");
        // What intervals say that count is what the total says, but for what came after the last of them.
        let intervals = side["intervals"].as_array().unwrap();
        let counted: u64 = intervals
            .iter()
            .filter(|interval| interval["omitted"] == false)
            .map(|interval| sum(interval, "/sent/bytes"))
            .sum();
        let total = sum(side, "/sent/bytes");
        assert!(counted > 0 && counted <= total, "{counted} of {total}");
    }
    assert_eq!(record.ledgers().count(), 0, "both ends do not omit the same datagrams");
}

#[test]
fn runs_are_repeated_until_the_means_are_known() {
    if !test_may_run("runs_are_repeated_until_the_means_are_known") {
        return;
    }
    // Wide enough for any machine, and too narrow for any.
    for (width, decision, runs) in [("99,100000", "achieved", 2), ("99,0.0001", "not-achieved", 3)] {
        let args = ["stream", "tcp", "--time", "100ms", "-I", width, "-i", "3,2"];
        let done = perpacket(&[&args[..], &["--quiet", "--json", "-"]].concat());
        let record = record::read(done.stdout.as_bytes()).unwrap();
        let row = &results(&record).rows[0];
        assert_eq!(serde_json::to_value(row.decision).unwrap(), decision);
        assert_eq!((row.runs, done.code), (runs, Some(if decision == "achieved" { 0 } else { 3 })));
    }
}

#[test]
fn two_settings_take_turns_and_are_compared() {
    if !test_may_run("two_settings_take_turns_and_are_compared") {
        return;
    }
    let args = ["stream", "udp@64", "--vary", "batch=1,32", "--runs", "2", "--time", "100ms"];
    let record = record_of(&args);
    let names: Vec<&str> = record.head.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, ["udp@64 batch 1", "udp@64 batch 32"]);
    for repetition in 0..2 {
        let mut pair: Vec<u16> = results(&record)
            .runs
            .iter()
            .filter(|run| run.repetition == repetition)
            .map(|run| run.variant)
            .collect();
        pair.sort_unstable();
        assert_eq!(pair, [0, 1]);
    }
    let text = perpacket(&[&args[..], &["--quiet"]].concat());
    assert!(text.stdout.contains("batch 32 as a multiple of 1"), "{text:?}");
}

#[test]
fn a_scenario_of_it_runs_again() {
    if !test_may_run("a_scenario_of_it_runs_again") {
        return;
    }
    let scratch = Scratch::new();
    let Done { code, stderr, .. } = perpacket(&["rr", "udp", "--time", "100ms", "-v", "--unix"]);
    assert_eq!(code, Some(0), "{stderr}");
    let from = stderr.find("schema = ").unwrap();
    let file = scratch.file("scenario.toml");
    std::fs::write(&file, &stderr[from..]).unwrap();
    let again = perpacket(&["run", &file]);
    assert_eq!(again.code, Some(0), "{again:?}");
}

#[test]
fn a_signal_ends_it_with_what_was_counted() {
    if !test_may_run("a_signal_ends_it_with_what_was_counted") {
        return;
    }
    let mut running = Running::start(&["stream", "tcp", "--time", "1h"]);
    wait_for("a record of it", || (!running.store.records().is_empty()).then_some(()));
    running.signal(Signal::INT);
    let done = running.end();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stdout.contains("Stopped by a signal"), "{done:?}");
}

#[test]
fn what_the_kernel_does_not_have_is_refused_by_name() {
    if !test_may_run("what_the_kernel_does_not_have_is_refused_by_name") {
        return;
    }
    let error = refused(&["stream", "tcp", "--congestion", "no-such-control", "--time", "100ms"]);
    assert!(error.contains("no-such-control"), "{error}");
}
