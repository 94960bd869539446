//! The generator against the kernel: what it says it sent is what arrived, to the packet, by every way, at every rate.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Stdio;

use common::{Done, Running, Scratch, assert_whole, command, measured, perpacket, wait_for};
use lab::{Lab, Plan, Port};
use linux::cpu;
use linux::privilege::test_may_run;
use linux::route::RouteSocket;
use measure::record::{Generated, Record};
use rustix::process::Signal;

/// Eight flows, with a checksum that follows the port.
const FLOWS: &str =
    "{ ipv4(ttl=64, sa=198.18.0.1, da=198.18.0.2), udp(sp=1024, dp=dinc(9, 16)), fill(0, 18) }";
/// Lengths that differ, and random bytes.
const MIXED: &str = "weight(7): size(64): { ipv4(ttl=64, da=drnd()), udp(sp=drnd(), dp=9), drnd(4) }
                     weight(4): size(594): { ipv4(ttl=64, da=198.18.0.2), udp(sp=1024, dp=dinc()) }
                     size(1518): { ipv4(ttl=64, da=198.18.0.2), udp(sp=1024, dp=9) }";
/// With room for a mark.
const MARKED: &str = "{ ipv4(ttl=64, sa=198.18.0.1, da=198.18.0.2), udp(sp=1024, dp=dinc(9, 16)), drnd(18) }";
const WAYS: [&str; 6] = ["xdp-live", "af-xdp", "tx-ring", "mmsg", "udp", "inject"];

/// A run whose packets all arrived; what was generated.
fn sent(args: &[&str]) -> (Generated, Record) {
    let record = measured(&[&["gen"], args].concat());
    let summary = record.summary.clone().unwrap();
    let generated = summary.generated.unwrap();
    assert_eq!(record.ledgers().next().unwrap().sent.packets, generated.packets);
    assert!(generated.extra.is_empty() && generated.workers.iter().all(|worker| worker.extra.is_empty()));
    (generated, record)
}

#[test]
fn a_count_is_exact_by_every_way() {
    if !test_may_run("a_count_is_exact_by_every_way") {
        return;
    }
    for way in WAYS {
        for program in [FLOWS, MIXED] {
            // A socket for each random source port is too many; not every random address, nor port 0, can be sent to.
            let of_sockets = [
                ("da=drnd()", "da=192.0.2.1"),
                ("sp=drnd()", "sp=dinc(1024, 1033)"),
                ("dinc()", "dinc(9, 99)"),
            ];
            let of_sockets =
                of_sockets.iter().fold(program.to_owned(), |text, (from, to)| text.replace(from, to));
            let program = if way == "udp" { of_sockets.as_str() } else { program };
            let (generated, _) = sent(&[program, "--count", "10001", "--backend", way]);
            assert_eq!(generated.packets, 10_001, "{way}");
            assert!(generated.gaps.is_none() && generated.asked_pps.is_none(), "{way}: {generated:?}");
            // 10,001 packets of MIXED are 833 rounds of 12, and the first five of the next.
            let l2_bytes = if program == FLOWS { 10_001 * 60 } else { generated.l2_bytes };
            assert_eq!(generated.l2_bytes, l2_bytes, "{way}");
        }
    }
}

#[test]
fn threads_share_a_count_and_a_rate() {
    if !test_may_run("threads_share_a_count_and_a_rate") {
        return;
    }
    if cpu::allowed().unwrap().len() < 2 {
        return; // one CPU cannot say anything about two
    }
    for way in WAYS {
        let (generated, _) =
            sent(&[FLOWS, "--count", "4001", "--threads", "2", "--rate", "20kpps", "--backend", way]);
        let each: Vec<u64> = generated.workers.iter().map(|worker| worker.packets).collect();
        assert_eq!((generated.packets, each), (4001, vec![2001, 2000]), "{way}");
    }
}

#[test]
fn a_rate_has_no_bursts() {
    if !test_may_run("a_rate_has_no_bursts") {
        return;
    }
    for way in WAYS {
        let (generated, _) = sent(&[FLOWS, "--count", "4000", "--rate", "20kpps", "--backend", way]);
        let gaps = generated.gaps.unwrap();
        assert_eq!(gaps.iter().map(|(_, count)| count).sum::<u64>(), 3999, "{way}");
        // 50 µs are asked for: never faster than at twice the rate. Within a grain gaps are 0.
        let least = if generated.grain == Some(1) { 24_000 } else { 0 };
        let shortest = gaps.iter().map(|&(ns, _)| ns).min().unwrap();
        assert!(shortest >= least, "{way}: {shortest} ns, grain {:?}", generated.grain);
    }
}

#[test]
fn what_is_written_to_a_file_can_be_sent() {
    if !test_may_run("what_is_written_to_a_file_can_be_sent") {
        return;
    }
    let scratch = Scratch::new();
    for name in ["a.pcap", "a.pcapng"] {
        let file = scratch.file(name);
        let done =
            perpacket(&["gen", MIXED, "--to", &file, "--count", "500", "--rate", "50kpps", "--seed", "1"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        // In its own time: 10 ms.
        let (generated, _) = sent(&["-i", &file]);
        assert_eq!(generated.packets, 500, "{name}");
        let (again, _) = sent(&["-i", &file, "--rate", "100kpps", "--backend", "mmsg"]);
        assert_eq!((again.packets, again.l2_bytes), (500, generated.l2_bytes), "{name}");
    }
}

#[test]
fn a_device_must_be_allowed_and_its_counters_agree() {
    if !test_may_run("a_device_must_be_allowed_and_its_counters_agree") {
        return;
    }
    let mut plan = Plan::new();
    plan.namespace("here").namespace("there");
    plan.veth(Port::new("here", "v0"), Port::new("there", "v1"));
    let lab = Lab::build(&plan).unwrap();
    let run = |args: &[&str]| -> Done {
        lab.netns("here")
            .run(|| command(args).args(["--no-save", "--quiet"]).output().unwrap().into())
            .unwrap()
    };
    let base = ["gen", FLOWS, "--to", "v0", "--count", "1000"];
    for (more, why) in [
        (&[][..], "--allow-device v0"),
        (&["--allow-device", "v1"], "does not allow v0"),
        (&["--allow-device", "v0", "--backend", "inject"], "use --to lab"),
    ] {
        let done = run(&[&base[..], more].concat());
        assert!(done.code == Some(2) && done.stderr.contains(why), "{more:?}: {done:?}");
    }
    for way in ["mmsg", "tx-ring", "af-xdp"] {
        let done = run(&[&base[..], &["--allow-device", "v0", "--backend", way]].concat());
        assert_eq!(done.code, Some(0), "{way}: {done:?}");
        assert!(done.stdout.contains("1,000 by tx_packets of v0"), "{way}: {done:?}");
    }
    // A socket sends only from what is an address there, and by no other device.
    let by_sockets = [&base[..], &["--allow-device", "v0", "--backend", "udp"]].concat();
    let add_address = |host: u8| {
        let add = || {
            let mut route = RouteSocket::open().unwrap();
            let v0 = route.link_by_name("v0").unwrap().unwrap().ifindex;
            route.add_address(v0, [198, 18, 0, host].into(), 24).unwrap();
            // The same again is as good: it is there.
            drop(route.add_neighbour(v0, [198, 18, 0, 2].into(), [2, 0, 0, 0, 0, 9]));
        };
        lab.netns("here").run(add).unwrap();
    };
    // Where there is no address at all, any can be bound.
    add_address(7);
    let done = run(&by_sockets);
    assert!(done.code == Some(2) && done.stderr.contains("198.18.0.1 is no address of this"), "{done:?}");
    add_address(1);
    let done = run(&by_sockets);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("1,000 by tx_packets of v0"), "{done:?}");
    // Without NAPI on the other end every redirected frame is lost, and that is said.
    let done = run(&[&base[..], &["--allow-device", "v0", "--backend", "xdp-live"]].concat());
    assert_eq!(done.code, Some(1), "{done:?}");
    let done = run(&["gen", FLOWS, "--to", "v9", "--count", "1", "--allow-device", "v9"]);
    assert!(done.code == Some(2) && done.stderr.contains("no device is called `v9`"), "{done:?}");
}

/// What `gen` marks, `sink` finds: nothing is missing, and of what is left out all is.
#[test]
fn marked_packets_are_told_apart_where_they_arrive() {
    if !test_may_run("marked_packets_are_told_apart_where_they_arrive") {
        return;
    }
    let mut plan = Plan::new();
    plan.namespace("here").namespace("there");
    plan.veth(Port::new("here", "v0"), Port::new("there", "v1"));
    let lab = Lab::build(&plan).unwrap();
    let scratch = Scratch::new();
    for (sent, expected, code) in [("2000", "2000", 0), ("2000", "2005", 1)] {
        let json = scratch.file("arrivals.json");
        let sink = ["sink", "v1", "--by", "packet-ring", "--mark", "--count", "2000", "--time", "20s"];
        let mut sink = lab
            .netns("there")
            .run(|| {
                command(&sink)
                    .args(["--sent", expected, "--json", &json])
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .unwrap();
        wait_for("the sink listens", || {
            let sockets =
                std::fs::read_to_string(format!("/proc/{}/net/packet", sink.id())).unwrap_or_default();
            // The sixth column says whether it receives already.
            sockets.lines().any(|line| line.split_whitespace().nth(5) == Some("1")).then_some(())
        });
        let done: Done = lab
            .netns("here")
            .run(|| {
                let args = ["gen", MARKED, "--mark", "--count", sent, "--to", "v0", "--allow-device", "v0"];
                command(&args).args(["--no-save", "--quiet"]).output().unwrap().into()
            })
            .unwrap();
        assert_eq!(done.code, Some(0), "{done:?}");
        let status = wait_for("the sink has what it waits for", || sink.try_wait().unwrap());
        let arrived = std::fs::read_to_string(&json).unwrap();
        assert_eq!(status.code(), Some(code), "{arrived}");
    }
}

#[test]
fn a_signal_ends_it_with_the_totals() {
    if !test_may_run("a_signal_ends_it_with_the_totals") {
        return;
    }
    for way in ["xdp-live", "tx-ring"] {
        for rate in [&[][..], &["--rate", "10pps"], &["--rate", "100kpps"]] {
            let args = [&["gen", FLOWS, "--time", "600s", "--backend", way], rate].concat();
            let mut run = Running::start(&args);
            wait_for("the record has begun", || (!run.store.records().is_empty()).then_some(()));
            // Some time after it began to send: the totals must be those of what was sent until then, however much that is.
            wait_for("it sends", || common::left_behind::Held::by(run.pid()).counts().0.ge(&2).then_some(()));
            run.signal(Signal::INT);
            let done = run.end();
            assert!(done.stdout.contains("sent ") && done.stderr.contains("record: "), "{args:?}: {done:?}");
            let record = run.record();
            assert_whole(&record);
            for book in record.ledgers() {
                assert_eq!(book.unaccounted(), 0, "{book:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_sent_is_said() {
    if !test_may_run("what_cannot_be_sent_is_said") {
        return;
    }
    let long = format!("{{ eth(), fill(0, {}) }}", 4000);
    for (args, why) in [
        (&["{ 1, 2, 3 }"][..], "no Ethernet header"),
        (&["{ udp(dp=70000) }"], "70000"),
        (&["cpu(3): { udp() }"], "no packet"),
        (&["{ udp() }", "--flows", "8"], "--flows"),
        (&["/nonexistent.cfg"], "/nonexistent.cfg"),
        (&["-i", "/dev/null"], "no regular file"),
        (&["{ udp() }", "--mark"], "16 bytes longer"),
        (&["--frame", "63"], "64"),
    ] {
        let done = perpacket(&[&["gen"], args, &["--quiet", "--count", "10"]].concat());
        assert!(done.code == Some(2) && done.stderr.contains(why), "{args:?}: {done:?}");
    }
    // It is there, or it is said what to load; and without it or with it, these are not its packets.
    let done = perpacket(&["gen", "--tcp", "--count", "10", "--backend", "pktgen"]);
    let loaded = std::path::Path::new("/proc/net/pktgen").exists();
    let (code, why) = if loaded { (0, "packets go another way") } else { (2, "modprobe pktgen") };
    assert!(done.code == Some(code) && done.stderr.contains(why), "{done:?}");
    // Too long for a program in the kernel: it goes another way, and says so.
    let done = perpacket(&["gen", &long, "--count", "10", "--backend", "xdp-live"]);
    assert!(done.code == Some(0) && done.stderr.contains("packets go another way"), "{done:?}");
}
