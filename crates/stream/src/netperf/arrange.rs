//! Data sockets before anything flows.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use linux::{SyscallError, socket};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use super::control::{self, PATIENCE};
use crate::engine::prepare::{self, Applied};
use crate::plan::{SocketOptions, Transport};

/// Connections that may wait to be accepted. netserver has 5, and sends a client whose connection does not fit away.
const BACKLOG: i32 = 16;

/// A data socket that is bound, and what holds of it.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) fd: OwnedFd,
    pub(super) at: SocketAddr,
    pub(super) applied: Applied,
}

/// A socket with the options of a plan, of the family of `at`, bound to it.
pub(super) fn bound(
    transport: Transport,
    options: &SocketOptions,
    at: SocketAddr,
) -> Result<Bound, SyscallError> {
    let (fd, applied) = unbound(transport, options, at)?;
    socket::set_reuse_address(&fd)?;
    let failed = |call| move |error: rustix::io::Errno| SyscallError::new(call, at.to_string(), error.into());
    bind(&fd, &at).map_err(failed("bind"))?;
    let at = local(&fd, at)?;
    Ok(Bound { fd, at, applied })
}

fn unbound(
    transport: Transport,
    options: &SocketOptions,
    at: SocketAddr,
) -> Result<(OwnedFd, Applied), SyscallError> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = if transport == Transport::Udp { SocketType::DGRAM } else { SocketType::STREAM };
    let fd = socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| SyscallError::new("socket", format!("{transport:?} for {at}"), error.into()))?;
    let applied = prepare::apply(options, &fd, transport)?;
    Ok((fd, applied))
}

/// The address that a socket has got.
fn local(fd: &OwnedFd, asked: SocketAddr) -> Result<SocketAddr, SyscallError> {
    let failed = |source| SyscallError::new("getsockname", asked.to_string(), source);
    let any = rustix::net::getsockname(fd).map_err(|error| failed(error.into()))?;
    SocketAddr::try_from(any).map_err(|error| failed(error.into()))
}

impl Bound {
    /// Waits for connections.
    pub(super) fn listen(self) -> Result<(TcpListener, Applied), SyscallError> {
        let at = self.at;
        listen(&self.fd, BACKLOG)
            .map_err(|error| SyscallError::new("listen", at.to_string(), error.into()))?;
        Ok((TcpListener::from(self.fd), self.applied))
    }

    /// As a UDP socket that takes from one peer only, and sends to it.
    pub(super) fn connected_to(self, peer: SocketAddr) -> Result<(UdpSocket, Applied), SyscallError> {
        connect(&self.fd, &peer)
            .map_err(|error| SyscallError::new("connect", peer.to_string(), error.into()))?;
        Ok((UdpSocket::from(self.fd), self.applied))
    }
}

/// The first connection from `peer`; others are closed. `None` when `give_up` says so.
pub(super) fn accept_from(
    listener: &TcpListener,
    peer: IpAddr,
    give_up: &mut dyn FnMut() -> bool,
) -> Result<Option<TcpStream>, SyscallError> {
    while !give_up() {
        if !control::readable(listener, PATIENCE) {
            continue;
        }
        match listener.accept() {
            Ok((stream, from)) if from.ip().to_canonical() == peer => return Ok(Some(stream)),
            Ok(_) => {}
            Err(error) if control::is_not_now(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {
            }
            Err(error) => return Err(SyscallError::new("accept", peer.to_string(), error)),
        }
    }
    Ok(None)
}

/// A TCP connection with the options of a plan.
pub(super) fn connected(
    options: &SocketOptions,
    to: SocketAddr,
    within: Duration,
) -> Result<(TcpStream, Applied), SyscallError> {
    let failed = |source| SyscallError::new("connect", to.to_string(), source);
    let (fd, applied) = unbound(Transport::Tcp, options, to)?;
    socket::set_nonblocking(&fd, true)?;
    match connect(&fd, &to) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            let begin = Instant::now();
            while !control::writable(&fd, PATIENCE) {
                if begin.elapsed() >= within {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
            }
            if let Some(error) = socket::pending_error(&fd)? {
                return Err(failed(error));
            }
        }
        Err(error) => return Err(failed(error.into())),
    }
    socket::set_nonblocking(&fd, false)?;
    Ok((TcpStream::from(fd), applied))
}

/// Sizes of the buffers of a socket with the options of a plan, where connections will be made later.
pub(super) fn probed(options: &SocketOptions, to: SocketAddr) -> Result<Applied, SyscallError> {
    unbound(Transport::Tcp, options, to).map(|(_, applied)| applied)
}
