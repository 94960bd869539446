//! The audit finds what is wrong with frames, and nothing with right ones.

#![allow(clippy::unwrap_used)]

mod common;

use common::{corpus, packets, parse};
use proptest::prelude::*;
use template::{Audit, Problem};

fn of(frames: &[Vec<u8>]) -> Audit {
    let mut audit = Audit::new();
    frames.iter().for_each(|frame| audit.add(frame));
    audit
}

fn problems(frame: &[u8]) -> Vec<Problem> {
    of(&[frame.to_vec()]).problems().map(|(problem, _)| problem).collect()
}

fn frame(text: &str) -> Vec<u8> {
    packets(format!("size(120): {{ {text} }}"), 1).remove(0)
}

/// All protocols, tunnels and stacks, with fields that vary.
#[test]
fn right_packets_have_no_problem() {
    let programs = [
        "ipv4(ttl=9, sa=dinc(10.0.0.1, 10.0.0.9), id=drnd()), udp(sp=drnd(), dp=dinc()), drnd(7)",
        "vlan(1ad, id=5), vlan(id=drnd()), ipv6(hl=1, sa=drnd()), tcp(seq=drnd(), dp=drnd(), ack), drnd(3)",
        "mpls(label=5, ttl=3), mpls(label=drnd()), ipv4(ttl=1), icmp4(echorequest, id=drnd()), drnd(9)",
        "ipv6(hl=3, da=drnd()), icmp6(echorequest, id=dinc(), seq=0), drnd(5)",
        "ipv4(ttl=4), gre(key=drnd(), csum), ipv6(hl=1), udp(sp=1, dp=drnd()), drnd(8)",
        "ipv4(ttl=1), udp(sp=drnd()), vxlan(vni=drnd()), eth(type=0x0800), ipv4(ttl=2), tcp(sp=drnd())",
        "ipv4(ttl=1), ipv4(ttl=2), ipv6(hl=2), ipv6(hl=3), udp(sp=drnd(), dp=1)",
        "arp()",
        "ipv4(ttl=1, ihl=6), fill(1, 4)",
    ];
    for text in programs {
        for text in [format!("{{ {text}, fill(0, 60) }}"), format!("size(151): {{ {text} }}")] {
            let audit = of(&packets(&text, 500));
            let found: Vec<_> = audit.problems().collect();
            assert_eq!((found, audit.without_udp_checksum()), (vec![], 0), "{text}");
            assert_eq!(audit.packets(), 500);
        }
    }
}

#[test]
fn each_problem_is_found() {
    use Problem::*;
    let udp = frame("ipv4(ttl=1), udp(sp=1, dp=2)");
    let with = |at: usize, value: u8| {
        let mut changed = udp.clone();
        changed[at] = value;
        problems(&changed)
    };
    assert_eq!(problems(&udp), []);
    assert_eq!(with(50, 1), [UdpChecksum]);
    assert_eq!(with(6, 1), [GroupSource]);
    assert_eq!(with(24, 1), [Ipv4Checksum]);
    assert_eq!(problems(&frame("ipv4(ttl=0), udp(sp=1, dp=2)")), [TtlZero]);
    assert_eq!(
        problems(&frame("ipv4(ttl=1, len=101), udp(sp=1, dp=2)")),
        [Ipv4Length, UdpLength, UdpChecksum]
    );
    assert_eq!(problems(&frame("ipv4(ttl=1, len=300), udp(sp=1, dp=2)")), [Ipv4Length]);
    assert_eq!(problems(&frame("ipv4(ttl=1, ver=5), udp(sp=1, dp=2)")), [IpHeader]);
    assert_eq!(problems(&frame("ipv4(ttl=1), udp(sp=1, dp=2, len=9)")), [UdpLength]);
    assert_eq!(problems(&frame("ipv6(hl=0), udp(sp=1, dp=2)")), [TtlZero]);
    assert_eq!(problems(&frame("ipv6(hl=1, len=9), udp(sp=1, dp=2)")), [Ipv6Length, UdpLength, UdpChecksum]);
    assert_eq!(problems(&frame("ipv6(hl=1), udp(sp=1, dp=2, csum=0)")), [UdpChecksumMissing]);
    assert_eq!(problems(&frame("ipv4(ttl=1), tcp(csum=1)")), [TcpChecksum]);
    assert_eq!(problems(&frame("ipv4(ttl=1), tcp(doff=4)")), [TcpHeader]);
    assert_eq!(problems(&frame("ipv4(ttl=1), icmp4(echorequest, csum=1)")), [IcmpChecksum]);
    assert_eq!(problems(&frame("ipv6(hl=1), icmp6(echorequest, csum=1)")), [Icmpv6Checksum]);
    assert_eq!(problems(&frame("ipv4(ttl=1), gre(csum=1), ipv4(ttl=1), udp(sp=1, dp=2)")), [GreChecksum]);
    assert_eq!(problems(&udp[..59]), [Runt, Ipv4Length]);
    assert_eq!(problems(&udp[..37]), [Runt, Truncated, Ipv4Length]);
    assert_eq!(problems(&[]), [Runt, Truncated]);
    let inner = frame(
        "ipv4(ttl=1), udp(sp=1), vxlan(), eth(sa=01:00:00:00:00:00), ipv4(ttl=1), udp(sp=1, dp=2, csum=1)",
    );
    assert_eq!(problems(&inner), [GroupSource, UdpChecksum]);
}

#[test]
fn no_checksum_and_padding_are_no_problem() {
    let audit = of(&packets("size(64): { ipv4(ttl=1), udp(sp=1, dp=2, csum=0) }", 3));
    assert_eq!((audit.problems().count(), audit.without_udp_checksum()), (0, 3));
    // A short datagram in a frame of the least size.
    let mut padded = packets("{ ipv4(ttl=1), udp(sp=1, dp=2), 7 }", 1).remove(0);
    padded.resize(60, 0);
    assert_eq!(problems(&padded), []);
    padded.push(0);
    assert_eq!(problems(&padded), [Problem::Ipv4Length]);
    // The first of two fragments has a checksum over both.
    assert_eq!(problems(&frame("ipv4(ttl=1, mf), udp(sp=1, dp=2, len=900, csum=5)")), []);
}

#[test]
fn a_port_alone_makes_no_header_that_is_cut_off() {
    let cut = |text| problems(&packets(text, 1)[0]).contains(&Problem::Truncated);
    for text in [
        "{ ipv4(ttl=9), udp(sp=4789, dp=9), fill(0, 18) }",
        "{ ipv6(hl=9), udp(sp=53, dp=9) }",
        "{ ipv4(ttl=9), tcp(sp=1024, dp=53, syn), fill(0, 6) }",
    ] {
        assert!(!cut(text), "{text}");
    }
    assert!(cut("{ ipv4(ttl=9), udp(sp=9, dp=4789), fill(0, 18) }"), "a tunnel's packets go to its port");
}

#[test]
fn problems_are_counted_from_the_first_packet_on() {
    let right = frame("ipv4(ttl=1), udp(sp=1, dp=2)");
    let wrong = frame("ipv4(ttl=0), ipv4(ttl=0), udp(sp=1, dp=2)");
    let audit = of(&[right.clone(), right.clone(), wrong.clone(), right, wrong]);
    let found: Vec<_> =
        audit.problems().map(|(problem, times)| (problem, times.packets, times.first)).collect();
    assert_eq!(found, [(Problem::TtlZero, 2, 2)]);
}

#[test]
fn sizes_and_flows_are_counted() {
    let audit =
        of(&packets("weight(3): size(64): { F } size(100): { F }".replace('F', "udp(dp=dinc(1, 4))"), 40));
    assert_eq!(
        audit.sizes().iter().map(|(&size, &count)| (size, count)).collect::<Vec<_>>(),
        [(64, 30), (100, 10)]
    );
    assert_eq!(audit.l2_bytes(), 30 * 60 + 10 * 96);
    let flows = audit.flows();
    assert_eq!((flows.distinct, flows.beyond), (4, 0));
    assert!(flows.smallest + flows.largest <= 21 && flows.smallest > 0);
    let distinct = |text: &str| of(&packets(format!("{{ {text} }}"), 64)).flows().distinct;
    assert_eq!(distinct("vlan(id=dinc(1, 8), pcp=dinc(0, 7, 1, 8)), udp()"), 8);
    assert_eq!(distinct("mpls(label=dinc(1, 8), ttl=dinc()), udp()"), 8);
    assert_eq!(
        distinct("udp(dp=4789), vxlan(vni=dinc(1, 2)), ipv4(sa=dinc(1, 4, 1, 2)), udp(sp=dinc(1, 8, 1, 8))"),
        64
    );
    assert_eq!(distinct("ipv4(ttl=drnd(), id=drnd()), udp(), drnd(9)"), 1);
    assert_eq!(distinct("icmp4(echorequest, id=dinc(1, 8), seq=drnd())"), 8);
    assert_eq!(distinct("ipv6(), icmp6(echorequest, id=dinc(1, 8), seq=drnd())"), 8);
    assert_eq!(distinct("gre(key=dinc(1, 8), seq=drnd()), udp()"), 8);
    assert_eq!(distinct("eth(sa=dinc(1, 8)), udp()"), 1);
    assert_eq!(distinct("eth(sa=dinc(1, 8)), arp()"), 8);
}

/// What the compiler computes is right in the eyes of the audit, for the whole corpus, as far as nothing wrong was asked for.
#[test]
fn the_corpus_has_right_checksums() {
    for case in corpus() {
        if !case.text.windows(4).any(|part| part == b"csum") {
            let emitter = parse(&case.text).unwrap().plan.emitter(0, 1, 1).unwrap();
            let frames: Vec<_> = (0..20).map(|index| emitter.to_vec(index)).collect();
            let wrong = of(&frames).problems().any(|(problem, _)| problem.to_string().contains("checksum"));
            assert!(!wrong || case.name.starts_with("bytes-"), "{}", case.name);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_can_be_audited(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        start in 0_usize..12,
        changes in proptest::collection::vec((0_usize..200, any::<u8>()), 0..4),
        cut in 0_usize..200,
    ) {
        let starts = [
            "0800", "86dd", "8100", "88a8", "8847", "0806", "8808",
            "080045000030000000000011", "080045000030000000000006", "0800450000300000000000fd2f", "080045000030000000000001", "86dd60000000002011",
        ];
        let prefix: Vec<u8> = (0..starts[start].len() / 2)
            .map(|at| u8::from_str_radix(&starts[start][2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let mut frame = [vec![2; 12], prefix, bytes].concat();
        let mut audit = Audit::new();
        audit.add(&frame);
        let known = packets("{ ipv4(), gre(key=1, csum), vlan(), ipv6(), udp(), vxlan(), mpls(), ipv4(), tcp() }".replace("vlan(), ", ""), 1).remove(0);
        for (at, value) in changes {
            for bytes in [&mut frame, &mut known.clone()] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                audit.add(&bytes[..cut.min(bytes.len())]);
                audit.add(bytes);
                prop_assert!(!template::explain(bytes).is_empty());
            }
        }
        prop_assert!(audit.flows().distinct <= audit.packets());
    }
}
