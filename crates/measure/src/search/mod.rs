//! The highest load that a target carries: Multiple Loss Ratio search.
//!
//! A load is tried in several trials. What they lose says whether the load meets a goal (a [`Goal`] allows so much
//! loss, in all but so many seconds), misses it, or whether more trials are needed ([`classify()`]). The search
//! narrows the interval between the loads that meet a goal and those that miss it, for several goals at once,
//! beginning with few and coarse trials. The method is that of draft-ietf-bmwg-mlrsearch-15 (numbered RFC 9971),
//! whose terms are used here; how loads are classified ("Load Classification Logic", "Conditional Throughput") is
//! what it requires; which trial is made next it leaves open, and that follows what `MLRsearch` 1.2.1 (FD.io CSIT)
//! does.
//!
//! # What is promised
//!
//! - The relevant upper bound is the least load that missed the goal, and the relevant lower bound the greatest load
//!   below it that met it. A regular result has both, no further apart than the goal's width.
//! - If more load never means less loss, the same load always loses the same, and the sender offers what it is asked
//!   for, then the limit of the target lies between the two.
//! - The conditional throughput is never above the lower bound.
//! - A search ends, whatever the target does: at the latest when its trials have taken the time limit.
//! - The same results of trials lead to the same search. Nothing here has a clock or draws lots.
//!
//! # What is not
//!
//! - A target that loses at a load and passes a higher one is held to the lower one ("Loss Inversion"). If it loses
//!   at the least load, that is the result: [`Ending::LosesAtMinimum`].
//! - A target with a memory (a cache that fills, a clock that rises with load, a quota that is used up) answers
//!   otherwise later than sooner, and what is found depends on the order in which loads were tried. Nothing here
//!   notices. Repeat the search and report how far results lie apart. For Linux routers in virtual machines the rate
//!   at 0.5 % of loss was found unreliable, and some kernels lose packets at low load (PASTRAMI, arXiv 2410.18644).
//! - Noise on the host that is longer than a trial looks like the target's. The exceed ratio is there for noise that
//!   is shorter.
//!
//! # A sender that falls short
//!
//! The draft recommends to count what was not sent as lost ("Measurer"), and so names the sender's limit as the
//! target's. Here such a trial is invalid ([`Use::NotOffered`]) and counts for no goal. A load that could not be
//! offered in several trials, or by far, is not tried again, nor is any above it; the search goes on below, until the
//! interval up to there is as narrow as the goal's width. If the target passes that too, the result is
//! [`Ending::BoundedBySender`]: no loss up to so much, which is all that can be offered ([`Search::sender_bound`]). Where it was
//! offered all the same now and then, and lost, it is [`Ending::UnsteadySender`].
//!
//! # Example
//!
//! ```
//! use measure::search::{Ending, Goal, Limits, Next, Search, TrialResult};
//!
//! let limits = Limits { min_pps: 1e3, max_pps: 1e7, time_limit_s: 600.0, warm_up_s: None };
//! let mut search = Search::new(vec![Goal::ndr(), Goal::pdr()], limits)?;
//! while let Next::Trial { load_pps, duration_s } = search.next_trial() {
//!     // A target that carries 750,000 packets per second, exactly.
//!     let sent = (load_pps * duration_s) as u64;
//!     let carried = (750_000.0 * duration_s) as u64;
//!     search.record(TrialResult::offered(sent, sent.min(carried), duration_s))?;
//! }
//! let results = search.results();
//! let ndr = &results[0];
//! assert_eq!(ndr.ending, Ending::Regular);
//! let (lower, upper) = (ndr.lower.unwrap().load_pps, ndr.upper.unwrap().load_pps);
//! assert!(lower <= 750_000.0 && 750_000.0 < upper && upper - lower <= 0.01 * upper);
//! // At half a percent of loss a little more is offered, and no more arrives.
//! let pdr = results[1].conditional_throughput_pps.unwrap();
//! assert!((745_000.0..=750_001.0).contains(&pdr));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod classify;
mod driver;
mod goal;
mod grid;
mod opening;
mod outcome;
mod pursuit;
mod sender;
mod trial;
mod trials;

pub use classify::{Class, Criterion, Sample, classify, conditional_throughput, exceed_ratios};
pub use driver::{Next, Search};
pub use goal::{Advice, Goal, Limits, SettingsError, WIDTH_LEAST};
pub use outcome::{Bound, Ending, GoalResult};
pub use sender::{ATTEMPTS, SenderBound};
pub use trial::{RecordError, Trial, TrialResult, Use};
