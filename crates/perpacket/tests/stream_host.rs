//! `stream` and `rr` towards a server on this host, by each of the protocols, and what other programs read of the output.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use common::{assert_whole, command, perpacket, refused};
use measure::record::{self, Record, StreamRun};
use serde_json::Value;

/// `perpacket serve` on ports of the kernel's choice, killed when dropped.
struct Serving {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Of perpacket's protocol, netperf's and iperf3's.
    at: [String; 3],
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

const PROTOCOLS: [&str; 3] = ["own", "netperf", "iperf3"];

impl Serving {
    fn start(more: &[&str]) -> Self {
        let ports = ["serve", "--quiet", "--port", "0", "--netperf", "0", "--iperf3", "0"];
        let mut child = command(&[&ports, more].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut serving = Self { child, lines, at: Default::default() };
        for at in 0..PROTOCOLS.len() {
            let line = serving.lines.next().unwrap().unwrap();
            serving.at[at] = line.split_whitespace().nth(1).unwrap().to_owned();
        }
        serving
    }

    fn at_of(&self, protocol: &str) -> &str {
        &self.at[PROTOCOLS.iter().position(|&name| name == protocol).unwrap()]
    }

    /// The arguments of a protocol.
    fn by<'a>(&'a self, protocol: &'a str) -> [&'a str; 4] {
        ["--host", self.at_of(protocol), "--protocol", protocol]
    }
}

/// Runs it; its record is whole, and has one run.
fn run_of(args: &[&str]) -> (Record, StreamRun) {
    let done = perpacket(&[args, &["--quiet", "--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{args:?}: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    let [run] = &record.summary.as_ref().unwrap().streams.as_ref().unwrap().runs[..] else {
        panic!("one run: {args:?}")
    };
    let run = run.clone();
    (record, run)
}

/// The sum of a number over the flows of an end.
fn sum(side: &Value, pointer: &str) -> u64 {
    let flows = side["flows"].as_array().unwrap();
    flows.iter().filter_map(|flow| flow.pointer(pointer)?.as_u64()).sum()
}

fn mean(record: &Record, name: &str) -> Option<f64> {
    let streams = record.summary.as_ref().unwrap().streams.as_ref().unwrap();
    Some(streams.rows[0].means.get(name)?.mean)
}

#[test]
fn bytes_agree_by_every_protocol() {
    let server = Serving::start(&[]);
    for protocol in PROTOCOLS {
        for work in ["tcp", "sendfile", "maerts"] {
            // netserver sends for whole seconds.
            let time = if work == "maerts" { "1s" } else { "300ms" };
            let (record, run) =
                run_of(&[&["stream", work, "--time", time][..], &server.by(protocol)].concat());
            let (sender, receiver) =
                if work == "maerts" { (&run.server, &run.client) } else { (&run.client, &run.server) };
            let (sent, received) = (sum(sender, "/sent/bytes"), sum(receiver, "/received/bytes"));
            assert!(sent > 0 && sent == received, "{work} by {protocol}: {sent} {received}");
            let rate = if work == "maerts" { "client_received_mbit" } else { "server_received_mbit" };
            assert!(mean(&record, rate).unwrap() > 0.0);
            assert!(mean(&record, "client_cpu_percent").is_some());
        }
    }
}

#[test]
fn datagrams_agree_by_every_protocol() {
    let server = Serving::start(&[]);
    for protocol in PROTOCOLS {
        let args = ["stream", "udp@1000", "--pacing", "8Mbit", "--time", "300ms"];
        let (_, run) = run_of(&[&args, &server.by(protocol)[..]].concat());
        let (sent, received) = (sum(&run.client, "/sent/bytes"), sum(&run.server, "/received/bytes"));
        assert!(received > 0 && received <= sent, "{protocol}: {sent} {received}");
        assert_eq!((sent % 1000, received % 1000), (0, 0));
        let told = run.server["flows"][0]["datagrams"].is_object();
        assert_eq!(told, protocol != "netperf", "netperf's has no words for loss");
    }
}

#[test]
fn transactions_agree_where_there_are_words_for_them() {
    let server = Serving::start(&[]);
    for protocol in ["own", "netperf"] {
        let (record, run) = run_of(&[&["rr", "tcp", "--time", "300ms"], &server.by(protocol)[..]].concat());
        let (asked, answered) = (sum(&run.client, "/transactions"), sum(&run.server, "/transactions"));
        assert!(asked > 10, "{protocol}");
        assert!(answered.abs_diff(asked) <= 1, "{protocol}: {asked} {answered}");
        assert!(mean(&record, "transactions_per_second").unwrap() > 10.0);
    }
    let args = ["rr", "tcp", "--host", &server.at[2], "--protocol", "iperf3"];
    assert!(refused(&args).contains("iperf3's protocol cannot say this: transactions"));
}

#[test]
fn what_has_no_words_is_refused_before_anything_is_sent() {
    // Nobody listens at this port; it is not asked.
    let to = |more: &[&str]| refused(&[more, &["--host", "127.0.0.1:1"]].concat());
    for (args, why) in [
        (&["stream", "bidir", "--protocol", "netperf"][..], "both directions at once"),
        (&["stream", "tcp", "--protocol", "netperf", "--flows", "2"], "2 flows"),
        (&["stream", "udp@8", "--protocol", "iperf3"], "less than 16"),
        (&["stream", "udp@8"], "no room for cookie"),
        (&["stream", "tcp", "--protocol", "iperf3", "--omit", "500ms"], "whole seconds"),
        (&["stream", "tcp", "--protocol", "netperf", "--key", "k"], "leave --key out"),
        (&["stream", "--format", "iperf3"], "name one work"),
        (&["rr", "cc", "--format", "netperf"], "no columns for cc"),
        (&["rr", "tcp", "--format", "iperf3"], "no transactions"),
        (&["stream", "tcp", "--format", "netperf", "--json", "-"], "give --json a file"),
        (&["stream", "tcp", "--format", "netperf", "--vary", "batch=1,2"], "no words for two settings"),
        (&["stream", "tcp", "--format", "iperf3", "--vary", "batch=1,2", "--runs", "1"], "two settings"),
        (&["stream", "tcp", "--vary", "protocol=own,netperf"], "no option to vary"),
        (&["stream", "tcp", "--vary", "over=ipv4,unix"], "UNIX sockets have both ends on this machine"),
        (&["stream", "tcp@100", "--vary", "flows=1,2", "--protocol", "netperf"], "tcp@100 flows 2: "),
    ] {
        let error = to(args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn two_settings_take_turns_with_another_host() {
    let server = Serving::start(&[]);
    for protocol in PROTOCOLS {
        let args = ["stream", "tcp@1000", "--vary", "nodelay=off,on", "--runs", "2", "--time", "100ms"];
        let args = [&args, &server.by(protocol)[..], &["--quiet"]].concat();
        let done = perpacket(&[&args[..], &["--json", "-"]].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        let record = record::read(done.stdout.as_bytes()).unwrap();
        assert_whole(&record);
        let runs = &record.summary.as_ref().unwrap().streams.as_ref().unwrap().runs;
        for repetition in 0..2 {
            let pair = runs.iter().filter(|run| run.repetition == repetition);
            let mut pair: Vec<u16> = pair.map(|run| run.variant).collect();
            pair.sort_unstable();
            assert_eq!(pair, [0, 1], "{protocol}");
        }
        let text = perpacket(&args);
        assert!(text.stdout.contains("nodelay on as a multiple of off"), "{text:?}");
        assert!(
            text.stdout.contains(&format!("The other end is {}, by", server.at_of(protocol))),
            "{text:?}"
        );
    }
}

#[test]
fn a_key_opens_a_server_that_has_one() {
    let scratch = common::Scratch::new();
    let file = scratch.file("key");
    std::fs::write(&file, "0123456789abcdef".repeat(4)).unwrap();
    let server = Serving::start(&["--key", &file]);
    let args = [&["stream", "tcp", "--time", "100ms"], &server.by("own")[..]].concat();
    run_of(&[&args[..], &["--key", &file]].concat());
    assert!(refused(&args).contains("--key"));
}

/// Without figures and the widths that they take: digits as #, runs of them and of spaces as one, none at the ends of lines.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if !((c == '#' || c == ' ') && masked.ends_with(c)) {
            masked.push(c);
        }
    }
    masked.lines().map(|line| line.trim().to_owned() + "\n").collect()
}

#[test]
fn netperfs_columns_are_netperfs() {
    let server = Serving::start(&[]);
    let mut all = String::new();
    for (args, more) in [
        (&["stream", "tcp", "sendfile", "udp@1000"][..], &[][..]),
        (&["stream", "tcp", "udp@1000"], &["--no-cpu"]),
        (&["rr", "tcp", "udp", "crr"], &[]),
        (&["rr", "tcp", "crr"], &["--no-cpu"]),
    ] {
        let format = ["--time", "300ms", "--format", "netperf", "--quiet"];
        let done = perpacket(&[args, more, &format, &server.by("netperf")].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        all += &done.stdout;
    }
    insta::assert_snapshot!("netperf-columns", masked(&all));
}

#[test]
fn iperf3s_json_is_all_that_is_printed() {
    let server = Serving::start(&[]);
    for protocol in PROTOCOLS {
        for work in ["tcp", "udp@1000"] {
            let args = ["stream", work, "--time", "1s", "--format", "iperf3", "--quiet", "--pacing", "8Mbit"];
            let done = perpacket(&[&args, &server.by(protocol)[..]].concat());
            assert_eq!(done.code, Some(0), "{done:?}");
            let json: Value = serde_json::from_str(&done.stdout).unwrap();
            let sums = if work == "tcp" { "sum_received" } else { "sum" };
            assert!(json["end"][sums]["bytes"].as_u64().unwrap() > 0, "{protocol}: {json}");
            assert_eq!(json["start"]["connecting_to"]["host"], "127.0.0.1");
            assert_eq!(json["intervals"].as_array().unwrap().len(), 1, "{protocol} {work}");
        }
    }
}
