//! `flows` in labs of its own: every packet is accounted for, with steering, from many sources, into sockets without room and
//! ports without sockets; and whatever ends it, the host is as before.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Done, Running, Scratch, assert_whole, command, perpacket, refused, wait_for};
use linux::privilege::test_may_run;
use measure::record::{self, FlowRun, Flows, Outcome, Record};
use rustix::process::Signal;

/// Settings of the host that a run may change.
const HOST: [&str; 5] = [
    "/sys/kernel/rcu_expedited",
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/core/rps_sock_flow_entries",
    "/proc/sys/net/core/flow_limit_cpu_bitmap",
    "/proc/sys/net/core/flow_limit_table_len",
];

/// These tests look at the host's settings and backlogs, so there is one of them at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The record of a run that closed all its ledgers: its exit code is 0, or 3 on a machine that cannot hold the rate.
fn flows(args: &[&str]) -> Record {
    let done = perpacket(&[&["flows", "--quiet", "--json", "-"], args].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{args:?}: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    for (run, book) in results(&record).runs.iter().zip(record.ledgers()) {
        assert!(book.closes(), "{book:?}");
        assert_eq!((book.sent.packets, book.received_packets()), (run.sent, run.received));
        assert_eq!(run.sent, run.packets);
        let by_socket: u64 = run.receivers.iter().map(|receiver| receiver.packets).sum();
        let by_flow: u64 = run.flows.iter().map(|flow| flow.received).sum();
        assert_eq!((by_socket, by_flow), (run.received, run.received), "{run:?}");
        assert_eq!(run.flows.iter().map(|flow| flow.sent).sum::<u64>(), run.sent);
        assert!(run.flows.iter().all(|flow| flow.received <= flow.sent), "{run:?}");
    }
    record
}

fn results(record: &Record) -> &Flows {
    record.summary.as_ref().unwrap().flows.as_ref().unwrap()
}

/// Packets of all runs that ended for a reason.
fn dropped(record: &Record, reason: &str) -> u64 {
    let drops = record.ledgers().flat_map(|book| &book.drops);
    drops.filter(|drop| drop.reason.contains(reason)).map(|drop| drop.packets).sum()
}

#[test]
fn every_packet_is_accounted_for_with_steering_and_without() {
    if !test_may_run("every_packet_is_accounted_for_with_steering_and_without") {
        return;
    }
    let _one = alone();
    let scratch = Scratch::new();
    let svg = scratch.file("plot.svg");
    let record = flows(&[
        "-n", "20000", "--rate", "100kpps", "--runs", "2", "--rps", "off,0x1", "--seed", "1", "--svg", &svg,
    ]);
    let found = results(&record);
    assert_eq!((found.runs.len(), record.head.variants.len(), record.ledgers.len()), (4, 2, 4));
    assert!(found.difference.as_ref().is_some_and(|found| found.pairs == 2));
    for run in &found.runs {
        assert_eq!((run.flows.len(), run.receivers.len(), run.packets), (8, 8, 20_000));
        assert!(run.flows.iter().all(|flow| flow.sent == 2_500), "{:?}", run.flows);
        let stamped: u64 = run.delays.as_ref().unwrap().iter().map(|(_, packets)| packets).sum();
        assert_eq!((stamped, run.unstamped), (run.received, Some(0)));
        assert!(run.delays.as_ref().unwrap().iter().all(|&(ns, _)| ns > 0));
        assert!(!run.cpus.is_empty() && run.wall_ns >= 200_000_000, "{run:?}");
    }
    assert_eq!(fs::read_to_string(&svg).unwrap().matches("<circle").count(), 4);
}

#[test]
fn packets_over_a_veth_pair_are_accounted_for_by_every_backend() {
    if !test_may_run("packets_over_a_veth_pair_are_accounted_for_by_every_backend") {
        return;
    }
    let _one = alone();
    let small = ["-n", "4000", "--rate", "20kpps", "--runs", "1"];
    for more in [
        &["--backend", "mmsg"][..],
        &["--backend", "tx-ring", "--no-stamp"],
        &["--backend", "udp"],
        &["--backend", "xdp-live"],
        &["--backend", "af-xdp", "--frame", "1518"],
        &["--gro", "on"],
        &["--busy-poll", "50", "--prefer-busy-poll", "on"],
        &["--threaded", "on"],
        &["--xps", "0x1"],
        &["--ports", "2", "--sockets-per-port", "2"],
        &["--rfs", "4096"],
        &["--wait", "spin", "--batch", "1", "--reader", "threads"],
        &["--reader", "epoll", "--ports", "4", "--sockets-per-port", "2"],
        &["--reader", "epoll", "--gro", "on", "--wait", "nap"],
    ] {
        let record = flows(&[&small[..], more].concat());
        let [run] = &results(&record).runs[..] else { panic!("one run: {more:?}") };
        assert!(run.received > 0, "{more:?}: {run:?}");
        let are_stamped = !more.contains(&"--no-stamp");
        assert_eq!((run.reordered.is_some(), run.delays.is_some()), (are_stamped, are_stamped));
    }
}

#[test]
fn a_flood_from_many_sources_is_accounted_for() {
    if !test_may_run("a_flood_from_many_sources_is_accounted_for") {
        return;
    }
    let _one = alone();
    for backend in ["inject", "mmsg"] {
        let flood =
            ["-n", "20000", "--rate", "50kpps", "--runs", "1", "--sources", "10000", "--backend", backend];
        let record = flows(&flood);
        let run = &results(&record).runs[0];
        assert_eq!(run.flows.len(), 8, "one a port");
        assert!(run.received > 0);
    }
    let text = perpacket(&[
        "flows",
        "-n",
        "2000",
        "--rate",
        "50kpps",
        "--runs",
        "1",
        "--sources",
        "1000",
        "--quiet",
    ]);
    assert!(
        text.stdout.starts_with("50,000 pps, 8 ports, 1,000 flows from 1,000 source addresses"),
        "{text:?}"
    );
}

#[test]
fn a_socket_without_room_and_a_port_without_a_socket_are_named() {
    if !test_may_run("a_socket_without_room_and_a_port_without_a_socket_are_named") {
        return;
    }
    let _one = alone();
    let one = ["-n", "20000", "--rate", "200kpps", "--runs", "1"];
    let record = flows(&[&one[..], &["--rcvbuf", "1"]].concat());
    let run: &FlowRun = &results(&record).runs[0];
    let by_sockets: u64 = run.receivers.iter().filter_map(|receiver| receiver.drops).sum();
    assert!(by_sockets > 0, "{run:?}");
    assert_eq!(dropped(&record, "socket receive buffer full"), by_sockets);

    let record = flows(&[&one[..], &["--closed-ports", "2"]].concat());
    let run = &results(&record).runs[0];
    assert_eq!(run.receivers.len(), 6);
    assert_eq!(dropped(&record, "no socket on that port"), 5_000, "{:?}", record.ledgers);
    assert!(run.flows[6..].iter().all(|flow| flow.received == 0));

    // Answers of closed ports to many sources are no losses.
    let flood = ["--closed-ports", "8", "--sources", "1000", "--backend", "mmsg"];
    let record = flows(&[&one[..], &flood].concat());
    assert_eq!(results(&record).runs[0].received, 0);
}

#[test]
fn a_device_in_user_space_accounts_for_every_packet_and_steers_by_itself() {
    if !test_may_run("a_device_in_user_space_accounts_for_every_packet_and_steers_by_itself") {
        return;
    }
    let _one = alone();
    let one = ["--dut", "datapath", "-n", "20000", "--rate", "50kpps", "--runs", "1"];
    let record = flows(&[&one[..], &["--rps", "off,0x1", "--backlog", "500"]].concat());
    assert_eq!(results(&record).runs.len(), 2);
    for run in &results(&record).runs {
        assert_eq!((run.flows.len(), run.unstamped), (8, Some(0)), "{run:?}");
        assert!(run.received > 0 && run.flows.iter().all(|flow| flow.received > 0), "{run:?}");
        assert!(run.receivers.iter().all(|own| own.drops.is_none() && own.buffer_bytes.is_none()));
    }
    let record = flows(&[&one[..], &["--closed-ports", "2", "--backend", "mmsg", "--no-stamp"]].concat());
    // What the receiving ring has no room for, while another program has the device's CPU, comes to no port.
    let nobody = dropped(&record, "no-socket");
    assert!((1..=5_000).contains(&nobody), "{:?}", record.ledgers);
    assert!(results(&record).runs[0].flows[6..].iter().all(|flow| flow.received == 0));
    // Far above what it takes: what is lost is in the rings, the backlogs and the queues, and nowhere else.
    let fast = ["--dut", "datapath", "-n", "400000", "--rate", "10Mpps", "--runs", "1", "--backlog", "64"];
    let record = flows(&[&fast[..], &["--rps", "0x1", "--flow-limit", "0x1", "--sources", "10000"]].concat());
    assert!(results(&record).runs[0].received < 400_000, "{:?}", record.ledgers);
}

#[test]
fn a_scenario_is_taken_back() {
    if !test_may_run("a_scenario_is_taken_back") {
        return;
    }
    let _one = alone();
    let args =
        ["flows", "-n", "1000", "--rate", "10kpps", "--runs", "1", "--rps", "off,0x1", "-v", "--no-save"];
    let done = Done::from(command(&args).output().unwrap());
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    let toml: String = done
        .stderr
        .lines()
        .skip_while(|line| !line.starts_with("schema"))
        .map(|line| format!("{line}\n"))
        .collect();
    let toml = toml.split("lab of").next().unwrap();
    let scratch = Scratch::new();
    let file = scratch.file("flows.toml");
    fs::write(&file, toml).unwrap();
    let again = perpacket(&["run", &file, "--quiet", "--json", "-"]);
    assert!(matches!(again.code, Some(0 | 3)), "{again:?}");
    let record = record::read(again.stdout.as_bytes()).unwrap();
    assert_eq!((record.head.variants.len(), results(&record).runs.len()), (2, 2));
}

#[test]
fn what_would_change_nothing_is_refused() {
    if !test_may_run("what_would_change_nothing_is_refused") {
        return;
    }
    for (args, expected) in [
        (&["--backend", "inject", "--gro", "off,on"][..], "gro = on with inject"),
        (&["--backend", "inject", "--busy-poll", "off,50"], "use --backend mmsg"),
        (&["--backend", "udp", "--sources", "10"], "a socket sends from an address of its host"),
        (&["--dut", "datapath", "--gro", "on"], "gro = on with dut = datapath"),
        (&["--dut", "datapath", "--backend", "inject"], "does not get them"),
        (&["--reader", "epoll", "--busy-poll", "50"], "--reader threads"),
        (&["--rps", "0xffffffffffffffff"], "is not in this machine"),
        (&["--rps", "off,0xffffffffffffffff"], "is not in this machine"),
        (&["--rate", "0"], "a rate above 0 is needed"),
        (&["--rfs", "4096", "--sources", "8"], "one flow a port"),
    ] {
        let message = refused(&[&["flows", "-n", "1000", "--runs", "1"], args].concat());
        assert!(message.contains(expected), "{message}");
    }
    let message = refused(&["ab", "flows", "--vary", "rps=off,0x1", "--rules", "5"]);
    assert!(message.contains("perpacket flows --vary"), "{message}");
}

/// Values of the settings of the host that there are.
fn host() -> BTreeMap<&'static str, String> {
    HOST.into_iter().filter_map(|path| Some((path, fs::read_to_string(path).ok()?))).collect()
}

/// A run in which the host is steered, once it is.
fn steering(before: &BTreeMap<&'static str, String>) -> Running {
    let mut run = Running::start(&[
        "flows",
        "--runs",
        "1000",
        "-n",
        "50000",
        "--rate",
        "50kpps",
        "--rps",
        "0x1",
        "--backlog",
        "4321",
        "--rfs",
        "8192",
        "--flow-limit",
        "0x1",
    ]);
    wait_for("the host is steered", || {
        let now = host();
        let all = HOST[1..4].iter().all(|path| before.get(path) != now.get(path));
        assert!(all || run.is_alive(), "it ended: {:?}", run.end());
        all.then_some(())
    });
    run
}

#[test]
fn whatever_ends_a_run_the_host_is_as_before() {
    if !test_may_run("whatever_ends_a_run_the_host_is_as_before") {
        return;
    }
    let _one = alone();
    let before = host();
    let mut run = steering(&before);
    run.signal(Signal::INT);
    let done = run.end();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stdout.contains("stopped by a signal"), "{done:?}");
    assert_eq!(run.record().end.as_ref().unwrap().outcome, Outcome::Interrupted);
    assert_eq!(host(), before);

    // What somebody else sets meanwhile is left, and told; a run that asks for nothing is told what it is measured with.
    let backlog = HOST[1];
    let mut run = steering(&before);
    let other = perpacket(&["flows", "-n", "100", "--rate", "10kpps", "--runs", "1"]);
    assert!(other.stderr.contains("another run has changed") && other.stderr.contains("4321"), "{other:?}");
    let theirs = wait_for("somebody's change stays for a whole run", || {
        fs::write(backlog, "7777").unwrap();
        run.signal(Signal::INT);
        Some(run.end())
    });
    let now = fs::read_to_string(backlog).unwrap();
    fs::write(backlog, &before[backlog]).unwrap();
    // The signal may have come between two runs, when nothing was held.
    if theirs.stderr.contains("somebody changed a setting") {
        assert_eq!(now.trim(), "7777");
        assert!(theirs.stderr.contains("4321 was set for the run, 7777 was found"), "{theirs:?}");
    }
    assert_eq!(host(), before);

    let mut run = steering(&before);
    run.signal(Signal::KILL);
    assert_eq!(run.end().signal, Some(9));
    assert_ne!(host(), before, "nobody has put it back yet");
    // Any next start does, also one that changes nothing itself.
    let next = perpacket(&["flows", "-n", "100", "--rate", "10kpps", "--runs", "1", "--no-expedite"]);
    assert!(matches!(next.code, Some(0 | 3)), "{next:?}");
    assert!(next.stderr.contains("was put back"), "{next:?}");
    assert_eq!(host(), before);
}
