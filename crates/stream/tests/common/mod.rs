//! A server over loopback for one test, and plans.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stream::limits::{Halt, Limits};
use stream::outcome::Exchanged;
use stream::own::client::Asking;
use stream::own::{Key, OwnError, client};
use stream::plan::{Direction, Ends, Giving, Plan, Taking, Transport, Until, Work};
use stream::serve::{Own, Protocol, Served, Server};

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
        Self::start(vec![(Box::new(Own { key }), SocketAddr::new(ip, 0))], limits)
    }

    pub fn start(doors: Vec<(Box<dyn Protocol>, SocketAddr)>, limits: Limits) -> Self {
        let halt = Halt::new();
        let server = Server::open(doors, limits, &halt).unwrap();
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
