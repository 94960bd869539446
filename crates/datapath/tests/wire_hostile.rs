//! Wrong packets: each is refused under its reason, and nothing panics whatever the bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use datapath::wire::{
    Frame, Malformed, NoRoom, PassedBy, Ports, arp, decrement_ttl,
    ethernet::MacAddress,
    icmp::{
        self,
        error::{Problem, Sender, Silence, may_send},
    },
    neighbour::{self, Own},
    parse, protocol, udp,
};
use proptest::prelude::*;

use support::{L3, ip, kernel_frame, kernel_frames, repair_icmpv6, repair_ipv4};

mod support;

/// Changes a frame that was right.
fn changed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = kernel_frame(name);
    change(&mut frame);
    frame
}

#[test]
fn every_reason_of_the_network_headers() {
    let v4 = |at: usize, value: u8| {
        changed("v4-udp", |frame| {
            frame[L3 + at] = value;
            repair_ipv4(frame);
        })
    };
    let v6 = |at: usize, value: u8| changed("v6-udp", |frame| frame[L3 + at] = value);
    for (frame, wanted) in [
        (v4(0, 0x65), Malformed::Ipv4Version),
        (v4(0, 0x44), Malformed::Ipv4HeaderLength),
        (v4(0, 0x4f), Malformed::Ipv4TotalLength),
        (v4(3, 19), Malformed::Ipv4TotalLength),
        (v4(3, 40), Malformed::Ipv4TotalLength),
        (v4(2, 0xff), Malformed::Ipv4TotalLength),
        (v6(0, 0x45), Malformed::Ipv6Version),
        (v6(5, 20), Malformed::Ipv6PayloadLength),
        (v6(4, 0xff), Malformed::Ipv6PayloadLength),
        // The UDP header, read as one: 0x9c, 0x40 says 520 bytes.
        (v6(6, protocol::HOP_BY_HOP), Malformed::Ipv6Extension),
        (v6(6, protocol::AUTHENTICATION), Malformed::Ipv6Extension),
    ] {
        assert_eq!(parse(&frame), Err(wanted), "{frame:02x?}");
    }
    for length in 0..14 {
        assert_eq!(parse(&kernel_frame("v4-udp")[..length]), Err(Malformed::EthernetShort));
    }
    for length in 14..34 {
        assert_eq!(parse(&kernel_frame("v4-udp")[..length]), Err(Malformed::Ipv4Short));
    }
    for length in 34..53 {
        assert_eq!(parse(&kernel_frame("v4-udp")[..length]), Err(Malformed::Ipv4TotalLength));
    }
    for length in 14..54 {
        assert_eq!(parse(&kernel_frame("v6-udp")[..length]), Err(Malformed::Ipv6Short));
    }
    for length in 54..73 {
        assert_eq!(parse(&kernel_frame("v6-udp")[..length]), Err(Malformed::Ipv6PayloadLength));
    }
}

#[test]
fn each_bit_of_an_ipv4_header_is_under_its_checksum() {
    for bit in 0..160 {
        let frame = changed("v4-udp", |frame| frame[L3 + bit / 8] ^= 1 << (bit % 8));
        let refused = parse(&frame).unwrap_err();
        // The version and the lengths are looked at first.
        let wanted = if bit < 32 {
            &[
                Malformed::Ipv4Version,
                Malformed::Ipv4HeaderLength,
                Malformed::Ipv4TotalLength,
                Malformed::Ipv4Checksum,
            ][..]
        } else {
            &[Malformed::Ipv4Checksum][..]
        };
        assert!(wanted.contains(&refused), "bit {bit}: {refused}");
    }
}

#[test]
fn every_reason_of_udp() {
    for name in ["v4-udp", "v6-udp"] {
        let read = |frame: &[u8], verify| udp::read(frame, &ip(frame), verify).map(|d| d.payload.len());
        let l4 = ip(&kernel_frame(name)).l4_offset();
        for at in 0..8 + 11 {
            let frame = changed(name, |frame| frame[l4 + at] ^= 0x10);
            let wanted = if at == 4 || at == 5 { Malformed::UdpLength } else { Malformed::UdpChecksum };
            assert_eq!(read(&frame, udp::Verify::Checksum), Err(wanted), "{name} {at}");
        }
        let frame = changed(name, |frame| frame[l4 + 8] ^= 1);
        assert_eq!(read(&frame, udp::Verify::Nothing), Ok(11));
        let frame = changed(name, |frame| frame[l4 + 5] = 7);
        assert_eq!(read(&frame, udp::Verify::Nothing), Err(Malformed::UdpLength));
        let without = changed(name, |frame| frame[l4 + 6..l4 + 8].fill(0));
        let wanted = if name == "v4-udp" { Ok(11) } else { Err(Malformed::UdpChecksum) };
        assert_eq!(read(&without, udp::Verify::Checksum), wanted, "only IPv4 may do without");
    }
    let short = changed("v4-udp", |frame| {
        frame[L3 + 3] = 27;
        repair_ipv4(frame);
    });
    assert_eq!(udp::read(&short, &ip(&short), udp::Verify::Nothing), Err(Malformed::UdpShort));
}

#[test]
fn every_reason_of_icmp() {
    for name in ["v4-echo-request", "v6-echo-request"] {
        let l4 = ip(&kernel_frame(name)).l4_offset();
        for at in l4..kernel_frame(name).len() {
            let mut frame = changed(name, |frame| frame[at] ^= 4);
            let packet = ip(&frame);
            assert_eq!(icmp::read(&frame, &packet), Err(Malformed::IcmpChecksum));
            assert_eq!(icmp::answer_echo(&mut frame, &packet), Err(Malformed::IcmpChecksum));
        }
    }
    let short = changed("v4-echo-request", |frame| {
        frame[L3 + 3] = 27;
        repair_ipv4(frame);
    });
    assert_eq!(icmp::read(&short, &ip(&short)), Err(Malformed::IcmpShort));
}

#[test]
fn every_reason_of_neighbour_discovery() {
    let message = L3 + 40;
    let refusal = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let frame = changed(name, |frame| {
            change(frame);
            let length = (frame.len() - message) as u8;
            frame[L3 + 5] = length;
            repair_icmpv6(frame);
        });
        neighbour::read(&frame, &ip(&frame)).unwrap_err()
    };
    for name in ["v6-solicitation", "v6-advertisement"] {
        assert_eq!(refusal(name, &|f| f[L3 + 7] = 254), Malformed::NeighbourHopLimit);
        assert_eq!(refusal(name, &|f| f[message + 1] = 1), Malformed::NeighbourCode);
        assert_eq!(refusal(name, &|f| f[message + 8] = 0xff), Malformed::NeighbourTarget);
        assert_eq!(refusal(name, &|f| f[message + 25] = 0), Malformed::NeighbourOption);
        assert_eq!(refusal(name, &|f| f[message + 25] = 2), Malformed::NeighbourOption);
        assert_eq!(refusal(name, &|f| f.truncate(message + 31)), Malformed::NeighbourOption);
        assert_eq!(refusal(name, &|f| f.truncate(message + 25)), Malformed::NeighbourOption);
        assert_eq!(refusal(name, &|f| f.truncate(message + 23)), Malformed::IcmpShort);
    }
    let unspecified = |f: &mut Vec<u8>| f[L3 + 8..L3 + 24].fill(0);
    assert_eq!(refusal("v6-solicitation", &unspecified), Malformed::NeighbourUse, "with a link address");
    let to_one = |f: &mut Vec<u8>| {
        unspecified(f);
        f.truncate(message + 24);
        f[L3 + 24] = 0x20;
    };
    assert_eq!(refusal("v6-solicitation", &to_one), Malformed::NeighbourUse, "not to the group");
    let to_all = |f: &mut Vec<u8>| f[L3 + 24] = 0xff;
    assert_eq!(refusal("v6-advertisement", &to_all), Malformed::NeighbourUse, "solicited, and to a group");
}

/// Duplicate address detection: asked from nowhere, answered to everyone.
#[test]
fn who_has_no_address_yet_is_answered_too() {
    let message = L3 + 40;
    let asked = changed("v6-solicitation", |frame| {
        frame[L3 + 8..L3 + 24].fill(0);
        frame.truncate(message + 24);
        frame[L3 + 5] = 24;
        repair_icmpv6(frame);
    });
    let packet = ip(&asked);
    let Ok(Some(neighbour::Neighbour::Solicitation { target, source_link: None })) =
        neighbour::read(&asked, &packet)
    else {
        panic!("valid by RFC 4861 section 7.1.1")
    };
    let own = Own { link: MacAddress([2, 0, 0, 0, 0, 1]), address: target };
    let mut frame = [0; neighbour::FRAME_BYTES];
    neighbour::write_advertisement(&mut frame, own, &packet, None, true).unwrap();
    let answer = ip(&frame);
    assert_eq!(answer.addresses.destination().to_string(), "ff02::1");
    assert_eq!(answer.link_destination.to_string(), "33:33:00:00:00:01");
    let read = neighbour::read(&frame, &answer).unwrap().unwrap();
    assert!(matches!(read, neighbour::Neighbour::Advertisement { solicited: false, .. }));
}

#[test]
fn what_is_not_looked_into() {
    for (ether_type, wanted) in [
        (0x8100u16, PassedBy::Vlan),
        (0x88a8, PassedBy::Vlan),
        (0x05ff, PassedBy::Length),
        (0x0600, PassedBy::EtherType),
        (0x88cc, PassedBy::EtherType),
    ] {
        let frame = changed("v4-udp", |f| f[12..14].copy_from_slice(&ether_type.to_be_bytes()));
        assert_eq!(parse(&frame), Ok(Frame::PassedBy(wanted)));
    }
}

#[test]
fn padding_is_not_part_of_the_packet() {
    let frame = changed("v4-udp", |frame| frame.resize(60, 0xee));
    let packet = ip(&frame);
    assert_eq!((packet.l3_bytes, packet.l4(&frame).len()), (39, 19));
    let mut error = [0; 1500];
    let bytes = icmp::error::write(&mut error, Problem::NoRoute, &Sender::default(), &frame, &packet);
    assert_eq!(bytes, Ok(20 + 8 + 39), "nor is it quoted");
}

#[test]
fn fragments_have_ports_only_once_and_no_flow() {
    let fragment = |field: u16| {
        changed("v4-udp", |frame| {
            frame[L3 + 6..L3 + 8].copy_from_slice(&field.to_be_bytes());
            repair_ipv4(frame);
        })
    };
    let first = ip(&fragment(0x2000));
    let ports = Some(Ports { source: 40000, destination: 9 });
    assert_eq!((first.ports, first.flow_ports(), first.is_later_fragment()), (ports, None, false));
    let last = ip(&fragment(0x0003));
    assert_eq!((last.ports, last.flow_ports(), last.is_later_fragment()), (None, None, true));
    assert_eq!(last.fragment.map(|f| (f.offset_bytes, f.more)), Some((24, false)));
    assert_eq!(ip(&fragment(0x4000)).fragment, None);
}

#[test]
fn no_error_about_what_rfc_1812_and_rfc_4443_name() {
    let asked = |problem, frame: &[u8]| may_send(problem, frame, &ip(frame));
    let v4 = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let frame = changed(name, |frame| {
            change(frame);
            repair_ipv4(frame);
        });
        asked(Problem::NoRoute, &frame)
    };
    let source = |a: u8| move |f: &mut Vec<u8>| f[L3 + 12] = a;
    assert_eq!(v4("v4-exceeded-short", &|_| ()), Err(Silence::AboutError));
    assert_eq!(v4("v4-echo-request", &|_| ()), Ok(()));
    assert_eq!(v4("v4-echo-request", &|f| f[34] = 200), Err(Silence::AboutError), "an unknown type");
    assert_eq!(v4("v4-echo-request", &|f| f[L3 + 3] = 20), Err(Silence::AboutError), "no type");
    assert_eq!(v4("v4-udp", &|f| f[L3 + 7] = 1), Err(Silence::LaterFragment));
    assert_eq!(v4("v4-udp", &|f| f[L3 + 6] = 0x20), Ok(()), "the first fragment");
    assert_eq!(v4("v4-udp", &|f| f[L3 + 16] = 224), Err(Silence::ToGroup));
    assert_eq!(v4("v4-udp", &|f| f[L3 + 16..L3 + 20].fill(255)), Err(Silence::ToGroup));
    assert_eq!(v4("v4-udp", &|f| f[..6].fill(255)), Err(Silence::LinkGroup));
    assert_eq!(v4("v4-udp", &|f| f[0] |= 1), Err(Silence::LinkGroup));
    for a in [0, 127, 224, 240, 255] {
        assert_eq!(v4("v4-udp", &source(a)), Err(Silence::Source), "{a}");
    }

    let v6 = |problem, name: &str, change: &dyn Fn(&mut Vec<u8>)| asked(problem, &changed(name, change));
    let (plain, big) = (Problem::HopLimit, Problem::TooBig { mtu_bytes: 1400 });
    assert_eq!(v6(plain, "v6-exceeded-short", &|_| ()), Err(Silence::AboutError));
    assert_eq!(v6(plain, "v6-echo-request", &|_| ()), Ok(()));
    assert_eq!(v6(plain, "v6-echo-request", &|f| f[54] = 127), Err(Silence::AboutError));
    assert_eq!(v6(plain, "v6-echo-request", &|f| f[54] = 137), Err(Silence::AboutError), "a redirect");
    assert_eq!(v6(plain, "v6-udp", &|f| f[L3 + 24] = 0xff), Err(Silence::ToGroup));
    assert_eq!(v6(big, "v6-udp", &|f| f[L3 + 24] = 0xff), Ok(()), "section 2.4 (e.3)");
    assert_eq!(v6(plain, "v6-udp", &|f| f[0] |= 1), Err(Silence::LinkGroup));
    assert_eq!(v6(big, "v6-udp", &|f| f[0] |= 1), Ok(()));
    assert_eq!(v6(big, "v6-udp", &|f| f[L3 + 8] = 0xff), Err(Silence::Source));
    assert_eq!(v6(plain, "v6-udp", &|f| f[L3 + 8..L3 + 24].fill(0)), Err(Silence::Source));
    for (next, wanted) in [(protocol::ICMPV6, Err(Silence::LaterFragment)), (protocol::UDP, Ok(()))] {
        let later = |f: &mut Vec<u8>| {
            f[L3 + 6] = protocol::FRAGMENT;
            f[54..58].copy_from_slice(&[next, 0, 1, 0]);
        };
        assert_eq!(v6(plain, "v6-udp", &later), wanted);
    }
}

#[test]
fn the_size_of_the_next_link_is_told() {
    for (name, mtu_bytes, at, wanted) in [
        ("v4-udp", 1400u32, 20 + 4, [0, 0, 5, 0x78]),
        ("v4-udp", 100_000, 20 + 4, [0, 0, 0xff, 0xff]),
        ("v6-udp", 100_000, 40 + 4, [0, 1, 0x86, 0xa0]),
    ] {
        let frame = kernel_frame(name);
        let mut out = [0; 1280];
        let problem = Problem::TooBig { mtu_bytes };
        icmp::error::write(&mut out, problem, &Sender::default(), &frame, &ip(&frame)).unwrap();
        assert_eq!(out[at..at + 4], wanted);
    }
    let frame = kernel_frame("v6-udp-long");
    let short = icmp::error::write(&mut [0; 1279], Problem::NoRoute, &Sender::default(), &frame, &ip(&frame));
    assert_eq!(short, Err(NoRoom { what: "an ICMP error", needed_bytes: 1280, room_bytes: 1279 }));
}

/// All that a stage may call, with a packet that parsed. `frame` may be another than the one it was parsed from.
fn everything(frame: &mut [u8], packet: &datapath::wire::Parsed) {
    let mut out = [0; 1400];
    let problems = [
        Problem::HopLimit,
        Problem::NoRoute,
        Problem::NoNeighbour,
        Problem::Prohibited,
        Problem::NoPort,
        Problem::TooBig { mtu_bytes: 1280 },
    ];
    for problem in problems {
        let _ = may_send(problem, frame, packet);
        let bytes =
            icmp::error::write(&mut out[L3..], problem, &Sender { v4: 1, v6: 2 }, frame, packet).unwrap();
        out[12..14].copy_from_slice(&frame[12..14]);
        let Ok(Frame::Ip(error)) = parse(&out[..L3 + bytes]) else { panic!("our own error is wrong") };
        assert!(matches!(icmp::read(&out[..L3 + bytes], &error), Ok(Some(_))));
    }
    let _ = udp::read(frame, packet, udp::Verify::Checksum).map(|d| d.payload.len());
    let _ = neighbour::read(frame, packet);
    let own = Own { link: MacAddress::ZERO, address: 7 };
    neighbour::write_advertisement(&mut out, own, packet, None, false).unwrap();
    let _ = icmp::answer_echo(frame, packet);
    let _ = decrement_ttl(frame, packet);
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        kind in proptest::sample::select(vec![[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]]),
        first in proptest::sample::select(vec![0x45, 0x46, 0x4f, 0x60, 0x00]),
        repaired in any::<bool>(),
    ) {
        if frame.len() > 34 {
            frame[12..14].copy_from_slice(&kind);
            frame[L3] = first;
            let length = (frame.len() - L3) as u16;
            frame[L3 + 2..L3 + 4].copy_from_slice(&length.to_be_bytes());
            if repaired && first & 0xf0 == 0x40 {
                repair_ipv4(&mut frame);
            }
        }
        if let Ok(Frame::Ip(packet)) = parse(&frame) {
            everything(&mut frame, &packet);
        }
        let _ = arp::Arp::read(&frame);
    }

    /// What is accepted is consistent: all offsets lie in the frame.
    #[test]
    fn mutated_packets_do_not_panic(
        which in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
        repaired in any::<bool>(),
    ) {
        let frames = kernel_frames();
        let mut frame = which.get(&frames).1.clone();
        for (at, value) in changes {
            // Headers are hit more often than payload.
            let end = frame.len().min(110);
            frame[at.index(end)] = value;
        }
        if let Some(cut) = cut {
            frame.truncate(cut.index(frame.len()));
        }
        if repaired && frame.len() > 34 && frame[12..14] == [8, 0] {
            repair_ipv4(&mut frame);
        }
        if let Ok(Frame::Ip(packet)) = parse(&frame) {
            prop_assert!(packet.l3_offset + packet.l3_bytes <= frame.len());
            prop_assert!(packet.header_bytes <= packet.l3_bytes);
            prop_assert_eq!(packet.l4(&frame).len(), packet.l3_bytes - packet.header_bytes);
            everything(&mut frame, &packet);
        }
    }

    /// A result of `parse` used with another frame is a mistake, but no panic.
    #[test]
    fn the_wrong_frame_does_not_panic(which in any::<proptest::sample::Index>(), length in 14usize..120) {
        let frames = kernel_frames();
        let (_, frame) = which.get(&frames);
        if let Ok(Frame::Ip(packet)) = parse(frame) {
            let mut other = frame[..length.min(frame.len())].to_vec();
            everything(&mut other, &packet);
        }
    }

    #[test]
    fn a_forwarded_packet_has_a_right_checksum(mut header in any::<[u8; 40]>(), ttl in 2u8..) {
        let mut frame = kernel_frame("v4-udp");
        header[0] = 0x45;
        header[2..4].copy_from_slice(&[0, 39]);
        header[8] = ttl;
        frame[L3..L3 + 20].copy_from_slice(&header[..20]);
        repair_ipv4(&mut frame);
        let packet = ip(&frame);
        prop_assert_eq!(decrement_ttl(&mut frame, &packet), Some(ttl - 1));
        prop_assert_eq!(ip(&frame).ttl, ttl - 1);
    }
}
