//! Requests that are answered, over streams and datagrams.

use std::os::fd::BorrowedFd;

use linux::clock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrAny, recv, recvfrom, send, sendto, shutdown};

use super::datagram_send::receive_error;
use super::marks::OWN_BYTES;
use super::task::{Exchange, Step, Task, Tools, step_of, warn};
use super::{EngineError, Marks};

/// How long requests that have arrived already are answered after the run was stopped.
const DRAIN_NS: u64 = 20_000_000;

/// Answers requests over a stream, in their order, until it ends.
#[derive(Debug)]
pub(super) struct StreamResponder<'a> {
    socket: BorrowedFd<'a>,
    exchange: Exchange,
    /// Bytes of the request that is being received.
    have: usize,
    /// Bytes of responses that the socket had no room for.
    unsent: usize,
}

impl<'a> StreamResponder<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, exchange: Exchange) -> Self {
        Self { socket, exchange, have: 0, unsent: 0 }
    }

    fn send(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        while self.unsent > 0 {
            let bytes = self.unsent.min(tools.buffers.send.len());
            match send(self.socket, &tools.buffers.send[..bytes], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    let whole = |left: usize| left.div_ceil(self.exchange.response_bytes);
                    let responses = (whole(self.unsent) - whole(self.unsent - sent)) as u64;
                    self.unsent -= sent;
                    tools.counters.sent(sent as u64, responses);
                    tools.counters.transactions(responses);
                }
                Err(error) => match step_of("send", error)? {
                    Step::Moved => {}
                    step => return Ok(step),
                },
            }
        }
        Ok(Step::Moved)
    }
}

impl Task for StreamResponder<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        // What cannot be sent keeps further requests waiting, so that what is owed is bounded.
        let sent = self.send(tools)?;
        if sent != Step::Moved {
            return Ok(sent);
        }
        match recv(self.socket, tools.buffers.receive.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, 0)) => Ok(Step::Over),
            Ok((_, received)) => {
                self.have += received;
                let requests = self.have / self.exchange.request_bytes;
                self.have -= requests * self.exchange.request_bytes;
                self.unsent += requests * self.exchange.response_bytes;
                tools.counters.received(received as u64, requests as u64);
                self.send(tools)
            }
            Err(error) => step_of("recv", error),
        }
    }

    fn finish(&mut self, _tools: &mut Tools<'_>) {
        let _ = shutdown(self.socket, Shutdown::Write);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}

/// Answers requests that are datagrams, until it is stopped or an empty one comes.
#[derive(Debug)]
pub(super) struct DatagramResponder<'a> {
    socket: BorrowedFd<'a>,
    exchange: Exchange,
    marks: Marks,
    /// The socket has one peer; otherwise whoever asked is answered.
    connected: bool,
    foreign: u64,
}

impl<'a> DatagramResponder<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, exchange: Exchange, marks: Marks, connected: bool) -> Self {
        Self { socket, exchange, marks, connected, foreign: 0 }
    }

    fn answer(&mut self, tools: &mut Tools<'_>, flags: RecvFlags) -> Result<Step, EngineError> {
        let (room, response) = (tools.buffers.receive.as_mut_slice(), &mut tools.buffers.send);
        let received = if self.connected {
            recv(self.socket, room, flags).map(|(_, received)| (received, None))
        } else {
            recvfrom(self.socket, room, flags).map(|(_, received, from)| (received, from))
        };
        let (received, from) = match received {
            Ok((0, _)) => return Ok(Step::Over),
            Ok(received) => received,
            Err(error) => return receive_error(&error.into()),
        };
        if self.exchange.is_marked(self.marks) {
            if self.marks.read(&tools.buffers.receive[..received]).is_none() {
                self.foreign += 1;
                return Ok(Step::Moved);
            }
            // The response says which request it answers.
            response[..OWN_BYTES].copy_from_slice(&tools.buffers.receive[..OWN_BYTES]);
        }
        tools.counters.received(received as u64, 1);
        let response = &response[..self.exchange.response_bytes];
        let sent = match &from {
            Some(from) => send_to(self.socket, response, from),
            None => send(self.socket, response, SendFlags::NOSIGNAL),
        };
        match sent {
            Ok(sent) => {
                tools.counters.sent(sent as u64, 1);
                tools.counters.transactions(1);
                Ok(Step::Moved)
            }
            // Not waited for: whoever asked repeats it.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::CONNREFUSED | Errno::INTR) => {
                tools.counters.refused(1);
                Ok(Step::Moved)
            }
            Err(error) => step_of("send", error),
        }
    }
}

fn send_to(socket: BorrowedFd<'_>, bytes: &[u8], to: &SocketAddrAny) -> Result<usize, Errno> {
    sendto(socket, bytes, SendFlags::NOSIGNAL, to)
}

impl Task for DatagramResponder<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        self.answer(tools, RecvFlags::empty())
    }

    fn stop(&mut self, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let end_ns = clock::monotonic_ns() + DRAIN_NS;
        while self.answer(tools, RecvFlags::DONTWAIT)? == Step::Moved && clock::monotonic_ns() < end_ns {}
        Ok(())
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        if self.foreign > 0 {
            let text = format!("{} requests came that are not of this run: not answered", self.foreign);
            warn(tools.account, text);
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
