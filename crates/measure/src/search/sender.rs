//! What the sender can offer.
//!
//! A single trial that fell short may be a hiccup: a neighbour had the CPU. So a load is given up after [`ATTEMPTS`]
//! trials that fell short and outnumber the others, or at once where the sender did not get half way and nothing as high was
//! ever offered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// So many trials that fell short show that a load cannot be offered.
pub const ATTEMPTS: u32 = 3;

/// Below this share of the load one trial is enough, if no load as high was ever offered.
const FAR_SHORT: f64 = 0.5;

/// Where the sender's limit lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SenderBound {
    /// The least load that could not be offered, in packets per second: nothing from there on is tried any more.
    pub not_offered_pps: f64,
    /// The greatest load below it that was offered. None where nothing was.
    pub offered_pps: Option<f64>,
    /// The highest rate that the sender achieved in a trial that fell short.
    pub achieved_pps: f64,
}

/// Trials at one load.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    offered: u32,
    short: u32,
}

/// Counts trials at numbers of the grid.
#[derive(Debug, Clone, Default)]
pub(super) struct Sender {
    counts: BTreeMap<i64, Count>,
    ceiling: Option<i64>,
    achieved_pps: f64,
}

impl Sender {
    /// The least number that is not to be tried any more.
    pub(super) fn ceiling(&self) -> Option<i64> {
        self.ceiling
    }

    pub(super) fn offered(&mut self, number: i64) {
        self.counts.entry(number).or_default().offered += 1;
    }

    /// A trial fell short. Whether the load is given up.
    pub(super) fn fell_short(&mut self, number: i64, load_pps: f64, achieved_pps: f64) -> bool {
        let count = self.counts.entry(number).or_default();
        count.short += 1;
        let is_often = count.short >= ATTEMPTS && count.short > count.offered;
        let was_offered = self.counts.range(number..).any(|(_, count)| count.offered > 0);
        self.achieved_pps = self.achieved_pps.max(achieved_pps.min(load_pps));
        let is_given_up = is_often || (achieved_pps < load_pps * FAR_SHORT && !was_offered);
        if is_given_up {
            self.ceiling = Some(self.ceiling.map_or(number, |ceiling| ceiling.min(number)));
        }
        is_given_up
    }

    /// The limit, if it was met, with the loads of numbers.
    pub(super) fn bound(&self, load_pps: impl Fn(i64) -> f64) -> Option<SenderBound> {
        let ceiling = self.ceiling?;
        let offered = self.counts.range(..ceiling).rev().find(|(_, count)| count.offered > 0);
        Some(SenderBound {
            not_offered_pps: load_pps(ceiling),
            offered_pps: offered.map(|(&number, _)| load_pps(number)),
            achieved_pps: self.achieved_pps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hiccup_is_no_limit() {
        let mut sender = Sender::default();
        sender.offered(50);
        assert!(!sender.fell_short(40, 1000.0, 100.0));
        assert!(!sender.fell_short(40, 1000.0, 990.0));
        assert_eq!(sender.bound(|number| number as f64), None);
        assert!(sender.fell_short(40, 1000.0, 995.0));
        assert_eq!(sender.ceiling(), Some(40));
        let bound = sender.bound(|number| number as f64).unwrap();
        assert_eq!(bound, SenderBound { not_offered_pps: 40.0, offered_pps: None, achieved_pps: 995.0 });
    }

    #[test]
    fn a_load_that_is_far_off_is_given_up_at_once() {
        let mut sender = Sender::default();
        sender.offered(30);
        assert!(sender.fell_short(40, 1000.0, 499.0));
        assert!(!sender.fell_short(35, 950.0, 500.0));
        assert_eq!(sender.bound(|number| number as f64).unwrap().offered_pps, Some(30.0));
    }

    #[test]
    fn trials_that_were_offered_stand_against_those_that_fell_short() {
        let mut sender = Sender::default();
        (0..5).for_each(|_| sender.offered(40));
        assert!((0..5).all(|_| !sender.fell_short(40, 1000.0, 10.0)));
        assert!(sender.fell_short(40, 1000.0, 10.0));
    }
}
