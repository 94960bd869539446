//! A UDP socket as a receiver that counts: batched receiving, and what was lost for lack of room.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::SyscallError;
use crate::packet::messages::Messages;
use crate::packet::sockopt as options;

/// A bound UDP socket with buffers to receive into.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: UdpSocket,
    messages: Messages,
    address: SocketAddr,
    receive_buffer_bytes: usize,
    /// The kernel's drop counter when it was last read: it has 32 bits and wraps.
    drops_seen: u32,
    drops: u64,
}

/// The shape of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverSpec {
    /// Where to receive; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Socket memory to ask for. The kernel doubles it, and counts each datagram with its whole buffer: for
    /// small frames on a veth pair about 700 to 900 bytes, on a NIC up to a page and more.
    pub receive_buffer_bytes: usize,
    /// How many datagrams one call takes at most.
    pub batch: usize,
    /// How many bytes of each datagram are stored; what is longer is cut, and counted by what was stored.
    pub datagram_bytes: usize,
    /// Whether to keep where each datagram came from ([`UdpReceiver::source`]).
    pub sources: bool,
}

impl ReceiverSpec {
    /// 16 MiB of socket memory, 64 datagrams a call, 2048 bytes each, without their sources.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, receive_buffer_bytes: 16 << 20, batch: 64, datagram_bytes: 2048, sources: false }
    }
}

/// What one call received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batch {
    /// Datagrams.
    pub datagrams: usize,
    /// Their payload bytes, as far as stored.
    pub bytes: usize,
}

impl UdpReceiver {
    /// Binds a socket in the calling thread's network namespace.
    ///
    /// The size is set past the system's limit where allowed (`SO_RCVBUFFORCE`, CAP_NET_ADMIN in the initial user
    /// namespace), else up to `net.core.rmem_max`; [`Self::receive_buffer_bytes`] says what was got.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL: the port is taken or the address is not here. ENOMEM: no memory for the buffers.
    pub fn bind(spec: &ReceiverSpec) -> Result<Self, SyscallError> {
        let failed =
            |call| move |error: io::Error| SyscallError::new(call, format!("UDP {}", spec.address), error);
        let socket = UdpSocket::bind(spec.address).map_err(failed("bind socket"))?;
        sockopt::set_socket_recv_buffer_size_force(&socket, spec.receive_buffer_bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, spec.receive_buffer_bytes))
            .map_err(|error| failed("set SO_RCVBUF")(error.into()))?;
        let receive_buffer_bytes = sockopt::socket_recv_buffer_size(&socket)
            .map_err(|error| failed("read SO_RCVBUF")(error.into()))?;
        let address = socket.local_addr().map_err(failed("getsockname"))?;
        let messages = Messages::new(spec.batch.max(1), spec.datagram_bytes);
        let messages = if spec.sources { messages.and_then(Messages::with_sources) } else { messages };
        let messages = messages.map_err(failed("allocate buffers"))?;
        let mut receiver = Self { socket, messages, address, receive_buffer_bytes, drops_seen: 0, drops: 0 };
        receiver.drops_seen = receiver.drop_counter()?;
        Ok(receiver)
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Socket memory as the kernel counts it: twice what was asked for, when it was granted.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Takes what is there, up to a batch, without waiting.
    ///
    /// # Errors
    /// ECONNREFUSED and the like, when an ICMP error came for the socket, are not errors here: nothing was received.
    pub fn recv_batch(&mut self) -> Result<Batch, SyscallError> {
        match self.messages.receive(self.socket.as_fd(), libc::MSG_DONTWAIT) {
            Ok(datagrams) => {
                let bytes = (0..datagrams).map(|slot| self.messages.transferred(slot)).sum();
                Ok(Batch { datagrams, bytes })
            }
            Err(error) => match error.raw_os_error() {
                Some(
                    libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH,
                ) => Ok(Batch::default()),
                _ => Err(self.failed("recvmmsg", error)),
            },
        }
    }

    /// The payload of a datagram of the last batch, as far as stored.
    ///
    /// # Panics
    /// When `index` is not below the batch size.
    pub fn datagram(&mut self, index: usize) -> &[u8] {
        let len = self.messages.transferred(index).min(self.messages.slot_bytes());
        &self.messages.slot_mut(index)[..len]
    }

    /// Where a datagram of the last batch came from; None unless [`ReceiverSpec::sources`] asked for it.
    ///
    /// # Panics
    /// When `index` is not below the batch size.
    pub fn source(&mut self, index: usize) -> Option<SocketAddr> {
        self.messages.source(index)
    }

    /// Waits until there is a datagram, or the time is over; whether there is one.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool, SyscallError> {
        let time = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], time.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.failed("poll", error.into())),
        }
    }

    /// Datagrams that the socket dropped since it was bound: no room, a bad checksum, or a filter
    /// (`sk_drops`, by `SO_MEMINFO`, Linux 4.12).
    ///
    /// The kernel's counter has 32 bits: ask at least once in four thousand million drops. With namespaces, the
    /// same drops are part of `RcvbufErrors` (or `InCsumErrors`) in `/proc/net/snmp`.
    pub fn drops(&mut self) -> Result<u64, SyscallError> {
        let now = self.drop_counter()?;
        self.drops += u64::from(now.wrapping_sub(self.drops_seen));
        self.drops_seen = now;
        Ok(self.drops)
    }

    fn drop_counter(&self) -> Result<u32, SyscallError> {
        const WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;
        let (words, _) = options::words32::<WORDS>(&self.socket, libc::SOL_SOCKET, libc::SO_MEMINFO)
            .map_err(|error| self.failed("read SO_MEMINFO", error))?;
        Ok(words[WORDS - 1])
    }

    fn failed(&self, call: &'static str, error: io::Error) -> SyscallError {
        SyscallError::new(call, format!("UDP {}", self.address), error)
    }
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn loopback() -> ReceiverSpec {
        ReceiverSpec::new((Ipv4Addr::LOCALHOST, 0).into())
    }

    #[test]
    fn datagrams_are_counted_with_their_bytes() {
        let mut receiver = UdpReceiver::bind(&ReceiverSpec { batch: 4, ..loopback() }).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for length in 1..=6_u8 {
            sender.send_to(&vec![length; usize::from(length)], receiver.address()).unwrap();
        }
        assert!(receiver.wait_readable(Duration::from_secs(5)).unwrap());
        // Loopback delivers before `send_to` returns.
        assert_eq!(receiver.recv_batch().unwrap(), Batch { datagrams: 4, bytes: 1 + 2 + 3 + 4 });
        assert_eq!(receiver.datagram(2), [3, 3, 3]);
        assert_eq!(receiver.recv_batch().unwrap(), Batch { datagrams: 2, bytes: 5 + 6 });
        assert_eq!(receiver.recv_batch().unwrap(), Batch::default());
        assert_eq!(receiver.drops().unwrap(), 0);
    }

    #[test]
    fn the_sender_of_each_datagram_is_known() {
        for (host, sender_host) in
            [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0"), ("[::]:0", "127.0.0.1:0")]
        {
            let spec = ReceiverSpec { sources: true, ..ReceiverSpec::new(host.parse().unwrap()) };
            let Ok(mut receiver) = UdpReceiver::bind(&spec) else { continue }; // no IPv6 here
            let senders = [0; 2].map(|_| UdpSocket::bind(sender_host).unwrap());
            for _ in 0..2 {
                let to = SocketAddr::new(senders[0].local_addr().unwrap().ip(), receiver.address().port());
                senders.iter().for_each(|sender| _ = sender.send_to(&[7], to).unwrap());
                assert_eq!(receiver.recv_batch().unwrap().datagrams, 2);
                let expected = [0, 1].map(|index| Some(senders[index].local_addr().unwrap()));
                assert_eq!([receiver.source(0), receiver.source(1)], expected);
            }
        }
    }

    #[test]
    fn a_full_socket_counts_what_it_drops() {
        let spec = ReceiverSpec { receive_buffer_bytes: 1, ..loopback() };
        let mut receiver = UdpReceiver::bind(&spec).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..100 {
            sender.send_to(&[0; 1000], receiver.address()).unwrap();
        }
        let mut received = 0;
        while receiver.wait_readable(Duration::ZERO).unwrap() {
            received += receiver.recv_batch().unwrap().datagrams as u64;
        }
        let drops = receiver.drops().unwrap();
        assert!(drops > 0 && received > 0);
        assert_eq!(received + drops, 100);
    }

    #[test]
    fn the_size_got_is_reported() {
        let receiver =
            UdpReceiver::bind(&ReceiverSpec { receive_buffer_bytes: 100_000, ..loopback() }).unwrap();
        assert_eq!(receiver.receive_buffer_bytes(), 200_000);
    }

    #[test]
    fn an_address_of_somewhere_else_is_an_error() {
        let spec = ReceiverSpec::new((Ipv4Addr::new(192, 0, 2, 1), 9).into());
        let error = UdpReceiver::bind(&spec).unwrap_err().to_string();
        assert!(error.contains("bind socket on UDP 192.0.2.1:9"), "{error}");
    }
}
