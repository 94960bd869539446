//! epoll(7): one thread that waits for several descriptors at once.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::SyscallError;

/// Descriptors that one wait tells of at most.
const AT_ONCE: usize = 64;

/// Descriptors that are waited for together, each with a number by which it is told.
pub struct Epoll {
    fd: OwnedFd,
    /// How many they are, and the numbers of those that were told of last.
    watched: usize,
    ready: Vec<u32>,
}

impl Epoll {
    /// Without a descriptor so far.
    ///
    /// # Errors
    /// EMFILE, ENFILE: no more files can be opened. ENOMEM.
    pub fn new() -> Result<Self, SyscallError> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| SyscallError::new("epoll_create1", "epoll", error.into()))?;
        Ok(Self { fd, watched: 0, ready: Vec::with_capacity(AT_ONCE) })
    }

    /// Waits for this descriptor as well, to be readable. As long as it is, every wait tells so (level-triggered).
    ///
    /// # Errors
    /// EEXIST: it is among them already. ENOSPC: /proc/sys/fs/epoll/max_user_watches. EPERM: what it is cannot be waited for.
    pub fn add(&mut self, descriptor: impl AsFd, number: u32) -> Result<(), SyscallError> {
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.fd, descriptor, data, epoll::EventFlags::IN)
            .map_err(|error| SyscallError::new("epoll_ctl", format!("descriptor {number}"), error.into()))?;
        self.watched += 1;
        Ok(())
    }

    /// Waits until one of them is readable, at most for `timeout`; the numbers of up to 64 that are. The kernel lists them in
    /// turn: those that were told of go behind the others. A signal ends the wait early, with none; without a descriptor there
    /// is no wait.
    ///
    /// # Errors
    /// None that is known of descriptors that are open.
    pub fn wait(&mut self, timeout: Duration) -> Result<impl Iterator<Item = u32>, SyscallError> {
        self.ready.clear();
        let time = Timespec::try_from(timeout).ok();
        let mut events = [MaybeUninit::uninit(); AT_ONCE];
        if self.watched > 0 {
            match epoll::wait(&self.fd, &mut events, time.as_ref()) {
                Ok((events, _)) => self.ready.extend(events.iter().map(|event| event.data.u64() as u32)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(SyscallError::new("epoll_wait", "epoll", error.into())),
            }
        }
        Ok(self.ready.iter().copied())
    }
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoll({} descriptors)", self.watched)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn those_are_told_that_have_something() {
        let mut epoll = Epoll::new().unwrap();
        assert_eq!(epoll.wait(Duration::from_secs(20)).unwrap().count(), 0, "nothing to wait for");
        let sockets = [0; 3].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        for (number, socket) in sockets.iter().enumerate() {
            epoll.add(socket, 10 + number as u32).unwrap();
        }
        assert!(epoll.add(&sockets[0], 9).unwrap_err().to_string().contains("descriptor 9"));
        assert_eq!(epoll.wait(Duration::ZERO).unwrap().count(), 0);
        for to in [2, 0] {
            sockets[1].send_to(&[1], sockets[to].local_addr().unwrap()).unwrap();
        }
        for _ in 0..2 {
            let mut ready: Vec<u32> = epoll.wait(Duration::from_secs(20)).unwrap().collect();
            ready.sort_unstable();
            assert_eq!(ready, [10, 12], "as long as it is not read");
        }
        sockets[2].recv(&mut [0; 8]).unwrap();
        assert_eq!(epoll.wait(Duration::from_secs(20)).unwrap().collect::<Vec<_>>(), [10]);
    }
}
