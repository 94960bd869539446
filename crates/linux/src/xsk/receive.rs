//! Receiving from several sockets: one a queue.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::XskSocket;
use crate::SyscallError;

/// Waits until one of the sockets has received a frame, or the time is over; whether one has. Without sockets it waits for
/// the whole time.
///
/// Drivers in zero-copy mode that sleep are woken by this too.
pub fn wait_any(sockets: &[XskSocket], timeout: Duration) -> Result<bool, SyscallError> {
    let time = Timespec::try_from(timeout).ok();
    let mut polled: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    match poll(&mut polled, time.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => {
            let object = format!("{} sockets", sockets.len());
            Err(SyscallError::new("poll AF_XDP sockets", object, error.into()))
        }
    }
}
