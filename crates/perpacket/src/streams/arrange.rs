//! How both ends of a run come to have sockets to each other.

use std::time::Duration;

use anyhow::Result;
use stream::outcome::{Exchanged, Interval};
use stream::plan::Plan;

use super::local::Local;
use crate::ledger::Grown;
use crate::stop::Stop;

/// What arranges runs.
pub(crate) enum Arranging {
    /// Both ends on this machine.
    Local(Local),
}

/// What is asked of a run.
pub(crate) struct Asked<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) interval: Option<Duration>,
    /// Told each interval as it ends, of the end that asked.
    pub(crate) on_interval: &'a (dyn Fn(&Interval) + Sync),
    pub(crate) stop: &'a Stop,
}

/// What a run left.
#[derive(Debug, Default)]
pub(crate) struct Arranged {
    pub(crate) exchanged: Exchanged,
    /// By how much counters of the network between both ends grew, where it can be looked at.
    pub(crate) grown: Option<Grown>,
}

impl Arranging {
    /// Makes one run.
    ///
    /// # Errors
    /// What could not be arranged or moved, and why.
    pub(crate) fn exchange(&mut self, asked: &Asked<'_>) -> Result<Arranged> {
        match self {
            Self::Local(local) => local.exchange(asked),
        }
    }
}
