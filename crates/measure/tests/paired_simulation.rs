//! Does the interval of a comparison keep its promise where pairs are not independent?
//!
//! Each world makes costs like those of a shared machine, from a fixed seed, many runs over. In each run B
//! costs exactly what A costs (an A/A run: a difference is a false finding) or 1 % more (the interval must
//! hold it).
#![allow(clippy::unwrap_used)]

use measure::order::{Order, Seed};
use measure::paired::{CompareOptions, PairSample, compare};
use measure::quantile::median_interval;
use measure::sequential::Looks;

/// What the machine does.
#[derive(Debug, Clone, Copy)]
struct World {
    name: &'static str,
    pairs: u32,
    /// Blocks of equal size.
    blocks: u32,
    /// Standard deviation of what B's layout does in one block.
    block_sd: f64,
    /// Correlation of neighbouring log ratios.
    ratio_rho: f64,
}

/// Standard deviation of a pair's log ratio before its heavy tails.
const PAIR_SD: f64 = 0.02;
/// The machine's drift, common to both slices of a pair.
const DRIFT_RHO: f64 = 0.85;
const DRIFT_SD: f64 = 0.13;

fn normal(order: &mut Order) -> f64 {
    // Sum of twelve uniforms: mean 6, variance 1.
    (0..12).map(|_| order.below(1 << 30) as f64 / (1u64 << 30) as f64).sum::<f64>() - 6.0
}

/// One run: drift common to both slices, and a pair noise in which every tenth value is six times as wide.
fn run(world: &World, effect: f64, order: &mut Order) -> Vec<PairSample> {
    let innovation = |rho: f64| (1.0 - rho * rho).sqrt();
    let (mut drift, mut noise, mut layout) = (normal(order), normal(order), 0.0);
    (0..world.pairs)
        .map(|pair| {
            let block = pair * world.blocks / world.pairs;
            if pair == 0 || block != (pair - 1) * world.blocks / world.pairs {
                layout = world.block_sd * normal(order);
            }
            drift = DRIFT_RHO * drift + innovation(DRIFT_RHO) * normal(order);
            noise = world.ratio_rho * noise + innovation(world.ratio_rho) * normal(order);
            let tail = if order.below(10) == 0 { 6.0 } else { 1.0 };
            let a_ns = 200.0 * (DRIFT_SD * drift).exp();
            let b_ns = a_ns * (1.0 + effect) * (PAIR_SD * tail * noise + layout).exp();
            PairSample { block, a_ns, b_ns }
        })
        .collect()
}

/// Shares of runs.
#[derive(Debug, Default)]
struct Shares {
    /// A/A runs called different.
    false_findings: f64,
    /// Runs whose interval holds the effect of 1 %.
    coverage: f64,
    /// Runs whose equivalence interval holds it.
    equivalence_coverage: f64,
}

fn shares(world: &World, runs: u32, seed: u64) -> Shares {
    let mut order = Seed(seed).order();
    let mut shares = Shares::default();
    let each = 1.0 / f64::from(runs);
    for _ in 0..runs {
        let same = compare(&run(world, 0.0, &mut order), &CompareOptions::default()).unwrap();
        shares.false_findings += if same.ratio_interval.contains(1.0) { 0.0 } else { each };
        let dearer = compare(&run(world, 0.01, &mut order), &CompareOptions::default()).unwrap();
        shares.coverage += if dearer.ratio_interval.contains(1.01) { each } else { 0.0 };
        shares.equivalence_coverage += if dearer.equivalence_interval.contains(1.01) { each } else { 0.0 };
    }
    shares
}

const STEADY: World = World { name: "steady", pairs: 1_000, blocks: 1, block_sd: 0.0, ratio_rho: 0.0 };

#[test]
fn intervals_of_long_runs_hold_what_they_promise() {
    let worlds = [
        STEADY,
        World { name: "pairs that resemble their neighbours", ratio_rho: 0.3, ..STEADY },
        World { name: "pairs that resemble them much", ratio_rho: 0.6, ..STEADY },
        World { name: "layout that differs a little between reloads", blocks: 20, block_sd: 0.002, ..STEADY },
        World {
            name: "layout that outweighs all else",
            blocks: 20,
            block_sd: 0.01,
            ratio_rho: 0.3,
            ..STEADY
        },
    ];
    for (world, seed) in worlds.iter().zip(1..) {
        let shares = shares(world, 1_000, seed);
        assert!(shares.false_findings <= 0.07, "{}: {shares:?}", world.name);
        assert!((0.93..=0.975).contains(&shares.coverage), "{}: {shares:?}", world.name);
        assert!((0.87..=0.95).contains(&shares.equivalence_coverage), "{}: {shares:?}", world.name);
    }
}

#[test]
fn intervals_of_short_runs_and_few_blocks_are_rather_too_wide() {
    let worlds = [
        World { name: "30 pairs", pairs: 30, ..STEADY },
        World { name: "60 pairs that resemble their neighbours", pairs: 60, ratio_rho: 0.5, ..STEADY },
        World { name: "200 pairs", pairs: 200, ratio_rho: 0.3, ..STEADY },
        World { name: "four reloads", blocks: 4, block_sd: 0.002, ..STEADY },
        World { name: "a last block cut short", pairs: 250, blocks: 12, block_sd: 0.005, ..STEADY },
    ];
    for (world, seed) in worlds.iter().zip(11..) {
        let shares = shares(world, 1_000, seed);
        assert!(shares.false_findings <= 0.07, "{}: {shares:?}", world.name);
        assert!(shares.coverage >= 0.93, "{}: {shares:?}", world.name);
    }
}

#[test]
fn five_looks_together_find_no_more_than_one_promises() {
    let world = World { name: "five looks", pairs: 1_500, ratio_rho: 0.3, ..STEADY };
    let looks = Looks::five(u64::from(world.pairs)).unwrap();
    let options = CompareOptions { confidence: looks.nominal_confidence() };
    let mut order = Seed(21).order();
    let found = (0..1_000)
        .filter(|_| {
            let pairs = run(&world, 0.0, &mut order);
            (1..=looks.count()).filter_map(|look| looks.pairs_at(look)).any(|done| {
                let comparison = compare(&pairs[..done as usize], &options).unwrap();
                !comparison.ratio_interval.contains(1.0)
            })
        })
        .count();
    assert!(found <= 70, "{found} of 1000");
}

#[test]
fn independence_taken_for_granted_would_be_caught_here() {
    // The same worlds under the plain interval: this is what the allowance for dependence is for.
    let world = World { name: "dependent", ratio_rho: 0.6, ..STEADY };
    let mut order = Seed(31).order();
    let found = (0..400)
        .filter(|_| {
            let pairs = run(&world, 0.0, &mut order);
            let log_ratios: Vec<f64> = pairs.iter().map(|pair| (pair.b_ns / pair.a_ns).ln()).collect();
            !median_interval(&log_ratios, 0.95).unwrap().contains(0.0)
        })
        .count();
    assert!(found > 60, "{found} of 400");
}
