//! Does the interval of an absolute cost hold the cost when neighbouring rounds resemble each other?
#![allow(clippy::unwrap_used)]

use measure::marginal::{MarginalSample, Work, absolute_cost};
use measure::order::{Order, Seed};

fn noise(order: &mut Order) -> f64 {
    (0..12).map(|_| order.below(1 << 30) as f64 / (1u64 << 30) as f64).sum::<f64>() - 6.0
}

/// Rounds whose cost drifts by 3 % around 200 ns, five pairs of slices in each.
fn samples(rounds: u32, rho: f64, order: &mut Order) -> Vec<MarginalSample> {
    let mut drift = noise(order);
    let mut all = Vec::new();
    for round in 0..rounds {
        drift = rho * drift + (1.0 - rho * rho).sqrt() * noise(order);
        for _ in 0..5 {
            let mut slice = |packets: u64| {
                let ns_per_packet = 200.0 * (1.0 + 0.03 * drift + 0.01 * noise(order));
                Work { packets, calls: 1, ns: packets as f64 * ns_per_packet + 86_000.0 }
            };
            all.push(MarginalSample { round, long: slice(20_000), short: slice(2_000) });
        }
    }
    all
}

#[test]
fn the_interval_holds_the_cost() {
    for (rounds, rho, seed) in [(20, 0.0, 1), (60, 0.4, 2), (300, 0.5, 3)] {
        let mut order = Seed(seed).order();
        let covered = (0..1_000)
            .filter(|_| {
                let cost = absolute_cost(&samples(rounds, rho, &mut order), 0.95).unwrap();
                cost.interval.unwrap().contains(200.0)
            })
            .count();
        assert!((930..=990).contains(&covered), "{rounds} rounds, {rho}: {covered} of 1000");
    }
}
