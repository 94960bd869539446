//! The measuring loop of `ab`: adjacent slices of A and B, in random order within each pair.
//!
//! Two variants that are the same code share one lab at a time, and differ by numbers in its control map. What a
//! difference can depend on is made anew after a few hundred pairs, in random order: where something
//! lies in memory costs or saves as much as many a change (0.1 ns between two identical programs, 1 to 2 ns between
//! two identical labs), so each block is a replicate of its own, and the interval covers the spread between them.

mod evidence;
mod stage;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Context, Result};
use measure::ledger::Ledger;
use measure::marginal::MarginalSample;
use measure::record::{Calibration, Extra};
use measure::sequential::Looks;
use measure::verdict::Criteria;

use crate::cell::Cell;
use crate::environment;
use crate::progress::Progress;
use crate::recorder::CounterValues;
use crate::rig::{Shape, Timed};
use crate::rounds::{row, warn_of_others};
use crate::scenario::{Clock, Compare, Scenario};
use crate::session::{KSOFTIRQD, Session};
use crate::stop::Deadline;

pub(crate) use evidence::Answer;
use evidence::{Evidence, Pair};
use stage::{Makeup, Stage};

/// The most pairs of one block where the scenario does not say.
const PAIRS_A_BLOCK: u32 = 250;
/// Blocks that the time is to be enough for where something is made anew: the interval needs six at the first of five
/// looks.
const BLOCKS: u32 = 36;
/// The same in user space, where making everything anew takes a millisecond, and most of what differs between two slices differs
/// between two places in memory.
const BLOCKS_IN_USER_SPACE: u32 = 120;
/// The fewest blocks that tell what differs between layouts from what differs between variants.
const BLOCKS_LEAST: usize = 6;
/// The fewest pairs of a block.
const PAIRS_A_BLOCK_LEAST: u32 = 5;
/// Rounds of long and short slices for the fixed cost of a call, and slices of a round. Where labs are made anew, each block
/// is a round.
const CALIBRATION: (u32, u32) = (8, 3);

/// Two variants of one path under comparison.
pub(crate) struct Pairs<'a> {
    scenario: &'a Scenario,
    compare: &'a Compare,
    cells: [Cell; 2],
    /// Index of variant A in the record; B is the next.
    first_variant: usize,
    makeup: Makeup,
    deadline: Deadline,
    evidence: Evidence,
    ledgers: [Option<Ledger>; 2],
}

impl<'a> Pairs<'a> {
    /// A comparison about to begin, one of `family`; its time starts now.
    pub(crate) fn new(
        scenario: &'a Scenario,
        compare: &'a Compare,
        cells: [Cell; 2],
        first_variant: usize,
        family: usize,
    ) -> Self {
        let [a, b] = [&cells[0].setting, &cells[1].setting];
        let makeup = Makeup::of(compare, &cells);
        Self {
            scenario,
            compare,
            makeup,
            evidence: Evidence {
                pairs: Vec::new(),
                calibrations: [Vec::new(), Vec::new()],
                void_pairs: 0,
                void_slices: [0; 2],
                deferred: [(0.0, 0); 2],
                blocks_needed: if makeup == Makeup::Shared { 1 } else { BLOCKS_LEAST },
                same_calls: a.backend == b.backend && a.batch == b.batch && a.threads == b.threads,
                criteria: criteria(compare),
                family,
            },
            cells,
            first_variant,
            deadline: Deadline::after(Duration::from_secs_f64(scenario.measurement.time_s)),
            ledgers: [None, None],
        }
    }

    /// Measures until the comparison is decided, the time is up, every packet is lost, or a signal comes.
    pub(crate) fn measure(&mut self, session: &mut Session<'_>) -> Result<Answer> {
        warn_of_others(session)?;
        let mut progress = Progress::new(session.output);
        let mut stage = self.build(session)?;
        let mut shapes = stage.shapes(self.scenario)?;
        let (mut looks, mut look, mut block) = (None::<Looks>, None, 0);
        let stopped = loop {
            if block > 0 {
                shapes = self.make_anew(&mut stage, shapes, session)?;
            }
            self.calibrate(block, &mut stage, shapes, session)?;
            self.block(block, &mut stage, shapes, session)?;
            session.recorder.flush()?;
            if self.evidence.pairs.is_empty() && self.evidence.void_pairs > 0 {
                break format!("no pair is whole: packets of {} did not arrive", self.evidence.losers());
            }
            let looks = match &mut looks {
                Some(planned) => planned,
                none => none.insert(self.plan()?),
            };
            let done = self.evidence.pairs.len();
            progress.show(self.deadline.share(), &format!("{}: {done} pairs", self.cells[0].path));
            let seconds = self.deadline.elapsed().as_secs_f64();
            if session.stop.asked() {
                break "stopped by a signal; this is what was measured until then".into();
            }
            let due = (self.deadline.share() * f64::from(looks.count())) as u32;
            if self.compare.early_stop && due > look.unwrap_or(0) {
                look = Some(due);
                if self.evidence.is_decided(&self.evidence.answer(Some(looks), look)) {
                    break format!("decided at look {due} of {}, after {seconds:.1} s", looks.count());
                }
            }
            if self.deadline.passed() {
                look = Some(looks.count());
                break format!("the time is up, after {seconds:.1} s");
            }
            block += 1;
        };
        progress.clear();
        self.close(&mut stage)?;
        self.record_calibrations(session)?;
        Ok(Answer { stopped, ..self.evidence.answer(looks.as_ref(), look) })
    }

    /// Where the packets of A and of B ended, each with the cell that it is of; one ledger where both share a lab.
    pub(crate) fn ledgers(&self) -> impl Iterator<Item = (&Cell, &Ledger)> {
        self.cells.iter().zip(&self.ledgers).filter_map(|(cell, book)| Some((cell, book.as_ref()?)))
    }

    /// ns a packet of A's and B's work that ksoftirqd took from the measuring thread.
    pub(crate) fn deferred_ns(&self) -> [Option<f64>; 2] {
        self.evidence.deferred_ns()
    }

    /// Blocks that the whole time is cut into.
    fn blocks(&self) -> u32 {
        if self.cells[0].path.is_datapath() { BLOCKS_IN_USER_SPACE } else { BLOCKS }
    }

    fn build(&self, session: &mut Session<'_>) -> Result<Stage> {
        Stage::build(self.makeup, &self.cells, self.compare, session)
    }

    /// Makes anew what the next block needs.
    fn make_anew(
        &mut self,
        stage: &mut Stage,
        shapes: [Shape; 2],
        session: &mut Session<'_>,
    ) -> Result<[Shape; 2]> {
        match self.makeup {
            Makeup::Shared => {}
            Makeup::Reloaded => stage.reload(session)?,
            Makeup::Refreshed | Makeup::Rebuilt => {
                self.close(stage)?;
                *stage = self.build(session)?;
                return stage.shapes(self.scenario);
            }
        }
        Ok(shapes)
    }

    /// The fixed cost of a call: adjacent long and short slices, A and B in turn. Where labs are made anew, a few in
    /// each; else all before the first block.
    fn calibrate(
        &mut self,
        block: u32,
        stage: &mut Stage,
        shapes: [Shape; 2],
        session: &mut Session<'_>,
    ) -> Result<()> {
        if block > 0 && self.makeup != Makeup::Rebuilt {
            return Ok(());
        }
        let (rounds, slices) = match (self.makeup, self.scenario.measurement.clock) {
            (_, Clock::Machine) => (1, 2),
            // Three times as many blocks, so a third for each.
            (Makeup::Rebuilt, _) if self.cells[0].path.is_datapath() => (1, 1),
            (Makeup::Rebuilt, _) => (1, CALIBRATION.1),
            _ => CALIBRATION,
        };
        for round in 0..rounds {
            for (arm, &shape) in shapes.iter().enumerate().take(stage.arms()) {
                for _ in 0..slices {
                    let long_first = session.order.pair_order();
                    let (long, short) = (shape, shape.short());
                    let first = stage.slice(arm, if long_first { long } else { short })?;
                    let second = stage.slice(arm, if long_first { short } else { long })?;
                    let (long, short) = if long_first { (first, second) } else { (second, first) };
                    if long.void.is_none() && short.void.is_none() {
                        let round = block * rounds + round;
                        let sample = MarginalSample { round, long: long.work(), short: short.work() };
                        self.evidence.calibrations[arm].push(sample);
                    }
                }
            }
        }
        Ok(())
    }

    /// The pairs of one block.
    fn block(
        &mut self,
        block: u32,
        stage: &mut Stage,
        shapes: [Shape; 2],
        session: &mut Session<'_>,
    ) -> Result<()> {
        for (arm, &shape) in shapes.iter().enumerate() {
            stage.slice(arm, shape)?; // thrown away: warms up what was made anew
        }
        let mut slices = Vec::new();
        let steal = environment::steal_ticks();
        let time = Deadline::after(Duration::from_secs_f64(
            self.scenario.measurement.time_s / f64::from(self.blocks()),
        ));
        for done in 0.. {
            let full = match self.compare.reload_pairs {
                Some(pairs) => done >= pairs,
                None => done >= PAIRS_A_BLOCK || (done >= PAIRS_A_BLOCK_LEAST && time.passed()),
            };
            // One pair at least: a comparison without any could not even say that all its packets are lost.
            if full || session.stop.asked() || (done > 0 && self.deadline.passed()) {
                break;
            }
            slices.extend(self.pair(block, stage, shapes, session)?);
        }
        // Read once a block: a tick is 10 ms, longer than a slice. It stands at the last slice.
        if let Some((last, _)) = slices.last_mut() {
            last.steal_ticks = environment::steal_since(steal);
        }
        session.recorder.slices(slices);
        Ok(())
    }

    /// One pair, and its slices for the record, in the order of measurement.
    fn pair(
        &mut self,
        block: u32,
        stage: &mut Stage,
        shapes: [Shape; 2],
        session: &mut Session<'_>,
    ) -> Result<[(measure::slice::Slice, CounterValues); 2]> {
        let number = (self.evidence.pairs.len() as u64 + self.evidence.void_pairs) as u32;
        let order = if session.order.pair_order() { [1, 0] } else { [0, 1] };
        let mut timed = Vec::with_capacity(2);
        let mut rows = Vec::with_capacity(2);
        for arm in order {
            let (slice, counted) = counted_slice(stage, arm, shapes[arm], session)?;
            if let Some(ns) = counted.iter().find(|(name, _)| *name == KSOFTIRQD).and_then(|(_, ns)| *ns) {
                self.evidence.deferred[arm].0 += ns;
                self.evidence.deferred[arm].1 += shapes[arm].packets();
            }
            self.evidence.void_slices[arm] += u64::from(slice.void.is_some());
            rows.push((row((block, number, self.first_variant + arm), &slice), counted));
            timed.push(slice);
        }
        if timed.iter().any(|slice| slice.void.is_some()) {
            self.evidence.void_pairs += 1;
        } else {
            let works = [timed[usize::from(order[0] == 1)].work(), timed[usize::from(order[0] == 0)].work()];
            let block = if self.makeup == Makeup::Shared { 0 } else { block };
            self.evidence.pairs.push(Pair { block, works });
        }
        <[_; 2]>::try_from(rows).map_err(|_| anyhow::anyhow!("a pair has two slices"))
    }

    /// The stop rule: five looks spread evenly over the time, or one at the end. The number of pairs is what the time
    /// should give at the speed of the first block.
    fn plan(&self) -> Result<Looks> {
        let done = self.evidence.pairs.len().max(1) as f64;
        let planned = ((done / self.deadline.share().max(1e-3)) as u64).max(10);
        let looks = if self.compare.early_stop { Looks::five(planned) } else { Looks::fixed(planned) };
        looks.context("plan the looks at the data")
    }

    /// The fixed costs that were subtracted.
    fn record_calibrations(&self, session: &mut Session<'_>) -> Result<()> {
        for (arm, cost) in self.evidence.fixed_costs().into_iter().enumerate() {
            let Some(fixed_cost) = cost else { continue };
            let variant = (self.first_variant + arm) as u16;
            let clock = session.clock();
            session.recorder.calibration(Calibration { variant, clock, fixed_cost, extra: Extra::new() })?;
        }
        Ok(())
    }

    /// Takes over the ledgers of a stage that ends.
    fn close(&mut self, stage: &mut Stage) -> Result<()> {
        for (rig, total) in stage.rigs.iter_mut().zip(&mut self.ledgers) {
            let book = rig.ledger()?;
            match total {
                Some(total) => total.absorb(&book)?,
                None => *total = Some(book),
            }
        }
        Ok(())
    }
}

/// What a verdict must show.
pub(crate) fn criteria(compare: &Compare) -> Criteria {
    Criteria { margin: Some(compare.margin), min_effect: 0.0 }
}

/// A slice with the counters around it.
fn counted_slice(
    stage: &mut Stage,
    arm: usize,
    shape: Shape,
    session: &mut Session<'_>,
) -> Result<(Timed, CounterValues)> {
    stage.become_variant(arm, shape)?;
    let before = session.counters.read();
    let slice = stage.slice(arm, shape)?;
    let counted = session.counters.since(&before);
    Ok((slice, counted))
}
