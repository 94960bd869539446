//! Sockets send over a veth pair of the test's own, and every datagram is counted or read at the far end.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::net::Ipv4Addr;

use common::{DEADLINE, Pair, XDP_DROP, in_pair, receive};
use linux::packet::{PROTOCOL_ALL, PacketSocket};
use linux::route::RouteSocket;
use traffic::{Backend, Frames, SendError, Sent, UdpSockets, UdpSpec};

const HERE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const MAC_THERE: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A UDP packet from `HERE` port 1024 to `THERE`, its MAC addresses, TTL and TOS such as no kernel writes.
fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_bytes = 8 + payload.len() as u16;
    let mut frame = vec![0xaa; 12];
    frame.extend([0x08, 0x00, 0x45, 0x88]);
    frame.extend((20 + udp_bytes).to_be_bytes());
    frame.extend([0, 7, 0, 0, 3, 17, 0, 0]);
    frame.extend(HERE.octets());
    frame.extend(THERE.octets());
    frame.extend(1024_u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// The near end has `HERE`, and `THERE` is behind it.
fn addressed(test: impl FnOnce(&Pair, &mut RouteSocket) + Send) {
    in_pair(|pair| {
        let mut route = RouteSocket::open().unwrap();
        route.add_address(pair.near, HERE.into(), 24).unwrap();
        route.add_neighbour(pair.near, THERE.into(), MAC_THERE).unwrap();
        test(pair, &mut route);
    });
}

#[test]
fn every_datagram_sent_is_counted_at_the_far_end() {
    if !linux::privilege::test_may_run("every_datagram_sent_is_counted_at_the_far_end") {
        return;
    }
    for gso in [false, true] {
        addressed(|pair, route| {
            let sink = pair.count(XDP_DROP);
            let frames = Frames::cycle((0..3).map(|flow| frame(9 + flow, &[7; 18])).collect()).unwrap();
            let mut backend = UdpSockets::new(&UdpSpec { gso, ..UdpSpec::new(pair.near) }, frames).unwrap();
            let mut all = Sent::default();
            for packets in [1, 31, 32, 33, 63, 64, 1000, 12_345] {
                all += backend.send(packets).unwrap() + backend.flush().unwrap();
            }
            assert_eq!((all.offered, all.confirmed), (13_569, 13_569));
            // What the far end's ring had no room for, as the machine had something else to do, is counted where it was sent.
            let wanted = all.confirmed - route.link_stats(pair.near).unwrap().tx_dropped;
            assert!(wanted > 0, "GSO {gso}");
            assert_eq!(sink.wait_until(wanted, DEADLINE).unwrap(), wanted, "GSO {gso}");
        });
    }
}

#[test]
fn the_payload_is_ours_and_the_headers_are_the_kernels() {
    if !linux::privilege::test_may_run("the_payload_is_ours_and_the_headers_are_the_kernels") {
        return;
    }
    addressed(|pair, route| {
        let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
        let given = frame(9, b"payload");
        let mut backend =
            UdpSockets::new(&UdpSpec::new(pair.near), Frames::constant(given.clone()).unwrap()).unwrap();
        assert_eq!(backend.send(1).unwrap(), Sent { offered: 1, confirmed: 1, calls: 1 });
        let came = receive(&receiver);
        let mac = route.link_by_name("near").unwrap().unwrap().mac.unwrap();
        assert_eq!((&came[..6], &came[6..12]), (&MAC_THERE[..], &mac[..]));
        assert_eq!((came[15], came[22]), (0, 64), "TOS and TTL");
        // Addresses, ports and length, then the payload; the checksum between them is the kernel's.
        assert_eq!((&came[26..40], &came[42..]), (&given[26..40], &given[42..]));
    });
}

#[test]
fn datagrams_leave_by_the_device_that_was_named_and_no_other() {
    if !linux::privilege::test_may_run("datagrams_leave_by_the_device_that_was_named_and_no_other") {
        return;
    }
    addressed(|pair, route| {
        // The routes know the destination behind the near end only; on the far one it is taken to be on the link.
        route.add_neighbour(pair.far, THERE.into(), MAC_THERE).unwrap();
        let frames = Frames::constant(frame(9, &[7; 18])).unwrap();
        let mut backend = UdpSockets::new(&UdpSpec::new(pair.far), frames).unwrap();
        let before = [pair.near, pair.far].map(|end| route.link_stats(end).unwrap().tx_packets);
        assert_eq!(backend.send(100).unwrap().confirmed, 100);
        let after = [pair.near, pair.far].map(|end| route.link_stats(end).unwrap().tx_packets);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [0, 100]);
    });
}

#[test]
fn what_does_not_fit_or_has_no_device_is_an_error() {
    if !linux::privilege::test_may_run("what_does_not_fit_or_has_no_device_is_an_error") {
        return;
    }
    addressed(|pair, route| {
        for gso in [false, true] {
            let long = Frames::constant(frame(9, &[0; 1500])).unwrap();
            let mut backend = UdpSockets::new(&UdpSpec { gso, ..UdpSpec::new(pair.near) }, long).unwrap();
            let error = backend.send(10).unwrap_err();
            assert!(matches!(&error, SendError::Syscall { .. }) && error.sent().confirmed == 0, "{error}");
            assert!(error.to_string().contains("MTU"), "{error}");
        }
        let frames = Frames::constant(frame(9, &[7; 18])).unwrap();
        let mut backend = UdpSockets::new(&UdpSpec::new(pair.near), frames).unwrap();
        backend.send(1).unwrap();
        route.set_down(pair.near).unwrap();
        // Its address is no longer one that can be sent from.
        let error = backend.send(10).unwrap_err();
        assert!(matches!(&error, SendError::Syscall { .. }) && error.sent().confirmed == 0, "{error}");
    });
}
