//! Runs that do not end as they should: interrupted, killed, beside another run, or with nowhere to write. Whatever
//! happens, nothing stays behind, and what was measured is not lost.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::left_behind::{Held, rcu_expedited, rcu_original, wait_until_put_back};
use common::{
    Done, Running, Scratch, assert_every_packet_arrived, assert_whole, measured, perpacket, refused, wait_for,
};
use linux::privilege::test_may_run;
use measure::record::Outcome;
use rustix::process::Signal;

/// A run that goes on until it is told to end.
const LONG: [&str; 10] =
    ["path", "raw-drop", "xdp-drop", "forward", "--frame", "64", "--time", "60s", "--precision", "0.0001%"];

/// These tests look at the host's settings, so there is one of them at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run that is measuring, and what it holds.
fn measuring(args: &[&str]) -> (Running, Held) {
    let mut run = Running::start(args);
    run.wait_for_slices();
    // A comparison takes its labs down and builds them anew all the time.
    let held = wait_for("the run holds a lab and programs", || {
        let held = Held::by(run.pid());
        let (namespaces, programs) = held.counts();
        (namespaces >= 3 && programs >= 1).then_some(held)
    });
    (run, held)
}

/// A signal ends a run with its table, and the record says so.
fn ends_with_what_was_measured(args: &[&str], signal: Signal) {
    let original = rcu_original();
    let (mut run, held) = measuring(args);
    run.signal(signal);
    let done = run.end();
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    assert!(done.stdout.contains("raw-drop") && done.stdout.contains("stopped by a signal"), "{done:?}");
    let record = run.record();
    assert_whole(&record);
    assert_every_packet_arrived(&record);
    assert_eq!(record.end.as_ref().unwrap().outcome, Outcome::Interrupted);
    held.wait_until_gone();
    wait_until_put_back(&original, &[run.pid()]);
}

#[test]
fn a_signal_ends_a_run_cleanly() {
    if !test_may_run("a_signal_ends_a_run_cleanly") {
        return;
    }
    let _one = alone();
    let comparison = ["ab", "raw-drop", "--vary", "rules=0,1", "--fixed", "--time", "60s"];
    for signal in [Signal::INT, Signal::TERM] {
        ends_with_what_was_measured(&LONG, signal);
    }
    // Under nohup, SIGHUP is ignored, and so it is by what is started here.
    if !hangup_is_ignored() {
        ends_with_what_was_measured(&LONG, Signal::HUP);
    }
    ends_with_what_was_measured(&comparison, Signal::INT);
}

fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn a_key_pressed_twice_ends_a_run_cleanly() {
    if !test_may_run("a_key_pressed_twice_ends_a_run_cleanly") {
        return;
    }
    let _one = alone();
    let original = rcu_original();
    let (mut run, held) = measuring(&LONG);
    run.signal(Signal::INT);
    run.signal(Signal::TERM);
    let done = run.end();
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    assert!(done.stdout.contains("stopped by a signal"), "{done:?}");
    assert_eq!(run.record().end.as_ref().unwrap().outcome, Outcome::Interrupted);
    held.wait_until_gone();
    wait_until_put_back(&original, &[run.pid()]);
}

#[test]
fn killed_runs_leave_nothing_that_the_next_does_not_put_back() {
    if !test_may_run("killed_runs_leave_nothing_that_the_next_does_not_put_back") {
        return;
    }
    let _one = alone();
    let original = rcu_original();
    let mut pids = Vec::new();
    for round in 0..10 {
        let mut runs = [Running::start(&LONG), Running::start(&LONG)];
        let mut held = Vec::new();
        if round % 2 == 0 {
            for run in &mut runs {
                run.wait_for_slices();
                held.push(Held::by(run.pid()));
            }
        } else {
            // At the first moment when the host is not as it was.
            wait_for("a run borrows the setting", || (rcu_expedited() == "1").then_some(()));
        }
        for run in &mut runs {
            run.signal(Signal::KILL);
            assert_eq!(run.end().signal, Some(9));
            pids.push(run.pid());
        }
        held.iter().for_each(Held::wait_until_gone);
        if round % 3 == 2 {
            assert_eq!(perpacket_clean().code, Some(0));
            wait_until_put_back(&original, &pids);
        }
    }
    measured(&["path", "raw-drop", "--frame", "64", "--time", "300ms"]);
    wait_until_put_back(&original, &pids);
}

#[test]
fn a_killed_run_keeps_what_was_measured() {
    if !test_may_run("a_killed_run_keeps_what_was_measured") {
        return;
    }
    let _one = alone();
    let (mut run, _) = measuring(&LONG);
    run.signal(Signal::KILL);
    run.end();
    let record = run.record();
    assert!(record.interrupted && record.end.is_none());
    assert!(!record.slices.is_empty());
    assert_eq!(perpacket_clean().code, Some(0));
}

#[test]
fn two_runs_side_by_side_share_the_setting() {
    if !test_may_run("two_runs_side_by_side_share_the_setting") {
        return;
    }
    let _one = alone();
    let original = rcu_original();
    let (mut long, held) = measuring(&LONG);
    let short = ["path", "raw-drop", "udp", "--frame", "64", "--time", "1s"];
    let record = measured(&short);
    assert_eq!(record.ledgers().map(|book| book.drops.len()).sum::<usize>(), 0);
    assert_eq!(rcu_expedited(), "1", "the other run is still going on");
    assert!(long.is_alive());
    long.signal(Signal::INT);
    assert!(matches!(long.end().code, Some(0 | 3)));
    assert_every_packet_arrived(&long.record());
    held.wait_until_gone();
    wait_until_put_back(&original, &[long.pid()]);
}

#[test]
fn a_full_disk_is_named() {
    if !test_may_run("a_full_disk_is_named") {
        return;
    }
    let _one = alone();
    let original = rcu_original();
    // No room from the start, and no room later on.
    let short = [
        "path",
        "raw-drop",
        "floor",
        "--frame",
        "64",
        "--slice",
        "1000",
        "--time",
        "3s",
        "--precision",
        "0.0001%",
    ];
    for (options, during) in [("size=4k,nr_inodes=1", false), ("size=64k", true)] {
        let scratch = Scratch::new();
        let done = with_store_on_a_tmpfs(&scratch, options, &short);
        assert_eq!(done.code, Some(2), "{done:?}");
        // What was measured is printed all the same.
        assert_eq!(done.stdout.contains("raw-drop"), during, "{done:?}");
        let said = done.stderr.lines().last().unwrap();
        assert!(said.contains(".jsonl") && said.contains("No space left on device"), "{said}");
        assert!(said.contains("--store DIR") && said.contains("--no-save"), "{said}");
        assert_eq!(said.contains("append to"), during, "{said}");
    }
    wait_until_put_back(&original, &[]);
    let done = perpacket(&["path", "raw-drop", "--frame", "64", "--time", "100ms", "--json", "/dev/full"]);
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("write /dev/full: No space left on device"), "{}", done.stderr);
}

#[test]
fn a_store_that_cannot_be_written_is_named_before_anything_is_measured() {
    if !test_may_run("a_store_that_cannot_be_written_is_named_before_anything_is_measured") {
        return;
    }
    let _one = alone();
    let original = rcu_original();
    let scratch = Scratch::new();
    let done = with_store_on_a_tmpfs(&scratch, "ro", &LONG);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{done:?}");
    let said = done.stderr.lines().last().unwrap();
    assert!(said.contains("make the record") && said.contains("Read-only file system"), "{said}");
    assert!(said.contains("--store DIR") && said.contains("--no-save"), "{said}");

    let file = scratch.file("file");
    fs::write(&file, "").unwrap();
    let below = Path::new(&file).join("records");
    let output = common::command(&LONG).arg("--store").arg(&below).output().unwrap();
    let done = Done::from(output);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{done:?}");
    assert!(
        done.stderr.contains(below.to_str().unwrap()) && done.stderr.contains("Not a directory"),
        "{done:?}"
    );

    let missing = scratch.file("missing/document.json");
    assert!(refused(&[&LONG[..], &["--json", &missing]].concat()).contains(&missing));
    wait_until_put_back(&original, &[]);
}

fn perpacket_clean() -> Done {
    common::command(&["doctor", "--clean"]).output().unwrap().into()
}

/// Runs with a store on a file system of its own, in a mount namespace that ends with the run.
fn with_store_on_a_tmpfs(scratch: &Scratch, options: &str, args: &[&str]) -> Done {
    let script =
        r#"mount -t tmpfs -o "$1" tmpfs "$2" && shift && store="$1" && shift && exec "$@" --store "$store""#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", options])
        .arg(scratch.path())
        .arg(env!("CARGO_BIN_EXE_perpacket"))
        .args(args)
        .arg("--quiet")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.into()
}
