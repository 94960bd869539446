//! A path of the kernel made real: its lab, the way in, and the end where its packets are counted.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::Lab;
use lab::counters::{Reader, Snapshot, diff};
use linux::bpf::{Map, MappedArray, Program, ProgramKind, ProgramSpec};
use linux::{clock, procfs};
use measure::ledger::{Count, Ledger};
use measure::slice::VoidReason;
use traffic::programs::{CONTROL_WORDS, Control, Destination, Injector, PADDING};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, Threads,
    TxRingBackend, TxRingSpec, UdpSockets, UdpSpec,
};

use crate::cell::{Cell, Factor, PathName, Setting};
use crate::ledger;
use crate::paths::{self, Ending, FAR, GEN, INGRESS, INGRESS_PEER, SYS};
use crate::scenario::Clock;
use crate::stop::Deadline;

use super::{Place, Rig, Shape, Timed, machine_busy_ns};

/// The most packets between two looks at their arrival where they wait in another CPU's backlog, whose limit
/// is 1,000 (net.core.netdev_max_backlog).
const MOVED_BURST: u64 = 500;
/// How long packets that were sent may take to arrive.
const ARRIVAL: Duration = Duration::from_millis(200);

/// How the sending program is made, beside what the cell says.
#[derive(Debug, Clone, Copy)]
struct Code {
    /// Whether it can be given extra work for each frame.
    burdened: bool,
    /// Instructions without effect in front of the others, which shift these in memory; as many at the end as make the sum the
    /// same. None at all where nothing is made anew.
    padding: Option<u8>,
}

/// A lab with packets going through it.
pub(crate) struct KernelRig {
    cell: Cell,
    /// One, or one for each of two variants.
    senders: Vec<Sender>,
    /// The one that sends now.
    active: usize,
    /// Frames that senders produced which are gone.
    produced_before: u64,
    burdened: bool,
    ending: Ending,
    clock: Clock,
    home: &'static str,
    counters: Vec<(&'static str, Reader, Snapshot)>,
    sent: u64,
    // Last, so that programs and sockets go before the namespaces that they are in.
    lab: Lab,
}

impl Code {
    fn new(burdened: bool, place: Option<Place>) -> Self {
        Self { burdened, padding: place.map(|place| (place.0 % (u32::from(PADDING) + 1)) as u8) }
    }
}

impl KernelRig {
    /// Builds the lab of a cell whose backend is resolved, and attaches everything to it.
    pub(crate) fn build(cell: &Cell, clock: Clock, burdened: bool, place: Option<Place>) -> Result<Self> {
        let (path, code) = (paths::of(cell.path)?, Code::new(burdened, place));
        let what = || format!("build the lab for {} at {} bytes", cell.path, cell.frame_bytes);
        let lab = Lab::build(&paths::lay(cell)?).with_context(what)?;
        let ending = path.open(&lab, cell).with_context(what)?;
        let sender = Sender::open(&lab, cell, code).with_context(what)?;
        let counters =
            [GEN, SYS, FAR].map(|role| open_counters(&lab, role)).into_iter().collect::<Result<_>>()?;
        Ok(Self {
            cell: cell.clone(),
            home: home(sender.backend.kind()),
            senders: vec![sender],
            active: 0,
            produced_before: 0,
            burdened,
            ending,
            clock,
            counters,
            sent: 0,
            lab,
        })
    }

    /// Whether this way in is a program of ours, with control words.
    pub(crate) fn has_program(kind: BackendKind) -> bool {
        matches!(kind, BackendKind::Inject | BackendKind::XdpLive)
    }

    /// Whether [`tune`](Rig::tune) reaches this factor.
    pub(crate) fn tunable(kind: BackendKind, factor: Factor) -> bool {
        factor.in_place() && (Self::has_program(kind) || matches!(factor, Factor::Nothing | Factor::Command))
    }

    /// Its namespaces and devices.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Moves the calling thread to where it must be to send. Done by each slice as well.
    pub(crate) fn enter(&self) -> Result<()> {
        Ok(self.lab.netns(self.home).enter()?)
    }

    /// One call of the way in: packets that it confirms. Where the injecting program ends them itself and counts them as
    /// arrived, it is no witness to its own sending: packets then are those that the kernel was asked for, in calls
    /// that it says it completed.
    fn send(&mut self, packets: u64) -> Result<u64> {
        let sent = self.senders[self.active].backend.send(packets)?;
        Ok(if self.ending.terminal.is_some() { sent.confirmed } else { sent.offered })
    }

    /// The clock's time in ns. Only differences mean something, and only those within a slice.
    fn now(&self) -> Result<u64> {
        match self.clock {
            Clock::Thread => {
                Ok(clock::thread_cpu_ns() + self.senders[self.active].backend.other_threads_cpu_ns())
            }
            Clock::Machine => machine_busy_ns(),
        }
    }

    /// Lets all senders go, and keeps what they produced.
    fn retire(&mut self) {
        self.produced_before += self.senders.drain(..).map(|sender| sender.produced()).sum::<u64>();
    }

    /// Packets seen at the end of the path since the lab was made.
    fn arrived(&mut self) -> Result<u64> {
        match &mut self.ending.terminal {
            Some(terminal) => terminal.count(),
            None => Ok(self.produced_before + self.senders.iter().map(Sender::produced).sum::<u64>()),
        }
    }

    /// Waits until `packets` have arrived, as long as that is to be expected. Where all are processed by
    /// the sending thread, they are there at the first look.
    fn wait_for(&mut self, packets: u64) -> Result<u64> {
        let mut arrived = self.arrived()?;
        if arrived >= packets {
            return Ok(arrived);
        }
        let deadline = Deadline::after(ARRIVAL);
        let mut last_change = deadline.elapsed();
        while arrived < packets && deadline.elapsed() - last_change < ARRIVAL / 4 && !deadline.passed() {
            thread::sleep(Duration::from_micros(50));
            let now = self.arrived()?;
            if now != arrived {
                (arrived, last_change) = (now, deadline.elapsed());
            }
        }
        Ok(arrived)
    }
}

impl Rig for KernelRig {
    fn shape(&self, packets: u64) -> Shape {
        let moved = (self.clock == Clock::Machine).then_some(MOVED_BURST);
        let most = [self.ending.burst, moved].into_iter().flatten().min().unwrap_or(u64::MAX);
        let calls = packets.div_ceil(most).max(1);
        Shape { calls: calls as u32, per_call: packets.div_ceil(calls) }
    }

    fn slice(&mut self, shape: Shape) -> Result<Timed> {
        self.enter()?;
        let arrived_before = self.arrived()?;
        let switches = procfs::thread_usage().involuntary_switches;
        let wall = clock::monotonic_ns();
        let cpu = self.now()?;
        let mut sent = 0;
        for _ in 0..shape.calls {
            sent += self.send(shape.per_call)?;
            if let Some(terminal) = &mut self.ending.terminal {
                terminal.consume()?;
            }
            if self.clock == Clock::Machine {
                self.wait_for(arrived_before + sent)?;
            }
        }
        sent += self.senders[self.active].backend.flush()?.confirmed;
        let cpu_ns = self.now()?.saturating_sub(cpu);
        let wall_ns = clock::monotonic_ns() - wall;
        self.sent += sent;
        let arrived = self.wait_for(arrived_before + sent)? - arrived_before;
        let switches = procfs::thread_usage().involuntary_switches - switches;
        let void = match () {
            () if sent < shape.packets() => Some(VoidReason::Incomplete),
            // More than were sent: some of an earlier slice were late, and could hide that as many are missing.
            () if arrived != sent => Some(VoidReason::Drops),
            () => None,
        };
        let switches = u32::try_from(switches).ok().filter(|_| self.cell.setting.threads == 1);
        Ok(Timed { shape, wall_ns, cpu_ns, involuntary_switches: switches, void })
    }

    fn ledger(&mut self) -> Result<Ledger> {
        let kind = self.senders[0].backend.kind();
        let seen_by = if self.ending.terminal.is_some() { seen_by(kind) } else { "asked of the kernel" };
        let sent = Count { packets: self.sent, seen_by: seen_by.into() };
        let mut book = Ledger::new(self.cell.path.name(), Some(self.cell.frame_bytes), sent);
        let packets = self.arrived()?;
        let seen_by =
            self.ending.terminal.as_ref().map_or("injecting program", |terminal| terminal.name()).into();
        book.received.push(Count { packets, seen_by });
        if book.closes() {
            return Ok(book);
        }
        if let Some(terminal) = &mut self.ending.terminal {
            ledger::add_known(&mut book, terminal.dropped()?);
        }
        let mut grown = ledger::Grown::new();
        for (role, reader, before) in &mut self.counters {
            grown.push((*role, diff(before, &reader.read()?)));
        }
        ledger::take_refusals(&mut grown, ledger::WayIn::of(&self.cell, kind));
        ledger::add_counters(&mut book, &grown, paths::about(self.cell.path).on_the_way);
        Ok(book)
    }

    fn tune(&mut self, setting: &Setting) {
        self.senders[self.active].tune(setting);
    }

    fn select(&mut self, arm: usize) {
        self.active = arm.min(self.senders.len() - 1);
    }

    /// The lab stays: what differs afterwards is where the programs lie in memory.
    fn reload(&mut self, cells: &[Cell; 2], b_first: bool, places: [Place; 2]) -> Result<()> {
        self.retire();
        let open = |cell: &Cell, place| Sender::open(&self.lab, cell, Code::new(self.burdened, Some(place)));
        let (first, second) =
            (open(&cells[usize::from(b_first)], places[0])?, open(&cells[usize::from(!b_first)], places[1])?);
        self.senders = if b_first { vec![second, first] } else { vec![first, second] };
        self.active = 0;
        Ok(())
    }

    fn enter_system(&self) -> Result<()> {
        Ok(self.lab.netns(SYS).enter()?)
    }
}

/// The counters of one namespace, and where they stand now.
fn open_counters(lab: &Lab, role: &'static str) -> Result<(&'static str, Reader, Snapshot)> {
    let mut reader = Reader::open(lab, role, &[])?;
    let now = reader.read()?;
    Ok((role, reader, now))
}

/// The namespace that a way in sends from.
fn home(kind: BackendKind) -> &'static str {
    if kind == BackendKind::Inject { SYS } else { GEN }
}

/// A way in, with the control words of its programs where it has some: one for each thread that sends.
struct Sender {
    backend: Box<dyn Backend>,
    controls: Vec<MappedArray>,
}

impl Sender {
    /// Opens the way in of a resolved cell, in the namespace that it sends from.
    fn open(lab: &Lab, cell: &Cell, code: Code) -> Result<Self> {
        let kind = cell.setting.backend.context("the backend is not resolved")?;
        let (own, control) = open_backend(lab, cell, kind, code, 0)?;
        let mut sender = Self { backend: own, controls: control.into_iter().collect() };
        let mut others = Vec::new();
        for (thread, &cpu) in cell.setting.cpus.iter().enumerate().skip(1) {
            let (backend, control) = open_backend(lab, cell, kind, code, thread)?;
            others.push((cpu, backend));
            sender.controls.extend(control);
        }
        if !others.is_empty() {
            let own = sender.backend;
            // A thread begins in the namespace of the one that starts it.
            sender.backend = Box::new(lab.netns(home(kind)).run(|| Threads::start(own, others))??);
        }
        sender.tune(&cell.setting);
        Ok(sender)
    }

    fn tune(&mut self, setting: &Setting) {
        for control in &self.controls {
            control.store(Control::Flows as usize, u64::from(setting.flows));
            control.store(Control::NextFlow as usize, 0);
            control.store(Control::Spin as usize, u64::from(setting.spin));
        }
    }

    /// Frames that its programs produced; 0 where there is none.
    fn produced(&self) -> u64 {
        self.controls.iter().map(|control| control.load(Control::Frames as usize)).sum()
    }
}

/// Opens the way in of one thread, the measuring one being the first (0).
fn open_backend(
    lab: &Lab,
    cell: &Cell,
    kind: BackendKind,
    code: Code,
    thread: usize,
) -> Result<(Box<dyn Backend>, Option<MappedArray>)> {
    let frame = paths::of(cell.path)?.frame(cell).check()?;
    let batch = cell.setting.batch;
    match kind {
        BackendKind::Inject | BackendKind::XdpLive => {
            let (ingress, destination) = match (kind, cell.path) {
                (_, PathName::Floor) => (lab.device(SYS, INGRESS), Destination::Drop),
                (BackendKind::Inject, _) => (lab.device(SYS, INGRESS), Destination::Stack),
                _ => {
                    let device = lab.device(GEN, INGRESS_PEER);
                    (device, Destination::Device(device.ifindex))
                }
            };
            let map = Map::array(8 * CONTROL_WORDS, 1, true)?;
            let injector = Injector {
                header_bytes: frame.header_bytes(),
                write_headers: &|asm, packet, flow, scratch| frame.lower(asm, packet, flow, scratch),
                destination,
                spin: code.burdened,
                padding: code.padding,
                control_fd: map.fd(),
            };
            let insns = injector.assemble()?;
            let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "perpacket_send", &insns))?;
            let inject = Inject::new(InjectSpec {
                kind,
                program,
                control: map.mmap_array()?,
                frame: frame.to_vec(0),
                ingress_ifindex: ingress.ifindex,
                rx_queue: 0,
                batch,
            });
            Ok((Box::new(inject), Some(map.mmap_array()?)))
        }
        _ => {
            let frames = Frames::cycle((0..frame.flows()).map(|flow| frame.to_vec(flow.into())).collect())?;
            let backend = lab.netns(GEN).run(|| open_device(lab, cell, kind, frames, thread as u32))??;
            Ok((backend, None))
        }
    }
}

/// Opens a backend that sends out of the sender's device, in whose namespace the calling thread is.
fn open_device(
    lab: &Lab,
    cell: &Cell,
    kind: BackendKind,
    frames: Frames,
    queue: u32,
) -> Result<Box<dyn Backend>> {
    let ifindex = lab.device(GEN, INGRESS_PEER).ifindex;
    let (batch, qdisc_bypass) = (cell.setting.batch as usize, !cell.setting.has_qdisc());
    Ok(match kind {
        BackendKind::Mmsg => {
            Box::new(Mmsg::new(&MmsgSpec { batch, qdisc_bypass, ..MmsgSpec::new(ifindex) }, frames)?)
        }
        BackendKind::TxRing => {
            Box::new(TxRingBackend::new(&TxRingSpec { qdisc_bypass, ..TxRingSpec::new(ifindex) }, frames)?)
        }
        BackendKind::AfXdp => Box::new(AfXdp::new(&AfXdpSpec { queue, ..AfXdpSpec::new(ifindex) }, frames)?),
        BackendKind::Udp => {
            Box::new(UdpSockets::new(&UdpSpec { ifindex, batch, gso: cell.setting.gso }, frames)?)
        }
        other => bail!("{other} does not send out of a device"),
    })
}

/// Who says that a packet was sent.
pub(crate) fn seen_by(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::Inject | BackendKind::XdpLive => "injecting program",
        BackendKind::AfXdp => "completion ring",
        BackendKind::TxRing => "completed ring slots",
        BackendKind::Mmsg | BackendKind::Udp => "accepted by sendmmsg",
        _ => "backend",
    }
}
