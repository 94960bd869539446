//! A connection for each transaction.

use stream::engine::{Endpoint, Role};
use stream::plan::{Threads, Until, Work};

use super::*;

fn plan(exchange: Option<(u32, u32)>, until: Until) -> Plan {
    Plan { work: Work::Connections { exchange }, ..copying(until) }
}

fn connector(listener: &TcpListener) -> Flow {
    let to = listener.local_addr().unwrap();
    flow(Endpoint::Connector { to, bind: None }, Role::Connect)
}

#[test]
fn connections_are_opened_used_and_closed() {
    for host in [V4, V6] {
        for exchange in [None, Some((1, 1)), Some((300, 100_000))] {
            let Some(listener) = listener(host) else { continue };
            let near = vec![connector(&listener)];
            let far = vec![flow(Endpoint::Listener(listener), Role::Accept)];
            let (near, far) = both(&plan(exchange, Until::Units(300)), near, far, false);
            assert_eq!((near.flows[0].transactions, far.flows[0].transactions), (Some(300), Some(300)));
            let (request, response) = exchange.unwrap_or((0, 0));
            assert_eq!((sent(&near), received(&far)), (300 * u64::from(request), 300 * u64::from(request)));
            assert_eq!((sent(&far), received(&near)), (300 * u64::from(response), 300 * u64::from(response)));
            assert!(near.flows[0].latency.is_some());
            assert!(near.warnings.is_empty(), "{near:?}");
        }
    }
}

#[test]
fn many_connect_at_once_to_clones_of_a_listener() {
    let listener = listener(V4).unwrap();
    let mut plan = plan(Some((10, 10)), Until::Units(1000));
    let threads = Threads { count: Some(1), cpus: Vec::new() };
    plan.threads = Ends { client: threads.clone(), server: threads };
    let near: Vec<_> = (0..8).map(|_| connector(&listener)).collect();
    let clone = |_| flow(Endpoint::Listener(listener.try_clone().unwrap()), Role::Accept);
    let far: Vec<_> = (0..8).map(clone).collect();
    let (near, far) = both(&plan, near, far, false);
    for side in [near, far] {
        assert_eq!(side.flows.iter().map(|flow| flow.transactions.unwrap()).sum::<u64>(), 1000);
    }
}

#[test]
fn one_that_connects_and_says_nothing_keeps_nobody_waiting_for_ever() {
    let listener = listener(V4).unwrap();
    let silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = vec![connector(&listener)];
    let far = vec![flow(Endpoint::Listener(listener), Role::Accept)];
    let (near, far) = both(&plan(Some((1, 1)), Until::Units(10)), near, far, false);
    drop(silent);
    assert_eq!((near.flows[0].transactions, far.flows[0].transactions), (Some(10), Some(10)));
}

#[test]
fn nobody_listens() {
    let listener = listener(V4).unwrap();
    let near = vec![connector(&listener)];
    drop(listener);
    let plan = plan(Some((1, 1)), Until::Time(Duration::from_millis(100)));
    let control = Control::new();
    control.begin();
    let side = engine::run(near, &settings(&plan, End::Client), &control).unwrap();
    assert_eq!(side.flows[0].transactions, Some(0));
    assert!(side.flows[0].sent.unwrap().refused > 0);
    assert!(side.warnings.iter().any(|warning| warning.contains("ECONNREFUSED")), "{:?}", side.warnings);
}
