//! Sockets before they are connected, so that options can be set in time; and waiting for several of them at once.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::SyscallError;
use crate::packet::sockopt as raw;

/// A TCP socket for addresses like `ip`, neither bound nor connected. With `multipath` it speaks Multipath TCP (RFC 8684).
///
/// # Errors
/// EPROTONOSUPPORT: the kernel has no Multipath TCP. ENOPROTOOPT: it is switched off (`net.mptcp.enabled`).
pub fn tcp(ip: IpAddr, multipath: bool) -> Result<OwnedFd, SyscallError> {
    let protocol = if multipath { ipproto::MPTCP } else { ipproto::TCP };
    rustix::net::socket_with(family(ip), SocketType::STREAM, SocketFlags::CLOEXEC, Some(protocol))
        .map_err(|error| SyscallError::new("socket", if multipath { "MPTCP" } else { "TCP" }, error.into()))
}

/// A UDP socket for addresses like `ip`, neither bound nor connected.
///
/// # Errors
/// What the kernel says.
pub fn udp(ip: IpAddr) -> Result<OwnedFd, SyscallError> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(family(ip), SocketType::DGRAM, flags, Some(ipproto::UDP))
        .map_err(|error| SyscallError::new("socket", "UDP", error.into()))
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Binds a socket to an address; port 0 lets the kernel choose.
///
/// # Errors
/// What the kernel says: EADDRINUSE, EADDRNOTAVAIL, EACCES below port 1024.
pub fn bind(socket: &impl AsFd, to: SocketAddr) -> Result<(), SyscallError> {
    rustix::net::bind(socket, &to).map_err(|error| SyscallError::new("bind", to.to_string(), error.into()))
}

/// Makes a bound TCP socket listen.
///
/// # Errors
/// What the kernel says.
pub fn listen(socket: OwnedFd, backlog: u16) -> Result<TcpListener, SyscallError> {
    rustix::net::listen(&socket, i32::from(backlog))
        .map_err(|error| SyscallError::new("listen", "a TCP socket", error.into()))?;
    Ok(socket.into())
}

/// A bound UDP socket as the standard library has it.
pub fn into_udp(socket: OwnedFd) -> UdpSocket {
    socket.into()
}

/// Connects a TCP socket, and waits for it no longer than `patience`. The socket is a blocking one afterwards.
///
/// # Errors
/// What the kernel says; `TimedOut` when nobody answered in time.
pub fn connect(socket: OwnedFd, to: SocketAddr, patience: Duration) -> Result<TcpStream, SyscallError> {
    let failed = |error: io::Error| SyscallError::new("connect", to.to_string(), error);
    let blocking = |on: bool| rustix::io::ioctl_fionbio(&socket, !on).map_err(|error| failed(error.into()));
    blocking(false)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
            if wait(&mut fds, patience).map_err(failed)? == 0 {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            match sockopt::socket_error(&socket) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => return Err(failed(error.into())),
            }
        }
        Err(error) => return Err(failed(error.into())),
    }
    blocking(true)?;
    Ok(socket.into())
}

/// Waits until one of the descriptors has something to read, is at its end or has failed, or `patience` is over. Says of
/// each whether it has; none where the wait was interrupted.
///
/// # Errors
/// What the kernel says.
pub fn wait_readable(fds: &[BorrowedFd<'_>], patience: Duration) -> Result<Vec<bool>, SyscallError> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    wait(&mut fds, patience)
        .map_err(|error| SyscallError::new("poll", format!("{} descriptors", fds.len()), error))?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn wait(fds: &mut [PollFd<'_>], patience: Duration) -> io::Result<usize> {
    let patience =
        Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 });
    match poll(fds, Some(&patience)) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// A stream socket counts as readable only when so many bytes are there, or its end (`SO_RCVLOWAT`; `tcp_stream_is_readable`
/// in net/ipv4/tcp.c, 6.18). The kernel enlarges the receive buffer where it is smaller than that.
///
/// # Errors
/// What the kernel says.
pub fn set_low_water(socket: &impl AsFd, bytes: u32) -> Result<(), SyscallError> {
    raw::set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes).map_err(|error| {
        SyscallError::new("set SO_RCVLOWAT", format!("socket {}", socket.as_fd().as_raw_fd()), error)
    })
}

/// Takes away what waits in a datagram socket, at most so many datagrams; how many there were.
pub fn discard_waiting(socket: &impl AsFd, at_most: usize) -> usize {
    let mut byte = [0_u8; 1];
    (0..at_most)
        .take_while(|_| rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::TRUNC).is_ok())
        .count()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const LONG: Duration = Duration::from_secs(10);

    fn listener() -> TcpListener {
        let socket = tcp(ANY.ip(), false).unwrap();
        bind(&socket, ANY).unwrap();
        listen(socket, 8).unwrap()
    }

    #[test]
    fn a_socket_is_readable_when_enough_is_there() {
        let listener = listener();
        let to = listener.local_addr().unwrap();
        let mut client = connect(tcp(to.ip(), false).unwrap(), to, LONG).unwrap();
        let (server, _) = listener.accept().unwrap();
        set_low_water(&server, 12).unwrap();
        client.write_all(b"eleven byte").unwrap();
        let fds = [server.as_fd()];
        assert_eq!(wait_readable(&fds, Duration::from_millis(1)).unwrap(), [false]);
        client.write_all(b"s").unwrap();
        assert_eq!(wait_readable(&fds, LONG).unwrap(), [true]);
    }

    #[test]
    fn the_end_of_a_stream_is_readable_however_little_is_there() {
        let listener = listener();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        set_low_water(&server, 656).unwrap();
        drop(client);
        assert_eq!(wait_readable(&[server.as_fd()], LONG).unwrap(), [true]);
    }

    #[test]
    fn what_nobody_listens_on_refuses() {
        let to = listener().local_addr().unwrap();
        let error = connect(tcp(to.ip(), false).unwrap(), to, LONG).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    }

    #[test]
    fn waiting_datagrams_are_taken_away() {
        let socket = udp(ANY.ip()).unwrap();
        bind(&socket, ANY).unwrap();
        let socket = into_udp(socket);
        let to = socket.local_addr().unwrap();
        for _ in 0..3 {
            socket.send_to(b"hello", to).unwrap();
        }
        assert_eq!(discard_waiting(&socket, 100), 3);
        assert_eq!(discard_waiting(&socket, 100), 0);
    }
}
