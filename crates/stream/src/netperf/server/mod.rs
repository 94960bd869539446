//! Answers a netperf, 2.7.0 or later: the six classics (TCP_STREAM, TCP_MAERTS, TCP_RR, TCP_CRR, UDP_STREAM, UDP_RR) and
//! TCP_SENDFILE, again and again over one control connection, as `-i` asks for.
//!
//! Where netserver can be made to harm others or itself, this does something else:
//!
//! - Data goes to the address that opened the control connection and comes from there, whatever `netperf_ip` says. A test in which
//!   the server would be the first to send datagrams is refused: nothing proves that the port they would go to wants them. Behind
//!   a translator of addresses, UDP tests do not work, as its port is not the one that netperf tells.
//! - Ports below 1024 and files to fill buffers from are refused.
//! - A client has [`Limits::idle`] for each message and for its first data, and [`Limits::duration`] for a test.
//!
//! Refusals are numbers of errno, since the protocol has no words: netperf prints `remote error 13: Permission denied`.

mod asked;
mod test;

use std::net::TcpStream;

use linux::SyscallError;
use thiserror::Error;

use self::asked::Asked;
use super::control::{Connection, ControlError};
use super::wire::{BODY, Calibrated, Message, UNKNOWN_TEST, kind, omni, results_kind_as_sent, tcp_stream};
use crate::cpu;
use crate::engine::EngineError;
use crate::limits::{Halt, Limits};

/// How fast CPUs count by `/proc/stat`: netcpu_procstat.c has no better idea.
const CPU_RATE: f32 = 100.0;

/// Why a session ended before its client ended it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The control connection.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The client asked for what it does not get.
    #[error("{peer} was refused a test: {why}")]
    Refused {
        /// The client.
        peer: std::net::SocketAddr,
        /// Why, in words.
        why: String,
        /// Why, as it was told.
        errno: u32,
    },
    /// A data socket could not be arranged.
    #[error("arranging a data socket for {peer} failed: {source}")]
    Arrange {
        /// The client.
        peer: std::net::SocketAddr,
        /// Why.
        source: SyscallError,
    },
    /// The run failed.
    #[error("a test of {peer} failed: {source}")]
    Run {
        /// The client.
        peer: std::net::SocketAddr,
        /// Why.
        source: EngineError,
    },
    /// The client went away in the middle of a test, or never began it.
    #[error("{peer} went away in the middle of a test")]
    Vanished {
        /// The client.
        peer: std::net::SocketAddr,
    },
}

/// Serves one client until it closes its control connection.
///
/// It blocks, and starts a thread for each test. Whether the client may come at all is the caller's to decide
/// ([`Limits::permits`]).
///
/// # Errors
/// The client was silent too long, spoke another protocol, was refused or vanished; or a call failed here. It was told what
/// the protocol can tell.
pub fn serve(connection: TcpStream, limits: &Limits, halt: &Halt) -> Result<(), ServeError> {
    let connection = Connection::new(connection, limits.idle)?;
    let mut session = Session { connection, limits, halt };
    let give_up = || halt.is_halted();
    while let Some(message) = session.connection.receive(limits.idle, &give_up)? {
        session.answer(&message)?;
    }
    Ok(())
}

struct Session<'a> {
    connection: Connection,
    limits: &'a Limits,
    halt: &'a Halt,
}

impl Session<'_> {
    fn answer(&mut self, message: &Message) -> Result<(), ServeError> {
        let answer = match message.kind() {
            kind::OMNI => return self.omni(&omni::Request::decode(message)),
            kind::TCP_STREAM => return self.tcp_stream(&tcp_stream::Request::decode(message)),
            kind::DEBUG_ON | kind::DEBUG_OFF => Message::new(kind::DEBUG_OK),
            kind::CPU_CALIBRATE => calibrated(),
            // netserver without a phrase of its own passes over that of a client.
            kind::PASSPHRASE => return Ok(()),
            kind::SYSINFO => sysinfo(),
            _ => Message::new(0).with_errno(UNKNOWN_TEST),
        };
        Ok(self.connection.send(&answer)?)
    }

    fn omni(&mut self, request: &omni::Request) -> Result<(), ServeError> {
        let refusal = omni::Response { kind: kind::OMNI_RESPONSE, ..Default::default() };
        let (asked, port) = match asked::of_omni(request, &self.connection, self.limits) {
            Ok(asked) => (asked, request.data_port),
            Err(refused) => return self.refuse(refusal.encode(), refused),
        };
        let arranged = self.arrange(&asked, port, || refusal.encode())?;
        let answer = arranged.response(request, &asked);
        self.connection.send(&answer.encode())?;
        let mut results =
            omni::Results { kind: results_kind_as_sent(kind::OMNI_RESPONSE), ..Default::default() };
        match test::run(arranged, &asked, &self.connection, self.limits, self.halt) {
            Ok(ran) => {
                ran.fill(&mut results, request.flags & omni::ROUTING_ALLOWED != 0);
                Ok(self.connection.send(&results.encode())?)
            }
            Err(error) => self.failed(results.encode(), error),
        }
    }

    fn tcp_stream(&mut self, request: &tcp_stream::Request) -> Result<(), ServeError> {
        let refusal = tcp_stream::Response { kind: kind::TCP_STREAM_RESPONSE, ..Default::default() };
        let asked = match asked::of_tcp_stream(request, &self.connection, self.limits) {
            Ok(asked) => asked,
            Err(refused) => return self.refuse(refusal.encode(), refused),
        };
        let port = u32::try_from(request.port).unwrap_or(0);
        let arranged = self.arrange(&asked, port, || refusal.encode())?;
        let answer = arranged.stream_response(request, &asked);
        self.connection.send(&answer.encode())?;
        let mut results = tcp_stream::Results {
            kind: results_kind_as_sent(kind::TCP_STREAM_RESPONSE),
            ..Default::default()
        };
        match test::run(arranged, &asked, &self.connection, self.limits, self.halt) {
            Ok(ran) => {
                ran.fill_stream(&mut results);
                Ok(self.connection.send(&results.encode())?)
            }
            Err(error) => self.failed(results.encode(), error),
        }
    }

    fn arrange(
        &mut self,
        asked: &Asked,
        port: u32,
        refusal: impl Fn() -> Message,
    ) -> Result<test::Arranged, ServeError> {
        let arranged = asked::place(port, asked.at).map(|at| test::arrange(asked, at));
        match arranged {
            Ok(Ok(arranged)) => Ok(arranged),
            Ok(Err(source)) => {
                let errno = source.errno().and_then(|errno| u32::try_from(errno).ok()).unwrap_or(asked::EIO);
                self.connection.send(&refusal().with_errno(errno))?;
                Err(ServeError::Arrange { peer: self.connection.peer, source })
            }
            Err(refused) => {
                self.connection.send(&refusal().with_errno(refused.errno))?;
                Err(self.refused(refused))
            }
        }
    }

    fn refuse(&mut self, answer: Message, refused: asked::Refused) -> Result<(), ServeError> {
        self.connection.send(&answer.with_errno(refused.errno))?;
        Err(self.refused(refused))
    }

    fn refused(&self, refused: asked::Refused) -> ServeError {
        ServeError::Refused { peer: self.connection.peer, why: refused.why, errno: refused.errno }
    }

    fn failed(&mut self, results: Message, error: ServeError) -> Result<(), ServeError> {
        // The first error is the one to tell of.
        let _ = self.connection.send(&results.with_errno(asked::EIO));
        Err(error)
    }
}

fn calibrated() -> Message {
    let cpus = cpu::Snapshot::take().map_or(0, |now| now.until(&now, Vec::new()).cpus.len());
    let cpus = u32::try_from(cpus).unwrap_or(0);
    Calibrated { kind: kind::CPU_CALIBRATE, cpu_rate: CPU_RATE, cpus, ..Default::default() }.encode()
}

fn sysinfo() -> Message {
    const TEXT: &[u8] = b",Deprecated,Deprecated,Deprecated,Deprecated";
    let mut message = Message::new(kind::SYSINFO + 1);
    message.0[BODY][..TEXT.len()].copy_from_slice(TEXT);
    message
}

/// A size as it is told.
fn told(bytes: u32) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// How many buffers netserver takes for messages of that size, where the client leaves it to it.
fn width(buffer: u32, message: u32, asked: u32) -> i32 {
    if asked != 0 {
        return asked as i32;
    }
    told((buffer / message.max(1)).saturating_add(1).max(2))
}
