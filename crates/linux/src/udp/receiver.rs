//! A UDP socket as a receiver that counts: batched receiving, and what was lost for lack of room.
//!
//! A thread that has nothing to do waits either by poll(2) and takes what is there afterwards ([`UdpReceiver::wait_readable`],
//! [`UdpReceiver::recv_batch`]), or in the receiving call itself ([`UdpReceiver::recv_wait`]), which is a call less each time
//! that it wakes up.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::control;
use crate::SyscallError;
use crate::packet::messages::Messages;
use crate::packet::sockopt as options;

/// Room for one message with GRO: the longest that there is.
const GRO_SLOT_BYTES: usize = 1 << 16;
/// Socket options that the library does not name (include/uapi/asm-generic/socket.h, 6.18).
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// A bound UDP socket with buffers to receive into.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: UdpSocket,
    messages: Messages,
    gro: bool,
    /// What the socket's own timeout is set to; None as long as it waits for ever.
    timeout: Option<Duration>,
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
    /// Share the address and port with other sockets of the same user that say the same (`SO_REUSEPORT`): the kernel
    /// spreads flows among them by a hash.
    pub reuse_port: bool,
    /// Take consecutive datagrams of a flow as one message where the kernel has joined them (`UDP_GRO`, Linux 5.0). Joined
    /// they are where they were received in one NAPI poll of a device with GRO, or sent as one on this host. A slot then has
    /// 64 KiB, whatever `datagram_bytes` says, and [`UdpReceiver::segments`] gives the datagrams.
    pub gro: bool,
    /// Let a receiving call that finds nothing poll the device's queue for so many µs (`SO_BUSY_POLL`, Linux 3.11); where the
    /// device has NAPI, which a veth has only with GRO or an XDP program.
    pub busy_poll_us: Option<u32>,
    /// Let the polling thread do the device's work instead of the softirq (`SO_PREFER_BUSY_POLL`, Linux 5.11; it takes effect
    /// where the device has `gro_flush_timeout` and `napi_defer_hard_irqs` set).
    pub prefer_busy_poll: bool,
    /// The most packets that one such poll takes (`SO_BUSY_POLL_BUDGET`, Linux 5.11; 8 where nothing is set).
    pub busy_poll_budget: Option<u16>,
}

impl ReceiverSpec {
    /// 16 MiB of socket memory, 64 datagrams a call, 2048 bytes each, without their sources; every option off.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            receive_buffer_bytes: 16 << 20,
            batch: 64,
            datagram_bytes: 2048,
            sources: false,
            reuse_port: false,
            gro: false,
            busy_poll_us: None,
            prefer_busy_poll: false,
            busy_poll_budget: None,
        }
    }
}

/// What one call received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batch {
    /// Datagrams; with GRO there may be more than slots.
    pub datagrams: usize,
    /// Slots that hold them.
    pub slots: usize,
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
    /// EADDRINUSE, EADDRNOTAVAIL: the port is taken or the address is not here. ENOMEM: no memory for the buffers. For an
    /// option, what it lacks: a later kernel, a build option, or CAP_NET_ADMIN.
    pub fn bind(spec: &ReceiverSpec) -> Result<Self, SyscallError> {
        let failed =
            |call| move |error: io::Error| SyscallError::new(call, format!("UDP {}", spec.address), error);
        let refused = |call| move |error: Errno| failed(call)(error.into());
        let family = if spec.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(refused("open socket"))?;
        // Before it is bound: nothing may come that the options do not hold for.
        set_options(&socket, spec)?;
        bind(&socket, &spec.address).map_err(refused("bind socket"))?;
        let socket = UdpSocket::from(socket);
        let receive_buffer_bytes =
            sockopt::socket_recv_buffer_size(&socket).map_err(refused("read SO_RCVBUF"))?;
        let address = socket.local_addr().map_err(failed("getsockname"))?;
        let messages = messages(spec).map_err(failed("allocate buffers"))?;
        let (gro, timeout) = (spec.gro, None);
        let mut receiver =
            Self { socket, messages, gro, timeout, address, receive_buffer_bytes, drops_seen: 0, drops: 0 };
        receiver.drops_seen = receiver.drop_counter()?;
        Ok(receiver)
    }

    /// From now on takes datagrams from this address and port only.
    ///
    /// # Errors
    /// ENETUNREACH where there is no route to it.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), SyscallError> {
        self.socket.connect(peer).map_err(|error| self.failed("connect", error))
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
        self.receive(libc::MSG_DONTWAIT)
    }

    /// Waits in the kernel for the first datagram, at most for `timeout`, and takes what is there then, up to a batch.
    ///
    /// One call does both (`MSG_WAITFORONE`, with `SO_RCVTIMEO`, which is set when `timeout` is another than the last time).
    /// The kernel rounds the time up to its tick. A signal ends the wait early, with nothing.
    ///
    /// # Errors
    /// As [`Self::recv_batch`].
    pub fn recv_wait(&mut self, timeout: Duration) -> Result<Batch, SyscallError> {
        if timeout.is_zero() {
            return self.recv_batch(); // 0 would mean for ever
        }
        if self.timeout != Some(timeout) {
            let at_least = timeout.max(Duration::from_micros(1));
            sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(at_least))
                .map_err(|error| self.failed("set SO_RCVTIMEO", error.into()))?;
            self.timeout = Some(timeout);
        }
        self.receive(libc::MSG_WAITFORONE)
    }

    fn receive(&mut self, flags: libc::c_int) -> Result<Batch, SyscallError> {
        match self.messages.receive(self.socket.as_fd(), flags) {
            Ok(slots) => Ok(self.count(slots)),
            Err(error) => match error.raw_os_error() {
                Some(
                    libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH,
                ) => Ok(Batch::default()),
                _ => Err(self.failed("recvmmsg", error)),
            },
        }
    }

    fn count(&mut self, slots: usize) -> Batch {
        let bytes = (0..slots).map(|slot| self.messages.transferred(slot)).sum();
        let datagrams = if self.gro {
            (0..slots)
                .map(|slot| self.messages.transferred(slot).div_ceil(self.segment_bytes(slot)).max(1))
                .sum()
        } else {
            slots
        };
        Batch { datagrams, slots, bytes }
    }

    /// The size of the datagrams in a slot; the last may be shorter.
    fn segment_bytes(&mut self, slot: usize) -> usize {
        let joined = if self.gro { control::segment_bytes(self.messages.control(slot)) } else { None };
        joined.unwrap_or_else(|| self.messages.transferred(slot)).max(1)
    }

    /// The payloads of the datagrams in a slot of the last batch, as far as stored: one, or, with GRO, one or more.
    ///
    /// # Panics
    /// When `slot` is not below the batch size.
    pub fn segments(&mut self, slot: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = self.segment_bytes(slot);
        let stored = self.datagram(slot);
        // An empty datagram is one too.
        let empty = stored.is_empty().then_some(stored);
        stored.chunks(bytes).chain(empty)
    }

    /// The payload of a datagram of the last batch, as far as stored; with GRO all of what is in the slot.
    ///
    /// # Panics
    /// When `index` is not below the batch size.
    pub fn datagram(&mut self, index: usize) -> &[u8] {
        let len = self.messages.transferred(index).min(self.messages.slot_bytes());
        &self.messages.slot_mut(index)[..len]
    }

    /// Where the datagrams in a slot of the last batch came from; None unless [`ReceiverSpec::sources`] asked for it.
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

fn messages(spec: &ReceiverSpec) -> io::Result<Messages> {
    let slot_bytes = if spec.gro { GRO_SLOT_BYTES } else { spec.datagram_bytes };
    let mut messages = Messages::new(spec.batch.max(1), slot_bytes)?;
    if spec.sources {
        messages = messages.with_sources()?;
    }
    if spec.gro {
        messages = messages.with_controls()?;
    }
    Ok(messages)
}

fn set_options(socket: &impl AsFd, spec: &ReceiverSpec) -> Result<(), SyscallError> {
    let failed = |call, error: io::Error| SyscallError::new(call, format!("UDP {}", spec.address), error);
    if spec.reuse_port {
        sockopt::set_socket_reuseport(socket, true)
            .map_err(|error| failed("set SO_REUSEPORT", error.into()))?;
    }
    sockopt::set_socket_recv_buffer_size_force(socket, spec.receive_buffer_bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, spec.receive_buffer_bytes))
        .map_err(|error| failed("set SO_RCVBUF", error.into()))?;
    let set = |level, name, value: libc::c_int, call, since| {
        options::set(socket, level, name, &value).map_err(|error| explain_option(failed(call, error), since))
    };
    if spec.gro {
        set(libc::SOL_UDP, libc::UDP_GRO, 1, "set UDP_GRO", "Linux 5.0")?;
    }
    if let Some(us) = spec.busy_poll_us {
        let us = libc::c_int::try_from(us).unwrap_or(libc::c_int::MAX);
        set(libc::SOL_SOCKET, SO_BUSY_POLL, us, "set SO_BUSY_POLL", "Linux 3.11")?;
    }
    if spec.prefer_busy_poll {
        set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1, "set SO_PREFER_BUSY_POLL", "Linux 5.11")?;
    }
    if let Some(budget) = spec.busy_poll_budget {
        set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, budget.into(), "set SO_BUSY_POLL_BUDGET", "Linux 5.11")?;
    }
    Ok(())
}

/// What a refused option lacks. Older kernels let only CAP_NET_ADMIN raise SO_BUSY_POLL above net.core.busy_read; 6.18 lets
/// everybody, and asks for it for the other two (net/core/sock.c, sk_setsockopt).
fn explain_option(error: SyscallError, since: &str) -> SyscallError {
    let polls = error.call.contains("BUSY_POLL");
    let detail = match error.errno() {
        Some(libc::ENOPROTOOPT) if polls => {
            format!("it needs {since}, and a kernel that was built with CONFIG_NET_RX_BUSY_POLL")
        }
        Some(libc::ENOPROTOOPT) => format!("it needs {since}"),
        Some(libc::EPERM) if error.call == "set SO_BUSY_POLL" => {
            "a value above net.core.busy_read needs CAP_NET_ADMIN".into()
        }
        Some(libc::EPERM) if error.call == "set SO_BUSY_POLL_BUDGET" => {
            "a budget above 8 packets needs CAP_NET_ADMIN".into()
        }
        Some(libc::EPERM) => "it needs CAP_NET_ADMIN".into(),
        _ => return error,
    };
    error.with_detail(detail)
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
        assert_eq!(receiver.recv_batch().unwrap(), Batch { datagrams: 4, slots: 4, bytes: 1 + 2 + 3 + 4 });
        assert_eq!(receiver.datagram(2), [3, 3, 3]);
        assert_eq!(receiver.recv_batch().unwrap(), Batch { datagrams: 2, slots: 2, bytes: 5 + 6 });
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
    fn waiting_in_the_kernel_ends_with_a_datagram_or_with_the_time() {
        let mut receiver = UdpReceiver::bind(&loopback()).unwrap();
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(5)] {
            assert_eq!(receiver.recv_wait(timeout).unwrap(), Batch::default());
        }
        let to = receiver.address();
        let sender = std::thread::spawn(move || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.send_to(&[1; 10], to).unwrap();
        });
        let batch = receiver.recv_wait(Duration::from_secs(20)).unwrap();
        sender.join().unwrap();
        assert_eq!(batch, Batch { datagrams: 1, slots: 1, bytes: 10 });
        assert_eq!(receiver.segments(0).collect::<Vec<_>>(), [[1; 10]]);
    }

    #[test]
    fn an_empty_datagram_is_one_with_and_without_gro() {
        for gro in [false, true] {
            let mut receiver = UdpReceiver::bind(&ReceiverSpec { gro, ..loopback() }).unwrap();
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            sender.send_to(&[], receiver.address()).unwrap();
            let batch = receiver.recv_wait(Duration::from_secs(20)).unwrap();
            assert_eq!(batch, Batch { datagrams: 1, slots: 1, bytes: 0 });
            assert_eq!(receiver.segments(0).collect::<Vec<_>>(), [[0_u8; 0]]);
        }
    }

    #[test]
    fn a_port_is_shared_where_all_say_so() {
        let spec = ReceiverSpec { reuse_port: true, ..loopback() };
        let first = UdpReceiver::bind(&spec).unwrap();
        let of_first = ReceiverSpec { address: first.address(), ..spec };
        let mut sockets = [first, UdpReceiver::bind(&of_first).unwrap()];
        for _ in 0..64 {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            sender.send_to(&[0; 8], of_first.address).unwrap();
        }
        let counts = sockets.each_mut().map(|socket| socket.recv_batch().unwrap().datagrams);
        assert_eq!(counts.iter().sum::<usize>(), 64, "{counts:?}");
        let alone = ReceiverSpec { reuse_port: false, ..of_first };
        assert!(UdpReceiver::bind(&alone).unwrap_err().to_string().contains("bind socket"));
    }

    #[test]
    fn busy_polling_is_set_or_what_it_lacks_is_said() {
        let specs = [
            ReceiverSpec { busy_poll_us: Some(50), ..loopback() },
            ReceiverSpec { prefer_busy_poll: true, ..loopback() },
            ReceiverSpec { busy_poll_budget: Some(64), ..loopback() },
        ];
        for spec in specs {
            match (UdpReceiver::bind(&spec), spec.busy_poll_us) {
                // Only this one can be read back.
                (Ok(receiver), Some(us)) => {
                    let socket = &receiver.socket;
                    assert_eq!(options::words32(socket, libc::SOL_SOCKET, SO_BUSY_POLL).unwrap().0, [us]);
                }
                (Ok(_), None) => {}
                (Err(error), _) => {
                    let text = error.to_string();
                    assert!(text.contains("CAP_NET_ADMIN") || text.contains("it needs Linux"), "{text}");
                }
            }
        }
    }

    #[test]
    fn what_an_option_lacks_is_named() {
        let of = |call, errno, since| {
            let error = SyscallError::new(call, "UDP", io::Error::from_raw_os_error(errno));
            explain_option(error, since).detail.unwrap_or_default()
        };
        assert_eq!(of("set UDP_GRO", libc::ENOPROTOOPT, "Linux 5.0"), "it needs Linux 5.0");
        let text = of("set SO_PREFER_BUSY_POLL", libc::ENOPROTOOPT, "Linux 5.11");
        assert!(text.contains("Linux 5.11") && text.contains("CONFIG_NET_RX_BUSY_POLL"), "{text}");
        let text = of("set SO_BUSY_POLL", libc::EPERM, "");
        assert!(text.contains("net.core.busy_read"), "{text}");
        assert_eq!(of("set SO_PREFER_BUSY_POLL", libc::EPERM, ""), "it needs CAP_NET_ADMIN");
        assert_eq!(of("set UDP_GRO", libc::ENOMEM, ""), "");
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
