//! The measuring loop: rounds over all cells in random order, a slice of work and an empty one in pairs.

use std::time::Duration;

use anyhow::{Context, Result};
use measure::marginal::{MarginalSample, Work};
use measure::order::Order;
use measure::slice::Slice;

use super::bench::{Account, Bench, Timed};
use super::beside::Beside;
use super::kind::{Cell, Threads, build};
use super::load::Load;
use crate::cli::OutputArgs;
use crate::environment;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::scenario::Allocate;
use crate::stop::{Deadline, Stop};

/// CPU time of a slice, about. The clocks around it cost less than 1 µs, and the empty slices tell how much.
const SLICE_NS: u64 = 300_000;
/// Pairs of a slice and an empty one in one visit of a cell.
const PAIRS_A_VISIT: u32 = 3;

/// What was measured on one cell.
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    pub(crate) samples: Vec<MarginalSample>,
}

/// All cells of a run, built.
pub(crate) struct Rounds {
    benches: Vec<(Box<dyn Bench>, u64)>,
    measured: Vec<Measured>,
    beside: Option<Beside>,
    /// Pairs so far.
    pairs: u32,
}

impl Rounds {
    /// Makes every allocator, and finds out how many bursts a slice is. `second` is the CPU of the second thread.
    pub(crate) fn build(cells: &[Cell], scenario: &Allocate, second: Option<usize>) -> Result<Self> {
        let two = |cell: &Cell| matches!(cell, Cell::Allocator { threads, .. } if *threads != Threads::One);
        let second = second.filter(|_| cells.iter().any(two));
        let beside = second.map(Beside::start).transpose()?;
        let mut benches = Vec::new();
        for cell in cells {
            let mut bench = match cell {
                Cell::Baseline(baseline) => baseline.build(),
                Cell::Allocator { allocator, sizes, threads } => {
                    let s = scenario;
                    let load = Load::new(sizes, s.live, s.hold, s.hold_for, s.measurement.seed);
                    build(*allocator, *threads, &load).context("it is not built in")?
                }
            };
            let bursts =
                length(&mut *bench, beside.as_ref()).with_context(|| format!("try {}", cell.name()))?;
            benches.push((bench, bursts));
        }
        let measured =
            cells.iter().map(|cell| Measured { cell: cell.clone(), samples: Vec::new() }).collect();
        Ok(Self { benches, measured, beside, pairs: 0 })
    }

    /// Runs rounds until the time is up or a signal comes, and says which and after how many.
    pub(crate) fn measure(
        &mut self,
        time: Duration,
        order: &mut Order,
        recorder: &mut Recorder,
        stop: &Stop,
        output: &OutputArgs,
    ) -> Result<String> {
        let deadline = Deadline::after(time);
        let mut progress = Progress::new(output);
        let mut places: Vec<usize> = (0..self.benches.len()).collect();
        let mut round = 0;
        while !deadline.passed() {
            order.shuffle(&mut places);
            let steal = environment::steal_ticks();
            let mut slices = Vec::new();
            for &index in &places {
                if stop.asked() {
                    progress.clear();
                    return Ok("stopped by a signal; this is what was measured until then".into());
                }
                if deadline.passed() && round > 0 {
                    break; // the round stays incomplete: the time is a promise
                }
                self.visit(index, round, order, &mut slices)?;
            }
            // Read once a round: a tick is 10 ms, longer than a visit. It stands at the last slice.
            if let Some(last) = slices.last_mut() {
                last.steal_ticks = environment::steal_since(steal);
            }
            recorder.slices(slices.into_iter().map(|slice| (slice, Vec::new())).collect());
            recorder.flush()?;
            round += 1;
            progress.show(deadline.share(), &format!("round {round}"));
        }
        progress.clear();
        let seconds = deadline.elapsed().as_secs_f64();
        Ok(format!("stopped: the time is up, after {round} rounds in {seconds:.1} s"))
    }

    /// One visit of a cell: a slice that is thrown away, since the caches belong to the cell before, then the pairs.
    fn visit(&mut self, index: usize, round: u32, order: &mut Order, slices: &mut Vec<Slice>) -> Result<()> {
        let (bench, bursts) = &mut self.benches[index];
        let measured = &mut self.measured[index];
        let mut run = |bursts| {
            bench
                .slice(bursts, self.beside.as_ref())
                .with_context(|| format!("measure {}", measured.cell.name()))
        };
        run(*bursts)?;
        for _ in 0..PAIRS_A_VISIT {
            let work_first = order.pair_order();
            let mut timed = [Timed::default(); 2];
            for is_work in [work_first, !work_first] {
                let slice = run(if is_work { *bursts } else { 0 })?;
                slices.push(row(round, self.pairs, index, &slice));
                timed[usize::from(is_work)] = slice;
            }
            self.pairs += 1;
            let [short, long] =
                timed.map(|slice| Work { packets: slice.buffers, calls: 1, ns: slice.cpu_ns as f64 });
            measured.samples.push(MarginalSample { round, long, short });
        }
        Ok(())
    }

    /// What was measured, and where all buffers and pages ended: after this there is no allocator any more.
    pub(crate) fn close(self) -> (Vec<Measured>, Vec<Account>) {
        drop(self.beside);
        (self.measured, self.benches.into_iter().map(|(bench, _)| bench.close()).collect())
    }
}

/// How many bursts take a slice's time.
fn length(bench: &mut dyn Bench, beside: Option<&Beside>) -> Result<u64> {
    let mut bursts = 1;
    loop {
        let ns = bench.slice(bursts, beside)?.cpu_ns.max(1);
        // The longest is for a clock that does not advance.
        if ns >= SLICE_NS / 4 || bursts >= 1 << 24 {
            return Ok((bursts * SLICE_NS / ns).max(1));
        }
        bursts *= 2;
    }
}

/// A slice as a row of the record.
fn row(round: u32, pair: u32, variant: usize, slice: &Timed) -> Slice {
    Slice {
        block: round,
        pair,
        variant: variant as u16,
        packets: slice.buffers,
        calls: 1,
        wall_ns: slice.wall_ns,
        cpu_ns: slice.cpu_ns,
        steal_ticks: None,
        involuntary_switches: slice.involuntary_switches,
        void: None,
    }
}
