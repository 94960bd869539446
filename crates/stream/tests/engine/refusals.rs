//! What is asked of a socket that does not have it.

use stream::engine::{EngineError, Marks, Role};
use stream::plan::{Giving, Pace, Taking, Until};

use super::*;

fn error(plan: &Plan, flow: Flow) -> EngineError {
    let control = Control::new();
    control.begin();
    let result = engine::run(vec![flow], &settings(plan, End::Client), &control);
    assert!(control.is_over());
    result.unwrap_err()
}

#[test]
fn ways_that_a_socket_does_not_have_are_refused() {
    const UNTIL: Until = Until::Bytes(1000);
    let unix = |role| streams([role; 2]).pop().unwrap().1.into_iter().next().unwrap();
    let udp = |role, marks| udp_pair(V4, [role; 2], marks).unwrap().into_iter().next().unwrap();
    let small = |giving, taking| Plan { send_bytes: 64, ..bulk(giving, taking, UNTIL) };
    let copy = |giving| small(giving, Taking::Copy);
    let into = |taking| small(Giving::Copy, taking);
    let own = Marks::Own { cookie: [0; 16] };
    let cases = [
        (copy(Giving::ZeroCopy), unix(Role::Send), "MSG_ZEROCOPY does not exist over a UNIX socket"),
        (copy(Giving::Sendfile), udp(Role::Send, Marks::None), "sendfile does not exist over datagrams"),
        (copy(Giving::Splice), udp(Role::Send, Marks::None), "splice does not exist over datagrams"),
        (into(Taking::Splice), udp(Role::Receive, Marks::None), "splice does not exist over datagrams"),
        (into(Taking::Discard), unix(Role::Receive), "MSG_TRUNC does not exist over a UNIX stream"),
        (
            into(Taking::Discard),
            udp(Role::Receive, own),
            "MSG_TRUNC does not exist over datagrams whose numbers",
        ),
    ];
    for (plan, flow, text) in cases {
        let error = error(&plan, flow);
        assert!(matches!(error, EngineError::Unsupported { .. }));
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn sizes_and_roles_that_cannot_be_are_refused() {
    let own = Marks::Own { cookie: [0; 16] };
    let udp = |role, marks| udp_pair(V4, [role; 2], marks).unwrap().into_iter().next().unwrap();
    let plan = |send_bytes| Plan { send_bytes, ..datagrams(Until::Bytes(1000)) };
    for (bytes, marks) in
        [(31, own), (11, Marks::Iperf3 { wide: false }), (0, Marks::None), (65_508, Marks::None)]
    {
        assert!(matches!(error(&plan(bytes), udp(Role::Send, marks)), EngineError::Size { .. }), "{bytes}");
    }
    let requests = transactions(0, 1, 1, Until::Units(1));
    assert!(matches!(error(&requests, udp(Role::Request, own)), EngineError::Size { .. }));
    assert!(matches!(error(&plan(64), udp(Role::Request, own)), EngineError::Mismatch { .. }));
    assert!(matches!(error(&plan(64), udp(Role::Accept, own)), EngineError::Mismatch { .. }));
    let (socket, _) = super::udp(V4).unwrap();
    let alone = flow(Endpoint::Udp { socket, peer: None }, Role::Send);
    assert!(error(&plan(64), alone).to_string().contains("no peer"));
}

#[test]
fn paces_that_a_socket_does_not_have_are_refused() {
    let unix = streams([Role::Send; 2]).pop().unwrap().1.into_iter().next().unwrap();
    let mut plan = copying(Until::Bytes(1000));
    plan.pace = Some(Pace::Kernel { bits_per_second: 1000 });
    assert!(error(&plan, unix).to_string().contains("SO_MAX_PACING_RATE"));
    let tcp = streams([Role::Send; 2]).swap_remove(0).1.into_iter().next().unwrap();
    plan.pace = Some(Pace::DepartureTimes { bits_per_second: 1000 });
    assert!(error(&plan, tcp).to_string().contains("SO_TXTIME"));
}

#[test]
fn a_cpu_that_does_not_exist_is_refused() {
    let tcp = streams([Role::Send; 2]).swap_remove(0).1.into_iter().next().unwrap();
    let mut plan = copying(Until::Bytes(1000));
    plan.threads.client.cpus = vec![100_000];
    assert!(matches!(error(&plan, tcp), EngineError::Kernel(_)));
}
