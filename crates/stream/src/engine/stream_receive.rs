//! Bulk out of a stream socket, to its end.

use std::os::fd::BorrowedFd;

use linux::clock;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{SpliceFlags, splice};

use super::EngineError;
use super::task::{Buffers, Step, Task, Tools, step_of};
use crate::plan::Taking;

/// How long what has arrived already is read after the run was stopped.
const DRAIN_NS: u64 = 50_000_000;

/// Takes bytes from a stream.
#[derive(Debug)]
pub(super) struct StreamReceiver<'a> {
    socket: BorrowedFd<'a>,
    taking: Taking,
}

impl<'a> StreamReceiver<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, taking: Taking) -> Self {
        Self { socket, taking }
    }

    fn take(&self, buffers: &mut Buffers, at_most: usize, flags: RecvFlags) -> Result<usize, Errno> {
        let bytes = buffers.receive.len().min(at_most);
        let room = &mut buffers.receive[..bytes];
        match self.taking {
            Taking::Copy => recv(self.socket, room, flags).map(|(_, received)| received),
            // TCP drops as many bytes as would have fitted (net/ipv4/tcp.c, tcp_recvmsg_locked, 6.18).
            Taking::Discard => {
                recv(self.socket, room, flags | RecvFlags::TRUNC).map(|(_, received)| received)
            }
            Taking::Splice => buffers.splice_out_of(self.socket, bytes, flags.contains(RecvFlags::DONTWAIT)),
        }
    }
}

impl Buffers {
    /// Into the pipe, and from there into nothing.
    fn splice_out_of(&mut self, socket: BorrowedFd<'_>, bytes: usize, at_once: bool) -> Result<usize, Errno> {
        let (Some(nothing), Some(pipe)) = (&self.nothing, &self.pipe) else { return Err(Errno::BADF) };
        let flags = if at_once { SpliceFlags::NONBLOCK } else { SpliceFlags::empty() };
        let moved = splice(socket, None, &pipe.write, None, bytes, flags)?;
        let mut left = moved;
        while left > 0 {
            match splice(&pipe.read, None, nothing, None, left, SpliceFlags::empty()) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(gone) => left -= gone,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }
}

impl Task for StreamReceiver<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        match self.take(tools.buffers, usize::MAX, RecvFlags::empty()) {
            Ok(0) => Ok(Step::Over),
            Ok(received) => {
                tools.counters.received(received as u64, 1);
                Ok(Step::Moved)
            }
            Err(error) => step_of("recv", error),
        }
    }

    fn stop(&mut self, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        // What is there now; a sender that goes on does not prolong it.
        let mut left = ioctl_fionread(self.socket).unwrap_or(0) as usize;
        let end_ns = clock::monotonic_ns() + DRAIN_NS;
        while left > 0 && clock::monotonic_ns() < end_ns {
            match self.take(tools.buffers, left, RecvFlags::DONTWAIT) {
                Ok(0) | Err(_) => break,
                Ok(received) => {
                    tools.counters.received(received as u64, 1);
                    left = left.saturating_sub(received);
                }
            }
        }
        Ok(())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
