//! Backends with a clock, over a veth pair of the test's own: every packet is counted, and none leaves too soon.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, Pair, WITH_FRAMES, XDP_DROP, in_pair, numbered, numbered_frames, open};
use linux::clock;
use linux::packet::{PROTOCOL_ALL, PacketSocket};
use traffic::{BackendKind, Generator, Pace, Paced, Recorded, Timing, recording};

static GO_ON: AtomicBool = AtomicBool::new(false);

#[test]
fn a_rate_is_kept_packet_by_packet() {
    if !linux::privilege::test_may_run("a_rate_is_kept_packet_by_packet") {
        return;
    }
    const INTERVAL_NS: u64 = 50_000;
    const PACKETS: u64 = 4000;
    for kind in WITH_FRAMES {
        in_pair(|pair| {
            let sink = pair.count(XDP_DROP);
            let start_ns = clock::monotonic_ns();
            let mut paced = fixed(kind, pair, INTERVAL_NS);
            let mut sent = paced.send(PACKETS / 4, &GO_ON).unwrap();
            sent += paced.send(PACKETS * 3 / 4, &GO_ON).unwrap();
            assert!(clock::monotonic_ns() - start_ns >= (PACKETS - 1) * INTERVAL_NS, "{kind}");
            // All have left without a flush.
            assert_eq!(sink.wait_until(PACKETS, DEADLINE).unwrap(), PACKETS, "{kind}");
            sent += paced.flush().unwrap();
            assert_eq!((sent.offered, sent.confirmed, paced.grain()), (PACKETS, PACKETS, Some(1)), "{kind}");
            let gaps = paced.gaps().unwrap();
            assert_eq!(gaps.count(), PACKETS - 1, "{kind}");
            // To within the resolution of gaps.
            assert_eq!(gaps.between(0, INTERVAL_NS * 499 / 1000), 0, "{kind}: {:?}", gaps.range());
            assert_eq!(sink.received().unwrap(), PACKETS, "{kind}");
        });
    }
}

#[test]
fn without_a_pace_everything_passes() {
    if !linux::privilege::test_may_run("without_a_pace_everything_passes") {
        return;
    }
    const PACKETS: u64 = 10_000;
    for kind in WITH_FRAMES {
        in_pair(|pair| {
            let sink = pair.count(XDP_DROP);
            let mut passed = Paced::new(open(kind, pair, numbered_frames()), Timing::Unpaced);
            let mut sent = passed.send(PACKETS, &GO_ON).unwrap();
            sent += passed.flush().unwrap();
            assert_eq!((sent.offered, sent.confirmed), (PACKETS, PACKETS), "{kind}");
            assert_eq!(sink.wait_until(PACKETS, DEADLINE).unwrap(), PACKETS, "{kind}");
            assert!(passed.grain().is_none() && passed.gaps().is_none());
            assert_eq!(passed.send(PACKETS, &AtomicBool::new(true)).unwrap().offered, 0);
        });
    }
}

#[test]
fn a_slow_pace_stops_at_once() {
    if !linux::privilege::test_may_run("a_slow_pace_stops_at_once") {
        return;
    }
    for interval_ns in [100_000_000, 10_000_000_000] {
        in_pair(|pair| {
            let sink = pair.count(XDP_DROP);
            let mut paced = fixed(BackendKind::TxRing, pair, interval_ns);
            let stop = AtomicBool::new(false);
            let (sent, waited) = std::thread::scope(|scope| {
                let stopper = scope.spawn(|| {
                    // The first packet has left by itself, so that the sender now waits for the second.
                    assert_eq!(sink.wait_until(1, DEADLINE).unwrap(), 1);
                    stop.store(true, Ordering::Relaxed);
                    Instant::now()
                });
                let sent = paced.send(u64::MAX, &stop).unwrap();
                (sent, stopper.join().unwrap().elapsed())
            });
            assert_eq!(sent.offered, sink.received().unwrap());
            // Far from the interval of 10 s; with a CPU to itself it is some 50 ms.
            assert!(waited < Duration::from_secs(2), "{waited:?}");
        });
    }
}

#[test]
fn a_recording_is_sent_frame_by_frame_as_it_was_seen() {
    if !linux::privilege::test_may_run("a_recording_is_sent_frame_by_frame_as_it_was_seen") {
        return;
    }
    // At its own times: 0, 30 µs, 100 µs, 130 µs, … twice as fast.
    const FRAMES: u64 = 500;
    let at_ns = |number| number / 2 * 100_000 + number % 2 * 30_000;
    for kind in WITH_FRAMES {
        in_pair(|pair| {
            let receiver = PacketSocket::open(pair.far, PROTOCOL_ALL).unwrap();
            let mut number = 0;
            let next = move |room: &mut [u8]| {
                let recorded = Recorded { l2_bytes: 60 + number as usize, at_ns: at_ns(number) };
                let frame = numbered(number);
                number += 1;
                (number <= FRAMES).then(|| {
                    room[..frame.len()].copy_from_slice(&frame);
                    recorded
                })
            };
            let (frames, timeline) = recording(600, next).unwrap();
            let start_ns = clock::monotonic_ns();
            let timing = Timing::Recorded { timeline, start_ns, speed: 2.0 };
            let mut paced = Paced::new(open(kind, pair, frames), timing);
            let mut received = 0;
            while !paced.ended() {
                let mut sent = paced.send(90, &GO_ON).unwrap();
                sent += paced.flush().unwrap();
                assert_eq!(sent.offered, sent.confirmed, "{kind}");
                for number in received..received + sent.offered {
                    let frame = common::receive(&receiver);
                    assert_eq!(
                        (frame.len(), &frame[..60]),
                        (60 + number as usize, &numbered(number)[..]),
                        "{kind}"
                    );
                }
                received += sent.offered;
            }
            assert!(clock::monotonic_ns() - start_ns >= at_ns(FRAMES - 1) / 2, "{kind}");
            assert_eq!((received, paced.grain()), (FRAMES, Some(1)), "{kind}");
            let gaps = paced.gaps().unwrap();
            // Half of the shortest recorded gap, at twice the speed.
            assert_eq!((gaps.count(), gaps.between(0, 7450)), (FRAMES - 1, 0), "{kind}: {:?}", gaps.range());
        });
    }
}

fn fixed(kind: BackendKind, pair: &Pair, interval_ns: u64) -> Paced {
    let pace = Pace { start_ns: clock::monotonic_ns(), interval_ns: interval_ns as f64 };
    Paced::new(open(kind, pair, numbered_frames()), Timing::Fixed(pace))
}
