//! One test, from its cookie to its results.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant, SystemTime};

use linux::socket;

use super::super::error::{Refusal, WireError};
use super::super::json::{self, Connected, Facts};
use super::super::line::Line;
use super::super::parameters::Parameters;
use super::super::plan::{VERSION, plan};
use super::super::report;
use super::super::results::{Results, ServerOutput};
use super::super::wire::{Cookie, PARAMETERS_BYTES_MAX, RESULTS_BYTES_MAX, State};
use super::{Event, SessionError, Shared, Ticketed};
use crate::engine::{self, Control, End, Endpoint, EngineError, Flow, Marks, Role, prepare};
use crate::limits::LimitError;
use crate::outcome::{Exchanged, Side};
use crate::plan::{Direction, Plan, SocketOptions, Transport, Until, Work};

/// How often the control connection is left alone to look at everything else.
const LOOK: Duration = Duration::from_millis(50);
/// Nothing has come for this long after the client ended its test: everything that was under way is here.
const QUIET: Duration = Duration::from_millis(20);
/// What is under way is waited for this long at most.
const TAIL: Duration = Duration::from_secs(1);
/// Over how long a rate above the limit is forgiven: what was in buffers comes at once.
const RATE_WINDOW: Duration = Duration::from_secs(2);

/// Runs a test to its end.
pub(super) fn run(
    shared: &Shared,
    line: &Line,
    cookie: Cookie,
    from: SocketAddr,
    streams: &Receiver<Ticketed>,
) -> Result<(), SessionError> {
    let limits = &shared.settings.limits;
    line.write_state(State::ParamExchange)?;
    let asked = Parameters::parse(&line.read_json(PARAMETERS_BYTES_MAX)?)?;
    if let Some(guard) = &shared.settings.guard {
        guard.admit(asked.auth_token.as_deref(), SystemTime::now())?;
    }
    asked.check().map_err(SessionError::Refused)?;
    let plan = plan(&asked, limits.duration.saturating_sub(Duration::from_secs(asked.omit)))
        .map_err(SessionError::Refused)?;
    limits.check(&plan)?;
    let arranged = arrange(shared, line, &plan, from, streams)?;
    let mut session =
        Session { shared, line, asked: &asked, plan: &plan, from, cookie, began_ms: Facts::now_ms() };
    let ended = session.test(arranged)?;
    shared.observe(&Event::Ended { from, plan: &plan, exchanged: &ended });
    Ok(())
}

/// Tells a client why its test cannot be, as far as it can be told.
pub(super) fn tell(line: &Line, error: &SessionError) {
    let number = match error {
        SessionError::Refused(refusal) => *refusal,
        SessionError::Limit(LimitError::Flows { .. }) => Refusal::Streams,
        SessionError::Limit(LimitError::Duration { .. }) => Refusal::ServerDuration,
        SessionError::Limit(LimitError::Rate { .. } | LimitError::NoRate { .. }) => Refusal::TotalRate,
        SessionError::Limit(LimitError::Memory { .. } | LimitError::Interval { .. }) => Refusal::BufferSize,
        SessionError::Auth(_) => Refusal::Authentication,
        SessionError::Engine(_) | SessionError::Kernel(_) => Refusal::CreateStream,
        SessionError::Wire(WireError::State(_) | WireError::Unexpected { .. }) => Refusal::Message,
        SessionError::Wire(WireError::Json(_) | WireError::Meaning(_) | WireError::Length { .. }) => {
            Refusal::Parameters
        }
        SessionError::Wire(error) if error.is_silence() => Refusal::Silence,
        SessionError::Halted => {
            let _ = line.write_state(State::ServerTerminate);
            return;
        }
        // There is nobody to be told, or it was told.
        SessionError::Wire(_)
        | SessionError::ClientEnded
        | SessionError::Busy
        | SessionError::Stray { .. } => return,
    };
    let _ = line.write_error(number as i32);
}

/// The sockets of a test, in the order of their ids.
struct Arranged {
    flows: Vec<Flow>,
    connected: Vec<Connected>,
    buffers: (Option<u32>, Option<u32>),
}

impl Shared {
    fn observe(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }
}

/// Asks the client for its streams and waits for them.
fn arrange(
    shared: &Shared,
    line: &Line,
    plan: &Plan,
    from: SocketAddr,
    streams: &Receiver<Ticketed>,
) -> Result<Arranged, SessionError> {
    let idle = shared.settings.limits.idle;
    let count = report::stream_count(plan);
    let marks = Marks::Iperf3 { wide: false };
    let mut arranged = Arranged {
        flows: Vec::with_capacity(count),
        connected: Vec::with_capacity(count),
        buffers: (None, None),
    };
    let role = |index| if report::client_sends(plan, index) { Role::Receive } else { Role::Send };
    let missing = || SessionError::Refused(Refusal::StreamAccept);
    if plan.transport == Transport::Udp {
        let local = line
            .stream()
            .local_addr()
            .map_err(|source| WireError::io("read the address of a connection", source))?;
        let options = &plan.options.server;
        let ip = |address: SocketAddr| address.ip().to_canonical();
        let turn = shared.hub.wait_for(ip(from), ip(local), options, count, idle).ok_or_else(missing)?;
        line.write_state(State::CreateStreams)?;
        let deadline = Instant::now() + idle;
        for index in 0..count {
            let socket = next_stream(line, turn.streams(), deadline)?;
            arranged.note(socket.local_addr().ok().zip(socket.peer_addr().ok()), &socket);
            let peer = socket.peer_addr().ok();
            arranged.flows.push(Flow { endpoint: Endpoint::Udp { socket, peer }, role: role(index), marks });
        }
    } else {
        line.write_state(State::CreateStreams)?;
        for (index, stream) in tcp_streams(line, streams, count, idle)?.into_iter().enumerate() {
            set_options(&plan.options.server, &stream, plan.transport)?;
            arranged.note(stream.local_addr().ok().zip(stream.peer_addr().ok()), &stream);
            arranged.flows.push(Flow {
                endpoint: Endpoint::Tcp(stream),
                role: role(index),
                marks: Marks::None,
            });
        }
    }
    Ok(arranged)
}

impl Arranged {
    fn note(&mut self, pair: Option<(SocketAddr, SocketAddr)>, socket: &impl std::os::fd::AsFd) {
        if let Some((local, remote)) = pair {
            self.connected.push(Connected { local, remote });
        }
        self.buffers = self.buffers.0.zip(self.buffers.1).map_or_else(
            || (socket::send_buffer(socket).ok(), socket::receive_buffer(socket).ok()),
            |(send, receive)| (Some(send), Some(receive)),
        );
    }
}

/// The next stream of a test. A client that leaves meanwhile is not waited for.
fn next_stream<T>(line: &Line, streams: &Receiver<T>, deadline: Instant) -> Result<T, SessionError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match streams.recv_timeout(left.min(LOOK)) {
            Ok(stream) => return Ok(stream),
            Err(RecvTimeoutError::Timeout) if left > LOOK => {
                if line.poll_state(Duration::ZERO)?.is_some() {
                    return Err(SessionError::ClientEnded);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(SessionError::Refused(Refusal::StreamAccept));
            }
        }
    }
}

/// The connections of a test in the order in which they were accepted, which is that of their ids.
fn tcp_streams(
    line: &Line,
    streams: &Receiver<Ticketed>,
    count: usize,
    within: Duration,
) -> Result<Vec<TcpStream>, SessionError> {
    let deadline = Instant::now() + within;
    let mut came = Vec::with_capacity(count);
    while came.len() < count {
        came.push(next_stream(line, streams, deadline)?);
    }
    came.sort_by_key(|(ticket, _)| *ticket);
    Ok(came.into_iter().map(|(_, stream)| stream).collect())
}

/// Sets what was asked for. A congestion control that this host does not have is not: iperf3 goes on without it, too.
fn set_options(
    options: &SocketOptions,
    stream: &TcpStream,
    transport: Transport,
) -> Result<(), SessionError> {
    if prepare::apply(options, stream, transport).is_err() {
        let without = SocketOptions { congestion: None, ..options.clone() };
        prepare::apply(&without, stream, transport)?;
    }
    Ok(())
}

struct Session<'a> {
    shared: &'a Shared,
    line: &'a Line,
    asked: &'a Parameters,
    plan: &'a Plan,
    from: SocketAddr,
    cookie: Cookie,
    began_ms: u64,
}

impl Session<'_> {
    /// Moves data until the client ends it, and exchanges results.
    fn test(&mut self, mut arranged: Arranged) -> Result<Exchanged, SessionError> {
        for flow in &mut arranged.flows {
            if let Marks::Iperf3 { wide } = &mut flow.marks {
                *wide = self.asked.wide_counters;
            }
        }
        let flows = std::mem::take(&mut arranged.flows);
        self.line.write_state(State::TestStart)?;
        self.began_ms = Facts::now_ms();
        let side = self.flow(flows)?;
        self.exchange(side, &arranged)
    }

    /// The plan for the engine: a server that sends goes on until the client ends the test, which it does by its own clock.
    fn engine_plan(&self) -> Plan {
        let mut plan = self.plan.clone();
        if let Until::Time(time) = plan.until {
            plan.until = Until::Time(time.saturating_add(self.shared.settings.limits.idle));
        }
        plan
    }

    fn flow(&self, flows: Vec<Flow>) -> Result<Side, SessionError> {
        let plan = self.engine_plan();
        let control = Control::new();
        let settings = engine::Settings {
            plan: &plan,
            end: End::Server,
            interval: Some(self.shared.settings.interval.unwrap_or(Duration::from_secs(1))),
            cpu: true,
            give_up_after: self.shared.settings.limits.idle,
            on_interval: None,
        };
        std::thread::scope(|scope| {
            let engine = std::thread::Builder::new()
                .name("iperf3-flows".into())
                .spawn_scoped(scope, || engine::run(flows, &settings, &control))
                .map_err(EngineError::Thread)?;
            let watched = self.watch(&control);
            control.stop();
            let side = join(engine)?;
            watched.map(|()| side)
        })
    }

    /// Begins the test and follows the control connection until the client ends it.
    fn watch(&self, control: &Control) -> Result<(), SessionError> {
        let idle = self.shared.settings.limits.idle;
        self.line.write_state(State::TestRunning)?;
        control.begin();
        let began = Instant::now();
        let mut over_since: Option<Instant> = None;
        loop {
            match self.line.poll_state(LOOK)? {
                None => {}
                Some(State::TestEnd) => {
                    self.wait_for_tail(control);
                    return Ok(());
                }
                Some(State::ClientTerminate | State::IperfDone) => return Err(SessionError::ClientEnded),
                Some(got) => {
                    return Err(WireError::Unexpected { got, expected: "the end of the test" }.into());
                }
            }
            if self.shared.halt.is_halted() {
                return Err(SessionError::Halted);
            }
            if began.elapsed() > self.longest() {
                return Err(SessionError::Refused(Refusal::Expired));
            }
            if self.is_too_fast(control.bytes(), began.elapsed()) {
                return Err(SessionError::Refused(Refusal::TotalRate));
            }
            // All flows have ended, by themselves or because nothing moved: the client has to say so soon.
            if control.is_over() && over_since.get_or_insert_with(Instant::now).elapsed() > idle {
                return Err(SessionError::Refused(Refusal::Silence));
            }
        }
    }

    /// How long the client may take from begin to end.
    fn longest(&self) -> Duration {
        let idle = self.shared.settings.limits.idle;
        self.asked.duration().unwrap_or(self.shared.settings.limits.duration).saturating_add(idle)
    }

    fn is_too_fast(&self, bytes: u64, elapsed: Duration) -> bool {
        let Some(limit) = self.shared.settings.limits.bits_per_second else { return false };
        let allowed = limit as f64 * 1.1 * (elapsed + RATE_WINDOW).as_secs_f64();
        bytes as f64 * 8.0 > allowed
    }

    /// What the client sent before it ended the test is still coming: it counts. iperf3's server drops it.
    fn wait_for_tail(&self, control: &Control) {
        if !matches!(self.plan.work, Work::Bulk { direction: Direction::ToServer, .. }) {
            return; // this end sends, and would never be quiet
        }
        wait_until_quiet(control, QUIET, TAIL);
    }

    fn exchange(&self, mut side: Side, arranged: &Arranged) -> Result<Exchanged, SessionError> {
        self.line.write_state(State::ExchangeResults)?;
        let told = Results::parse(self.line.read_json(RESULTS_BYTES_MAX)?)?;
        let client = report::side(&told, self.plan, &side, false).map_err(WireError::Meaning)?;
        report::add_tail(&mut side, &told);
        let sends = !matches!(self.plan.work, Work::Bulk { direction: Direction::ToServer, .. });
        let mut results = report::results(&side, self.plan, sends, self.asked.knows_omitted());
        let exchanged = Exchanged { client, server: side };
        if self.asked.get_server_output {
            results.server_output = Some(ServerOutput::Json(self.output(&exchanged, arranged)));
        }
        self.line.write_json(&results.to_json())?;
        self.line.write_state(State::DisplayResults)?;
        // The client has everything; whether it says goodbye does not matter.
        let _ = self.line.poll_state(self.shared.settings.limits.idle);
        Ok(exchanged)
    }

    fn output(&self, exchanged: &Exchanged, arranged: &Arranged) -> serde_json::Value {
        let facts = Facts {
            accepted_from: Some(self.from),
            cookie: self.cookie.as_str().to_owned(),
            unix_ms: self.began_ms,
            connected: arranged.connected.clone(),
            mss_bytes: socket::max_segment(self.line.stream()).ok(),
            send_buffer_bytes: arranged.buffers.0,
            receive_buffer_bytes: arranged.buffers.1,
            version: VERSION.to_owned(),
            system: Facts::of_this_host(),
            interval_seconds: Some(self.shared.settings.interval.map_or(1, |interval| interval.as_secs())),
            title: self.asked.title.clone(),
            extra_data: self.asked.extra_data.clone(),
            ..Facts::default()
        };
        json::document(&json::Test {
            end: End::Server,
            plan: self.plan,
            facts: &facts,
            exchanged,
            server_output: None,
        })
    }
}

/// Waits until nothing has come for a time, or all flows have ended; at most so long.
pub(in crate::iperf3) fn wait_until_quiet(control: &Control, quiet: Duration, at_most: Duration) {
    let began = Instant::now();
    let (mut bytes, mut since) = (control.bytes(), Instant::now());
    while !control.is_over() && since.elapsed() < quiet && began.elapsed() < at_most {
        std::thread::sleep(quiet / 10);
        let now = control.bytes();
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
}

/// What the engine's thread returned.
pub(in crate::iperf3) fn join(
    engine: ScopedJoinHandle<'_, Result<Side, EngineError>>,
) -> Result<Side, EngineError> {
    engine.join().map_err(|_| EngineError::Panicked)?
}
