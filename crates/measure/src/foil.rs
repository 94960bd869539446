//! The usual methods that mislead, kept for tables beside ours.
//!
//! Running A, then B, and testing the two lists with Mann and Whitney's U finds a difference between a
//! program and itself in 60 to 79 % of comparisons on a shared machine: the machine of the second half is
//! another one than that of the first, and slices are not independent. To see that on one's own data, the
//! same slices can be put in that order here. Nothing else in this crate uses this module.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::paired::PairSample;
use crate::quantile::{median, median_interval};

/// Level at which these methods call a difference.
pub const ALPHA: f64 = 0.05;

/// Largest sample a side for which the exact distribution of U is used, when there are no ties; as in
/// golang.org/x/perf.
const EXACT_UP_TO: usize = 50;

/// What a method says on two lists of costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoilRow {
    /// Values of A.
    pub a_count: u64,
    /// Values of B.
    pub b_count: u64,
    /// Median of A.
    pub a_ns: f64,
    /// Median of B.
    pub b_ns: f64,
    /// Larger distance of the 95 % interval's ends from the median of A, relative to it; benchstat's ±.
    /// `None` below 6 values.
    pub a_spread: Option<f64>,
    /// The same for B.
    pub b_spread: Option<f64>,
    /// Two-sided p-value of Mann and Whitney's U.
    pub p_value: f64,
    /// Relative difference of the medians, where the method calls it one; `None` is benchstat's `~`.
    pub delta: Option<f64>,
}

/// "Run A, then run B": all slices of A against all slices of B, as if independent. `None` when a list is
/// empty or has a value that is not a positive number.
pub fn run_a_then_b(a: &[f64], b: &[f64]) -> Option<FoilRow> {
    let good = |values: &[f64]| values.iter().all(|&value| value > 0.0 && value.is_finite());
    if !good(a) || !good(b) {
        return None;
    }
    let (a_ns, b_ns) = (median(&mut a.to_vec())?, median(&mut b.to_vec())?);
    let p_value = mann_whitney_p(a, b);
    Some(FoilRow {
        a_count: a.len() as u64,
        b_count: b.len() as u64,
        a_ns,
        b_ns,
        a_spread: spread(a, a_ns),
        b_spread: spread(b, b_ns),
        p_value,
        delta: (p_value < ALPHA).then_some(b_ns / a_ns - 1.0),
    })
}

/// benchstat's line: each value is the result of one run of a benchmark (usually 10 a side), first all runs
/// of A, then all of B. The test is the same as in [`run_a_then_b`]; what differs is what is put in.
pub fn benchstat(a_blocks: &[f64], b_blocks: &[f64]) -> Option<FoilRow> {
    run_a_then_b(a_blocks, b_blocks)
}

/// Puts interleaved pairs in the order of "run A, then run B": A of the first half, B of the second. Half
/// of the slices are left out, as if the time had been spent on the other variant.
pub fn as_run_a_then_b(pairs: &[PairSample]) -> (Vec<f64>, Vec<f64>) {
    let (first, second) = pairs.split_at(pairs.len() / 2);
    (first.iter().map(|pair| pair.a_ns).collect(), second.iter().map(|pair| pair.b_ns).collect())
}

/// Puts interleaved pairs in the order of a benchmark run `runs` times for A, then `runs` times for B. Each
/// run is the mean of consecutive slices, as benchmark harnesses report. Fewer runs when there are fewer
/// slices.
pub fn as_benchstat(pairs: &[PairSample], runs: usize) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = as_run_a_then_b(pairs);
    (run_means(&a, runs), run_means(&b, runs))
}

fn run_means(values: &[f64], runs: usize) -> Vec<f64> {
    let runs = runs.min(values.len());
    (0..runs)
        .map(|run| &values[values.len() * run / runs..values.len() * (run + 1) / runs])
        .map(|part| part.iter().sum::<f64>() / part.len() as f64)
        .collect()
}

fn spread(values: &[f64], centre: f64) -> Option<f64> {
    let interval = median_interval(values, 1.0 - ALPHA)?;
    Some((centre - interval.low).max(interval.high - centre) / centre)
}

/// Two-sided p-value of Mann and Whitney's U on two independent samples: exact for up to 50 values a side
/// without ties, else the normal approximation with corrections for ties and continuity. 1 when a sample is
/// empty.
pub fn mann_whitney_p(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let ranked = Ranked::of(a, b);
    if ranked.tie_term == 0.0 && a.len() <= EXACT_UP_TO && b.len() <= EXACT_UP_TO {
        return exact_p(ranked.u, a.len(), b.len());
    }
    let (n1, n2) = (a.len() as f64, b.len() as f64);
    let n = n1 + n2;
    let variance = n1 * n2 / 12.0 * (n + 1.0 - ranked.tie_term / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = ((ranked.u - n1 * n2 / 2.0).abs() - 0.5).max(0.0);
    (2.0 * Normal::standard().sf(distance / variance.sqrt())).min(1.0)
}

/// U of the first sample, and Σ(t³ − t) over groups of t equal values.
struct Ranked {
    u: f64,
    tie_term: f64,
}

impl Ranked {
    fn of(a: &[f64], b: &[f64]) -> Ranked {
        let mut all: Vec<(f64, bool)> = a.iter().map(|&value| (value, true)).collect();
        all.extend(b.iter().map(|&value| (value, false)));
        all.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
        let (mut rank_sum, mut tie_term, mut before) = (0.0, 0.0, 0.0);
        for group in all.chunk_by(|x, y| x.0 == y.0) {
            let size = group.len() as f64;
            let of_a = group.iter().filter(|(_, is_a)| *is_a).count() as f64;
            rank_sum += of_a * (before + (size + 1.0) / 2.0);
            tie_term += size.powi(3) - size;
            before += size;
        }
        Ranked { u: rank_sum - a.len() as f64 * (a.len() as f64 + 1.0) / 2.0, tie_term }
    }
}

/// Twice the smaller tail of the exact distribution of U. The number of orders of n1 + n2 values with U = u
/// is the coefficient of x^u in the Gaussian binomial, built factor by factor in shares of all orders.
fn exact_p(u: f64, n1: usize, n2: usize) -> f64 {
    let top = n1 * n2;
    let mut ways = vec![0.0f64; top + 1];
    ways[0] = 1.0;
    for i in 1..=n1 {
        // times (1 − x^(n2+i)), over (1 − x^i), scaled by i / (n2 + i)
        for index in (n2 + i..=top).rev() {
            ways[index] -= ways[index - n2 - i];
        }
        for index in i..=top {
            ways[index] += ways[index - i];
        }
        let scale = i as f64 / (n2 + i) as f64;
        ways.iter_mut().for_each(|way| *way *= scale);
    }
    let smaller = u.min(top as f64 - u) as usize;
    (2.0 * ways[..=smaller].iter().sum::<f64>()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Seed;

    #[test]
    fn exact_p_is_the_share_of_all_orders_that_are_as_extreme() {
        let values: Vec<f64> = (1..=9).map(f64::from).collect();
        let split = |chosen: u32| -> (Vec<f64>, Vec<f64>) {
            let (a, b): (Vec<_>, Vec<_>) = (0..9).partition(|i| chosen >> i & 1 == 1);
            let pick = |indices: Vec<usize>| indices.into_iter().map(|i| values[i]).collect();
            (pick(a), pick(b))
        };
        let distance = |chosen: u32| {
            let (a, b) = split(chosen);
            (Ranked::of(&a, &b).u - 10.0).abs()
        };
        let orders: Vec<u32> = (0..1 << 9).filter(|chosen: &u32| chosen.count_ones() == 4).collect();
        for &chosen in &orders {
            let as_extreme = orders.iter().filter(|&&other| distance(other) >= distance(chosen)).count();
            let (a, b) = split(chosen);
            let wanted = as_extreme as f64 / orders.len() as f64;
            assert!((mann_whitney_p(&a, &b) - wanted).abs() < 1e-12, "{a:?} {b:?}");
        }
    }

    #[test]
    fn exact_and_approximate_meet_where_both_apply() {
        let mut order = Seed(5).order();
        let a: Vec<f64> = (0..50).map(|_| order.below(1 << 40) as f64).collect();
        let b: Vec<f64> = (0..50).map(|_| (order.below(1 << 40) + (1 << 37)) as f64).collect();
        let exact = mann_whitney_p(&a, &b);
        let ranked = Ranked::of(&a, &b);
        let sd = (2_500.0 / 12.0 * 101.0f64).sqrt();
        let z = ((ranked.u - 1_250.0).abs() - 0.5) / sd;
        let approximate = 2.0 * Normal::standard().sf(z);
        assert!((exact - approximate).abs() < 0.005, "{exact} {approximate}");
    }

    #[test]
    fn ties_and_constants_are_survived() {
        assert_eq!(mann_whitney_p(&[1.0; 60], &[1.0; 60]), 1.0);
        assert_eq!(mann_whitney_p(&[], &[1.0]), 1.0);
        // U = 3, mean 8, variance 16/12 (9 - 48/56), z = 4.5/3.295
        let p = mann_whitney_p(&[1.0, 2.0, 2.0, 3.0], &[2.0, 3.0, 3.0, 4.0]);
        assert!((p - 0.1720).abs() < 1e-3, "{p}");
        assert_eq!(run_a_then_b(&[1.0, -1.0], &[1.0]), None);
        assert_eq!(run_a_then_b(&[], &[1.0]), None);
    }

    #[test]
    fn drift_makes_a_program_differ_from_itself() {
        let mut order = Seed(9).order();
        let pairs: Vec<PairSample> = (0..400)
            .map(|i| {
                let mut cost = || 200.0 + f64::from(i) / 20.0 + order.below(1_000) as f64 / 100.0;
                PairSample { block: 0, a_ns: cost(), b_ns: cost() }
            })
            .collect();
        let (a, b) = as_run_a_then_b(&pairs);
        assert!(run_a_then_b(&a, &b).unwrap().delta.is_some());
        let (a, b) = as_benchstat(&pairs, 10);
        assert_eq!((a.len(), b.len()), (10, 10));
        assert!(benchstat(&a, &b).unwrap().delta.is_some());
        let ours = crate::paired::compare(&pairs, &crate::paired::CompareOptions::default()).unwrap();
        assert!(ours.ratio_interval.contains(1.0), "{ours:?}");
    }
}
