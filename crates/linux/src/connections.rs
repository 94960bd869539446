//! Sockets that wait for others: bound so that options can be set in time, listening to one address only, and several waited
//! for at once.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};

use crate::SyscallError;
use crate::packet::sockopt as raw;

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

/// Lets a TCP socket hear one address only: packets of others are dropped, so that they do not even get an answer to their SYN.
/// Connections that it accepts inherit that.
///
/// It is a filter of classic BPF, which a listening socket runs over each segment (`tcp_filter`, net/ipv4/tcp_ipv4.c and
/// net/ipv6/tcp_ipv6.c, 6.18) with the transport header first; offsets from `SKF_NET_OFF` are into the IP header
/// (include/uapi/linux/filter.h).
///
/// # Errors
/// What the kernel says; ENOPROTOOPT where the socket is one of Multipath TCP.
pub fn hear_only(socket: &impl AsFd, from: IpAddr) -> Result<(), SyscallError> {
    let program = address_filter(from.to_canonical());
    let filter =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    raw::set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
        .map_err(|error| SyscallError::new("set SO_ATTACH_FILTER", format!("a socket, for {from}"), error))
}

/// Accepts a packet whose IP header is of the family of `from` and has it as its source, and no other.
fn address_filter(from: IpAddr) -> Vec<libc::sock_filter> {
    const IP_HEADER: u32 = libc::SKF_NET_OFF as u32;
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_SAME: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let (version, source, address) = match from {
        IpAddr::V4(ip) => (0x40, 12, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x60, 8, ip.octets().to_vec()),
    };
    let words: Vec<u32> = address
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)))
        .collect();
    let op = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // Every comparison that fails jumps over all that follow, to the last instruction.
    let mut left = 2 * words.len() as u8 + 1;
    let mut program = vec![
        op(LOAD_BYTE, 0, IP_HEADER),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0xf0),
        op(IF_SAME, left, version),
    ];
    for (index, word) in words.into_iter().enumerate() {
        left -= 2;
        program.push(op(LOAD_WORD, 0, IP_HEADER.wrapping_add(source + 4 * index as u32)));
        program.push(op(IF_SAME, left, word));
    }
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, u32::MAX));
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, 0));
    program
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
    use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};

    use super::*;
    use crate::socket;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const LONG: Duration = Duration::from_secs(10);

    fn listener(at: SocketAddr, only: Option<IpAddr>) -> TcpListener {
        let socket = socket::stream(at, false).unwrap();
        bind(&socket, at).unwrap();
        if let Some(ip) = only {
            hear_only(&socket, ip).unwrap();
        }
        listen(socket, 8).unwrap()
    }

    #[test]
    fn a_socket_is_readable_when_enough_is_there() {
        let listener = listener(ANY, None);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
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
        let listener = listener(ANY, None);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        set_low_water(&server, 656).unwrap();
        drop(client);
        assert_eq!(wait_readable(&[server.as_fd()], LONG).unwrap(), [true]);
    }

    /// Whether a listener is heard from an address.
    fn answers(listener: &TcpListener, to: IpAddr, from: IpAddr) -> bool {
        let to = SocketAddr::new(to, listener.local_addr().unwrap().port());
        let socket = socket::stream(to, false).unwrap();
        let from = Some(SocketAddr::new(from, 0));
        socket::connect_within(socket, to, from, Duration::from_millis(300)).is_ok()
    }

    #[test]
    fn only_one_address_is_heard() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let one = listener(ANY, Some(local));
        assert!(answers(&one, local, local) && !answers(&one, local, other));
        let both = listener(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0), Some(other));
        let local6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert!(answers(&both, local, other) && !answers(&both, local, local));
        assert!(!answers(&both, local6, local6));
        let six = listener(SocketAddr::new(local6, 0), Some(local6));
        assert!(answers(&six, local6, local6));
        let strange = listener(SocketAddr::new(local6, 0), Some("::2".parse().unwrap()));
        assert!(!answers(&strange, local6, local6));
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
