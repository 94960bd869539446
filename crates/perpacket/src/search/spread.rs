//! How far repetitions of a search lie apart.

use measure::quantile::median;
use measure::record::SearchRow;
use measure::search::Ending;

/// The conditional throughputs of one goal in those searches that found it: what a search got to that its time or the sender ended is no
/// rate of the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// Searches that found it.
    pub(crate) runs: usize,
    pub(crate) median_pps: f64,
    pub(crate) least_pps: f64,
    pub(crate) most_pps: f64,
}

impl Spread {
    /// Of the goal at this place in each row. None where no search had a result.
    pub(crate) fn of(rows: &[SearchRow], goal: usize) -> Option<Self> {
        let result = |row: &SearchRow| {
            let result = &row.goals.get(goal)?.result;
            result.conditional_throughput_pps.filter(|_| result.is_regular())
        };
        let mut rates: Vec<f64> = rows.iter().filter_map(result).collect();
        let median_pps = median(&mut rates)?;
        rates.sort_by(f64::total_cmp);
        let (&least_pps, &most_pps) = (rates.first()?, rates.last()?);
        Some(Self { runs: rates.len(), median_pps, least_pps, most_pps })
    }

    /// From the least to the most, as a share of the median.
    pub(crate) fn share(&self) -> f64 {
        (self.most_pps - self.least_pps) / self.median_pps
    }
}

/// Whether the rate of a goal is that of the sender and not of the path, in all searches.
pub(crate) fn is_the_senders(rows: &[SearchRow], goal: usize) -> bool {
    let ending = |row: &SearchRow| row.goals.get(goal).map(|goal| goal.result.ending);
    !rows.is_empty() && rows.iter().all(|row| ending(row) == Some(Ending::BoundedBySender))
}

#[cfg(test)]
mod tests {
    use measure::record::{Extra, SearchGoal};
    use measure::search::{Goal, GoalResult};

    use super::*;

    fn row(conditional_throughput_pps: Option<f64>, ending: Ending) -> SearchRow {
        let result =
            GoalResult { goal: Goal::ndr(), lower: None, upper: None, conditional_throughput_pps, ending };
        let goal = SearchGoal { result, upper_drops: vec![], extra: Extra::new() };
        SearchRow { goals: vec![goal], ..SearchRow::default() }
    }

    #[test]
    fn the_spread_is_that_of_searches_with_a_result() {
        let rows = [Some(1.0e6), None, Some(1.1e6), Some(0.9e6)].map(|rate| row(rate, Ending::Regular));
        let spread = Spread::of(&rows, 0).unwrap();
        assert_eq!((spread.runs, spread.median_pps, spread.least_pps), (3, 1.0e6, 0.9e6));
        assert!((spread.share() - 0.2).abs() < 1e-9);
        assert_eq!(Spread::of(&rows[..1], 0).unwrap().share(), 0.0);
        assert_eq!(Spread::of(&rows[2..], 0).unwrap().median_pps, 1.0e6);
        assert_eq!(Spread::of(&rows[1..2], 0), None);
        assert_eq!(Spread::of(&rows, 1), None);
        let cut_off = [row(Some(1.0e6), Ending::Regular), row(Some(1.0e4), Ending::TimeLimit)];
        assert_eq!(Spread::of(&cut_off, 0).map(|spread| (spread.runs, spread.median_pps)), Some((1, 1.0e6)));
    }

    #[test]
    fn a_rate_is_the_senders_where_no_search_found_the_paths() {
        let bounded = row(Some(1e6), Ending::BoundedBySender);
        assert!(is_the_senders(&[bounded.clone(), bounded.clone()], 0));
        assert!(!is_the_senders(&[bounded, row(Some(1e6), Ending::Regular)], 0));
        assert!(!is_the_senders(&[], 0));
    }
}
