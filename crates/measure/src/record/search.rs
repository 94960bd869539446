//! What a search for the highest rate within a loss goal tried, and what it found.

use serde::{Deserialize, Serialize};

use super::Extra;
use crate::ledger::Drop;
use crate::search::{GoalResult, SenderBound};

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
    /// How often the sender's device refused a packet, which was then sent again: the path held the sender back. None where the
    /// sender does not learn of it.
    pub refused: Option<u64>,
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
    /// How often the sender's device refused a packet, which was then sent again, in all trials; none where the sender does not
    /// learn of it.
    pub refused: Option<u64>,
    /// From the start of the first trial to the end of the last one, in ns.
    pub wall_ns: u64,
    /// Where the sender's limit lies; none where it could offer all that it was asked for.
    pub sender: Option<SenderBound>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A goal, and what a search found for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchGoal {
    /// The goal, its relevant bounds, the conditional throughput, and why the search for it ended.
    #[serde(flatten)]
    pub result: GoalResult,
    /// Where the packets went that were lost at the upper bound, over all trials at that load; disjoint counters.
    pub upper_drops: Vec<Drop>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}
