//! What is searched for, and within what limits.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::classify::Criterion;

/// The narrowest width that a goal may have: a millionth of the load. No sender holds a rate better.
pub const WIDTH_LEAST: f64 = 1e-6;

/// One goal of a search (draft-ietf-bmwg-mlrsearch-15, "Search Goal"): at most so much loss, in all but so many
/// seconds, at a load that is known to within so much.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// What a report calls it. Every goal of a search has a name of its own.
    pub name: String,
    /// A trial with a greater loss ratio is a high-loss trial. From 0 to below 1.
    pub loss_ratio: f64,
    /// The share of seconds that may be high-loss at a load that is still a lower bound. From 0 to below 1.
    pub exceed_ratio: f64,
    /// The goal is reached when the upper bound less the lower one is at most this share of the upper one.
    pub width: f64,
    /// The shortest trial that is made for this goal, in seconds: used where the search is still coarse.
    pub initial_trial_s: f64,
    /// A trial at least this long is full-length, in seconds.
    pub final_trial_s: f64,
    /// So many seconds of full-length trials decide a load, unless it is decided sooner.
    pub duration_sum_s: f64,
}

impl Goal {
    /// No loss, for a search that takes well under a minute: 11 trials of half a second at a load, of which 6 that
    /// agree decide it, to within 1 %.
    #[must_use]
    pub fn ndr() -> Goal {
        Goal {
            name: "NDR".into(),
            loss_ratio: 0.0,
            exceed_ratio: 0.5,
            width: 0.01,
            initial_trial_s: 0.5,
            final_trial_s: 0.5,
            duration_sum_s: 5.5,
        }
    }

    /// At most 0.5 % of loss, otherwise as [`Goal::ndr`].
    #[must_use]
    pub fn pdr() -> Goal {
        Goal { name: "PDR".into(), loss_ratio: 0.005, ..Goal::ndr() }
    }

    /// The two goals that FD.io's CSIT reports, with its durations and width: 21 trials of a second, 0.5 %
    /// (`MLRsearch` 1.2.1, defaults of `SearchGoal`).
    #[must_use]
    pub fn csit() -> Vec<Goal> {
        let seconds = |goal: Goal| Goal {
            width: 0.005,
            initial_trial_s: 1.0,
            final_trial_s: 1.0,
            duration_sum_s: 21.0,
            ..goal
        };
        vec![seconds(Goal::ndr()), seconds(Goal::pdr())]
    }

    /// The throughput of RFC 2544, section 26.1: one trial of 60 s without loss. As the draft's "`MLRsearch` Compliant
    /// with RFC 2544"; trials of a second find out where to look.
    #[must_use]
    pub fn rfc2544() -> Goal {
        Goal {
            name: "RFC2544".into(),
            loss_ratio: 0.0,
            exceed_ratio: 0.0,
            width: 0.005,
            initial_trial_s: 1.0,
            final_trial_s: 60.0,
            duration_sum_s: 60.0,
        }
    }

    /// Binary search with loss verification of ETSI GS NFV-TST 009, section 12.3.3, with two tries: a trial with loss is
    /// made once more. As the draft's "`MLRsearch` Compliant with TST009".
    #[must_use]
    pub fn tst009() -> Goal {
        Goal { name: "TST009".into(), exceed_ratio: 0.5, duration_sum_s: 120.0, ..Goal::rfc2544() }
    }

    /// What decides a load for this goal.
    #[must_use]
    pub fn criterion(&self) -> Criterion {
        Criterion {
            loss_ratio: self.loss_ratio,
            exceed_ratio: self.exceed_ratio,
            trial_s: self.final_trial_s,
            duration_sum_s: self.duration_sum_s,
        }
    }

    /// What is allowed but not wise, each with the reason.
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        let mut advice = Vec::new();
        if self.width < self.loss_ratio {
            advice.push(Advice::WidthBelowLossRatio);
        }
        if self.initial_trial_s < self.final_trial_s {
            advice.push(Advice::ShortTrials);
        }
        advice
    }

    /// Does this goal mean something?
    ///
    /// # Errors
    /// The first setting that does not, with what it must be.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |setting, value, must: &str| {
            Err(SettingsError::Goal { goal: self.name.clone(), setting, value, must: must.into() })
        };
        if !(0.0..1.0).contains(&self.loss_ratio) {
            return wrong("loss ratio", self.loss_ratio, "be at least 0 and less than 1");
        }
        if !(0.0..1.0).contains(&self.exceed_ratio) {
            return wrong("exceed ratio", self.exceed_ratio, "be at least 0 and less than 1");
        }
        if !(WIDTH_LEAST..1.0).contains(&self.width) {
            return wrong("width", self.width, "be a share of the load, at least 0.000001 and less than 1");
        }
        if !is_positive(self.initial_trial_s) {
            return wrong("initial trial duration", self.initial_trial_s, "be a number of seconds above 0");
        }
        if !is_positive(self.final_trial_s) || self.final_trial_s < self.initial_trial_s {
            return wrong("final trial duration", self.final_trial_s, "be at least the initial one");
        }
        if !is_positive(self.duration_sum_s) || self.duration_sum_s < self.final_trial_s {
            return wrong("duration sum", self.duration_sum_s, "be at least one final trial");
        }
        Ok(())
    }
}

/// A setting that is allowed but makes results harder to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Advice {
    /// The draft's "Generalized Throughput".
    #[error(
        "the width is less than the loss ratio, so a goal that allows more loss can get the lower conditional throughput"
    )]
    WidthBelowLossRatio,
    /// The draft's "Short Trials and Duration Selection".
    #[error(
        "trials shorter than the final duration are made first, which saves time but makes loads harder to explain"
    )]
    ShortTrials,
}

/// What bounds a search, whatever its goals are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The least load that is tried, in packets per second: when it is an upper bound, the target loses at low load.
    pub min_pps: f64,
    /// The greatest load that is tried, in packets per second.
    pub max_pps: f64,
    /// The search ends when its trials have taken so many seconds (their effective durations), or when
    /// [`super::Search::stop`] is called by somebody who has a clock.
    pub time_limit_s: f64,
    /// First a trial of so many seconds at the greatest load, of which nothing is used. A target that needs warming up
    /// would otherwise be held to its first results (the draft's "Consequences" under "Loss Ratios and Loss Inversion").
    pub warm_up_s: Option<f64>,
}

impl Limits {
    /// The limits that FD.io's CSIT searches within: from 9001 packets per second, 20 minutes, one second of warm-up.
    #[must_use]
    pub fn csit(max_pps: f64) -> Limits {
        Limits { min_pps: 9001.0, max_pps, time_limit_s: 1200.0, warm_up_s: Some(1.0) }
    }

    /// Do these limits mean something for these goals?
    ///
    /// # Errors
    /// No goals, two goals of one name, a goal or limit that means nothing, or a least load that is less than one packet
    /// in the shortest trial.
    pub fn check(&self, goals: &[Goal]) -> Result<(), SettingsError> {
        if !is_positive(self.min_pps) {
            return Err(SettingsError::Limit { limit: "least load", value: self.min_pps });
        }
        if !is_positive(self.max_pps) {
            return Err(SettingsError::Limit { limit: "greatest load", value: self.max_pps });
        }
        if self.max_pps <= self.min_pps {
            return Err(SettingsError::Order { min_pps: self.min_pps, max_pps: self.max_pps });
        }
        if !is_positive(self.time_limit_s) {
            return Err(SettingsError::Limit { limit: "time limit", value: self.time_limit_s });
        }
        if let Some(value) = self.warm_up_s.filter(|&seconds| !is_positive(seconds)) {
            return Err(SettingsError::Limit { limit: "warm-up", value });
        }
        if goals.is_empty() {
            return Err(SettingsError::NoGoals);
        }
        for (index, goal) in goals.iter().enumerate() {
            goal.check()?;
            if goals[..index].iter().any(|other| other.name == goal.name) {
                return Err(SettingsError::SameName { name: goal.name.clone() });
            }
            if self.min_pps * goal.initial_trial_s < 1.0 {
                return Err(SettingsError::LessThanOnePacket {
                    goal: goal.name.clone(),
                    min_pps: self.min_pps,
                    trial_s: goal.initial_trial_s,
                });
            }
        }
        Ok(())
    }
}

fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Settings that mean nothing.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SettingsError {
    /// Of a goal.
    #[error("search goal {goal}: the {setting} is {value}, and must {must}")]
    Goal {
        /// The goal's name.
        goal: String,
        /// Which.
        setting: &'static str,
        /// What it is.
        value: f64,
        /// What it must be or do.
        must: String,
    },
    /// A limit that is no number above 0.
    #[error("search limits: the {limit} is {value}, and must be a number above 0")]
    Limit {
        /// Which.
        limit: &'static str,
        /// What it is.
        value: f64,
    },
    /// Nothing between the least and the greatest load.
    #[error("search limits: the greatest load {max_pps} pps must be above the least, {min_pps} pps")]
    Order {
        /// The least load.
        min_pps: f64,
        /// The greatest load.
        max_pps: f64,
    },
    /// A search for nothing.
    #[error("search: give at least one goal")]
    NoGoals,
    /// Results could not be told apart.
    #[error("search: two goals are called {name}; give each a name of its own")]
    SameName {
        /// The name.
        name: String,
    },
    /// No loss ratio can be had from nothing (the draft's "Min Load").
    #[error(
        "search goal {goal}: {min_pps} pps for {trial_s} s is less than one packet; raise the least load or the initial trial duration"
    )]
    LessThanOnePacket {
        /// The goal's name.
        goal: String,
        /// The least load.
        min_pps: f64,
        /// The shortest trial.
        trial_s: f64,
    },
}
