//! netperf's protocol against what was recorded from netperf itself, and against netperf itself where there is one.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod columns;
mod hostile;
mod interoperation;
mod recorded;
mod replay_to_client;
mod replay_to_server;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use stream::limits::{Halt, Limits};
use stream::netperf::server::{self, ServeError};
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Threads, Transport, Until, Work};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that serves one client, on a port of its own.
struct Served {
    at: SocketAddr,
    session: JoinHandle<Result<(), ServeError>>,
    halt: Halt,
}

impl Served {
    fn new(ip: &str, limits: Limits) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let halt = Halt::new();
        let heard = halt.clone();
        let session =
            std::thread::spawn(move || server::serve(listener.accept().unwrap().0, &limits, &heard));
        Self { at, session, halt }
    }

    fn connect(&self) -> TcpStream {
        let control = TcpStream::connect(self.at).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        control
    }

    fn ended(self) -> Result<(), ServeError> {
        self.session.join().unwrap()
    }
}

fn limits() -> Limits {
    Limits { idle: Duration::from_secs(5), ..Limits::default() }
}

fn plan(transport: Transport, work: Work) -> Plan {
    Plan {
        transport,
        work,
        flows: 1,
        until: Until::Time(Duration::from_secs(1)),
        omit: Duration::ZERO,
        send_bytes: 0,
        receive_bytes: 0,
        pace: None,
        options: Ends::default(),
        threads: Ends { client: Threads { count: Some(1), cpus: Vec::new() }, server: Threads::default() },
    }
}

fn bulk(direction: Direction, giving: Giving) -> Work {
    Work::Bulk { direction, giving, taking: Taking::Copy }
}

/// The plans of the six classics and TCP_SENDFILE, by netperf's names.
fn plan_of(test: &str) -> Plan {
    let transactions = Work::Transactions { request_bytes: 1, response_bytes: 1, outstanding: 1 };
    match test {
        "TCP_STREAM" => plan(Transport::Tcp, bulk(Direction::ToServer, Giving::Copy)),
        "TCP_MAERTS" => plan(Transport::Tcp, bulk(Direction::ToClient, Giving::Copy)),
        "TCP_SENDFILE" => plan(Transport::Tcp, bulk(Direction::ToServer, Giving::Sendfile)),
        "UDP_STREAM" => {
            Plan { send_bytes: 64, ..plan(Transport::Udp, bulk(Direction::ToServer, Giving::Copy)) }
        }
        "TCP_RR" => plan(Transport::Tcp, transactions),
        "UDP_RR" => plan(Transport::Udp, transactions),
        "TCP_CRR" => plan(Transport::Tcp, Work::Connections { exchange: Some((1, 1)) }),
        other => panic!("no plan for {other}"),
    }
}

fn loopback() -> IpAddr {
    "127.0.0.1".parse().unwrap()
}
