//! Bulk over datagrams: numbers, and what is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use stream::engine::{Marks, Role};
use stream::plan::{Pace, Taking, Until};

use super::*;

const OWN: Marks = Marks::Own { cookie: [9; 16] };
const ALL: [Marks; 4] = [Marks::None, OWN, Marks::Iperf3 { wide: false }, Marks::Iperf3 { wide: true }];

/// What a socket's default buffer holds (212,992 bytes, 768 for a small datagram): so many are not lost, however long
/// a receiver does not run.
const FIT: u64 = 250;

fn gentle(messages: u64) -> Plan {
    let mut plan = datagrams(Until::Units(messages));
    plan.pace = Some(Pace::Schedule { per_second: 20_000.0 });
    plan
}

#[test]
fn every_datagram_is_counted_on_both_ends() {
    for host in [V4, V6] {
        for marks in ALL {
            let Some([near, far]) = udp_pair(host, [Role::Send, Role::Receive], marks) else { continue };
            let (near, far) = both(&gentle(FIT), vec![near], vec![far], marks == Marks::None);
            assert_eq!((sent(&near), received(&far)), (FIT * 64, FIT * 64), "{marks:?}");
            assert_eq!(near.flows[0].sent.unwrap().messages, FIT);
            assert_eq!(far.flows[0].received.unwrap().messages, FIT);
            let datagrams = far.flows[0].datagrams;
            assert_eq!(datagrams.is_some(), marks != Marks::None);
            if let Some(datagrams) = datagrams {
                assert_eq!((datagrams.received, datagrams.lost, datagrams.duplicate), (FIT, 0, 0));
                assert!(datagrams.jitter_ns.is_some());
            }
        }
    }
}

#[test]
fn batches_buffers_that_are_cut_and_joined_ones_count_the_same() {
    for (gso, gro, batch) in
        [(None, false, Some(8)), (Some(16), false, None), (Some(16), true, Some(4)), (Some(7), true, None)]
    {
        for marks in ALL {
            let mut plan = datagrams(Until::Units(FIT + 3));
            plan.pace = Some(Pace::Schedule { per_second: 100_000.0 });
            let options = &mut plan.options;
            (options.client.gso_segments, options.client.batch) = (gso, batch);
            (options.server.gro, options.server.batch) = (gro, batch);
            let [near, far] = udp_pair(V4, [Role::Send, Role::Receive], marks).unwrap();
            let (near, far) = both(&plan, vec![near], vec![far], marks == Marks::None);
            let moved = (near.flows[0].sent.unwrap(), far.flows[0].received.unwrap());
            assert_eq!(
                (moved.0.messages, moved.1.messages),
                (FIT + 3, FIT + 3),
                "{gso:?} {gro} {batch:?} {marks:?}"
            );
            assert_eq!((moved.0.bytes, moved.1.bytes), ((FIT + 3) * 64, (FIT + 3) * 64));
            if let Some(datagrams) = far.flows[0].datagrams {
                assert_eq!((datagrams.received, datagrams.lost, datagrams.duplicate), (FIT + 3, 0, 0));
            }
        }
    }
}

#[test]
fn unix_datagrams_and_lengths_without_bytes() {
    for taking in [Taking::Copy, Taking::Discard] {
        let plan = Plan {
            transport: Transport::UnixDatagram,
            work: Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking },
            ..datagrams(Until::Units(5000))
        };
        let [near, far] = unix_datagrams([Role::Send, Role::Receive]);
        let (near, far) = both(&plan, vec![near], vec![far], true);
        assert_eq!((sent(&near), received(&far)), (5000 * 64, 5000 * 64));
        let plan = Plan { transport: Transport::Udp, pace: gentle(1).pace, until: Until::Units(500), ..plan };
        let [near, far] = udp_pair(V4, [Role::Send, Role::Receive], Marks::None).unwrap();
        let (near, far) = both(&plan, vec![near], vec![far], true);
        assert_eq!((sent(&near), received(&far)), (500 * 64, 500 * 64));
    }
}

/// Passes datagrams on from `from` to `to`, except those that `drops` says.
fn relay(socket: &UdpSocket, to: SocketAddr, over: &AtomicBool, drops: impl Fn(u64) -> bool) -> u64 {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut number, mut dropped) = (0, 0);
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(bytes) if drops(number) => {
                assert!(bytes > 0);
                (number, dropped) = (number + 1, dropped + 1);
            }
            Ok(bytes) => {
                socket.send_to(&buffer[..bytes], to).unwrap();
                number += 1;
            }
            Err(_) if over.load(Ordering::Acquire) => return dropped,
            Err(_) => {}
        }
    }
}

#[test]
fn what_a_relay_drops_is_lost_exactly() {
    for marks in &ALL[1..] {
        let (near, far) = udp(V4).unwrap();
        let between = UdpSocket::bind(V4).unwrap();
        let (relay_address, far_address) = (between.local_addr().unwrap(), far.local_addr().unwrap());
        let near = vec![udp_flow(near, relay_address, Role::Send, *marks)];
        let far = vec![udp_flow(far, relay_address, Role::Receive, *marks)];
        let over = AtomicBool::new(false);
        let plan = gentle(FIT);
        let (near_control, far_control) = (Control::new(), Control::new());
        let (near, far, dropped) = std::thread::scope(|scope| {
            // Neither the first nor the last is among them.
            let relaying =
                scope.spawn(|| relay(&between, far_address, &over, |number| number % 7 == 3 && number < 240));
            let receiving =
                scope.spawn(|| engine::run(far, &settings(&plan, End::Server), &far_control).unwrap());
            far_control.begin();
            near_control.begin();
            wait_for("the far end", || far_control.ready());
            let near = engine::run(near, &settings(&plan, End::Client), &near_control).unwrap();
            over.store(true, Ordering::Release);
            let dropped = relaying.join().unwrap();
            far_control.stop();
            (near, receiving.join().unwrap(), dropped)
        });
        assert!(dropped > 30);
        let datagrams = far.flows[0].datagrams.unwrap();
        assert_eq!((datagrams.lost, datagrams.received), (dropped, FIT - dropped), "{marks:?}");
        assert_eq!(near.flows[0].sent.unwrap().messages, FIT);
        assert_eq!((datagrams.duplicate, datagrams.reordered), (0, 0));
    }
}

#[test]
fn requests_that_are_lost_are_counted_and_repeated() {
    for (bytes, marks) in [(1, Marks::None), (64, OWN)] {
        let mut plan = transactions(bytes, bytes, 4, Until::Units(60));
        plan.transport = Transport::Udp;
        let (near, far) = udp(V4).unwrap();
        let between = UdpSocket::bind(V4).unwrap();
        let (relay_address, far_address) = (between.local_addr().unwrap(), far.local_addr().unwrap());
        let near = vec![udp_flow(near, relay_address, Role::Request, marks)];
        let far = vec![flow(Endpoint::Udp { socket: far, peer: None }, Role::Respond)];
        let far = far.into_iter().map(|flow| Flow { marks, ..flow }).collect();
        let over = AtomicBool::new(false);
        let (near, dropped) = std::thread::scope(|scope| {
            let relaying = scope.spawn(|| both_ways(&between, far_address, &over));
            let (near, _) = both(&plan, near, far, false);
            over.store(true, Ordering::Release);
            (near, relaying.join().unwrap())
        });
        let flow = &near.flows[0];
        assert!(dropped > 0);
        let datagrams = flow.datagrams.unwrap();
        assert_eq!((flow.transactions, datagrams.lost, datagrams.received), (Some(60), dropped, 60));
        assert_eq!(flow.sent.unwrap().messages, 60 + dropped);
        // Whoever waited for a repeat waited that long.
        assert!(flow.latency.as_ref().unwrap().max_ns.unwrap() >= 200_000_000);
    }
}

/// Passes requests on, except every twentieth, and their responses back.
fn both_ways(socket: &UdpSocket, to: SocketAddr, over: &AtomicBool) -> u64 {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut number, mut dropped, mut asks) = (0, 0, None);
    let mut buffer = [0; 2048];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((bytes, from)) if from == to => {
                socket.send_to(&buffer[..bytes], asks.unwrap()).unwrap();
            }
            Ok((bytes, from)) => {
                asks = Some(from);
                number += 1;
                if number % 20 == 7 {
                    dropped += 1;
                } else {
                    socket.send_to(&buffer[..bytes], to).unwrap();
                }
            }
            Err(_) if over.load(Ordering::Acquire) => return dropped,
            Err(_) => {}
        }
    }
}

#[test]
fn strangers_are_not_counted() {
    let (near, far) = udp(V4).unwrap();
    let (here, there) = (near.local_addr().unwrap(), far.local_addr().unwrap());
    // From the right place, of another run.
    for _ in 0..5 {
        near.send_to(&[1; 64], there).unwrap();
    }
    let near = vec![udp_flow(near, there, Role::Send, OWN)];
    let (near, far) = both(&gentle(100), near, vec![udp_flow(far, here, Role::Receive, OWN)], false);
    assert_eq!((sent(&near), received(&far)), (6400, 6400));
    assert!(
        far.warnings.iter().any(|warning| warning.starts_with("5 datagrams came that are not")),
        "{:?}",
        far.warnings
    );
}

#[test]
fn many_senders_to_many_sockets_on_one_thread() {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let [left, right] = udp_pair(V4, [Role::Send, Role::Receive], OWN).unwrap();
        near.push(left);
        far.push(right);
    }
    let mut plan = datagrams(Until::Units(4000));
    plan.pace = Some(Pace::Spread { bits_per_second: 64 * 8 * 1000 });
    plan.threads.client.count = Some(1);
    plan.threads.server.count = Some(1);
    let (near, far) = both(&plan, near, far, false);
    assert_eq!((sent(&near), received(&far)), (4000 * 64, 4000 * 64));
    for flow in &far.flows {
        let datagrams = flow.datagrams.unwrap();
        assert_eq!((datagrams.lost, datagrams.received), (0, flow.received.unwrap().messages));
    }
}

#[test]
fn times_of_departure_keep_the_rate_also_where_nothing_heeds_them() {
    let mut plan = datagrams(Until::Units(100));
    plan.pace = Some(Pace::DepartureTimes { bits_per_second: 64 * 8 * 1000 });
    let [near, far] = udp_pair(V4, [Role::Send, Role::Receive], OWN).unwrap();
    let (near, far) = both(&plan, vec![near], vec![far], false);
    assert_eq!((sent(&near), received(&far)), (6400, 6400));
    // 99 ms, of which the last are handed over up to 2 ms before.
    assert!(near.wall_ns >= 97_000_000, "{}", near.wall_ns);
}
