//! Stream sockets of the Internet that are not connected yet.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::SyscallError;

/// A TCP socket, or one of multipath TCP (RFC 8684, Linux 5.6), of the family of an address.
///
/// # Errors
/// EPROTONOSUPPORT or ENOPROTOOPT: the kernel has no MPTCP, or `net.mptcp.enabled` is 0.
pub fn stream(of: SocketAddr, multipath: bool) -> Result<OwnedFd, SyscallError> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol = if multipath { ipproto::MPTCP } else { ipproto::TCP };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(protocol)).map_err(|error| {
        let name = if multipath { "MPTCP" } else { "TCP" };
        let failed = SyscallError::new("open socket", name, error.into());
        match error {
            Errno::PROTONOSUPPORT | Errno::NOPROTOOPT | Errno::INVAL if multipath => {
                failed.with_detail("the kernel has no MPTCP (CONFIG_MPTCP), or net.mptcp.enabled is 0")
            }
            _ => failed,
        }
    })
}

/// Connects; whether it is done already. Where the socket does not wait, or its time to send is over before, the connection is
/// still being made: it is done when the socket becomes writable and has no error pending.
///
/// # Errors
/// ECONNREFUSED, EADDRNOTAVAIL (no port is free) and so on, as they come.
pub fn connect(socket: impl AsFd, to: SocketAddr) -> std::io::Result<bool> {
    match rustix::net::connect(socket, &to) {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS | Errno::INTR | Errno::ALREADY) => Ok(false),
        // A second call on a connection that has been made since.
        Err(Errno::ISCONN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_is_made_at_once_on_this_host() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let socket = stream(to, false).unwrap();
        assert!(connect(&socket, to).unwrap());
        assert_eq!(listener.accept().unwrap().1.ip(), to.ip());
    }

    #[test]
    fn multipath_is_there_or_says_what_is_missing() {
        let of = "127.0.0.1:0".parse().unwrap();
        if let Err(error) = stream(of, true) {
            assert!(error.to_string().contains("MPTCP"), "{error}");
        }
    }
}
