//! The corpus against trafgen itself, where it is installed: its packets are those of every configuration that it
//! gets right. It writes to a file; no packet leaves.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Case, corpus, hex, packets};

#[test]
fn trafgen_makes_the_same_packets_where_it_is_right() {
    if Command::new("trafgen").arg("--version").output().is_err() {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIPPED (needs trafgen, Debian netsniff-ng): trafgen_makes_the_same_packets_where_it_is_right\n",
        );
        return;
    }
    let folder = std::env::temp_dir().join(format!("template-trafgen-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let same: Vec<Case> = corpus().into_iter().filter(|case| case.same_as_trafgen).collect();
    assert!(same.len() >= 40, "{} configurations", same.len());
    for case in &same {
        let capture = folder.join(format!("{}.pcap", case.name));
        let count = case.packets.len();
        run(case, count, &capture);
        let theirs: Vec<String> =
            read(&std::fs::read(&capture).unwrap()).iter().map(|bytes| hex(bytes)).collect();
        let ours: Vec<String> = packets(&case.text, count as u64).iter().map(|bytes| hex(bytes)).collect();
        assert_eq!(ours, theirs, "{}", case.name);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs trafgen with one worker, without its changes to sysctls and interrupts, and stops it if it hangs.
fn run(case: &Case, count: usize, capture: &std::path::Path) {
    let mut child = Command::new("trafgen")
        .args(["-Q", "--no-sock-mem", "-P", "1", "-n", &count.to_string(), "-i"])
        .arg(&case.path)
        .arg("-o")
        .arg(capture)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("trafgen hangs on {}", case.name);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The packets of a classic capture file in this machine's byte order.
fn read(file: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut rest = &file[24..];
    while rest.len() >= 16 {
        let len = u32::from_ne_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        packets.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    packets
}
