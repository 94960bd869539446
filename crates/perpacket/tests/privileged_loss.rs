//! Packets that do not arrive, because the system under test was told to lose some: they are named, they are no part of
//! any figure, and what nobody accounts for ends the run with 1.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::process::Command;

use common::{Running, Scratch, assert_whole, perpacket};
use linux::privilege::test_may_run;
use measure::record::{self, Outcome, Record};

/// A command that does `off` the fourth time that it runs, and `on` the fifth.
fn once(scratch: &Scratch, off: &str, on: &str) -> String {
    let count = scratch.file("count");
    fs::write(&count, "0").unwrap();
    format!("n=$(($(cat {count})+1)); echo $n >{count}; case $n in 4) {off};; 5) {on};; esac")
}

/// Compares a path with itself while the command runs before each slice; gives back exit code, record and text.
fn compared(path: &str, command: &str) -> (Option<i32>, Record, String) {
    let scratch = Scratch::new();
    let json = scratch.file("record.json");
    let done =
        perpacket(&["ab", path, "--a", command, "--b", command, "--time", "2s", "--json", &json, "-q"]);
    let record = record::read(fs::read(&json).unwrap_or_else(|_| panic!("{done:?}")).as_slice()).unwrap();
    (done.code, record, done.stdout + &done.stderr)
}

#[test]
fn lost_packets_are_named_and_their_slices_void() {
    if !test_may_run("lost_packets_are_named_and_their_slices_void") {
        return;
    }
    let scratch = Scratch::new();
    let switch = "/proc/sys/net/ipv4/ip_forward";
    let command = once(&scratch, &format!("echo 0 >{switch}"), &format!("echo 1 >{switch}"));
    let (code, record, text) = compared("forward", &command);
    assert!(matches!(code, Some(0 | 3)), "{text}");
    assert_whole(&record);
    let book = &record.ledgers[0].ledger;
    assert!(book.closes() && book.dropped_packets() > 0, "{book:?}");
    assert!(book.drops.iter().all(|drop| drop.counter == "sys Ip.InAddrErrors"), "{book:?}");
    let void =
        record.slices.iter().filter(|slice| slice.void == Some(measure::slice::VoidReason::Drops)).count();
    assert!(void >= 1 && void < record.slices.len() / 2, "{void} of {}", record.slices.len());
    assert!(text.contains("void (packets missing)"), "{text}");
}

#[test]
fn what_nobody_accounts_for_ends_with_1() {
    if !test_may_run("what_nobody_accounts_for_ends_with_1") {
        return;
    }
    let scratch = Scratch::new();
    // A port that is down loses the bridge's packets and counts none. /sys shows the devices of who mounts it.
    let set = |flags: &str| {
        format!(
            "unshare --mount sh -c 'mount -t sysfs sysfs /sys && echo {flags} >/sys/class/net/out0/flags'"
        )
    };
    let command = once(&scratch, &set("0x1002"), &set("0x1003"));
    let (code, record, text) = compared("bridge", &command);
    assert_eq!(code, Some(1), "{text}");
    assert_whole(&record);
    assert_eq!(record.end.as_ref().unwrap().outcome, Outcome::No);
    let book = &record.ledgers[0].ledger;
    assert!(book.unaccounted() > 0 && book.drops.is_empty(), "{book:?}");
    assert!(
        book.notes.iter().any(|note| note.contains("diagnosis") && note.contains("NETFILTER_DROP")),
        "{book:?}"
    );
    assert!(text.contains("ledger of bridge") && text.contains("unaccounted for"), "{text}");
}

#[test]
fn a_path_that_loses_everything_is_no_result() {
    if !test_may_run("a_path_that_loses_everything_is_no_result") {
        return;
    }
    let (code, record, text) = compared("forward", "echo 0 >/proc/sys/net/ipv4/ip_forward");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no pair is whole: packets of A and B did not arrive")
            && text.contains("ledger of forward"),
        "{text}"
    );
    let book = &record.ledgers[0].ledger;
    assert!(book.received_packets() == 0 && book.dropped_packets() > 0, "{book:?}");
    assert_eq!(record.summary.unwrap().comparisons, []);
    assert_eq!(record.end.unwrap().outcome, Outcome::No);
}

/// Switches forwarding off in the namespaces of a run's labs. The one that it started in is this test's too, and stays.
fn stop_forwarding(pid: u32) {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let mut switched = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let descriptor = entry.unwrap().path();
        let Ok(target) = fs::read_link(&descriptor) else { continue };
        if !target.to_string_lossy().starts_with("net:[") || target == own {
            continue;
        }
        let done = Command::new("nsenter")
            .arg(format!("--net={}", descriptor.display()))
            .args(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"])
            .status()
            .unwrap();
        assert!(done.success(), "{}", descriptor.display());
        switched += 1;
    }
    assert!(switched >= 3, "a lab has three namespaces, {switched} were found");
}

#[test]
fn a_path_says_what_it_lost() {
    if !test_may_run("a_path_says_what_it_lost") {
        return;
    }
    let args = ["path", "forward", "--frame", "64", "--time", "1s", "--precision", "0.0001%"];
    let mut run = Running::start(&args);
    run.wait_for_slices();
    stop_forwarding(run.pid());
    let done = run.end();
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    for part in ["slices void, in no figure", "ledger of forward", "dropped: address not for this host"] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
    let record = run.record();
    assert_whole(&record);
    let book = &record.ledgers[0].ledger;
    assert!(book.closes() && book.dropped_packets() > 0, "{book:?}");
    assert!(record.summary.unwrap().rows[0].void_slices > 0);
}
