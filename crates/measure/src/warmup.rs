//! How many leading pairs to drop.
//!
//! Caches, frequency and allocator pools settle during the first slices. The rule is fixed before any
//! data is seen, so that nobody can choose the warm-up which gives the nicer result: pairs are dropped
//! until the next [`WINDOW`] show no fall.

use crate::quantile::median;
use crate::sign::upper_tail;

/// Pairs looked at together.
pub const WINDOW: usize = 32;

/// Pairs dropped at a time.
pub const STEP: usize = 8;

/// One-sided level of the trend test. Of 16 comparisons 12 must fall.
pub const LEVEL: f64 = 0.05;

/// Leading pairs to drop from a series of costs in the order of measurement (for example a + b of each
/// pair). At most half of the series is dropped; [`trend_left`] then says that this was not enough.
pub fn warmup_pairs(series: &[f64]) -> usize {
    let most = series.len() / 2;
    let mut dropped = 0;
    while dropped < most && series.len() - dropped >= WINDOW && falls(&series[dropped..dropped + WINDOW]) {
        dropped = (dropped + STEP).min(most);
    }
    dropped
}

/// Whether a series still falls as a whole: the medians of [`WINDOW`] equal parts are tested as the
/// leading pairs were. `false` for fewer than [`WINDOW`] values, which cannot show it.
pub fn trend_left(series: &[f64]) -> bool {
    if series.len() < WINDOW {
        return false;
    }
    let parts: Vec<f64> = (0..WINDOW)
        .filter_map(|part| {
            let (start, end) = (series.len() * part / WINDOW, series.len() * (part + 1) / WINDOW);
            median(&mut series[start..end].to_vec())
        })
        .collect();
    falls(&parts)
}

/// Cox and Stuart's sign test against a falling trend: each value of the first half is compared with
/// its counterpart in the second.
fn falls(window: &[f64]) -> bool {
    let half = window.len() / 2;
    let later = &window[window.len() - half..];
    let falling = window.iter().zip(later).filter(|(early, late)| late < early).count() as u64;
    let rising = window.iter().zip(later).filter(|(early, late)| late > early).count() as u64;
    upper_tail(falling, falling + rising) <= LEVEL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Seed;

    fn noise(len: usize, seed: u64) -> Vec<f64> {
        let mut order = Seed(seed).order();
        (0..len).map(|_| 200.0 + order.below(1_000) as f64 / 100.0).collect()
    }

    #[test]
    fn a_settling_start_is_dropped_and_the_rest_kept() {
        let mut series = noise(400, 1);
        for (i, value) in series.iter_mut().enumerate() {
            *value += 100.0 * (-(i as f64) / 20.0).exp();
        }
        let dropped = warmup_pairs(&series);
        assert!((24..=120).contains(&dropped), "{dropped}");
        assert!(!trend_left(&series[dropped..]));
    }

    #[test]
    fn steady_series_rarely_lose_anything() {
        let losing = (0..400).filter(|&seed| warmup_pairs(&noise(200, seed)) > 0).count();
        assert!(losing <= 28, "{losing} of 400 at a level of 5 %");
    }

    #[test]
    fn a_series_that_never_settles_is_noticed() {
        let mut series = noise(400, 2);
        for (i, value) in series.iter_mut().enumerate() {
            *value -= i as f64;
        }
        assert_eq!(warmup_pairs(&series), 200);
        assert!(trend_left(&series[200..]));
    }

    #[test]
    fn short_series_are_left_alone() {
        assert_eq!(warmup_pairs(&[3.0, 2.0, 1.0]), 0);
        assert!(!trend_left(&[3.0, 2.0, 1.0]));
        assert_eq!(warmup_pairs(&[]), 0);
    }
}
