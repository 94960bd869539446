//! The receivers: sockets, and the pinned threads that read one or several of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::Lab;
use linux::epoll::Epoll;
use linux::udp::{Batch, ReceiverSpec, UdpReceiver};
use linux::{SyscallError, clock, cpu, limits};
use measure::delay::Delays;
use measure::window::{Arrival, Window};
use template::stamp;

use super::arena::{Blueprint, SOURCE_PORT};
use super::reading::{Reader, Wait};
use super::setting::{self, FlowSetting};
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

/// What is known of a thread from outside.
struct Handle {
    /// Its sockets.
    places: Vec<Place>,
    received: Arc<Count>,
    found_empty: Arc<Count>,
    asked: Arc<AtomicBool>,
    answers: Receiver<Result<Vec<Tally>, SyscallError>>,
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
    /// Receive buffer as the kernel counts it; none of a queue of the device in user space.
    pub(crate) buffer_bytes: Option<usize>,
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
    /// What the socket had no room for or refused; none where that is not counted for each.
    pub(crate) drops: Option<u64>,
    /// CPU time of the thread; its part in proportion to the packets where the thread has several sockets.
    pub(crate) cpu_ns: Option<u64>,
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
    /// Binds a socket for each port but the closed ones, in the system under test, and starts the threads that read them, on the
    /// receivers' CPUs in turn: one for each socket, or one for all of a CPU.
    ///
    /// # Errors
    /// Where a socket cannot be bound or a thread not be started or pinned.
    pub(crate) fn start(lab: &Lab, blueprint: &Blueprint) -> Result<Self> {
        let (setting, cpus) = (&blueprint.setting, &blueprint.receiver_cpus);
        let ports = setting.port_count() - blueprint.closed_ports;
        limits::raise_open_files(u64::from(ports * setting.sockets_per_port) + OTHER_FILES);
        let mut sockets = Vec::new();
        for port in 0..ports {
            for socket in 0..setting.sockets_per_port {
                let cpu = cpus[sockets.len() % cpus.len()];
                let receiver = lab
                    .netns(SYS)
                    .run(|| open(blueprint, port))?
                    .with_context(|| format!("open the socket of port {}", setting::port(port)))?;
                let place = Place { port, socket, cpu, buffer_bytes: Some(receiver.receive_buffer_bytes()) };
                sockets.push((place, receiver));
            }
        }
        let mut receivers = Self { threads: Vec::new(), stop: Arc::new(AtomicBool::new(false)) };
        match setting.reader.of(setting, cpus.len()) {
            Reader::Epoll => {
                let mut of_cpus: BTreeMap<usize, Vec<(Place, UdpReceiver)>> = BTreeMap::new();
                for (place, receiver) in sockets {
                    of_cpus.entry(place.cpu).or_default().push((place, receiver));
                }
                for of_cpu in of_cpus.into_values() {
                    let mut epoll = Epoll::new()?;
                    for (number, (_, receiver)) in of_cpu.iter().enumerate() {
                        epoll.add(receiver, number as u32)?;
                    }
                    receivers.add(of_cpu, Some(epoll), setting)?;
                }
            }
            Reader::Threads | Reader::Auto => {
                for socket in sockets {
                    receivers.add(vec![socket], None, setting)?;
                }
            }
        }
        Ok(receivers)
    }

    /// Starts the thread of these sockets, which are of one CPU; one that has several waits for them by `epoll`.
    fn add(
        &mut self,
        sockets: Vec<(Place, UdpReceiver)>,
        epoll: Option<Epoll>,
        setting: &FlowSetting,
    ) -> Result<()> {
        let streams = Streams::of(setting);
        let (received, found_empty) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let asked = Arc::new(AtomicBool::new(false));
        let (answer, answers) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let (places, sockets): (Vec<Place>, Vec<Socket>) = sockets
            .into_iter()
            .map(|(place, receiver)| (place, Socket { receiver, tally: Tally::new(streams), drops: 0 }))
            .unzip();
        let work = Work {
            sockets,
            epoll,
            batch: setting.batch as usize,
            wait: setting.wait,
            streams,
            received: Arc::clone(&received),
            found_empty: Arc::clone(&found_empty),
            asked: Arc::clone(&asked),
            stop: Arc::clone(&self.stop),
            answer,
            cpu_ns: 0,
        };
        let first = places.first().copied().context("a receiver without a socket")?;
        let thread = thread::Builder::new()
            .name(format!("receive-{}", setting::port(first.port)))
            .spawn(move || {
                if ready.send(cpu::pin(first.cpu)).is_ok() {
                    work.run();
                }
            })
            .with_context(|| format!("start the thread of port {}", setting::port(first.port)))?;
        self.threads.push(Handle { places, received, found_empty, asked, answers, thread: Some(thread) });
        is_ready
            .recv()
            .context("a receiver's thread ended at its start")?
            .with_context(|| format!("keep a receiver on CPU {}", first.cpu))
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

    /// What each socket's reader counted since it was last asked, ports in order.
    ///
    /// # Errors
    /// Where a receiver failed, or gives no answer.
    pub(crate) fn collect(&self) -> Result<Vec<(Place, Tally)>> {
        self.threads.iter().for_each(|handle| handle.asked.store(true, Ordering::Release));
        let mut all = Vec::new();
        for handle in &self.threads {
            all.extend(handle.places.iter().copied().zip(handle.answer()?));
        }
        all.sort_by_key(|(place, _)| (place.port, place.socket));
        Ok(all)
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
    fn answer(&self) -> Result<Vec<Tally>> {
        let Some(first) = self.places.first() else { return Ok(Vec::new()) };
        let port = setting::port(first.port);
        match self.answers.recv_timeout(ANSWER) {
            Ok(tallies) => tallies.with_context(|| format!("receive on port {port}")),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the receiver of port {port} on CPU {} gives no answer in {ANSWER:?}", first.cpu)
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
    sockets: Vec<Socket>,
    /// Waits for all of them; none where there is one, which is waited for in the receiving call.
    epoll: Option<Epoll>,
    /// Messages of a call.
    batch: usize,
    wait: Wait,
    streams: Streams,
    received: Arc<Count>,
    found_empty: Arc<Count>,
    asked: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    answer: SyncSender<Result<Vec<Tally>, SyscallError>>,
    /// CPU time until the last answer.
    cpu_ns: u64,
}

/// A socket, and what was read from it.
struct Socket {
    receiver: UdpReceiver,
    tally: Tally,
    /// Drops until the last answer.
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

    /// Takes what is there, or sleeps for a while.
    fn step(&mut self) -> Result<(), SyscallError> {
        let pass = match (self.wait, &mut self.epoll) {
            (Wait::Sleep, None) => self.take_each(|receiver| receiver.recv_wait(NAP))?,
            (Wait::Sleep, Some(_)) => self.wait_and_take()?,
            (Wait::Nap | Wait::Spin, _) => self.take_each(UdpReceiver::recv_batch)?,
        };
        if pass.datagrams == 0 {
            self.found_empty.0.fetch_add(1, Ordering::Release);
        }
        match self.wait {
            Wait::Nap if !pass.is_full => thread::sleep(SHORT_NAP),
            Wait::Spin if pass.datagrams == 0 => thread::yield_now(),
            _ => {}
        }
        Ok(())
    }

    /// A batch of each socket.
    fn take_each(
        &mut self,
        receive: impl Fn(&mut UdpReceiver) -> Result<Batch, SyscallError>,
    ) -> Result<Pass, SyscallError> {
        let mut pass = Pass::default();
        for socket in &mut self.sockets {
            let batch = receive(&mut socket.receiver)?;
            pass.add(batch, self.batch);
            socket.note(batch, self.streams);
        }
        self.received.0.fetch_add(pass.datagrams, Ordering::Release);
        Ok(pass)
    }

    /// Waits until a socket has something, and takes a batch of each that has. One that has more then is told of again, behind the
    /// others: no flow keeps the thread from the rest.
    fn wait_and_take(&mut self) -> Result<Pass, SyscallError> {
        let mut pass = Pass::default();
        let Some(epoll) = &mut self.epoll else { return Ok(pass) };
        for number in epoll.wait(NAP)? {
            let Some(socket) = self.sockets.get_mut(number as usize) else { continue };
            let batch = socket.receiver.recv_batch()?;
            pass.add(batch, self.batch);
            socket.note(batch, self.streams);
        }
        self.received.0.fetch_add(pass.datagrams, Ordering::Release);
        Ok(pass)
    }

    /// What was counted since the last time, of each socket.
    fn take(&mut self) -> Result<Vec<Tally>, SyscallError> {
        let now_ns = clock::thread_cpu_ns();
        let spent_ns = now_ns - std::mem::replace(&mut self.cpu_ns, now_ns);
        let streams = self.streams;
        let tallies = self.sockets.iter_mut().map(|socket| socket.take(streams));
        let mut tallies = tallies.collect::<Result<Vec<_>, _>>()?;
        share_out(spent_ns, &mut tallies);
        Ok(tallies)
    }
}

/// What one look at the sockets brought.
#[derive(Debug, Clone, Copy, Default)]
struct Pass {
    datagrams: u64,
    /// Whether a call was full, so that there may be more.
    is_full: bool,
}

impl Pass {
    fn add(&mut self, batch: Batch, most: usize) {
        self.datagrams += batch.datagrams as u64;
        self.is_full |= batch.slots >= most;
    }
}

impl Socket {
    fn note(&mut self, batch: Batch, streams: Streams) {
        if batch.datagrams == 0 {
            return;
        }
        let now = clock::monotonic_ns();
        for slot in 0..batch.slots {
            for payload in self.receiver.segments(slot) {
                self.tally.note(payload, now, streams);
            }
        }
        self.tally.packets += batch.datagrams as u64;
        self.tally.calls += 1;
    }

    fn take(&mut self, streams: Streams) -> Result<Tally, SyscallError> {
        let drops = self.receiver.drops()?;
        let tally = std::mem::replace(&mut self.tally, Tally::new(streams));
        Ok(Tally { drops: Some(drops - std::mem::replace(&mut self.drops, drops)), ..tally })
    }
}

/// Divides a thread's time among its sockets: in proportion to their packets, or evenly where there were none. The sum is kept.
fn share_out(spent_ns: u64, tallies: &mut [Tally]) {
    let all: u64 = tallies.iter().map(|tally| tally.packets).sum();
    let (mut left_ns, mut left) = (spent_ns, if all == 0 { tallies.len() as u64 } else { all });
    for tally in tallies {
        let weight = if all == 0 { 1 } else { tally.packets };
        if weight > 0 {
            let own_ns = (u128::from(left_ns) * u128::from(weight) / u128::from(left)) as u64;
            tally.cpu_ns = Some(own_ns);
            left_ns -= own_ns;
            left -= weight;
        }
    }
}

impl Tally {
    pub(super) fn new(streams: Streams) -> Self {
        Self {
            packets: 0,
            calls: 0,
            unstamped: 0,
            drops: None,
            cpu_ns: None,
            flows: vec![FlowTally::default(); streams.per_port()],
            delays: Delays::new(),
        }
    }

    pub(super) fn note(&mut self, payload: &[u8], now_ns: u64, streams: Streams) {
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
    fn the_time_of_a_thread_is_divided_among_its_sockets() {
        let streams = Streams { turn: Turn::Flows, ports: 1, streams: 1 };
        let of = |spent, packets: &[u64]| {
            let one = |&packets| Tally { packets, ..Tally::new(streams) };
            let mut tallies: Vec<Tally> = packets.iter().map(one).collect();
            share_out(spent, &mut tallies);
            tallies.iter().map(|tally| tally.cpu_ns.unwrap_or(0)).collect::<Vec<_>>()
        };
        assert_eq!(of(1_000, &[3, 0, 1]), [750, 0, 250]);
        assert_eq!(of(10, &[1, 1, 1]).iter().sum::<u64>(), 10);
        assert_eq!(of(10, &[0, 0]), [5, 5]);
        assert_eq!(of(u64::MAX, &[u64::MAX / 2, 5])[0], u64::MAX - of(u64::MAX, &[u64::MAX / 2, 5])[1]);
        assert!(of(7, &[]).is_empty());
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
