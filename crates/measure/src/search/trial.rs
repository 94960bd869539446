//! One trial: what was asked for and what came of it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::classify::Sample;

/// What came of a trial.
///
/// A sender that could not offer the load makes the trial invalid: say so in `achieved_pps`. A trial with fewer packets
/// offered than intended is invalid, too. Of an invalid trial nothing is used but the rate that was achieved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialResult {
    /// Packets that were to be sent.
    pub intended: u64,
    /// Packets that were sent.
    pub offered: u64,
    /// Packets that arrived, after the drain. More than were sent (copies) counts as much as less: something is wrong.
    pub forwarded: u64,
    /// Seconds that the trial counts for (the draft's "Trial Effective Duration"): the duration that was asked for, or the
    /// time that the whole trial took where the search is to fit a time. At least half of the duration asked for.
    pub effective_s: f64,
    /// None if the load was offered. Else the rate that the sender achieved, in packets per second.
    pub achieved_pps: Option<f64>,
}

impl TrialResult {
    /// A trial in which everything was sent as asked for.
    #[must_use]
    pub fn offered(intended: u64, forwarded: u64, effective_s: f64) -> TrialResult {
        TrialResult { intended, offered: intended, forwarded, effective_s, achieved_pps: None }
    }

    /// Did the sender offer the load?
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.achieved_pps.is_none() && self.offered >= self.intended
    }

    /// Packets that did not arrive, or arrived beyond those that were sent.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.offered.abs_diff(self.forwarded)
    }

    /// What was lost of what was sent, from 0 to 1. Packets sent beyond the intended ones count as lost, as in `MLRsearch`
    /// 1.2.1 (`MeasurementResult.loss_ratio`): whatever is irregular leads to lower loads. None where no packet was meant.
    #[must_use]
    pub fn loss_ratio(&self) -> Option<f64> {
        let all = self.offered.max(self.intended);
        let bad = self.lost().saturating_add(self.offered.abs_diff(self.intended));
        (all > 0).then(|| (bad as f64 / all as f64).min(1.0))
    }

    pub(super) fn check(&self, asked_s: f64) -> Result<(), RecordError> {
        if self.intended == 0 {
            return Err(RecordError::NoPackets);
        }
        if !self.effective_s.is_finite() || self.effective_s < asked_s / 2.0 {
            return Err(RecordError::Duration { effective_s: self.effective_s, asked_s });
        }
        match self.achieved_pps {
            Some(achieved_pps) if !achieved_pps.is_finite() || achieved_pps < 0.0 => {
                Err(RecordError::Achieved { achieved_pps })
            }
            _ => Ok(()),
        }
    }
}

/// What a trial was good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// It counts for every goal.
    Counted,
    /// Before the search; nothing is used.
    WarmUp,
    /// The sender could not offer the load; nothing is used but the rate that it achieved.
    NotOffered,
}

/// A trial that was made. All of them are kept, so that a record can hold them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The load asked for, in packets per second.
    pub load_pps: f64,
    /// The duration asked for, in seconds.
    pub duration_s: f64,
    /// What came of it.
    pub result: TrialResult,
    /// [`TrialResult::loss_ratio`].
    pub loss_ratio: f64,
    /// What it was good for.
    pub used: Use,
}

impl Trial {
    pub(super) fn sample(&self) -> Sample {
        Sample {
            duration_s: self.duration_s,
            effective_s: self.result.effective_s,
            loss_ratio: self.loss_ratio,
        }
    }
}

/// A result that cannot be one of the trial that was asked for. The trial is still to be made.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum RecordError {
    /// Nothing was asked for.
    #[error("record a trial: none was asked for since the last one")]
    NotAsked,
    /// No loss ratio can be had from nothing.
    #[error("record a trial: it intended no packets; raise the least load or the initial trial duration")]
    NoPackets,
    /// A trial that was broken off is none.
    #[error(
        "record a trial: it counts for {effective_s} s, and {asked_s} s were asked for; at least half of that must count"
    )]
    Duration {
        /// What it counts for.
        effective_s: f64,
        /// What was asked for.
        asked_s: f64,
    },
    /// No rate.
    #[error("record a trial: an achieved rate of {achieved_pps} pps is none")]
    Achieved {
        /// What was said.
        achieved_pps: f64,
    },
}
