//! The trait of what sends at a rate. A [`crate::Backend`] sends as fast as it can; a generator wraps one, or keeps its
//! own time inside the kernel.

use std::fmt;
use std::sync::atomic::AtomicBool;

use measure::gaps::Gaps;

use crate::backend::{BackendKind, SendError, Sent};

/// When the packets of one sender are due: packet i at `start_ns + i × interval_ns`.
///
/// A sender that is late catches up, but never faster than at twice the rate: packet i is sent at the later of the time
/// that it is due and half an interval after the packet before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// When the first packet is due, on `CLOCK_MONOTONIC` in ns.
    pub start_ns: u64,
    /// From one packet to the next, in ns; fractions count.
    pub interval_ns: f64,
}

/// What sending took, by the clock of who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// From the first packet to the end of the last one; with a pace, to when the next one would have been due.
    pub wall_ns: u64,
    /// CPU time.
    pub cpu_ns: u64,
}

/// Sends packets when they are due, and knows the gaps between them.
pub trait Generator: Send + fmt::Debug {
    /// Which way the packets take.
    fn kind(&self) -> BackendKind;

    /// Moves the pace to begin at a time on `CLOCK_MONOTONIC` in ns: for several senders that are to begin together, once
    /// all of them are there. To be called before the first packet; without a pace it does nothing.
    fn start_at(&mut self, start_ns: u64);

    /// Sends the next `packets` packets, each when it is due; without a pace, as fast as it can. Returns early, with
    /// fewer, soon after `stop` becomes true, when there is nothing
    /// more to send ([`Self::ended`]), and when the kernel makes no progress ([`crate::Backend::send`]). The pace goes on from one call to the next.
    ///
    /// # Errors
    /// As [`crate::Backend::send`].
    fn send(&mut self, packets: u64, stop: &AtomicBool) -> Result<Sent, SendError>;

    /// Whether what there is to send has come to an end, and all of it was offered.
    fn ended(&self) -> bool {
        false
    }

    /// Waits until everything offered is confirmed; see [`crate::Backend::flush`].
    ///
    /// # Errors
    /// As [`crate::Backend::flush`].
    fn flush(&mut self) -> Result<Sent, SendError>;

    /// Packets that are handed over at once: those behind the first have a gap of nearly 0. None without a pace.
    fn grain(&self) -> Option<u32>;

    /// The gaps between packets until now, as this sender saw them; those within a grain are 0. None without a pace.
    fn gaps(&mut self) -> Option<Gaps>;

    /// When packets were last handed over, on `CLOCK_MONOTONIC` in ns, as this sender saw it. With the number of packets it
    /// says which rate was held, without what a call takes to end. None before the first, and without a pace.
    fn last_ns(&self) -> Option<u64> {
        None
    }

    /// What sending took, where another thread than the calling one does it, whose clocks see nothing of it; known when all is
    /// over.
    fn spent(&self) -> Option<Spent> {
        None
    }
}
