//! Bulk into a stream socket: TCP, MPTCP, UNIX.

use std::io;
use std::os::fd::BorrowedFd;

use linux::{SyscallError, clock, socket};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use super::EngineError;
use super::pace::Pacer;
use super::task::{Buffers, Step, Task, Tools, failed, step_of, warn};
use crate::plan::{Giving, Plan};

/// Completions of `MSG_ZEROCOPY` that may be on their way before they are read.
const PENDING_MOST: u64 = 64;

/// Gives bytes to a stream.
#[derive(Debug)]
pub(super) struct StreamSender<'a> {
    socket: BorrowedFd<'a>,
    message_bytes: usize,
    giving: Giving,
    pacer: Option<Pacer>,
    zero_copy: Option<ZeroCopy>,
}

#[derive(Debug)]
struct ZeroCopy {
    completions: socket::Completions,
    sent: u64,
    completed: u64,
    copied: u64,
}

impl<'a> StreamSender<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, plan: &Plan, giving: Giving) -> Result<Self, SyscallError> {
        let zero_copy = if giving == Giving::ZeroCopy {
            socket::set_zero_copy(&socket)?;
            let completions = socket::Completions::new(16)?;
            Some(ZeroCopy { completions, sent: 0, completed: 0, copied: 0 })
        } else {
            None
        };
        let pacer = Pacer::new(plan, plan.send_bytes);
        Ok(Self { socket, message_bytes: plan.send_bytes as usize, giving, pacer, zero_copy })
    }

    fn give(&mut self, buffers: &mut Buffers, bytes: usize) -> Result<usize, Errno> {
        match self.giving {
            Giving::Copy => send(self.socket, &buffers.send[..bytes], SendFlags::NOSIGNAL),
            Giving::Sendfile => match &buffers.file {
                Some(file) => sendfile(self.socket, file, Some(&mut 0), bytes),
                None => Err(Errno::BADF),
            },
            Giving::Splice => buffers.splice_into(self.socket, bytes),
            Giving::ZeroCopy => self.give_zero_copy(&buffers.send[..bytes]),
        }
    }

    fn give_zero_copy(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let Some(zero_copy) = &mut self.zero_copy else { return Err(Errno::INVAL) };
        if zero_copy.sent - zero_copy.completed >= PENDING_MOST {
            zero_copy.take(self.socket)?;
        }
        let sent = match socket::send_zero_copy(self.socket, bytes) {
            // Completions take up the socket's memory for such: some of them must be read first.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                if zero_copy.take(self.socket)? == 0 {
                    std::thread::yield_now();
                }
                return Err(Errno::INTR);
            }
            sent => sent.map_err(errno)?,
        };
        zero_copy.sent += 1;
        Ok(sent)
    }
}

impl ZeroCopy {
    fn take(&mut self, socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        let completed = self.completions.take(socket).map_err(errno)?;
        self.completed += completed.calls;
        self.copied += completed.copied;
        Ok(completed.calls)
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Buffers {
    /// From the file into the pipe, and from there into a socket. What finds no room stays in the pipe, for whoever sends next:
    /// the bytes are the same.
    fn splice_into(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> Result<usize, Errno> {
        let (Some(file), Some(pipe)) = (&self.file, &mut self.pipe) else { return Err(Errno::BADF) };
        if pipe.held < bytes {
            let filled =
                splice(file, Some(&mut 0), &pipe.write, None, bytes - pipe.held, SpliceFlags::NONBLOCK);
            match filled {
                Ok(more) => pipe.held += more,
                Err(Errno::AGAIN) if pipe.held > 0 => {}
                Err(error) => return Err(error),
            }
        }
        let moved = splice(&pipe.read, None, socket, None, bytes.min(pipe.held), SpliceFlags::empty())?;
        pipe.held -= moved;
        Ok(moved)
    }
}

impl Task for StreamSender<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        let mut now_ns = 0;
        if let Some(pacer) = &mut self.pacer
            && !tools.is_done()
        {
            now_ns = clock::monotonic_ns();
            let ready_ns = pacer.ready_ns(now_ns, 1);
            if ready_ns > now_ns {
                return Ok(Step::Until(ready_ns));
            }
        }
        let bytes = tools.claim(self.message_bytes as u64) as usize;
        if bytes == 0 {
            return Ok(Step::Over);
        }
        let sent = self.give(tools.buffers, bytes);
        tools.give_back((bytes - sent.unwrap_or(0)) as u64);
        match sent {
            Ok(0) => Err(failed("send", io::ErrorKind::WriteZero.into())),
            Ok(sent) => {
                tools.counters.sent(sent as u64, 1);
                if let Some(pacer) = &mut self.pacer {
                    pacer.sent(now_ns, 1);
                }
                Ok(Step::Moved)
            }
            Err(error) => step_of(self.call(), error),
        }
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        if let Some(zero_copy) = &mut self.zero_copy {
            while matches!(zero_copy.take(self.socket), Ok(calls) if calls > 0) {}
            if zero_copy.copied > 0 {
                let (copied, of) = (zero_copy.copied, zero_copy.completed);
                warn(
                    tools.account,
                    format!(
                        "MSG_ZEROCOPY: the kernel copied the bytes of {copied} of {of} calls after all, as it does on loopback, \
                         veth and devices without scatter-gather; compare with plain copying"
                    ),
                );
            }
        }
        // Of a connection that is gone there is nothing to close.
        let _ = shutdown(self.socket, Shutdown::Write);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}

impl StreamSender<'_> {
    fn call(&self) -> &'static str {
        match self.giving {
            Giving::Copy => "send",
            Giving::Sendfile => "sendfile",
            Giving::Splice => "splice",
            Giving::ZeroCopy => "send with MSG_ZEROCOPY",
        }
    }
}
