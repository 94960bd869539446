//! Flows over loopback: what one end sent, the other received.
#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::outcome::Side;
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};

fn plan(until: Until) -> Plan {
    Plan {
        transport: Transport::Tcp,
        work: Work::Bulk { direction: Direction::ToServer, giving: Giving::Copy, taking: Taking::Copy },
        flows: 1,
        until,
        omit: Duration::ZERO,
        send_bytes: 16384,
        receive_bytes: 65536,
        pace: None,
        options: Ends::default(),
        threads: Ends::default(),
    }
}

fn settings(plan: &Plan, end: End) -> Settings<'_> {
    Settings {
        plan,
        end,
        interval: None,
        cpu: false,
        give_up_after: Duration::from_secs(10),
        on_interval: None,
    }
}

fn both(plan: &Plan, sending: Vec<Flow>, receiving: Vec<Flow>) -> (Side, Side) {
    let (client, server) = (Control::new(), Control::new());
    client.begin();
    server.begin();
    std::thread::scope(|scope| {
        let far = scope.spawn(|| engine::run(receiving, &settings(plan, End::Server), &server).unwrap());
        let near = engine::run(sending, &settings(plan, End::Client), &client).unwrap();
        (near, far.join().unwrap())
    })
}

#[test]
fn bytes_asked_for_are_sent_and_received() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let flow = |socket, role| vec![Flow { endpoint: Endpoint::Tcp(socket), role, marks: Marks::None }];
    let plan = plan(Until::Bytes(10_000_001));
    let (near, far) = both(&plan, flow(near, Role::Send), flow(far, Role::Receive));
    assert_eq!(near.flows[0].sent.unwrap().bytes, 10_000_001);
    assert_eq!(far.flows[0].received.unwrap().bytes, 10_000_001);
}
