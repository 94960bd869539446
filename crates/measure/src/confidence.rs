//! Repeating until the mean is known well enough: netperf's `-I` and `-i`.
//!
//! After each run the interval of the mean (Student's t) of every quantity is compared with the width that was asked for. Width
//! has netperf's meaning: from one end of the interval to the other, as a part of the mean; 5 % is ±2.5 %. Every figure
//! is the mean over all runs.
//!
//! What netperf has and this has not: a table of 29 degrees of freedom and two levels, an interval of the throughput of the
//! last run alone, and figures of the last run beside means over all.
//!
//! To look after every run and to stop at the first interval that is narrow enough makes that interval hold a little less
//! often than its level says, as runs that happen to agree end the series. With a least number of 3 runs and a level of
//! 99 % it holds in some 97 % of series.
//!
//! ```
//! use measure::confidence::{Decision, Repeats, Wanted};
//!
//! let wanted = Wanted::new(0.99, 0.05, 3, 30).unwrap();
//! let mut repeats = Repeats::new(wanted, 2);
//! for (throughput, cpu) in [(941.0, 12.0), (942.0, 12.1), (941.5, 12.05)] {
//!     assert_eq!(repeats.decision(), Decision::More);
//!     repeats.add(&[Some(throughput), Some(cpu)]);
//! }
//! assert_eq!(repeats.decision(), Decision::Achieved);
//! assert!((repeats.means()[0].unwrap().mean - 941.5).abs() < 1e-9);
//! ```

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};
use thiserror::Error;

/// The most runs that are possible.
pub const MAX_RUNS: u32 = 10_000;

/// How well a mean is to be known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WantedFields", into = "WantedFields")]
pub struct Wanted {
    level: f64,
    width: f64,
    min_runs: u32,
    max_runs: u32,
}

/// A wish that means nothing.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WantedError {
    /// The level is no probability.
    #[error("a confidence level of {0} %: more than 0 and less than 100 are possible")]
    Level(f64),
    /// The width is nothing that an interval can have.
    #[error("an interval of {0} % of the mean: it has to be more than 0")]
    Width(f64),
    /// So few or many runs are not possible.
    #[error(
        "{min} to {max} runs: at least 2 and at most {MAX_RUNS} are possible, and the least before the most"
    )]
    Runs {
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
}

impl Wanted {
    /// Repeat at least `min_runs` times, and go on until the interval at `level` (0.99) is no wider than `width` (0.05) of the
    /// mean, but no longer than `max_runs`.
    ///
    /// # Errors
    /// A level or width that cannot be, fewer than 2 runs, or fewer at most than at least.
    pub fn new(level: f64, width: f64, min_runs: u32, max_runs: u32) -> Result<Self, WantedError> {
        if !(level > 0.0 && level < 1.0) {
            return Err(WantedError::Level(level * 100.0));
        }
        if !(width > 0.0 && width.is_finite()) {
            return Err(WantedError::Width(width * 100.0));
        }
        if min_runs < 2 || max_runs < min_runs || max_runs > MAX_RUNS {
            return Err(WantedError::Runs { min: min_runs, max: max_runs });
        }
        Ok(Self { level, width, min_runs, max_runs })
    }

    /// The level of the interval.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Its full width as a part of the mean.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// The least number of runs.
    pub fn min_runs(&self) -> u32 {
        self.min_runs
    }

    /// The most.
    pub fn max_runs(&self) -> u32 {
        self.max_runs
    }
}

/// The values of every quantity in every run so far.
#[derive(Debug, Clone)]
pub struct Repeats {
    wanted: Wanted,
    runs: u32,
    values: Vec<Vec<f64>>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Another run.
    More,
    /// All quantities are known well enough.
    Achieved,
    /// They are not, and there may be no more runs.
    NotAchieved,
}

/// A mean over runs, and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Runs that have a value.
    pub runs: u32,
    /// Half the interval of the mean. None of a single run.
    pub half: Option<f64>,
    /// The full interval as a part of the mean, netperf's width. Of a mean of 0 it is 0 if all values are, and none otherwise.
    pub width: Option<f64>,
}

impl Repeats {
    /// No run yet, of so many quantities.
    pub fn new(wanted: Wanted, quantities: usize) -> Self {
        Self { wanted, runs: 0, values: vec![Vec::new(); quantities] }
    }

    /// Adds a run: a value of each quantity. One without a value in any run is not looked at; a value that is no number counts as
    /// none.
    pub fn add(&mut self, run: &[Option<f64>]) {
        self.runs = self.runs.saturating_add(1);
        for (values, value) in self.values.iter_mut().zip(run) {
            values.extend(value.filter(|value| value.is_finite()));
        }
    }

    /// Runs so far.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Whether there should be another run. One quantity that is not known well enough is reason for it; a quantity that has
    /// a value in some runs only is judged by those.
    pub fn decision(&self) -> Decision {
        if self.runs < self.wanted.min_runs {
            return Decision::More;
        }
        let narrow = self
            .means()
            .into_iter()
            .flatten()
            .all(|mean| mean.width.is_some_and(|width| width <= self.wanted.width));
        match narrow {
            true => Decision::Achieved,
            false if self.runs < self.wanted.max_runs => Decision::More,
            false => Decision::NotAchieved,
        }
    }

    /// Each quantity, in the order in which they are added. None without any value.
    pub fn means(&self) -> Vec<Option<Mean>> {
        self.values.iter().map(|values| mean(values, self.wanted.level)).collect()
    }
}

/// The mean of some values and its interval at a level, if there are any. All must be numbers.
pub fn mean(values: &[f64], level: f64) -> Option<Mean> {
    let runs = u32::try_from(values.len()).ok().filter(|&runs| runs > 0)?;
    let count = f64::from(runs);
    // Each divided on its own, so that no sum overflows.
    let mean = values.iter().map(|value| value / count).sum::<f64>();
    let degrees = f64::from(runs - 1);
    let half = StudentsT::new(0.0, 1.0, degrees).ok().map(|student| {
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        student.inverse_cdf(0.5 + level / 2.0) * (squares / degrees / count).sqrt()
    });
    let width = half.and_then(|half| match half {
        0.0 => Some(0.0),
        half if mean == 0.0 || !half.is_finite() => None,
        half => Some(2.0 * half / mean.abs()),
    });
    Some(Mean { mean, runs, half, width })
}

#[derive(Serialize, Deserialize)]
struct WantedFields {
    level: f64,
    width: f64,
    min_runs: u32,
    max_runs: u32,
}

impl TryFrom<WantedFields> for Wanted {
    type Error = WantedError;
    fn try_from(fields: WantedFields) -> Result<Self, WantedError> {
        Self::new(fields.level, fields.width, fields.min_runs, fields.max_runs)
    }
}

impl From<Wanted> for WantedFields {
    fn from(wanted: Wanted) -> Self {
        let Wanted { level, width, min_runs, max_runs } = wanted;
        Self { level, width, min_runs, max_runs }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    /// Normal values of a mean and deviation (Box and Muller).
    struct Normals(Xoshiro256PlusPlus);

    impl Normals {
        fn next(&mut self, mean: f64, deviation: f64) -> f64 {
            let mut uniform = || (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let (one, other) = (1.0 - uniform(), uniform());
            mean + deviation * (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
        }
    }

    fn normals(seed: u64) -> Normals {
        Normals(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    #[test]
    fn the_interval_is_students() {
        // t(0.975, 4) = 2.776; s = √2.5.
        let found = mean(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap();
        assert_eq!((found.mean, found.runs), (3.0, 5));
        assert!((found.half.unwrap() - 2.776_445 * (2.5_f64 / 5.0).sqrt()).abs() < 1e-5, "{found:?}");
        assert!((found.width.unwrap() - 2.0 * found.half.unwrap() / 3.0).abs() < 1e-12);
        // And t(0.995, 2) = 9.925, as in netperf's table.
        let found = mean(&[1.0, 2.0, 3.0], 0.99).unwrap();
        assert!((found.half.unwrap() - 9.924_843 / 3.0_f64.sqrt()).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn one_run_has_no_interval_and_none_no_mean() {
        assert_eq!(mean(&[5.0], 0.99), Some(Mean { mean: 5.0, runs: 1, half: None, width: None }));
        assert_eq!(mean(&[], 0.99), None);
    }

    #[test]
    fn the_interval_of_a_fixed_number_of_runs_holds_as_often_as_it_says() {
        for (level, runs) in [(0.95, 3), (0.99, 5), (0.90, 30)] {
            let mut normals = normals(7);
            let holds = (0..4000).filter(|_| {
                let values: Vec<f64> = (0..runs).map(|_| normals.next(100.0, 8.0)).collect();
                let found = mean(&values, level).unwrap();
                (found.mean - 100.0).abs() <= found.half.unwrap()
            });
            let share = holds.count() as f64 / 4000.0;
            assert!((share - level).abs() < 0.015, "{level} {runs}: {share}");
        }
    }

    #[test]
    fn it_stops_when_all_are_narrow_and_the_interval_holds_mostly() {
        let wanted = Wanted::new(0.99, 0.05, 3, 100).unwrap();
        let mut normals = normals(1);
        let (mut held, mut runs) = (0, 0);
        for _ in 0..1000 {
            let mut repeats = Repeats::new(wanted, 3);
            while repeats.decision() == Decision::More {
                let [throughput, cpu] =
                    [(1000.0, 20.0), (10.0, 0.1)].map(|(mean, by)| normals.next(mean, by));
                repeats.add(&[Some(throughput), Some(cpu), None]);
            }
            assert_eq!(repeats.decision(), Decision::Achieved);
            let [throughput, cpu, none] = repeats.means()[..] else { panic!() };
            assert_eq!(none, None);
            for found in [throughput, cpu].into_iter().flatten() {
                assert!(found.width.unwrap() <= 0.05 && found.runs == repeats.runs());
            }
            let throughput = throughput.unwrap();
            held += u32::from((throughput.mean - 1000.0).abs() <= throughput.half.unwrap());
            runs += repeats.runs();
        }
        assert!((960..=995).contains(&held), "{held} of 1000");
        // ±2.5 % of a deviation of 2 % needs some 8 runs.
        assert!((5000..12_000).contains(&runs), "{runs}");
    }

    #[test]
    fn what_is_not_achieved_is_said() {
        let wanted = Wanted::new(0.99, 0.01, 3, 10).unwrap();
        let mut normals = normals(2);
        let mut repeats = Repeats::new(wanted, 2);
        while repeats.decision() == Decision::More {
            repeats.add(&[Some(50.0), Some(normals.next(10.0, 5.0))]);
        }
        assert_eq!((repeats.decision(), repeats.runs()), (Decision::NotAchieved, 10));
        let means = repeats.means();
        assert_eq!((means[0].unwrap().half, means[0].unwrap().width), (Some(0.0), Some(0.0)));
        assert!(means[1].unwrap().width.unwrap() > 0.01);
    }

    #[test]
    fn there_are_as_many_runs_as_asked_for_at_least() {
        let mut repeats = Repeats::new(Wanted::new(0.95, 0.5, 4, 9).unwrap(), 1);
        for _ in 0..4 {
            assert_eq!(repeats.decision(), Decision::More);
            repeats.add(&[Some(1.0)]);
        }
        assert_eq!(repeats.decision(), Decision::Achieved);
    }

    #[test]
    fn zero_utilisation_is_known_exactly_and_a_mean_of_zero_otherwise_not() {
        let wanted = Wanted::new(0.99, 0.05, 2, 3).unwrap();
        let mut idle = Repeats::new(wanted, 1);
        (0..2).for_each(|_| idle.add(&[Some(0.0)]));
        assert_eq!((idle.decision(), idle.means()[0].unwrap().mean), (Decision::Achieved, 0.0));
        let mut wild = Repeats::new(wanted, 1);
        [-1.0, 1.0].map(Some).iter().for_each(|&value| wild.add(&[value]));
        assert_eq!((wild.decision(), wild.means()[0].unwrap().width), (Decision::More, None));
        wild.add(&[Some(f64::NAN)]);
        assert_eq!(wild.decision(), Decision::NotAchieved);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (level, width, min, max) in [
            (0.0, 0.05, 3, 10),
            (1.0, 0.05, 3, 10),
            (f64::NAN, 0.05, 3, 10),
            (0.99, 0.0, 3, 10),
            (0.99, f64::INFINITY, 3, 10),
            (0.99, 0.05, 1, 10),
            (0.99, 0.05, 3, 2),
            (0.99, 0.05, 3, MAX_RUNS + 1),
        ] {
            assert!(Wanted::new(level, width, min, max).is_err(), "{level} {width} {min} {max}");
        }
        assert!(
            serde_json::from_str::<Wanted>(r#"{"level":2.0,"width":0.05,"min_runs":3,"max_runs":9}"#)
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_values_break_it(values in prop::collection::vec(any::<f64>(), 0..20), level in 0.01..0.9999_f64) {
            let mut repeats = Repeats::new(Wanted::new(level, 0.05, 2, 30).unwrap(), 1);
            values.iter().for_each(|&value| repeats.add(&[Some(value)]));
            let _ = repeats.decision();
            if let Some(found) = repeats.means()[0] {
                prop_assert!(found.width.is_none_or(|width| width >= 0.0), "{:?}", found);
            }
        }
    }
}
