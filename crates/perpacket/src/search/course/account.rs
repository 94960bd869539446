//! Where the packets of one trial ended. Loss is what the receiver lacks when nothing more arrives.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Lab;
use lab::counters::{Reader, Snapshot, diff};
use measure::ledger::{Count, Ledger};

use crate::cell::Cell;
use crate::ledger::{self, Grown, WayIn};
use crate::paths::{FAR, GEN, SYS};
use crate::rig::kernel::seen_by;
use crate::stop::Deadline;
use crate::trial::sender::Offered;
use crate::trial::{Load, Trial};

/// How long packets may take to arrive after the last one was sent, and after how much time without a new one the rest is taken
/// to be lost.
const DRAIN: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_millis(100);
/// Time between two looks.
const LOOK: Duration = Duration::from_micros(200);
/// How often it is looked for what is missing.
const EXPLAIN: Duration = Duration::from_millis(5);

/// The counters of a lab's namespaces, and where they stood when the trial began.
pub(super) struct Counters {
    readers: Vec<(&'static str, Reader, Snapshot)>,
}

impl Counters {
    /// Opens those of all three namespaces.
    pub(super) fn open(lab: &Lab) -> Result<Self> {
        let open = |role: &'static str| -> Result<_> {
            let mut reader = Reader::open(lab, role, &[])?;
            let now = reader.read()?;
            Ok((role, reader, now))
        };
        Ok(Self { readers: [GEN, SYS, FAR].into_iter().map(open).collect::<Result<_>>()? })
    }

    /// By how much they grew since the last [`begin`](Self::begin).
    fn grown(&mut self) -> Result<Grown> {
        let grown = |(role, reader, before): &mut (&'static str, Reader, Snapshot)| {
            Ok((*role, diff(before, &reader.read()?)))
        };
        self.readers.iter_mut().map(grown).collect()
    }

    /// Takes where they stand as the beginning.
    pub(super) fn begin(&mut self) -> Result<()> {
        for (_, reader, before) in &mut self.readers {
            *before = reader.read()?;
        }
        Ok(())
    }
}

/// The end of a course, seen from a trial: what came since the trial began.
pub(super) trait Arrivals {
    /// Packets that arrived.
    fn arrived(&mut self) -> Result<Count>;

    /// Adds to the ledger what is known to be lost before the counters of the lab are asked.
    fn add_known(&mut self, book: &mut Ledger) -> Result<()>;

    /// Takes out of what the lab's counters say what [`add_known`](Self::add_known) has told already.
    fn take_known(&mut self, _grown: &mut Grown) {}

    /// Waits until whoever reads what arrives has found nothing more, as long as that is to be expected.
    fn wait_until_empty(&mut self) {}

    /// Counters that every packet raises on its way, by the role of their namespace.
    fn on_the_way(&self) -> &[(&'static str, &'static str)];
}

/// What became of the packets of a cell that were sent: waits until every one has arrived or is known to be lost, or nothing
/// changes any more.
pub(super) fn settle(
    cell: &Cell,
    load: &Load,
    offered: Offered,
    arrivals: &mut dyn Arrivals,
    counters: &mut Counters,
) -> Result<Trial> {
    let kind = cell.setting.backend.context("a trial needs a way in that is settled")?;
    let sent = Count { packets: offered.packets, seen_by: seen_by(kind).into() };
    let book = Ledger::new(cell.path.name(), Some(cell.frame_bytes), sent);
    let way = WayIn::of(cell, kind);
    let ledger = drain(&book, arrivals, counters, way)?;
    let refused = if way.is_told { ledger::take_refusals(&mut counters.grown()?, way) } else { None };
    Ok(Trial {
        load: *load,
        sent: offered.packets,
        received: ledger.received_packets(),
        wall_ns: offered.wall_ns,
        refused,
        gaps: offered.gaps,
        ledger,
    })
}

/// A ledger of what was sent, with what arrived and what was lost until nothing changes any more.
fn drain(empty: &Ledger, arrivals: &mut dyn Arrivals, counters: &mut Counters, way: WayIn) -> Result<Ledger> {
    let deadline = Deadline::after(DRAIN);
    let (mut last, mut changed_at, mut explained_at) = (None, Duration::ZERO, Duration::ZERO);
    let mut is_empty = false;
    loop {
        let arrived = arrivals.arrived()?;
        let packets = arrived.packets;
        let mut book = empty.clone();
        book.received.push(arrived);
        // More than were sent: nothing that is waited for makes it right.
        if book.unaccounted() <= 0 {
            return Ok(book);
        }
        let now = deadline.elapsed();
        if last != Some(packets) {
            (last, changed_at, is_empty) = (Some(packets), now, false);
        }
        // Quiet may be that a reader gets no CPU: what it has left is asked once more.
        if !is_empty && now - changed_at >= QUIET / 2 {
            arrivals.wait_until_empty();
            is_empty = true;
            continue;
        }
        let is_over = now - changed_at >= QUIET || deadline.passed();
        if is_over || now - explained_at >= EXPLAIN {
            explained_at = now;
            arrivals.add_known(&mut book)?;
            if book.unaccounted() > 0 {
                let mut grown = counters.grown()?;
                arrivals.take_known(&mut grown);
                ledger::take_refusals(&mut grown, way);
                ledger::add_counters(&mut book, &grown, arrivals.on_the_way());
            }
            if is_over || book.closes() {
                return Ok(book);
            }
        }
        thread::sleep(LOOK);
    }
}
