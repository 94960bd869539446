//! What a search found out.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::goal::Goal;

/// One load that is a bound, and the trials behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// The load, in packets per second.
    pub load_pps: f64,
    /// Trials at it that count.
    pub trials: usize,
    /// High-loss ones among them, for this goal.
    pub high_loss: usize,
    /// The least loss ratio of a trial at it.
    pub loss_ratio_least: f64,
    /// The greatest.
    pub loss_ratio_most: f64,
}

/// The result for one goal.
///
/// It is regular (the draft's "Regular Goal Result") when both bounds are there and no further apart than the goal's
/// width; [`Ending`] says what else can be. All that is known is given also then, and must be shown together with the
/// ending.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    /// The goal.
    pub goal: Goal,
    /// The relevant lower bound: the greatest load that meets the goal and lies below the relevant upper bound, or below
    /// everything if there is no upper bound.
    pub lower: Option<Bound>,
    /// The relevant upper bound: the least load that misses the goal.
    pub upper: Option<Bound>,
    /// The forwarding rate at the lower bound, in packets per second (the draft's "Conditional Throughput").
    pub conditional_throughput_pps: Option<f64>,
    /// Why the search for this goal ended.
    pub ending: Ending,
}

impl GoalResult {
    /// Is it what was searched for?
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.ending == Ending::Regular
    }
}

/// Why the search for a goal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Both bounds were found, as close to each other as the goal asks for.
    Regular,
    /// The least load is an upper bound, so there is no lower one. Nothing else was tried for this goal then ("fail fast").
    LosesAtMinimum,
    /// The greatest load is a lower bound, so there is no upper one.
    PassesAtMaximum,
    /// The greatest load that the sender can offer is a lower bound: what the target can do is not known.
    BoundedBySender,
    /// A load is a lower bound above which the sender could not hold its rate in some trials; in others it could, and then more was
    /// lost than the goal allows. Where between both the target's limit is, is not known: the bounds are further apart than asked for.
    UnsteadySender,
    /// The sender cannot offer even the least load.
    NotOffered,
    /// The time was up before.
    TimeLimit,
    /// It has not ended.
    Unfinished,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Regular => "found",
            Ending::LosesAtMinimum => "the target loses at the least load",
            Ending::PassesAtMaximum => "the target passes the greatest load, so its limit is not known",
            Ending::BoundedBySender => {
                "the target passes all that the sender can offer, so its limit is not known"
            }
            Ending::UnsteadySender => {
                "the sender was unsteady between the bounds, which are further apart than the goal asks for"
            }
            Ending::NotOffered => "the sender cannot offer even the least load",
            Ending::TimeLimit => "the time was up before both bounds were found",
            Ending::Unfinished => "the search has not ended",
        })
    }
}
