//! netperf's and iperf3's protocols behind the door.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::doors::Served;
use super::protocol::{Account, Protocol, Refused, Verdict};
use crate::iperf3::server::{self as iperf3, Event, Settings};
use crate::limits::{Halt, Limits};
use crate::netperf::server as netperf;

/// Bytes of every message of netperf's control protocol.
const NETPERF_MESSAGE: u32 = 656;
/// Kinds of requests are small numbers (netlib.h, netperf 2.7.1-dev).
const NETPERF_KINDS: std::ops::Range<u32> = 1..1000;
/// A cookie of iperf3: 36 characters and a byte of 0.
const IPERF3_COOKIE: usize = 37;
/// How long tests of iperf3 may take to end when the server does.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// netperf's protocol, 2.7.0 and later.
#[derive(Clone, Copy, Debug, Default)]
pub struct Netperf;

impl Protocol for Netperf {
    fn name(&self) -> &'static str {
        "netperf"
    }

    fn first_bytes(&self) -> u32 {
        NETPERF_MESSAGE
    }

    fn judge(&self, first: &[u8]) -> Verdict {
        let kind = first.first_chunk().map(|kind| u32::from_be_bytes(*kind));
        if kind.is_some_and(|kind| NETPERF_KINDS.contains(&kind)) {
            Verdict::Client
        } else {
            Verdict::Stranger
        }
    }

    fn serve(&self, connection: TcpStream, limits: &Limits, halt: &Halt) -> Result<Account, Refused> {
        netperf::serve(connection, limits, halt)?;
        Ok(Account::default())
    }

    fn turn_away(&self, connection: TcpStream, _halt: &Halt) {
        // It has no word for it: a closed connection is all that netserver would say.
        drop(connection);
    }
}

/// iperf3's protocol. Its server tells connections apart by cookie, and counts its clients itself.
#[derive(Debug)]
pub struct Iperf3 {
    server: iperf3::Server,
    ended: Mutex<Receiver<Served>>,
}

impl Iperf3 {
    /// Takes the UDP port of an address, which has to be the one that the door has for TCP.
    ///
    /// # Errors
    /// The port cannot be had.
    pub fn new(address: SocketAddr, settings: Settings, halt: &Halt) -> Result<Self, linux::SyscallError> {
        let (tell, ended) = mpsc::channel();
        let observer = move |event: &Event<'_>| told(event, &tell);
        let server =
            iperf3::Server::with_observer(address, settings, halt.clone(), Some(Box::new(observer)))?;
        Ok(Self { server, ended: Mutex::new(ended) })
    }
}

/// Sends on what became of a client.
fn told(event: &Event<'_>, tell: &Sender<Served>) {
    let (peer, outcome, length) = match event {
        Event::Ended { from, plan, exchanged } => {
            let account = Account { plan: Some((*plan).clone()), side: Some(exchanged.server.clone()) };
            let length = Duration::from_nanos(exchanged.server.wall_ns);
            (*from, Ok(account), Some(length))
        }
        Event::Failed { from, error } => (*from, Err(Refused::from(*error)), None),
    };
    // Nobody listens any more when the server has ended.
    let _ = tell.send(Served { protocol: "iperf3", peer, length, outcome });
}

impl Protocol for Iperf3 {
    fn name(&self) -> &'static str {
        "iperf3"
    }

    fn first_bytes(&self) -> u32 {
        IPERF3_COOKIE as u32
    }

    fn judge(&self, first: &[u8]) -> Verdict {
        // iperf3's own are of `[a-z2-7]`; other implementations use what can be printed.
        let is_cookie =
            first.split_last().is_some_and(|(end, text)| *end == 0 && text.iter().all(u8::is_ascii_graphic));
        if is_cookie { Verdict::Joins } else { Verdict::Stranger }
    }

    fn serve(&self, connection: TcpStream, _limits: &Limits, _halt: &Halt) -> Result<Account, Refused> {
        self.server.take(connection);
        Ok(Account::default())
    }

    fn join(&self, connection: TcpStream) {
        self.server.take(connection);
    }

    fn turn_away(&self, connection: TcpStream, _halt: &Halt) {
        drop(connection);
    }

    fn ended(&self) -> Vec<Served> {
        self.ended.lock().map(|ended| ended.try_iter().collect()).unwrap_or_default()
    }

    fn finish(&self) {
        let began = Instant::now();
        while self.server.clients() > 0 && began.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_request_of_netperf_gets_further() {
        let message = |kind: u32| {
            let mut bytes = vec![0; NETPERF_MESSAGE as usize];
            bytes[..4].copy_from_slice(&kind.to_be_bytes());
            bytes
        };
        assert_eq!(Netperf.judge(&message(97)), Verdict::Client);
        for kind in [0, 1000, u32::MAX, 97_u32.swap_bytes()] {
            assert_eq!(Netperf.judge(&message(kind)), Verdict::Stranger, "{kind}");
        }
        assert_eq!(Netperf.judge(b"GET"), Verdict::Stranger);
    }

    #[test]
    fn only_a_cookie_gets_further_to_iperf3() {
        let halt = Halt::new();
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let iperf3 = Iperf3::new(at, Settings::default(), &halt).unwrap();
        let mut cookie = [b'a'; IPERF3_COOKIE];
        cookie[36] = 0;
        assert_eq!(iperf3.judge(&cookie), Verdict::Joins);
        cookie[0] = b'\x1b';
        assert_eq!(iperf3.judge(&cookie), Verdict::Stranger);
        assert_eq!(iperf3.judge(&[b'a'; IPERF3_COOKIE]), Verdict::Stranger);
        halt.halt();
    }
}
