//! Every backend sends over a veth pair of the test's own, and every frame is counted and compared at the far end.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{
    DEADLINE, WITH_FRAMES, XDP_DROP, XDP_PASS, in_pair, insn, numbered, numbered_frames, open, receive, xdp,
};
use linux::bpf::Map;
use linux::packet::{PROTOCOL_ALL, PacketSocket};
use linux::route::RouteSocket;
use traffic::{
    Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, ProgramSink, SendError, Sent, probe,
};

#[test]
fn every_backend_is_available() {
    if !linux::privilege::test_may_run("every_backend_is_available") {
        return;
    }
    for ability in probe() {
        if ability.kind == BackendKind::Pktgen {
            continue; // a module that most hosts have not loaded
        }
        assert!(ability.is_available(), "{ability:?}");
    }
}

#[test]
fn every_frame_sent_is_counted_at_the_far_end() {
    if !linux::privilege::test_may_run("every_frame_sent_is_counted_at_the_far_end") {
        return;
    }
    for kind in WITH_FRAMES {
        for varying in [false, true] {
            in_pair(|pair| {
                let sink = pair.count(XDP_DROP);
                let frames = if varying { numbered_frames() } else { Frames::constant(numbered(0)).unwrap() };
                let mut backend = open(kind, pair, frames);
                check(&mut *backend, &sink);
            });
        }
    }
}

#[test]
fn a_call_takes_a_batch_whatever_the_number_of_flows() {
    if !linux::privilege::test_may_run("a_call_takes_a_batch_whatever_the_number_of_flows") {
        return;
    }
    const CALLS: u64 = 10;
    for (batch, flows) in [(1, 64), (16, 7), (64, 3), (64, 1001)] {
        in_pair(|pair| {
            let sink = pair.count(XDP_DROP);
            let frames = Frames::cycle((0..flows).map(numbered).collect()).unwrap();
            let spec = MmsgSpec { batch, ..MmsgSpec::new(pair.near) };
            let mut backend = Mmsg::new(&spec, frames).unwrap();
            let packets = CALLS * batch as u64;
            let sent = backend.send(packets).unwrap();
            // More calls than that mean that the kernel took a part of a batch, which it may.
            assert!(u64::from(sent.calls) >= CALLS, "batch {batch}, {flows} flows: {sent:?}");
            assert_eq!(sink.wait_until(packets, DEADLINE).unwrap(), packets);
        });
    }
}

#[test]
fn a_queue_can_be_used_again_at_once() {
    if !linux::privilege::test_may_run("a_queue_can_be_used_again_at_once") {
        return;
    }
    in_pair(|pair| {
        for _ in 0..3 {
            drop(open(BackendKind::AfXdp, pair, numbered_frames()));
        }
    });
}

#[test]
fn live_frames_are_counted_at_the_far_end() {
    if !linux::privilege::test_may_run("live_frames_are_counted_at_the_far_end") {
        return;
    }
    in_pair(|pair| {
        let sink = pair.count(XDP_DROP);
        check(&mut pair.xdp_live(), &sink);
    });
}

#[test]
fn injected_frames_reach_the_stack() {
    if !linux::privilege::test_may_run("injected_frames_reach_the_stack") {
        return;
    }
    in_pair(|pair| {
        let mut backend = pair.live(BackendKind::Inject, &[insn(0xb7, 0, 0, 0, XDP_PASS)]);
        let dropped = || RouteSocket::open().unwrap().link_stats(pair.near).unwrap().rx_dropped;
        let before = dropped();
        let sent = backend.send(5000).unwrap();
        assert_eq!(sent, Sent { offered: 5000, confirmed: 5000, calls: 1 });
        // Nobody takes this EtherType.
        assert_eq!(dropped() - before, 5000);
    });
}

#[test]
fn a_run_goes_on_after_a_signal() {
    if !linux::privilege::test_may_run("a_run_goes_on_after_a_signal") {
        return;
    }
    const FRAMES: u64 = 2_000_000;
    const SIGNALS: usize = 30;
    let seen = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&seen)).unwrap();
    in_pair(|pair| {
        let mut backend = pair.live(BackendKind::Inject, &[insn(0xb7, 0, 0, 0, XDP_DROP)]);
        let runner = rustix::thread::gettid();
        let done = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Several, since one that comes between two calls interrupts none; each after the one before was taken.
                for _ in 0..SIGNALS {
                    // A thread's number is taken too, and that thread then gets the signal of its process.
                    rustix::process::kill_process(runner, rustix::process::Signal::USR1).unwrap();
                    while !seen.swap(false, Ordering::Relaxed) && !done.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                }
            });
            let sent = backend.send(FRAMES);
            done.store(true, Ordering::Relaxed);
            sent.unwrap()
        });
        assert_eq!((sent.offered, sent.confirmed), (FRAMES, FRAMES));
        assert!(sent.calls > 1);
    });
}

#[test]
fn a_program_that_does_not_count_confirms_nothing() {
    if !linux::privilege::test_may_run("a_program_that_does_not_count_confirms_nothing") {
        return;
    }
    let control = Map::array(8, 1, true).unwrap();
    let code = [insn(0xb7, 0, 0, 0, XDP_DROP), insn(0x95, 0, 0, 0, 0)];
    let mut backend = Inject::new(InjectSpec {
        kind: BackendKind::Inject,
        program: xdp(&code),
        control: control.mmap_array().unwrap(),
        frame: numbered(0),
        ingress_ifindex: 1,
        rx_queue: 0,
        batch: 64,
    });
    assert_eq!(backend.send(100).unwrap().confirmed, 0);
}

#[test]
fn frames_arrive_in_order_as_they_were_written() {
    if !linux::privilege::test_may_run("frames_arrive_in_order_as_they_were_written") {
        return;
    }
    // More frames than any ring has entries, so that every slot is used again.
    const COUNT: u64 = 1500;
    for kind in WITH_FRAMES {
        for period in [None, Some(3), Some(7)] {
            in_pair(|pair| {
                let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
                let frames = match period {
                    Some(period) => Frames::cycle((0..period).map(numbered).collect()).unwrap(),
                    None => numbered_frames(),
                };
                let mut backend = open(kind, pair, frames);
                let mut sequence = 0;
                while sequence < COUNT {
                    // A part at a time, so that the receiving socket is never full.
                    let part = (COUNT - sequence).min(97);
                    let sent = backend.send(part).unwrap();
                    assert_eq!(sent.offered, part);
                    backend.flush().unwrap();
                    for number in sequence..sequence + part {
                        let expected = numbered(number % period.unwrap_or(u64::MAX));
                        assert_eq!(receive(&receiver), expected, "{kind} {period:?} frame {number}");
                    }
                    sequence += part;
                }
            });
        }
    }
}

#[test]
fn frames_of_several_lengths_arrive_as_long_as_they_are_until_they_end() {
    if !linux::privilege::test_may_run("frames_of_several_lengths_arrive_as_long_as_they_are_until_they_end")
    {
        return;
    }
    // More than any ring has entries, and an end within a batch.
    const COUNT: u64 = 1207;
    let l2_bytes = |sequence| 60 + (sequence * 7 % 1455) as usize;
    for kind in WITH_FRAMES {
        in_pair(|pair| {
            let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let fill = move |sequence, room: &mut [u8]| {
                (sequence < COUNT).then(|| {
                    room[..60].copy_from_slice(&numbered(sequence));
                    l2_bytes(sequence)
                })
            };
            let mut backend = open(kind, pair, Frames::varied(1514, fill).unwrap());
            let mut sequence = 0;
            while !backend.ended() {
                // A part at a time, so that the receiving socket is never full.
                let sent = backend.send(30).unwrap();
                assert_eq!(sent.offered, (COUNT - sequence).min(30), "{kind} {sequence}");
                backend.flush().unwrap();
                for number in sequence..sequence + sent.offered {
                    let frame = receive(&receiver);
                    assert_eq!(
                        (frame.len(), &frame[..60]),
                        (l2_bytes(number), &numbered(number)[..]),
                        "{kind}"
                    );
                }
                sequence += sent.offered;
            }
            assert_eq!(sequence, COUNT);
            assert_eq!(backend.send(5).unwrap().offered, 0);
        });
    }
}

#[test]
fn live_frames_keep_what_the_program_wrote() {
    if !linux::privilege::test_may_run("live_frames_keep_what_the_program_wrote") {
        return;
    }
    in_pair(|pair| {
        let _sink = pair.count(XDP_PASS);
        let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
        // A live frame counts with its whole page against the receiving socket: some 40 find room.
        pair.xdp_live().send(20).unwrap();
        for _ in 0..20 {
            assert_eq!(receive(&receiver), numbered(0));
        }
    });
}

#[test]
fn a_peer_without_xdp_loses_live_frames_that_the_program_counted() {
    if !linux::privilege::test_may_run("a_peer_without_xdp_loses_live_frames_that_the_program_counted") {
        return;
    }
    in_pair(|pair| {
        let sent = pair.xdp_live().send(1000).unwrap();
        assert_eq!(sent.confirmed, 1000);
        let received = RouteSocket::open().unwrap().link_stats(pair.far).unwrap().rx_packets;
        assert_eq!(received, 0);
    });
}

#[test]
fn a_frame_above_the_mtu_is_an_error() {
    if !linux::privilege::test_may_run("a_frame_above_the_mtu_is_an_error") {
        return;
    }
    for kind in [BackendKind::TxRing, BackendKind::Mmsg] {
        in_pair(|pair| {
            let mut backend = open(kind, pair, Frames::constant(vec![0; 1600]).unwrap());
            let error = backend.send(1000).and_then(|_| backend.flush()).unwrap_err();
            assert!(matches!(&error, SendError::Syscall { .. }) && error.sent().confirmed == 0, "{error}");
        });
    }
}

#[test]
fn a_device_that_went_down_is_an_error() {
    if !linux::privilege::test_may_run("a_device_that_went_down_is_an_error") {
        return;
    }
    for kind in WITH_FRAMES {
        in_pair(|pair| {
            let mut backend = open(kind, pair, numbered_frames());
            backend.send(1).and_then(|_| backend.flush()).unwrap();
            RouteSocket::open().unwrap().set_down(pair.near).unwrap();
            let error = backend.send(1000).and_then(|_| backend.flush()).unwrap_err();
            let SendError::Syscall { source, .. } = &error else { panic!("{error}") };
            assert_eq!(source.errno(), Some(libc::ENETDOWN), "{error}");
        });
    }
}

/// Sends in several parts and compares both counts.
fn check(backend: &mut dyn Backend, sink: &ProgramSink) {
    let mut all = Sent::default();
    for packets in [1, 31, 32, 33, 63, 64, 1000, 12_345] {
        let sent = backend.send(packets).unwrap();
        assert_eq!(sent.offered, packets, "{}", backend.kind());
        all += sent;
    }
    all += backend.flush().unwrap();
    assert_eq!(all.confirmed, all.offered, "{}", backend.kind());
    assert_eq!(sink.wait_until(all.offered, DEADLINE).unwrap(), all.offered, "{}", backend.kind());
    assert_eq!(backend.flush().unwrap().confirmed, 0);
    assert_eq!(sink.received().unwrap(), all.offered);
}
