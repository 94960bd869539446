//! Requests and responses.

use stream::engine::{Endpoint, Marks, Role};
use stream::plan::{Pace, Threads, Until};

use super::*;

const OWN: Marks = Marks::Own { cookie: [5; 16] };

#[track_caller]
fn check(near: &Side, far: &Side, count: u64, request: u64, response: u64) {
    let flow = &near.flows[0];
    assert_eq!(flow.transactions, Some(count));
    assert_eq!((flow.sent.unwrap().bytes, flow.received.unwrap().bytes), (count * request, count * response));
    let counted: u64 = flow.latency.as_ref().unwrap().counts.iter().map(|&(_, count)| count).sum();
    assert_eq!(counted, count);
    assert_eq!(far.flows[0].transactions, Some(count));
    assert_eq!(far.flows[0].received.unwrap().bytes, count * request);
    assert!(near.warnings.is_empty() && far.warnings.is_empty(), "{near:?} {far:?}");
}

#[test]
fn transactions_over_every_stream() {
    for outstanding in [1, 16] {
        for (request, response) in [(1, 1), (100, 3000), (200_000, 1)] {
            let plan = transactions(request, response, outstanding, Until::Units(500));
            for (_, [near, far]) in streams([Role::Request, Role::Respond]) {
                let (near, far) = both(&plan, vec![near], vec![far], true);
                check(&near, &far, 500, request.into(), response.into());
            }
        }
    }
}

#[test]
fn transactions_over_datagrams() {
    for outstanding in [1, 8] {
        for (size, marks) in [(1, OWN), (1, Marks::None), (64, OWN)] {
            let mut plan = transactions(size, size, outstanding, Until::Units(500));
            plan.transport = Transport::Udp;
            for host in [V4, V6] {
                let Some([near, far]) = udp_pair(host, [Role::Request, Role::Respond], marks) else {
                    continue;
                };
                let (near, far) = both(&plan, vec![near], vec![far], false);
                check(&near, &far, 500, size.into(), size.into());
                let datagrams = near.flows[0].datagrams.unwrap();
                assert_eq!((datagrams.received, datagrams.lost, datagrams.late), (500, 0, 0));
            }
            plan.transport = Transport::UnixDatagram;
            let [near, far] = unix_datagrams([Role::Request, Role::Respond]);
            let (near, far) = both(&plan, vec![near], vec![far], true);
            check(&near, &far, 500, size.into(), size.into());
        }
    }
}

#[test]
fn whoever_asked_is_answered_where_there_is_no_peer() {
    let mut plan = transactions(10, 20, 1, Until::Units(100));
    plan.transport = Transport::Udp;
    let (near, far) = udp(V4).unwrap();
    let there = far.local_addr().unwrap();
    let far = flow(Endpoint::Udp { socket: far, peer: None }, Role::Respond);
    let (near, far) = both(&plan, vec![udp_flow(near, there, Role::Request, Marks::None)], vec![far], false);
    check(&near, &far, 100, 10, 20);
}

#[test]
fn many_flows_ask_and_are_answered() {
    const FLOWS: usize = 300; // more than have a histogram each, on one thread
    linux::limits::raise_open_files(8 * FLOWS as u64);
    let mut plan = transactions(1, 1, 1, Until::Units(6000));
    let threads = Threads { count: Some(1), cpus: Vec::new() };
    plan.threads = Ends { client: threads.clone(), server: threads };
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..FLOWS {
        let (left, right) = tcp(V4).unwrap();
        near.push(flow(Endpoint::Tcp(left), Role::Request));
        far.push(flow(Endpoint::Tcp(right), Role::Respond));
    }
    let (near, far) = both(&plan, near, far, true);
    for side in [&near, &far] {
        assert_eq!(side.flows.iter().map(|flow| flow.transactions.unwrap()).sum::<u64>(), 6000);
    }
    let recorded =
        near.flows.iter().filter_map(|flow| flow.latency.as_ref()).flat_map(|latency| &latency.counts);
    assert_eq!(recorded.map(|&(_, count)| count).sum::<u64>(), 6000);
}

#[test]
fn a_schedule_counts_latency_from_when_a_transaction_was_due() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let mut plan = transactions(1, 1, 4, Until::Units(100));
        plan.transport = transport;
        plan.pace = Some(Pace::Schedule { per_second: 2000.0 });
        let [near, far] = match transport {
            Transport::Tcp => streams([Role::Request, Role::Respond]).swap_remove(0).1,
            _ => udp_pair(V4, [Role::Request, Role::Respond], Marks::None).unwrap(),
        };
        let (near, far) = both(&plan, vec![near], vec![far], transport == Transport::Tcp);
        check(&near, &far, 100, 1, 1);
        assert!(near.flows[0].latency.as_ref().unwrap().from_due);
        // The hundredth is due 49.5 ms after the first: never sooner.
        assert!(near.wall_ns >= 49_500_000, "{}", near.wall_ns);
    }
}

#[test]
fn a_time_ends_transactions_and_none_is_left_half_done() {
    for outstanding in [1, 8] {
        let plan = transactions(100, 100, outstanding, Until::Time(Duration::from_millis(100)));
        let [near, far] = streams([Role::Request, Role::Respond]).swap_remove(0).1;
        let (near, far) = both(&plan, vec![near], vec![far], true);
        let count = near.flows[0].transactions.unwrap();
        assert!(count > 0);
        check(&near, &far, count, 100, 100);
    }
}
