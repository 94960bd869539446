//! Flows over loopback, both ends in one process: what one end sent, the other received.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bulk;
mod connections;
mod datagrams;
mod ends;
mod refusals;
mod times;
mod transactions;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use stream::engine::{self, Control, End, Endpoint, Flow, Marks, Role, Settings};
use stream::outcome::Side;
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};

pub(crate) const V4: &str = "127.0.0.1:0";
pub(crate) const V6: &str = "[::1]:0";
/// Longer than anything here takes, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn bulk(giving: Giving, taking: Taking, until: Until) -> Plan {
    Plan {
        transport: Transport::Tcp,
        work: Work::Bulk { direction: Direction::ToServer, giving, taking },
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

pub(crate) fn copying(until: Until) -> Plan {
    bulk(Giving::Copy, Taking::Copy, until)
}

pub(crate) fn datagrams(until: Until) -> Plan {
    Plan { transport: Transport::Udp, send_bytes: 64, receive_bytes: 2048, ..copying(until) }
}

pub(crate) fn transactions(request_bytes: u32, response_bytes: u32, outstanding: u32, until: Until) -> Plan {
    Plan { work: Work::Transactions { request_bytes, response_bytes, outstanding }, ..copying(until) }
}

pub(crate) fn settings(plan: &Plan, end: End) -> Settings<'_> {
    Settings { plan, end, interval: None, cpu: false, give_up_after: PATIENCE, on_interval: None }
}

/// A connected pair of TCP sockets; none, said aloud, where the host has no such address.
pub(crate) fn tcp(host: &str) -> Option<(TcpStream, TcpStream)> {
    let listener = listener(host)?;
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    Some((near, listener.accept().unwrap().0))
}

pub(crate) fn listener(host: &str) -> Option<TcpListener> {
    match TcpListener::bind(host) {
        Ok(listener) => Some(listener),
        Err(error) if host == V6 => {
            println!("SKIPPED over IPv6: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn udp(host: &str) -> Option<(UdpSocket, UdpSocket)> {
    if host == V6 {
        listener(host)?;
    }
    Some((UdpSocket::bind(host).unwrap(), UdpSocket::bind(host).unwrap()))
}

pub(crate) fn udp_flow(socket: UdpSocket, peer: SocketAddr, role: Role, marks: Marks) -> Flow {
    Flow { endpoint: Endpoint::Udp { socket, peer: Some(peer) }, role, marks }
}

/// Both flows of a pair of UDP sockets that know each other.
pub(crate) fn udp_pair(host: &str, roles: [Role; 2], marks: Marks) -> Option<[Flow; 2]> {
    let (near, far) = udp(host)?;
    let (here, there) = (near.local_addr().unwrap(), far.local_addr().unwrap());
    Some([udp_flow(near, there, roles[0], marks), udp_flow(far, here, roles[1], marks)])
}

pub(crate) fn flow(endpoint: Endpoint, role: Role) -> Flow {
    Flow { endpoint, role, marks: Marks::None }
}

/// Pairs of flows over every stream transport that there is, with its name.
pub(crate) fn streams(roles: [Role; 2]) -> Vec<(&'static str, [Flow; 2])> {
    let mut all = Vec::new();
    for host in [V4, V6] {
        if let Some((near, far)) = tcp(host) {
            all.push((host, [flow(Endpoint::Tcp(near), roles[0]), flow(Endpoint::Tcp(far), roles[1])]));
        }
    }
    let (near, far) = UnixStream::pair().unwrap();
    all.push((
        "UNIX",
        [flow(Endpoint::UnixStream(near), roles[0]), flow(Endpoint::UnixStream(far), roles[1])],
    ));
    all
}

pub(crate) fn unix_datagrams(roles: [Role; 2]) -> [Flow; 2] {
    let (near, far) = UnixDatagram::pair().unwrap();
    [flow(Endpoint::UnixDatagram(near), roles[0]), flow(Endpoint::UnixDatagram(far), roles[1])]
}

/// Runs both ends; the far one is stopped when the near one has ended, unless it ends by itself.
pub(crate) fn both(plan: &Plan, near: Vec<Flow>, far: Vec<Flow>, ends_by_itself: bool) -> (Side, Side) {
    let near_settings = settings(plan, End::Client);
    let far_settings = settings(plan, End::Server);
    both_with(near, far, &near_settings, &far_settings, ends_by_itself)
}

pub(crate) fn both_with(
    near: Vec<Flow>,
    far: Vec<Flow>,
    near_settings: &Settings<'_>,
    far_settings: &Settings<'_>,
    ends_by_itself: bool,
) -> (Side, Side) {
    let (near_control, far_control) = (Control::new(), Control::new());
    std::thread::scope(|scope| {
        let far = scope.spawn(|| engine::run(far, far_settings, &far_control).unwrap());
        wait_for("the far end", || far_control.ready());
        far_control.begin();
        near_control.begin();
        let near = engine::run(near, near_settings, &near_control).unwrap();
        assert!(near_control.is_over());
        if !ends_by_itself {
            far_control.stop();
        }
        (near, far.join().unwrap())
    })
}

pub(crate) fn wait_for(what: &str, is: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < PATIENCE, "{what} never came");
        std::thread::yield_now();
    }
}

pub(crate) fn sent(side: &Side) -> u64 {
    side.flows.iter().map(|flow| flow.sent.unwrap().bytes).sum()
}

pub(crate) fn received(side: &Side) -> u64 {
    side.flows.iter().map(|flow| flow.received.unwrap().bytes).sum()
}
