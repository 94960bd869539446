//! Short searches on real paths: every packet of every trial is accounted for, bounds are in order, and nothing is left behind.
#![allow(clippy::unwrap_used)]

mod common;

use common::left_behind::{Held, rcu_original, wait_until_put_back};
use common::{Done, Running, Scratch, assert_whole, command, perpacket, refused, wait_for};
use lab::{Lab, Plan, Port};
use linux::privilege::test_may_run;
use measure::record::{self, Outcome, Record, SearchGoal};
use rustix::process::Signal;

/// Few and short trials: what is found is not looked at, only whether it is true of the trials.
const SHORT: [&str; 10] =
    ["--trial", "50ms", "--sum", "150ms", "--width", "20%", "--time", "20s", "--min", "20kpps"];

/// Searches, and gives back the exit code, the record and what was printed.
fn searched(args: &[&str]) -> (Option<i32>, Record, String) {
    let scratch = Scratch::new();
    let json = scratch.file("record.json");
    let mut all = vec!["search"];
    all.extend(args);
    all.extend(SHORT);
    all.extend(["--json", &json]);
    let done = perpacket(&all);
    let text = format!("{}{}", done.stdout, done.stderr);
    let record = record::read(std::fs::read(&json).unwrap_or_else(|_| panic!("{text}")).as_slice()).unwrap();
    (done.code, record, text)
}

/// What holds of every search, whatever the machine did meanwhile.
fn assert_true(record: &Record, text: &str) {
    assert_whole(record);
    let book = &record.ledgers[0].ledger;
    assert!(book.closes() && book.sent.packets > 0, "{book:?}\n{text}");
    let trials = &record.trials;
    assert!(!trials.is_empty());
    assert_eq!(book.sent.packets, trials.iter().map(|trial| trial.sent).sum::<u64>());
    for trial in trials {
        let dropped: u64 = trial.drops.iter().map(|drop| drop.packets).sum();
        assert_eq!(trial.unaccounted, 0, "{trial:?}");
        assert_eq!(trial.sent, trial.received + dropped, "{trial:?}");
    }
    let row = &record.summary.as_ref().unwrap().search[0];
    assert_eq!(row.trials, trials.len() as u64);
    for SearchGoal { result, .. } in &row.goals {
        if let (Some(lower), Some(upper)) = (result.lower, result.upper) {
            assert!(lower.load_pps < upper.load_pps, "{result:?}");
        }
        if let (Some(lower), Some(rate)) = (result.lower, result.conditional_throughput_pps) {
            assert!(rate <= lower.load_pps, "{result:?}");
        }
    }
}

#[test]
fn a_socket_that_another_cpu_reads() {
    if !test_may_run("a_socket_that_another_cpu_reads") {
        return;
    }
    let (code, record, text) = searched(&["udp"]);
    assert!(matches!(code, Some(0 | 1 | 3)), "{text}");
    assert_true(&record, &text);
    assert!(text.contains("udp") && text.contains("NDR") && text.contains("PDR"), "{text}");
    assert_eq!(record.ledgers[0].ledger.received[0].seen_by, "read from the socket");
}

#[test]
fn a_path_that_shares_its_cpu_with_the_sender() {
    if !test_may_run("a_path_that_shares_its_cpu_with_the_sender") {
        return;
    }
    let (code, record, text) = searched(&["raw-drop", "--goal", "ndr"]);
    assert_true(&record, &text);
    let book = &record.ledgers[0].ledger;
    assert_eq!(book.sent.packets, book.received_packets(), "nothing can be lost here: {book:?}");
    if text.contains("bounded by the sender") {
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("which is all the sender can offer") && text.contains("share CPU"), "{text}");
        assert!(record.summary.unwrap().search[0].sender.is_some());
    }
}

#[test]
fn a_device_in_user_space_between_veth_pairs() {
    if !test_may_run("a_device_in_user_space_between_veth_pairs") {
        return;
    }
    for (path, end) in [
        ("datapath:forward", "XDP program at the next hop"),
        ("datapath:drop", "early-drop"),
        ("datapath:udp", "read from the receivers' queues"),
    ] {
        let (code, record, text) = searched(&[path, "--goal", "ndr"]);
        assert!(matches!(code, Some(0 | 1 | 3)), "{text}");
        assert_true(&record, &text);
        assert_eq!(record.ledgers[0].ledger.received[0].seen_by, end);
        assert!(record.ledgers[0].ledger.received_packets() > 0, "{text}");
    }
    let (_, record, text) = searched(&["datapath:forward", "--ports", "af-packet", "--goal", "ndr"]);
    assert_true(&record, &text);
    assert!(record.ledgers[0].ledger.received_packets() > 0, "{text}");
}

#[test]
fn sizes_can_be_mixed_and_flows_have_their_own_options() {
    if !test_may_run("sizes_can_be_mixed_and_flows_have_their_own_options") {
        return;
    }
    for path in ["udp", "raw-drop", "datapath:forward", "flows"] {
        let mixed = [path, "--goal", "pdr", "--max", "100kpps", "--frame", "imix"];
        let (_, record, text) = searched(&mixed);
        assert_true(&record, &text);
        assert!(record.ledgers[0].ledger.received_packets() > 0 && text.contains("imix"), "{path}: {text}");
    }
    let (_, record, text) =
        searched(&["udp", "--goal", "pdr", "--max", "50kpps", "--frame", "imix", "--backend", "mmsg"]);
    assert_true(&record, &text);
    let more = ["--rcvbuf", "1MiB", "--reader", "threads", "--backlog", "5000", "--flow-ports", "4"];
    let args =
        [&["flows", "--goal", "pdr", "--max", "50kpps", "--sockets-per-port", "2"][..], &more].concat();
    let (_, record, text) = searched(&args);
    assert_true(&record, &text);
    let settings = &record.head.variants[0].settings;
    assert_eq!(settings.get("backlog").map(String::as_str), Some("5000"), "{settings:?}");
    let before = std::fs::read_to_string("/proc/sys/net/core/netdev_max_backlog").unwrap();
    assert_ne!(before.trim(), "5000", "put back");
    assert!(refused(&["search", "udp", "--rcvbuf", "1MiB"]).contains("on the path flows only"));
}

#[test]
fn what_is_between_two_devices_is_searched_and_no_device_is_taken_without_being_allowed() {
    if !test_may_run("what_is_between_two_devices_is_searched_and_no_device_is_taken_without_being_allowed") {
        return;
    }
    // Two veth pairs, and a bridge between them as the device under test.
    let mut plan = Plan::new();
    plan.namespace("test").namespace("dut");
    plan.veth(Port::new("test", "t0"), Port::new("dut", "d0"));
    plan.veth(Port::new("dut", "d1"), Port::new("test", "t1"));
    plan.bridge("dut", "br0", &["d0", "d1"]);
    let lab = Lab::build(&plan).unwrap();
    let inside = |args: &[&str]| {
        let scratch = Scratch::new();
        let json = scratch.file("record.json");
        let all = [&["search", "devices"], args, &SHORT[..], &["--json", &json, "--no-save"]].concat();
        let done = Done::from(lab.netns("test").run(|| command(&all).output().unwrap()).unwrap());
        let record = std::fs::read(&json).ok().and_then(|text| record::read(text.as_slice()).ok());
        (done, record)
    };
    let both = ["--to", "t0", "--from", "t1", "--goal", "pdr", "--max", "50kpps"];
    let (done, record) = inside(&[&both[..], &["--allow-device", "t0,t1"]].concat());
    assert!(matches!(done.code, Some(0 | 1 | 3)), "{done:?}");
    let record = record.unwrap();
    assert_true(&record, &format!("{done:?}"));
    assert!(record.ledgers[0].ledger.received_packets() > 0, "{done:?}");
    assert_eq!(record.ledgers[0].ledger.received[0].seen_by, "XDP program on t1");

    let (done, _) = inside(&[&both[..], &["--allow-device", "t0"]].concat());
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("--allow-device t1"), "{done:?}");
    // A default route is refused, whatever is allowed.
    let mut plan = Plan::new();
    plan.namespace("test").namespace("far");
    plan.veth(Port::new("test", "t0"), Port::new("far", "f0"));
    plan.veth(Port::new("test", "t1"), Port::new("far", "f1"));
    plan.address("test", "t0", "192.0.2.1".parse().unwrap(), 24);
    plan.route("test", ("0.0.0.0".parse().unwrap(), 0), Some("192.0.2.2".parse().unwrap()), "t0");
    let lab = Lab::build(&plan).unwrap();
    let args = [&["search", "devices", "--no-save"], &both[..], &["--allow-device", "t0,t1"]].concat();
    let done = Done::from(lab.netns("test").run(|| command(&args).output().unwrap()).unwrap());
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("carries a default route"), "{done:?}");
}

#[test]
fn paths_of_all_kinds_and_flows_are_accounted_for() {
    if !test_may_run("paths_of_all_kinds_and_flows_are_accounted_for") {
        return;
    }
    for path in ["forward", "bridge", "tc-drop", "xdp-drop", "xdp-tx", "udp-noport", "forward6", "flows"] {
        let (code, record, text) = searched(&[path, "--goal", "pdr", "--max", "400kpps"]);
        assert!(matches!(code, Some(0 | 1 | 3)), "{path}: {text}");
        assert_true(&record, &text);
        assert!(record.ledgers[0].ledger.received_packets() > 0, "{path}: {text}");
    }
}

#[test]
fn a_signal_ends_a_search_with_what_is_known_and_leaves_nothing() {
    if !test_may_run("a_signal_ends_a_search_with_what_is_known_and_leaves_nothing") {
        return;
    }
    let original = rcu_original();
    let mut run = Running::start(&["search", "datapath:forward", "udp", "--runs", "50"]);
    wait_for("a trial in the record", || {
        let some = run.store.records().iter().any(|text| text.contains(r#""part":"trial""#));
        assert!(some || run.is_alive(), "it ended before its first trial");
        some.then_some(())
    });
    let held = Held::by(run.pid());
    assert!(held.counts().0 >= 3, "{held:?}");
    run.signal(Signal::INT);
    let done = run.end();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stdout.contains("unfinished"), "{done:?}");
    let record = run.record();
    assert_eq!(record.end.as_ref().unwrap().outcome, Outcome::Interrupted);
    assert!(record.ledgers[0].ledger.closes(), "{:?}", record.ledgers);
    held.wait_until_gone();
    wait_until_put_back(&original, &[run.pid()]);
}

#[test]
fn sizes_are_a_table_and_a_plot_and_a_scenario_repeats_it() {
    if !test_may_run("sizes_are_a_table_and_a_plot_and_a_scenario_repeats_it") {
        return;
    }
    let scratch = Scratch::new();
    let svg = scratch.file("rates.svg");
    let (_, record, text) = searched(&["udp", "--frame", "64,1518", "--max", "200kpps", "--svg", &svg]);
    assert_eq!(record.head.variants.len(), 2);
    assert_eq!(record.summary.unwrap().search.len(), 2, "{text}");
    assert!(text.contains(" 1518 "), "{text}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("udp, pps"));
    let toml = scratch.file("scenario.toml");
    let scenario = toml::to_string(&record.head.scenario).unwrap();
    std::fs::write(&toml, &scenario).unwrap();
    let again = perpacket(&["run", &toml]);
    assert!(matches!(again.code, Some(0 | 1 | 3)), "{again:?}\n{scenario}");
    assert!(again.stdout.contains("udp") && again.stdout.contains("1518"), "{again:?}");
}
