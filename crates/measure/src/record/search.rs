//! What a search for the highest rate within a loss goal tried, and what it found.

use serde::{Deserialize, Serialize};

use super::Extra;
use crate::ledger::Drop;

/// One trial of a search: so many packets at a rate, and what became of them. What was lost is `sent` less `received`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialPart {
    /// The variant.
    pub variant: u16,
    /// The repetition of its search, from 0.
    pub run: u32,
    /// The rate that was to be offered, in packets per second.
    pub load_pps: f64,
    /// Packets that were to be sent: the rate times the length of the trial.
    pub packets: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that the receiver had after the drain time.
    pub received: u64,
    /// From the first packet until the one after the last would have been due, in ns; without the drain time.
    pub wall_ns: u64,
    /// Why the trial says nothing about the path; none where it does.
    pub invalid: Option<String>,
    /// Where the packets that did not arrive ended; disjoint counters.
    pub drops: Vec<Drop>,
    /// Sent − received − dropped.
    pub unaccounted: i64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One search: the bounds that its trials set for each goal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchRow {
    /// The variant.
    pub variant: u16,
    /// The repetition, from 0.
    pub run: u32,
    /// What was found for each goal, in the order asked for.
    pub goals: Vec<SearchGoal>,
    /// Trials, those that are invalid included.
    pub trials: u64,
    /// Trials that say nothing about the path.
    pub invalid_trials: u64,
    /// From the start of the first trial to the end of the last one, in ns.
    pub wall_ns: u64,
    /// The lowest rate that the sender was asked for and could not offer; none where it could offer all.
    pub not_offered_pps: Option<f64>,
    /// The highest rate that it did offer; none where no trial was valid.
    pub offered_pps: Option<f64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A goal, and what a search found for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchGoal {
    /// Its name.
    pub name: String,
    /// The share of packets that may be lost in a trial.
    pub loss_ratio: f64,
    /// The share of the time of trials in which more may be lost.
    pub exceed_ratio: f64,
    /// The distance of the bounds at which the search ends, as a share of the upper one.
    pub width: f64,
    /// The length of a trial that counts whole, in seconds.
    pub final_trial_s: f64,
    /// The time of trials at one load after which it is decided, in seconds.
    pub duration_sum_s: f64,
    /// The relevant lower bound in packets per second; none where the goal was met at no load.
    pub lower_pps: Option<f64>,
    /// The relevant upper bound in packets per second; none where the goal was missed at no load.
    pub upper_pps: Option<f64>,
    /// The conditional throughput in packets per second; none without a lower bound.
    pub conditional_pps: Option<f64>,
    /// Why the search for it ended: `width`, `max`, `sender`, `min`, `time`, `interrupted`.
    pub end: String,
    /// Where the packets went that were lost at the upper bound, over all trials at that load.
    pub upper_drops: Vec<Drop>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}
