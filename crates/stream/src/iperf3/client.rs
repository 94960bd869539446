//! A client for `iperf3 -s`, and for [`Server`](super::server::Server).

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use linux::{SyscallError, socket};

use super::auth::{AuthError, Login};
use super::error::{WireError, meaning};
use super::json::{Connected, Facts};
use super::line::Line;
use super::plan::{Unsaid, VERSION, parameters};
use super::report;
use super::results::{Results, ServerOutput};
use super::server::{join, wait_until_quiet};
use super::wire::{self, Cookie, RESULTS_BYTES_MAX, State};
use crate::engine::{self, Control, End, Endpoint, EngineError, Flow, Marks, Role, prepare};
use crate::limits::Halt;
use crate::outcome::{Exchanged, Interval, Side};
use crate::plan::{Direction, Pace, Plan, Transport, Until, Work};

/// How often the control connection is left alone while a test runs.
const LOOK: Duration = Duration::from_millis(50);
/// And when it is about to end.
const LOOK_AT_END: Duration = Duration::from_millis(2);
/// Nothing has come for this long after the server stopped: everything is here.
const QUIET: Duration = Duration::from_millis(20);
/// What is under way when a test ends is waited for this long at most.
const TAIL: Duration = Duration::from_secs(5);
/// So long after the last datagram of an amount those that are missing are taken for lost.
const MISSING: Duration = Duration::from_secs(1);
/// After this long without a reply a hello is taken for lost. It is long, because a server of iperf3 takes a second one for
/// data.
const HELLO_AGAIN: Duration = Duration::from_secs(2);

/// What a test has beside its plan.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// How the server was named; for the output only.
    pub host: Option<&'a str>,
    /// Who this is, where the server wants to know.
    pub login: Option<&'a Login>,
    /// The address of this host from which to connect.
    pub bind: Option<IpAddr>,
    /// Whether the server is to send what it prints.
    pub get_server_output: bool,
    /// Whether datagrams have numbers of 64 bits.
    pub wide_counters: bool,
    /// `--title`.
    pub title: Option<&'a str>,
    /// `--extra-data`.
    pub extra_data: Option<&'a str>,
    /// How long each period is.
    pub interval: Option<Duration>,
    /// How long the server may be silent where it has to answer; none: 10 s.
    pub patience: Option<Duration>,
    /// Called once, before anything flows.
    pub on_start: Option<&'a (dyn Fn(&Facts) + Sync)>,
    /// Called with each period.
    pub on_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
    /// Ends the test early, without results.
    pub halt: Option<&'a Halt>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("host", &self.host)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// A test that has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// What both ends counted.
    pub exchanged: Exchanged,
    /// What stands in the output beside it.
    pub facts: Facts,
    /// What the server printed, where it was asked for.
    pub server_output: Option<ServerOutput>,
}

/// Why a test could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The plan is beyond the protocol.
    #[error(transparent)]
    Unsaid(#[from] Unsaid),
    /// The control connection.
    #[error("control connection with {to}: {source}")]
    Wire {
        /// The server.
        to: SocketAddr,
        /// What was wrong.
        source: WireError,
    },
    /// A socket.
    #[error(transparent)]
    Kernel(#[from] SyscallError),
    /// Moving the bytes.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The token.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The server has a test already, or refuses.
    #[error("{to} is busy with another test, or refuses this client; try again later")]
    Busy {
        /// The server.
        to: SocketAddr,
    },
    /// The server said why not.
    #[error("{to} refuses: {} (its error {number}, errno {errno})", meaning(*.number))]
    Server {
        /// The server.
        to: SocketAddr,
        /// Of iperf3.
        number: i32,
        /// Of its kernel.
        errno: i32,
    },
    /// The server ended.
    #[error("{to} ended the test: it is being stopped")]
    Terminated {
        /// The server.
        to: SocketAddr,
    },
    /// No reply to a hello.
    #[error("{to} does not answer over UDP, though it does over TCP: is there a firewall between?")]
    NoHello {
        /// The server.
        to: SocketAddr,
    },
    /// This end was told to end.
    #[error("the test was ended early")]
    Halted,
}

/// Makes a test with the server at an address; what both ends counted.
///
/// # Errors
/// The plan cannot be said in iperf3's words, the server refuses, or the network does not work.
pub fn run(to: SocketAddr, plan: &Plan, options: &Options<'_>) -> Result<Exchanged, ClientError> {
    run_whole(to, plan, options).map(|finished| finished.exchanged)
}

/// The same, with what the output needs beside counts.
///
/// # Errors
/// As for [`run`].
pub fn run_whole(to: SocketAddr, plan: &Plan, options: &Options<'_>) -> Result<Finished, ClientError> {
    let mut asked = parameters(plan)?;
    asked.get_server_output = options.get_server_output;
    asked.wide_counters = options.wide_counters;
    asked.title = options.title.map(str::to_owned);
    asked.extra_data = options.extra_data.map(str::to_owned);
    if let Some(login) = options.login {
        asked.auth_token = Some(login.token(SystemTime::now())?);
    }
    let client = Client::connect(to, plan, options)?;
    client.wire(client.line.write_cookie(&client.cookie))?;
    client.expect(State::ParamExchange, "the server to ask for parameters")?;
    client.wire(client.line.write_json(&asked.to_json()))?;
    client.expect(State::CreateStreams, "the server to ask for streams")?;
    let mut facts = client.facts();
    let streams = client.open_streams(&mut facts)?;
    client.expect(State::TestStart, "the test to start")?;
    client.expect(State::TestRunning, "the test to run")?;
    if let Some(on_start) = options.on_start {
        on_start(&facts);
    }
    let mut side = client.flow(streams)?;
    let sends = client.direction() != Direction::ToClient;
    client.wire(client.line.write_json(&report::results(&side, plan, sends, true).to_json()))?;
    let told = client.wire(client.line.read_json(RESULTS_BYTES_MAX).and_then(Results::parse))?;
    client.expect(State::DisplayResults, "the end of the test")?;
    client.wire(client.line.write_state(State::IperfDone))?;
    let server = client.wire(report::side(&told, plan, &side, true).map_err(WireError::Meaning))?;
    report::add_tail(&mut side, &told);
    Ok(Finished { exchanged: Exchanged { client: side, server }, facts, server_output: told.server_output })
}

struct Client<'a> {
    to: SocketAddr,
    plan: &'a Plan,
    options: &'a Options<'a>,
    cookie: Cookie,
    line: Line,
    patience: Duration,
    /// How long the server takes to answer at all.
    round_trip: Duration,
    began_ms: u64,
}

/// The streams of a test, and copies of their sockets for when the engine has closed its own.
struct Streams {
    flows: Vec<Flow>,
    sending: Vec<TcpStream>,
}

impl<'a> Client<'a> {
    fn connect(to: SocketAddr, plan: &'a Plan, options: &'a Options<'a>) -> Result<Self, ClientError> {
        let wire = |source| ClientError::Wire { to, source };
        let patience = options.patience.unwrap_or(Duration::from_secs(10));
        let cookie = Cookie::random().map_err(|source| wire(WireError::io("read random numbers", source)))?;
        let began = Instant::now();
        let began_ms = Facts::now_ms();
        let from = options.bind.map(|ip| SocketAddr::new(ip, 0));
        let stream = socket::connect_within(socket::stream(to, false)?, to, from, patience)?;
        let round_trip = began.elapsed();
        let line = Line::new(stream, patience).map_err(wire)?;
        Ok(Self { to, plan, options, cookie, line, patience, round_trip, began_ms })
    }

    fn wire<T>(&self, result: Result<T, WireError>) -> Result<T, ClientError> {
        result.map_err(|source| ClientError::Wire { to: self.to, source })
    }

    fn direction(&self) -> Direction {
        match self.plan.work {
            Work::Bulk { direction, .. } => direction,
            _ => Direction::ToServer,
        }
    }

    /// Waits for a state; what the server says instead is an error.
    fn expect(&self, expected: State, doing: &'static str) -> Result<(), ClientError> {
        match self.wire(self.line.poll_state(self.patience))? {
            Some(state) if state == expected => Ok(()),
            Some(other) => Err(self.refused(other, doing)),
            None => self.wire(Err(WireError::io(doing, io::ErrorKind::TimedOut.into()))),
        }
    }

    fn refused(&self, state: State, expected: &'static str) -> ClientError {
        let to = self.to;
        match state {
            State::AccessDenied => ClientError::Busy { to },
            State::ServerTerminate => ClientError::Terminated { to },
            State::ServerError => match self.line.read_error() {
                Ok((number, errno)) => ClientError::Server { to, number, errno },
                Err(source) => ClientError::Wire { to, source },
            },
            got => ClientError::Wire { to, source: WireError::Unexpected { got, expected } },
        }
    }

    fn facts(&self) -> Facts {
        let host = self.options.host.map_or_else(|| self.to.ip().to_string(), str::to_owned);
        Facts {
            connecting_to: Some((host, self.to.port())),
            cookie: self.cookie.as_str().to_owned(),
            unix_ms: self.began_ms,
            mss_bytes: socket::max_segment(self.line.stream()).ok(),
            version: VERSION.to_owned(),
            system: Facts::of_this_host(),
            interval_seconds: self.options.interval.map(|interval| interval.as_secs()),
            title: self.options.title.map(str::to_owned),
            extra_data: self.options.extra_data.map(str::to_owned),
            ..Facts::default()
        }
    }

    fn open_streams(&self, facts: &mut Facts) -> Result<Streams, ClientError> {
        let mut streams = Streams { flows: Vec::new(), sending: Vec::new() };
        for index in 0..report::stream_count(self.plan) {
            let sends = report::client_sends(self.plan, index);
            let role = if sends { Role::Send } else { Role::Receive };
            if self.plan.transport == Transport::Udp {
                let socket = self.open_udp(facts)?;
                let marks = Marks::Iperf3 { wide: self.options.wide_counters };
                streams.flows.push(Flow {
                    endpoint: Endpoint::Udp { socket, peer: Some(self.to) },
                    role,
                    marks,
                });
            } else {
                let stream = self.open_tcp(facts)?;
                if sends {
                    streams.sending.push(self.io("copy a socket", stream.try_clone())?);
                }
                streams.flows.push(Flow { endpoint: Endpoint::Tcp(stream), role, marks: Marks::None });
            }
        }
        Ok(streams)
    }

    fn io<T>(&self, doing: &'static str, result: io::Result<T>) -> Result<T, ClientError> {
        self.wire(result.map_err(|source| WireError::io(doing, source)))
    }

    fn open_tcp(&self, facts: &mut Facts) -> Result<TcpStream, ClientError> {
        let opened = socket::stream(self.to, self.plan.transport == Transport::Mptcp)?;
        let applied = prepare::apply(&self.plan.options.client, &opened, self.plan.transport)?;
        let from = self.options.bind.map(|ip| SocketAddr::new(ip, 0));
        let mut stream = socket::connect_within(opened, self.to, from, self.patience)?;
        self.io("write the cookie of a stream", stream.write_all(self.cookie.as_bytes()))?;
        self.note(facts, &applied, self.io("read the address of a stream", stream.local_addr())?);
        Ok(stream)
    }

    fn open_udp(&self, facts: &mut Facts) -> Result<UdpSocket, ClientError> {
        let unspecified =
            if self.to.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let socket =
            self.io("bind a UDP socket", UdpSocket::bind((self.options.bind.unwrap_or(unspecified), 0)))?;
        let applied = prepare::apply(&self.plan.options.client, &socket, Transport::Udp)?;
        self.io("connect a UDP socket", socket.connect(self.to))?;
        self.hello(&socket)?;
        self.note(facts, &applied, self.io("read the address of a stream", socket.local_addr())?);
        Ok(socket)
    }

    fn note(&self, facts: &mut Facts, applied: &prepare::Applied, local: SocketAddr) {
        facts.connected.push(Connected { local, remote: self.to });
        facts.send_buffer_bytes.get_or_insert(applied.send_buffer_bytes);
        facts.receive_buffer_bytes.get_or_insert(applied.receive_buffer_bytes);
    }

    /// Says hello until the server answers.
    fn hello(&self, socket: &UdpSocket) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.patience;
        let mut datagram = [0; 64];
        while Instant::now() < deadline {
            // A refusal that ICMP told of an earlier one counts as no answer.
            let _ = socket.send(&wire::HELLO);
            let again = (Instant::now() + HELLO_AGAIN).min(deadline);
            loop {
                let left = again.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.io("set a timeout", socket.set_read_timeout(Some(left)))?;
                match socket.recv(&mut datagram) {
                    Ok(length) if wire::is_reply(&datagram[..length]) => return Ok(()),
                    // Data that overtook the reply.
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        return Err(ClientError::NoHello { to: self.to });
                    }
                    Err(_) => break,
                }
            }
        }
        Err(ClientError::NoHello { to: self.to })
    }

    /// Moves data; ends the test by this end's clock.
    fn flow(&self, streams: Streams) -> Result<Side, ClientError> {
        let control = Control::new();
        let settings = engine::Settings {
            plan: self.plan,
            end: End::Client,
            interval: self.options.interval,
            cpu: true,
            give_up_after: self.patience,
            on_interval: self.options.on_interval,
        };
        let Streams { flows, sending } = streams;
        std::thread::scope(|scope| {
            let engine = std::thread::Builder::new()
                .name("iperf3-flows".into())
                .spawn_scoped(scope, || engine::run(flows, &settings, &control))
                .map_err(EngineError::Thread)?;
            let watched = self.watch(&control, &sending);
            control.stop();
            let side = join(engine)?;
            watched.map(|()| side)
        })
    }

    fn watch(&self, control: &Control, sending: &[TcpStream]) -> Result<(), ClientError> {
        control.begin();
        let began = Instant::now();
        let mut moved = (0, began);
        while !self.is_done(control, began, &mut moved) {
            if let Some(state) = self.wire(self.line.poll_state(self.look(began)))? {
                return Err(self.refused(state, "nothing from the server while a test runs"));
            }
            if self.options.halt.is_some_and(Halt::is_halted) {
                let _ = self.line.write_state(State::ClientTerminate);
                return Err(ClientError::Halted);
            }
        }
        if self.direction() != Direction::ToClient {
            self.wait_for_tail(sending);
        }
        self.wire(self.line.write_state(State::TestEnd))?;
        self.expect(State::ExchangeResults, "the server to ask for results")?;
        if self.direction() != Direction::ToServer {
            // The server has stopped: what it sent before is still coming.
            wait_until_quiet(control, QUIET.max(self.round_trip), TAIL);
        }
        Ok(())
    }

    /// How long to wait for the server to say something, so that the end is not missed.
    fn look(&self, began: Instant) -> Duration {
        match self.plan.until {
            Until::Time(time) => {
                let end = self.plan.omit.saturating_add(time);
                end.saturating_sub(began.elapsed()).clamp(LOOK_AT_END, LOOK)
            }
            _ => LOOK_AT_END,
        }
    }

    /// Whether the test is to end: senders end by themselves, what is received has to be enough. `moved` are the bytes so far,
    /// and since when.
    fn is_done(&self, control: &Control, began: Instant, moved: &mut (u64, Instant)) -> bool {
        if control.is_over() {
            return true;
        }
        let (direction, bytes) = (self.direction(), control.bytes());
        let amount = match self.plan.until {
            Until::Time(time) => {
                return direction != Direction::ToServer
                    && began.elapsed() >= self.plan.omit.saturating_add(time);
            }
            Until::Bytes(bytes) => bytes,
            Until::Units(units) => units.saturating_mul(self.plan.send_bytes.into()),
        };
        if bytes != moved.0 {
            *moved = (bytes, Instant::now());
        }
        match direction {
            Direction::ToServer => false,
            Direction::ToClient => bytes >= amount || self.rest_is_lost(*moved),
            Direction::Both => bytes >= amount.saturating_mul(2) || self.rest_is_lost(*moved),
        }
    }

    /// Whether what is missing of an amount of datagrams cannot be under way any more: the server, which has sent all of it, has
    /// no word for that.
    fn rest_is_lost(&self, (bytes, since): (u64, Instant)) -> bool {
        let bits_per_second = match self.plan.pace {
            Some(Pace::Kernel { bits_per_second } | Pace::Spread { bits_per_second }) => bits_per_second,
            _ => u64::MAX,
        };
        let gap = f64::from(self.plan.send_bytes) * 8.0 / bits_per_second.max(1) as f64;
        self.plan.transport == Transport::Udp
            && bytes > 0
            && since.elapsed() > MISSING + self.round_trip
            && since.elapsed().as_secs_f64() > gap * 4.0
    }

    /// Waits until the other kernel has what was sent: iperf3's server stops reading when it is told of the end.
    fn wait_for_tail(&self, sending: &[TcpStream]) {
        let deadline = Instant::now() + TAIL.min(self.patience);
        let is_under_way = |stream: &TcpStream| socket::unacknowledged(stream).is_ok_and(|bytes| bytes > 0);
        while sending.iter().any(is_under_way) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Datagrams, and what the server has to read yet.
        std::thread::sleep(self.round_trip.clamp(Duration::from_millis(5), Duration::from_millis(500)));
    }
}
