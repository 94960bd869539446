//! Sockets that listen, made in steps.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{bind, listen};

use crate::SyscallError;

/// Connections that may wait to be accepted; the kernel takes no more than `net.core.somaxconn` (listen(2)).
const BACKLOG: i32 = 4096;

/// Lets a TCP socket (of [`tcp`](super::tcp)) listen at an address. What it accepts has its options.
///
/// # Errors
/// EADDRINUSE, EADDRNOTAVAIL, EACCES.
pub fn listen_at(socket: OwnedFd, at: SocketAddr) -> Result<TcpListener, SyscallError> {
    let failed = |call, error: rustix::io::Errno| SyscallError::new(call, at.to_string(), error.into());
    bind(&socket, &at).map_err(|error| failed("bind", error))?;
    listen(&socket, BACKLOG).map_err(|error| failed("listen", error))?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::socket;

    #[test]
    fn what_is_accepted_has_the_listeners_options() {
        let socket = socket::tcp(false, false).unwrap();
        socket::set_receive_buffer(&socket, 20_000).unwrap();
        let listener = listen_at(socket, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        assert_eq!(socket::receive_buffer(&far).unwrap(), 40_000);
    }
}
