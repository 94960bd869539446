//! The end of a pool.

use alloc::sync::Arc;
use core::fmt;

use super::{PoolStats, home::Home};

/// A pool that has ended, while pages of it may still be out. Those go to the source when they come back. It may be dropped
/// at any time: they do so all the same, and nobody is told.
#[must_use = "to know when the last page is back"]
pub struct Closing {
    home: Arc<Home>,
    stats: PoolStats,
}

impl Closing {
    pub(crate) fn new(home: Arc<Home>, stats: PoolStats) -> Closing {
        Closing { home, stats }
    }

    /// Pages that were handed out and are not back in the source.
    pub fn in_flight(&self) -> usize {
        self.home.not_released(self.stats.slow)
    }

    /// The final account, if all pages are back in the source.
    #[allow(clippy::result_large_err)] // it is `self`, not moved more often than it is asked
    pub fn try_finish(self) -> Result<PoolStats, Closing> {
        if self.in_flight() == 0 { Ok(self.stats()) } else { Err(self) }
    }

    /// Sleeps until all pages are back in the source. For ever, if this thread has one itself.
    #[cfg(feature = "std")]
    pub fn wait(self) -> PoolStats {
        self.home.wait_released(self.stats.slow);
        self.stats()
    }

    /// The account so far.
    pub fn stats(&self) -> PoolStats {
        PoolStats { in_flight: self.in_flight(), ..self.home.complete(self.stats) }
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
