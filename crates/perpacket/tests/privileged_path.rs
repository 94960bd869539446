//! The main job and comparisons from the command line to the record, on the running kernel: every packet is accounted
//! for on every path, by every way in, and the record is what was measured.
//!
//! Nothing here says how long something took: figures are for the machine that they were measured on.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{Scratch, assert_every_packet_arrived, assert_whole, command, measured, perpacket, refused};
use linux::privilege::test_may_run;
use measure::record::{self, Clock, Outcome, Record};
use measure::verdict::Verdict;

const ALL_PATHS: [&str; 10] = [
    "floor",
    "xdp-drop",
    "xdp-tx",
    "tc-drop",
    "raw-drop",
    "forward",
    "forward6",
    "bridge",
    "udp",
    "udp-noport",
];

/// The ways in that the record names, by variant.
fn backends(record: &Record) -> Vec<&str> {
    record.head.variants.iter().map(|variant| variant.backend.as_deref().unwrap()).collect()
}

#[test]
fn every_path_is_measured_and_accounted_for() {
    if !test_may_run("every_path_is_measured_and_accounted_for") {
        return;
    }
    let mut args = vec!["path"];
    args.extend(ALL_PATHS);
    args.extend(["--frame", "64,272", "--time", "1s"]);
    let record = measured(&args);
    let summary = record.summary.as_ref().unwrap();
    assert_eq!((summary.rows.len(), record.ledgers.len(), record.head.variants.len()), (20, 20, 20));
    for (index, variant) in record.head.variants.iter().enumerate() {
        assert_eq!(variant.path, ALL_PATHS[index / 2]);
        assert_eq!(variant.frame_bytes, Some([64, 272][index % 2]));
        let row = &summary.rows[index];
        assert_eq!((usize::from(row.variant), &row.clock, row.void_slices), (index, &Clock::ThreadCpu, 0));
        assert!(row.cost.ns > 0.0, "{}: {row:?}", variant.name);
        assert_eq!(row.over_floor.is_some(), variant.path != "floor", "{}", variant.name);
        let slices: Vec<_> =
            record.slices.iter().filter(|slice| usize::from(slice.variant) == index).collect();
        let packets: u64 = slices.iter().map(|slice| slice.packets).sum();
        assert!(slices.len() >= 12, "{}: a round has six pairs", variant.name);
        let sent = record.ledgers[index].ledger.sent.packets;
        assert!(packets < sent, "{}: what warms up is sent too, {packets} of {sent}", variant.name);
    }
}

#[test]
fn every_way_in_is_accounted_for() {
    if !test_may_run("every_way_in_is_accounted_for") {
        return;
    }
    for (backend, gro) in [
        ("inject", "off"),
        ("mmsg", "off"),
        ("mmsg", "on"),
        ("tx-ring", "off"),
        ("af-xdp", "off"),
        ("af-xdp", "on"),
        ("xdp-live", "on"),
        ("udp", "off"),
        ("udp", "on"),
    ] {
        let setting = ["--backend", backend, "--gro", gro, "--flows", "3"];
        let record = measured(
            &[&["path", "raw-drop", "--frame", "64,1518", "--time", "300ms"], &setting[..]].concat(),
        );
        assert_eq!(backends(&record), [backend; 2]);
    }
    for backend in ["mmsg", "tx-ring", "af-xdp"] {
        let paths = ["path", "xdp-drop", "xdp-tx", "forward", "bridge", "udp", "udp-noport"];
        let record =
            measured(&[&paths[..], &["--frame", "272", "--time", "300ms", "--backend", backend]].concat());
        assert_eq!(backends(&record), [backend; 6]);
    }
    for gso in ["off", "on"] {
        let paths = ["path", "tc-drop", "raw-drop", "forward", "bridge", "udp", "udp-noport"];
        let setting = ["--backend", "udp", "--gso", gso, "--frame", "64,1518", "--time", "600ms"];
        let record = measured(&[&paths[..], &setting].concat());
        assert_eq!(backends(&record), ["udp"; 12]);
    }
}

#[test]
fn each_flow_has_a_socket_and_every_packet_is_read() {
    if !test_may_run("each_flow_has_a_socket_and_every_packet_is_read") {
        return;
    }
    let scratch = Scratch::new();
    let list = format!("cat /proc/net/udp >{}", scratch.file("sockets"));
    let record = measured(&["ab", "udp", "--flows", "8", "--time", "1s", "--a", &list, "--b", "true"]);
    // Had a port no socket, its packets would stand in the ledger as dropped.
    assert_eq!(record.head.variants[0].settings["flows"], "8");
    let sockets = fs::read_to_string(scratch.file("sockets")).unwrap();
    let port = |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.split_once(':')?.1, 16).ok();
    let ports: BTreeSet<u16> = sockets.lines().skip(1).filter_map(port).collect();
    assert_eq!(ports, (5_000..5_008).collect(), "{sockets}");
}

#[test]
fn a_recorded_scenario_repeats_the_run() {
    if !test_may_run("a_recorded_scenario_repeats_the_run") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("scenario.toml");
    for args in [
        &["path", "raw-drop", "udp", "--frame", "64,65", "--time", "300ms", "--flows", "2", "--rules", "3"][..],
        &["ab", "forward", "--vary", "rules=0,1", "--time", "300ms", "--margin", "3%", "--fixed"],
    ] {
        let first = measured(args);
        fs::write(&file, toml::to_string(&first.head.scenario).unwrap()).unwrap();
        let second = measured(&["run", &file]);
        assert_eq!(second.head.scenario, first.head.scenario);
        assert_eq!((second.head.seed, &second.head.variants), (first.head.seed, &first.head.variants));
        assert_ne!(second.head.id, first.head.id);
    }
    let text = fs::read_to_string(&file).unwrap().replace("time_s", "tiem_s");
    fs::write(&file, text).unwrap();
    let message = refused(&["run", &file]);
    assert!(message.contains(&file) && message.contains("`time_s` is near"), "{message}");
}

#[test]
fn without_expediting_fewer_slices_are_measured_as_well() {
    if !test_may_run("without_expediting_fewer_slices_are_measured_as_well") {
        return;
    }
    let record = measured(&["path", "raw-drop", "udp", "--frame", "64", "--time", "3s", "--no-expedite"]);
    assert_eq!(record.head.scenario["host"]["expedite"], false);
    assert_eq!(record.summary.unwrap().rows.len(), 2);
}

#[test]
fn the_stored_record_is_the_printed_one() {
    if !test_may_run("the_stored_record_is_the_printed_one") {
        return;
    }
    let scratch = Scratch::new();
    let store = scratch.path().to_str().unwrap();
    let json = scratch.file("document.json");
    for args in [&["path", "raw-drop", "floor"][..], &["ab", "raw-drop", "--vary", "flows=1,2"]] {
        let output = command(args)
            .args(["--time", "500ms", "--store", store, "--json", &json, "-q"])
            .output()
            .unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        assert!(!output.stdout.is_empty(), "the table is printed, as the document goes to a file");
        let texts = scratch.records();
        assert_eq!(texts.len(), 1);
        let stored = record::read(texts[0].as_bytes()).unwrap();
        assert_whole(&stored);
        assert_every_packet_arrived(&stored);
        assert_eq!(record::read(fs::read(&json).unwrap().as_slice()).unwrap(), stored);
        fs::remove_file(scratch.path().join(format!("{}.jsonl", stored.head.id))).unwrap();
    }
}

#[test]
fn fifty_rules_make_it_slower() {
    if !test_may_run("fifty_rules_make_it_slower") {
        return;
    }
    let record = measured(&["ab", "raw-drop", "--vary", "rules=0,50", "--time", "4s"]);
    let summary = record.summary.unwrap();
    let row = &summary.comparisons[0];
    assert_eq!(row.verdict, Verdict::Slower, "{row:?}");
    assert!(row.comparison.difference_interval.low > 0.0, "{row:?}");
    assert_eq!(record.end.unwrap().outcome, Outcome::Good);
}

#[test]
fn every_factor_is_taken_and_accounted_for() {
    if !test_may_run("every_factor_is_taken_and_accounted_for") {
        return;
    }
    for (vary, expected) in [
        ("frame=64,272", ["inject", "inject"]),
        ("batch=16,64", ["inject", "inject"]),
        ("flows=1,8", ["inject", "inject"]),
        ("spin=0,100", ["inject", "inject"]),
        ("backend=tx-ring,af-xdp", ["tx-ring", "af-xdp"]),
        ("backend=mmsg,udp", ["mmsg", "udp"]),
        ("gso=off,on", ["udp", "udp"]),
        // One way in for both, or the difference would be that of the ways.
        ("gro=off,on", ["mmsg", "mmsg"]),
        ("qdisc=none,pfifo", ["mmsg", "mmsg"]),
    ] {
        let record = measured(&["ab", "raw-drop", "--vary", vary, "--time", "500ms"]);
        assert_eq!(backends(&record), expected, "{vary}");
        assert_ne!(record.head.variants[0], record.head.variants[1], "{vary}");
    }
}

#[test]
fn a_queueing_discipline_loses_nothing_or_says_so() {
    if !test_may_run("a_queueing_discipline_loses_nothing_or_says_so") {
        return;
    }
    for (backend, other) in [("mmsg", "xdp-drop"), ("tx-ring", "xdp-drop"), ("udp", "tc-drop")] {
        for (path, vary) in [("raw-drop", "qdisc=none,pfifo"), (other, "qdisc=noqueue,pfifo_fast")] {
            let record = measured(&["ab", path, "--vary", vary, "--backend", backend, "--time", "700ms"]);
            let met = record.head.variants.iter().map(|variant| variant.settings["qdisc"].as_str());
            assert_eq!(met.collect::<Vec<_>>(), vary["qdisc=".len()..].split(',').collect::<Vec<_>>());
        }
    }
    // It drops whatever it gets, which no counter of the device tells.
    let args =
        ["path", "raw-drop", "--qdisc", "blackhole", "--frame", "64", "--slice", "200", "--time", "300ms"];
    let done = perpacket(&[&args[..], &["--quiet", "--json", "-"]].concat());
    assert_eq!(done.code, Some(1), "a path without a packet: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    let ledger = &record.ledgers[0].ledger;
    assert!(ledger.closes() && ledger.received_packets() == 0 && ledger.sent.packets > 0, "{ledger:?}");
    assert!(ledger.drops[0].counter.contains("queueing discipline of g0"), "{ledger:?}");
    let message = refused(&["path", "raw-drop", "--qdisc", "no_such", "--clock", "machine"]);
    assert!(message.contains("CONFIG_NET_SCH_NO_SUCH") && message.contains("pfifo_fast"), "{message}");
}

#[test]
fn threads_send_together_and_nothing_is_lost() {
    if !test_may_run("threads_send_together_and_nothing_is_lost") {
        return;
    }
    let cpus = linux::cpu::allowed().unwrap().len();
    let too_many = (cpus + 1).to_string();
    let message = refused(&["path", "raw-drop", "--threads", &too_many]);
    assert!(message.contains(&format!("use --threads {cpus} at most")), "{message}");
    if cpus < 2 {
        return; // two threads on one CPU are refused, and that was the test
    }
    for (path, backend) in [
        ("raw-drop", "inject"),
        ("raw-drop", "mmsg"),
        ("raw-drop", "tx-ring"),
        ("xdp-drop", "xdp-live"),
        ("xdp-drop", "af-xdp"),
        ("xdp-drop", "mmsg"),
        ("floor", "inject"),
        ("raw-drop", "udp"),
    ] {
        let args =
            ["ab", path, "--vary", "threads=1,2", "--backend", backend, "--flows", "3", "--time", "700ms"];
        let record = measured(&args);
        let [a, b] = &record.head.variants[..] else { panic!("two variants") };
        assert_eq!((a.settings["threads"].as_str(), b.settings["threads"].as_str()), ("1", "2"));
        assert!(!a.settings.contains_key("cpus") && b.settings["cpus"].contains(','), "{b:?}");
        // Switches of the other thread are not known, so none are told.
        let told = |variant| {
            let mut slices = record.slices.iter().filter(|slice| slice.variant == variant);
            slices.all(|slice| slice.involuntary_switches.is_some())
        };
        assert_eq!((told(0), told(1)), (true, false), "{path} by {backend}");
    }
    let setting =
        ["--threads", "2", "--qdisc", "pfifo", "--backend", "mmsg", "--frame", "64", "--time", "300ms"];
    measured(&[&["path", "raw-drop", "forward", "bridge", "udp-noport", "xdp-tx"][..], &setting].concat());
}

#[test]
fn commands_run_inside_the_system_under_test() {
    if !test_may_run("commands_run_inside_the_system_under_test") {
        return;
    }
    let scratch = Scratch::new();
    let note = |name: &str| format!("readlink /proc/self/ns/net >>{}; ls /sys/class/net", scratch.file(name));
    // Labs that are made anew get their commands as well.
    for reload in [&[][..], &["--reload", "20"]] {
        let args = ["ab", "raw-drop", "--a", &note("a"), "--b", &note("b"), "--time", "1s"];
        measured(&[&args, reload].concat());
        commands_ran_inside(&scratch, !reload.is_empty());
    }
}

/// What the commands wrote down: namespaces, none of which is the one of this test.
fn commands_ran_inside(scratch: &Scratch, apart: bool) {
    let host = fs::read_link("/proc/self/ns/net").unwrap().into_os_string().into_string().unwrap();
    let inside = ["a", "b"].map(|name| {
        let text = fs::read_to_string(scratch.file(name)).unwrap();
        fs::remove_file(scratch.file(name)).unwrap();
        text.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    });
    for inside in &inside {
        assert!(!inside.is_empty() && !inside.contains(&host), "{inside:?}");
    }
    if !apart {
        assert_eq!(inside[0].len(), 1, "one lab, which is A and B in turn: {inside:?}");
        assert_eq!(inside[0], inside[1]);
    }
}

#[test]
fn a_command_that_fails_ends_the_run_and_is_quoted() {
    if !test_may_run("a_command_that_fails_ends_the_run_and_is_quoted") {
        return;
    }
    let failing = "echo no such rule >&2; exit 7";
    let args = ["ab", "raw-drop", "--a", failing, "--b", "true", "--time", "1s"];
    let message = refused(&args);
    for part in [failing, "no such rule", "7"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let done = perpacket(&[&args[..], &["--json", "-"]].concat());
    let end = record::read(done.stdout.as_bytes()).unwrap().end.unwrap();
    assert_eq!((done.code, end.outcome), (Some(2), Outcome::Failed));
    assert!(end.error.unwrap().contains("no such rule"));
}

#[test]
fn what_would_be_no_measurement_is_refused() {
    if !test_may_run("what_would_be_no_measurement_is_refused") {
        return;
    }
    for (args, what_would_work) in [
        // Every frame would be lost, at twenty million a second.
        (&["path", "raw-drop", "--backend", "xdp-live"][..], "use --gro on, or --backend inject"),
        (&["ab", "raw-drop", "--vary", "backend=xdp-live,inject"], "use --gro on, or --backend inject"),
        // Moved work is no saving.
        (&["ab", "raw-drop", "--vary", "rps=0,0x1"], "use --clock machine"),
        (&["ab", "raw-drop", "--vary", "gro=on,off", "--backend", "inject"], "use --backend mmsg"),
        (&["ab", "raw-drop", "--vary", "gso=on,off", "--backend", "mmsg"], "use --backend udp"),
        (&["path", "xdp-drop", "--backend", "udp"], "it takes xdp-live"),
        (&["ab", "raw-drop", "--vary", "batch=1,64", "--backend", "tx-ring"], "use --backend inject"),
        (&["ab", "raw-drop", "--vary", "spin=0,9", "--backend", "mmsg"], "use --backend inject"),
        (&["ab", "xdp-drop", "--vary", "rules=0,50"], "use raw-drop"),
        (&["ab", "raw-drop", "--vary", "qdisc=none,pfifo", "--backend", "inject"], "use --backend mmsg"),
        (&["ab", "raw-drop", "--vary", "qdisc=none,netem"], "use --clock machine"),
        (&["ab", "udp", "--vary", "threads=1,2"], "use raw-drop"),
        (&["path", "raw-drop", "--json", "/nonexistent/x.json"], "name another file"),
    ] {
        let message = refused(args);
        assert!(message.contains(what_would_work), "{args:?}: {message}");
    }
}

#[test]
fn steering_is_measured_by_the_clock_of_all_cpus() {
    if !test_may_run("steering_is_measured_by_the_clock_of_all_cpus") {
        return;
    }
    let record = measured(&["ab", "raw-drop", "--vary", "rps=0,0x1", "--clock", "machine", "--time", "8s"]);
    assert_eq!(record.head.scenario["measurement"]["clock"], "machine");
    assert_eq!(record.ledgers.len(), 2);
    let lasted = record.slices.iter().map(|slice| slice.wall_ns);
    assert!(lasted.min().is_some(), "slices were measured");
}
