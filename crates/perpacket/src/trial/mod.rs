//! A trial: so many packets at a rate, along a path that was made for them, and what became of each.
//!
//! ```text
//! Course     a path made real
//!  └ Sender  one thread that keeps the pace
//!  └ Trial   what was sent and received, and where the rest ended
//! ```

pub(crate) mod imix;
pub(crate) mod sender;

use anyhow::Result;
use measure::gaps::Gaps;
use measure::ledger::Ledger;

use crate::stop::Stop;

/// By how much the rate that was held may differ from the one that was asked for, as a share.
pub(crate) const RATE_TOLERANCE: f64 = 0.001;

/// What a trial is to send: so many packets at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Packets per second.
    pub(crate) pps: f64,
    /// Packets.
    pub(crate) packets: u64,
}

impl Load {
    /// From one packet to the next, in ns.
    pub(crate) fn interval_ns(&self) -> f64 {
        1e9 / self.pps
    }
}

/// One trial: what was sent, what arrived, and where the rest ended.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) load: Load,
    /// Packets that the backend confirmed; who says so is in the ledger.
    pub(crate) sent: u64,
    /// What the receiver has after the drain.
    pub(crate) received: u64,
    /// From the first packet until the one after the last would have been due, in ns.
    pub(crate) wall_ns: u64,
    /// How often the sender's device refused a packet, which was then sent again: the path held the sender back. None where the
    /// sender does not learn of it.
    pub(crate) refused: Option<u64>,
    /// Gaps between packets, as the sender saw them.
    pub(crate) gaps: Option<Gaps>,
    /// Where every packet ended.
    pub(crate) ledger: Ledger,
}

impl Trial {
    /// The rate at which packets were sent, in packets per second; 0 where none was.
    pub(crate) fn achieved_pps(&self) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { self.sent as f64 * 1e9 / self.wall_ns as f64 }
    }

    /// Whether the load was what was asked for: all packets were sent, and the rate was held to a thousandth.
    pub(crate) fn is_offered(&self) -> bool {
        let Load { pps, packets } = self.load;
        self.sent == packets && (self.achieved_pps() / pps - 1.0).abs() <= RATE_TOLERANCE
    }
}

/// A path made real, on which trials are run.
pub(crate) trait Course {
    /// Sends a load along the path, and waits until nothing more arrives. Ends early, with fewer packets, soon after a signal.
    fn run(&mut self, load: &Load, stop: &Stop) -> Result<Trial>;
}

#[cfg(test)]
mod tests {
    use measure::ledger::Count;

    use super::*;

    fn trial(sent: u64, received: u64, wall_ns: u64) -> Trial {
        let sent_by = Count { packets: sent, seen_by: "sender".into() };
        Trial {
            load: Load { pps: 750e3, packets: 750_000 },
            sent,
            received,
            wall_ns,
            refused: None,
            gaps: None,
            ledger: Ledger::new("flows", Some(64), sent_by),
        }
    }

    #[test]
    fn a_load_is_offered_when_all_was_sent_at_the_rate() {
        assert!(trial(750_000, 0, 1_000_000_000).is_offered());
        assert!(trial(750_000, 0, 1_000_900_000).is_offered());
        assert!(!trial(750_000, 0, 1_001_100_000).is_offered(), "too slow");
        assert!(!trial(749_999, 0, 1_000_000_000).is_offered(), "one is missing");
        assert!(!trial(0, 0, 0).is_offered());
    }

    #[test]
    fn what_the_receiver_lacks_is_lost() {
        let trial = trial(750_000, 749_000, 2_000_000_000);
        assert_eq!((trial.sent - trial.received, trial.achieved_pps()), (1_000, 375e3));
    }
}
