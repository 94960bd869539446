//! The main job as an ordinary user. It needs root only to become one.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::{Done, Scratch, assert_every_packet_arrived, assert_whole};
use linux::privilege::test_may_run;
use measure::record::{self, Record};

/// The user that owns nothing (nobody).
const USER: u32 = 65_534;

/// The program where that user can run it.
fn copied(scratch: &Scratch) -> String {
    let copy = scratch.file("perpacket");
    // By another process: a child forked meanwhile would inherit a descriptor that writes, and nobody could execute it.
    assert!(Command::new("cp").args([env!("CARGO_BIN_EXE_perpacket"), &copy]).status().unwrap().success());
    copy
}

/// Runs a command as the ordinary user, without groups of root and without a home.
fn as_a_user(scratch: &Scratch, program: &str, args: &[&str]) -> Done {
    let mut command = Command::new(program);
    command.args(args).uid(USER).gid(USER).current_dir(scratch.path()).stdin(Stdio::null());
    for name in ["PERPACKET_STORE", "PERPACKET_RUN_DIR", "XDG_DATA_HOME", "HOME"] {
        command.env_remove(name);
    }
    command.output().unwrap().into()
}

fn measured(done: &Done) -> Record {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    assert_every_packet_arrived(&record);
    record
}

#[test]
fn an_ordinary_user_measures_what_is_possible() {
    if !test_may_run("an_ordinary_user_measures_what_is_possible") {
        return;
    }
    let scratch = Scratch::new();
    let program = copied(&scratch);
    let common = ["--frame", "64", "--slice", "1000", "--no-save"];
    let done =
        as_a_user(&scratch, &program, &[&["path", "--time", "2s", "--json", "-"], &common[..]].concat());
    let record = measured(&done);
    let paths: Vec<&str> = record.head.variants.iter().map(|variant| variant.path.as_str()).collect();
    assert_eq!(paths, ["raw-drop", "forward", "udp"]);
    let backends: BTreeSet<&str> =
        record.head.variants.iter().filter_map(|variant| variant.backend.as_deref()).collect();
    assert!(backends.is_subset(&["mmsg", "tx-ring"].into()), "{backends:?}");
    assert_eq!(record.summary.as_ref().unwrap().rows.len(), 3);
    assert!(done.stderr.contains("root adds inject"), "{}", done.stderr);
    assert!(record.warnings.iter().any(|warning| warning.next_step.contains("root adds inject")));

    let args = ["path", "raw-drop", "tc-drop", "--time", "1s", "--backend", "tx-ring"];
    let done = as_a_user(&scratch, &program, &[&args, &common[..]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("not measured: tc-drop"), "{}", done.stdout);
}

#[test]
fn steering_works_without_root() {
    if !test_may_run("steering_works_without_root") {
        return;
    }
    let scratch = Scratch::new();
    let args = [
        "path",
        "raw-drop",
        "--frame",
        "64",
        "--time",
        "1s",
        "--rps",
        "1",
        "--clock",
        "machine",
        "--no-save",
    ];
    let done = as_a_user(&scratch, &copied(&scratch), &[&args[..], &["--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    assert_every_packet_arrived(&record::read(done.stdout.as_bytes()).unwrap());
}

#[test]
fn flows_are_sent_without_root() {
    if !test_may_run("flows_are_sent_without_root") {
        return;
    }
    let scratch = Scratch::new();
    let program = copied(&scratch);
    let small = ["flows", "-n", "2000", "--rate", "10kpps", "--runs", "1", "--no-save"];
    let done = as_a_user(&scratch, &program, &[&small[..], &["--rps", "off,0x1", "--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    assert!(
        record.ledgers().count() == 2 && record.ledgers().all(measure::ledger::Ledger::closes),
        "{record:?}"
    );
    let backends: BTreeSet<_> =
        record.head.variants.iter().map(|variant| variant.backend.as_deref()).collect();
    assert_eq!(backends, [Some("mmsg")].into());
    let done = as_a_user(&scratch, &program, &[&small[..], &["--rfs", "4096"]].concat());
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("root"), "{done:?}");
}

#[test]
fn what_needs_root_says_so() {
    if !test_may_run("what_needs_root_says_so") {
        return;
    }
    let scratch = Scratch::new();
    let program = copied(&scratch);
    for (args, expected) in [
        (&["path", "xdp-drop", "--no-save"][..], "CAP_BPF"),
        (&["path", "raw-drop", "--backend", "inject", "--no-save"], "CAP_BPF"),
        (&["path", "raw-drop", "--store", "/proc/records"], "--store DIR"),
        (&["path", "raw-drop"], "use --store DIR or --no-save"),
        (&["doctor", "--clean"], "as root"),
    ] {
        let done =
            as_a_user(&scratch, &program, &[args, if args[0] == "path" { &["-q"] } else { &[] }].concat());
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {done:?}");
        assert!(
            done.stderr.contains(expected) && done.stderr.lines().count() == 1,
            "{args:?}: {}",
            done.stderr
        );
    }
    let done = as_a_user(&scratch, &program, &["doctor"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("ordinary user") && done.stdout.contains("root adds"), "{}", done.stdout);
}

/// The limit is set in a user namespace made for this test, and holds below it only.
#[test]
fn without_user_namespaces_it_says_so_in_a_line() {
    if !test_may_run("without_user_namespaces_it_says_so_in_a_line") {
        return;
    }
    let scratch = Scratch::new();
    let program = copied(&scratch);
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && \
                  exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs \"$@\"";
    let before = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap();
    let args = ["--user", "--map-root-user", "sh", "-c", script, "sh", &program, "path", "--no-save"];
    let done = as_a_user(&scratch, "unshare", &args);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    for part in ["run as root", "user.max_user_namespaces is 0"] {
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    assert_eq!(fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap(), before);
}
