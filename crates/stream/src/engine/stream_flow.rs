//! Bulk over a stream socket: TCP, MPTCP, UNIX.

use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::EngineError;
use super::task::{Step, Task, Tools, step_of};

/// Gives bytes to a stream.
#[derive(Debug)]
pub(super) struct StreamSender<'a> {
    socket: BorrowedFd<'a>,
    message_bytes: usize,
}

impl<'a> StreamSender<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, message_bytes: usize) -> Self {
        Self { socket, message_bytes }
    }
}

impl Task for StreamSender<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        let bytes = tools.claim(self.message_bytes as u64) as usize;
        if bytes == 0 {
            return Ok(Step::Over);
        }
        let sent = send(self.socket, &tools.buffers.send[..bytes], SendFlags::NOSIGNAL);
        tools.give_back((bytes - sent.unwrap_or(0)) as u64);
        match sent {
            Ok(sent) => {
                tools.counters.sent(sent as u64, 1);
                Ok(Step::Moved)
            }
            Err(error) => step_of("send", error),
        }
    }

    fn finish(&mut self, _tools: &mut Tools<'_>) {
        // Of a connection that is gone there is nothing to close.
        let _ = shutdown(self.socket, Shutdown::Write);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}

/// Takes bytes from a stream, to its end.
#[derive(Debug)]
pub(super) struct StreamReceiver<'a> {
    socket: BorrowedFd<'a>,
}

impl<'a> StreamReceiver<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>) -> Self {
        Self { socket }
    }
}

impl Task for StreamReceiver<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        match recv(self.socket, tools.buffers.receive.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, 0)) => Ok(Step::Over),
            Ok((_, received)) => {
                tools.counters.received(received as u64, 1);
                Ok(Step::Moved)
            }
            Err(error) => step_of("recv", error),
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
