//! The way to one goal: through coarser targets, by proposing one trial after another.
//!
//! The draft leaves this open. What is done here is what `MLRsearch` 1.2.1 does, since its choices are proven: each target has
//! half the width of the one before and more seconds; the interval that one target found is where the next one begins.

use super::classify::Criterion;
use super::goal::Goal;
use super::grid::{End, Grid, place, split};
use super::trials::{Bounds, ByLoad};

/// Targets before the final one.
const EARLIER_TARGETS: i32 = 2;

/// A step that found nothing makes the next one so many times as wide.
const EXPANSION: i64 = 2;

/// A goal, or a coarser form of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) criterion: Criterion,
    /// In steps of the grid.
    pub(super) width: i64,
}

/// The targets of a goal, the coarsest first. Widths double, and sums of seconds shrink by equal ratios down to one initial
/// trial.
pub(super) fn targets(goal: &Goal, grid: &Grid) -> Vec<Target> {
    let ratio = (goal.initial_trial_s / goal.duration_sum_s).powf(1.0 / f64::from(EARLIER_TARGETS));
    let width = grid.steps(goal.width);
    let target = |back: i32| {
        let duration_sum_s = if back == EARLIER_TARGETS {
            goal.initial_trial_s
        } else {
            goal.duration_sum_s * ratio.powi(back)
        };
        let trial_s = goal.final_trial_s.min(duration_sum_s);
        Target { criterion: Criterion { trial_s, duration_sum_s, ..goal.criterion() }, width: width << back }
    };
    (0..=EARLIER_TARGETS).rev().map(target).collect()
}

/// What all pursuits see.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) grid: &'a Grid,
    pub(super) by_load: &'a ByLoad,
    /// The least number that is not tried any more, since the sender cannot offer it.
    pub(super) ceiling: Option<i64>,
    /// The width of the last step of any goal: two goals do not look upwards in turns with steps of different width.
    pub(super) last_width: i64,
}

/// A trial that a pursuit wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Proposal {
    pub(super) number: i64,
    pub(super) duration_s: f64,
    pub(super) width: i64,
}

/// What makes the next step wider once the proposed trial was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Miss {
    /// The load became a lower bound, though an upper one was looked for.
    Lower,
    /// The other way round.
    Upper,
}

/// The state of one goal.
#[derive(Debug, Clone)]
pub(super) struct Pursuit {
    targets: Vec<Target>,
    current: usize,
    /// Where the current target begins: the bounds of the one before. They need not be bounds of this one.
    start: Bounds,
    next_width: i64,
    miss: Option<Miss>,
}

impl Pursuit {
    /// Begins at two loads that the first trials suggest.
    pub(super) fn new(targets: Vec<Target>, start: Bounds) -> Pursuit {
        let mut pursuit = Pursuit { targets, current: 0, start, next_width: 1, miss: None };
        pursuit.restart(start);
        pursuit
    }

    fn restart(&mut self, start: Bounds) {
        self.start = start;
        self.miss = None;
        self.next_width = widen(self.target().width.max(start.span().unwrap_or(0)));
    }

    fn target(&self) -> Target {
        self.targets[self.current]
    }

    /// The next trial for this goal; None when it is reached, or cannot be.
    pub(super) fn propose(&mut self, view: &View<'_>) -> Option<Proposal> {
        loop {
            let bounds = self.bounds(view);
            self.miss = None;
            if let Some((number, width)) = self.step(bounds, view) {
                return Some(Proposal { number, duration_s: self.target().criterion.trial_s, width });
            }
            if self.current + 1 == self.targets.len() || bounds == Bounds::default() {
                return None;
            }
            self.current += 1;
            self.restart(bounds);
        }
    }

    /// The trial that this pursuit proposed was made. If it did not find the bound that was looked for, the next step is
    /// wider, and returned: so are those of other goals.
    pub(super) fn made(&mut self, number: i64, view: &View<'_>) -> Option<i64> {
        let bounds = self.bounds(view);
        let is_miss = match self.miss? {
            Miss::Lower => bounds.lower == Some(number),
            Miss::Upper => bounds.upper == Some(number),
        };
        is_miss.then(|| {
            self.next_width = widen(self.next_width);
            self.next_width
        })
    }

    /// The bounds among which to look. What the sender cannot offer is as good as an upper bound here.
    fn bounds(&self, view: &View<'_>) -> Bounds {
        let bounds = view.by_load.bounds(&self.target().criterion);
        let upper = match (bounds.upper, view.ceiling) {
            (Some(upper), Some(ceiling)) => Some(upper.min(ceiling)),
            (upper, ceiling) => upper.or(ceiling),
        };
        Bounds { upper, ..bounds }
    }

    /// The first way that has something to try, as a number and the width of the step.
    fn step(&mut self, bounds: Bounds, view: &View<'_>) -> Option<(i64, i64)> {
        let width = self.target().width;
        if let Some(number) =
            self.halve().into_iter().chain(self.start.lower).chain(self.start.upper).find(|&number| {
                // The middle of where the target begins, then its two ends.
                is_worthwhile(number, bounds, width)
            })
        {
            self.limit_width(width);
            return Some((number, width));
        }
        match (bounds.lower, bounds.upper) {
            (None, Some(upper)) if upper > 0 => self.look_down(upper, view),
            (Some(lower), None) if lower < view.grid.top() => self.look_up(lower, view),
            (Some(lower), Some(upper)) if upper - lower > width => Some(self.narrow(lower, upper, view)),
            _ => None,
        }
    }

    /// The middle of where the target begins, if it is up to twice as wide as the target.
    fn halve(&self) -> Option<i64> {
        let width = self.target().width;
        let (lower, span) = (self.start.lower?, self.start.span()?);
        (span > width && span <= 2 * width).then(|| split(lower, lower + span, width))
    }

    /// No load is a lower bound yet.
    fn look_down(&mut self, upper: i64, view: &View<'_>) -> Option<(i64, i64)> {
        let step = self.step_width(view);
        let number = place(upper - step, self.target().width, End::Limit(0), End::Bound(upper))?;
        self.miss = Some(Miss::Upper);
        Some((number, step))
    }

    /// No load is an upper bound yet.
    fn look_up(&mut self, lower: i64, view: &View<'_>) -> Option<(i64, i64)> {
        let step = self.step_width(view);
        let number =
            place(lower + step, self.target().width, End::Bound(lower), End::Limit(view.grid.top()))?;
        self.miss = Some(Miss::Lower);
        Some((number, step))
    }

    /// Both bounds are there, too far apart. They may come from another goal and lie far from where this one began: then a
    /// step from the nearer bound is better than the middle.
    fn narrow(&mut self, lower: i64, upper: i64, view: &View<'_>) -> (i64, i64) {
        let width = self.target().width;
        let middle = split(lower, upper, width);
        let step = self.step_width(view);
        let inside = |number: i64| {
            (number > lower && number < upper)
                .then(|| place(number, width, End::Bound(lower), End::Bound(upper)))
                .flatten()
        };
        let start = self.start;
        if let (Some(from), Some(number)) = (start.upper, inside(upper - step))
            && number > middle
            && number < from
        {
            self.miss = Some(Miss::Upper);
            return (number, step);
        }
        if let (Some(from), Some(number)) = (start.lower, inside(lower + step))
            && number < middle
            && number > from
        {
            self.miss = Some(Miss::Lower);
            return (number, step);
        }
        let half = (middle - lower).min(upper - middle);
        self.limit_width(half);
        (middle, half)
    }

    fn step_width(&self, view: &View<'_>) -> i64 {
        self.next_width.max(view.last_width).min(view.grid.top())
    }

    /// Intervals are getting narrower, so steps do.
    fn limit_width(&mut self, width: i64) {
        self.next_width = widen(width.max(self.target().width));
    }
}

/// Would a trial there make or improve a bound that is still wanted?
fn is_worthwhile(number: i64, bounds: Bounds, width: i64) -> bool {
    bounds.lower.is_none_or(|lower| lower < number)
        && bounds.upper.is_none_or(|upper| number < upper)
        && bounds.span().is_none_or(|span| span > width)
}

fn widen(width: i64) -> i64 {
    width.saturating_mul(EXPANSION)
}
