//! Asks a netserver, 2.7.0 or later: the six classics, TCP_SENDFILE, and connections without a transaction.
//!
//! A [`Session`] is one control connection; each [`Session::run`] is a test on it, as often as confidence needs. [`run`] is one
//! session with one test.

mod request;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use linux::SyscallError;
use thiserror::Error;

pub use self::request::Unsaid;
use super::arrange::{bound, connected, probed};
use super::control::{Connection, ControlError};
use super::told::{Meaning, side, side_of_stream};
use super::wire::omni::Implausible;
use super::wire::{Message, kind, omni, tcp_stream};
use crate::engine::prepare::Applied;
use crate::engine::{self, Control, End, Endpoint, EngineError, Flow, Marks, Role, Settings};
use crate::outcome::{Exchanged, Interval, Side};
use crate::plan::{Direction, Giving, Plan, Transport, Until, Work};

/// What netserver waits beyond the length of a test in which its client cannot be heard to end (netlib.h, `PAD_TIME`).
const PAD: Duration = Duration::from_secs(4);

/// How much earlier than this end netserver may begin its test.
const SLACK: Duration = Duration::from_secs(1);

/// Empty datagrams at the end (nettest_omni.c, `disconnect_data_socket`).
const FAREWELLS: usize = 3;

/// How a test is made, beside what it is.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// Account for CPU time, here and there.
    pub cpu: bool,
    /// How long each [`Interval`] is; `None`: there are none.
    pub interval: Option<Duration>,
    /// Called with each interval as it ends.
    pub on_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
    /// The other end has vanished when it says nothing, or nothing moves, for so long.
    pub give_up_after: Duration,
    /// Stops the test from another thread; for one test.
    pub control: &'a Control,
}

impl std::fmt::Debug for How<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("How")
            .field("cpu", &self.cpu)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// Sizes as both ends have them, bytes: what netperf's columns show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// `SO_SNDBUF` here.
    pub local_send_buffer: u32,
    /// `SO_RCVBUF` here.
    pub local_receive_buffer: u32,
    /// `SO_SNDBUF` there.
    pub remote_send_buffer: u32,
    /// `SO_RCVBUF` there.
    pub remote_receive_buffer: u32,
    /// One message of the end that sends.
    pub message: u32,
}

/// What came of a test.
#[derive(Clone, Debug)]
pub struct Run {
    /// What both ends counted.
    pub exchanged: Exchanged,
    /// Sizes before anything flowed, as netperf prints them.
    pub sizes: Sizes,
    /// How the server measured CPU time, by netperf's letter; `None` where it did not.
    pub server_cpu_method: Option<char>,
}

/// Why a test could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// netperf's protocol has no words for the plan.
    #[error(transparent)]
    Unsaid(#[from] Unsaid),
    /// No control connection.
    #[error("connecting to netserver at {host} failed: {source}; is it running, and is port {} open?", host.port())]
    Connect {
        /// Where.
        host: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The control connection.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The server refused, or failed.
    #[error("netserver at {host} answered with error {errno} to {what}: {meaning}")]
    Remote {
        /// The server.
        host: SocketAddr,
        /// What it answered to.
        what: &'static str,
        /// What it said.
        errno: u32,
        /// What that means on this system.
        meaning: String,
    },
    /// The answer is none.
    #[error(
        "netserver at {host} answered with a message of type {kind} where {expected} was due; is it netserver 2.7.0 or later?"
    )]
    Answer {
        /// The server.
        host: SocketAddr,
        /// What came.
        kind: u32,
        /// What was due.
        expected: u32,
    },
    /// Results that cannot be.
    #[error("the results of netserver at {host} are refused: {source}")]
    Implausible {
        /// The server.
        host: SocketAddr,
        /// What speaks against them.
        source: Implausible,
    },
    /// A data socket.
    #[error(transparent)]
    Socket(#[from] SyscallError),
    /// The run.
    #[error(transparent)]
    Run(#[from] EngineError),
}

/// Whether netperf's protocol has words for a plan; nothing is sent.
///
/// # Errors
/// What it has none for.
pub fn check(plan: &Plan) -> Result<(), Unsaid> {
    request::check(plan)
}

/// One test over a control connection of its own.
///
/// # Errors
/// See [`ClientError`]. Nothing was sent where the plan cannot be said.
pub fn run(host: SocketAddr, plan: &Plan, how: &How<'_>) -> Result<Exchanged, ClientError> {
    request::check(plan)?;
    Ok(Session::connect(host, how.give_up_after)?.run(plan, how)?.exchanged)
}

/// A control connection to a netserver.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    host: SocketAddr,
    /// What the server gave for the run before; netperf asks for the same port again.
    data_port: u16,
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or does not answer within `within`.
    pub fn connect(host: SocketAddr, within: Duration) -> Result<Self, ClientError> {
        let within = within.max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&host, within)
            .map_err(|source| ClientError::Connect { host, source })?;
        Ok(Self { connection: Connection::new(stream, within)?, host, data_port: 0 })
    }

    /// One test.
    ///
    /// # Errors
    /// See [`ClientError`]. After one the session is of no more use.
    pub fn run(&mut self, plan: &Plan, how: &How<'_>) -> Result<Run, ClientError> {
        request::check(plan)?;
        let mut prepared = self.prepare(plan)?;
        // What was left to the system is what its sockets have.
        let mut plan = plan.clone();
        if plan.send_bytes == 0 {
            plan.send_bytes = prepared.applied.send_buffer_bytes;
        }
        if plan.receive_bytes == 0 {
            plan.receive_bytes = prepared.applied.receive_buffer_bytes;
        }
        let sendfile = matches!(plan.work, Work::Bulk { giving: Giving::Sendfile, .. });
        prepared.asked_again = self.data_port;
        if sendfile { self.run_stream(&plan, prepared, how) } else { self.run_omni(&plan, prepared, how) }
    }

    /// The socket of datagrams, whose port the request names, or the sizes of those of TCP.
    fn prepare(&self, plan: &Plan) -> Result<Prepared, ClientError> {
        let options = &plan.options.client;
        let original = plan.clone();
        if plan.transport == Transport::Udp {
            let any: std::net::IpAddr = match self.host {
                SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let bound = bound(plan.transport, options, SocketAddr::new(any, 0))?;
            let applied = bound.applied.clone();
            return Ok(Prepared { applied, udp: Some(bound), original, asked_again: 0 });
        }
        Ok(Prepared { applied: probed(options, self.host)?, udp: None, original, asked_again: 0 })
    }

    fn run_omni(&mut self, plan: &Plan, prepared: Prepared, how: &How<'_>) -> Result<Run, ClientError> {
        let request = request::omni(plan, &prepared, how.cpu, self.host);
        self.connection.send(&request.encode())?;
        let response = self.answer("a test", kind::OMNI_RESPONSE, how)?;
        let response = omni::Response::decode(&response);
        let to = self.data_address(response.data_port)?;
        let sizes = Sizes {
            remote_send_buffer: unsigned(response.send_buf_size),
            remote_receive_buffer: unsigned(response.recv_buf_size),
            message: match plan.work {
                Work::Bulk { direction: Direction::ToClient, .. } => unsigned(response.send_size),
                _ => plan.send_bytes,
            },
            ..Sizes::of(&prepared.applied)
        };
        let client = self.flow(plan, prepared, to, how)?;
        let waited = Instant::now();
        let results = self.results(plan, how)?;
        let results = omni::Results::decode(&results);
        if let Some(source) = results.implausible(how.cpu) {
            return Err(ClientError::Implausible { host: self.host, source });
        }
        let transactions = !matches!(plan.work, Work::Bulk { .. });
        let meaning = Meaning {
            sends: request.direction & omni::TRANSMIT != 0,
            receives: request.direction & omni::RECEIVE != 0,
            transactions,
            cpu: how.cpu,
            // netserver ended the test by its clock: it tells the time without the pad, and CPU time with it.
            beyond: if waited.elapsed() >= PAD - SLACK { PAD } else { Duration::ZERO },
        };
        Ok(Run {
            exchanged: Exchanged { client, server: side(&results, meaning) },
            sizes,
            server_cpu_method: how.cpu.then(|| super::wire::cpu_method_letter(results.cpu_method)),
        })
    }

    fn run_stream(&mut self, plan: &Plan, prepared: Prepared, how: &How<'_>) -> Result<Run, ClientError> {
        let request = request::stream(plan, &prepared, how.cpu, self.host);
        self.connection.send(&request.encode())?;
        let response = self.answer("a test", kind::TCP_STREAM_RESPONSE, how)?;
        let response = tcp_stream::Response::decode(&response);
        let to = self.data_address(unsigned(response.data_port_number))?;
        let sizes = Sizes {
            remote_send_buffer: unsigned(response.send_buf_size),
            remote_receive_buffer: unsigned(response.recv_buf_size),
            message: plan.send_bytes,
            ..Sizes::of(&prepared.applied)
        };
        let client = self.flow(plan, prepared, to, how)?;
        let results = tcp_stream::Results::decode(&self.results(plan, how)?);
        let method = u32::try_from(results.cpu_method).unwrap_or(u32::MAX);
        Ok(Run {
            exchanged: Exchanged { client, server: side_of_stream(&results, how.cpu) },
            sizes,
            server_cpu_method: how.cpu.then(|| super::wire::cpu_method_letter(method)),
        })
    }

    /// Moves the data.
    fn flow(
        &mut self,
        plan: &Plan,
        prepared: Prepared,
        to: SocketAddr,
        how: &How<'_>,
    ) -> Result<Side, ClientError> {
        let role = match plan.work {
            Work::Bulk { direction: Direction::ToClient, .. } => Role::Receive,
            Work::Bulk { .. } => Role::Send,
            Work::Transactions { .. } => Role::Request,
            Work::Connections { .. } => Role::Connect,
        };
        let endpoint = match (prepared.udp, role) {
            (Some(bound), _) => {
                let (socket, _) = bound.connected_to(to)?;
                Endpoint::Udp { socket, peer: Some(to) }
            }
            (None, Role::Connect) => Endpoint::Connector { to, bind: None },
            (None, _) => Endpoint::Tcp(connected(&plan.options.client, to, how.give_up_after)?.0),
        };
        let settings = Settings {
            plan,
            end: End::Client,
            interval: how.interval,
            cpu: how.cpu,
            give_up_after: how.give_up_after,
            on_interval: how.on_interval,
        };
        // netserver hears of the end of datagrams by empty ones; a stream of them ends so by itself.
        let farewell = match &endpoint {
            Endpoint::Udp { socket, .. } if role == Role::Request => socket.try_clone().ok(),
            _ => None,
        };
        how.control.begin();
        let flow = Flow { endpoint, role, marks: Marks::None };
        let side = engine::run(vec![flow], &settings, how.control)?;
        for _ in 0..FAREWELLS {
            // One of them is enough, and netserver ends by its clock without.
            let _ = farewell.as_ref().map(|socket| socket.send(&[]));
        }
        Ok(side)
    }

    fn data_address(&mut self, port: u32) -> Result<SocketAddr, ClientError> {
        match u16::try_from(port) {
            Ok(port) if port > 0 => {
                self.data_port = port;
                let mut to = self.host;
                to.set_port(port);
                Ok(to)
            }
            _ => Err(self.remote("a test with a port that is none", port)),
        }
    }

    fn answer(&mut self, what: &'static str, expected: u32, how: &How<'_>) -> Result<Message, ClientError> {
        let message = self.connection.expect("what it has arranged", how.give_up_after, &|| false)?;
        if message.errno() != 0 {
            return Err(self.remote(what, message.errno()));
        }
        match message.kind() {
            kind if kind == expected => Ok(message),
            kind => Err(ClientError::Answer { host: self.host, kind, expected }),
        }
    }

    /// The results. Their word 0 is not what it should be in any netserver, and is not looked at.
    fn results(&mut self, plan: &Plan, how: &How<'_>) -> Result<Message, ClientError> {
        let length = match plan.until {
            Until::Time(length) => length,
            _ => Duration::ZERO,
        };
        let within = length.saturating_add(PAD + Duration::from_secs(1)).saturating_add(how.give_up_after);
        let message = self.connection.expect("its results", within, &|| false)?;
        match message.errno() {
            0 => Ok(message),
            errno => Err(self.remote("the end of a test", errno)),
        }
    }

    fn remote(&self, what: &'static str, errno: u32) -> ClientError {
        let meaning = match i32::try_from(errno) {
            Ok(998) => "it does not know this test".into(),
            Ok(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            Err(_) => "no number of an error".into(),
        };
        ClientError::Remote { host: self.host, what, errno, meaning }
    }
}

/// What is there before the request.
#[derive(Debug)]
struct Prepared {
    applied: Applied,
    udp: Option<super::arrange::Bound>,
    /// The plan before sizes were filled in.
    original: Plan,
    asked_again: u16,
}

impl Sizes {
    fn of(local: &Applied) -> Self {
        Self {
            local_send_buffer: local.send_buffer_bytes,
            local_receive_buffer: local.receive_buffer_bytes,
            ..Self::default()
        }
    }
}

fn unsigned(told: i32) -> u32 {
    u32::try_from(told).unwrap_or(0)
}
