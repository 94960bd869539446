//! What packet-cost measurement computes, without measuring anything itself.
//!
//! A run yields slices (a few milliseconds of back-to-back packets) and counters. This crate holds
//! their types, the arithmetic that turns them into nanoseconds per packet with an interval and a
//! verdict, the ledger that says where every packet ended, and the record that a run leaves behind.
//!
//! It deliberately has no clock, no kernel call, no thread and no output, so that everything in it
//! can be tested on any machine, and re-run on a record years later. JSON appears in [`record`] only.
//!
//! # Map
//!
//! | module | what it answers |
//! |---|---|
//! | [`wire`] | how many packets fit a line, what a rate is in ns per packet |
//! | [`order`] | which variant runs first, from a seed that is logged |
//! | [`mod@slice`] | what one slice measured, and slices as columns |
//! | [`quantile`] | medians, their exact intervals, robust spread |
//! | [`cluster`] | the same when neighbouring values are not independent |
//! | [`sign`] | the sign test |
//! | [`paired`] | is B dearer than A, by how much |
//! | [`marginal`] | what one packet costs, fixed cost per call kept apart |
//! | [`calibrate`] | that fixed cost, with its uncertainty |
//! | [`warmup`] | how many leading pairs to drop |
//! | [`sequential`] | when one may look and stop |
//! | [`verdict`] | faster, slower, same, or not known yet |
//! | [`holm`] | several comparisons at once |
//! | [`mod@crossover`] | from which frame size on the other variant is cheaper |
//! | [`ledger`] | where every packet ended |
//! | [`gaps`] | how evenly packets followed each other |
//! | [`delay`] | how long packets were on their way |
//! | [`window`] | which numbered packets were lost, came twice, or out of order |
//! | [`confidence`] | whether a mean over runs is known well enough |
//! | [`share`] | what a few runs received, and whether one setting receives more |
//! | [`search`] | the highest load that meets a loss ratio |
//! | [`foil`] | the usual methods that mislead, for tables beside ours |
//! | [`record`] | `perpacket.record/1`, read and written |
//!
//! # Example
//!
//! ```
//! use measure::paired::{CompareOptions, PairSample, compare};
//! use measure::verdict::{Criteria, Verdict, judge};
//!
//! // 200 pairs: B costs 1 % more than A, while the whole machine drifts by 20 %.
//! let samples: Vec<PairSample> = (0..200u32)
//!     .map(|i| {
//!         let drift = 1.0 + 0.2 * (f64::from(i) / 30.0).sin();
//!         let jitter = 0.002 * (f64::from(i * 7919 % 101) / 50.0 - 1.0);
//!         PairSample { block: 0, a_ns: 200.0 * drift, b_ns: 202.0 * drift * (1.0 + jitter) }
//!     })
//!     .collect();
//! let comparison = compare(&samples, &CompareOptions::default()).expect("enough pairs");
//! assert!(comparison.ratio_interval.contains(1.01));
//! assert_eq!(judge(&comparison, &Criteria::default()), Verdict::Slower);
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cluster;
pub mod confidence;
pub mod crossover;
pub mod delay;
pub mod foil;
pub mod gaps;
pub mod holm;
pub mod ledger;
pub mod marginal;
pub mod order;
pub mod paired;
pub mod quantile;
pub mod record;
pub mod search;
pub mod sequential;
pub mod share;
pub mod sign;
pub mod slice;
mod times;
pub mod verdict;
pub mod warmup;
pub mod window;
pub mod wire;
