//! Datagrams that carry the time at which they are to leave.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, TxTimeFlags, sendmsg, sockopt::set_txtime,
};
use rustix::time::ClockId;

use crate::SyscallError;

const ROOM: usize = SendAncillaryMessage::TxTime(0).size();

/// Lets datagrams carry a time of departure on `CLOCK_MONOTONIC` (`SO_TXTIME`, Linux 4.19), which the queueing discipline `fq`
/// keeps. Other ones send at once; `etf` wants another clock.
///
/// # Errors
/// EPERM: the clock is refused. ENOPROTOOPT: an older kernel.
pub fn set_departure_times(socket: impl AsFd) -> Result<(), SyscallError> {
    let socket = socket.as_fd();
    set_txtime(socket, ClockId::Monotonic, TxTimeFlags::empty()).map_err(|error| {
        SyscallError::new("set SO_TXTIME", format!("socket {}", socket.as_raw_fd()), error.into())
    })
}

/// Sends a datagram on a connected socket that is to leave at a time (`SCM_TXTIME`), ns on `CLOCK_MONOTONIC`. The call does not
/// wait for it: the datagram counts as memory of the socket until it has left.
///
/// # Errors
/// EINVAL: the socket has not been asked to take times. Otherwise as sendmsg(2).
pub fn send_at(socket: impl AsFd, bytes: &[u8], at_ns: u64) -> io::Result<usize> {
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::TxTime(at_ns));
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::clock::monotonic_ns;

    #[test]
    fn a_time_is_taken_along_once_the_socket_allows_it() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        assert_eq!(send_at(&near, &[1; 10], monotonic_ns()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        set_departure_times(&near).unwrap();
        assert_eq!(send_at(&near, &[1; 10], monotonic_ns()).unwrap(), 10);
        assert_eq!(far.recv(&mut [0; 20]).unwrap(), 10);
    }
}
