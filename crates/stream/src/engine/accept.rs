//! Connections that are accepted, answered and closed, one at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux::{clock, socket};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::EngineError;
use super::task::{Step, Task, Tools, failed};
use super::thread::PATIENCE;

/// How long a connection may take: one that sends nothing keeps nobody else waiting for longer.
const LONGEST_NS: u64 = 2_000_000_000;

/// Accepts connections.
#[derive(Debug)]
pub(super) struct Acceptor<'a> {
    listener: BorrowedFd<'a>,
    exchange: Option<(usize, usize)>,
    connection: Option<Connection>,
    generation: u64,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Bytes of the request and of the response that are left.
    request: usize,
    response: usize,
    end_ns: u64,
}

impl<'a> Acceptor<'a> {
    pub(super) fn new(listener: BorrowedFd<'a>, exchange: Option<(usize, usize)>) -> Self {
        Self { listener, exchange, connection: None, generation: 0 }
    }

    fn accept(&mut self, tools: &Tools<'_>) -> Result<(), Errno> {
        let flags =
            if tools.waits { SocketFlags::CLOEXEC } else { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK };
        let socket = accept_with(self.listener, flags)?;
        if tools.waits {
            // What was connected before the listener had its own timeouts has not inherited them.
            let timeouts = socket::set_timeouts(&socket, PATIENCE);
            timeouts.map_err(|error| Errno::from_io_error(&error.source).unwrap_or(Errno::IO))?;
        }
        let (request, response) = self.exchange.unwrap_or((0, 0));
        let end_ns = clock::monotonic_ns() + LONGEST_NS;
        self.connection = Some(Connection { socket, request, response, end_ns });
        self.generation += 1;
        Ok(())
    }
}

impl Connection {
    fn serve(&mut self, tools: &mut Tools<'_>) -> Result<(), Errno> {
        while self.request > 0 {
            let bytes = self.request.min(tools.buffers.receive.len());
            let room = &mut tools.buffers.receive[..bytes];
            let (_, received) = recv(&self.socket, room, RecvFlags::empty())?;
            if received == 0 {
                return Err(Errno::CONNABORTED);
            }
            self.request -= received;
            tools.counters.received(received as u64, u64::from(self.request == 0));
        }
        while self.response > 0 {
            let bytes = self.response.min(tools.buffers.send.len());
            let sent = send(&self.socket, &tools.buffers.send[..bytes], SendFlags::NOSIGNAL)?;
            self.response -= sent;
            tools.counters.sent(sent as u64, u64::from(self.response == 0));
        }
        Ok(())
    }
}

impl Task for Acceptor<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        if self.connection.is_none() {
            match self.accept(tools) {
                Ok(()) => {}
                Err(Errno::AGAIN) => return Ok(Step::Blocked),
                // What a connection died of before it was accepted comes here (accept(2)).
                Err(
                    Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH,
                ) => {
                    return Ok(Step::Moved);
                }
                Err(error) => return Err(failed("accept", error.into())),
            }
        }
        let Some(connection) = &mut self.connection else { return Ok(Step::Moved) };
        match connection.serve(tools) {
            Ok(()) => tools.counters.transactions(1),
            Err(Errno::INTR) => return Ok(Step::Moved),
            Err(Errno::AGAIN) if clock::monotonic_ns() < connection.end_ns => {
                return Ok(if tools.waits { Step::Blocked } else { Step::Until(connection.end_ns) });
            }
            Err(_) => tools.counters.refused(1),
        }
        // Closing first keeps the connecting end's ports free (see `connect`).
        self.connection = None;
        self.generation += 1;
        Ok(Step::Moved)
    }

    fn finish(&mut self, _tools: &mut Tools<'_>) {
        self.connection = None;
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connection.as_ref().map_or(self.listener, |connection| connection.socket.as_fd()))
    }

    fn generation(&self) -> u64 {
        // The listener is registered once, as generation 0.
        if self.connection.is_some() { self.generation } else { 0 }
    }
}
