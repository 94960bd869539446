//! Sending without copying (`MSG_ZEROCOPY`; Documentation/networking/msg_zerocopy.rst, 6.18).
//!
//! The kernel sends from the caller's pages and tells by the error queue when it no longer needs them. Calls that succeeded are
//! numbered from 0; a completion is a range of them.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{SendFlags, send};

use crate::SyscallError;
use crate::packet::messages::Messages;

/// `struct sock_extended_err`: errno, origin, type, code, pad, info, data (include/uapi/linux/errqueue.h, 6.18).
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
const EXTENDED_BYTES: usize = 16;

/// Sends bytes without copying them, where the kernel can; how many it took. The socket has
/// [`set_zero_copy`](super::set_zero_copy).
///
/// What is sent is what the memory holds *when* it is sent: who changes it before its completion, or gives it back, sends
/// something else.
///
/// # Errors
/// ENOBUFS: there are too many completions that were not read (`net.core.optmem_max`), or too many pages are locked
/// (RLIMIT_MEMLOCK). Otherwise as send(2).
pub fn send_zero_copy(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
    Ok(send(socket, bytes, flags)?)
}

/// Reads completions; with room of its own, so that it allocates nothing on the way.
#[derive(Debug)]
pub struct Completions {
    messages: Messages,
}

/// What completions said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completed {
    /// Calls of which the kernel needs the memory no longer.
    pub calls: u64,
    /// Of them, those whose bytes it copied after all, as it always does on the loopback device.
    pub copied: u64,
}

impl Completions {
    /// Reads up to so many messages in a call.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(messages: usize) -> Result<Self, SyscallError> {
        let messages = Messages::new(messages.max(1), 1)
            .and_then(Messages::with_controls)
            .map_err(|error| SyscallError::new("allocate buffers", "completions", error))?;
        Ok(Self { messages })
    }

    /// Takes what is there, without waiting: nothing, where there is nothing. A socket on which completions wait is readable
    /// for poll(2) as POLLERR.
    ///
    /// # Errors
    /// As recvmmsg(2).
    pub fn take(&mut self, socket: impl AsFd) -> io::Result<Completed> {
        let mut completed = Completed::default();
        let messages = match self.messages.receive(socket.as_fd(), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) {
            Ok(messages) => messages,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(completed),
            Err(error) => return Err(error),
        };
        for message in 0..messages {
            if let Some(range) = range(self.messages.control(message)) {
                completed.calls += range.calls;
                completed.copied += range.copied;
            }
        }
        Ok(completed)
    }
}

/// The completion in the control data of one message; None where it is another error.
fn range(control: &[u8]) -> Option<Completed> {
    // The only item: IP_RECVERR or IPV6_RECVERR, whose data begin with the structure.
    let data = control.get(size_of::<libc::cmsghdr>()..)?.first_chunk::<EXTENDED_BYTES>()?;
    let word = |at: usize| Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?));
    if word(0)? != 0 || data[4] != SO_EE_ORIGIN_ZEROCOPY {
        return None;
    }
    // From `info` to `data`, both included; the numbers have 32 bits and wrap.
    let calls = u64::from(word(12)?.wrapping_sub(word(8)?)) + 1;
    let copied = if data[6] & SO_EE_CODE_ZEROCOPY_COPIED != 0 { calls } else { 0 };
    Some(Completed { calls, copied })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::socket::set_zero_copy;

    #[test]
    fn what_was_sent_is_completed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut far = listener.accept().unwrap().0;
            set_zero_copy(&near).unwrap();
            let bytes = [3; 40_000];
            let mut sent = 0;
            for _ in 0..3 {
                sent += send_zero_copy(&near, &bytes).unwrap();
            }
            let mut received = vec![0; sent];
            far.read_exact(&mut received).unwrap();
            let mut completions = Completions::new(4).unwrap();
            let (mut calls, begin) = (0, Instant::now());
            while calls < 3 {
                calls += completions.take(&near).unwrap().calls;
                assert!(begin.elapsed() < Duration::from_secs(10));
            }
            assert_eq!(completions.take(&near).unwrap(), Completed::default());
        }
    }

    proptest! {
        #[test]
        fn any_control_data_are_read_to_an_end(bytes: Vec<u8>) {
            let _ = range(&bytes);
        }
    }

    #[test]
    fn ranges_wrap() {
        let mut control = vec![0; size_of::<libc::cmsghdr>()];
        control.extend([0, 0, 0, 0, 5, 0, 1, 0]);
        control.extend(u32::MAX.to_ne_bytes());
        control.extend(1_u32.to_ne_bytes());
        assert_eq!(range(&control), Some(Completed { calls: 3, copied: 3 }));
        control[size_of::<libc::cmsghdr>()] = 111;
        assert_eq!(range(&control), None);
    }
}
