//! How runs end that nobody ends in the usual way.

use std::io::Write;

use stream::engine::{Endpoint, Marks, Role, Settings};
use stream::plan::Until;

use super::*;

const LONG: Duration = Duration::from_secs(3600);

/// Runs flows on a thread, does something meanwhile, and returns what was counted and how long it took from then.
fn meanwhile(
    plan: &Plan,
    flows: Vec<Flow>,
    give_up_after: Duration,
    act: impl FnOnce(&Control),
) -> (Side, Duration) {
    let control = Control::new();
    let settings = Settings { give_up_after, ..settings(plan, End::Client) };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| engine::run(flows, &settings, &control).unwrap());
        control.begin();
        wait_for("the end", || control.ready());
        act(&control);
        let acted = Instant::now();
        (running.join().unwrap(), acted.elapsed())
    })
}

#[test]
fn every_role_stops_when_told() {
    let stop = |plan: &Plan, flow: Flow| {
        let (side, took) = meanwhile(plan, vec![flow], LONG, |control| {
            assert!(!control.is_over());
            control.stop();
        });
        assert!(took < PATIENCE);
        assert_eq!(side.flows.len(), 1);
        assert!(side.warnings.is_empty(), "{side:?}");
    };
    let bulk = copying(Until::Time(LONG));
    let requests = transactions(1, 1, 1, Until::Time(LONG));
    for (role, plan) in
        [(Role::Send, &bulk), (Role::Receive, &bulk), (Role::Request, &requests), (Role::Respond, &requests)]
    {
        for (_, [near, _far]) in streams([role; 2]) {
            stop(plan, near);
        }
        let small = Plan { send_bytes: 64, ..plan.clone() };
        let [near, _far] = udp_pair(V4, [role; 2], Marks::None).unwrap();
        stop(&small, near);
        let [near, _far] = unix_datagrams([role; 2]);
        stop(&small, near);
    }
    let connections = Plan { work: Work::Connections { exchange: None }, ..bulk };
    let listener = listener(V4).unwrap();
    let to = listener.local_addr().unwrap();
    stop(&connections, flow(Endpoint::Listener(listener.try_clone().unwrap()), Role::Accept));
    stop(&connections, flow(Endpoint::Connector { to, bind: None }, Role::Connect));
}

#[test]
fn stopped_before_it_began() {
    let control = Control::new();
    control.stop();
    let [near, _far] = streams([Role::Send; 2]).swap_remove(0).1;
    let side =
        engine::run(vec![near], &settings(&copying(Until::Time(LONG)), End::Client), &control).unwrap();
    assert_eq!(sent(&side), 0);
}

#[test]
fn what_arrived_before_the_stop_is_counted() {
    for marks in [Marks::None, Marks::Own { cookie: [2; 16] }] {
        let (near, far) = udp(V4).unwrap();
        let (here, there) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        let mut datagram = [0; 64];
        datagram[..16].copy_from_slice(&[2; 16]);
        let plan = datagrams(Until::Time(LONG));
        let receiving = vec![udp_flow(far, here, Role::Receive, marks)];
        let (side, _) = meanwhile(&plan, receiving, LONG, |control| {
            for number in 0..50_u64 {
                datagram[16..24].copy_from_slice(&number.to_be_bytes());
                near.send_to(&datagram, there).unwrap();
            }
            control.stop();
        });
        assert_eq!(side.flows[0].received.unwrap().messages, 50);
    }
    let (mut near, far) = tcp(V4).unwrap();
    let receiving = vec![flow(Endpoint::Tcp(far), Role::Receive)];
    let (side, _) = meanwhile(&copying(Until::Time(LONG)), receiving, LONG, |control| {
        near.write_all(&[1; 100_000]).unwrap();
        control.stop();
    });
    assert_eq!(received(&side), 100_000);
}

#[test]
fn a_peer_that_is_silent_ends_the_run_with_what_was_counted() {
    let (mut near, far) = tcp(V4).unwrap();
    let receiving = vec![flow(Endpoint::Tcp(far), Role::Receive)];
    let (side, took) = meanwhile(&copying(Until::Time(LONG)), receiving, Duration::from_millis(300), |_| {
        near.write_all(&[1; 5000]).unwrap();
    });
    assert!(took < PATIENCE);
    assert_eq!(received(&side), 5000);
    assert!(
        side.warnings.iter().any(|warning| warning.starts_with("nothing moved for 0.3 s")),
        "{:?}",
        side.warnings
    );
    // And one that reads nothing.
    let (near, _far) = tcp(V4).unwrap();
    let sending = vec![flow(Endpoint::Tcp(near), Role::Send)];
    let (side, _) = meanwhile(&copying(Until::Time(LONG)), sending, Duration::from_millis(300), |_| ());
    assert!(sent(&side) > 0 && !side.warnings.is_empty());
    // And one that does not answer.
    for marks in [Marks::None, Marks::Own { cookie: [0; 16] }] {
        let [near, _far] = udp_pair(V4, [Role::Request; 2], marks).unwrap();
        let requests = Plan { transport: Transport::Udp, ..transactions(64, 64, 2, Until::Units(5)) };
        let (side, _) = meanwhile(&requests, vec![near], Duration::from_millis(600), |_| ());
        assert_eq!(side.flows[0].transactions, Some(0));
        assert!(!side.warnings.is_empty());
    }
}

#[test]
fn a_peer_that_closes_ends_the_flow_with_a_warning() {
    let (near, far) = tcp(V4).unwrap();
    let sending = vec![flow(Endpoint::Tcp(near), Role::Send)];
    let (side, _) = meanwhile(&copying(Until::Time(LONG)), sending, LONG, |_| drop(far));
    assert!(side.warnings.iter().any(|warning| warning.contains("ended early")), "{:?}", side.warnings);
    let (near, far) = tcp(V4).unwrap();
    let requesting = vec![flow(Endpoint::Tcp(near), Role::Request)];
    let (side, _) = meanwhile(&transactions(1, 1, 1, Until::Time(LONG)), requesting, LONG, |_| drop(far));
    assert!(!side.warnings.is_empty());
}

#[test]
fn one_flow_that_breaks_leaves_the_others_alone() {
    let (broken, far) = tcp(V4).unwrap();
    drop(far);
    let (near, other) = tcp(V4).unwrap();
    let mut plan = copying(Until::Bytes(3_000_000));
    plan.threads.client.count = Some(1);
    let sending = vec![flow(Endpoint::Tcp(broken), Role::Send), flow(Endpoint::Tcp(near), Role::Send)];
    let (near, far) = both(&plan, sending, vec![flow(Endpoint::Tcp(other), Role::Receive)], true);
    assert_eq!(near.flows[1].sent.unwrap().bytes, received(&far));
    assert_eq!(sent(&near), 3_000_000);
    assert_eq!(near.warnings.len(), 1, "{:?}", near.warnings);
}
