//! The loads that may be tried: equally spaced in logarithm, so fine that every goal's width is nearly a whole number of
//! steps. Intervals are then halved and doubled in whole numbers, exactly.

/// A width is this share of whole steps at least, and less than this one by so much at most: rounding must never make an
/// interval wider than its goal.
const FIT_LEAST: f64 = 0.99;
const FIT_MOST: f64 = 0.999_999;

/// Grids tried before the last one is taken as it is, which makes intervals narrower than they need be.
const TRIES: u32 = 1000;

/// Loads from the least (number 0) to the greatest (number [`Grid::top`]).
#[derive(Debug, Clone)]
pub(super) struct Grid {
    min_pps: f64,
    max_pps: f64,
    log_span: f64,
    top: i64,
}

impl Grid {
    /// For loads with `0 < min_pps < max_pps` and widths between [`super::goal::WIDTH_LEAST`] and 1.
    pub(super) fn new(min_pps: f64, max_pps: f64, widths: &[f64]) -> Grid {
        let log_span = max_pps.ln() - min_pps.ln();
        // A goal that is as wide as the whole range fits any grid.
        let wanted: Vec<f64> =
            widths.iter().map(|&width| log_width(width)).filter(|&width| width < log_span).collect();
        let mut top = 1;
        for _ in 0..TRIES {
            let misfits = wanted.iter().map(|width| width / log_span * top as f64).filter(|&steps| {
                let fit = steps.floor() / steps;
                !(FIT_LEAST..=FIT_MOST).contains(&fit)
            });
            let next = misfits
                .map(|steps| ((steps.floor() + 1.0) / FIT_MOST / steps * top as f64).ceil() as i64)
                .max();
            match next {
                Some(next) => top = next.max(top + 1),
                None => break,
            }
        }
        Grid { min_pps, max_pps, log_span, top }
    }

    /// The number of the greatest load.
    pub(super) fn top(&self) -> i64 {
        self.top
    }

    /// The load of a number. Numbers outside are taken to the nearest end.
    pub(super) fn load_pps(&self, number: i64) -> f64 {
        if number <= 0 {
            return self.min_pps;
        }
        if number >= self.top {
            return self.max_pps;
        }
        let load = self.min_pps * (self.log_span * (number as f64 / self.top as f64)).exp();
        load.clamp(self.min_pps, self.max_pps)
    }

    /// The greatest number whose load is at most this one; 0 for anything below.
    pub(super) fn floor(&self, load_pps: f64) -> i64 {
        if load_pps.is_nan() || load_pps <= self.min_pps {
            return 0;
        }
        if load_pps >= self.max_pps {
            return self.top;
        }
        let share = (load_pps.ln() - self.min_pps.ln()) / self.log_span;
        let near = (share * self.top as f64) as i64;
        // The logarithm and the exponential may round differently.
        (near - 1..=near + 1)
            .rev()
            .find(|&number| self.load_pps(number) <= load_pps)
            .unwrap_or(0)
            .clamp(0, self.top)
    }

    /// How many steps are surely no wider than this width, but at least one.
    pub(super) fn steps(&self, width: f64) -> i64 {
        let steps = log_width(width) / self.log_span * self.top as f64 * FIT_MOST;
        (steps.floor() as i64).clamp(1, self.top)
    }
}

/// The distance of the logarithms of two loads, of which the lower is less by this share of the upper.
fn log_width(width: f64) -> f64 {
    -(-width).ln_1p()
}

/// Divides an interval that is wider than `width`: one part is `width` times a power of two, so that later halves come
/// out even; of the two best ways that which is more even; the lower part is the smaller one, since low loads take
/// nothing away from what is known above them. Always strictly inside when there is room.
pub(super) fn split(lower: i64, upper: i64, width: i64) -> i64 {
    let span = upper - lower;
    let mut unit = width.max(1);
    if span < 2 * unit {
        if unit % 2 != 0 {
            return lower + span / 2;
        }
        unit /= 2;
    }
    if span == 2 * unit {
        return lower + unit;
    }
    if span <= unit {
        return lower + span / 2;
    }
    let mut part = unit;
    while span - 2 * part > 2 * part {
        part *= 2;
    }
    let evenness = |part: i64| i128::from(part) * i128::from(span - part);
    if evenness(part) > evenness(2 * part) { lower + part } else { lower + span - 2 * part }
}

/// One end of the loads among which a new one is placed.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// A limit that may itself be tried.
    Limit(i64),
    /// A bound that is known already.
    Bound(i64),
}

impl End {
    fn number(self) -> i64 {
        match self {
            End::Limit(number) | End::Bound(number) => number,
        }
    }
}

/// Moves a load away from the ends, so that nothing is tried closer than `width` to what is known: to the end itself if it
/// is a limit, else to `width` from it, or to the middle where there is room for one only. None when there is no room.
pub(super) fn place(load: i64, width: i64, lower: End, upper: End) -> Option<i64> {
    let (least, most) = (lower.number(), upper.number());
    let room = most - least;
    if room <= width {
        return match (lower, upper) {
            (End::Limit(limit), _) | (_, End::Limit(limit)) => Some(limit),
            _ => None,
        };
    }
    let (mut near_least, mut near_most) = (least + width, most - width);
    if near_least > near_most {
        near_least = split(least, most, width);
        near_most = near_least;
    }
    Some(if load < near_least {
        if matches!(lower, End::Limit(_)) { least } else { near_least }
    } else if load > near_most {
        if matches!(upper, End::Limit(_)) { most } else { near_most }
    } else {
        load
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_width_is_nearly_whole_steps() {
        let grid = Grid::new(1e3, 1e9, &[0.005]);
        assert!(grid.top() > 2700 && grid.top() < 2760, "{}", grid.top());
        assert_eq!(grid.steps(0.005), 1);
        assert_eq!(grid.load_pps(-1), 1e3);
        assert_eq!(grid.load_pps(grid.top() + 1), 1e9);
    }

    #[test]
    fn halves_are_powers_of_two() {
        assert_eq!(split(0, 2, 1), 1);
        assert_eq!(split(0, 3, 1), 1);
        assert_eq!(split(0, 16, 1), 8);
        assert_eq!(split(0, 10, 1), 4);
        assert_eq!(split(0, 11, 1), 4);
        assert_eq!(split(0, 13, 1), 5);
        assert_eq!(split(0, 3, 2), 1);
        assert_eq!(split(10, 14, 3), 12);
    }

    #[test]
    fn a_load_keeps_its_distance() {
        let inside = |load| place(load, 10, End::Bound(0), End::Bound(100));
        assert_eq!(inside(50), Some(50));
        assert_eq!(inside(3), Some(10));
        assert_eq!(inside(99), Some(90));
        assert_eq!(place(3, 10, End::Limit(0), End::Bound(100)), Some(0));
        assert_eq!(place(99, 10, End::Bound(0), End::Limit(100)), Some(100));
        assert_eq!(place(5, 10, End::Bound(0), End::Bound(10)), None);
        assert_eq!(place(5, 10, End::Limit(0), End::Bound(10)), Some(0));
        assert_eq!(place(5, 10, End::Bound(0), End::Bound(12)), Some(split(0, 12, 10)));
    }

    proptest! {
        #[test]
        fn steps_are_never_wider_than_the_width(
            min in 1e-3f64..1e9,
            ratio in 1.000_001f64..1e9,
            widths in prop::collection::vec(1e-6f64..0.9, 1..4),
            at in 0.0f64..1.0,
        ) {
            let grid = Grid::new(min, min * ratio, &widths);
            for &width in &widths {
                let steps = grid.steps(width);
                prop_assert!(steps >= 1);
                let lower = (at * (grid.top() - steps) as f64) as i64;
                let (low, high) = (grid.load_pps(lower), grid.load_pps(lower + steps));
                prop_assert!(low < high);
                prop_assert!(high - low <= width * high, "{} > {}", (high - low) / high, width);
            }
        }

        #[test]
        fn floor_finds_the_number_again(min in 1e-3f64..1e9, ratio in 1.000_01f64..1e9, width in 1e-6f64..0.5, at in 0.0f64..1.0) {
            let grid = Grid::new(min, min * ratio, &[width]);
            let number = (at * grid.top() as f64) as i64;
            prop_assert_eq!(grid.floor(grid.load_pps(number)), number);
        }

        #[test]
        fn a_split_lies_inside(lower in 0i64..1000, span in 1i64..1_000_000_000_000, width in 1i64..1_000_000) {
            let middle = split(lower, lower + span, width);
            prop_assert!(middle >= lower && middle < lower + span);
            if span >= 2 {
                prop_assert!(middle > lower);
            }
        }
    }
}
