//! Devices that meet the kernel, over veth pairs and TAP devices of their own: frames come and go byte for byte, none is lost without
//! being counted, and unmodified programs talk through them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{DEADLINE, Kind, forward, frame, in_pair, open, until};
use datapath::device::{
    AfPacketRx, AfXdp, AfXdpSpec, DeviceError, FaultSpec, FaultyLand, Lend, Lending, PacketMemory, Transmit,
    open_tap,
};
use datapath::receive::{Handing, Paged, Poll, Receive};
use datapath::stage::EarlyDrop;
use datapath::{BUDGET, Reason, Worker};
use linux::ethtool::EthtoolSocket;
use linux::netns::Netns;
use linux::packet::{PROTOCOL_ALL, PacketSocket, SlotRingSpec};
use linux::route::{RouteSocket, VethEnd};
use linux::tap::TapSpec;
use pagefrag::{PacketBuf, Source};

macro_rules! privileged {
    ($name:literal) => {
        if !linux::privilege::test_may_run($name) {
            return;
        }
    };
}

const LENGTHS: [usize; 6] = [60, 61, 128, 577, 1513, 1514];

#[test]
fn frames_arrive_byte_for_byte() {
    privileged!("frames_arrive_byte_for_byte");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let mut packets = Vec::new();
            // A ring is only filled when pages are there.
            poll(&mut *port.rx, &mut packets);
            let sent: Vec<_> = (0..300).map(|n| frame(n, LENGTHS[n % LENGTHS.len()])).collect();
            for chunk in sent.chunks(50) {
                pair.send_from_far(chunk);
                let wanted = packets.len() + chunk.len();
                until("all frames came", || {
                    poll(&mut *port.rx, &mut packets);
                    packets.len() >= wanted
                });
            }
            assert!(packets == sent, "{kind:?}");
            let totals = port.rx.totals();
            assert_eq!((totals.queue.received, totals.queue.missed), (300, Some(0)), "{kind:?}");
        });
    }
}

#[test]
fn packets_leave_byte_for_byte() {
    privileged!("packets_leave_byte_for_byte");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let far = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut done = Vec::new();
            let sent: Vec<_> = (0..300).map(|n| frame(n, LENGTHS[n % LENGTHS.len()])).collect();
            for chunk in sent.chunks(BUDGET) {
                let mut packets: Vec<_> = chunk.iter().map(|bytes| packet(bytes)).collect();
                port.tx.transmit(&mut packets, &mut done).unwrap();
                assert!(packets.is_empty(), "{kind:?}: there was room");
                for bytes in chunk {
                    assert_eq!(&receive(&far), bytes, "{kind:?}");
                }
            }
            until("all packets are done", || {
                port.tx.complete(&mut done).unwrap();
                port.tx.held() == 0
            });
            assert_eq!(done.len(), sent.len(), "{kind:?}");
            let bytes: usize = sent.iter().map(Vec::len).sum();
            let totals = port.tx.totals();
            assert_eq!(
                (totals.packets, totals.l2_bytes, totals.too_long),
                (300, bytes as u64, 0),
                "{kind:?}"
            );
        });
    }
}

#[test]
fn a_packet_that_is_too_long_is_counted_and_not_sent() {
    privileged!("a_packet_that_is_too_long_is_counted_and_not_sent");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let far = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut packets = vec![packet(&frame(0, 60)), packet(&frame(1, 1515)), packet(&frame(2, 60))];
            let mut done = Vec::new();
            port.tx.transmit(&mut packets, &mut done).unwrap();
            assert_eq!((receive(&far), receive(&far)), (frame(0, 60), frame(2, 60)), "{kind:?}");
            until("all packets are done", || {
                port.tx.complete(&mut done).unwrap();
                port.tx.held() == 0
            });
            let totals = port.tx.totals();
            assert_eq!(
                (done.len(), packets.len(), totals.packets, totals.too_long),
                (3, 0, 2, 1),
                "{kind:?}"
            );
        });
    }
}

#[test]
fn what_finds_no_room_is_missed_and_counted() {
    privileged!("what_finds_no_room_is_missed_and_counted");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let mut packets = Vec::new();
            poll(&mut *port.rx, &mut packets);
            let sent: Vec<_> = (0..3000).map(|n| frame(n, 60)).collect();
            pair.send_from_far(&sent);
            // A frame of the end of the burst may be missing, so wait for the account and not for a frame.
            until("every frame is accounted for", || {
                poll(&mut *port.rx, &mut packets);
                let totals = port.rx.totals().queue;
                totals.received + totals.missed.unwrap() == 3000
            });
            let totals = port.rx.totals().queue;
            assert_eq!(packets.len() as u64, totals.received, "{kind:?}");
            assert!(totals.received >= 256 && totals.received < 3000, "{kind:?}: {totals:?}");
        });
    }
}

#[test]
fn a_ring_that_is_full_takes_fewer() {
    privileged!("a_ring_that_is_full_takes_fewer");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let wide = SlotRingSpec { slots: 4096, ..SlotRingSpec::default() };
            let mut far = AfPacketRx::open(pair.far, &wide).unwrap();
            // More than there are slots in either ring, offered at once.
            let mut packets: Vec<_> = (0..2000).map(|n| packet(&frame(n, 60))).collect();
            let (mut done, mut next, mut was_full) = (Vec::new(), 0, false);
            until("all were taken in the end", || {
                port.tx.transmit(&mut packets, &mut done).unwrap();
                // All are copied, so those that were taken are done.
                assert_eq!(done.len() + packets.len(), 2000, "{kind:?}");
                was_full |= !packets.is_empty();
                let mut each = |bytes: &[u8]| {
                    assert_eq!(bytes, frame(next, 60), "{kind:?}");
                    next += 1;
                };
                far.lend(4096, &mut each).unwrap();
                next == 2000
            });
            assert!(packets.is_empty());
            // Over veth a packet socket's slots are free again as soon as they are sent.
            assert_eq!(was_full, kind != Kind::AfPacket, "{kind:?}");
        });
    }
}

#[test]
fn what_a_device_sends_does_not_come_back() {
    privileged!("what_a_device_sends_does_not_come_back");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            let far = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let (mut packets, mut received) = (vec![packet(&frame(0, 60))], Vec::new());
            poll(&mut *port.rx, &mut received);
            port.tx.transmit(&mut packets, &mut Vec::new()).unwrap();
            assert_eq!(receive(&far), frame(0, 60));
            // One that does come tells that nothing came before it.
            pair.send_from_far(&[frame(1, 60)]);
            until("the other frame came", || {
                poll(&mut *port.rx, &mut received);
                !received.is_empty()
            });
            assert_eq!(received, [frame(1, 60)], "{kind:?}");
        });
    }
}

#[test]
fn a_device_that_is_deleted_is_an_error() {
    privileged!("a_device_that_is_deleted_is_an_error");
    for kind in Kind::ALL {
        in_pair(|pair| {
            let mut port = open(kind, pair.near, None);
            poll(&mut *port.rx, &mut Vec::new());
            RouteSocket::open().unwrap().delete_link(pair.near).unwrap();
            let start = Instant::now();
            // Who never waits learns it too.
            let error = loop {
                assert!(start.elapsed() < DEADLINE, "{kind:?}: nothing was noticed");
                if let Err(error) = port.rx.poll(BUDGET, &mut datapath::Batch::new()) {
                    break error;
                }
            };
            assert!(error.to_string().contains("Network is down"), "{kind:?}: {error}");
            let error = port.tx.transmit(&mut vec![packet(&frame(0, 60))], &mut Vec::new()).unwrap_err();
            let text = error.to_string();
            let is_told = ["Network is down", "No such device"].iter().any(|words| text.contains(words));
            assert!(is_told, "{kind:?}: {error}");
        });
    }
}

#[test]
fn a_packet_of_the_same_memory_is_sent_where_it_lies() {
    privileged!("a_packet_of_the_same_memory_is_sent_where_it_lies");
    in_pair(|pair| {
        let memory = PacketMemory::new(AfXdpSpec::new(0).pages() * 2).unwrap();
        let [(rx, _tx), (_rx, mut tx)] = [pair.near, pair.other_near]
            .map(|ifindex| AfXdp::open(&memory, &AfXdpSpec::new(ifindex)).unwrap().queues.pop().unwrap());
        let far = PacketSocket::open(pair.other_far, PROTOCOL_ALL).unwrap();
        let mut rx = Paged::new(
            Box::new(rx),
            memory.pool(),
            Poll::new(Source::default().share()),
            Handing::Page,
            1514,
        );
        let mut batch = datapath::Batch::new();
        rx.poll(BUDGET, &mut batch).unwrap();
        pair.send_from_far(&[frame(7, 577)]);
        until("the frame came", || rx.poll(BUDGET, &mut batch).unwrap() > 0);
        let (mut packets, mut done) = (vec![batch.hold(0), packet(&frame(8, 60))], Vec::new());
        tx.transmit(&mut packets, &mut done).unwrap();
        assert_eq!((receive(&far), receive(&far)), (frame(7, 577), frame(8, 60)));
        assert_eq!(tx.copied(), 1, "only the one that lies elsewhere");
        until("both are done", || {
            tx.complete(&mut done).unwrap();
            tx.held() == 0
        });
        assert_eq!(done.len(), 2);
    });
}

#[test]
fn pages_that_the_kernel_had_are_back_when_a_socket_is_closed() {
    privileged!("pages_that_the_kernel_had_are_back_when_a_socket_is_closed");
    in_pair(|pair| {
        let spec = AfXdpSpec::new(pair.near);
        let memory = PacketMemory::new(spec.pages()).unwrap();
        for _ in 0..3 {
            let (rx, tx) = AfXdp::open(&memory, &spec).unwrap().queues.pop().unwrap();
            let mut queue = Lending::new(Box::new(rx), memory.pool());
            queue.lend(BUDGET, &mut |_| ()).unwrap();
            assert_eq!(memory.region().free_pages(), spec.pages() - spec.rx_entries);
            drop(queue);
            drop(tx);
            assert_eq!(memory.region().free_pages(), spec.pages());
        }
    });
}

/// The kernel lets the number of packets a call be set from 32 up, and not above the ring's size.
#[test]
fn a_ring_of_few_entries_sends() {
    privileged!("a_ring_of_few_entries_sends");
    in_pair(|pair| {
        for entries in [1, 16, 32, 64] {
            let spec = AfXdpSpec { rx_entries: entries, tx_entries: entries, ..AfXdpSpec::new(pair.near) };
            let memory = PacketMemory::new(spec.pages()).unwrap();
            let (_rx, mut tx) = AfXdp::open(&memory, &spec).unwrap().queues.pop().unwrap();
            let far = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut packets: Vec<_> = (0..entries as usize).map(|n| packet(&frame(n, 60))).collect();
            tx.transmit(&mut packets, &mut Vec::new()).unwrap();
            assert!(packets.is_empty());
            (0..entries as usize).for_each(|n| assert_eq!(receive(&far), frame(n, 60), "{entries}"));
        }
    });
}

#[test]
fn a_device_that_is_only_sent_to_leaves_frames_to_the_stack() {
    privileged!("a_device_that_is_only_sent_to_leaves_frames_to_the_stack");
    in_pair(|pair| {
        let spec = AfXdpSpec { sends_only: true, ..AfXdpSpec::new(pair.near) };
        let memory = PacketMemory::new(spec.pages()).unwrap();
        let mut device = AfXdp::open(&memory, &spec).unwrap();
        let [near, far] =
            [pair.near, pair.far].map(|ifindex| PacketSocket::open(ifindex, PROTOCOL_ALL).unwrap());
        let (_rx, mut tx) = device.queues.pop().unwrap();
        tx.transmit(&mut vec![packet(&frame(0, 60))], &mut Vec::new()).unwrap();
        assert_eq!(receive(&far), frame(0, 60));
        pair.send_from_far(&[frame(1, 60)]);
        assert_eq!(receive(&near), frame(1, 60));
    });
}

#[test]
fn a_fragment_is_refused_aloud() {
    privileged!("a_fragment_is_refused_aloud");
    in_pair(|pair| {
        let memory = PacketMemory::new(AfXdpSpec::new(0).pages()).unwrap();
        let (rx, _tx) = AfXdp::open(&memory, &AfXdpSpec::new(pair.near)).unwrap().queues.pop().unwrap();
        let buffers = Poll::new(Source::default().share());
        let mut rx = Paged::new(Box::new(rx), memory.pool(), buffers, Handing::Fragment, 1514);
        let error = rx.poll(BUDGET, &mut datapath::Batch::new()).unwrap_err();
        assert!(matches!(error, DeviceError::Setup(_)), "{error}");
        assert!(error.to_string().contains("whole pages"), "{error}");
    });
}

#[test]
fn faults_in_front_of_pages_are_accounted_for() {
    privileged!("faults_in_front_of_pages_are_accounted_for");
    in_pair(|pair| {
        let memory = PacketMemory::new(AfXdpSpec::new(0).pages()).unwrap();
        let (rx, _tx) = AfXdp::open(&memory, &AfXdpSpec::new(pair.near)).unwrap().queues.pop().unwrap();
        let spec = FaultSpec { drop_ppm: 300_000, corrupt_ppm: 300_000, ..FaultSpec::default() };
        let rx = FaultyLand::new(Box::new(rx), spec).unwrap();
        let buffers = Poll::new(Source::default().share());
        let rx = Paged::new(Box::new(rx), memory.pool(), buffers, Handing::Page, 1514);
        let mut worker = Worker::new(Box::new(rx)).stage(EarlyDrop);
        worker.poll(BUDGET, 0).unwrap();
        // More than there are pages, so that pages of dropped frames must have come back.
        for burst in 0..60 {
            pair.send_from_far(&(0..100).map(|n| frame(n, 60)).collect::<Vec<_>>());
            until("the burst came", || {
                worker.poll(BUDGET, 0).unwrap();
                let ledger = worker.ledger();
                ledger.received + ledger.injected.dropped == (burst + 1) * 100
            });
        }
        let ledger = worker.ledger();
        assert!(ledger.closes() && ledger.missed == Some(0), "{ledger:?}");
        assert!(ledger.injected.dropped > 1000 && ledger.injected.corrupted > 1000, "{ledger:?}");
        assert_eq!(ledger.drops.of(Reason::Early), ledger.received);
    });
}

#[test]
fn a_vlan_tag_is_put_back() {
    privileged!("a_vlan_tag_is_put_back");
    in_pair(|pair| {
        let mut port = open(Kind::AfPacket, pair.near, None);
        let mut tagged = frame(0, 100);
        tagged[12..16].copy_from_slice(&[0x81, 0x00, 0x20, 0x07]);
        let mut service = tagged.clone();
        service[12..14].copy_from_slice(&[0x88, 0xa8]);
        let sent = [tagged, frame(1, 60), service];
        pair.send_from_far(&sent);
        let mut packets = Vec::new();
        until("all came", || {
            poll(&mut *port.rx, &mut packets);
            packets.len() == 3
        });
        assert!(packets == sent, "{:02x?}", packets.iter().map(|bytes| &bytes[..20]).collect::<Vec<_>>());
    });
}

#[test]
fn a_tap_device_sends_and_receives() {
    privileged!("a_tap_device_sends_and_receives");
    for offloads in [false, true] {
        in_namespace(|| {
            let (mut rx, mut tx) = open_tap("tap%d", TapSpec { offloads, multi_queue: false }).unwrap();
            assert_eq!(rx.name(), "tap0");
            let error = tx.transmit(&mut vec![packet(&frame(0, 60))], &mut Vec::new()).unwrap_err();
            assert!(error.to_string().contains("set it up"), "{error}");
            let mut route = RouteSocket::open().unwrap();
            let tap = route.link_by_name("tap0").unwrap().unwrap().ifindex;
            route.set_no_link_local(tap).unwrap();
            route.set_up(tap).unwrap();
            let stack = PacketSocket::open(tap, PROTOCOL_ALL).unwrap();
            let sent: Vec<_> = (0..20).map(|n| frame(n, LENGTHS[n % LENGTHS.len()])).collect();
            let (mut packets, mut done) = (sent.iter().map(|bytes| packet(bytes)).collect(), Vec::new());
            tx.transmit(&mut packets, &mut done).unwrap();
            assert_eq!((packets.len(), done.len(), tx.totals().packets), (0, 20, 20));
            sent.iter().for_each(|bytes| assert_eq!(&receive(&stack), bytes));
            for bytes in &sent {
                assert!(stack.send(bytes).unwrap());
            }
            let mut received = Vec::new();
            until("all came", || {
                rx.wait(DEADLINE).unwrap();
                rx.lend(3, &mut |bytes| received.push(bytes.to_vec())).unwrap();
                received.len() >= 20
            });
            assert!(received == sent);
            route.delete_link(tap).unwrap();
            assert!(rx.lend(BUDGET, &mut |_| ()).is_err());
        });
    }
}

/// It fails in the middle of a call, and what it showed before is counted all the same.
#[test]
fn frames_shown_before_a_device_fails_are_counted() {
    privileged!("frames_shown_before_a_device_fails_are_counted");
    in_namespace(|| {
        let (mut rx, _tx) = open_tap("tap%d", TapSpec { offloads: false, multi_queue: false }).unwrap();
        let mut route = RouteSocket::open().unwrap();
        let tap = common::up(&mut route, "tap0");
        let stack = PacketSocket::open(tap, PROTOCOL_ALL).unwrap();
        assert!(stack.send(&frame(0, 60)).unwrap());
        let mut shown = 0;
        let mut each = |_: &[u8]| {
            shown += 1;
            route.delete_link(tap).unwrap();
        };
        until("the device failed", || rx.lend(BUDGET, &mut each).is_err());
        assert_eq!((shown, rx.totals().received), (1, 1));
    });
    // A long frame, and the device of a packet socket goes away before it is fetched.
    in_pair(|pair| {
        let mut route = RouteSocket::open().unwrap();
        let mut rx =
            AfPacketRx::open(pair.near, &SlotRingSpec { l2_bytes: 100, ..SlotRingSpec::default() }).unwrap();
        pair.send_from_far(&[frame(0, 60), frame(1, 1514)]);
        let mut shown = 0;
        let mut each = |_: &[u8]| {
            shown += 1;
            route.delete_link(pair.near).unwrap();
        };
        until("the device failed", || rx.lend(BUDGET, &mut each).is_err());
        assert_eq!((shown, rx.totals().received), (1, 1));
    });
}

#[test]
fn ping_passes_through_two_devices() {
    privileged!("ping_passes_through_two_devices");
    for kind in Kind::ALL {
        let round_trip = between_hosts(kind, |hosts| {
            let output =
                hosts.left.run(|| run("ping", &["-n", "-c", "5", "-i", "0.01", "-W", "5", "10.9.0.2"]));
            output.unwrap()
        });
        assert!(round_trip.contains("5 received"), "{kind:?}: {round_trip}");
    }
}

/// With all offloads of the senders as they are: checksums left open, 64 KiB at a time.
#[test]
fn a_tcp_stream_passes_through_two_devices() {
    privileged!("a_tcp_stream_passes_through_two_devices");
    const BYTES: usize = 3_000_000;
    for kind in Kind::ALL {
        between_hosts(kind, |hosts| {
            for host in [&hosts.left, &hosts.right] {
                assert!(
                    host.run(|| EthtoolSocket::open().unwrap().tso("eth").unwrap()).unwrap()
                        || kind != Kind::AfPacket
                );
            }
            std::thread::scope(|scope| {
                let (ready, is_ready) = std::sync::mpsc::channel();
                let received = scope.spawn(move || {
                    hosts.right.run(|| {
                        let listener = std::net::TcpListener::bind("10.9.0.2:7").unwrap();
                        ready.send(()).unwrap();
                        let (mut stream, _) = listener.accept().unwrap();
                        stream.set_read_timeout(Some(DEADLINE)).unwrap();
                        let mut bytes = Vec::new();
                        std::io::Read::read_to_end(&mut stream, &mut bytes).unwrap();
                        bytes
                    })
                });
                is_ready.recv_timeout(DEADLINE).unwrap();
                let sent: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
                hosts
                    .left
                    .run(|| {
                        let address = "10.9.0.2:7".parse().unwrap();
                        let mut stream = std::net::TcpStream::connect_timeout(&address, DEADLINE).unwrap();
                        stream.set_write_timeout(Some(DEADLINE)).unwrap();
                        std::io::Write::write_all(&mut stream, &sent).unwrap();
                    })
                    .unwrap();
                assert!(received.join().unwrap().unwrap() == sent, "{kind:?}");
            });
        });
    }
}

/// Two hosts, each with a device `eth`, whose other ends are in a namespace that forwards.
struct Hosts {
    left: Netns,
    right: Netns,
}

/// Runs `test` beside a loop that passes every frame of one device to the other.
fn between_hosts<R: Send>(kind: Kind, test: impl FnOnce(&Hosts) -> R + Send) -> R {
    let hosts = Hosts { left: Netns::unnamed().unwrap(), right: Netns::unnamed().unwrap() };
    let middle = Netns::unnamed().unwrap();
    for (netns, name, address) in [(&hosts.left, "l", "10.9.0.1"), (&hosts.right, "r", "10.9.0.2")] {
        middle
            .run(|| {
                let mut route = RouteSocket::open().unwrap();
                let far = VethEnd { netns: Some(netns.as_fd()), ..VethEnd::new("eth") };
                route.create_veth(&VethEnd::new(name), &far).unwrap();
                common::up(&mut route, name);
            })
            .unwrap();
        netns
            .run(|| {
                let mut route = RouteSocket::open().unwrap();
                let eth = common::up(&mut route, "eth");
                route.add_address(eth, address.parse().unwrap(), 24).unwrap();
            })
            .unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let forwarding = scope.spawn(move || {
            middle.run(|| {
                let mut route = RouteSocket::open().unwrap();
                let [l, r] = ["l", "r"].map(|name| route.link_by_name(name).unwrap().unwrap().ifindex);
                let memory = PacketMemory::new(2 * AfXdpSpec::new(0).pages()).unwrap();
                let ports = [l, r].map(|ifindex| open(kind, ifindex, Some(&memory)));
                forward(ports, is_over, || ready.send(()).unwrap())
            })
        });
        // Whatever happens in it, the loop must end.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            is_ready.recv_timeout(DEADLINE).unwrap();
            test(&hosts)
        }));
        is_over.store(true, Ordering::Relaxed);
        let ledger = forwarding.join().unwrap().unwrap();
        assert!(ledger.closes(), "{ledger:?}");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn in_namespace(test: impl FnOnce() + Send) {
    Netns::unnamed().unwrap().run(test).unwrap();
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn packet(bytes: &[u8]) -> PacketBuf {
    let mut packet = PacketBuf::new(vec![0; bytes.len() + 512], 64);
    packet.put(bytes.len()).unwrap().copy_from_slice(bytes);
    packet
}

/// Adds what has come.
fn poll(queue: &mut dyn Receive, packets: &mut Vec<Vec<u8>>) {
    let mut batch = datapath::Batch::new();
    queue.poll(BUDGET, &mut batch).unwrap();
    let mut done = Vec::new();
    for index in 0..batch.len() {
        packets.push(batch.packet(index).slices().flatten().copied().collect());
        done.push(batch.hold(index));
    }
    queue.reclaim(&mut done);
}

fn receive(socket: &PacketSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    assert!(socket.wait_readable(DEADLINE).unwrap(), "no frame came");
    let bytes = socket.receive(&mut buffer).unwrap().unwrap();
    buffer.truncate(bytes);
    buffer
}
