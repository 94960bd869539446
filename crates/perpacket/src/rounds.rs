//! The measuring loop of `path`: rounds over all cells in random order, long and short slices in pairs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::Result;
use measure::ledger::Ledger;
use measure::marginal::{MIN_ROUNDS, MarginalSample, absolute_cost};
use measure::record::Warning;
use measure::slice::Slice;

use crate::cell::Cell;
use crate::environment;
use crate::progress::Progress;
use crate::recorder::CounterValues;
use crate::rig::{Rig, Shape, Timed};
use crate::scenario::{Clock, Measurement};
use crate::session::Session;
use crate::stop::Deadline;

/// Pairs of a long and a short slice in one visit of a cell.
const PAIRS_A_VISIT: u32 = 6;
/// Rounds after which it is looked whether every cell is known well enough. Each look takes all rounds into account.
const LOOK_EVERY: u32 = 5;
/// Slices of the clock `machine` last this long at least, as its ticks are 10 ms.
const MACHINE_SLICE: Duration = Duration::from_secs(1);

/// All cells of a run, built, with what was measured on each.
pub(crate) struct Rounds {
    rigs: Vec<Box<dyn Rig>>,
    measured: Vec<Measured>,
    shapes: Vec<Shape>,
}

/// What was measured on one cell.
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    pub(crate) samples: Vec<MarginalSample>,
    /// Slices, those that are void among them.
    pub(crate) slices: u64,
    pub(crate) void_slices: u64,
    /// By name, what was counted in the long slices less what was in the short ones.
    counted: BTreeMap<&'static str, Option<f64>>,
    /// Packets of the long slices less those of the short ones.
    counted_packets: u64,
}

/// A slice, and what the counters said over it.
type Counted = (Timed, CounterValues);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stopped {
    /// Every interval is narrow enough.
    Precise { rounds: u32, seconds: f64, percent: f64 },
    /// The time is up; so many of all cells are as precise as asked for.
    TimeUp { rounds: u32, seconds: f64, percent: f64, precise: usize, of: usize },
    /// A signal.
    Interrupted,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Precise { rounds, seconds, percent } => {
                write!(
                    f,
                    "stopped: every half width is within {percent} %, after {rounds} rounds in {seconds:.1} s"
                )
            }
            Self::TimeUp { rounds, seconds, percent, precise, of } => write!(
                f,
                "stopped: the time is up, after {rounds} rounds in {seconds:.1} s; {precise} of {of} half widths \
                 are within {percent} %"
            ),
            Self::Interrupted => f.write_str("stopped by a signal; this is what was measured until then"),
        }
    }
}

impl Rounds {
    /// Builds the rig of every cell.
    pub(crate) fn build(cells: &[Cell], session: &mut Session<'_>) -> Result<Self> {
        let Measurement { packets, clock, .. } = session.scenario.measurement;
        let workshop = &mut session.workshop;
        let mut rigs = cells.iter().map(|cell| workshop.build(cell, None)).collect::<Result<Vec<_>>>()?;
        let mut shapes = Vec::new();
        for rig in &mut rigs {
            let shape = rig.shape(packets);
            let pilot = rig.slice(shape)?;
            shapes.push(if clock == Clock::Machine { stretched(rig.as_ref(), pilot) } else { shape });
        }
        let measured = cells.iter().map(|cell| Measured::new(cell.clone())).collect();
        Ok(Self { rigs, measured, shapes })
    }

    /// Runs rounds until every cell is known well enough, the time is up, or a signal comes.
    pub(crate) fn measure(&mut self, session: &mut Session<'_>) -> Result<Stopped> {
        let wanted = session.scenario.measurement.precision;
        let percent = wanted * 100.0;
        let deadline = Deadline::after(Duration::from_secs_f64(session.scenario.measurement.time_s));
        warn_of_others(session)?;
        let mut progress = Progress::new(session.output);
        let mut order: Vec<usize> = (0..self.rigs.len()).collect();
        let mut precise = 0;
        for round in 0.. {
            session.order.shuffle(&mut order);
            for &index in &order {
                if session.stop.asked() {
                    progress.clear();
                    return Ok(Stopped::Interrupted);
                }
                if deadline.passed() && round > 0 {
                    break; // the round stays incomplete: the time is a promise
                }
                self.visit(index, round, session)?;
            }
            session.recorder.flush()?;
            let (rounds, seconds, of) = (round + 1, deadline.elapsed().as_secs_f64(), self.measured.len());
            let over = deadline.passed();
            if over || rounds % LOOK_EVERY == 0 {
                precise = self.measured.iter().filter(|m| m.is_precise(wanted)).count();
            }
            progress.show(deadline.share(), &format!("round {rounds}, {precise} of {of} within {percent} %"));
            if precise == of {
                progress.clear();
                return Ok(Stopped::Precise { rounds, seconds, percent });
            }
            if over {
                progress.clear();
                return Ok(Stopped::TimeUp { rounds, seconds, percent, precise, of });
            }
        }
        unreachable!("the rounds end by time")
    }

    /// What was measured.
    pub(crate) fn take(&mut self) -> Vec<Measured> {
        std::mem::take(&mut self.measured)
    }

    /// Where the packets of every cell ended.
    pub(crate) fn ledgers(&mut self) -> Result<Vec<Ledger>> {
        self.rigs.iter_mut().map(|rig| rig.ledger()).collect()
    }

    /// One visit of a cell: a slice that is thrown away, since the caches belong to the cell before, then
    /// pairs of a long and a short slice in random order.
    fn visit(&mut self, index: usize, round: u32, session: &mut Session<'_>) -> Result<()> {
        let (rig, measured) = (&mut self.rigs[index], &mut self.measured[index]);
        let long = self.shapes[index];
        let short = long.short();
        let mut slices = Vec::new();
        let steal = environment::steal_ticks();
        rig.slice(short)?;
        let pairs = if session.scenario.measurement.clock == Clock::Machine { 1 } else { PAIRS_A_VISIT };
        for pair in 0..pairs {
            let long_first = session.order.pair_order();
            let mut timed: [Option<Counted>; 2] = [None, None];
            for is_long in [long_first, !long_first] {
                let before = session.counters.read();
                let slice = rig.slice(if is_long { long } else { short })?;
                let counted = session.counters.since(&before);
                let place = (round, round * pairs + pair, index);
                slices.push((row(place, &slice), counted.clone()));
                timed[usize::from(is_long)] = Some((slice, counted));
            }
            if let [Some(short), Some(long)] = timed {
                measured.add(round, &long, &short);
            }
        }
        // Read once a visit: a tick is 10 ms, longer than a slice. It stands at the last slice.
        if let Some((last, _)) = slices.last_mut() {
            last.steal_ticks = environment::steal_since(steal);
        }
        session.recorder.slices(slices);
        Ok(())
    }
}

impl Measured {
    /// Nothing yet.
    pub(crate) fn new(cell: Cell) -> Self {
        Self {
            cell,
            samples: Vec::new(),
            slices: 0,
            void_slices: 0,
            counted: BTreeMap::new(),
            counted_packets: 0,
        }
    }

    /// Counters of long slices less those of short ones, divided by the packets that these differ by: what a call counts
    /// with no packet in it is in neither. Null for those that this machine does not have.
    pub(crate) fn counters_per_packet(&self) -> BTreeMap<String, Option<f64>> {
        let per_packet = |total: &Option<f64>| Some((*total)? / self.counted_packets as f64);
        let known = self.counted_packets > 0;
        self.counted
            .iter()
            .map(|(&name, total)| (name.to_owned(), per_packet(total).filter(|_| known)))
            .collect()
    }

    /// Adds a pair, unless one of its slices is void.
    fn add(&mut self, round: u32, (long, counted_long): &Counted, (short, counted_short): &Counted) {
        let void = [long, short].iter().filter(|slice| slice.void.is_some()).count();
        self.slices += 2;
        self.void_slices += void as u64;
        if void > 0 {
            return;
        }
        self.samples.push(MarginalSample { round, long: long.work(), short: short.work() });
        for (&(name, in_long), &(_, in_short)) in counted_long.iter().zip(counted_short) {
            let more = in_long.zip(in_short).map(|(in_long, in_short)| in_long - in_short);
            let total = self.counted.entry(name).or_insert(Some(0.0));
            *total = total.zip(more).map(|(total, more)| total + more);
        }
        self.counted_packets += long.shape.packets().saturating_sub(short.shape.packets());
    }

    fn is_precise(&self, wanted: f64) -> bool {
        self.samples.len() >= MIN_ROUNDS
            && absolute_cost(&self.samples, 0.95)
                .and_then(|cost| cost.relative_half_width())
                .is_some_and(|half_width| half_width <= wanted)
    }
}

/// A slice as a row of the record.
pub(crate) fn row((block, pair, variant): (u32, u32, usize), slice: &Timed) -> Slice {
    Slice {
        block,
        pair,
        variant: variant as u16,
        packets: slice.shape.packets(),
        calls: slice.shape.calls,
        wall_ns: slice.wall_ns,
        cpu_ns: slice.cpu_ns,
        steal_ticks: None,
        involuntary_switches: slice.involuntary_switches,
        void: slice.void,
    }
}

/// Says what the clock `machine` counts, where that is used.
pub(crate) fn warn_of_others(session: &mut Session<'_>) -> Result<()> {
    if session.scenario.measurement.clock != Clock::Machine {
        return Ok(());
    }
    let load = environment::load_average().map_or("unknown".into(), |[one, ..]| format!("{one:.2}"));
    session.warn(Warning {
        what: "the clock counts the work of everybody on this machine".into(),
        fact: format!("load average {load}; slices of about {} s, ticks of 10 ms", MACHINE_SLICE.as_secs()),
        next_step: "use it on an idle machine, with minutes of --time; slices are as long as that takes, whatever --slice says"
            .into(),
        ..Warning::default()
    })
}

/// The shape of slices that last long enough for the clock `machine`, from a pilot's wall time.
pub(crate) fn stretched(rig: &dyn Rig, pilot: Timed) -> Shape {
    let wanted = MACHINE_SLICE.as_nanos() as f64 / pilot.wall_ns.max(1) as f64;
    rig.shape((pilot.shape.packets() as f64 * wanted.max(1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use measure::slice::VoidReason;

    use super::*;
    use crate::cell::{PathName, Setting};

    /// A slice in which each packet counts 2 and the call counts 100.
    fn counted(per_call: u64, void: Option<VoidReason>) -> Counted {
        let shape = Shape { calls: 1, per_call };
        let timed = Timed { shape, wall_ns: 1, cpu_ns: 1, involuntary_switches: None, void };
        (timed, vec![("cycles", Some(100.0 + 2.0 * per_call as f64)), ("instructions", None)])
    }

    #[test]
    fn counters_per_packet_leave_out_the_call_and_void_slices() {
        let cell = Cell { path: PathName::RawDrop, frame_bytes: 64, setting: Setting::default() };
        let mut measured = Measured::new(cell);
        assert!(measured.counters_per_packet().is_empty());
        measured.add(0, &counted(5_000, None), &counted(500, None));
        measured.add(0, &counted(5_000, Some(VoidReason::Drops)), &counted(100, None));
        let per_packet = measured.counters_per_packet();
        assert_eq!(per_packet["cycles"], Some(2.0));
        assert_eq!(per_packet["instructions"], None);
        assert_eq!((measured.slices, measured.void_slices, measured.samples.len()), (4, 1, 1));
    }
}
