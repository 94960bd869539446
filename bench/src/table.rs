//! From what was measured to the table and its verdict.

use std::fmt::Write as _;

use measure::cluster::cluster_median;
use measure::quantile::{Interval, median};

use crate::sender::{REFERENCE, Usage};

const CONFIDENCE: f64 = 0.95;

/// What a ratio to the reference must be.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// The median is at least this.
    Ratio(f64),
    /// The interval's lower bound is at least this.
    LowerBound(f64),
}

/// One sender's results.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    /// Wall ns per packet of each round, start-up subtracted; none where the long run was not longer.
    wall_ns: Vec<Option<f64>>,
    cpu_ns: u64,
    marginal_packets: u64,
    sent: u64,
    received: u64,
}

/// A ratio of costs: how many times as fast as the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    median: f64,
    interval: Interval,
}

impl Row {
    /// Nothing measured yet.
    pub fn new(name: &'static str) -> Self {
        Self { name, wall_ns: Vec::new(), cpu_ns: 0, marginal_packets: 0, sent: 0, received: 0 }
    }

    /// Adds a round, its long and its short run; none where the sender hung.
    pub fn add(&mut self, both: Option<&[Usage; 2]>) {
        let Some(both) = both else { return self.wall_ns.push(None) };
        let [long, short] = both;
        let packets = long.sent.saturating_sub(short.sent);
        let wall = long.wall_ns as f64 - short.wall_ns as f64;
        self.wall_ns.push((packets > 0 && wall > 0.0).then(|| wall / packets as f64));
        // The difference is summed over all rounds: one alone would be a few ticks.
        self.cpu_ns = (self.cpu_ns + long.cpu_ns).saturating_sub(short.cpu_ns);
        self.marginal_packets += packets;
        for usage in both {
            self.sent += usage.sent;
            self.received += usage.received;
        }
    }

    fn wall_median(&self) -> Option<f64> {
        median(&mut self.wall_ns.iter().flatten().copied().collect::<Vec<_>>())
    }

    fn cpu_mean(&self) -> Option<f64> {
        (self.marginal_packets > 0).then(|| self.cpu_ns as f64 / self.marginal_packets as f64)
    }

    /// How many times as fast as the reference, from the rounds that both have.
    fn ratio_to(&self, reference: &Self) -> Option<Ratio> {
        let both = self.wall_ns.iter().zip(&reference.wall_ns);
        let ratios: Vec<f64> = both.filter_map(|(own, other)| Some((*other)? / (*own)?)).collect();
        let found = cluster_median(&ratios, &vec![0; ratios.len()], CONFIDENCE)?;
        Some(Ratio { median: found.median, interval: found.interval })
    }
}

impl Goal {
    fn is_met(self, ratio: Option<Ratio>) -> bool {
        ratio.is_some_and(|ratio| match self {
            Self::Ratio(least) => ratio.median >= least,
            Self::LowerBound(least) => ratio.interval.low >= least,
        })
    }

    fn text(self) -> String {
        match self {
            Self::Ratio(least) => format!("ratio >= {least}"),
            Self::LowerBound(least) => format!("lower bound >= {least}"),
        }
    }
}

/// The table, and whether every goal is met and every frame was counted.
pub fn render(title: &str, rows: &[Row], goals: &[(&str, Goal)]) -> (String, bool) {
    let mut text = format!(
        "{title}\n\n{:<9} {:>10} {:>8} {:>10} {:>9}  {:<16} {:>7} {:>12} {:>12}  goal\n",
        "sender", "wall ns/p", "Mpps", "CPU ns/p", "x trafgen", "95 % interval", "rounds", "sent", "counted"
    );
    let reference = rows.iter().find(|row| row.name == REFERENCE);
    let mut all_met = reference.is_some();
    for row in rows {
        let ratio = reference.filter(|_| row.name != REFERENCE).and_then(|reference| row.ratio_to(reference));
        let goal = goals.iter().find(|(name, _)| *name == row.name).map(|(_, goal)| *goal);
        let lost = row.sent != row.received;
        let met = goal.is_none_or(|goal| goal.is_met(ratio)) && !lost;
        all_met &= met;
        let goal = goal.map_or(String::new(), |goal| format!("{}: ", goal.text()));
        let verdict = match (met, lost) {
            (_, true) => "FAIL (frames are missing)",
            (true, _) => "pass",
            (false, _) => "FAIL",
        };
        let _ = writeln!(
            // writing to a String cannot fail
            text,
            "{:<9} {:>10} {:>8} {:>10} {:>9}  {:<16} {:>7} {:>12} {:>12}  {goal}{verdict}",
            row.name,
            figure(row.wall_median(), 1),
            figure(row.wall_median().map(|ns| 1e3 / ns), 2),
            figure(row.cpu_mean(), 1),
            figure(ratio.map(|ratio| ratio.median), 3),
            ratio.map_or("-".into(), |r| format!("{:.3} to {:.3}", r.interval.low, r.interval.high)),
            row.wall_ns.iter().flatten().count(),
            row.sent,
            row.received,
        );
    }
    text += "\nwall: median over the rounds of (long run - short run) / packets between them. CPU: the same \
             from the sender's CPU time,\nsummed over the rounds. x trafgen: median of the rounds' ratios of wall time.\n";
    (text, all_met)
}

fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: [(&str, Goal); 2] = [("xdp-live", Goal::Ratio(6.0)), ("tx-ring", Goal::LowerBound(0.97))];

    fn usage(packets: u64, ns_per_packet: u64) -> Usage {
        let ns = 50_000_000 + packets * ns_per_packet;
        Usage { sent: packets, received: packets, wall_ns: ns, cpu_ns: ns }
    }

    fn row(name: &'static str, ns_per_packet: u64) -> Row {
        let mut row = Row::new(name);
        for round in 0..20 {
            let ns = ns_per_packet + round % 2;
            row.add(Some(&[usage(9_000, ns), usage(1_000, ns)]));
        }
        row
    }

    #[test]
    fn the_start_up_is_not_in_the_figures() {
        let row = row("tx-ring", 600);
        assert_eq!((row.wall_median(), row.cpu_mean()), (Some(600.5), Some(600.5)));
    }

    #[test]
    fn goals_are_judged() {
        let rows = |xdp, ring| vec![row("xdp-live", xdp), row("tx-ring", ring), row("trafgen", 600)];
        let (text, met) = render("", &rows(80, 600), &GOALS);
        assert!(met, "{text}");
        let (text, met) = render("", &rows(101, 600), &GOALS);
        assert!(!met && text.contains("ratio >= 6: FAIL"), "{text}");
        let (text, met) = render("", &rows(80, 630), &GOALS);
        assert!(!met && text.contains("lower bound >= 0.97: FAIL"), "{text}");
    }

    #[test]
    fn a_frame_that_is_missing_fails() {
        let mut rows = vec![row("xdp-live", 80), row("trafgen", 600)];
        rows[0].received -= 1;
        assert!(!render("", &rows, &GOALS).1);
    }

    #[test]
    fn a_round_in_which_one_hung_has_no_ratio() {
        let (mut live, mut reference) = (row("xdp-live", 80), row("trafgen", 600));
        live.add(Some(&[usage(9_000, 1), usage(1_000, 1)]));
        reference.add(None);
        assert_eq!(live.ratio_to(&reference), row("xdp-live", 80).ratio_to(&row("trafgen", 600)));
    }

    #[test]
    fn without_a_reference_nothing_is_met() {
        assert!(!render("", &[row("xdp-live", 80)], &GOALS).1);
    }
}
