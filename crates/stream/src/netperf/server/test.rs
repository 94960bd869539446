//! One test: its data socket, its run, and what came of it.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use linux::{SyscallError, socket};

use super::asked::{Asked, DATAGRAM_BYTES};
use super::{CPU_RATE, ServeError, told, width};
use crate::engine::prepare::Applied;
use crate::engine::{self, Control, End, Endpoint, EngineError, Flow, Marks, Role, Settings};
use crate::limits::{Halt, Limits};
use crate::netperf::arrange::{accept_from, bound};
use crate::netperf::control::{Connection, PATIENCE, readable};
use crate::netperf::told::{Shares, fill, fill_cpu};
use crate::netperf::wire::{CPU_METHOD_PROC_STAT, kind, omni, tcp_stream, text_field};
use crate::outcome::Side;
use crate::plan::Work;

/// What netserver grants a test beyond its length (netlib.h, `PAD_TIME`).
const PAD: Duration = Duration::from_secs(4);

/// A data socket that waits for the client.
#[derive(Debug)]
pub(super) struct Arranged {
    socket: Waiting,
    port: u16,
    applied: Applied,
    /// As the plan has it, with what was left to this end filled in.
    send_bytes: u32,
    receive_bytes: u32,
}

#[derive(Debug)]
enum Waiting {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

pub(super) fn arrange(asked: &Asked, at: std::net::SocketAddr) -> Result<Arranged, SyscallError> {
    let bound = bound(asked.plan.transport, &asked.plan.options.server, at)?;
    let port = bound.at.port();
    let (socket, applied) = if asked.datagrams() {
        let (socket, applied) = bound.connected_to(asked.peer)?;
        (Waiting::Udp(socket), applied)
    } else {
        let (listener, applied) = bound.listen()?;
        (Waiting::Tcp(listener), applied)
    };
    let most = if asked.datagrams() { DATAGRAM_BYTES } else { u32::MAX };
    let or = |asked: u32, buffer: u32| if asked > 0 { asked } else { buffer.min(most) };
    let (send_bytes, receive_bytes) = match asked.plan.work {
        Work::Bulk { .. } => (
            or(asked.plan.send_bytes, applied.send_buffer_bytes),
            // A receiver of datagrams has room for any of them.
            if asked.plan.receive_bytes > 0 {
                asked.plan.receive_bytes
            } else {
                applied.receive_buffer_bytes
            },
        ),
        Work::Transactions { request_bytes, response_bytes, .. } => (response_bytes, request_bytes),
        Work::Connections { exchange } => {
            let (request, response) = exchange.unwrap_or_default();
            (response, request)
        }
    };
    Ok(Arranged { socket, port, applied, send_bytes, receive_bytes })
}

impl Arranged {
    /// What is told of it. What the server does not do is told as it was asked.
    pub(super) fn response(&self, request: &omni::Request, asked: &Asked) -> omni::Response {
        let mut response = omni::Response {
            kind: kind::OMNI_RESPONSE,
            recv_buf_size: told(self.applied.receive_buffer_bytes),
            receive_size: request.receive_size,
            recv_width: request.recv_width as i32,
            send_buf_size: told(self.applied.send_buffer_bytes),
            send_size: request.send_size,
            send_width: request.send_width as i32,
            flags: request.flags & (omni::NO_DELAY | omni::MEASURE_CPU),
            cpu_rate: if asked.cpu { CPU_RATE } else { 0.0 },
            so_rcvavoid: request.so_rcvavoid,
            so_sndavoid: request.so_sndavoid,
            data_port: self.port.into(),
            socket_prio: request.socket_prio,
            socket_tos: request.socket_tos,
            ..Default::default()
        };
        let bulk = matches!(asked.plan.work, Work::Bulk { .. });
        let width = |buffer, message, asked: u32| match bulk {
            true => width(buffer, message, asked),
            false => (asked as i32).max(1),
        };
        if request.direction & omni::TRANSMIT != 0 {
            response.send_size = told(self.send_bytes);
            response.send_width = width(self.applied.send_buffer_bytes, self.send_bytes, request.send_width);
        }
        if request.direction & omni::RECEIVE != 0 {
            response.receive_size = told(self.receive_bytes);
            response.recv_width =
                width(self.applied.receive_buffer_bytes, self.receive_bytes, request.recv_width);
        }
        response
    }

    /// The same for TCP_SENDFILE.
    pub(super) fn stream_response(
        &self,
        request: &tcp_stream::Request,
        asked: &Asked,
    ) -> tcp_stream::Response {
        tcp_stream::Response {
            kind: kind::TCP_STREAM_RESPONSE,
            recv_buf_size: told(self.applied.receive_buffer_bytes),
            receive_size: told(self.receive_bytes),
            no_delay: request.no_delay,
            measure_cpu: asked.cpu.into(),
            send_buf_size: told(self.applied.send_buffer_bytes),
            data_port_number: self.port.into(),
            cpu_rate: if asked.cpu { CPU_RATE } else { 0.0 },
            so_rcvavoid: request.so_rcvavoid,
            so_sndavoid: request.so_sndavoid,
            ..Default::default()
        }
    }
}

/// What came of a test.
#[derive(Debug)]
pub(super) struct Ran {
    side: Side,
    seconds: f32,
    shares: Option<Shares>,
    /// At the end, bytes: the kernel tunes them while data flow.
    send_buffer_bytes: u32,
    receive_buffer_bytes: u32,
    congestion: Option<String>,
}

/// Waits for the client's data and runs the test to its end.
pub(super) fn run(
    arranged: Arranged,
    asked: &Asked,
    connection: &Connection,
    limits: &Limits,
    halt: &Halt,
) -> Result<Ran, ServeError> {
    let peer = connection.peer;
    let begin = Instant::now();
    let mut gone = false;
    let mut give_up = || {
        gone = gone || halt.is_halted() || connection.is_gone();
        gone || begin.elapsed() >= limits.idle
    };
    let mut plan = asked.plan.clone();
    (plan.send_bytes, plan.receive_bytes) = (arranged.send_bytes, arranged.receive_bytes);
    let mut kept = None;
    let endpoint = match arranged.socket {
        Waiting::Udp(socket) => {
            while !give_up() && !readable(&socket, PATIENCE) {}
            Endpoint::Udp { socket, peer: Some(asked.peer) }
        }
        Waiting::Tcp(listener) if asked.role == Role::Accept => {
            while !give_up() && !readable(&listener, PATIENCE) {}
            Endpoint::Listener(listener)
        }
        Waiting::Tcp(listener) => {
            let accepted = accept_from(&listener, asked.peer.ip(), &mut give_up)
                .map_err(|source| ServeError::Arrange { peer, source })?;
            let Some(stream) = accepted else { return Err(ServeError::Vanished { peer }) };
            kept = stream.try_clone().ok();
            Endpoint::Tcp(stream)
        }
    };
    if gone {
        return Err(ServeError::Vanished { peer });
    }
    let flow = Flow { endpoint, role: asked.role, marks: Marks::None };
    let settings = Settings {
        plan: &plan,
        end: End::Server,
        interval: None,
        cpu: asked.cpu,
        give_up_after: limits.idle,
        on_interval: None,
    };
    let (side, moving) = run_watched(flow, &settings, asked, connection, limits, halt)?;
    Ok(ran(side, moving, &arranged.applied, kept.as_ref()))
}

fn ran(side: Side, moving: Duration, applied: &Applied, kept: Option<&TcpStream>) -> Ran {
    let wall = Duration::from_nanos(side.wall_ns);
    let buffer = |of: fn(&TcpStream) -> Result<u32, SyscallError>, applied: u32| {
        kept.and_then(|stream| of(stream).ok()).unwrap_or(applied)
    };
    Ran {
        seconds: wall.min(moving).as_secs_f32(),
        shares: Shares::of(side.cpu.as_ref()),
        send_buffer_bytes: buffer(socket::send_buffer, applied.send_buffer_bytes),
        receive_buffer_bytes: buffer(socket::receive_buffer, applied.receive_buffer_bytes),
        congestion: kept.and_then(|stream| socket::congestion(stream).ok()),
        side,
    }
}

impl Ran {
    pub(super) fn fill(&self, results: &mut omni::Results, congestion: bool) {
        fill(results, &self.side, self.seconds);
        results.send_buf_size = told(self.send_buffer_bytes);
        results.recv_buf_size = told(self.receive_buffer_bytes);
        if let Some(shares) = &self.shares {
            fill_cpu(results, shares);
        }
        if let Some(name) = self.congestion.as_ref().filter(|_| congestion) {
            results.cong_control = text_field(name);
        }
    }

    pub(super) fn fill_stream(&self, results: &mut tcp_stream::Results) {
        let received = crate::netperf::told::Totals::of(&self.side).received;
        results.bytes_received = received.bytes as f64;
        results.recv_calls = received.messages as u32;
        results.elapsed_time = self.seconds;
        if let Some(shares) = &self.shares {
            results.cpu_util = shares.util;
            results.cpu_method = CPU_METHOD_PROC_STAT as i32;
            results.num_cpus = told(shares.cpus);
        }
    }
}

/// Runs the flow on a thread of its own and watches it from here. Beside what was counted: how long something moved, where it
/// was ended because nothing did any more.
fn run_watched(
    flow: Flow,
    settings: &Settings<'_>,
    asked: &Asked,
    connection: &Connection,
    limits: &Limits,
    halt: &Halt,
) -> Result<(Side, Duration), ServeError> {
    let peer = connection.peer;
    let control = Control::new();
    control.begin();
    let (done, finished) = mpsc::channel();
    thread::scope(|scope| {
        let running = &control;
        let engine = move || {
            // The watch below is gone only if this program is.
            let _ = done.send(engine::run(vec![flow], settings, running));
        };
        let started = thread::Builder::new().name("netperf-data".into()).spawn_scoped(scope, engine);
        started.map_err(|error| ServeError::Run { peer, source: EngineError::Thread(error) })?;
        let mut watch = Watch::new(asked, limits);
        let side = loop {
            match finished.recv_timeout(Duration::from_millis(20)) {
                Ok(side) => break side,
                Err(mpsc::RecvTimeoutError::Disconnected) => break Err(EngineError::Panicked),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if halt.is_halted() || connection.is_gone() {
                watch.vanished = true;
            }
            if watch.vanished || watch.is_enough(control.bytes(), control.units()) {
                control.stop();
            }
        };
        if watch.vanished {
            return Err(ServeError::Vanished { peer });
        }
        let side = side.map_err(|source| ServeError::Run { peer, source })?;
        Ok((side, watch.moving()))
    })
}

/// When a test is over that its client cannot end: datagrams may be lost, and a connection that was not opened is no sign.
struct Watch {
    begin: Instant,
    last: Instant,
    moved: (u64, u64),
    /// Whether the end of data says nothing, or may be lost.
    silent_end: bool,
    length: Option<Duration>,
    units: Option<u64>,
    longest: Duration,
    vanished: bool,
    ended_by_watch: bool,
}

impl Watch {
    fn new(asked: &Asked, limits: &Limits) -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            last: now,
            moved: (0, 0),
            silent_end: asked.datagrams() || asked.role == Role::Accept,
            length: asked.length,
            units: asked.units,
            longest: limits.duration.saturating_add(PAD),
            vanished: false,
            ended_by_watch: false,
        }
    }

    fn is_enough(&mut self, bytes: u64, units: u64) -> bool {
        let now = Instant::now();
        if self.moved != (bytes, units) {
            (self.moved, self.last) = ((bytes, units), now);
        }
        let elapsed = now - self.begin;
        let by_length = self.silent_end
            && self.length.is_some_and(|length| {
                let over = elapsed >= length && now - self.last >= self.quiet();
                over || elapsed >= length.saturating_add(PAD)
            });
        let by_units = self.units.is_some_and(|wanted| units >= wanted) && now - self.last >= self.quiet();
        self.ended_by_watch |= by_length || by_units;
        self.ended_by_watch || elapsed >= self.longest
    }

    /// How long nothing must move after a test for it to be over: some transactions, so that a long way is allowed for.
    fn quiet(&self) -> Duration {
        let each = (self.last - self.begin) / u32::try_from(self.moved.1.max(1)).unwrap_or(u32::MAX);
        (each * 5).clamp(Duration::from_millis(200), Duration::from_secs(2))
    }

    fn moving(&self) -> Duration {
        if self.ended_by_watch { self.last - self.begin } else { Duration::MAX }
    }
}
