//! The UDP port. A hello carries no cookie: it is told by its address to which test it belongs, so that of one address one
//! test at a time may wait for its streams. Others of the same address wait for their turn.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::socket;

use super::super::parameters::STREAMS_MAX;
use super::super::wire;
use crate::engine::prepare;
use crate::limits::Halt;
use crate::plan::{SocketOptions, Transport};

/// How often the thread looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);
/// Longer than any hello.
const HELLO_ROOM: usize = 64;

/// The UDP port of a server.
#[derive(Debug)]
pub(super) struct Hub {
    address: SocketAddr,
    waiting: Mutex<HashMap<IpAddr, Waiting>>,
    left: Condvar,
}

/// A datagram that came to another socket than it should have, and from where.
type Stray = (Vec<u8>, SocketAddr);

/// A test that waits for hellos.
#[derive(Debug)]
struct Waiting {
    /// The address that the client connected to: streams are bound to it.
    local: IpAddr,
    options: SocketOptions,
    streams: SyncSender<UdpSocket>,
    /// From where hellos have come, with the socket that answers: a reply may get lost.
    known: Vec<(SocketAddr, UdpSocket)>,
    wanted: usize,
}

impl Hub {
    /// Binds the port and starts the thread that reads from it, until the hub is dropped or the server ends.
    pub(super) fn open(address: SocketAddr, halt: Halt) -> Result<Arc<Self>, SyscallError> {
        let port = socket::shared_udp(address)?;
        let failed =
            |error: io::Error| SyscallError::new("start a thread for UDP port", address.to_string(), error);
        port.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let hub = Arc::new(Self { address, waiting: Mutex::default(), left: Condvar::new() });
        let weak = Arc::downgrade(&hub);
        std::thread::Builder::new()
            .name("iperf3-udp".into())
            .spawn(move || listen(&port, &weak, &halt))
            .map_err(failed)?;
        Ok(hub)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<IpAddr, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other test of the address waits for streams, and then does. None if that took too long.
    pub(super) fn wait_for(
        self: &Arc<Self>,
        ip: IpAddr,
        local: IpAddr,
        options: &SocketOptions,
        wanted: usize,
        patience: Duration,
    ) -> Option<Turn> {
        let deadline = Instant::now() + patience;
        let mut waiting = self.waiting();
        while waiting.contains_key(&ip) {
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.left.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (sender, streams) = sync_channel(2 * STREAMS_MAX as usize);
        let test = Waiting { local, options: options.clone(), streams: sender, known: Vec::new(), wanted };
        waiting.insert(ip, test);
        Some(Turn { hub: Arc::clone(self), ip, streams })
    }

    fn datagram(&self, datagram: &[u8], from: SocketAddr) {
        if !wire::is_hello(datagram) {
            return;
        }
        let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
        // Sockets are made outside of the lock.
        let (local, options) = {
            let waiting = self.waiting();
            let Some(test) = waiting.get(&peer.ip()) else { return };
            if let Some((_, socket)) = test.known.iter().find(|(known, _)| *known == peer) {
                let _ = socket.send(&wire::reply_to(datagram));
                return;
            }
            if test.known.len() >= test.wanted {
                return;
            }
            (test.local, test.options.clone())
        };
        let Ok((stream, strays)) = self.stream(SocketAddr::new(local, self.address.port()), peer, &options)
        else {
            return;
        };
        self.hand_over(datagram, peer, stream);
        for (stray, from) in strays {
            self.datagram(&stray, from);
        }
    }

    fn hand_over(&self, hello: &[u8], peer: SocketAddr, stream: UdpSocket) {
        let mut waiting = self.waiting();
        let Some(test) = waiting.get_mut(&peer.ip()) else { return };
        let Ok(copy) = stream.try_clone() else { return };
        if stream.send(&wire::reply_to(hello)).is_ok() && test.streams.try_send(stream).is_ok() {
            test.known.push((peer, copy));
        }
    }

    /// A socket for a stream. Between being bound and being connected it may have got what others sent to the port: that is
    /// returned.
    fn stream(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        options: &SocketOptions,
    ) -> io::Result<(UdpSocket, Vec<Stray>)> {
        let stream = socket::shared_udp(local).map_err(io::Error::other)?;
        stream.connect(peer)?;
        prepare::apply(options, &stream, Transport::Udp).map_err(io::Error::other)?;
        stream.set_nonblocking(true)?;
        let mut strays = Vec::new();
        let mut room = [0; HELLO_ROOM];
        while strays.len() < 2 * STREAMS_MAX as usize
            && let Ok((length, from)) = stream.recv_from(&mut room)
        {
            if from != peer {
                strays.push((room[..length].to_vec(), from));
            }
        }
        stream.set_nonblocking(false)?;
        Ok((stream, strays))
    }
}

fn listen(port: &UdpSocket, hub: &Weak<Hub>, halt: &Halt) {
    let mut room = [0; HELLO_ROOM];
    while !halt.is_halted() {
        let received = port.recv_from(&mut room);
        let Some(hub) = hub.upgrade() else { return };
        match received {
            Ok((length, from)) => hub.datagram(&room[..length], from),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            // What ICMP told of a reply of ours, say.
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// The right of a test to the hellos of its address, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    hub: Arc<Hub>,
    ip: IpAddr,
    streams: Receiver<UdpSocket>,
}

impl Turn {
    /// Where the streams come in.
    pub(super) fn streams(&self) -> &Receiver<UdpSocket> {
        &self.streams
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.hub.waiting().remove(&self.ip);
        self.hub.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(5);

    fn hub(halt: &Halt) -> Arc<Hub> {
        // A port that was free a moment ago.
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Hub::open(free, halt.clone()).unwrap()
    }

    fn client() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(SECOND)).unwrap();
        socket
    }

    fn turn(hub: &Arc<Hub>, wanted: usize) -> Turn {
        let ip = "127.0.0.1".parse().unwrap();
        hub.wait_for(ip, ip, &SocketOptions::default(), wanted, SECOND).unwrap()
    }

    #[test]
    fn a_hello_makes_a_stream_and_is_answered_again_when_it_comes_again() {
        let halt = Halt::new();
        let hub = hub(&halt);
        let turn = turn(&hub, 1);
        let client = client();
        let mut room = [0; 16];
        client.send_to(&wire::HELLO, hub.address).unwrap();
        let (length, from) = client.recv_from(&mut room).unwrap();
        assert_eq!((&room[..length], from), (&wire::REPLY[..], hub.address));
        let stream = turn.streams().recv_timeout(SECOND).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), client.local_addr().unwrap());
        stream.send(b"data").unwrap();
        assert_eq!(client.recv(&mut room).unwrap(), 4);
        halt.halt();
    }

    #[test]
    fn nothing_is_answered_where_no_test_waits_or_to_what_is_no_hello() {
        let halt = Halt::new();
        let hub = hub(&halt);
        let client = client();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        client.send_to(&wire::HELLO, hub.address).unwrap();
        let mut room = [0; 16];
        assert!(client.recv(&mut room).is_err());
        let turn = turn(&hub, 1);
        client.send_to(b"not a hello", hub.address).unwrap();
        assert!(client.recv(&mut room).is_err());
        assert!(turn.streams().recv_timeout(Duration::ZERO).is_err());
        halt.halt();
    }

    #[test]
    fn tests_of_one_address_take_turns() {
        let halt = Halt::new();
        let hub = hub(&halt);
        let first = turn(&hub, 1);
        let ip = "127.0.0.1".parse().unwrap();
        assert!(hub.wait_for(ip, ip, &SocketOptions::default(), 1, Duration::from_millis(20)).is_none());
        drop(first);
        assert!(hub.wait_for(ip, ip, &SocketOptions::default(), 1, Duration::from_millis(20)).is_some());
        halt.halt();
    }
}
