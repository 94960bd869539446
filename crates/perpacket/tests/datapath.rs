//! `perpacket datapath` between devices that need no kernel: without any privilege.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use common::{Done, Scratch, assert_whole, command, perpacket, refused};
use measure::record::{self, Datapath, Record};
use rustix::process::Signal;
use traffic::capture::{CaptureFormat, CaptureReader, CaptureWriter};

/// Runs it, and reads its record, whose ledger must close.
fn datapath(args: &[&str]) -> (Record, Datapath) {
    let done = perpacket(&[&["datapath"], args, &["--quiet", "--json", "-"]].concat());
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    read(&done)
}

fn read(done: &Done) -> (Record, Datapath) {
    let record = record::read(done.stdout.as_bytes()).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_whole(&record);
    for book in record.ledgers() {
        assert_eq!(book.unaccounted(), 0, "{book:?}");
        assert!(book.sent.packets > 0, "{book:?}");
    }
    let results = record.summary.as_ref().unwrap().datapath.clone().unwrap();
    (record, results)
}

/// Packets of the only ledger: sent, received, and dropped for this reason.
fn ledger(record: &Record, reason: &str) -> (u64, u64, u64) {
    let books: Vec<_> = record.ledgers().collect();
    let [book] = books[..] else { panic!("{books:?}") };
    let dropped = book.drops.iter().filter(|drop| drop.reason == reason).map(|drop| drop.packets).sum();
    (book.sent.packets, book.received_packets(), dropped)
}

#[test]
fn every_stage_takes_every_allocator_and_way_to_receive() {
    let copying =
        ["poll", "poll-drop", "any-context", "any-context-mutex", "page-pool", "page-pool-frag", "system"];
    let mut ways: Vec<Vec<&str>> = Vec::new();
    for mode in ["copy", "copy-break", "copy-break:100"] {
        ways.extend(copying.map(|alloc| vec!["--receive", mode, "--alloc", alloc]));
    }
    ways.extend(["page-pool", "fragment"].map(|mode| vec!["--receive", mode]));
    for way in ways {
        for (stage, reason, frame) in [
            ("drop", "early-drop", "64"),
            ("forward", "", "272"),
            ("forward", "", "1518"),
            ("forward", "", "9018"),
        ] {
            let args = [&[stage, "-n", "1000", "--frame", frame], &way[..]].concat();
            let (record, results) = datapath(&args);
            let (sent, received, dropped) = ledger(&record, reason);
            let ends = if stage == "drop" { (1000, 0, 1000) } else { (1000, 1000, 0) };
            assert_eq!((sent, received, dropped), ends, "{args:?}");
            let l2_bytes: u64 = results.ports.iter().filter_map(|port| port.l2_bytes).sum();
            let frame: u64 = frame.parse().unwrap();
            assert_eq!(l2_bytes, if stage == "drop" { 0 } else { 1000 * (frame - 4) }, "{args:?}");
        }
    }
}

#[test]
fn receivers_read_what_is_theirs_and_nothing_else() {
    for receive in ["copy", "page-pool"] {
        let args = ["udp", "--flows", "8", "--ports", "5000-5003", "--queue-limit", "100000", "-n", "80000"];
        let args = [&args[..], &["--receive", receive, "--drop", "proto=udp,port=5001"]].concat();
        let (record, results) = datapath(&args);
        assert_eq!(ledger(&record, "no-socket"), (80_000, 30_000, 40_000), "{receive}");
        assert_eq!(ledger(&record, "filter").2, 10_000);
        let read: Vec<(u32, u64, Option<u64>)> =
            results.queues.iter().map(|queue| (queue.number, queue.packets, queue.l2_bytes)).collect();
        // Payload of 64 bytes: less FCS and the headers of Ethernet, IPv4 and UDP.
        let each = |port| (port, 10_000, Some(10_000 * (64 - 4 - 14 - 20 - 8)));
        assert_eq!(read, [each(5000), (5001, 0, Some(0)), each(5002), each(5003)], "{receive}");
        assert!(results.queues.iter().all(|queue| queue.limit == Some(100_000)), "{results:?}");
    }
}

#[test]
fn a_full_queue_costs_packets_that_are_counted() {
    let (record, _) = datapath(&["udp", "--queue-limit", "1", "-n", "100000"]);
    let (sent, received, dropped) = ledger(&record, "socket-buffer");
    assert_eq!((sent, received + dropped), (100_000, 100_000));
    assert!(received > 0 && dropped > 0, "{received} read, {dropped} dropped");
}

#[test]
fn flows_are_dealt_out_to_backlogs() {
    for tx in [&[][..], &["--tx", "dummy"]] {
        let args = ["steer", "--flows", "64", "--threads", "2", "--backlog", "200000", "-n", "100000"];
        let (record, results) = datapath(&[&args[..], tx].concat());
        let (sent, received, dropped) = ledger(&record, "early-drop");
        let ends = if tx.is_empty() { (0, 100_000) } else { (100_000, 0) };
        assert_eq!((sent, (received, dropped)), (100_000, ends));
        let backlogs: Vec<u64> = results
            .queues
            .iter()
            .filter(|queue| queue.kind == "backlog of CPU")
            .map(|queue| queue.packets)
            .collect();
        assert_eq!(backlogs.iter().sum::<u64>(), 100_000, "{results:?}");
        assert!(backlogs.iter().all(|packets| *packets > 0), "{backlogs:?}");
    }
}

#[test]
fn threads_share_the_count_and_have_queues_of_their_own() {
    let args = ["forward", "--threads", "3", "-n", "100001", "--tx", "dummy:3", "--lock", "none"];
    let (record, results) = datapath(&args);
    assert_eq!(ledger(&record, ""), (100_001, 100_001, 0));
    let queues: Vec<u64> = results.queues.iter().map(|queue| queue.packets).collect();
    assert_eq!(queues, [33_334, 33_334, 33_333]);
    assert_eq!(results.memory.dummy_queue_bytes, Some(128));
    let threads: Vec<u64> = results.threads.iter().map(|thread| thread.packets).collect();
    assert_eq!(threads, queues);
    for thread in &results.threads {
        assert!(thread.polls.unwrap() >= thread.packets.div_ceil(64), "{thread:?}");
        assert!(thread.full_polls.unwrap() <= thread.polls.unwrap() && thread.cpu_ns > 0, "{thread:?}");
    }
}

#[test]
fn packets_to_made_up_prefixes_are_all_routed() {
    let (record, results) = datapath(&["forward", "--prefixes", "5000", "-n", "100000", "--seed", "3"]);
    assert_eq!(ledger(&record, "no-route"), (100_000, 100_000, 0));
    assert!(results.memory.table_prefixes.unwrap() >= 5000, "{:?}", results.memory);
    assert!(results.memory.table_bytes.unwrap() > 5000, "{:?}", results.memory);
}

#[test]
fn a_program_says_what_is_received() {
    let program =
        "{ eth(da=02:00:00:00:01:02), ipv4(ttl=dinc(1, 2), da=198.19.0.1), udp(sp=9, dp=9), fill(0, 18) }";
    let (record, results) = datapath(&["forward", "--template", program, "-n", "1000"]);
    // Every second packet comes back as time exceeded, as many as the limit allows.
    let (sent, received, expired) = ledger(&record, "ttl-expired");
    assert_eq!((sent, received + expired), (1000, 1000));
    assert!(expired < 500 && received > 500, "{received} sent on or answered, {expired} expired");
    let event =
        |name: &str| results.events.iter().find(|event| event.event == name).map_or(0, |event| event.count);
    assert_eq!(event("sent: time exceeded"), received - 500, "{:?}", results.events);
}

#[test]
fn a_capture_file_goes_through_byte_by_byte() {
    let scratch = Scratch::new();
    let (input, output, all) =
        (scratch.file("in.pcapng"), scratch.file("out.pcap"), scratch.file("all.pcap"));
    let frames: Vec<Vec<u8>> = (0..200_u8).map(frame).collect();
    let mut writer = CaptureWriter::new(CaptureFormat::Pcapng, File::create(&input).unwrap()).unwrap();
    frames.iter().for_each(|frame| writer.write(1, frame).unwrap());
    writer.finish().unwrap();
    let (rx, tx) = (format!("pcap:{input}"), format!("pcap:{output}"));
    let network = ["--mac", "0=02:00:00:00:01:02", "--neighbour", "0=198.18.0.9=02:00:00:00:00:09"];
    let route = ["--route", "198.19.0.0/16=0,via 198.18.0.9", "--address", "0=198.18.0.2/24"];
    let args = [&["forward", "--rx", &rx, "--tx", &tx, "--capture", &all], &network[..], &route].concat();
    let (record, results) = datapath(&args);
    assert_eq!(ledger(&record, ""), (200, 200, 0));
    assert_eq!(results.ports[0].missed, Some(0));
    let expected: Vec<Vec<u8>> = frames.iter().map(|frame| routed(frame)).collect();
    assert_eq!(captured(&output), expected);
    // Received and sent, each once.
    let mut both = captured(&all);
    assert_eq!(both.len(), 400);
    both.sort();
    let mut wanted = [frames, expected].concat();
    wanted.sort();
    assert_eq!(both, wanted);

    // Again and again, up to a count.
    let (record, _) = datapath(&[&args[..], &["--loop", "-n", "450"]].concat());
    assert_eq!(ledger(&record, ""), (450, 450, 0));
    assert_eq!(captured(&output).len(), 450);
}

/// UDP from 198.18.0.1 to 198.19.0.1, of this number.
fn frame(number: u8) -> Vec<u8> {
    let mut frame =
        vec![2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 8, 0, 0x45, 0, 0, 46, 0, number, 0, 0, 64, 17, 0, 0];
    frame.extend([198, 18, 0, 1, 198, 19, 0, 1, 0, 7, 0, 9, 0, 26, 0, 0]);
    frame.extend([number; 18]);
    set_checksum(&mut frame);
    frame
}

/// The same as a router sends it on.
fn routed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1, 2]);
    frame[22] -= 1;
    set_checksum(&mut frame);
    frame
}

/// That of the IPv4 header, from its definition (RFC 1071).
fn set_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn captured(file: &str) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(File::open(file).unwrap()).unwrap();
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    while reader.next_frame(&mut frame).unwrap().is_some() {
        frames.push(frame.clone());
    }
    frames
}

#[test]
fn what_waited_for_a_thread_whose_device_failed_is_accounted_for() {
    let scratch = Scratch::new();
    let full = scratch.file("full.pcap");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let tx = format!("pcap:{full}");
    let args = ["datapath", "steer", "--backlog", "100000", "-n", "100000", "--tx", &tx, "--json", "-"];
    let done = perpacket(&args);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("No space left"), "{done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let (sent, received, abandoned) = ledger(&record, "abandoned");
    assert!(record.ledgers().all(|book| book.unaccounted() == 0), "{record:?}");
    assert!(sent > 0 && abandoned > 0, "{sent} sent, {received} received, {abandoned} abandoned");
}

#[test]
fn faults_are_the_same_for_the_same_seed_and_all_accounted_for() {
    let faults = "drop=2%,corrupt=2%,reorder=2%,duplicate=2%,delay=2%@1ms";
    let args = ["forward", "--fault", faults, "-n", "50000", "--seed", "5"];
    let (record, results) = datapath(&args);
    assert_eq!(ledger(&record, "").0, 50_000);
    let told = results.faults.unwrap();
    for count in [told.dropped, told.corrupted, told.duplicated, told.reordered, told.delayed] {
        assert!((500..2000).contains(&count), "{told:?}");
    }
    // What time has no part in.
    let args = ["forward", "--fault", "drop=2%,corrupt=2%,duplicate=2%", "-n", "50000", "--seed", "5"];
    let [one, other] = [(), ()].map(|()| datapath(&args));
    let drops = |record: &Record| record.ledgers().next().unwrap().drops.clone();
    assert_eq!((drops(&one.0), &one.1.faults), (drops(&other.0), &other.1.faults));
}

#[test]
fn a_scenario_repeats_the_run() {
    let args =
        ["datapath", "udp", "--flows", "3", "--ports", "5000-5001", "--queue-limit", "100000", "-n", "30000"];
    let rest = ["--fault", "drop=1%", "--receive", "copy", "--drop", "src=198.18.0.0/16,port=5001", "-v"];
    let first = perpacket(&[&args[..], &rest].concat());
    assert_eq!(first.code, Some(0), "{first:?}");
    let toml = &first.stderr[first.stderr.find("schema =").unwrap()..];
    let scratch = Scratch::new();
    let file = scratch.file("again.toml");
    fs::write(&file, toml).unwrap();
    let again = perpacket(&["run", &file]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let book = |text: &str| {
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with("ledger"))
            .take_while(|line| !line.contains("unaccounted"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(book(&first.stdout).len() > 3, "{}", first.stdout);
    assert_eq!(book(&first.stdout), book(&again.stdout));

    let wrong = toml.replace("limit =", "limt =");
    fs::write(&file, wrong).unwrap();
    assert!(refused(&["run", &file]).contains("`limit` is near"));
}

#[test]
fn a_signal_ends_it_with_a_ledger() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = command(&["datapath", "forward", "--time", "60s", "--json", "-", "--no-save"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It says what it is going to do when it listens to signals.
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        while !line.contains("datapath forward") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0);
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let done: Done = child.wait_with_output().unwrap().into();
        assert_eq!((done.code, done.signal), (Some(0), None), "{}", done.stderr);
        // It may have been too soon for a packet.
        let record = record::read(done.stdout.as_bytes()).unwrap();
        assert_eq!(record.end.as_ref().unwrap().outcome, record::Outcome::Interrupted);
        assert!(record.ledgers().all(|book| book.unaccounted() == 0));
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_would_work() {
    let scratch = Scratch::new();
    let file = scratch.file("a.pcap");
    CaptureWriter::new(CaptureFormat::Pcap, File::create(&file).unwrap()).unwrap().finish().unwrap();
    let pcap = format!("pcap:{file}");
    let other = format!("pcap:{}", scratch.path().join(".").join("a.pcap").display());
    let cases: &[(&[&str], &str)] = &[
        (&["forwrad"], "`forward` is near"),
        (&["drop", "--tx", "dummy"], "use --rx DEVICE alone"),
        (&["udp", "--tx", "dummy"], "leave --tx out"),
        (&["steer", "--port", "tap:x"], "use --rx DEVICE"),
        (&["drop", "--rx", "dummy"], "dummy receives nothing"),
        (&["forward", "--tx", "synthetic"], "synthetic only makes frames"),
        (&["forward", "--port", "synthetic"], "synthetic only makes frames"),
        (&["forward", "--port", "tap:a", "--rx", "synthetic"], "use --port"),
        (&["forward", "--port", "tap:a", "--port", "tap:a"], "a port already"),
        (&["forward", "--port", &pcap], "a capture file goes one way"),
        (&["forward", "--rx", &pcap, "--tx", &other], "name another one"),
        (&["drop", "--rx", &pcap, "--capture", &file], "name another one"),
        (&["drop", "--rx", &pcap], "has no frame"),
        (&["drop", "--rx", "pcap:/nonexistent.pcap"], "read the capture file /nonexistent.pcap"),
        (&["forward", "--tx", "pcap:a.txt"], ".pcap or .pcapng"),
        (&["drop", "--loop"], "--loop is for --rx pcap:FILE"),
        (&["forward", "--rx", "af-packet:lo", "--tx", "dummy"], "--allow-device lo"),
        (
            &["forward", "--rx", "af-packet:lo", "--tx", "af-xdp:lo", "--allow-device", "lo"],
            "both are one device",
        ),
        (&["drop", "--allow-device", "lo"], "uses it as af-packet:lo"),
        (
            &["drop", "--rx", "af-packet:nowhere0", "--allow-device", "nowhere0"],
            "no device is called `nowhere0`",
        ),
        (&["drop", "--receive", "page-pool", "--alloc", "system"], "leave --alloc out"),
        (&["drop", "--rx", &pcap, "--receive", "page-pool"], "use --receive copy"),
        (&["drop", "--fault", "duplicate=1%", "--receive", "page-pool"], "use --receive copy"),
        (&["drop", "--alloc", "pol"], "`poll` is near"),
        (&["drop", "--receive", "copy-break:0"], "from 1 to 65535"),
        (&["drop", "--fault", "dorp=1%"], "`drop` is near"),
        (&["drop", "--budget", "65"], "1 to 64 packets a poll"),
        (&["drop", "-n", "0"], "there is nothing to receive"),
        (&["drop", "--threads", "0"], "1 to 256"),
        (&["drop", "--cpus", "0,1"], "2 CPUs for 1 threads"),
        (&["drop", "--cpus", "999999"], "CPU 999999 is not allowed"),
        (&["drop", "--rx", &pcap, "--threads", "2"], "use --threads 1"),
        (&["steer", "--cpus", "0,0", "--tx", "tap:x"], "name one CPU with --cpus"),
        (&["drop", "-n", "5", "--fault", "drop=100%"], "give a time"),
        (&["drop", "--rx", &pcap, "--frame", "64"], "use --rx synthetic"),
        (&["drop", "--frame", "63"], "64 to 9216 bytes"),
        (&["drop", "--lock", "queue"], "use --tx dummy"),
        (&["forward", "--lock", "none", "--tx", "dummy:1", "--threads", "2"], "--tx dummy:2"),
        (&["forward", "--route", "10.0.0.0/8=1"], "the only one is 0"),
        (&["forward", "--route", "10.0.0.1/8=0", "--address", "0=10.0.0.1/8"], "10.0.0.0/8"),
        (
            &["forward", "--address", "0=fd00::1/64", "--route", "0.0.0.0/0=0,via 192.0.2.1"],
            "no address of this IP version",
        ),
        (&["drop", "--route", "10.0.0.0/8=0"], "use forward"),
        (&["drop", "--address", "0=10.0.0.1/8"], "does not look at addresses"),
        (&["forward", "--port", "tap:a", "--prefixes", "5"], "use --route"),
        (&["forward", "--drop", "dport=5"], "`port` is near"),
        (&["forward", "--ports", "5000"], "use udp"),
        (&["forward", "--backlog", "5"], "use steer"),
        (&["udp", "--ports", "5000-6000"], "at most 256"),
        (&["udp", "--queue-limit", "0"], "1 to 1048576 packets"),
        (&["steer", "--cpus", "999999"], "CPU 999999 is not allowed"),
    ];
    for (args, expected) in cases {
        let message = refused(&[&["datapath"], *args].concat());
        assert!(message.contains(expected), "{args:?}: {message}");
    }
    // With the line and what was expected there, in several lines.
    let done = perpacket(&["datapath", "drop", "--template", "{ udp( }"]);
    assert!(done.code == Some(2) && done.stderr.contains("`}` cannot stand here"), "{done:?}");
    assert!(fs::metadata(&file).unwrap().len() > 0, "a refused run has changed the file");
}
