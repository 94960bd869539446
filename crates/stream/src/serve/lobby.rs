//! Where connections wait until they have said something.
//!
//! A connection that was accepted costs a descriptor here and nothing else: no thread, and no place of a client. It gets further
//! when as many bytes as its protocol begins with are there. What is silent is closed after a time, or earlier when so many wait
//! that the longest-waiting one has to go.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::connections::{set_low_water, wait_readable};

/// How many connections may be accepted before those that wait are looked at again.
const AT_ONCE: usize = 64;

/// A listener and the connections that have not said enough yet.
#[derive(Debug)]
pub(crate) struct Lobby {
    listener: TcpListener,
    waiting: VecDeque<Waiting>,
    rules: Rules,
}

/// What holds for those that wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Bytes that must be there.
    pub(crate) first_bytes: u32,
    /// How many may wait.
    pub(crate) most: usize,
    /// How long they may wait.
    pub(crate) patience: Duration,
}

#[derive(Debug)]
struct Waiting {
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
}

/// A connection whose first bytes are there. They have not been read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// As many as the rules say.
    pub(crate) first: Vec<u8>,
}

impl Lobby {
    /// Nobody waits yet.
    pub(crate) fn new(listener: TcpListener, rules: Rules) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, waiting: VecDeque::new(), rules })
    }

    /// Those whose first bytes have come, within `wait`. Who is not permitted is closed at once.
    ///
    /// # Errors
    /// The kernel cannot wait for them.
    pub(crate) fn next(
        &mut self,
        wait: Duration,
        permitted: &dyn Fn(IpAddr) -> bool,
    ) -> Result<Vec<Arrived>, SyscallError> {
        self.waiting.retain(|waiting| waiting.since.elapsed() < self.rules.patience);
        let mut fds = vec![self.listener.as_fd()];
        fds.extend(self.waiting.iter().map(|waiting| waiting.stream.as_fd()));
        let readable = wait_readable(&fds, wait)?;
        let arrived = self.look(&readable[1..]);
        if readable[0] {
            self.accept(permitted);
        }
        Ok(arrived)
    }

    /// Takes out those that have something to say, or nothing any more.
    fn look(&mut self, readable: &[bool]) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for (waiting, &readable) in std::mem::take(&mut self.waiting).into_iter().zip(readable) {
            if !readable {
                rest.push_back(waiting);
                continue;
            }
            let mut first = vec![0; self.rules.first_bytes as usize];
            // Fewer bytes than that, although it is readable, are all that will come.
            if matches!(waiting.stream.peek(&mut first), Ok(count) if count == first.len()) {
                arrived.extend(ready(waiting, first));
            }
        }
        self.waiting = rest;
        arrived
    }

    fn accept(&mut self, permitted: &dyn Fn(IpAddr) -> bool) {
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok((stream, peer)) if permitted(peer.ip()) => self.admit(stream, peer),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_the_connections(&error) => {}
                // No descriptors or no memory: those who have waited longest make room.
                Err(_) => {
                    self.waiting.drain(..self.waiting.len().div_ceil(2));
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) {
        if stream.set_nonblocking(true).is_err() || set_low_water(&stream, self.rules.first_bytes).is_err() {
            return;
        }
        while self.waiting.len() >= self.rules.most.max(1) {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { stream, peer, since: Instant::now() });
    }
}

/// As a blocking socket again, readable with the first byte. `None` where it is gone already.
fn ready(waiting: Waiting, first: Vec<u8>) -> Option<Arrived> {
    let Waiting { stream, peer, .. } = waiting;
    stream.set_nonblocking(false).ok()?;
    set_low_water(&stream, 1).ok()?;
    Some(Arrived { stream, peer, first })
}

/// Errors of `accept` that belong to the connection and not to the listener (accept(2), "Error handling").
fn is_the_connections(error: &io::Error) -> bool {
    use ErrorKind::*;
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | Interrupted
            | PermissionDenied
            | NetworkDown
            | HostUnreachable
            | NetworkUnreachable
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    use super::*;

    const TICK: Duration = Duration::from_millis(20);

    fn lobby(rules: Rules) -> (Lobby, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (Lobby::new(listener, rules).unwrap(), address)
    }

    const RULES: Rules = Rules { first_bytes: 4, most: 3, patience: Duration::from_secs(60) };

    /// Looks until `done` is satisfied, or 10 s.
    fn until(lobby: &mut Lobby, mut done: impl FnMut(&Lobby, Vec<Arrived>) -> bool) {
        let began = Instant::now();
        loop {
            let arrived = lobby.next(TICK, &|_| true).unwrap();
            if done(lobby, arrived) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn who_has_said_enough_gets_further_and_can_be_read_from_the_start() {
        let (mut lobby, address) = lobby(RULES);
        let silent = TcpStream::connect(address).unwrap();
        let mut talks = TcpStream::connect(address).unwrap();
        talks.write_all(b"abc").unwrap();
        until(&mut lobby, |lobby, arrived| arrived.is_empty() && lobby.waiting.len() == 2);
        talks.write_all(b"de").unwrap();
        until(&mut lobby, |_, arrived| {
            let Some(mut one) = arrived.into_iter().next() else { return false };
            assert_eq!(one.first, b"abcd");
            let mut all = [0; 5];
            one.stream.read_exact(&mut all).unwrap();
            assert_eq!(&all, b"abcde");
            assert_eq!(one.peer, talks.local_addr().unwrap());
            true
        });
        assert_eq!(lobby.waiting.len(), 1);
        drop(silent);
        until(&mut lobby, |lobby, _| lobby.waiting.is_empty());
    }

    #[test]
    fn the_longest_waiting_goes_first_and_everybody_after_a_time() {
        let (mut lobby, address) = lobby(RULES);
        let all: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut first = &all[0];
        first.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        until(&mut lobby, |lobby, _| {
            lobby.waiting.back().is_some_and(|last| last.peer == all[4].local_addr().unwrap())
        });
        assert_eq!(lobby.waiting.len(), 3);
        assert_eq!(first.read(&mut [0; 1]).unwrap(), 0);
        lobby.rules.patience = Duration::ZERO;
        until(&mut lobby, |lobby, _| lobby.waiting.is_empty());
    }

    #[test]
    fn who_is_not_permitted_is_closed() {
        let (mut lobby, address) = lobby(RULES);
        let mut stranger = TcpStream::connect(address).unwrap();
        assert!(lobby.next(Duration::from_secs(10), &|_| false).unwrap().is_empty());
        assert!(lobby.waiting.is_empty());
        stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(stranger.read(&mut [0; 1]).unwrap(), 0);
    }
}
