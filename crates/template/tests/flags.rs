//! The programs that flags stand for: their sizes, shares, flows and checksums are what was asked for.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::parse;
use template::{Audit, FlagError, Flags, Mac, Protocol, Sizes, VlanTag, WarningKind};

/// The first packets of the program; it must give no warning, but for what trafgen does to ICMPv6.
fn frames(flags: &Flags, count: u64) -> Vec<Vec<u8>> {
    let text = flags.program().unwrap();
    let compiled = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let warning = compiled.warnings.iter().find(|warning| warning.kind != WarningKind::StaleChecksum);
    assert!(warning.is_none(), "{warning:?}\n{text}");
    let emitter = compiled.plan.emitter(0, 1, 1).unwrap();
    (0..count).map(|index| emitter.to_vec(index)).collect()
}

fn audit(flags: &Flags, count: u64) -> Audit {
    let mut audit = Audit::new();
    frames(flags, count).iter().for_each(|frame| audit.add(frame));
    let problem = audit.problems().next();
    assert!(problem.is_none(), "{:?} in {}", problem, flags.program().unwrap());
    audit
}

fn sizes(text: &str) -> Option<Sizes> {
    Some(text.parse().unwrap())
}

#[test]
fn sizes_have_exact_shares() {
    let shares =
        |text: &str, count| audit(&Flags { sizes: sizes(text), ..Flags::default() }, count).sizes().clone();
    assert_eq!(shares("64", 10), BTreeMap::from([(64, 10)]));
    assert_eq!(shares("simple", 1200), BTreeMap::from([(64, 700), (594, 400), (1518, 100)]));
    assert_eq!(shares("tolly", 100), BTreeMap::from([(64, 55), (78, 5), (576, 17), (1518, 23)]));
    let small = BTreeMap::from([(64, 500), (128, 1), (256, 1), (512, 500)]);
    assert_eq!(shares("64:500,128:1,256:1,512:500", 1002), small);
    let each: BTreeMap<usize, u64> = (64..=1518).map(|size| (size, 2)).collect();
    assert_eq!(shares("64-1518", 2 * 1455), each);
}

#[test]
fn flows_are_exactly_as_many() {
    for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
        for flows in [1, 2, 8, 1000] {
            let flags = Flags { protocol, flows: Some(flows), ..Flags::default() };
            let found = audit(&flags, 3 * flows).flows();
            assert_eq!((found.distinct, found.smallest, found.largest), (flows, 3, 3), "{protocol:?}");
        }
    }
    for mix in ["simple", "64-67"] {
        let flags = Flags { flows: Some(8), sizes: sizes(mix), ..Flags::default() };
        let found = audit(&flags, 96).flows();
        assert_eq!(found.distinct, 8, "{mix}");
        assert!(found.smallest >= 10, "{mix} {found:?}");
    }
}

/// Three ranges with 24 combinations: all of them, or the first so many, each equally often.
#[test]
fn ranges_are_combined() {
    let all = Flags {
        source: Some("10.0.0.1-10.0.0.3".parse().unwrap()),
        destination: Some("10.1.0.0/31".parse().unwrap()),
        destination_port: Some("80-83".parse().unwrap()),
        ..Flags::default()
    };
    assert_eq!(audit(&all, 48).flows().distinct, 24);
    for flows in 1..=24 {
        for flow_length in [1, 3] {
            let flags = Flags { flows: Some(flows), flow_length, ..all.clone() };
            let found = audit(&flags, 2 * flows * flow_length).flows();
            assert_eq!((found.distinct, found.smallest), (flows, 2 * flow_length), "{flows}");
            assert_eq!(found.largest, found.smallest);
        }
    }
    let order: Vec<(u8, u8)> = frames(&all, 8).iter().map(|frame| (frame[29], frame[33])).collect();
    assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1), (1, 0), (2, 0)]);
    let error = Flags { flows: Some(25), ..all }.program().unwrap_err();
    assert_eq!(error, FlagError::TooFew { flows: 25, combinations: 24 });
    assert!(error.to_string().contains("24 combinations"), "{error}");
}

#[test]
fn a_flow_lasts_for_its_length() {
    let flags = Flags { flows: Some(3), flow_length: 4, ..Flags::default() };
    let ports: Vec<u8> = frames(&flags, 14).iter().map(|frame| frame[37]).collect();
    assert_eq!(ports, [0x88, 0x88, 0x88, 0x88, 0x89, 0x89, 0x89, 0x89, 0x8a, 0x8a, 0x8a, 0x8a, 0x88, 0x88]);
}

#[test]
fn ipv6_is_a_range_of_numbers() {
    for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
        let flags = Flags {
            protocol,
            source: Some("fd00::fffe-fd00::1:1".parse().unwrap()),
            flows: Some(4),
            tos: 8,
            ..Flags::default()
        };
        let all = frames(&flags, 4);
        let lows: Vec<[u8; 3]> = all.iter().map(|frame| [frame[35], frame[36], frame[37]]).collect();
        assert_eq!(lows, [[0, 0xff, 0xfe], [0, 0xff, 0xff], [1, 0, 0], [1, 0, 1]]);
        assert_eq!(audit(&flags, 8).flows().distinct, 4);
    }
    // The least frame that holds the headers, if none is asked for.
    let flags = Flags { destination: Some("fd00::/64".parse().unwrap()), ..Flags::default() };
    assert_eq!(frames(&flags, 1)[0].len(), 62);
    let plan = parse(flags.program().unwrap()).unwrap().plan;
    let mut asm = ebpf::Assembler::new();
    let scratch = [ebpf::Reg::R3, ebpf::Reg::R4, ebpf::Reg::R5, ebpf::Reg::R0, ebpf::Reg::R7];
    let narrow = Flags { destination: Some("fd00::1-fd00::ffff".parse().unwrap()), ..Flags::default() };
    let emitter = parse(narrow.program().unwrap()).unwrap().plan.emitter(0, 1, 1).unwrap();
    assert!(emitter.lower(&mut asm, ebpf::Reg::R1, ebpf::Reg::R2, scratch).is_ok());
    assert_eq!(plan.period(0), None);
    let all = Flags { source: Some("::/0".parse().unwrap()), ..Flags::default() };
    assert!(all.program().unwrap().contains("sa=dinc(::, ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff)"));
}

#[test]
fn everything_at_once() {
    let flags = Flags {
        protocol: Protocol::Tcp,
        sizes: sizes("100:7,594:4,1518:1"),
        flows: Some(6),
        flow_length: 2,
        source: Some("10.0.0.0/24".parse().unwrap()),
        source_mac: Some(Mac([2, 0, 0, 0, 0, 9])),
        vlans: vec![VlanTag { id: 100, pcp: 0 }, VlanTag { id: 7, pcp: 5 }],
        mpls: vec![16, 17],
        ttl: 9,
        tos: 16,
        payload: b"say \"x\"".to_vec(),
        ..Flags::default()
    };
    let all = frames(&flags, 120);
    let text = template::explain(&all[0]);
    for part in [
        "tpid       0x88a8",
        "id         100",
        "id         7",
        "pcp        5",
        "label      17",
        "ttl        9",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(all.iter().all(|frame| frame.windows(7).any(|part| part == b"say \"x\"")));
    assert_eq!(audit(&flags, 120).flows().distinct, 6);
}

#[test]
fn udp_may_have_no_checksum() {
    let flags = Flags { checksum: false, flows: Some(4), ..Flags::default() };
    assert_eq!(audit(&flags, 8).without_udp_checksum(), 8);
    let v6 = Some("::1".parse().unwrap());
    for refused in [
        Flags { source: v6, ..flags.clone() },
        Flags { protocol: Protocol::Tcp, ..flags.clone() },
        Flags { protocol: Protocol::Icmp, ..flags },
    ] {
        assert!(matches!(refused.program(), Err(FlagError::Checksum(_))));
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let base = Flags::default;
    let v4 = Some("10.0.0.1".parse().unwrap());
    let v6 = Some("::/0".parse().unwrap());
    let cases = [
        (Flags { source: v4, destination: v6, ..base() }, FlagError::Versions),
        (Flags { flows: Some(0), ..base() }, FlagError::Zero),
        (Flags { flow_length: 0, ..base() }, FlagError::Zero),
        (Flags { source: v6, sizes: sizes("simple"), ..base() }, FlagError::Size { size: 64, least: 66 }),
        (
            Flags { payload: vec![1; 100], sizes: sizes("64-99"), ..base() },
            FlagError::Size { size: 64, least: 146 },
        ),
        (Flags { source: v6, source_port: Some("1-2".parse().unwrap()), ..base() }, FlagError::TooLong),
        (
            Flags { protocol: Protocol::Icmp, source_port: Some("1".parse().unwrap()), ..base() },
            FlagError::Ports,
        ),
        (Flags { vlans: vec![VlanTag { id: 1, pcp: 0 }; 3], ..base() }, FlagError::Vlans(3)),
        (Flags { vlans: vec![VlanTag { id: 4096, pcp: 0 }], ..base() }, FlagError::Vlan { id: 4096, pcp: 0 }),
        (Flags { mpls: vec![1; 11], ..base() }, FlagError::Labels(11)),
        (Flags { mpls: vec![1 << 20], ..base() }, FlagError::Label(1 << 20)),
        (Flags { sizes: sizes("64:65536,65:1"), ..base() }, FlagError::Weights(65_537)),
    ];
    for (flags, wanted) in cases {
        assert_eq!(flags.program().unwrap_err(), wanted);
    }
    let error = Flags { flows: Some(60_537), ..base() }.program().unwrap_err();
    assert!(error.to_string().contains("destination ports 5000 to 65535 are 60536"), "{error}");
    let most = Flags { flows: Some(60_536), ..base() };
    assert_eq!(audit(&most, 60_536).flows().distinct, 60_536);
    let tagged = Flags { mpls: vec![16; 10], vlans: vec![VlanTag { id: 1, pcp: 0 }; 2], ..base() };
    assert_eq!(frames(&tagged, 1)[0].len(), 14 + 12 * 4 + 28);
}
