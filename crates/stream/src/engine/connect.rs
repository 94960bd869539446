//! A connection for each transaction: opened, used for one exchange if there is one, and closed.
//!
//! Ports: each connection leaves one behind that waits for a minute (TIME_WAIT) at the end that closes first. The accepting end
//! of this program does so right after its response, so that the connecting end has its ports free for the next connections,
//! without resetting any. Against a server that waits for the client to close first, a client with more than some 28,000
//! connections in a minute finds no free port (EADDRNOTAVAIL): it waits for one, counts that as refused, and says so. A bound
//! address is bound with `SO_REUSEADDR`, and the port chosen as late as possible (`IP_BIND_ADDRESS_NO_PORT`).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux::{SyscallError, clock, socket};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, bind, recv, send, shutdown};

use super::EngineError;
use super::options;
use super::pace::Pacer;
use super::task::{Common, Lap, Step, Task, Tools, step_of, warn};
use super::thread::PATIENCE;
use crate::plan::Transport;

/// How long after a refusal the next try follows.
const AFTER_REFUSAL_NS: u64 = 1_000_000;

/// Opens connections, one after the other.
#[derive(Debug)]
pub(super) struct Connector {
    to: SocketAddr,
    from: Option<SocketAddr>,
    /// Bytes of request and response.
    exchange: Option<(usize, usize)>,
    pacer: Option<Pacer>,
    lap: Lap,
    connection: Option<Connection>,
    generation: u64,
    not_before_ns: u64,
    warned: bool,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    begin_ns: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// Bytes that are left.
    Sending(usize),
    Receiving(usize),
    /// Until the peer has closed too.
    Closing,
}

impl Connector {
    pub(super) fn new(
        to: SocketAddr,
        from: Option<SocketAddr>,
        exchange: Option<(usize, usize)>,
        common: &Common<'_>,
        lap: Lap,
    ) -> Self {
        let pacer = Pacer::new(common.plan, 1);
        let (connection, generation, not_before_ns, warned) = (None, 0, 0, false);
        Self { to, from, exchange, pacer, lap, connection, generation, not_before_ns, warned }
    }

    fn open(&mut self, tools: &Tools<'_>, begin_ns: u64) -> Result<Connection, EngineError> {
        let plan = tools.common.plan;
        let multipath = plan.transport == Transport::Mptcp;
        let fresh = socket::stream(self.to, multipath)?;
        if tools.waits {
            socket::set_timeouts(&fresh, PATIENCE)?;
        } else {
            socket::set_nonblocking(&fresh, true)?;
        }
        options::set(tools.common.options, &fresh, plan.transport)?;
        if let Some(from) = self.from {
            socket::set_reuse_address(&fresh)?;
            if from.port() == 0 {
                socket::set_bind_no_port(&fresh)?;
            }
            bind(&fresh, &from)
                .map_err(|error| SyscallError::new("bind socket", from.to_string(), error.into()))?;
        }
        Ok(Connection { socket: fresh, begin_ns, stage: Stage::Connecting })
    }

    /// A connection that could not be made, or broke: what that means for the next.
    fn refused(&mut self, tools: &Tools<'_>, error: Errno) -> Result<Step, EngineError> {
        let text = match error {
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => {
                "no port was free for a connection: more of them wait after closing than net.ipv4.ip_local_port_range has; \
                 it was waited for one (refused counts how often); a wider range, or several addresses, help"
            }
            Errno::CONNREFUSED => "nobody accepts connections at the peer's port (ECONNREFUSED)",
            Errno::CONNRESET | Errno::PIPE | Errno::TIMEDOUT | Errno::CONNABORTED => {
                "a connection was reset or timed out, and another opened in its place"
            }
            _ => return step_of("connect", error),
        };
        self.connection = None;
        tools.counters.refused(1);
        tools.give_back(1);
        if !std::mem::replace(&mut self.warned, true) {
            warn(tools.account, text.into());
        }
        self.not_before_ns = clock::monotonic_ns() + AFTER_REFUSAL_NS;
        Ok(Step::Moved)
    }

    fn begin(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        if tools.enough {
            return Ok(Step::Over);
        }
        let now_ns = clock::monotonic_ns();
        let mut begin_ns = now_ns;
        if self.not_before_ns > now_ns {
            return Ok(Step::Until(self.not_before_ns));
        }
        if let Some(pacer) = &mut self.pacer {
            begin_ns = pacer.ready_ns(now_ns, 1);
            if begin_ns > now_ns {
                return Ok(Step::Until(begin_ns));
            }
        }
        if tools.claim(1) == 0 {
            return Ok(Step::Over);
        }
        match self.open(tools, begin_ns) {
            Ok(connection) => self.connection = Some(connection),
            Err(EngineError::Kernel(error)) => {
                let errno = Errno::from_io_error(&error.source);
                return match errno {
                    Some(errno @ (Errno::ADDRNOTAVAIL | Errno::ADDRINUSE)) => self.refused(tools, errno),
                    _ => Err(error.into()),
                };
            }
            Err(error) => return Err(error),
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.sent(now_ns, 1);
        }
        self.generation += 1;
        Ok(Step::Moved)
    }

    /// The next call of a connection. Some: what comes after it.
    fn advance(&mut self, tools: &mut Tools<'_>) -> Result<Option<Stage>, Errno> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        let socket = connection.socket.as_fd();
        let closing = || {
            shutdown(socket, Shutdown::Write)?;
            Ok(Some(Stage::Closing))
        };
        match connection.stage {
            Stage::Connecting => {
                let to = self.to;
                let connected = socket::connect(socket, to);
                if !connected.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
                    return Err(Errno::AGAIN);
                }
                self.exchange.map_or_else(closing, |(request, _)| Ok(Some(Stage::Sending(request))))
            }
            Stage::Sending(left) => {
                let bytes = left.min(tools.buffers.send.len());
                let sent = send(socket, &tools.buffers.send[..bytes], SendFlags::NOSIGNAL)?;
                tools.counters.sent(sent as u64, u64::from(sent == left));
                let response = self.exchange.map_or(0, |(_, response)| response);
                Ok(Some(if sent == left { Stage::Receiving(response) } else { Stage::Sending(left - sent) }))
            }
            Stage::Receiving(left) => {
                let bytes = left.min(tools.buffers.receive.len());
                let (_, received) = recv(socket, &mut tools.buffers.receive[..bytes], RecvFlags::empty())?;
                if received == 0 {
                    return Err(Errno::CONNABORTED);
                }
                tools.counters.received(received as u64, u64::from(received == left));
                if received == left { closing() } else { Ok(Some(Stage::Receiving(left - received))) }
            }
            Stage::Closing => match recv(socket, &mut tools.buffers.receive[..1], RecvFlags::empty())? {
                (_, 0) => Ok(None),
                _ => Ok(Some(Stage::Closing)),
            },
        }
    }
}

impl Task for Connector {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        if self.connection.is_none() {
            let begun = self.begin(tools)?;
            if begun != Step::Moved || self.connection.is_none() {
                return Ok(begun);
            }
        }
        loop {
            match self.advance(tools) {
                Ok(Some(stage)) => {
                    if let Some(connection) = &mut self.connection {
                        connection.stage = stage;
                    }
                }
                Ok(None) => break,
                Err(Errno::AGAIN) => return Ok(Step::Blocked),
                Err(Errno::INTR) => return Ok(Step::Moved),
                Err(error) => return self.refused(tools, error),
            }
        }
        if let Some(Connection { socket, begin_ns, .. }) = self.connection.take() {
            drop(socket);
            self.lap.record(tools, begin_ns, clock::monotonic_ns());
            tools.counters.transactions(1);
        }
        Ok(Step::Moved)
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        self.connection = None;
        self.lap.tell(tools);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(|connection| connection.socket.as_fd())
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}
