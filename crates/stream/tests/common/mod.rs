//! A server over loopback for one test, and plans.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stream::iperf3;
use stream::limits::{Halt, Limits};
use stream::outcome::Exchanged;
use stream::own::client::Asking;
use stream::own::{Key, OwnError, client};
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};
use stream::serve::{Iperf3, Netperf, Own, Protocol, Served, Server, listen};

/// Far more than anything takes.
pub const LONG: Duration = Duration::from_secs(30);

/// A server that ends with the test.
pub struct Running {
    pub addresses: Vec<SocketAddr>,
    pub halt: Halt,
    served: Arc<Mutex<Vec<Served>>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn own(limits: Limits) -> Self {
        Self::at(IpAddr::V4(Ipv4Addr::LOCALHOST), limits, None)
    }

    pub fn at(ip: IpAddr, limits: Limits, key: Option<Key>) -> Self {
        let listener = listen("perpacket", SocketAddr::new(ip, 0)).unwrap();
        Self::start(vec![(Box::new(Own { key }), listener)], limits, Halt::new())
    }

    /// All protocols: perpacket's, netperf's and iperf3's, in this order.
    pub fn all(limits: Limits) -> Self {
        let halt = Halt::new();
        let listeners = ["perpacket", "netperf", "iperf3"]
            .map(|name| listen(name, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap());
        let settings = iperf3::server::Settings { limits: limits.clone(), ..Default::default() };
        let iperf3 = Iperf3::new(listeners[2].local_addr().unwrap(), settings, &halt).unwrap();
        let protocols: [Box<dyn Protocol>; 3] =
            [Box::new(Own::default()), Box::new(Netperf), Box::new(iperf3)];
        Self::start(protocols.into_iter().zip(listeners).collect(), limits, halt)
    }

    pub fn start(doors: Vec<(Box<dyn Protocol>, TcpListener)>, limits: Limits, halt: Halt) -> Self {
        let server = Server::new(doors, limits, &halt).unwrap();
        let addresses = server.addresses().into_iter().map(|(_, address)| address).collect();
        let served = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&served);
        let thread = thread::spawn(move || server.run(&|one| list.lock().unwrap().push(one)).unwrap());
        Self { addresses, halt, served, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Waits until so many clients have ended.
    pub fn served(&self, count: usize) -> Vec<Served> {
        wait_for(|| self.served.lock().unwrap().len() >= count);
        self.served.lock().unwrap().clone()
    }

    /// How many clients have ended so far.
    pub fn count(&self) -> usize {
        self.served.lock().unwrap().len()
    }

    pub fn ask(&self, plan: &Plan) -> Result<Exchanged, OwnError> {
        client::run(self.address(), plan, &Asking::new(&Halt::new()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.halt.halt();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

pub fn wait_for(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LONG, "the condition did not come true");
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn bulk(direction: Direction) -> Work {
    Work::Bulk { direction, giving: Giving::Copy, taking: Taking::Copy }
}

pub fn plan(transport: Transport, work: Work, until: Until) -> Plan {
    Plan {
        transport,
        work,
        flows: 1,
        until,
        omit: Duration::ZERO,
        send_bytes: if transport == Transport::Udp { 1000 } else { 65536 },
        receive_bytes: 65536,
        pace: None,
        options: Ends::default(),
        threads: Ends::default(),
    }
}

/// A plan that any test may use: 8 MiB over TCP.
pub fn small() -> Plan {
    plan(Transport::Tcp, bulk(Direction::ToServer), Until::Bytes(8 << 20))
}
