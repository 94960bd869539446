//! The first trials, which find out where to look: at the greatest load, at the rate that it forwarded, and close to that.

use super::grid::{End, Grid, place};
use super::pursuit::Target;
use super::sender::Sender;
use super::trial::{Trial, Use};
use super::trials::Bounds;

/// Made with all goals in mind: for the least loss, with the longest of the first trials, as coarse as the coarsest.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    loss_ratio: f64,
    duration_s: f64,
    width: i64,
    step: Step,
    number: i64,
    /// How often the load was lowered since the sender could not offer it.
    lowered: u32,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// At the greatest load, or the greatest that the sender seems able to offer.
    First,
    /// At the rate that the first one forwarded.
    Second { first: i64 },
    /// Next to the second one.
    Third { second: i64 },
}

impl Opening {
    pub(super) fn new(coarsest: &[Target], grid: &Grid) -> Opening {
        Opening {
            loss_ratio: coarsest.iter().map(|target| target.criterion.loss_ratio).fold(1.0, f64::min),
            duration_s: coarsest.iter().map(|target| target.criterion.trial_s).fold(0.0, f64::max),
            width: coarsest.iter().map(|target| target.width).max().unwrap_or(1),
            step: Step::First,
            number: grid.top(),
            lowered: 0,
        }
    }

    /// The trial to make, as number and seconds.
    pub(super) fn ask(&self) -> (i64, f64) {
        (self.number, self.duration_s)
    }

    /// The trial was made. Returns the two loads where goals begin, once they are found.
    pub(super) fn made(&mut self, trial: &Trial, sender: &Sender, grid: &Grid) -> Option<Bounds> {
        if trial.used == Use::NotOffered {
            return self.fell_short(trial, sender, grid);
        }
        // What it forwarded, with as much more as the goal lets be lost.
        let forwarded = grid.floor(trial.load_pps * (1.0 - trial.loss_ratio) / (1.0 - self.loss_ratio));
        match self.step {
            Step::First if forwarded >= self.number => Some(both(self.number, self.number)),
            Step::First => {
                self.step = Step::Second { first: self.number };
                self.go_to(place(forwarded, self.width, End::Limit(0), End::Bound(self.number)))
            }
            Step::Second { first } => {
                let second = self.number;
                let third = if trial.loss_ratio <= self.loss_ratio {
                    place_above(second, first, self.width)
                } else if second > 0 && forwarded < second {
                    place(forwarded, self.width, End::Limit(0), End::Bound(second))
                } else {
                    None
                };
                self.step = Step::Third { second };
                self.go_to(third)
            }
            Step::Third { second } => Some(both(second, self.number)),
        }
    }

    /// Asks for that load, or ends here when there is none.
    fn go_to(&mut self, number: Option<i64>) -> Option<Bounds> {
        match number {
            Some(number) => {
                self.number = number;
                None
            }
            None => Some(both(self.number, self.number)),
        }
    }

    /// The sender could not offer the load. If it is given up, the first trial is made lower; the later ones are left out.
    fn fell_short(&mut self, trial: &Trial, sender: &Sender, grid: &Grid) -> Option<Bounds> {
        let ceiling = sender.ceiling().filter(|&ceiling| ceiling <= self.number)?;
        match self.step {
            Step::First if ceiling > 0 => {
                // Somewhat below what it achieved, and further below each time.
                let step = self.width.saturating_mul(1 << self.lowered.min(30)).min(grid.top());
                let achieved = grid.floor(trial.result.achieved_pps.unwrap_or(trial.load_pps)).min(ceiling);
                self.lowered += 1;
                self.number = (achieved - step).max(0);
                None
            }
            Step::First => Some(both(0, 0)),
            Step::Second { .. } => Some(both(self.number, self.number)),
            Step::Third { second } => Some(both(second, self.number)),
        }
    }
}

/// A step above the second load, away from the first.
fn place_above(second: i64, first: i64, width: i64) -> Option<i64> {
    let number = second.saturating_add(width);
    (number < first).then(|| place(number, width, End::Bound(second), End::Bound(first))).flatten()
}

fn both(one: i64, other: i64) -> Bounds {
    Bounds { lower: Some(one.min(other)), upper: Some(one.max(other)) }
}
