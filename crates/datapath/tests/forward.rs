//! What the router sends: to the far host, to who asked, and about packets that go no further, byte by byte.
#![allow(clippy::unwrap_used)]

use datapath::stage::forward::{Forward, IcmpLimit, Route, Towards};
use datapath::wire::checksum::Sum;
use datapath::wire::ethernet::MacAddress;
use datapath::wire::{Malformed, arp::Arp};
use datapath::{Reason, stage::ForwardConfig};

use router::{FAR, HOST, ROUTER, ROUTER_FAR, Rig, SECOND, config, known_config};
use support::{L3, from_hex, ip, kernel_frame, repair_icmpv6, repair_ipv4};

mod router;
mod support;

fn known() -> Rig {
    Rig::new(Forward::new(&known_config()).unwrap())
}

fn asking() -> Rig {
    Rig::new(Forward::new(&config()).unwrap())
}

/// A frame that was right, changed; its IPv4 checksum is made right again.
fn changed(name: &str, changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = kernel_frame(name);
    for (at, value) in changes {
        frame[L3 + at] = *value;
    }
    if name.starts_with("v4") {
        repair_ipv4(&mut frame);
    }
    frame
}

/// The frame as it leaves the router for the far host.
fn passed_on(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&FAR.0);
    frame[6..12].copy_from_slice(&ROUTER_FAR.0);
    if frame[12..14] == [0x08, 0x00] {
        frame[L3 + 8] -= 1;
        repair_ipv4(&mut frame);
    } else {
        frame[L3 + 7] -= 1;
    }
    frame
}

#[test]
fn a_packet_leaves_with_new_link_addresses_and_one_hop_less() {
    let mut rig = known();
    let left = rig.feed(0, &kernel_frame("v4-udp"));
    // Header and checksum as the far host quoted them to the kernel's router.
    let quoted = &kernel_frame("v4-no-port")[L3 + 28..];
    let mut wanted = from_hex("020000000012 020000000011 0800");
    wanted.extend_from_slice(quoted);
    assert_eq!(left, [(1, wanted)]);

    let left = rig.feed(0, &kernel_frame("v6-udp"));
    let mut wanted = from_hex("020000000012 020000000011 86dd");
    wanted.extend_from_slice(&kernel_frame("v6-no-port")[L3 + 48..]);
    assert_eq!(left, [(1, wanted)]);
    assert_eq!(rig.ledger().transmitted, 2);
}

#[test]
fn padding_options_fragments_and_pieces_go_along() {
    let padded = [kernel_frame("v4-udp"), vec![0x77; 20]].concat();
    // Four bytes of no-operation options; later fragments have no ports.
    let mut options =
        from_hex("020000000001 020000000002 0800 46000020 0001 0000 40 11 0000 0a000102 0a000202 01010101");
    options.extend(from_hex("9c40 0009 000c 0000 01020304"));
    options[L3 + 3] = 36;
    repair_ipv4(&mut options);
    let fragment = changed("v4-udp", &[(6, 0x20), (7, 0x10)]);
    let long = changed("v4-udp-long", &[(8, 64)]);
    let long_v6 = changed("v6-udp-long", &[(7, 64)]);
    for frame in [padded, options, fragment, long, long_v6] {
        for head in [None, Some(64), Some(128)] {
            let forward = Forward::new(&known_config()).unwrap();
            let mut rig = Rig::with(|worker| worker.stage(forward), head);
            assert_eq!(rig.feed(0, &frame), [(1, passed_on(&frame))], "{head:?}");
        }
    }
}

#[test]
fn headers_that_go_on_behind_the_first_piece_are_found() {
    let forward = Forward::new(&known_config()).unwrap();
    let mut rig = Rig::with(|worker| worker.stage(forward), Some(20));
    for name in ["v4-udp", "v6-udp", "v6-tcp-syn"] {
        let frame = kernel_frame(name);
        assert_eq!(rig.feed(0, &frame), [(1, passed_on(&frame))], "{name}");
    }
}

/// Without what the kernel counts up or draws: identification and flow label.
fn comparable(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [0x08, 0x00] {
        frame[L3 + 4..L3 + 6].fill(0);
        repair_ipv4(&mut frame);
    } else {
        frame[L3 + 1] &= 0xf0;
        frame[L3 + 2..L3 + 4].fill(0);
    }
    frame
}

#[test]
fn time_exceeded_is_what_the_kernel_sends() {
    for head in [None, Some(100)] {
        for size in ["short", "long"] {
            for version in ["v4", "v6"] {
                let forward = Forward::new(&config()).unwrap();
                let mut rig = Rig::with(|worker| worker.stage(forward), head);
                let left = rig.feed(0, &kernel_frame(&format!("{version}-udp-{size}")));
                let wanted = kernel_frame(&format!("{version}-exceeded-{size}"));
                assert_eq!(left.len(), 1);
                assert_eq!(
                    (left[0].0, comparable(left[0].1.clone())),
                    (0, comparable(wanted)),
                    "{version} {size}"
                );
                assert_eq!(rig.event("sent: time exceeded"), 1);
                assert_eq!(rig.ledger().drops.total(), 0, "what was answered is no loss");
            }
        }
    }
}

/// Type, code, and the four bytes behind the checksum, of an error about the frame; its checksums and quotation are checked.
fn error_about(frame: &[u8], error: &[u8]) -> (u8, u8, [u8; 4]) {
    let packet = ip(error);
    let message = packet.l4(error);
    let is_v4 = error[12..14] == [0x08, 0x00];
    let sum = if is_v4 {
        Sum::ZERO.bytes(message)
    } else {
        Sum::ZERO.pseudo_header(&packet.addresses, 58, message.len() as u32).bytes(message)
    };
    assert_eq!(sum.finish(), 0, "checksum");
    let quoted = ip(frame).l3(frame);
    let most = if is_v4 { 576 - 28 } else { 1280 - 48 };
    assert_eq!(message[8..], quoted[..quoted.len().min(most)], "quoted as it came");
    (message[0], message[1], message[4..8].try_into().unwrap())
}

#[test]
fn each_error_has_its_type_code_and_rest() {
    let to = |name: &str, to: &str| {
        let mut frame = kernel_frame(name);
        match to.parse().unwrap() {
            std::net::IpAddr::V4(to) => frame[L3 + 16..L3 + 20].copy_from_slice(&to.octets()),
            std::net::IpAddr::V6(to) => frame[L3 + 24..L3 + 40].copy_from_slice(&to.octets()),
        }
        if name.starts_with("v4") {
            repair_ipv4(&mut frame);
        }
        frame
    };
    let mut narrow = known_config();
    narrow.ports[1].mtu_bytes = 1300;
    for (config, frame, wanted) in [
        (known_config(), to("v4-udp", "172.16.0.1"), (3, 0, [0; 4])),
        (known_config(), to("v6-udp", "2001:db8:9::1"), (1, 0, [0; 4])),
        (narrow.clone(), changed("v4-udp-long", &[(8, 9)]), (3, 4, [0, 0, 5, 20])),
        // Not fragmented either if it might be.
        (narrow.clone(), changed("v4-udp-long", &[(8, 9), (6, 0)]), (3, 4, [0, 0, 5, 20])),
        (narrow, changed("v6-udp-long", &[(7, 9)]), (2, 0, [0, 0, 5, 20])),
    ] {
        let mut rig = Rig::new(Forward::new(&config).unwrap());
        let left = rig.feed(0, &frame);
        assert_eq!(left.len(), 1, "{wanted:?}");
        let (port, error) = &left[0];
        assert_eq!((*port, &error[..6], &error[6..12]), (0, &HOST.0[..], &ROUTER.0[..]));
        assert_eq!(error_about(&frame, error), wanted);
        assert_eq!(ip(error).addresses.destination(), ip(&frame).addresses.source());
        let from = ip(error).addresses.source().to_string();
        assert!(["10.0.1.1", "2001:db8:1::1"].contains(&&*from), "{from}");
    }
}

#[test]
fn udp_to_the_router_itself_finds_no_port() {
    let mut frame = kernel_frame("v4-udp");
    frame[L3 + 16..L3 + 20].copy_from_slice(&[10, 0, 2, 1]);
    frame[L3 + 26..L3 + 28].fill(0);
    repair_ipv4(&mut frame);
    let mut rig = known();
    let left = rig.feed(0, &frame);
    assert_eq!(error_about(&frame, &left[0].1), (3, 3, [0; 4]));

    let mut frame = kernel_frame("v6-udp");
    frame[L3 + 39] = 1;
    // One less there, one more here: 2001:db8:2::1 instead of ::2.
    frame[L3 + 47] += 1;
    let left = rig.feed(0, &frame);
    assert_eq!(error_about(&frame, &left[0].1), (1, 4, [0; 4]));
    frame[L3 + 47] += 1;
    assert_eq!(rig.feed(0, &frame), []);
    assert_eq!(rig.reason(), Reason::Malformed(Malformed::UdpChecksum));
}

#[test]
fn pings_to_the_router_are_answered() {
    for version in ["v4", "v6"] {
        let mut rig = known();
        let left = rig.feed(0, &kernel_frame(&format!("{version}-echo-request")));
        let wanted = kernel_frame(&format!("{version}-echo-reply"));
        let (port, answer) = &left[0];
        let at = ip(&wanted).l4_offset();
        assert_eq!((left.len(), *port, &answer[..12], &answer[at..]), (1, 0, &wanted[..12], &wanted[at..]));
        assert_eq!(ip(answer).addresses, ip(&wanted).addresses);
        assert_eq!(ip(answer).ttl, 64);
        assert_eq!(rig.event("echo answered"), 1);
    }
}

#[test]
fn who_asks_for_the_router_is_answered_and_remembered() {
    let mut rig = asking();
    assert_eq!(rig.feed(0, &kernel_frame("arp-request")), [(0, kernel_frame("arp-reply"))]);
    // So that a packet to it need not wait.
    let mut back = kernel_frame("v4-udp");
    back[..6].copy_from_slice(&ROUTER_FAR.0);
    back[6..12].copy_from_slice(&FAR.0);
    back[L3 + 12..L3 + 20].copy_from_slice(&[10, 0, 2, 2, 10, 0, 1, 2]);
    repair_ipv4(&mut back);
    let left = rig.feed(1, &back);
    assert_eq!((left.len(), left[0].0, &left[0].1[..12]), (1, 0, &[HOST.0, ROUTER.0].concat()[..]));

    assert_eq!(rig.feed(0, &kernel_frame("v6-solicitation")), [(0, kernel_frame("v6-advertisement"))]);
    assert_eq!(rig.event("neighbour learnt"), 2);
}

#[test]
fn a_question_about_somebody_else_is_not_answered() {
    let mut rig = asking();
    let mut frame = kernel_frame("arp-request");
    frame[L3 + 27] = 77;
    assert_eq!(rig.feed(0, &frame), []);
    // Of the other port: not ours on this link.
    frame[L3 + 26..L3 + 28].copy_from_slice(&[2, 1]);
    assert_eq!(rig.feed(0, &frame), []);
    assert_eq!((rig.reason(), rig.event("neighbour learnt")), (Reason::Consumed, 0));
}

/// The dialogue that a first packet causes.
#[test]
fn an_unknown_neighbour_is_asked_for_while_its_packets_wait() {
    let mut rig = asking();
    let frame = kernel_frame("v4-udp");
    let left = rig.feed(0, &frame);
    let mut question = Arp::request(ROUTER_FAR, 0x0a00_0201, 0x0a00_0202);
    let mut wanted = vec![0; 60];
    question.write_frame(&mut wanted).unwrap();
    assert_eq!(left, [(1, wanted.clone())]);
    assert_eq!(rig.ledger().held, 1);
    let second = changed("v4-udp", &[(5, 0x46)]);
    assert_eq!(rig.feed(0, &second), []);

    // The answer, and a third packet right behind it, which must not overtake.
    question = question.answered_by(FAR);
    let mut reply = vec![0; 42];
    question.write_frame(&mut reply).unwrap();
    let third = changed("v4-udp", &[(5, 0x47)]);
    rig.wire(1, &reply);
    let left = rig.poll();
    assert_eq!(left, [(1, passed_on(&frame)), (1, passed_on(&second))]);
    assert_eq!(rig.feed(0, &third), [(1, passed_on(&third))]);
    let ledger = rig.ledger();
    assert_eq!((ledger.made, ledger.held, ledger.transmitted), (1, 0, 4));
}

#[test]
fn what_waited_leaves_before_what_comes_with_the_answer() {
    let mut rig = asking();
    let mut frames: Vec<_> = (0..4).map(|id| changed("v4-udp", &[(5, id)])).collect();
    // The host is on the port that everything comes in by, so that answer and packets are of one batch.
    for frame in &mut frames {
        frame[L3 + 12..L3 + 20].copy_from_slice(&[10, 0, 9, 9, 10, 0, 1, 2]);
        repair_ipv4(frame);
    }
    rig.feed(0, &frames[0]);
    let mut reply = vec![0; 42];
    Arp::request(ROUTER, 0x0a00_0101, 0x0a00_0102).answered_by(HOST).write_frame(&mut reply).unwrap();
    for frame in [&frames[1], &reply, &frames[2], &frames[3]] {
        rig.wire(0, frame);
    }
    let ids: Vec<u8> = rig.poll().iter().map(|(_, frame)| frame[L3 + 5]).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn neighbour_discovery_asks_likewise() {
    let mut rig = asking();
    let frame = kernel_frame("v6-udp");
    let left = rig.feed(0, &frame);
    let mut wanted = from_hex(
        "3333ff000002 020000000011 86dd 60000000 0020 3a ff
         20010db8000200000000000000000001 ff0200000000000000000001ff000002
         87 00 0000 00000000 20010db8000200000000000000000002 0101 020000000011",
    );
    repair_icmpv6(&mut wanted);
    assert_eq!(left, [(1, wanted)]);
    let mut answer = from_hex(
        "020000000011 020000000012 86dd 60000000 0020 3a ff
         20010db8000200000000000000000002 20010db8000200000000000000000001
         88 00 0000 60000000 20010db8000200000000000000000002 0201 020000000012",
    );
    repair_icmpv6(&mut answer);
    assert_eq!(rig.feed(1, &answer), [(1, passed_on(&frame))]);
    assert_eq!((rig.event("neighbour discovery asked"), rig.event("neighbour learnt")), (1, 1));
}

#[test]
fn a_neighbour_that_does_not_answer_is_unreachable() {
    for (frame, wanted) in
        [(kernel_frame("v4-udp"), (3, 1, [0; 4])), (kernel_frame("v6-udp"), (1, 3, [0; 4]))]
    {
        let mut rig = asking();
        let questions = [rig.feed(0, &frame), rig.wait(SECOND), rig.wait(SECOND)];
        assert!(questions.iter().all(|left| left.len() == 1 && left[0] == questions[0][0]), "{questions:?}");
        let left = rig.wait(SECOND);
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].0, error_about(&frame, &left[0].1)), (0, wanted));
        assert_eq!(rig.event("neighbour does not answer"), 1);
        assert_eq!(rig.ledger().held, 0);
        // The next packet begins anew.
        assert_eq!(rig.feed(0, &frame), questions[0]);
        assert_eq!(rig.settle().drops.of(Reason::NoNeighbour), 1);
    }
}

#[test]
fn few_packets_wait_for_a_neighbour_and_the_oldest_gives_way() {
    let mut rig = asking();
    for id in 0..10 {
        rig.feed(0, &changed("v4-udp", &[(5, id)]));
    }
    assert_eq!((rig.reason(), rig.ledger().drops.total(), rig.ledger().held), (Reason::NoNeighbour, 2, 8));
    assert_eq!(rig.settle().drops.of(Reason::NoNeighbour), 10);
}

#[test]
fn a_known_neighbour_is_asked_itself_after_a_minute() {
    let mut rig = asking();
    rig.feed(0, &kernel_frame("arp-request"));
    assert_eq!(rig.wait(60 * SECOND - 1), []);
    let mut wanted = vec![0; 60];
    Arp::request(ROUTER, 0x0a00_0101, 0x0a00_0102).write_frame(&mut wanted).unwrap();
    wanted[..6].copy_from_slice(&HOST.0);
    assert_eq!(rig.wait(1), [(0, wanted)]);
}

#[test]
fn errors_are_limited_and_what_is_not_answered_is_a_loss() {
    let config = ForwardConfig { icmp: IcmpLimit { per_second: 1_000, burst: 5 }, ..known_config() };
    let mut rig = Rig::new(Forward::new(&config).unwrap());
    let expired = kernel_frame("v4-udp-short");
    for _ in 0..8 {
        rig.wire(0, &expired);
    }
    assert_eq!(rig.poll().len(), 5);
    assert_eq!((rig.reason(), rig.ledger().drops.total()), (Reason::TtlExpired, 3));
    assert_eq!(rig.event("not sent: limit of errors"), 3);
    rig.now_ns += 2_000_000;
    for _ in 0..8 {
        rig.wire(0, &expired);
    }
    assert_eq!(rig.poll().len(), 2);
}

#[test]
fn no_error_about_errors_fragments_and_groups() {
    let error = changed(
        "v4-no-port",
        &[(8, 1), (16, 10), (17, 0), (18, 2), (19, 2), (12, 10), (13, 0), (14, 1), (15, 2)],
    );
    let mut error = error;
    error[..6].copy_from_slice(&ROUTER.0);
    let fragment = changed("v4-udp-short", &[(6, 0), (7, 9)]);
    let unspecified = changed("v4-udp-short", &[(12, 0), (13, 0), (14, 0), (15, 0)]);
    let mut to_all = kernel_frame("v4-udp-short");
    to_all[..6].copy_from_slice(&[0xff; 6]);
    for (frame, reason) in [
        (error, Reason::TtlExpired),
        (fragment, Reason::TtlExpired),
        (unspecified, Reason::NotForwarded),
        (to_all, Reason::NotForwarded),
    ] {
        let mut rig = known();
        assert_eq!(rig.feed(0, &frame), [], "{frame:02x?}");
        assert_eq!(rig.reason(), reason);
    }
}

#[test]
fn what_a_router_does_not_forward() {
    let v4_to = |to: [u8; 4]| changed("v4-udp", &[(16, to[0]), (17, to[1]), (18, to[2]), (19, to[3])]);
    let v4_from =
        |from: [u8; 4]| changed("v4-udp", &[(12, from[0]), (13, from[1]), (14, from[2]), (15, from[3])]);
    let v6_to = |first: [u8; 2]| changed("v6-udp", &[(24, first[0]), (25, first[1])]);
    let v6_from = |first: [u8; 2]| changed("v6-udp", &[(8, first[0]), (9, first[1])]);
    let loopback_v6 = {
        let mut frame = kernel_frame("v6-udp");
        frame[L3 + 24..L3 + 39].fill(0);
        frame[L3 + 39] = 1;
        frame
    };
    for frame in [
        v4_to([127, 0, 0, 1]),
        v4_to([0, 1, 2, 3]),
        v4_to([224, 0, 0, 9]),
        v4_to([240, 0, 0, 9]),
        v4_to([255, 255, 255, 255]),
        v4_to([169, 254, 1, 1]),
        v4_to([10, 0, 2, 255]),
        v4_to([10, 0, 2, 0]),
        v4_from([127, 0, 0, 1]),
        v4_from([0, 0, 0, 1]),
        v4_from([224, 0, 0, 1]),
        v4_from([255, 255, 255, 255]),
        v4_from([169, 254, 1, 1]),
        v6_to([0xff, 0x0e]),
        v6_to([0xfe, 0x80]),
        v6_from([0xff, 0x02]),
        v6_from([0xfe, 0x80]),
        loopback_v6,
    ] {
        let mut rig = known();
        assert_eq!(rig.feed(0, &frame), [], "{frame:02x?}");
        assert_eq!(rig.reason(), Reason::NotForwarded, "{frame:02x?}");
    }
}

#[test]
fn frames_for_others_and_of_other_kinds() {
    let to = |mac: MacAddress| {
        let mut frame = kernel_frame("v4-udp");
        frame[..6].copy_from_slice(&mac.0);
        frame
    };
    let kind = |kind: [u8; 2]| {
        let mut frame = kernel_frame("v4-udp");
        frame[12..14].copy_from_slice(&kind);
        frame
    };
    let broken = {
        let mut frame = kernel_frame("v4-udp");
        frame[L3 + 8] = 63;
        frame
    };
    for (frame, reason) in [
        (to(ROUTER_FAR), Reason::NotForUs),
        (kind([0x81, 0x00]), Reason::Unsupported),
        (kind([0x00, 0x40]), Reason::Unsupported),
        (kind([0x88, 0xcc]), Reason::Unsupported),
        (broken, Reason::Malformed(Malformed::Ipv4Checksum)),
        (vec![1; 13], Reason::Malformed(Malformed::EthernetShort)),
        (kernel_frame("v6-listener-report"), Reason::Consumed),
        (changed("v4-tcp-syn", &[(18, 1), (19, 1)]), Reason::NoSocket),
    ] {
        let mut rig = known();
        assert_eq!(rig.feed(0, &frame), [], "{frame:02x?}");
        assert_eq!(rig.reason(), reason, "{frame:02x?}");
    }
}

#[test]
fn the_longest_prefix_decides() {
    let route = |network: &str, bits, gateway: &str| Route {
        network: network.parse().unwrap(),
        prefix_bits: bits,
        towards: Towards::Gateway { address: gateway.parse().unwrap(), port: None },
    };
    let config = ForwardConfig {
        routes: vec![
            route("0.0.0.0", 0, "10.0.1.2"),
            route("172.16.0.0", 12, "10.0.2.2"),
            route("172.16.5.0", 24, "10.0.1.2"),
            route("::", 0, "2001:db8:1::2"),
            route("2001:db8:5::", 48, "2001:db8:2::2"),
        ],
        ..known_config()
    };
    let mut rig = Rig::new(Forward::new(&config).unwrap());
    for (to, port) in [([9, 9, 9, 9], 0), ([172, 17, 0, 1], 1), ([172, 16, 5, 1], 0), ([172, 16, 6, 1], 1)] {
        let frame = changed("v4-udp", &[(16, to[0]), (17, to[1]), (18, to[2]), (19, to[3])]);
        assert_eq!(rig.feed(0, &frame)[0].0, port, "{to:?}");
    }
    for (third, port) in [(4, 0), (5, 1)] {
        assert_eq!(rig.feed(0, &changed("v6-udp", &[(29, third)]))[0].0, port);
    }
}

#[test]
fn workers_tell_each_other_about_neighbours() {
    let mut group = Forward::group(&config(), 2).unwrap();
    let (mut second, mut first) = (Rig::new(group.pop().unwrap()), Rig::new(group.pop().unwrap()));
    let frame = kernel_frame("v4-udp");
    assert_eq!(first.feed(0, &frame).len(), 1);
    let mut reply = vec![0; 42];
    Arp::request(ROUTER_FAR, 0x0a00_0201, 0x0a00_0202).answered_by(FAR).write_frame(&mut reply).unwrap();
    assert_eq!(second.feed(1, &reply), []);
    assert_eq!(first.poll(), [(1, passed_on(&frame))]);
}
