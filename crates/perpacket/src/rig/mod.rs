//! A cell made real: something that packets go through, which runs slices and times them.
//!
//! There are two kinds: a lab, through which packets take a path of the kernel ([`kernel`]), and a device under test in user
//! space ([`datapath`]). Who measures does not know which it has.

mod crew;
mod datapath;
pub(crate) mod kernel;

use anyhow::{Context, Result, bail};
use linux::procfs::{self, CpuTimes};
use measure::ledger::Ledger;
use measure::marginal::Work;
use measure::order::Order;
use measure::slice::VoidReason;

use crate::cell::{Cell, Factor, Setting};
use crate::device::Tables;
use crate::scenario::{Clock, Scenario};
use datapath::DatapathRig;
use kernel::KernelRig;

/// What runs slices.
pub(crate) trait Rig {
    /// Cuts a slice of about `packets` packets into calls that this rig can take.
    fn shape(&self, packets: u64) -> Shape;

    /// Has a slice of packets processed, and times it. Every packet of it has been looked for at the end of the path.
    fn slice(&mut self, shape: Shape) -> Result<Timed>;

    /// Where every packet of this rig ended.
    fn ledger(&mut self) -> Result<Ledger>;

    /// Takes over those numbers of a setting that need nothing made anew; nothing where there are none.
    fn tune(&mut self, _setting: &Setting) {}

    /// Lets the program of a variant run from now on, after [`reload`](Self::reload).
    fn select(&mut self, _arm: usize) {}

    /// Loads the program of each of two variants anew, in the order given.
    fn reload(&mut self, _cells: &[Cell; 2], _b_first: bool, _places: [Place; 2]) -> Result<()> {
        bail!("there is no program to be loaded anew")
    }

    /// Moves the calling thread into the network namespace of the system under test.
    fn enter_system(&self) -> Result<()> {
        bail!("a device in user space has no network namespace to run a command in")
    }
}

/// Makes rigs for one run, and keeps what they have in common.
pub(crate) struct Workshop {
    clock: Clock,
    /// Whether injecting programs can be given extra work for each frame.
    burdened: bool,
    tables: Tables,
}

impl Workshop {
    /// For the cells of this scenario.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let varied = scenario.compare.as_ref().map(|compare| compare.vary);
        Self {
            clock: scenario.measurement.clock,
            burdened: scenario.setting.spin > 0 || varied == Some(Factor::Spin),
            tables: Tables::default(),
        }
    }

    /// Builds what a resolved cell describes. `place`: where in memory, where that is to be another one each time.
    pub(crate) fn build(&mut self, cell: &Cell, place: Option<Place>) -> Result<Box<dyn Rig>> {
        Ok(if cell.path.is_datapath() {
            Box::new(DatapathRig::build(cell, self.clock, place, &mut self.tables)?)
        } else {
            Box::new(KernelRig::build(cell, self.clock, self.burdened, place)?)
        })
    }
}

/// A place in memory, among many: what it costs to be somewhere is no property of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// One at random.
    pub(crate) fn draw(order: &mut Order) -> Self {
        Self(order.below(1 << 32) as u32)
    }
}

/// Whether [`Rig::tune`] makes one variant of the other, so that both can share a rig.
pub(crate) fn tunable([a, b]: &[Cell; 2], factor: Factor) -> bool {
    // In user space all that is measured depends on where its memory lies: A and B have their own, each anew.
    let (false, Some(kind)) = (a.path.is_datapath(), a.setting.backend) else { return false };
    b.setting.backend == Some(kind) && KernelRig::tunable(kind, factor)
}

/// Whether there is a program that can be loaded anew.
pub(crate) fn reloadable(cell: &Cell) -> bool {
    cell.setting.backend.is_some_and(KernelRig::has_program)
}

/// How a slice is cut: so many calls of so many packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) calls: u32,
    pub(crate) per_call: u64,
}

impl Shape {
    /// Packets of the whole slice.
    pub(crate) fn packets(self) -> u64 {
        u64::from(self.calls) * self.per_call
    }

    /// A slice with the same calls and a third of the packets: what is subtracted to leave the cost of the packets
    /// alone. A call begins with cold caches; with a tenth, a part of warming them was left in (1.5 % of forward).
    pub(crate) fn short(self) -> Self {
        let per_call = (self.per_call / 3).max(64).min(self.per_call / 2).max(1);
        Self { per_call, ..self }
    }
}

/// What one slice took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    pub(crate) shape: Shape,
    pub(crate) wall_ns: u64,
    /// Time of the run's clock: the CPU time of the thread, or of all threads that send, or all CPUs' busy time.
    pub(crate) cpu_ns: u64,
    /// None where other threads send as well: theirs are not counted.
    pub(crate) involuntary_switches: Option<u32>,
    pub(crate) void: Option<VoidReason>,
}

impl Timed {
    /// As the statistics take it.
    pub(crate) fn work(&self) -> Work {
        Work { packets: self.shape.packets(), calls: u64::from(self.shape.calls), ns: self.cpu_ns as f64 }
    }
}

/// Time that all CPUs were not idle since boot, in steps of a tick (10 ms).
fn machine_busy_ns() -> Result<u64> {
    let stat = procfs::read("/proc/stat").context("read the busy time of all CPUs")?;
    let all = procfs::cpu_times(&stat).into_iter().find(|times| times.cpu.is_none());
    let all = all.context("read the busy time of all CPUs: /proc/stat has no sum")?;
    Ok(all.busy() * (1_000_000_000 / CpuTimes::ticks_per_second()))
}
