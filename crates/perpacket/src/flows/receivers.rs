//! The receivers: a socket and a pinned thread each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::Lab;
use linux::udp::{ReceiverSpec, UdpReceiver};
use linux::{SyscallError, clock, cpu, limits};
use measure::delay::Delays;
use measure::window::{Arrival, Window};
use template::stamp;

use super::arena::{Blueprint, SOURCE_PORT};
use super::setting::{self, FlowSetting, Wait};
use crate::paths::SYS;
use crate::paths::topology::{IP_G0, IP_IN0};
use crate::stop::Deadline;
use crate::trial::sender::Turn;

/// How long a receiver sleeps where nothing comes: then it looks whether it is asked for something.
const NAP: Duration = Duration::from_millis(10);
/// How long one sleeps that is not to be woken up.
const SHORT_NAP: Duration = Duration::from_micros(100);
/// How long a receiver may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of a datagram that are kept: those of a stamp, and some more.
const KEPT_BYTES: usize = 64;
/// Numbers that a flow's window remembers: beyond what sockets, backlogs and rings hold of one.
const WINDOW: u32 = 1 << 14;
/// Files beside the sockets: namespaces, counters, programs.
const OTHER_FILES: u64 = 256;

/// All receivers of a lab.
pub(crate) struct Receivers {
    threads: Vec<Handle>,
    stop: Arc<AtomicBool>,
}

/// What is known of a receiver from outside.
struct Handle {
    place: Place,
    received: Arc<Count>,
    found_empty: Arc<Count>,
    asked: Arc<AtomicBool>,
    answers: Receiver<Result<Tally, SyscallError>>,
    thread: Option<JoinHandle<()>>,
}

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Count(AtomicU64);

/// Which socket this is, and where it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Number of the port.
    pub(crate) port: u32,
    /// Number among the sockets of this port.
    pub(crate) socket: u32,
    pub(crate) cpu: usize,
    /// Receive buffer as the kernel counts it.
    pub(crate) buffer_bytes: usize,
}

/// What a receiver counted since it was last asked.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    /// Datagrams.
    pub(crate) packets: u64,
    /// Calls that brought some.
    pub(crate) calls: u64,
    /// Datagrams without a stamp.
    pub(crate) unstamped: u64,
    /// What the socket had no room for or refused.
    pub(crate) drops: u64,
    /// CPU time of the thread.
    pub(crate) cpu_ns: u64,
    /// The flows of this port in the order of their numbers, where packets have stamps.
    pub(crate) flows: Vec<FlowTally>,
    /// One-way delays, where packets have stamps.
    pub(crate) delays: Delays,
}

/// One flow at one socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowTally {
    pub(crate) received: u64,
    pub(crate) reordered: u64,
    /// None before the first packet.
    window: Option<Window>,
}

/// How packets tell which flow is theirs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) turn: Turn,
    pub(crate) ports: u32,
    /// Flows that are told apart.
    pub(crate) streams: u32,
}

impl Streams {
    /// Those of a setting.
    pub(crate) fn of(setting: &FlowSetting) -> Self {
        let turn = if setting.is_flood() { Turn::Sources } else { Turn::Flows };
        Self { turn, ports: setting.port_count(), streams: setting.streams() }
    }

    /// The flow of a frame's number, and the packet's number in it.
    fn place(self, frame: u64) -> (u32, u64) {
        let packet = self.turn.packet(frame, self.ports as u16);
        let streams = u64::from(self.streams);
        ((packet % streams) as u32, packet / streams)
    }

    /// Where the flow stands among those of its port.
    fn local(self, flow: u32) -> usize {
        (flow / self.ports) as usize
    }

    /// The flow at a place among those of a port.
    pub(crate) fn flow(self, port: u32, local: usize) -> u32 {
        local as u32 * self.ports + port
    }

    /// Flows of each port.
    fn per_port(self) -> usize {
        (self.streams / self.ports) as usize
    }
}

impl Receivers {
    /// Binds a socket for each port but the closed ones, in the system under test, and starts their threads on the receivers' CPUs
    /// in turn.
    ///
    /// # Errors
    /// Where a socket cannot be bound or a thread not be started or pinned.
    pub(crate) fn start(lab: &Lab, blueprint: &Blueprint) -> Result<Self> {
        let (setting, cpus) = (&blueprint.setting, &blueprint.receiver_cpus);
        let ports = setting.port_count() - blueprint.closed_ports;
        limits::raise_open_files(u64::from(ports * setting.sockets_per_port) + OTHER_FILES);
        let streams = Streams::of(setting);
        let mut receivers = Self { threads: Vec::new(), stop: Arc::new(AtomicBool::new(false)) };
        for port in 0..ports {
            for socket in 0..setting.sockets_per_port {
                let cpu = cpus[receivers.threads.len() % cpus.len()];
                let receiver = lab
                    .netns(SYS)
                    .run(|| open(blueprint, port))?
                    .with_context(|| format!("open the socket of port {}", setting::port(port)))?;
                let place = Place { port, socket, cpu, buffer_bytes: receiver.receive_buffer_bytes() };
                receivers.add(receiver, place, streams, setting.wait)?;
            }
        }
        Ok(receivers)
    }

    fn add(&mut self, receiver: UdpReceiver, place: Place, streams: Streams, wait: Wait) -> Result<()> {
        let (received, found_empty) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let asked = Arc::new(AtomicBool::new(false));
        let (answer, answers) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let work = Work {
            receiver,
            wait,
            streams,
            tally: Tally::new(streams),
            received: Arc::clone(&received),
            found_empty: Arc::clone(&found_empty),
            asked: Arc::clone(&asked),
            stop: Arc::clone(&self.stop),
            answer,
            cpu_ns: 0,
            drops: 0,
        };
        let cpu = place.cpu;
        let thread = thread::Builder::new()
            .name(format!("receive-{}", setting::port(place.port)))
            .spawn(move || {
                if ready.send(cpu::pin(cpu)).is_ok() {
                    work.run();
                }
            })
            .with_context(|| format!("start the thread of port {}", setting::port(place.port)))?;
        self.threads.push(Handle { place, received, found_empty, asked, answers, thread: Some(thread) });
        is_ready
            .recv()
            .context("a receiver's thread ended at its start")?
            .with_context(|| format!("keep a receiver on CPU {cpu}"))
    }

    /// Datagrams read so far by all, since the start.
    pub(crate) fn received(&self) -> u64 {
        self.threads.iter().map(|handle| handle.received.0.load(Ordering::Acquire)).sum()
    }

    /// Waits until each has found its socket empty, as long as that is to be expected: one that gets no CPU for a while still has
    /// packets.
    pub(crate) fn wait_until_empty(&self) {
        let found = |handle: &Handle| handle.found_empty.0.load(Ordering::Acquire);
        let before: Vec<u64> = self.threads.iter().map(found).collect();
        let deadline = Deadline::after(ANSWER);
        while self.threads.iter().zip(&before).any(|(handle, &before)| found(handle) == before) {
            if deadline.passed() {
                return;
            }
            thread::sleep(NAP / 2);
        }
    }

    /// What each counted since it was last asked.
    ///
    /// # Errors
    /// Where a receiver failed, or gives no answer.
    pub(crate) fn collect(&self) -> Result<Vec<(Place, Tally)>> {
        self.threads.iter().for_each(|handle| handle.asked.store(true, Ordering::Release));
        self.threads.iter().map(|handle| Ok((handle.place, handle.answer()?))).collect()
    }
}

impl Drop for Receivers {
    /// Lets the threads end, and waits for that.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.iter_mut().filter_map(|handle| handle.thread.take()) {
            drop(thread.join()); // a panic was told on standard error
        }
    }
}

impl Handle {
    fn answer(&self) -> Result<Tally> {
        let port = setting::port(self.place.port);
        match self.answers.recv_timeout(ANSWER) {
            Ok(tally) => tally.with_context(|| format!("receive on port {port}")),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the receiver of port {port} on CPU {} gives no answer in {ANSWER:?}", self.place.cpu)
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the receiver of port {port} ended before its time"),
        }
    }
}

fn open(blueprint: &Blueprint, port: u32) -> Result<UdpReceiver, SyscallError> {
    let receiver = UdpReceiver::bind(&spec(&blueprint.setting, port))?;
    if blueprint.connected {
        receiver.connect((IP_G0, SOURCE_PORT).into())?;
    }
    Ok(receiver)
}

fn spec(setting: &FlowSetting, port: u32) -> ReceiverSpec {
    let address = SocketAddr::new(IP_IN0.into(), setting::port(port));
    ReceiverSpec {
        receive_buffer_bytes: setting.rcvbuf as usize,
        batch: setting.batch as usize,
        datagram_bytes: KEPT_BYTES,
        reuse_port: setting.sockets_per_port > 1,
        gro: setting.gro,
        busy_poll_us: (setting.busy_poll > 0).then_some(setting.busy_poll),
        prefer_busy_poll: setting.prefer_busy_poll,
        ..ReceiverSpec::new(address)
    }
}

/// All that a receiver's thread has.
struct Work {
    receiver: UdpReceiver,
    wait: Wait,
    streams: Streams,
    tally: Tally,
    received: Arc<Count>,
    found_empty: Arc<Count>,
    asked: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    answer: SyncSender<Result<Tally, SyscallError>>,
    /// CPU time and drops until the last answer.
    cpu_ns: u64,
    drops: u64,
}

impl Work {
    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let failed = self.step().err();
            if failed.is_none() && !self.asked.swap(false, Ordering::AcqRel) {
                continue;
            }
            let answer = match failed {
                Some(error) => Err(error),
                None => self.take(),
            };
            let is_over = answer.is_err();
            // Whoever asked may have gone.
            if self.answer.send(answer).is_err() || is_over {
                return;
            }
        }
    }

    /// Takes a batch, or sleeps for a while.
    fn step(&mut self) -> Result<(), SyscallError> {
        let batch = match self.wait {
            Wait::Sleep => self.receiver.recv_wait(NAP)?,
            Wait::Nap | Wait::Spin => self.receiver.recv_batch()?,
        };
        if batch.datagrams == 0 {
            self.found_empty.0.fetch_add(1, Ordering::Release);
            match self.wait {
                Wait::Sleep => {}
                Wait::Nap => thread::sleep(SHORT_NAP),
                Wait::Spin => thread::yield_now(),
            }
            return Ok(());
        }
        let now = clock::monotonic_ns();
        for slot in 0..batch.slots {
            for payload in self.receiver.segments(slot) {
                self.tally.note(payload, now, self.streams);
            }
        }
        self.tally.packets += batch.datagrams as u64;
        self.tally.calls += 1;
        self.received.0.fetch_add(batch.datagrams as u64, Ordering::Release);
        Ok(())
    }

    /// What was counted since the last time.
    fn take(&mut self) -> Result<Tally, SyscallError> {
        let (cpu_ns, drops) = (clock::thread_cpu_ns(), self.receiver.drops()?);
        let tally = std::mem::replace(&mut self.tally, Tally::new(self.streams));
        let cpu_spent = cpu_ns - std::mem::replace(&mut self.cpu_ns, cpu_ns);
        let dropped = drops - std::mem::replace(&mut self.drops, drops);
        Ok(Tally { cpu_ns: cpu_spent, drops: dropped, ..tally })
    }
}

impl Tally {
    fn new(streams: Streams) -> Self {
        Self {
            packets: 0,
            calls: 0,
            unstamped: 0,
            drops: 0,
            cpu_ns: 0,
            flows: vec![FlowTally::default(); streams.per_port()],
            delays: Delays::new(),
        }
    }

    fn note(&mut self, payload: &[u8], now_ns: u64, streams: Streams) {
        let Some(stamp) = stamp::read(payload) else {
            self.unstamped += 1;
            return;
        };
        self.delays.record_between(stamp.sent_ns, now_ns);
        let (flow, number) = streams.place(stamp.sequence);
        let Some(flow) = self.flows.get_mut(streams.local(flow)) else { return };
        flow.received += 1;
        let window = flow.window.get_or_insert_with(|| Window::with_size(WINDOW));
        if let Arrival::Reordered { .. } = window.record(number) {
            flow.reordered += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(tally: &mut Tally, frame: u64, sent_ns: u64, now_ns: u64, streams: Streams) {
        let bytes = stamp::Stamp { stream: 0, sequence: frame, sent_ns }.to_bytes();
        tally.note(&bytes, now_ns, streams);
    }

    #[test]
    fn packets_are_told_apart_by_their_flow() {
        let streams = Streams { turn: Turn::Flows, ports: 2, streams: 6 };
        assert_eq!(streams.per_port(), 3);
        // Packets of port 1 are those with an odd number: flows 1, 3, 5.
        let mut tally = Tally::new(streams);
        for packet in [1, 3, 5, 7, 13, 9, 19, 15, 11] {
            note(&mut tally, packet, 100, 150, streams);
        }
        let received: Vec<u64> = tally.flows.iter().map(|flow| flow.received).collect();
        let reordered: Vec<u64> = tally.flows.iter().map(|flow| flow.reordered).collect();
        assert_eq!((received, reordered), (vec![4, 3, 2], vec![0, 0, 0]));
        assert_eq!(streams.flow(1, 2), 5);
        note(&mut tally, 25, 0, 50, streams);
        note(&mut tally, 31, 0, 50, streams);
        note(&mut tally, 25 + 18, 0, 50, streams);
        note(&mut tally, 37, 0, 50, streams);
        assert_eq!(tally.flows[0].reordered, 1, "37 came after 43");
        tally.note(&[0; 18], 0, streams);
        assert_eq!((tally.unstamped, tally.delays.count()), (1, 13));
    }

    #[test]
    fn packets_of_a_flood_are_one_flow_a_port() {
        let streams = Streams { turn: Turn::Sources, ports: 4, streams: 4 };
        for packet in 0..100_u64 {
            let (flow, number) = streams.place(Turn::Sources.frame(packet, 4));
            assert_eq!((u64::from(flow), number), (packet % 4, packet / 4));
            assert_eq!(streams.local(flow), 0);
        }
    }
}
