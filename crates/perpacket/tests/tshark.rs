//! Captures of every protocol, with fields that vary, as another program sees them: tshark finds no wrong checksum, no wrong
//! length and nothing malformed in them. Without tshark it is skipped, and says so.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::perpacket;

/// Packets of each capture.
const PACKETS: &str = "10000";

/// Payloads are random, and ports too: tshark would take them for whatever a port is known for.
const PAYLOAD_IS_DATA: [&str; 4] = ["-d", "udp.port==1-65535,data", "-d", "tcp.port==1-65535,data"];

/// A program for each protocol.
const PROGRAMS: [(&str, &str); 20] = [
    ("eth", "{ eth(da=dinc(), sa=02:00:00:00:00:01, type=0x88b5), drnd(50) }"),
    ("pause", "{ pause(code=1, time=drnd()), fill(0, 42) }"),
    ("pfc", "{ pfc(pri=0x00ff, time(3)=drnd()), fill(0, 26) }"),
    (
        "vlan",
        "{ vlan(id=dinc(1, 4094), pcp=drnd()), ipv4(ttl=64, sa=10.0.0.1, da=drnd()), udp(sp=drnd(1024, 65535), dp=9), drnd(30) }",
    ),
    (
        "qinq",
        "{ vlan(1ad, id=drnd(1, 4094)), vlan(id=dinc(1, 4094)), ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), tcp(sp=dinc(1024, 9000), dp=9, syn), drnd(7) }",
    ),
    (
        "mpls",
        "{ mpls(label=dinc(16, 90000, 7), ttl=64), mpls(label=drnd(16, 1000), ttl=9), ipv4(ttl=64, sa=10.0.0.1, da=drnd()), udp(sp=1024, dp=9), drnd(11) }",
    ),
    ("arp", "{ arp(sip=10.0.0.1, tip=dinc(0x0a000001, 0x0a00ffff), smac=02:00:00:00:00:01), fill(0, 18) }"),
    ("ipv4", "{ ipv4(ttl=drnd(1, 255), id=dinc(), sa=drnd(), da=drnd(), proto=253, tos=drnd()), drnd(33) }"),
    ("ipv6", "{ ipv6(hl=drnd(1, 255), sa=2001:db8::1, da=drnd(), fl=drnd(), nh=59), drnd(21) }"),
    (
        "icmp4",
        "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), icmp4(echorequest, id=drnd(), seq=dinc()), drnd(21) }",
    ),
    ("icmp6", "{ ipv6(hl=64, sa=2001:db8::1, da=drnd()), icmp6(echorequest), drnd(4), drnd(17) }"),
    ("udp4", "{ ipv4(ttl=64, sa=drnd(), da=10.0.0.2), udp(sp=drnd(), dp=drnd()), drnd(19) }"),
    ("udp6", "{ ipv6(hl=64, sa=drnd(), da=2001:db8::2), udp(sp=drnd(), dp=dinc()), drnd(1), \"odd\" }"),
    (
        "tcp4",
        "{ ipv4(ttl=64, sa=drnd(), da=10.0.0.2), tcp(sp=drnd(), dp=drnd(), seq=drnd(), aseq=dinc(), ack, win=drnd()), drnd(9) }",
    ),
    ("tcp6", "{ ipv6(hl=64, sa=drnd(), da=2001:db8::2), tcp(sp=drnd(), dp=9, seq=dinc(), syn), drnd(10) }"),
    (
        "dns",
        "{ ipv4(ttl=64, sa=10.0.0.1, da=drnd()), udp(sp=drnd()), dns(id=drnd(), rdesired=1, qry(name=\"www.example.org\", type=1, class=1)) }",
    ),
    (
        "vxlan",
        "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), udp(sp=drnd(49152, 65535), dp=4789), vxlan(vni=drnd()), eth(da=02:00:00:00:00:02, sa=drnd()), ipv4(ttl=64, sa=drnd(), da=10.1.0.2), udp(sp=drnd(60000, 60999), dp=60999), drnd(19) }",
    ),
    (
        "gre",
        "{ ipv4(ttl=64, sa=10.0.0.1, da=drnd()), gre(), ipv4(ttl=64, sa=drnd(), da=10.1.0.2), tcp(sp=drnd(), dp=9, syn), drnd(5) }",
    ),
    (
        "6in4",
        "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), ipv6(hl=64, sa=drnd(), da=2001:db8::2), udp(sp=drnd(), dp=9), drnd(19) }",
    ),
    (
        "4in6",
        "{ ipv6(hl=64, sa=2001:db8::1, da=drnd()), ipv4(ttl=64, sa=drnd(), da=10.1.0.2), udp(sp=dinc(), dp=9), drnd(19) }",
    ),
];

#[test]
fn tshark_finds_nothing_wrong_with_any_protocol() {
    if !is_installed() {
        common::skipped("tshark_finds_nothing_wrong_with_any_protocol", "tshark");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tshark");
    std::fs::create_dir_all(&folder).unwrap();
    for (number, (name, program)) in PROGRAMS.into_iter().enumerate() {
        let extension = if number % 2 == 0 { "pcap" } else { "pcapng" };
        let file = folder.join(format!("{name}.{extension}"));
        let to = file.to_str().unwrap();
        let done = perpacket(&["gen", program, "--to", to, "--count", PACKETS, "--seed", "7"]);
        assert_eq!(done.code, Some(0), "{name}: {done:?}");
        assert_eq!(lines(to, "frame"), 10_000, "{name}: packets that tshark sees");
        let wrong = wrong(to);
        assert!(wrong.is_empty(), "{name}: {program}\n{wrong}");
        std::fs::remove_file(&file).unwrap();
    }
}

/// A wrong checksum is found: the filter is no filter that finds nothing.
#[test]
fn tshark_finds_what_is_wrong() {
    if !is_installed() {
        common::skipped("tshark_finds_what_is_wrong", "tshark");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, program) in [
        ("udp-checksum", "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), udp(sp=7, dp=9, csum=1), \"payload\" }"),
        ("ip-checksum", "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2, csum=1), udp(sp=7, dp=9), \"payload\" }"),
        ("udp-length", "{ ipv4(ttl=64, sa=10.0.0.1, da=10.0.0.2), udp(sp=7, dp=9, len=999), \"payload\" }"),
    ] {
        let file = folder.join(format!("wrong-{name}.pcap"));
        let to = file.to_str().unwrap();
        let done = perpacket(&["gen", program, "--to", to, "--count", "3"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(wrong(to).lines().count(), 3, "{name}");
        std::fs::remove_file(&file).unwrap();
    }
}

fn is_installed() -> bool {
    let run = Command::new("tshark").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// The packets that tshark finds something wrong with, a line each, the first of them.
fn wrong(file: &str) -> String {
    let checksums = ["ip", "udp", "tcp", "icmp", "icmpv6"].map(|protocol| {
        // 0 is "bad".
        format!("{protocol}.checksum.status == 0")
    });
    // Severity: error.
    let filter = format!("{} || _ws.malformed || _ws.expert.severity == 8388608", checksums.join(" || "));
    let out = tshark(file, &filter);
    out.lines().take(5).map(|line| format!("{line}\n")).collect()
}

fn lines(file: &str, filter: &str) -> usize {
    tshark(file, filter).lines().count()
}

fn tshark(file: &str, filter: &str) -> String {
    let ports_tell = ["dns", "vxlan"].iter().any(|name| file.contains(&format!("/{name}.")));
    let payload: &[&str] = if ports_tell { &[] } else { &PAYLOAD_IS_DATA };
    let done = Command::new("tshark")
        .args(["-n", "-r", file, "-Y", filter])
        .args(payload)
        .args([
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
        ])
        .args(["-o", "tcp.analyze_sequence_numbers:FALSE"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
