//! A path in user space made real: a device under test with its poll loops.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datapath::device::Dummy;
use datapath::{Drops, Reason};
use linux::{clock, procfs};
use measure::ledger::{Count, Drop, Ledger};
use measure::slice::VoidReason;

use crate::cell::{Cell, PathName};
use crate::device::{Lane, Tables};
use crate::scenario::Clock;

use super::crew::Crew;
use super::{Place, Rig, Shape, Timed, machine_busy_ns};

/// Who hands the frames over.
const WIRE: &str = "synthetic device";
/// Who says that a packet was dropped.
const DEVICE: &str = "device under test";

/// A device in user space with packets going through it.
pub(super) struct DatapathRig {
    cell: Cell,
    clock: Clock,
    crew: Crew,
    dummy: Arc<Dummy>,
    /// Memory that nobody uses: it shifts what was made after it.
    _ballast: Vec<Box<[u8]>>,
}

/// Where the packets of a rig are.
#[derive(Debug, Clone, Default)]
struct Account {
    came: u64,
    arrived: u64,
    drops: Drops,
}

impl DatapathRig {
    /// Builds the device of a resolved cell, with memory of its own.
    pub(super) fn build(
        cell: &Cell,
        clock: Clock,
        place: Option<Place>,
        tables: &mut Tables,
    ) -> Result<Self> {
        let setting = &cell.setting;
        let ballast = place.map_or_else(Vec::new, ballast);
        let dummy = Dummy::new(setting.device_queues() as usize, setting.lock.into());
        let crew = Lane::build_all(cell, &dummy, tables)
            .and_then(|lanes| Crew::start(lanes, &setting.cpus))
            .with_context(|| format!("build the device for {} at {} bytes", cell.path, cell.frame_bytes))?;
        Ok(Self { cell: cell.clone(), clock, crew, dummy, _ballast: ballast })
    }

    fn account(&mut self) -> Account {
        let ledgers = self.crew.ask(Lane::ledger);
        let read: u64 = self.crew.ask(|lane| lane.packets_read()).into_iter().sum();
        let mut account = Account::default();
        for ledger in &ledgers {
            account.came += ledger.received + ledger.made;
            account.drops.add(&ledger.drops);
        }
        account.arrived = match self.cell.path {
            PathName::DatapathDrop => account.drops.of(Reason::Early),
            PathName::DatapathUdp => read,
            _ => self.dummy.totals().iter().map(|queue| queue.packets).sum(),
        };
        account
    }

    /// Who counts the packets at the end of the path.
    fn end(&self) -> &'static str {
        match self.cell.path {
            PathName::DatapathDrop => Reason::Early.name(),
            PathName::DatapathUdp => "receiver",
            _ => "dummy device",
        }
    }
}

impl Rig for DatapathRig {
    /// One call: nothing between two polls but the loop itself.
    fn shape(&self, packets: u64) -> Shape {
        Shape { calls: 1, per_call: packets }
    }

    fn slice(&mut self, shape: Shape) -> Result<Timed> {
        ensure!(shape.calls == 1, "a device in user space is polled in one go");
        let before = self.account();
        let switches = procfs::thread_usage().involuntary_switches;
        let busy = if self.clock == Clock::Machine { machine_busy_ns()? } else { 0 };
        let wall = clock::monotonic_ns();
        let sent = self.crew.run(shape.per_call)?;
        let wall_ns = clock::monotonic_ns() - wall;
        let cpu_ns = match self.clock {
            Clock::Thread => sent.cpu_ns,
            Clock::Machine => machine_busy_ns()?.saturating_sub(busy),
        };
        let switches = procfs::thread_usage().involuntary_switches - switches;
        let after = self.account();
        let void = match () {
            () if sent.packets < shape.packets() => Some(VoidReason::Incomplete),
            () if after.arrived - before.arrived != shape.packets() => Some(VoidReason::Drops),
            () if after.came - before.came != shape.packets() => Some(VoidReason::Drops),
            () => None,
        };
        let switches = u32::try_from(switches).ok().filter(|_| self.cell.setting.threads == 1);
        Ok(Timed { shape, wall_ns, cpu_ns, involuntary_switches: switches, void })
    }

    fn ledger(&mut self) -> Result<Ledger> {
        let account = self.account();
        let sent = Count { packets: account.came, seen_by: WIRE.into() };
        let mut book = Ledger::new(self.cell.path.name(), Some(self.cell.frame_bytes), sent);
        book.received.push(Count { packets: account.arrived, seen_by: self.end().into() });
        let early_is_the_end = self.cell.path == PathName::DatapathDrop;
        for (reason, packets) in account.drops.iter() {
            if !(early_is_the_end && reason == Reason::Early) {
                book.drops.push(Drop { reason: reason.name().into(), counter: DEVICE.into(), packets });
            }
        }
        Ok(book)
    }
}

/// Up to 32 pieces of memory of up to 16 KiB, so that the allocator gives out other places afterwards.
fn ballast(place: Place) -> Vec<Box<[u8]>> {
    let mut state = u64::from(place.0) | 1 << 32;
    let mut draw = |below: u64| {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    (0..draw(33)).map(|_| vec![0; 16 + draw(16 << 10) as usize].into()).collect()
}
