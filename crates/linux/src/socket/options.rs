//! Options of sockets, set and read back.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::SyscallError;
use crate::packet::sockopt as raw;

/// Options that libraries do not name (include/uapi/asm-generic/socket.h, 6.18).
const SO_PRIORITY: libc::c_int = 12;
const SO_BUSY_POLL: libc::c_int = 46;
const SO_MAX_PACING_RATE: libc::c_int = 47;
const SO_ZEROCOPY: libc::c_int = 60;

fn failed(socket: &impl AsFd, call: &'static str, error: io::Error) -> SyscallError {
    SyscallError::new(call, format!("socket {}", socket.as_fd().as_raw_fd()), error)
}

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: u32,
    call: &'static str,
) -> Result<(), SyscallError> {
    raw::set(socket, level, name, &value).map_err(|error| failed(socket, call, error))
}

fn int(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    call: &'static str,
) -> Result<u32, SyscallError> {
    let (words, _) = raw::words32::<1>(socket, level, name).map_err(|error| failed(socket, call, error))?;
    Ok(words[0])
}

/// Asks for memory for what was sent and is not acknowledged (`SO_SNDBUF`). The kernel doubles it, and takes no more than
/// `net.core.wmem_max` before that; a buffer that was set no longer grows by itself.
pub fn set_send_buffer(socket: &impl AsFd, bytes: u32) -> Result<(), SyscallError> {
    sockopt::set_socket_send_buffer_size(socket, bytes as usize)
        .map_err(|error| failed(socket, "set SO_SNDBUF", error.into()))
}

/// `SO_SNDBUF` as the kernel counts it.
pub fn send_buffer(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, "read SO_SNDBUF")
}

/// Asks for memory for what came and was not read (`SO_RCVBUF`). As [`set_send_buffer`], with `net.core.rmem_max`.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: u32) -> Result<(), SyscallError> {
    sockopt::set_socket_recv_buffer_size(socket, bytes as usize)
        .map_err(|error| failed(socket, "set SO_RCVBUF", error.into()))
}

/// `SO_RCVBUF` as the kernel counts it.
pub fn receive_buffer(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, "read SO_RCVBUF")
}

/// Small segments are sent at once (`TCP_NODELAY`).
pub fn set_no_delay(socket: &impl AsFd, on: bool) -> Result<(), SyscallError> {
    sockopt::set_tcp_nodelay(socket, on).map_err(|error| failed(socket, "set TCP_NODELAY", error.into()))
}

/// Whether `TCP_NODELAY` is set.
pub fn no_delay(socket: &impl AsFd) -> Result<bool, SyscallError> {
    sockopt::tcp_nodelay(socket).map_err(|error| failed(socket, "read TCP_NODELAY", error.into()))
}

/// Only full segments are sent, for at most 200 ms (`TCP_CORK`).
pub fn set_cork(socket: &impl AsFd, on: bool) -> Result<(), SyscallError> {
    sockopt::set_tcp_cork(socket, on).map_err(|error| failed(socket, "set TCP_CORK", error.into()))
}

/// Chooses the congestion control by name (`TCP_CONGESTION`).
///
/// # Errors
/// ENOENT: the kernel has none of that name. EPERM: it is not in `net.ipv4.tcp_allowed_congestion_control`.
pub fn set_congestion(socket: &impl AsFd, name: &str) -> Result<(), SyscallError> {
    sockopt::set_tcp_congestion(socket, name).map_err(|error| {
        let detail = match error {
            Errno::NOENT => format!("the kernel has no congestion control {name:?}"),
            Errno::PERM => format!("{name:?} is not in net.ipv4.tcp_allowed_congestion_control"),
            _ => format!("{name:?}"),
        };
        failed(socket, "set TCP_CONGESTION", error.into()).with_detail(detail)
    })
}

/// The congestion control in force.
pub fn congestion(socket: &impl AsFd) -> Result<String, SyscallError> {
    sockopt::tcp_congestion(socket).map_err(|error| failed(socket, "read TCP_CONGESTION", error.into()))
}

/// The most payload of a segment, bytes (`TCP_MAXSEG`); before the connection is made.
pub fn set_max_segment(socket: &impl AsFd, bytes: u16) -> Result<(), SyscallError> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes.into(), "set TCP_MAXSEG")
}

/// `TCP_MAXSEG` as it is in force.
pub fn max_segment(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, "read TCP_MAXSEG")
}

/// Sets `IP_TOS` of an IPv4 socket, `IPV6_TCLASS` of an IPv6 one, and both where this may carry IPv4 too.
pub fn set_traffic_class(socket: &impl AsFd, class: u8) -> Result<(), SyscallError> {
    let class = u32::from(class);
    if domain(socket)? == libc::AF_INET as u32 {
        return set_int(socket, libc::IPPROTO_IP, libc::IP_TOS, class, "set IP_TOS");
    }
    set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class, "set IPV6_TCLASS")?;
    // Refused by a socket that is for IPv6 only, which then has no use for it.
    let _ = raw::set(socket, libc::IPPROTO_IP, libc::IP_TOS, &class);
    Ok(())
}

/// `IP_TOS` or `IPV6_TCLASS`.
pub fn traffic_class(socket: &impl AsFd) -> Result<u8, SyscallError> {
    let class = if domain(socket)? == libc::AF_INET as u32 {
        int(socket, libc::IPPROTO_IP, libc::IP_TOS, "read IP_TOS")?
    } else {
        int(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, "read IPV6_TCLASS")?
    };
    Ok(class as u8)
}

/// The family of a socket (`SO_DOMAIN`).
fn domain(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, "read SO_DOMAIN")
}

/// The queueing discipline's priority (`SO_PRIORITY`). Above 6 it needs CAP_NET_ADMIN. Setting `IP_TOS` afterwards changes it
/// (net/ipv4/ip_sockglue.c, `__ip_sock_set_tos`, 6.18): set this last.
pub fn set_priority(socket: &impl AsFd, priority: u32) -> Result<(), SyscallError> {
    set_int(socket, libc::SOL_SOCKET, SO_PRIORITY, priority, "set SO_PRIORITY")
}

/// `SO_PRIORITY`.
pub fn priority(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::SOL_SOCKET, SO_PRIORITY, "read SO_PRIORITY")
}

/// A call that finds nothing polls the device's queue for so many µs (`SO_BUSY_POLL`).
pub fn set_busy_poll(socket: &impl AsFd, us: u32) -> Result<(), SyscallError> {
    set_int(socket, libc::SOL_SOCKET, SO_BUSY_POLL, us, "set SO_BUSY_POLL")
}

/// `SO_BUSY_POLL`, µs.
pub fn busy_poll(socket: &impl AsFd) -> Result<u32, SyscallError> {
    int(socket, libc::SOL_SOCKET, SO_BUSY_POLL, "read SO_BUSY_POLL")
}

/// The most bytes in a second, headers included (`SO_MAX_PACING_RATE`): TCP keeps it by itself, of everything else the queueing
/// discipline `fq` does. 64 bits since Linux 4.20.
pub fn set_max_pacing(socket: &impl AsFd, bytes_per_second: u64) -> Result<(), SyscallError> {
    raw::set(socket, libc::SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second)
        .map_err(|error| failed(socket, "set SO_MAX_PACING_RATE", error))
}

/// `SO_MAX_PACING_RATE`, bytes in a second; all ones where none is set.
pub fn max_pacing(socket: &impl AsFd) -> Result<u64, SyscallError> {
    let (words, _) = raw::words64::<1>(socket, libc::SOL_SOCKET, SO_MAX_PACING_RATE)
        .map_err(|error| failed(socket, "read SO_MAX_PACING_RATE", error))?;
    Ok(words[0])
}

/// Lets calls that send say `MSG_ZEROCOPY` (`SO_ZEROCOPY`; TCP since Linux 4.14, UDP since 5.0).
pub fn set_zero_copy(socket: &impl AsFd) -> Result<(), SyscallError> {
    set_int(socket, libc::SOL_SOCKET, SO_ZEROCOPY, 1, "set SO_ZEROCOPY")
}

/// Every buffer that is handed over is cut into datagrams of so many bytes (`UDP_SEGMENT`, Linux 4.18).
pub fn set_segment_bytes(socket: &impl AsFd, bytes: u16) -> Result<(), SyscallError> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes.into(), "set UDP_SEGMENT")
}

/// Datagrams that the kernel has joined may be read as one (`UDP_GRO`, Linux 5.0).
pub fn set_receive_joined(socket: &impl AsFd, on: bool) -> Result<(), SyscallError> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, on.into(), "set UDP_GRO")
}

/// How long a call that sends or receives waits at most (`SO_SNDTIMEO`, `SO_RCVTIMEO`); the kernel rounds up to its tick. For
/// connect and accept it holds too, and what a listener accepts inherits it.
pub fn set_timeouts(socket: &impl AsFd, timeout: Duration) -> Result<(), SyscallError> {
    // 0 would mean for ever.
    let timeout = Some(timeout.max(Duration::from_millis(1)));
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, timeout)
        .map_err(|error| failed(socket, "set SO_RCVTIMEO", error.into()))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, timeout)
        .map_err(|error| failed(socket, "set SO_SNDTIMEO", error.into()))
}

/// Calls on the socket return at once (`O_NONBLOCK`), or wait.
pub fn set_nonblocking(socket: &impl AsFd, on: bool) -> Result<(), SyscallError> {
    rustix::io::ioctl_fionbio(socket, on).map_err(|error| failed(socket, "set O_NONBLOCK", error.into()))
}

/// The address may be bound although a connection that has ended has it still (`SO_REUSEADDR`).
pub fn set_reuse_address(socket: &impl AsFd) -> Result<(), SyscallError> {
    sockopt::set_socket_reuseaddr(socket, true)
        .map_err(|error| failed(socket, "set SO_REUSEADDR", error.into()))
}

/// Closing discards what is not sent and resets the connection, which leaves no port waiting (`SO_LINGER` of 0 s).
pub fn set_abort_on_close(socket: &impl AsFd) -> Result<(), SyscallError> {
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))
        .map_err(|error| failed(socket, "set SO_LINGER", error.into()))
}

/// The port is chosen when the connection is made, so that a bound address does not use up ports for all destinations
/// (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2; IPv6 sockets take it too).
pub fn set_bind_no_port(socket: &impl AsFd) -> Result<(), SyscallError> {
    set_int(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1, "set IP_BIND_ADDRESS_NO_PORT")
}

/// The error that waits on a socket, which reading takes away (`SO_ERROR`).
pub fn pending_error(socket: &impl AsFd) -> Result<Option<io::Error>, SyscallError> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => Ok(None),
        Ok(Err(error)) => Ok(Some(error.into())),
        Err(error) => Err(failed(socket, "read SO_ERROR", error.into())),
    }
}
