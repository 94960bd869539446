//! The measuring loop of `ab`: adjacent slices of A and B, in random order within each pair.
//!
//! Two variants that are the same code share one lab, and differ by numbers in its control map. Variants that are
//! programs or labs of their own are made anew after a few hundred pairs, in random order: where something
//! lies in memory costs or saves as much as many a change (0.1 ns between two identical programs, 1 to 2 ns between
//! two identical labs), so each block is a replicate of its own, and the interval covers the spread between them.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use measure::calibrate::{FixedCost, fixed_cost};
use measure::ledger::Ledger;
use measure::marginal::{MarginalSample, Work};
use measure::paired::{CompareOptions, Comparison, PairSample, compare};
use measure::quantile::Interval;
use measure::record::{Calibration, Extra};
use measure::sequential::Looks;
use measure::verdict::{Criteria, Verdict, judge};
use measure::warmup::{trend_left, warmup_pairs};

use traffic::programs::PADDING;

use crate::cell::{Cell, Factor};
use crate::environment;
use crate::progress::Progress;
use crate::recorder::CounterValues;
use crate::rig::{Code, Rig, Shape, Timed};
use crate::rounds::{row, stretched};
use crate::scenario::{Clock, Compare, Scenario};
use crate::session::Session;
use crate::stop::Deadline;

/// The most pairs of one block where the scenario does not say.
const PAIRS_A_BLOCK: u32 = 250;
/// Blocks that the time is to be enough for where labs are rebuilt: the interval needs six at the first of five looks.
const BLOCKS: u32 = 36;
/// The fewest pairs of a block.
const PAIRS_A_BLOCK_LEAST: u32 = 5;
/// Long and short slices of each variant in one block, for the fixed cost of a call.
const CALIBRATIONS: u32 = 6;

/// Two variants of one path under comparison.
pub(crate) struct Pairs<'a> {
    scenario: &'a Scenario,
    compare: &'a Compare,
    cells: [Cell; 2],
    /// Index of variant A in the record; B is the next.
    first_variant: usize,
    makeup: Makeup,
    deadline: Deadline,
    pairs: Vec<Pair>,
    calibrations: [Vec<MarginalSample>; 2],
    void_pairs: u64,
    ledgers: [Option<Ledger>; 2],
}

/// What A and B have in common, and what a new block makes anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Makeup {
    /// Everything: lab, program and numbers, or nothing that a program could tell. Nothing is made anew.
    Shared,
    /// Lab and program: they differ by numbers, and what these cost depends on where the program lies. It is loaded
    /// anew.
    Refreshed,
    /// The lab. Each has a sending program of its own, loaded anew.
    Reloaded,
    /// Nothing. Labs and programs are made anew.
    Rebuilt,
}

impl Makeup {
    fn of(compare: &Compare, [a, b]: &[Cell; 2]) -> Self {
        let kind = a.setting.backend;
        let tunable = kind == b.setting.backend && kind.is_some_and(|kind| Rig::tunable(kind, compare.vary));
        match compare.reload_pairs {
            None if tunable && matches!(compare.vary, Factor::Spin | Factor::Flows) => Self::Refreshed,
            None if tunable => Self::Shared,
            Some(_) if tunable && compare.vary != Factor::Command && kind.is_some_and(Rig::has_program) => {
                Self::Reloaded
            }
            _ => Self::Rebuilt,
        }
    }
}

/// Two adjacent slices.
#[derive(Debug, Clone, Copy)]
struct Pair {
    block: u32,
    works: [Work; 2],
}

/// The answer for one path.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) comparison: Option<Comparison>,
    pub(crate) verdict: Verdict,
    pub(crate) looks: Option<Looks>,
    pub(crate) look: Option<u32>,
    pub(crate) warmup_pairs: u64,
    pub(crate) trend_left: bool,
    pub(crate) void_pairs: u64,
    pub(crate) stopped: String,
}

impl<'a> Pairs<'a> {
    /// A comparison about to begin; its time starts now.
    pub(crate) fn new(
        scenario: &'a Scenario,
        compare: &'a Compare,
        cells: [Cell; 2],
        first_variant: usize,
    ) -> Self {
        Self {
            scenario,
            compare,
            makeup: Makeup::of(compare, &cells),
            cells,
            first_variant,
            deadline: Deadline::after(Duration::from_secs_f64(scenario.measurement.time_s)),
            pairs: Vec::new(),
            calibrations: [Vec::new(), Vec::new()],
            void_pairs: 0,
            ledgers: [None, None],
        }
    }

    /// Measures until the comparison is decided, the time is up, or a signal comes.
    pub(crate) fn measure(&mut self, session: &mut Session<'_>) -> Result<Answer> {
        let mut progress = Progress::new(session.output);
        let mut stage = self.stage(session)?;
        let mut looks: Option<Looks> = None;
        let mut look = None;
        let mut planned_from = None;
        let mut shapes = [Shape { calls: 1, per_call: 1 }; 2];
        for block in 0.. {
            match self.makeup {
                Makeup::Shared => {}
                Makeup::Refreshed => stage.refresh(padding(session))?,
                Makeup::Reloaded => {
                    let paddings = [padding(session), padding(session)];
                    stage.reload(session.order.pair_order(), paddings)?;
                }
                Makeup::Rebuilt if block == 0 => {}
                Makeup::Rebuilt => {
                    self.close(&mut stage)?;
                    drop(stage);
                    stage = self.stage(session)?;
                }
            }
            if block == 0 || self.makeup == Makeup::Rebuilt {
                shapes = stage.shapes(self.scenario)?;
            }
            self.calibrate(block, &mut stage, shapes, session)?;
            let start = *planned_from.get_or_insert_with(|| self.deadline.elapsed());
            self.block(block, &mut stage, shapes, session)?;
            session.recorder.flush()?;
            if looks.is_none() {
                looks = Some(self.plan(start)?);
            }
            let done = self.pairs.len() as u64;
            progress.show(self.deadline.share(), &format!("{}: {done} pairs", self.cells[0].path));
            let over = session.stop.asked() || self.deadline.passed();
            let due = looks.as_ref().map_or(0, |looks| looks.looks_due(done));
            if !over && due > look.unwrap_or(0) {
                look = Some(due);
                if self.compare.early_stop
                    && !matches!(self.answer(looks.as_ref(), look).verdict, Verdict::Inconclusive { .. })
                {
                    break;
                }
            }
            if over {
                break;
            }
        }
        progress.clear();
        self.close(&mut stage)?;
        for (arm, samples) in self.calibrations.iter().enumerate() {
            if let Some(cost) = fixed_cost(samples, 0.95) {
                session.recorder.calibration(Calibration {
                    variant: (self.first_variant + arm) as u16,
                    clock: session.clock(),
                    fixed_cost: cost,
                    extra: Extra::new(),
                })?;
            }
        }
        let mut answer = self.answer(looks.as_ref(), look);
        answer.stopped = self.why(session, look);
        Ok(answer)
    }

    /// Where the packets of A and of B ended; one ledger where both share a lab.
    pub(crate) fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        self.ledgers.iter().flatten()
    }

    fn why(&self, session: &Session<'_>, look: Option<u32>) -> String {
        let seconds = self.deadline.elapsed().as_secs_f64();
        match look {
            _ if session.stop.asked() => "stopped by a signal; this is what was measured until then".into(),
            Some(look) if !self.deadline.passed() => {
                format!("decided at look {look} of 5, after {seconds:.1} s")
            }
            _ => format!("the time is up, after {seconds:.1} s"),
        }
    }

    /// The labs of a block, built in random order.
    fn stage(&self, session: &mut Session<'_>) -> Result<Stage> {
        let clock = self.scenario.measurement.clock;
        let burdened = self.compare.vary == Factor::Spin || self.scenario.setting.spin > 0;
        let shifted = self.makeup != Makeup::Shared;
        let a_first = session.order.pair_order();
        let mut build = |cell: &Cell| {
            Rig::build(cell, clock, Code { burdened, padding: shifted.then(|| padding(session)).flatten() })
        };
        if self.makeup != Makeup::Rebuilt {
            let commands = [self.compare.a.clone(), self.compare.b.clone()];
            let commands = (self.compare.vary == Factor::Command).then_some(commands);
            let rig = build(&self.cells[0])?;
            return Ok(Stage { rigs: vec![rig], cells: self.cells.clone(), commands, last: None });
        }
        let mut rigs = if a_first {
            vec![build(&self.cells[0])?, build(&self.cells[1])?]
        } else {
            vec![build(&self.cells[1])?, build(&self.cells[0])?]
        };
        if !a_first {
            rigs.reverse();
        }
        if self.compare.vary == Factor::Command {
            run_inside(&rigs[0], &self.compare.a)?;
            run_inside(&rigs[1], &self.compare.b)?;
        }
        Ok(Stage { rigs, cells: self.cells.clone(), commands: None, last: None })
    }

    /// The fixed cost of a call: adjacent long and short slices, A and B in turn.
    fn calibrate(
        &mut self,
        block: u32,
        stage: &mut Stage,
        shapes: [Shape; 2],
        session: &mut Session<'_>,
    ) -> Result<()> {
        if self.scenario.measurement.clock == Clock::Machine || (block > 0 && self.makeup != Makeup::Rebuilt)
        {
            return Ok(());
        }
        let rounds = if self.makeup == Makeup::Rebuilt { 1 } else { 4 };
        for round in 0..rounds {
            for (arm, &shape) in shapes.iter().enumerate().take(stage.arms()) {
                stage.slice(arm, shape)?; // thrown away: warms this lab up
                for _ in 0..CALIBRATIONS {
                    let long_first = session.order.pair_order();
                    let (long, short) = (shape, shape.short());
                    let first = stage.slice(arm, if long_first { long } else { short })?;
                    let second = stage.slice(arm, if long_first { short } else { long })?;
                    let (long, short) = if long_first { (first, second) } else { (second, first) };
                    if long.void.is_none() && short.void.is_none() {
                        let round = block * rounds + round;
                        self.calibrations[arm].push(MarginalSample {
                            round,
                            long: long.work(),
                            short: short.work(),
                        });
                    }
                }
                ensure!(!self.calibrations[arm].is_empty(), self.nothing_arrived());
            }
        }
        Ok(())
    }

    fn nothing_arrived(&self) -> String {
        format!(
            "every slice of {0} is void: its packets did not arrive; `perpacket path {0} -v` shows where they ended",
            self.cells[0].path
        )
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
        let time =
            Deadline::after(Duration::from_secs_f64(self.scenario.measurement.time_s / f64::from(BLOCKS)));
        for done in 0.. {
            let full = match self.compare.reload_pairs {
                Some(pairs) => done >= pairs,
                None => done >= PAIRS_A_BLOCK || (done >= PAIRS_A_BLOCK_LEAST && time.passed()),
            };
            if full || session.stop.asked() || self.deadline.passed() {
                break;
            }
            let number = (self.pairs.len() as u64 + self.void_pairs) as u32;
            let b_first = session.order.pair_order();
            let mut timed: [Option<Timed>; 2] = [None, None];
            for arm in if b_first { [1, 0] } else { [0, 1] } {
                let (slice, counted) = counted_slice(stage, arm, shapes[arm], session)?;
                let place = (block, number, self.first_variant + arm);
                slices.push((row(place, &slice), counted));
                timed[arm] = Some(slice);
            }
            let [Some(a), Some(b)] = timed else { continue };
            if a.void.is_some() || b.void.is_some() {
                self.void_pairs += 1;
            } else {
                let block = if self.makeup == Makeup::Shared { 0 } else { block };
                self.pairs.push(Pair { block, works: [a.work(), b.work()] });
            }
        }
        // Read once a block: a tick is 10 ms, longer than a slice. It stands at the last slice.
        if let Some((last, _)) = slices.last_mut() {
            last.steal_ticks = environment::steal_since(steal);
        }
        session.recorder.slices(slices);
        ensure!(self.void_pairs == 0 || !self.pairs.is_empty(), self.nothing_arrived());
        Ok(())
    }

    /// The stop rule: five looks spread over the pairs that the time allows for, or one at the end.
    fn plan(&self, start: Duration) -> Result<Looks> {
        let each = (self.deadline.elapsed() - start).as_secs_f64() / self.pairs.len().max(1) as f64;
        let left = (self.scenario.measurement.time_s - start.as_secs_f64()).max(each);
        let planned = ((left / each) as u64).max(10);
        let looks = if self.compare.early_stop { Looks::five(planned) } else { Looks::fixed(planned) };
        looks.context("plan the looks at the data")
    }

    /// What the pairs say now.
    fn answer(&self, looks: Option<&Looks>, look: Option<u32>) -> Answer {
        let confidence = looks.map_or(0.95, Looks::nominal_confidence);
        let fixed = self.fixed_costs();
        let cost = |pair: &Pair, arm: usize| {
            fixed[arm]
                .and_then(|f| f.ns_per_packet(&pair.works[arm]))
                .unwrap_or(pair.works[arm].ns / pair.works[arm].packets as f64)
        };
        let samples: Vec<PairSample> = self
            .pairs
            .iter()
            .map(|pair| PairSample { block: pair.block, a_ns: cost(pair, 0), b_ns: cost(pair, 1) })
            .collect();
        let sums: Vec<f64> = samples.iter().map(|sample| sample.a_ns + sample.b_ns).collect();
        let warmup = warmup_pairs(&sums);
        let comparison = compare(&samples[warmup..], &CompareOptions { confidence })
            .map(|comparison| self.widened(comparison, &fixed));
        let criteria = Criteria { margin: Some(self.compare.margin), min_effect: 0.0 };
        let verdict =
            comparison.as_ref().map_or(Verdict::Inconclusive { pairs_needed: None }, |c| judge(c, &criteria));
        Answer {
            comparison,
            verdict,
            looks: looks.copied(),
            look,
            warmup_pairs: warmup as u64,
            trend_left: trend_left(&sums[warmup..]),
            void_pairs: self.void_pairs,
            stopped: String::new(),
        }
    }

    /// Whether A and B make the same calls. Their fixed cost is then one, and cancels in the difference: making and
    /// clearing away a call's pool of frames does not depend on what the path does with them.
    fn same_calls(&self) -> bool {
        let [a, b] = &self.cells;
        a.setting.backend == b.setting.backend && a.setting.batch == b.setting.batch
    }

    /// The fixed cost of a call of A and of B.
    fn fixed_costs(&self) -> [Option<FixedCost>; 2] {
        if !self.same_calls() {
            return [0, 1].map(|arm| fixed_cost(&self.calibrations[arm], 0.95));
        }
        let all: Vec<MarginalSample> = self.calibrations.iter().flatten().copied().collect();
        [fixed_cost(&all, 0.95); 2]
    }

    /// Intervals that also cover what is not known about the fixed costs, where these do not cancel.
    fn widened(&self, mut comparison: Comparison, fixed: &[Option<FixedCost>; 2]) -> Comparison {
        let (Some(pair), false) = (self.pairs.first(), self.same_calls()) else { return comparison };
        let of = |arm: usize| {
            fixed[arm].and_then(|f| f.uncertainty_ns_per_packet(&pair.works[arm])).unwrap_or(0.0)
        };
        let unknown_ns = of(0).hypot(of(1));
        let widen = |interval: &mut Interval, centre: f64, by: f64| {
            interval.low = centre - (centre - interval.low).hypot(by);
            interval.high = centre + (interval.high - centre).hypot(by);
        };
        widen(&mut comparison.difference_interval, comparison.difference_ns, unknown_ns);
        let relative = unknown_ns / comparison.a_ns;
        let ratio = comparison.ratio;
        widen(&mut comparison.ratio_interval, ratio, relative);
        widen(&mut comparison.equivalence_interval, ratio, relative);
        comparison
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

/// The labs that are standing now.
struct Stage {
    /// One that both variants share, or one each.
    rigs: Vec<Rig>,
    cells: [Cell; 2],
    commands: Option<[String; 2]>,
    last: Option<usize>,
}

impl Stage {
    /// Variants whose fixed cost is of its own.
    fn arms(&self) -> usize {
        self.rigs.len()
    }

    /// The lab of a variant.
    fn at(&self, arm: usize) -> usize {
        arm.min(self.rigs.len() - 1)
    }

    /// The shapes of A's and B's slices.
    fn shapes(&mut self, scenario: &Scenario) -> Result<[Shape; 2]> {
        let mut shapes = [0, 1].map(|arm| self.rigs[self.at(arm)].shape(scenario.measurement.packets));
        if scenario.measurement.clock == Clock::Machine {
            for (arm, shape) in shapes.iter_mut().enumerate() {
                let pilot = self.slice(arm, *shape)?;
                *shape = stretched(&self.rigs[self.at(arm)], pilot);
            }
        }
        Ok(shapes)
    }

    /// The sending program of both, loaded anew.
    fn refresh(&mut self, padding: Option<u8>) -> Result<()> {
        self.last = None;
        self.rigs[0].refresh(padding)
    }

    /// A sending program of its own for each variant, loaded in random order.
    fn reload(&mut self, b_first: bool, paddings: [Option<u8>; 2]) -> Result<()> {
        self.last = None;
        self.rigs[0].reload(&self.cells, b_first, paddings)
    }

    /// A slice of one variant, after what makes the lab that variant.
    fn slice(&mut self, arm: usize, shape: Shape) -> Result<Timed> {
        self.become_variant(arm, shape)?;
        let at = self.at(arm);
        self.rigs[at].slice(shape)
    }

    /// Makes the lab this variant, where the last slice was of the other one.
    fn become_variant(&mut self, arm: usize, shape: Shape) -> Result<()> {
        if self.last.replace(arm) == Some(arm) {
            return Ok(());
        }
        let at = self.at(arm);
        let rig = &mut self.rigs[at];
        if let Some(commands) = &self.commands {
            run_inside(rig, &commands[arm])?;
            rig.slice(shape)?; // thrown away: the command has used the caches
        } else {
            rig.select(arm);
            rig.tune(&self.cells[arm].setting);
        }
        Ok(())
    }
}

/// Another place in memory for a program.
fn padding(session: &mut Session<'_>) -> Option<u8> {
    Some(session.order.below(u64::from(PADDING) + 1) as u8)
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

/// Runs a command in the network namespace of the system under test.
fn run_inside(rig: &Rig, command: &str) -> Result<()> {
    rig.lab().netns(crate::paths::SYS).enter()?;
    let done = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .with_context(|| format!("run `{command}` inside the system under test"))?;
    ensure!(
        done.status.success(),
        "`{command}` inside the system under test ended with {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests;
