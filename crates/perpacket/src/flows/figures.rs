//! What the runs of each setting have in common, and what makes two differ.

use std::collections::BTreeMap;

use measure::delay::Delays;
use measure::ledger::Ledger;
use measure::record::{FlowRun, Flows as Results};
use measure::share::{self, MedianOf, ShareDifference};

use super::arena::Blueprint;
use crate::report::Outcome;
use crate::scenario::Flows;

/// How long a run must be for its busy time to be a figure: that is counted in ticks of 10 ms on each CPU.
const LEAST_BUSY_NS: u64 = 500_000_000;

/// The share of a run from which on a gap of the sender is told.
const PAUSE: f64 = 0.01;

/// All runs of a command, as they came.
pub(crate) struct FlowsResult {
    pub(crate) scenario: Flows,
    pub(crate) blueprints: Vec<Blueprint>,
    pub(crate) flows: Results,
    /// One for each run.
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) interrupted: bool,
}

/// What the whole runs of one setting have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) name: String,
    /// Runs in which all packets were sent.
    pub(crate) runs: usize,
    /// Those in which the rate was held as well.
    pub(crate) offered: usize,
    pub(crate) asked_pps: f64,
    /// Least and greatest rate.
    pub(crate) achieved_pps: Option<(f64, f64)>,
    pub(crate) share: Option<MedianOf>,
    /// The share of each run, in their order; none for one in which nothing was sent.
    pub(crate) shares: Vec<Option<f64>>,
    /// One-way delays of all packets: p50, p99 and the longest, in ns.
    pub(crate) delay_ns: Option<[u64; 3]>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) reordered: Option<u64>,
    /// Where packets of all runs ended that were not received, most first.
    pub(crate) missing: Vec<(String, u64)>,
    pub(crate) unaccounted: i64,
    /// How often the device refused a packet that was then sent again; none where the sender does not learn of it.
    pub(crate) refused: Option<u64>,
    /// The longest gap between two packets as they were handed over, of all runs, in ns; none where the sender does not see them.
    pub(crate) longest_gap_ns: Option<u64>,
    /// CPU time of the sending thread for each packet sent, in ns, which is part of the busy time: the median of the runs. A paced sender
    /// waits by looking at the clock, and so uses the whole of its CPU.
    pub(crate) sender_ns: Option<f64>,
    /// Busy time of all CPUs for each packet sent, in ns: the median of the runs; none where all are too short for it.
    pub(crate) busy_ns: Option<f64>,
}

/// The longest gap between two packets of a run, in ns.
pub(crate) fn longest_gap_ns(run: &FlowRun) -> Option<u64> {
    run.sender.gaps.as_ref()?.iter().map(|(ns, _)| *ns).max()
}

/// Whether the sender of a run paused so long that what it sent to catch up is a burst: the rate of the whole run says nothing of it.
pub(crate) fn paused(run: &FlowRun) -> bool {
    longest_gap_ns(run).is_some_and(|gap_ns| gap_ns as f64 > PAUSE * run.wall_ns as f64)
}

impl FlowsResult {
    pub(super) fn new(scenario: &Flows, blueprints: &[Blueprint]) -> Self {
        Self {
            scenario: scenario.clone(),
            blueprints: blueprints.to_vec(),
            flows: Results::default(),
            ledgers: Vec::new(),
            interrupted: false,
        }
    }

    /// Adds a run.
    pub(super) fn add(&mut self, run: FlowRun, ledger: Ledger) {
        self.flows.runs.push(run);
        self.ledgers.push(ledger);
        self.flows.difference = self.difference();
    }

    /// 1 where a packet is not accounted for, 3 where a rate was not held or a signal ended it.
    pub(crate) fn outcome(&self) -> Outcome {
        if !self.ledgers.iter().all(Ledger::closes) {
            return Outcome::No;
        }
        let all_offered = self.flows.runs.iter().all(|run| run.is_offered);
        if all_offered && !self.interrupted { Outcome::Good } else { Outcome::Inconclusive }
    }

    /// The runs of a setting with their ledgers.
    pub(crate) fn of(&self, variant: usize) -> impl Iterator<Item = (&FlowRun, &Ledger)> {
        let all = self.flows.runs.iter().zip(&self.ledgers);
        all.filter(move |(run, _)| usize::from(run.variant) == variant)
    }

    /// Those in which all packets were sent.
    pub(crate) fn of_whole(&self, variant: usize) -> impl Iterator<Item = (&FlowRun, &Ledger)> {
        self.of(variant).filter(|(run, _)| is_whole(run))
    }

    /// The figures of each setting.
    pub(crate) fn figures(&self) -> Vec<Figures> {
        (0..self.blueprints.len()).map(|variant| self.figures_of(variant)).collect()
    }

    fn figures_of(&self, variant: usize) -> Figures {
        let whole: Vec<(&FlowRun, &Ledger)> = self.of_whole(variant).collect();
        let runs = || whole.iter().map(|(run, _)| *run);
        let rates: Vec<f64> = runs().filter_map(FlowRun::achieved_pps).collect();
        let shares: Vec<f64> = runs().filter_map(FlowRun::share).collect();
        let long = runs().filter(|run| run.wall_ns >= LEAST_BUSY_NS);
        let busy: Vec<f64> = long.filter_map(FlowRun::busy_ns_per_packet).collect();
        let of_sender = |run: &FlowRun| (run.sent > 0).then(|| run.sender.cpu_ns as f64 / run.sent as f64);
        let sender: Vec<f64> = runs().filter_map(of_sender).collect();
        Figures {
            name: self.scenario.name(variant),
            runs: whole.len(),
            offered: runs().filter(|run| run.is_offered).count(),
            asked_pps: runs().map(|run| run.asked_pps).next().unwrap_or(0.0),
            achieved_pps: range(&rates),
            share: share::median_of(&shares),
            shares: self.of(variant).map(|(run, _)| run.share()).collect(),
            delay_ns: delays(runs()),
            sent: runs().map(|run| run.sent).sum(),
            received: runs().map(|run| run.received).sum(),
            reordered: runs().map(|run| run.reordered).sum(),
            missing: missing(whole.iter().map(|(_, book)| *book)),
            unaccounted: whole.iter().map(|(_, book)| book.unaccounted()).sum(),
            longest_gap_ns: runs().filter_map(longest_gap_ns).max(),
            sender_ns: share::median_of(&sender).map(|of| of.median),
            refused: runs().map(|run| run.refused).sum(),
            busy_ns: share::median_of(&busy).map(|of| of.median),
        }
    }

    /// The second setting against the first, over the repetitions in which both runs are whole.
    fn difference(&self) -> Option<ShareDifference> {
        let share = |variant: u16, repetition: u32| {
            let own = |run: &&FlowRun| run.variant == variant && run.repetition == repetition;
            self.flows.runs.iter().find(own).filter(|run| is_whole(run))?.share()
        };
        let repetitions = 0..self.scenario.measurement.runs;
        let pairs: Vec<(f64, f64)> =
            repetitions.filter_map(|number| Some((share(0, number)?, share(1, number)?))).collect();
        share::compare(&pairs)
    }
}

/// Whether all packets were sent; a signal ended the others.
fn is_whole(run: &FlowRun) -> bool {
    run.sent == run.packets
}

fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().fold(least, f64::max)))
}

/// p50, p99 and the longest of all delays.
fn delays<'a>(runs: impl Iterator<Item = &'a FlowRun>) -> Option<[u64; 3]> {
    let mut all = Delays::new();
    for (ns, packets) in runs.filter_map(|run| run.delays.as_ref()).flatten() {
        all.record_n(*ns, *packets);
    }
    Some([all.quantile(0.5)?, all.quantile(0.99)?, all.quantile(1.0)?])
}

/// Packets that were not received, by where they ended.
fn missing<'a>(ledgers: impl Iterator<Item = &'a Ledger>) -> Vec<(String, u64)> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for drop in ledgers.flat_map(|book| &book.drops) {
        *all.entry(&drop.reason).or_default() += drop.packets;
    }
    let mut all: Vec<(String, u64)> =
        all.into_iter().map(|(reason, packets)| (reason.to_owned(), packets)).collect();
    all.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    all
}
