//! Connections that are made within a time and watched, and UDP sockets that share a port.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::SyscallError;

/// Connects a TCP socket, within a time: what the kernel does by itself may last two minutes.
pub fn connect_within(
    socket: OwnedFd,
    to: SocketAddr,
    from: Option<SocketAddr>,
    within: Duration,
) -> Result<TcpStream, SyscallError> {
    let failed = |error: io::Error| SyscallError::new("connect", to.to_string(), error);
    if let Some(from) = from {
        bind(&socket, &from).map_err(|error| SyscallError::new("bind", from.to_string(), error.into()))?;
    }
    super::set_nonblocking(&socket, true)?;
    match connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let timeout = Timespec {
                tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(within.subsec_nanos()),
            };
            let mut waited = [PollFd::new(&socket, PollFlags::OUT)];
            if poll(&mut waited, Some(&timeout)).map_err(|error| failed(error.into()))? == 0 {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            sockopt::socket_error(&socket).and_then(|answer| answer).map_err(|error| failed(error.into()))?;
        }
        Err(error) => return Err(failed(error.into())),
    }
    super::set_nonblocking(&socket, false)?;
    Ok(TcpStream::from(socket))
}

/// A UDP socket on an address that others may be bound to as well, all of the same user (`SO_REUSEADDR`). The kernel gives a
/// datagram to the socket that is connected to its sender, if there is one (`compute_score`, net/ipv4/udp.c, 6.18); of
/// the others, to the one that was bound last.
pub fn shared_udp(at: SocketAddr) -> Result<UdpSocket, SyscallError> {
    let failed = |call, error: Errno| SyscallError::new(call, at.to_string(), error.into());
    let family = if at.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed("socket of UDP", error))?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(|error| failed("setsockopt SO_REUSEADDR", error))?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false).map_err(|error| failed("setsockopt IPV6_V6ONLY", error))?;
    }
    bind(&socket, &at).map_err(|error| failed("bind", error))?;
    Ok(UdpSocket::from(socket))
}

/// Lets the kernel find out whether a peer that says nothing is still there: a probe after so much silence, and then
/// every so often (whole seconds, at least one; tcp(7)).
pub fn set_keep_alive(
    socket: &impl AsFd,
    after: Duration,
    every: Duration,
    probes: u32,
) -> Result<(), SyscallError> {
    let second = Duration::from_secs(1);
    let failed = |call, error: Errno| SyscallError::new(call, "a TCP connection", error.into());
    sockopt::set_socket_keepalive(socket, true).map_err(|error| failed("setsockopt SO_KEEPALIVE", error))?;
    sockopt::set_tcp_keepidle(socket, after.max(second))
        .map_err(|error| failed("setsockopt TCP_KEEPIDLE", error))?;
    sockopt::set_tcp_keepintvl(socket, every.max(second))
        .map_err(|error| failed("setsockopt TCP_KEEPINTVL", error))?;
    sockopt::set_tcp_keepcnt(socket, probes).map_err(|error| failed("setsockopt TCP_KEEPCNT", error))
}

/// Bytes that were given to a TCP connection and that the peer's kernel has not acknowledged (`SIOCOUTQ`, tcp(7)).
pub fn unacknowledged(socket: &impl AsFd) -> Result<u32, SyscallError> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as it is borrowed, and the kernel writes one int, which `bytes` is.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(SyscallError::last("ioctl SIOCOUTQ", "a TCP connection"));
    }
    Ok(u32::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_socket_is_connected_after_options_were_set() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let socket = crate::socket::stream(to, false).unwrap();
        crate::socket::set_max_segment(&socket, 1000).unwrap();
        let stream = connect_within(socket, to, None, Duration::from_secs(5)).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), to);
        set_keep_alive(&stream, Duration::from_secs(5), Duration::ZERO, 3).unwrap();
        assert_eq!(unacknowledged(&stream).unwrap(), 0);
    }

    #[test]
    fn who_does_not_listen_refuses() {
        let to = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let error =
            connect_within(crate::socket::stream(to, false).unwrap(), to, None, Duration::from_secs(5))
                .unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn a_datagram_goes_to_the_socket_that_is_connected_to_its_sender() {
        let first = shared_udp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = first.local_addr().unwrap();
        let second = shared_udp(at).unwrap();
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        first.connect(near.local_addr().unwrap()).unwrap();
        far.send_to(b"far", at).unwrap();
        near.send_to(b"near", at).unwrap();
        for (socket, expected) in [(&first, "near"), (&second, "far")] {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut datagram = [0; 8];
            let length = socket.recv(&mut datagram).unwrap();
            assert_eq!(&datagram[..length], expected.as_bytes());
        }
    }
}
