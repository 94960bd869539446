//! How both ends of a run come to have sockets to each other.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use stream::iperf3::json::Facts;
use stream::iperf3::results::ServerOutput;
use stream::outcome::{Exchanged, Interval};
use stream::plan::Plan;

use super::local::Local;
use super::remote::Host;
use crate::ledger::Grown;
use crate::stop::Stop;

/// What arranges runs.
pub(crate) enum Arranging {
    /// Both ends on this machine.
    Local(Local),
    /// The other end on a host that was named.
    Host(Box<Host>),
}

/// What is asked of a run.
pub(crate) struct Asked<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) interval: Option<Duration>,
    /// Whether CPU time is accounted for.
    pub(crate) cpu: bool,
    /// Told each interval as it ends, of the end that asked.
    pub(crate) on_interval: &'a (dyn Fn(&Interval) + Sync),
    pub(crate) stop: &'a Stop,
}

/// What a run left.
#[derive(Debug, Default)]
pub(crate) struct Arranged {
    pub(crate) exchanged: Exchanged,
    pub(crate) beside: Beside,
    /// By how much counters of the network between both ends grew, where it can be looked at.
    pub(crate) grown: Option<Grown>,
}

/// What is known of a run beside counts: other programs print it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    pub(crate) buffers: Buffers,
    /// Bytes of a call of the end that sends, where they are not those of the plan.
    pub(crate) message_bytes: Option<u32>,
    /// How the other end measured CPU time, by netperf's letter.
    pub(crate) server_cpu_method: Option<char>,
    /// Of iperf3's protocol.
    pub(crate) facts: Option<Facts>,
    /// Of iperf3's protocol.
    pub(crate) server_output: Option<ServerOutput>,
    /// When it began, ms since 1970.
    pub(crate) unix_ms: u64,
}

/// `SO_SNDBUF` and `SO_RCVBUF` of the data sockets of each end before anything flows, bytes; none where they are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) local: Option<(u32, u32)>,
    pub(crate) remote: Option<(u32, u32)>,
}

impl Arranging {
    /// Makes one run.
    ///
    /// # Errors
    /// What could not be arranged or moved, and why.
    pub(crate) fn exchange(&mut self, asked: &Asked<'_>) -> Result<Arranged> {
        let unix_ms = Facts::now_ms();
        let mut arranged = match self {
            Self::Local(local) => local.exchange(asked),
            Self::Host(host) => host.exchange(asked),
        }?;
        arranged.beside.unix_ms = unix_ms;
        Ok(arranged)
    }

    /// How the end that answers is called, and its address; none over UNIX sockets.
    pub(crate) fn answering(&self) -> Option<(String, SocketAddr)> {
        match self {
            Self::Local(local) => local.server().map(|ip| (ip.to_string(), SocketAddr::new(ip, 0))),
            Self::Host(host) => Some(host.called()),
        }
    }
}
