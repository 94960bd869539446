//! Bulk over streams.

use stream::engine::{Endpoint, Role};
use stream::plan::{Giving, Taking, Threads, Transport, Until};

use super::*;

const BYTES: u64 = 10_000_001;

#[test]
fn bytes_asked_for_are_sent_and_received() {
    for (name, [near, far]) in streams([Role::Send, Role::Receive]) {
        let (near, far) = both(&copying(Until::Bytes(BYTES)), vec![near], vec![far], true);
        assert_eq!((sent(&near), received(&far)), (BYTES, BYTES), "{name}");
        assert_eq!((near.flows[0].received, far.flows[0].sent), (None, None));
        assert!(near.warnings.is_empty() && far.warnings.is_empty(), "{name}: {near:?} {far:?}");
        assert!(near.wall_ns > 0 && far.wall_ns > 0);
    }
}

#[test]
fn every_way_into_a_stream_and_out_of_it() {
    let ways_in = [Giving::Copy, Giving::Sendfile, Giving::Splice, Giving::ZeroCopy];
    let ways_out = [Taking::Copy, Taking::Discard, Taking::Splice];
    for giving in ways_in {
        for taking in ways_out {
            let plan = bulk(giving, taking, Until::Bytes(BYTES));
            for (name, [near, far]) in streams([Role::Send, Role::Receive]) {
                if name == "UNIX" && (giving == Giving::ZeroCopy || taking == Taking::Discard) {
                    continue; // see `refusals`
                }
                let (near, far) = both(&plan, vec![near], vec![far], true);
                assert_eq!((sent(&near), received(&far)), (BYTES, BYTES), "{name} {giving:?} {taking:?}");
            }
        }
    }
}

#[test]
fn units_of_bulk_are_messages() {
    let [near, far] = streams([Role::Send, Role::Receive]).swap_remove(0).1;
    let (near, far) = both(&copying(Until::Units(100)), vec![near], vec![far], true);
    assert_eq!((sent(&near), received(&far)), (100 * 16384, 100 * 16384));
}

#[test]
fn a_time_ends_a_run_and_a_connection_tells_of_itself() {
    let [near, far] = streams([Role::Send, Role::Receive]).swap_remove(0).1;
    let plan = copying(Until::Time(Duration::from_millis(200)));
    let began = std::time::Instant::now();
    let (near, far) = both(&plan, vec![near], vec![far], true);
    let lasted = began.elapsed();
    // The time is counted from the begin of the run, a flow's own from its first call.
    assert!(lasted >= Duration::from_millis(200), "{lasted:?}");
    assert!(
        near.wall_ns > 0 && u128::from(near.wall_ns) <= lasted.as_nanos(),
        "{} of {lasted:?}",
        near.wall_ns
    );
    assert!(sent(&near) > 0);
    assert_eq!(sent(&near), received(&far));
    let tcp = near.flows[0].tcp.as_ref().unwrap();
    assert!(tcp.retransmits.is_some() && tcp.congestion.is_some() && tcp.mss_bytes.is_some(), "{tcp:?}");
}

#[test]
fn many_flows_share_two_threads() {
    const FLOWS: usize = 500;
    linux::limits::raise_open_files(8 * FLOWS as u64);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..FLOWS {
        let (left, right) = tcp(V4).unwrap();
        near.push(flow(Endpoint::Tcp(left), Role::Send));
        far.push(flow(Endpoint::Tcp(right), Role::Receive));
    }
    let threads = Threads { count: Some(2), cpus: Vec::new() };
    // A turn is 256 KiB: more than one for each.
    let mut plan = copying(Until::Bytes(200_000_003));
    plan.threads = Ends { client: threads.clone(), server: threads };
    let (near, far) = both(&plan, near, far, true);
    assert_eq!((sent(&near), received(&far)), (200_000_003, 200_000_003));
    for (near, far) in near.flows.iter().zip(&far.flows) {
        assert_eq!(near.sent.unwrap().bytes, far.received.unwrap().bytes);
        assert!(near.sent.unwrap().bytes > 0, "a flow had no turn");
    }
}

#[test]
fn both_directions_at_once_are_flows_of_their_own() {
    let mut plan = copying(Until::Bytes(BYTES));
    plan.threads.client.count = Some(1); // waits for both
    let (left, right) = tcp(V4).unwrap();
    let (other_left, other_right) = tcp(V4).unwrap();
    let near = vec![flow(Endpoint::Tcp(left), Role::Send), flow(Endpoint::Tcp(other_left), Role::Receive)];
    let far = vec![flow(Endpoint::Tcp(right), Role::Receive), flow(Endpoint::Tcp(other_right), Role::Send)];
    let (near, far) = both(&plan, near, far, true);
    for (one, other) in [(&near, &far), (&far, &near)] {
        let sent: u64 = one.flows.iter().filter_map(|flow| flow.sent).map(|moved| moved.bytes).sum();
        let received: u64 =
            other.flows.iter().filter_map(|flow| flow.received).map(|moved| moved.bytes).sum();
        assert_eq!((sent, received), (BYTES, BYTES));
    }
}

#[test]
fn multipath_where_the_kernel_has_it() {
    let address: SocketAddr = V4.parse().unwrap();
    let Ok(listening) = linux::socket::stream(address, true) else {
        println!("SKIPPED: no MPTCP here");
        return;
    };
    rustix::net::bind(&listening, &address).unwrap();
    rustix::net::listen(&listening, 1).unwrap();
    let listener = TcpListener::from(listening);
    let to = listener.local_addr().unwrap();
    let near = linux::socket::stream(to, true).unwrap();
    assert!(linux::socket::connect(&near, to).unwrap());
    let far = listener.accept().unwrap().0;
    let plan = Plan { transport: Transport::Mptcp, ..copying(Until::Bytes(BYTES)) };
    let near = vec![flow(Endpoint::Tcp(near.into()), Role::Send)];
    let (near, far) = both(&plan, near, vec![flow(Endpoint::Tcp(far), Role::Receive)], true);
    assert_eq!((sent(&near), received(&far)), (BYTES, BYTES));
}
