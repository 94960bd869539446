//! The search itself: says which trial is next, takes what came of it, says what is known.

use super::classify::conditional_throughput;
use super::goal::{Goal, Limits, SettingsError};
use super::grid::Grid;
use super::opening::Opening;
use super::outcome::{Bound, Ending, GoalResult};
use super::pursuit::{Proposal, Pursuit, Target, View, targets};
use super::sender::{Sender, SenderBound};
use super::trial::{RecordError, Trial, TrialResult, Use};
use super::trials::{Bounds, ByLoad};

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Make this trial and [`Search::record`] it. Send for so many seconds and no longer, whatever was sent by then: the
    /// first trial is made at the greatest load, which a sender may be far from.
    Trial {
        /// The load, in packets per second.
        load_pps: f64,
        /// For how long to send, in seconds.
        duration_s: f64,
    },
    /// The search has ended.
    Done,
}

/// A search under way. It has no clock and sends nothing: whoever drives it asks for the next trial, makes it, and records
/// what came of it, until there is none. The module's documentation has an example.
#[derive(Debug, Clone)]
pub struct Search {
    goals: Vec<Goal>,
    limits: Limits,
    grid: Grid,
    targets: Vec<Vec<Target>>,
    by_load: ByLoad,
    sender: Sender,
    trials: Vec<Trial>,
    spent_s: f64,
    is_stopped: bool,
    phase: Phase,
    asked: Option<Asked>,
    last_width: i64,
}

#[derive(Debug, Clone)]
enum Phase {
    WarmUp { duration_s: f64 },
    Opening(Opening),
    Main(Vec<Pursuit>),
}

/// The trial that is being made.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: i64,
    duration_s: f64,
    used: Use,
    /// Whose it is, and the width of its step.
    pursuit: Option<(usize, i64)>,
}

impl Search {
    /// A search for these goals within these limits. If two goals want the same trial, it is that of the earlier one.
    ///
    /// # Errors
    /// Settings that mean nothing.
    pub fn new(goals: Vec<Goal>, limits: Limits) -> Result<Search, SettingsError> {
        limits.check(&goals)?;
        let widths: Vec<f64> = goals.iter().map(|goal| goal.width).collect();
        let grid = Grid::new(limits.min_pps, limits.max_pps, &widths);
        let targets: Vec<Vec<Target>> = goals.iter().map(|goal| targets(goal, &grid)).collect();
        let phase = match limits.warm_up_s {
            Some(duration_s) => Phase::WarmUp { duration_s },
            None => Phase::Opening(opening(&targets, &grid)),
        };
        Ok(Search {
            goals,
            limits,
            grid,
            targets,
            by_load: ByLoad::default(),
            sender: Sender::default(),
            trials: Vec::new(),
            spent_s: 0.0,
            is_stopped: false,
            phase,
            asked: None,
            last_width: 0,
        })
    }

    /// The trial to make next; the same one until it is recorded.
    pub fn next_trial(&mut self) -> Next {
        if self.is_expired() {
            return Next::Done;
        }
        if self.asked.is_none() {
            self.asked = self.choose();
        }
        match self.asked {
            Some(asked) => {
                Next::Trial { load_pps: self.grid.load_pps(asked.number), duration_s: asked.duration_s }
            }
            None => Next::Done,
        }
    }

    /// Takes what came of the trial that was asked for.
    ///
    /// # Errors
    /// Nothing was asked for, or the result cannot be one of that trial. Nothing changes then.
    pub fn record(&mut self, result: TrialResult) -> Result<(), RecordError> {
        let asked = self.asked.ok_or(RecordError::NotAsked)?;
        result.check(asked.duration_s)?;
        let loss_ratio = result.loss_ratio().ok_or(RecordError::NoPackets)?;
        let used = match asked.used {
            Use::Counted if !result.is_offered() => Use::NotOffered,
            used => used,
        };
        let load_pps = self.grid.load_pps(asked.number);
        let trial = Trial { load_pps, duration_s: asked.duration_s, result, loss_ratio, used };
        self.asked = None;
        self.spent_s += result.effective_s;
        self.trials.push(trial);
        match used {
            Use::WarmUp => {}
            Use::Counted => {
                self.by_load.add(asked.number, trial.sample());
                self.sender.offered(asked.number);
            }
            Use::NotOffered => {
                let share = result.offered as f64 / result.intended as f64;
                let achieved_pps = result.achieved_pps.unwrap_or(load_pps * share);
                self.sender.fell_short(asked.number, load_pps, achieved_pps);
            }
        }
        self.advance(&asked, &trial);
        Ok(())
    }

    /// Ends the search: the time is up by somebody's clock, or somebody asked for it.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// What is known for every goal, in their order. It can be asked at any time.
    #[must_use]
    pub fn results(&self) -> Vec<GoalResult> {
        self.goals.iter().zip(&self.targets).map(|(goal, targets)| self.result(goal, targets)).collect()
    }

    /// All trials, in the order in which they were made.
    #[must_use]
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// The goals.
    #[must_use]
    pub fn goals(&self) -> &[Goal] {
        &self.goals
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The seconds that all trials count for.
    #[must_use]
    pub fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// Where the sender's limit lies, if it was met.
    #[must_use]
    pub fn sender_bound(&self) -> Option<SenderBound> {
        self.sender.bound(|number| self.grid.load_pps(number))
    }

    fn is_expired(&self) -> bool {
        self.is_stopped || self.spent_s >= self.limits.time_limit_s
    }

    fn choose(&mut self) -> Option<Asked> {
        match &mut self.phase {
            Phase::WarmUp { duration_s } => {
                let (number, duration_s) = (self.grid.top(), *duration_s);
                Some(Asked { number, duration_s, used: Use::WarmUp, pursuit: None })
            }
            Phase::Opening(opening) => {
                let (number, duration_s) = opening.ask();
                Some(Asked { number, duration_s, used: Use::Counted, pursuit: None })
            }
            Phase::Main(pursuits) => {
                let view = View {
                    grid: &self.grid,
                    by_load: &self.by_load,
                    ceiling: self.sender.ceiling(),
                    last_width: self.last_width,
                };
                let proposals = pursuits.iter_mut().enumerate();
                let (owner, proposal) = proposals
                    .filter_map(|(owner, pursuit)| Some((owner, pursuit.propose(&view)?)))
                    .reduce(|best, other| if is_sooner(&other.1, &best.1) { other } else { best })?;
                Some(Asked {
                    number: proposal.number,
                    duration_s: proposal.duration_s,
                    used: Use::Counted,
                    pursuit: Some((owner, proposal.width)),
                })
            }
        }
    }

    /// Goes on after a trial.
    fn advance(&mut self, asked: &Asked, trial: &Trial) {
        match &mut self.phase {
            Phase::WarmUp { .. } => {
                self.phase = Phase::Opening(opening(&self.targets, &self.grid));
            }
            Phase::Opening(opening) => {
                if let Some(start) = opening.made(trial, &self.sender, &self.grid) {
                    self.last_width = start.span().unwrap_or(0);
                    self.phase = Phase::Main(
                        self.targets.iter().map(|targets| Pursuit::new(targets.clone(), start)).collect(),
                    );
                }
            }
            Phase::Main(pursuits) => {
                let Some((owner, width)) = asked.pursuit else { return };
                self.last_width = width;
                let view = View {
                    grid: &self.grid,
                    by_load: &self.by_load,
                    ceiling: self.sender.ceiling(),
                    last_width: width,
                };
                if let Some(wider) =
                    pursuits.get_mut(owner).and_then(|pursuit| pursuit.made(asked.number, &view))
                {
                    self.last_width = wider;
                }
            }
        }
    }

    fn result(&self, goal: &Goal, targets: &[Target]) -> GoalResult {
        let criterion = goal.criterion();
        let bounds = self.by_load.bounds(&criterion);
        let width = targets.last().map_or(0, |target| target.width);
        let bound = |number: i64| {
            let samples = self.by_load.at(number);
            let losses = || samples.iter().map(|sample| sample.loss_ratio);
            Bound {
                load_pps: self.grid.load_pps(number),
                trials: samples.len(),
                high_loss: losses().filter(|&loss| loss > goal.loss_ratio).count(),
                loss_ratio_least: losses().fold(1.0, f64::min),
                loss_ratio_most: losses().fold(0.0, f64::max),
            }
        };
        GoalResult {
            goal: goal.clone(),
            lower: bounds.lower.map(bound),
            upper: bounds.upper.map(bound),
            conditional_throughput_pps: bounds.lower.and_then(|number| {
                conditional_throughput(self.grid.load_pps(number), &criterion, self.by_load.at(number))
            }),
            ending: self.ending(goal, bounds, width),
        }
    }

    fn ending(&self, goal: &Goal, bounds: Bounds, width: i64) -> Ending {
        let ceiling = self.sender.ceiling();
        let is_at_ceiling = |lower: i64| ceiling.is_some_and(|ceiling| ceiling - lower <= width);
        match (bounds.lower, bounds.upper) {
            (Some(lower), Some(upper)) if upper - lower <= width => Ending::Regular,
            // Before the loss: at a load that is not held no loss says anything about the target.
            (None, _) if ceiling == Some(0) => Ending::NotOffered,
            (None, Some(0)) => Ending::LosesAtMinimum,
            (Some(lower), None) if lower == self.grid.top() => Ending::PassesAtMaximum,
            (Some(lower), None) if is_at_ceiling(lower) && !self.loses_above_ceiling(goal) => {
                Ending::BoundedBySender
            }
            (Some(lower), _) if is_at_ceiling(lower) => Ending::UnsteadySender,
            _ if self.is_expired() => Ending::TimeLimit,
            _ => Ending::Unfinished,
        }
    }
}

impl Search {
    /// Whether a load was offered all the same that the sender was given up for, and the target lost more of it than the goal allows.
    fn loses_above_ceiling(&self, goal: &Goal) -> bool {
        let Some(ceiling) = self.sender.ceiling() else { return false };
        let from_pps = self.grid.load_pps(ceiling);
        let counted = self.trials.iter().filter(|trial| trial.used == Use::Counted);
        counted.into_iter().any(|trial| trial.load_pps >= from_pps && trial.loss_ratio > goal.loss_ratio)
    }
}

fn opening(targets: &[Vec<Target>], grid: &Grid) -> Opening {
    let coarsest: Vec<Target> = targets.iter().filter_map(|targets| targets.first().copied()).collect();
    Opening::new(&coarsest, grid)
}

/// Is this trial to be made before the other, which belongs to an earlier goal? The lowest load first, so that what is known
/// above it does not come to nothing; then the longest trial, then the widest step.
fn is_sooner(this: &Proposal, other: &Proposal) -> bool {
    match this.number.cmp(&other.number).then(other.duration_s.total_cmp(&this.duration_s)) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => this.width > other.width,
        std::cmp::Ordering::Greater => false,
    }
}
