//! Frames with stamps, made by a program in the kernel and by this process, arrive at sockets in a namespace of the test's own.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ebpf::{Assembler, Reg};
use linux::clock::monotonic_ns;
use linux::netns::Netns;
use linux::route::{RouteSocket, VethEnd};
use linux::udp::{ReceiverSpec, UdpReceiver};
use measure::delay::Delays;
use template::stamp::{self, Stamp};
use template::{Addresses, CheckedFrame, UdpFrame};
use traffic::programs::Destination;
use traffic::{Backend, BackendKind, Frames, Generator, LiveGenerator, LiveSpec, Mmsg, MmsgSpec, Pace};

const DEADLINE: Duration = Duration::from_secs(10);
const PORT: u16 = 4000;
const FLOWS: u16 = 3;
const SOURCES: u32 = 300;
const STREAM: u16 = 5;
const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FIRST_SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 200);
/// Few enough that sockets hold them all: a live frame counts with its whole page.
const PACKETS: u64 = 3000;

#[test]
fn stamps_of_injected_packets_are_right() {
    if !linux::privilege::test_may_run("stamps_of_injected_packets_are_right") {
        return;
    }
    for (frame_bytes, pps) in [(64, None), (65, Some(1e5)), (1500, None)] {
        in_pair(|pair| {
            let frame = pair.frame(frame_bytes, pair.near_mac);
            let mut generator = LiveGenerator::new(&LiveSpec {
                kind: BackendKind::Inject,
                destination: Destination::Stack,
                ingress_ifindex: pair.near,
                rx_queue: 0,
                frame: frame.to_vec(0),
                header_bytes: frame.header_bytes(),
                write_packet: &|asm: &mut Assembler, packet: Reg, index: Reg, scratch: [Reg; 5]| {
                    frame.lower_packet(asm, packet, index, scratch);
                    Ok::<(), Infallible>(())
                },
                shortens: false,
                pace: pps.map(|pps| Pace { start_ns: monotonic_ns() + 1_000_000, interval_ns: 1e9 / pps }),
                batch: None,
            })
            .unwrap();
            pair.check(frame.l2_bytes(), |packets| {
                assert_eq!(generator.send(packets, &AtomicBool::new(false)).unwrap().confirmed, packets);
            });
        });
    }
}

#[test]
fn stamps_of_written_packets_are_right() {
    if !linux::privilege::test_may_run("stamps_of_written_packets_are_right") {
        return;
    }
    in_pair(|pair| {
        let frame = pair.frame(100, pair.near_mac);
        let l2_bytes = frame.l2_bytes();
        let frames =
            Frames::generated(l2_bytes, move |sequence, out| frame.write(sequence, out, monotonic_ns))
                .unwrap();
        let mut backend = Mmsg::new(&MmsgSpec::new(pair.far), frames).unwrap();
        pair.check(l2_bytes, |packets| {
            let sent = backend.send(packets).unwrap() + backend.flush().unwrap();
            assert_eq!(sent.confirmed, packets);
        });
    });
}

/// Two ends of a veth pair in a namespace that the calling thread is in; the near one is the host.
struct Pair {
    near: u32,
    near_mac: [u8; 6],
    far: u32,
}

impl Pair {
    fn frame(&self, frame_bytes: u32, destination_mac: [u8; 6]) -> CheckedFrame {
        let frame = UdpFrame {
            source_mac: [2, 0, 0, 0, 0, 9],
            destination_mac,
            addresses: Addresses::V4 { source: FIRST_SOURCE, destination: HOST },
            source_port: 1024,
            destination_port: PORT,
            flows: FLOWS,
            sources: SOURCES,
            stamp: true,
            frame_bytes,
        };
        frame.check().unwrap().with_stream(STREAM)
    }

    /// Sends in two parts, and takes everything out of sockets: one for each flow.
    fn check(&self, l2_bytes: usize, mut send: impl FnMut(u64)) {
        let mut sockets: Vec<UdpReceiver> = (0..FLOWS)
            .map(|flow| {
                let address = SocketAddr::from((HOST, PORT + flow));
                let spec = ReceiverSpec { sources: true, ..ReceiverSpec::new(address) };
                UdpReceiver::bind(&spec).unwrap()
            })
            .collect();
        let mut delays = Delays::new();
        let mut seen = BTreeSet::new();
        for part in [0..PACKETS / 3, PACKETS / 3..PACKETS] {
            let before = monotonic_ns();
            send(part.end - part.start);
            let after = monotonic_ns();
            for (flow, socket) in (0_u16..).zip(&mut sockets) {
                let wanted =
                    part.clone().filter(|sequence| sequence % u64::from(FLOWS) == u64::from(flow)).count();
                let mut last = None;
                for (payload, source) in take(socket, wanted) {
                    assert_eq!(payload.len(), l2_bytes - 42);
                    let stamp = stamp::read(&payload).unwrap();
                    let Stamp { stream, sequence, sent_ns } = stamp;
                    assert!(part.contains(&sequence) && seen.insert(sequence), "{stamp:?}");
                    assert_eq!((stream, sequence % u64::from(FLOWS)), (STREAM, u64::from(flow)));
                    assert!((before..=after).contains(&sent_ns), "{before} {stamp:?} {after}");
                    let number = (sequence / u64::from(FLOWS) % u64::from(SOURCES)) as u32;
                    let address = Ipv4Addr::from_bits(FIRST_SOURCE.to_bits() + number);
                    assert_eq!(source, SocketAddr::from((address, 1024)), "{stamp:?}");
                    assert!(last < Some(sequence), "in order: {last:?} {stamp:?}");
                    last = Some(sequence);
                    delays.record_between(sent_ns, monotonic_ns());
                }
                assert_eq!(socket.drops().unwrap(), 0);
            }
        }
        assert_eq!(seen.len() as u64, PACKETS);
        assert_eq!((delays.count(), delays.negative(), delays.too_long()), (PACKETS, 0, 0));
    }
}

/// So many datagrams with their sources.
fn take(socket: &mut UdpReceiver, wanted: usize) -> Vec<(Vec<u8>, SocketAddr)> {
    let mut taken = Vec::new();
    while taken.len() < wanted {
        assert!(socket.wait_readable(DEADLINE).unwrap(), "{} of {wanted} came", taken.len());
        let batch = socket.recv_batch().unwrap();
        for index in 0..batch.datagrams {
            let source = socket.source(index).unwrap();
            taken.push((socket.datagram(index).to_vec(), source));
        }
    }
    taken
}

fn in_pair(test: impl FnOnce(&Pair) + Send) {
    let netns = Netns::unnamed().unwrap();
    netns
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            route.create_veth(&VethEnd::new("near"), &VethEnd::new("far")).unwrap();
            let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap());
            for ifindex in [1, near.ifindex, far.ifindex] {
                route.set_no_link_local(ifindex).unwrap();
                route.set_up(ifindex).unwrap();
            }
            assert!(route.wait_until_carrying(&[near.ifindex, far.ifindex], DEADLINE).unwrap());
            // All sources are of its network, so that the reverse path filter lets them pass.
            route.add_address(near.ifindex, HOST.into(), 15).unwrap();
            test(&Pair { near: near.ifindex, near_mac: near.mac.unwrap(), far: far.ifindex });
        })
        .unwrap();
}
