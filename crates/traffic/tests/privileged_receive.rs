//! Marked frames with known faults are sent over a veth pair, and every receiver must say exactly what happened to them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use linux::netns::Netns;
use linux::packet::RxRingSpec;
use linux::route::{RouteSocket, VethEnd};
use measure::window::Account;
use traffic::mark::{Mark, Marker};
use traffic::receive::{AfXdpReceiver, AfXdpReceiverSpec, Count, PacketRing, Receiver, Tally, Udp, Xdp};
use traffic::{Backend, Frames, Mmsg, MmsgSpec};

const DEADLINE: Duration = Duration::from_secs(10);
const STREAM: u16 = 513;
/// Numbers that the sender gave out.
const SENT: u64 = 100;
const MTU: u32 = 1500;

#[test]
fn faults_are_told_by_a_packet_ring() {
    if !linux::privilege::test_may_run("faults_are_told_by_a_packet_ring") {
        return;
    }
    in_pair(1, |pair| {
        let mut receiver = PacketRing::open(pair.far, &RxRingSpec::default()).unwrap();
        let tally = pair.send(&mut receiver, &faulty_frames(pair.far_mac));
        check_faults(&tally, 1);
        assert_eq!((tally.queues(), tally.cpus()), (None, None));
        assert_eq!(receiver.losses().unwrap().iter().map(|loss| loss.frames).sum::<u64>(), 0);
    });
}

#[test]
fn faults_are_told_by_af_xdp_sockets() {
    if !linux::privilege::test_may_run("faults_are_told_by_af_xdp_sockets") {
        return;
    }
    for queues in [1, 2] {
        in_pair(queues, |pair| {
            let spec = AfXdpReceiverSpec::new(pair.far, (0..queues).collect(), MTU + 18);
            let mut receiver = AfXdpReceiver::open(&spec).unwrap();
            let tally = pair.send(&mut receiver, &faulty_frames(pair.far_mac));
            check_faults(&tally, 1);
            let by_queue = tally.queues().unwrap();
            assert_eq!(by_queue.keys().copied().collect::<Vec<_>>(), spec.queues);
            assert_eq!(by_queue.values().map(|count| count.frames).sum::<u64>(), tally.total().frames);
            assert_eq!((tally.cpus(), tally.knows_order()), (None, queues == 1));
            assert!(receiver.losses().unwrap().iter().all(|loss| loss.frames == 0));
        });
    }
}

#[test]
fn faults_are_told_by_a_udp_socket() {
    if !linux::privilege::test_may_run("faults_are_told_by_a_udp_socket") {
        return;
    }
    in_pair(1, |pair| {
        RouteSocket::open().unwrap().add_address(pair.far, Ipv4Addr::new(10, 0, 0, 2).into(), 24).unwrap();
        let mut receiver = Udp::bind("10.0.0.2:9".parse().unwrap()).unwrap();
        let tally = pair.send(&mut receiver, &faulty_frames(pair.far_mac));
        check_faults(&tally, 0);
        assert!(receiver.losses().unwrap().iter().all(|loss| loss.frames == 0));
    });
}

#[test]
fn the_kernel_counts_every_frame_of_every_flow() {
    if !linux::privilege::test_may_run("the_kernel_counts_every_frame_of_every_flow") {
        return;
    }
    in_pair(2, |pair| {
        let mut receiver = Xdp::attach(pair.far, 2).unwrap();
        let frames = faulty_frames(pair.far_mac);
        let tally = pair.send(&mut receiver, &frames);
        assert_eq!(by_source_port(&tally), expected_by_source_port(&frames));
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        assert_eq!(tally.total(), Count { frames: frames.len() as u64, bytes });
        for parts in [tally.queues().unwrap(), tally.cpus().unwrap()] {
            assert_eq!(parts.values().map(|count| count.frames).sum::<u64>(), frames.len() as u64);
            assert_eq!(parts.values().map(|count| count.bytes).sum::<u64>(), bytes);
        }
        assert_eq!(tally.queues().unwrap().keys().copied().collect::<Vec<_>>(), [0, 1]);
    });
}

#[test]
fn the_program_and_this_process_see_the_same_flows() {
    if !linux::privilege::test_may_run("the_program_and_this_process_see_the_same_flows") {
        return;
    }
    let frames = odd_frames();
    let [mut by_program, by_ring, by_socket] = [0, 1, 2].map(|way| {
        let mut seen = None;
        in_pair(1, |pair| {
            let mut receiver: Box<dyn Receiver> = match way {
                0 => Box::new(Xdp::attach(pair.far, 1).unwrap()),
                1 => Box::new(PacketRing::open(pair.far, &RxRingSpec::default()).unwrap()),
                _ => {
                    let spec = AfXdpReceiverSpec::new(pair.far, vec![0], MTU + 18);
                    Box::new(AfXdpReceiver::open(&spec).unwrap())
                }
            };
            let frames = if way == 1 { &frames[1..] } else { &frames[..] };
            let tally = pair.send(&mut *receiver, frames);
            seen = Some(
                tally.flows().map(|(flow, count)| (flow.to_string(), count)).collect::<BTreeMap<_, _>>(),
            );
        });
        seen.unwrap()
    });
    assert!(by_program.len() > 15, "{by_program:?}");
    assert_eq!(by_program, by_socket);
    // The stack takes one VLAN tag off before a packet socket sees the frame, so the third is looked behind there.
    assert_eq!(by_program.remove("EtherType 0x8100"), Some(Count { frames: 1, bytes: 84 }));
    assert_eq!(by_program, by_ring);
}

#[test]
fn a_frame_that_the_device_sends_has_not_arrived() {
    if !linux::privilege::test_may_run("a_frame_that_the_device_sends_has_not_arrived") {
        return;
    }
    in_pair(1, |pair| {
        let mut receiver = PacketRing::open(pair.near, &RxRingSpec::default()).unwrap();
        pair.send_only(&faulty_frames(pair.far_mac));
        let mut tally = Tally::new(false);
        receiver.finish(&mut tally).unwrap();
        assert_eq!(tally.total().frames, 0);
    });
}

#[test]
fn a_ring_without_room_counts_what_it_drops() {
    if !linux::privilege::test_may_run("a_ring_without_room_counts_what_it_drops") {
        return;
    }
    in_pair(1, |pair| {
        let spec = RxRingSpec { block_bytes: 4096, blocks: 2, ..RxRingSpec::default() };
        let mut receiver = PacketRing::open(pair.far, &spec).unwrap();
        let frames = faulty_frames(pair.far_mac);
        (0..20).for_each(|_| pair.send_only(&frames));
        let mut tally = Tally::new(false);
        receiver.finish(&mut tally).unwrap();
        let [loss] = receiver.losses().unwrap()[..] else { panic!("one reason") };
        assert!(tally.total().frames > 0 && loss.frames > 0);
        assert_eq!(tally.total().frames + loss.frames, 20 * frames.len() as u64);
        // Reading it sets the kernel's counter to 0; the sum stays.
        assert_eq!(receiver.losses().unwrap(), [loss]);
    });
}

#[test]
fn a_device_that_goes_down_ends_listening() {
    if !linux::privilege::test_may_run("a_device_that_goes_down_ends_listening") {
        return;
    }
    in_pair(1, |pair| {
        let mut receiver = PacketRing::open(pair.far, &RxRingSpec::default()).unwrap();
        RouteSocket::open().unwrap().set_down(pair.far).unwrap();
        let mut tally = Tally::new(false);
        let error = receiver.poll(DEADLINE, &mut tally).unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        let errno = source.downcast_ref::<linux::SyscallError>().unwrap().errno();
        assert_eq!(errno, Some(libc::ENETDOWN), "{error}");
    });
}

/// What [`faulty_frames`] must be taken for.
fn check_faults(tally: &Tally, unmarked: u64) {
    let marks = tally.marks().unwrap();
    let streams: Vec<(u16, Account)> = marks.streams().collect();
    let [(STREAM, account)] = streams[..] else { panic!("{streams:?}") };
    assert_eq!((account.unique, account.duplicates, account.too_old), (95, 1, 0));
    // 10, 11, and 40, which came changed; 98 and 99 are seen to be missing when it is known that they were sent.
    assert_eq!((account.range, account.lost, account.lost_of(SENT)), (Some((0, 97)), 3, Some(5)));
    assert_eq!((marks.corrupted(), marks.unmarked()), (1, unmarked));
    if tally.knows_order() {
        assert_eq!((account.reordered, account.extent_max), (1, Some(1)));
    }
    let mut expected = expected_by_source_port(&faulty_frames([0; 6]));
    if unmarked == 0 {
        expected.remove(&None);
    }
    assert_eq!(by_source_port(tally), expected);
    assert_eq!(tally.total().frames, 97 + unmarked);
}

/// 100 numbers over three flows: 10 and 11 left out, 20 twice, 30 and 31 swapped, 40 changed, 98 and 99 left out; and one
/// frame of somebody else.
fn faulty_frames(to: [u8; 6]) -> Vec<Vec<u8>> {
    let mut numbers: Vec<u64> = (0..SENT).filter(|number| ![10, 11, 98, 99].contains(number)).collect();
    numbers.insert(20, 20);
    let swapped = numbers.iter().position(|&number| number == 30).unwrap();
    numbers.swap(swapped, swapped + 1);
    let mut frames: Vec<Vec<u8>> = numbers
        .into_iter()
        .map(|number| {
            let mut frame = udp4(to, 5000 + (number % 3) as u16, 9, &[number as u8; 18]);
            let mark = Mark { stream: STREAM, sequence: number };
            Marker::locate(&frame).unwrap().write(&mut frame, mark);
            if number == 40 {
                frame[43] ^= 0x10;
            }
            frame
        })
        .collect();
    frames.push(ethernet(to, 0x0806, &[7; 46]));
    frames
}

/// Frames of every kind that flows are told apart by, and broken ones.
fn odd_frames() -> Vec<Vec<u8>> {
    let to = [2, 0, 0, 0, 0, 9];
    let plain = udp4(to, 1, 2, &[0; 30]);
    let thrice = tagged(&plain, &[0x8100, 0x8100, 0x8100]);
    let mut frames = vec![thrice, plain.clone(), plain.clone(), udp4(to, 2, 1, &[0; 30])];
    let with = |from: &[u8], changes: &[(usize, u8)]| {
        let mut frame = from.to_vec();
        changes.iter().for_each(|&(at, value)| frame[at] = value);
        frame
    };
    for protocol in [1, 6, 132, 47, 255] {
        frames.push(with(&plain, &[(23, protocol)]));
    }
    frames.push(with(&plain, &[(20, 0x20)])); // the first fragment of several
    frames.push(with(&plain, &[(21, 1)])); // a later one
    frames.push(with(&plain, &[(20, 0x40)]));
    frames.push(with(&plain, &[(14, 0x46)])); // options: ports four bytes on
    frames.push(with(&plain, &[(14, 0x4f)])); // options to the end
    frames.push(with(&plain, &[(14, 0x44)])); // too short a header
    frames.push(with(&plain, &[(16, 0xff), (17, 0xff)]));
    for tags in [&[0x8100_u16][..], &[0x88a8, 0x8100], &[0x8100, 0x8100]] {
        frames.push(tagged(&plain, tags));
    }
    let mut v6 = vec![0x60, 0, 0, 0, 0, 20, 17, 64];
    v6.extend((0..32).map(|byte| byte * 3));
    v6.extend([0, 5, 0, 6]);
    v6.extend([0; 20]);
    let v6 = ethernet(to, 0x86dd, &v6);
    frames.extend([v6.clone(), tagged(&v6, &[0x8100]), with(&v6, &[(20, 6)]), with(&v6, &[(20, 58)])]);
    frames.push(with(&v6, &[(20, 0)])); // an extension header is not looked behind
    for length in [14, 17, 18, 33, 34, 37, 38] {
        frames.push(plain[..length].to_vec());
        frames.push(v6[..length + 20].to_vec());
    }
    frames.push(ethernet(to, 0x88b5, &[0; 46]));
    frames
}

fn tagged(frame: &[u8], tags: &[u16]) -> Vec<u8> {
    let mut longer = frame[..12].to_vec();
    for (number, tag) in tags.iter().enumerate() {
        longer.extend(tag.to_be_bytes());
        longer.extend([0, number as u8 + 1]);
    }
    longer.extend(&frame[12..]);
    longer
}

fn ethernet(to: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// From 10.0.0.1 to 10.0.0.2, without a UDP checksum.
fn udp4(to: [u8; 6], from_port: u16, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_bytes = 8 + payload.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_bytes).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = ip.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    ip.extend(from_port.to_be_bytes());
    ip.extend(to_port.to_be_bytes());
    ip.extend(udp_bytes.to_be_bytes());
    ip.extend([0, 0]);
    ip.extend(payload);
    ethernet(to, 0x0800, &ip)
}

/// Frames by the source port of their flow.
fn by_source_port(tally: &Tally) -> BTreeMap<Option<u16>, u64> {
    let port = |flow: traffic::Flow| match flow {
        traffic::Flow::Ip { ports, .. } => ports.map(|(from, _)| from),
        traffic::Flow::Other { .. } => None,
    };
    tally.flows().map(|(flow, count)| (port(flow), count.frames)).collect()
}

fn expected_by_source_port(frames: &[Vec<u8>]) -> BTreeMap<Option<u16>, u64> {
    let mut expected = BTreeMap::new();
    for frame in frames {
        let port = (frame[12..14] == [8, 0]).then(|| u16::from_be_bytes([frame[34], frame[35]]));
        *expected.entry(port).or_default() += 1;
    }
    expected
}

/// Two ends of a veth pair, up and silent, in a namespace that the calling thread is in.
struct Pair {
    near: u32,
    far: u32,
    far_mac: [u8; 6],
}

impl Pair {
    fn send_only(&self, frames: &[Vec<u8>]) {
        let count = frames.len() as u64;
        let mut backend =
            Mmsg::new(&MmsgSpec::new(self.near), Frames::cycle(frames.to_vec()).unwrap()).unwrap();
        assert_eq!(backend.send(count).unwrap().confirmed, count);
    }

    /// Sends the frames and receives until nothing comes any more.
    fn send(&self, receiver: &mut dyn Receiver, frames: &[Vec<u8>]) -> Tally {
        let mut tally = Tally::new(receiver.kind().sees_bytes());
        self.send_only(frames);
        let start = Instant::now();
        while tally.total().frames < frames.len() as u64 - 1 && start.elapsed() < DEADLINE {
            receiver.poll(Duration::from_millis(100), &mut tally).unwrap();
        }
        receiver.finish(&mut tally).unwrap();
        tally
    }
}

fn in_pair(queues: u32, test: impl FnOnce(&Pair) + Send) {
    let netns = Netns::unnamed().unwrap();
    netns
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            let end =
                |name| VethEnd { tx_queues: Some(queues), rx_queues: Some(queues), ..VethEnd::new(name) };
            route.create_veth(&end("near"), &end("far")).unwrap();
            let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap());
            for ifindex in [1, near.ifindex, far.ifindex] {
                route.set_no_link_local(ifindex).unwrap();
                route.set_up(ifindex).unwrap();
            }
            assert!(route.wait_until_carrying(&[near.ifindex, far.ifindex], DEADLINE).unwrap());
            test(&Pair { near: near.ifindex, far: far.ifindex, far_mac: far.mac.unwrap() });
        })
        .unwrap();
}
