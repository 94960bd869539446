//! What the kernel sent is understood, and what we send is what the kernel sent.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use datapath::wire::{
    Addresses, Frame, Ports, arp, decrement_ttl,
    ethernet::{self, MacAddress},
    icmp::{
        self,
        error::{Problem, Sender, may_send},
    },
    ipv6,
    neighbour::{self, Neighbour, Own},
    parse, protocol, udp,
};

use support::{L3, ip, kernel_frame, kernel_frames};

mod support;

const HOST: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const HOST_6: u128 = 0x2001_0db8_0001_0000_0000_0000_0000_0002;
const ROUTER_6: u128 = 0x2001_0db8_0001_0000_0000_0000_0000_0001;
const FAR_6: u128 = 0x2001_0db8_0002_0000_0000_0000_0000_0002;
const NEAR: Sender = Sender { v4: 0x0a00_0101, v6: ROUTER_6 };
const FAR: Sender = Sender { v4: 0x0a00_0202, v6: FAR_6 };

#[test]
fn every_frame_is_understood() {
    for (name, frame) in kernel_frames() {
        let parsed = parse(&frame);
        assert_eq!(name.starts_with("arp"), matches!(parsed, Ok(Frame::Arp(_))), "{name}: {parsed:?}");
        assert_eq!(name.starts_with('v'), matches!(parsed, Ok(Frame::Ip(_))), "{name}: {parsed:?}");
    }
}

#[test]
fn addresses_ports_and_lengths() {
    let packet = ip(&kernel_frame("v4-udp-long"));
    assert_eq!(packet.addresses, Addresses::V4 { source: 0x0a00_0102, destination: 0x0a00_0202 });
    assert_eq!((packet.ttl, packet.protocol, packet.l3_bytes), (1, protocol::UDP, 1428));
    assert_eq!((packet.l4_offset(), packet.fragment), (34, None));
    assert_eq!(packet.flow_ports(), Some(Ports { source: 40000, destination: 9 }));
    let packet = ip(&kernel_frame("v6-tcp-syn"));
    assert_eq!(packet.addresses, Addresses::V6 { source: HOST_6, destination: FAR_6 });
    assert_eq!((packet.ttl, packet.protocol, packet.l3_bytes), (64, protocol::TCP, 80));
    assert_eq!(packet.ports, Some(Ports { source: 0xb55c, destination: 7 }));
    assert_eq!((packet.link_source, packet.link_destination), (HOST, ROUTER));
    assert_eq!(packet.addresses.source().to_string(), "2001:db8:1::2");
}

#[test]
fn the_hop_by_hop_header_of_a_listener_report() {
    let frame = kernel_frame("v6-listener-report");
    let packet = ip(&frame);
    assert_eq!((packet.header_bytes, packet.protocol, packet.ports), (48, protocol::ICMPV6, None));
    assert!(packet.has_options());
    assert_eq!(icmp::read(&frame, &packet).unwrap().map(|m| m.kind), Some(143));
}

#[test]
fn datagrams_are_read_and_written_as_the_kernel_does() {
    for name in ["v4-udp-short", "v4-udp-long", "v4-udp", "v6-udp-short", "v6-udp-long", "v6-udp"] {
        let frame = kernel_frame(name);
        let packet = ip(&frame);
        let datagram = udp::read(&frame, &packet, udp::Verify::Checksum).unwrap();
        assert!(datagram.payload.iter().enumerate().all(|(i, byte)| *byte == i as u8), "{name}");
        let mut copy = packet.l4(&frame).to_vec();
        copy[..8].fill(0xee);
        udp::write_header(&mut copy, datagram.ports, &packet.addresses).unwrap();
        assert_eq!(copy, packet.l4(&frame), "{name}");
    }
}

#[test]
fn arp_as_the_kernel_has_it() {
    let frame = kernel_frame("arp-request");
    let mut written = [0; arp::FRAME_BYTES];
    let request = arp::Arp::request(HOST, 0x0a00_0102, 0x0a00_0101);
    request.write_frame(&mut written).unwrap();
    assert_eq!(frame, written);
    request.answered_by(ROUTER).write_frame(&mut written).unwrap();
    assert_eq!(kernel_frame("arp-reply"), written);
}

#[test]
fn solicitation_and_advertisement_as_the_kernel_has_them() {
    let frame = kernel_frame("v6-solicitation");
    let packet = ip(&frame);
    let neighbour = neighbour::read(&frame, &packet).unwrap();
    assert_eq!(neighbour, Some(Neighbour::Solicitation { target: ROUTER_6, source_link: Some(HOST) }));
    let mut written = [0; neighbour::FRAME_BYTES];
    let host = Own { link: HOST, address: HOST_6 };
    neighbour::write_solicitation(&mut written, host, ROUTER_6).unwrap();
    assert_eq!(frame, written);

    let frame = kernel_frame("v6-advertisement");
    let router = Own { link: ROUTER, address: ROUTER_6 };
    neighbour::write_advertisement(&mut written, router, &packet, Some(HOST), true).unwrap();
    // The kernel answers what was sent to a group with the override flag, and this test's router is one.
    assert_eq!(frame, written);
    assert_eq!(
        neighbour::read(&frame, &ip(&frame)).unwrap(),
        Some(Neighbour::Advertisement {
            target: ROUTER_6,
            target_link: Some(ROUTER),
            router: true,
            solicited: true,
            replaces: true
        })
    );
}

#[test]
fn other_neighbour_messages() {
    let frame = kernel_frame("v6-solicitation-unicast");
    let solicitation = Neighbour::Solicitation { target: HOST_6, source_link: Some(ROUTER) };
    assert_eq!(neighbour::read(&frame, &ip(&frame)).unwrap(), Some(solicitation));
    let frame = kernel_frame("v6-advertisement-plain");
    let advertisement = Neighbour::Advertisement {
        target: HOST_6,
        target_link: None,
        router: false,
        solicited: true,
        replaces: false,
    };
    assert_eq!(neighbour::read(&frame, &ip(&frame)).unwrap(), Some(advertisement));
    for name in ["v6-router-solicitation", "v6-echo-request", "v6-udp", "v4-echo-request"] {
        let frame = kernel_frame(name);
        assert_eq!(neighbour::read(&frame, &ip(&frame)), Ok(None), "{name}");
    }
}

/// Our error about a packet is the kernel's, but for what each sender numbers in its own way.
#[test]
fn errors_are_those_of_the_kernel() {
    for (about, error, problem, sender) in [
        ("v4-udp-short", "v4-exceeded-short", Problem::HopLimit, NEAR),
        ("v4-udp-long", "v4-exceeded-long", Problem::HopLimit, NEAR),
        ("v4-udp", "v4-no-port", Problem::NoPort, FAR),
        ("v6-udp-short", "v6-exceeded-short", Problem::HopLimit, NEAR),
        ("v6-udp-long", "v6-exceeded-long", Problem::HopLimit, NEAR),
        ("v6-udp", "v6-no-port", Problem::NoPort, FAR),
    ] {
        let mut frame = kernel_frame(about);
        let packet = ip(&frame);
        if problem == Problem::NoPort {
            decrement_ttl(&mut frame, &packet).unwrap();
        }
        assert_eq!(may_send(problem, &frame, &packet), Ok(()), "{about}");
        let mut written = vec![0; 1500];
        let bytes = icmp::error::write(&mut written[L3..], problem, &sender, &frame, &packet).unwrap();
        written.truncate(L3 + bytes);
        let mut kernel = kernel_frame(error);
        written[..L3].copy_from_slice(&kernel[..L3]);
        if problem == Problem::NoPort {
            let packet = ip(&written);
            assert_eq!(decrement_ttl(&mut written, &packet), Some(63));
        }
        unify(&mut written);
        unify(&mut kernel);
        assert_eq!(written, kernel, "{error}");
    }
}

#[test]
fn echo_is_answered_as_by_the_kernel() {
    for (request, reply) in [("v4-echo-request", "v4-echo-reply"), ("v6-echo-request", "v6-echo-reply")] {
        let mut frame = kernel_frame(request);
        let packet = ip(&frame);
        assert_eq!(icmp::answer_echo(&mut frame, &packet), Ok(true));
        let answered = ip(&frame);
        assert!(icmp::read(&frame, &answered).unwrap().is_some(), "the checksum is right");
        assert_eq!(icmp::answer_echo(&mut frame, &answered), Ok(false), "an answer is not answered");
        let mut kernel = kernel_frame(reply);
        unify(&mut frame);
        unify(&mut kernel);
        assert_eq!(frame, kernel, "{reply}");
    }
}

/// Identification and don't-fragment of IPv4, the flow label of IPv6.
fn unify(frame: &mut [u8]) {
    match ip(frame).addresses {
        Addresses::V4 { .. } => {
            frame[L3 + 4..L3 + 8].fill(0);
            support::repair_ipv4(frame);
        }
        Addresses::V6 { .. } => frame[L3 + 1..L3 + 4].fill(0),
    }
}

#[test]
fn a_router_changes_only_ttl_checksum_and_link_addresses() {
    for name in ["v4-tcp-syn", "v6-tcp-syn"] {
        let original = kernel_frame(name);
        let mut frame = original.clone();
        let packet = ip(&frame);
        assert_eq!(decrement_ttl(&mut frame, &packet), Some(63));
        assert!(ethernet::readdress(&mut frame, HOST, ROUTER));
        let forwarded = ip(&frame);
        assert_eq!((forwarded.ttl, forwarded.link_destination), (63, HOST));
        let changed: Vec<usize> = (L3..frame.len()).filter(|i| frame[*i] != original[*i]).collect();
        let allowed: &[usize] =
            if name.starts_with("v4") { &[22, 24, 25] } else { &[L3 + ipv6::fields::HOP_LIMIT] };
        assert!(!changed.is_empty() && changed.iter().all(|i| allowed.contains(i)), "{changed:?}");
    }
}

#[test]
fn the_last_hop_is_not_taken() {
    for name in ["v4-udp-short", "v6-udp-short"] {
        let mut frame = kernel_frame(name);
        let packet = ip(&frame);
        assert_eq!(decrement_ttl(&mut frame, &packet), None);
        assert_eq!(frame, kernel_frame(name));
    }
}
