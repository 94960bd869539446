//! A bound UDP socket that sends batches.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::outgoing::DatagramBatch;
use crate::SyscallError;
use crate::packet::sockopt as options;

/// How long one wait for room takes at most, so that a lost wake-up costs little.
const WAIT: Duration = Duration::from_millis(1);
/// How long to leave a queue alone that has just dropped: it is not waited for, as the socket itself has room.
const AFTER_DROP: Duration = Duration::from_micros(50);
/// A socket option that the library does not name (include/uapi/asm-generic/socket.h, 6.18).
const SO_BINDTOIFINDEX: libc::c_int = 62;
/// Of what comes back to a sending socket, little is kept: nobody reads it.
const RECEIVE_BUFFER_BYTES: usize = 4096;

/// The shape of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderSpec {
    /// The address and port that datagrams come from; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// The only device that datagrams may leave by (`SO_BINDTOIFINDEX`, Linux 5.0), whatever the routes say: where these lead
    /// elsewhere, the destination is taken to be on its link. None leaves it to the routes.
    pub ifindex: Option<u32>,
    /// Socket memory to ask for, which bounds what is on its way at a time. The kernel doubles it, and counts each datagram
    /// with its whole buffer: 768 bytes for a small one.
    pub send_buffer_bytes: usize,
    /// Let consecutive datagrams of one size to one destination be one message (`UDP_SEGMENT`, Linux 4.18): the kernel
    /// cuts it as late as it can.
    pub gso: bool,
    /// Be told what the queueing discipline or the device drops (`IP_RECVERR`). Without it the kernel reports such a
    /// datagram as sent, and counts it only in `Udp.SndbufErrors` (net/ipv4/udp.c, udp_send_skb, 6.18). With it ICMP errors
    /// come back too, each of which fails a call.
    pub reports_drops: bool,
    /// Let others of the same user send from the same address and port (`SO_REUSEPORT`).
    pub reuse_port: bool,
}

impl SenderSpec {
    /// By any device, 4 MiB of socket memory, one message a datagram, told of drops, the address alone.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            ifindex: None,
            send_buffer_bytes: 4 << 20,
            gso: false,
            reports_drops: true,
            reuse_port: false,
        }
    }
}

/// A bound UDP socket that sends to any address.
///
/// Taken is what sendmmsg accepted: it was handed to IP, and from there to the queueing discipline or the driver. That is no
/// delivery. The source address, headers, path and segmentation are the kernel's business. Datagrams are never fragmented
/// (`IP_PMTUDISC_PROBE`): what is longer than the device takes is an error.
#[derive(Debug)]
pub struct UdpSender {
    socket: UdpSocket,
    address: SocketAddr,
    gso: bool,
    reports_drops: bool,
}

/// What became of datagrams, in one or several calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handed {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// System calls that sent, those that found no room included.
    pub calls: u32,
    /// Calls that failed with an ICMP error that had come back for an earlier datagram; nothing of theirs was sent.
    pub refused: u64,
}

/// What a call that failed means.
enum Lacking {
    /// The socket's memory is used up.
    Room,
    /// The queueing discipline or the device dropped the datagram.
    Queue,
    /// An ICMP error for an earlier datagram was waiting; it is gone now.
    Answer,
}

impl UdpSender {
    /// Binds a socket in the calling thread's network namespace.
    ///
    /// In a namespace without any IPv4 address the kernel takes every address for one that can be bound, and sends to the link's
    /// broadcast address (net/ipv4/fib_frontend.c, `__inet_dev_addr_type`: without tables the answer is RTN_BROADCAST, 6.18).
    ///
    /// # Errors
    /// EADDRNOTAVAIL: the address is not one of this host. EADDRINUSE: the port is taken. ENOPROTOOPT: the kernel does not
    /// know GSO.
    pub fn bind(spec: &SenderSpec) -> Result<Self, SyscallError> {
        let failed =
            |call| move |error: Errno| SyscallError::new(call, format!("UDP {}", spec.address), error.into());
        let family = if spec.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(failed("open socket"))?;
        if spec.reuse_port {
            sockopt::set_socket_reuseport(&socket, true).map_err(failed("set SO_REUSEPORT"))?;
        }
        if let Some(ifindex) = spec.ifindex {
            options::set(&socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, &ifindex).map_err(|error| {
                SyscallError::new(
                    "set SO_BINDTOIFINDEX",
                    format!("UDP {}, interface {ifindex}", spec.address),
                    error,
                )
            })?;
        }
        bind(&socket, &spec.address)
            .map_err(|error| explain_bind(failed("bind socket")(error), spec.address))?;
        sockopt::set_socket_send_buffer_size_force(&socket, spec.send_buffer_bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, spec.send_buffer_bytes))
            .map_err(failed("set SO_SNDBUF"))?;
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)
            .map_err(failed("set SO_RCVBUF"))?;
        let socket = UdpSocket::from(socket);
        let address =
            socket.local_addr().map_err(|error| SyscallError::new("getsockname", "UDP socket", error))?;
        let sender = Self { socket, address, gso: spec.gso, reports_drops: spec.reports_drops };
        sender.set_options()?;
        Ok(sender)
    }

    fn set_options(&self) -> Result<(), SyscallError> {
        let (level, discover, errors) = match self.address {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR),
        };
        let set = |level, name, value: libc::c_int, call| {
            options::set(&self.socket, level, name, &value).map_err(|error| self.failed(call, error))
        };
        // The number is the same for IPv4 and IPv6 (include/uapi/linux/in.h, in6.h).
        set(level, discover, libc::IP_PMTUDISC_PROBE, "set IP_MTU_DISCOVER")?;
        if self.reports_drops {
            set(level, errors, 1, "set IP_RECVERR")?;
        }
        if self.gso {
            // Asks whether the kernel knows it: 0 is what holds anyway, and messages say their own size.
            set(libc::SOL_UDP, libc::UDP_SEGMENT, 0, "set UDP_SEGMENT").map_err(|error| {
                match error.errno() {
                    Some(libc::ENOPROTOOPT) => error.with_detail("GSO for UDP needs Linux 4.18"),
                    _ => error,
                }
            })?;
        }
        Ok(())
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends the datagrams in the slots that `order` names, in that order, and waits for room; `handed` is added to. All are
    /// sent, or none in the last `patience`: then fewer, which is no error. What was taken is from the first of `order` on.
    ///
    /// # Errors
    /// EPERM: the packet filter refused a datagram. EMSGSIZE or EINVAL: it is too long. ENETUNREACH: no route. What
    /// ICMP errors say (ECONNREFUSED) is one only where nothing could be sent between them for `patience`. What was taken
    /// before is in `handed`.
    pub fn send(
        &self,
        batch: &mut DatagramBatch,
        order: &[usize],
        patience: Duration,
        handed: &mut Handed,
    ) -> Result<(), SyscallError> {
        let mut left = order;
        let mut stalled_since: Option<Instant> = None;
        while !left.is_empty() {
            handed.calls = handed.calls.saturating_add(1);
            let error = match self.try_send(batch, left) {
                Ok(taken) => {
                    handed.datagrams += taken as u64;
                    left = &left[taken.min(left.len())..];
                    stalled_since = None;
                    continue;
                }
                Err(error) => error,
            };
            let stalled = stalled_since.get_or_insert_with(Instant::now).elapsed() > patience;
            match self.lacking(&error) {
                Some(Lacking::Room | Lacking::Queue) if stalled => return Ok(()),
                Some(Lacking::Room) => self.wait_writable(WAIT.min(patience))?,
                Some(Lacking::Queue) => thread::sleep(AFTER_DROP.min(patience)),
                Some(Lacking::Answer) if !stalled => handed.refused += 1,
                _ => return Err(explain(self.failed("sendmmsg", error), self.gso)),
            }
        }
        Ok(())
    }

    /// One call, without waiting; how many of `order` the kernel took, at least one.
    fn try_send(&self, batch: &mut DatagramBatch, order: &[usize]) -> io::Result<usize> {
        batch.send(self.socket.as_fd(), order, self.gso, libc::MSG_DONTWAIT)
    }

    /// What is waited for after an error; none where it is one.
    ///
    /// ICMP errors come to a socket that is not connected only with IP_RECVERR (net/ipv4/udp.c, `__udp4_lib_err`, 6.18); by
    /// which numbers, `icmp_err_convert` says (net/ipv4/icmp.c).
    fn lacking(&self, error: &io::Error) -> Option<Lacking> {
        match error.raw_os_error()? {
            libc::EAGAIN | libc::EINTR => Some(Lacking::Room),
            libc::ENOBUFS => Some(Lacking::Queue),
            libc::ECONNREFUSED => Some(Lacking::Answer),
            libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENOPROTOOPT | libc::ENONET | libc::EPROTO
                if self.reports_drops =>
            {
                Some(Lacking::Answer)
            }
            _ => None,
        }
    }

    fn wait_writable(&self, timeout: Duration) -> Result<(), SyscallError> {
        let time = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(self.failed("poll", error.into())),
        }
    }

    fn failed(&self, call: &'static str, error: io::Error) -> SyscallError {
        SyscallError::new(call, format!("UDP {}", self.address), error)
    }
}

impl AsFd for UdpSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a refused address means for a sender.
fn explain_bind(error: SyscallError, address: SocketAddr) -> SyscallError {
    let detail = match error.errno() {
        Some(libc::EADDRNOTAVAIL) => format!(
            "{} is no address of this namespace, and a socket sends only from such: add it to a device there, or send \
             frames by a backend that writes headers itself",
            address.ip()
        ),
        Some(libc::EADDRINUSE) => format!("another socket has port {}", address.port()),
        Some(libc::EACCES) => {
            "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE".into()
        }
        _ => return error,
    };
    error.with_detail(detail)
}

/// What a refused datagram means.
fn explain(error: SyscallError, gso: bool) -> SyscallError {
    let detail = match error.errno() {
        Some(libc::EPERM) => "the packet filter of the sender's own namespace refused a datagram",
        Some(libc::EMSGSIZE) => "a datagram is longer than the device's MTU allows, and is not fragmented",
        Some(libc::EINVAL) if gso => {
            "with GSO also: a datagram and its headers are longer than the device's MTU, or its port is 0"
        }
        Some(libc::EINVAL) => "a destination has port 0, or is of another family than the socket",
        Some(libc::EIO) if gso => "GSO needs checksums that the device computes (ethtool -K DEV tx on)",
        Some(libc::ENETUNREACH) => "there is no route from the sender's namespace to the destination",
        Some(libc::EACCES) => "the destination is a broadcast address, which this sender does not send to",
        _ => return error,
    };
    error.with_detail(detail)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::udp::{ReceiverSpec, UdpReceiver};

    const PATIENCE: Duration = Duration::from_secs(1);
    const HOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

    /// Both ends at a loopback address; none where the host has no such.
    fn pair(host: &str, gso: bool) -> Option<(UdpSender, UdpReceiver)> {
        let address: SocketAddr = host.parse().unwrap();
        let receiver = UdpReceiver::bind(&ReceiverSpec::new(address)).ok()?;
        Some((UdpSender::bind(&SenderSpec { gso, ..SenderSpec::new(address) }).unwrap(), receiver))
    }

    /// One datagram of each length, of bytes that are its number.
    fn filled(lengths: &[usize], to: SocketAddr) -> DatagramBatch {
        let mut batch = DatagramBatch::new(lengths.len(), 2000).unwrap();
        for (slot, &bytes) in lengths.iter().enumerate() {
            batch.slot_mut(slot)[42..42 + bytes].fill(slot as u8);
            batch.set(slot, 42..42 + bytes, to);
        }
        batch
    }

    fn send(sender: &UdpSender, batch: &mut DatagramBatch) -> Handed {
        let (order, mut handed): (Vec<usize>, _) = ((0..batch.len()).collect(), Handed::default());
        sender.send(batch, &order, PATIENCE, &mut handed).unwrap();
        handed
    }

    #[test]
    fn datagrams_arrive_as_filled_and_from_where_the_socket_is() {
        for (host, gso) in HOSTS.into_iter().flat_map(|host| [(host, false), (host, true)]) {
            let Some((sender, receiver)) = pair(host, gso) else { continue }; // no IPv6 here
            drop(receiver);
            let spec = ReceiverSpec { sources: true, ..ReceiverSpec::new(host.parse().unwrap()) };
            let mut receiver = UdpReceiver::bind(&spec).unwrap();
            let lengths = [100, 100, 100, 7, 0, 0, 9];
            let handed = send(&sender, &mut filled(&lengths, receiver.address()));
            assert_eq!(handed, Handed { datagrams: 7, calls: 1, refused: 0 });
            assert_eq!(receiver.recv_batch().unwrap().datagrams, 7, "{host}, GSO {gso}");
            for (slot, &bytes) in lengths.iter().enumerate() {
                assert_eq!(receiver.datagram(slot), vec![slot as u8; bytes]);
                assert_eq!(receiver.source(slot), Some(sender.address()));
            }
        }
    }

    #[test]
    fn slots_are_sent_in_the_order_that_is_named() {
        let Some((sender, mut receiver)) = pair(HOSTS[0], false) else { return };
        let mut batch = filled(&[1; 5], receiver.address());
        let mut handed = Handed::default();
        sender.send(&mut batch, &[3, 1, 4], PATIENCE, &mut handed).unwrap();
        sender.send(&mut batch, &[], PATIENCE, &mut handed).unwrap();
        assert_eq!(handed, Handed { datagrams: 3, calls: 1, refused: 0 });
        assert_eq!(receiver.recv_batch().unwrap().datagrams, 3);
        assert_eq!([0, 1, 2].map(|index| receiver.datagram(index)[0]), [3, 1, 4]);
    }

    #[test]
    fn a_receiver_with_gro_gets_messages_as_they_were_sent() {
        for host in HOSTS {
            let Some((sender, _)) = pair(host, true) else { continue };
            let spec = ReceiverSpec { gro: true, batch: 4, ..ReceiverSpec::new(host.parse().unwrap()) };
            let mut receiver = UdpReceiver::bind(&spec).unwrap();
            send(&sender, &mut filled(&[50, 50, 50, 20, 1900], receiver.address()));
            // Loopback does not cut what the receiver takes whole.
            let batch = receiver.recv_batch().unwrap();
            assert_eq!((batch.datagrams, batch.slots, batch.bytes), (5, 3, 150 + 20 + 1900));
            let held = |receiver: &mut UdpReceiver, slot| {
                receiver.segments(slot).map(|segment| (segment.len(), segment[0])).collect::<Vec<_>>()
            };
            assert_eq!(held(&mut receiver, 0), [(50, 0), (50, 1), (50, 2)]);
            assert_eq!(held(&mut receiver, 1), [(20, 3)]);
            assert_eq!(held(&mut receiver, 2), [(1900, 4)]);
        }
    }

    #[test]
    fn icmp_errors_that_come_back_stop_nothing() {
        let Some((sender, receiver)) = pair(HOSTS[0], false) else { return };
        let nobody = receiver.address();
        drop(receiver);
        let handed = send(&sender, &mut filled(&[10; 20], nobody));
        assert_eq!(handed.datagrams, 20);
        let deaf = SenderSpec { reports_drops: false, ..SenderSpec::new(HOSTS[0].parse().unwrap()) };
        let handed = send(&UdpSender::bind(&deaf).unwrap(), &mut filled(&[10; 20], nobody));
        assert_eq!(handed, Handed { datagrams: 20, calls: 1, refused: 0 });
    }

    #[test]
    fn a_receiver_that_reads_nothing_holds_nobody_up() {
        let Some((sender, mut receiver)) = pair(HOSTS[0], false) else { return };
        let mut batch = filled(&[1000; 64], receiver.address());
        let sent: u64 = (0..1000).map(|_| send(&sender, &mut batch).datagrams).sum();
        let mut received = 0;
        while let Ok(Some(datagrams)) =
            receiver.recv_batch().map(|batch| (batch.datagrams > 0).then_some(batch.datagrams as u64))
        {
            received += datagrams;
        }
        assert_eq!((sent, received + receiver.drops().unwrap()), (64_000, 64_000));
    }

    #[test]
    fn what_cannot_be_sent_is_said() {
        let message = |address: &str| {
            UdpSender::bind(&SenderSpec::new(address.parse().unwrap())).unwrap_err().to_string()
        };
        let foreign = message("192.0.2.1:9");
        assert!(foreign.contains("bind socket on UDP 192.0.2.1:9"), "{foreign}");
        assert!(foreign.contains("192.0.2.1 is no address of this namespace"), "{foreign}");
        let Some((sender, _)) = pair(HOSTS[0], false) else { return };
        let taken = message(&sender.address().to_string());
        assert!(taken.contains("another socket has port"), "{taken}");
        let mut batch = filled(&[10], SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut handed = Handed::default();
        let error = sender.send(&mut batch, &[0], PATIENCE, &mut handed).unwrap_err().to_string();
        assert!(error.contains("sendmmsg") && error.contains("port 0"), "{error}");
        assert_eq!(handed, Handed { datagrams: 0, calls: 1, refused: 0 });
    }

    #[test]
    fn a_sender_keeps_to_its_device() {
        let Some((_, mut receiver)) = pair(HOSTS[0], false) else { return };
        let bound =
            |ifindex| SenderSpec { ifindex: Some(ifindex), ..SenderSpec::new(HOSTS[0].parse().unwrap()) };
        // The loopback is number 1 in every namespace (net/core/dev.c).
        let handed = send(&UdpSender::bind(&bound(1)).unwrap(), &mut filled(&[5; 3], receiver.address()));
        assert_eq!((handed.datagrams, receiver.recv_batch().unwrap().datagrams), (3, 3));
        // One that is not there is found out when it is sent by.
        let sender = UdpSender::bind(&bound(0x7fff_fffe)).unwrap();
        let (mut batch, mut handed) = (filled(&[5], receiver.address()), Handed::default());
        let error = sender.send(&mut batch, &[0], PATIENCE, &mut handed).unwrap_err();
        assert_eq!((error.errno(), handed.datagrams), (Some(libc::ENODEV), 0));
    }

    #[test]
    fn several_may_send_from_one_port_where_all_say_so() {
        let spec = SenderSpec { reuse_port: true, ..SenderSpec::new(HOSTS[0].parse().unwrap()) };
        let first = UdpSender::bind(&spec).unwrap();
        let second = UdpSender::bind(&SenderSpec { address: first.address(), ..spec }).unwrap();
        assert_eq!(first.address(), second.address());
    }
}
