//! Periods of a run: read from the counters as they end, each from where the one before ended.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linux::clock;

use super::counters::{Account, Counts};
use super::marks::Arrivals;
use super::task::found;
use super::{Flow, Marks, Role, Settings, tcp};
use crate::outcome::{self, Interval, Moved, Tcp};
use crate::plan::Until;

/// Reads what flows count.
pub(super) struct Reader<'a> {
    flows: &'a [Flow],
    accounts: &'a [Account],
    settings: &'a Settings<'a>,
    /// What is being read: the phase, when it began, and when the present interval did.
    counting: bool,
    phase_ns: u64,
    start_ns: u64,
    /// Of each flow: counters at the end of the last interval, retransmits then and when the phase began.
    before: Vec<Counts>,
    retransmits: Vec<Option<u32>>,
    retransmits_at_first: Vec<Option<u32>>,
    series: Vec<Vec<Tcp>>,
    pub(super) intervals: Vec<Interval>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(flows: &'a [Flow], accounts: &'a [Account], settings: &'a Settings<'a>) -> Self {
        let retransmits = retransmits(flows);
        Self {
            flows,
            accounts,
            settings,
            counting: false,
            phase_ns: 0,
            start_ns: 0,
            before: vec![Counts::default(); flows.len()],
            retransmits_at_first: retransmits.clone(),
            retransmits,
            series: vec![Vec::new(); flows.len()],
            intervals: Vec::new(),
        }
    }

    /// The run, or counting, begins.
    pub(super) fn begin(&mut self, counting: bool, now_ns: u64) {
        if counting && self.start_ns > 0 {
            if self.settings.interval.is_some() {
                self.close(now_ns);
            }
            // What was omitted is in no figure of the connection either, as far as those are counts.
            self.retransmits = retransmits(self.flows);
            self.retransmits_at_first.clone_from(&self.retransmits);
            self.series.iter_mut().for_each(Vec::clear);
        }
        (self.counting, self.phase_ns, self.start_ns) = (counting, now_ns, now_ns);
        self.before.fill(Counts::default());
    }

    /// When the present interval is to end; none where there are no intervals.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let interval_ns = self.settings.interval?.as_nanos().max(1) as u64;
        let done = (self.start_ns - self.phase_ns + interval_ns / 2) / interval_ns;
        let next_ns = self.phase_ns + (done + 1) * interval_ns;
        Some(self.defer(next_ns, interval_ns))
    }

    /// Where the run, or the omitted time, is over at about the same time, the interval ends with it: no sliver is left over.
    fn defer(&self, next_ns: u64, interval_ns: u64) -> u64 {
        let plan = self.settings.plan;
        let end = if self.counting {
            match plan.until {
                Until::Time(time) => time,
                _ => return next_ns,
            }
        } else {
            plan.omit
        };
        let end_ns = self.phase_ns + end.min(Duration::from_secs(1 << 30)).as_nanos() as u64;
        if next_ns.abs_diff(end_ns) < interval_ns / 10 { end_ns + interval_ns / 2 } else { next_ns }
    }

    /// Ends the present interval.
    pub(super) fn close(&mut self, now_ns: u64) {
        let end_ns = now_ns.max(self.start_ns);
        let wall_ns = end_ns - self.start_ns;
        let flows = (0..self.flows.len()).map(|index| self.flow(index, wall_ns)).collect();
        let interval = Interval {
            start_ns: self.start_ns - self.phase_ns,
            end_ns: end_ns - self.phase_ns,
            omitted: !self.counting,
            flows,
        };
        self.start_ns = end_ns;
        if let Some(on_interval) = self.settings.on_interval {
            on_interval(&interval);
        }
        self.intervals.push(interval);
    }

    /// Ends the last interval, when all flows have ended, the last of them at `end_ns`.
    pub(super) fn finish(&mut self, end_ns: u64) {
        let Some(interval) = self.settings.interval else { return };
        let moved =
            |(account, before): (&Account, &Counts)| account.counters(self.counting).read() != *before;
        let any = self.accounts.iter().zip(&self.before).any(moved);
        let now_ns = clock::monotonic_ns();
        if self.start_ns == 0 {
            return;
        }
        // What flows wait for at the end, without anything, is no period of its own unless it is as long as one.
        if any {
            self.close(if end_ns > self.start_ns { end_ns } else { now_ns });
        } else if Duration::from_nanos(now_ns.saturating_sub(self.start_ns)) > interval / 2
            || self.intervals.is_empty()
        {
            self.close(now_ns);
        }
    }

    fn flow(&mut self, index: usize, wall_ns: u64) -> outcome::Flow {
        let (flow, account) = (&self.flows[index], &self.accounts[index]);
        let now = account.counters(self.counting).read();
        let counts = now.since(self.before[index]);
        self.before[index] = now;
        let tcp = tcp::info(flow).map(|info| {
            let tcp = tcp::outcome(&info, self.retransmits[index]);
            self.retransmits[index] = info.retransmits;
            tcp
        });
        self.series[index].extend(tcp.clone());
        let datagrams = found(account).arrivals.as_mut().map(|arrivals| arrivals.tracker.end_interval());
        let [sent, received] = moved(flow.role, counts);
        let transactions = transactions(flow.role, counts);
        outcome::Flow { wall_ns, sent, received, transactions, datagrams, tcp, ..outcome::Flow::default() }
    }

    /// All that each flow counted; `end_ns` bounds the time, where flows went on waiting for nothing.
    pub(super) fn totals(&mut self, end_ns: Option<u64>) -> Vec<outcome::Flow> {
        (0..self.flows.len()).map(|index| self.total(index, end_ns)).collect()
    }

    fn total(&mut self, index: usize, bound_ns: Option<u64>) -> outcome::Flow {
        let (flow, account) = (&self.flows[index], &self.accounts[index]);
        let counts = account.counted.read();
        let tcp = tcp::info(flow).map(|info| Tcp {
            congestion: tcp::congestion(flow),
            series: std::mem::take(&mut self.series[index]),
            ..tcp::outcome(&info, self.retransmits_at_first[index])
        });
        let mut found = found(account);
        let datagrams = found.arrivals.as_ref().map(|arrivals| arrivals.tracker.total(None));
        let numbered = match flow.role {
            Role::Send if flow.marks != Marks::None => {
                Some(account.omitted.read().sent.messages + counts.sent.messages)
            }
            Role::Receive => found.arrivals.as_ref().and_then(Arrivals::numbered),
            _ => None,
        };
        let [sent, received] = moved(flow.role, counts);
        let (begin_ns, end_ns) = span(account, bound_ns);
        outcome::Flow {
            wall_ns: end_ns - begin_ns,
            sent,
            received,
            transactions: transactions(flow.role, counts),
            latency: found.latency.take(),
            datagrams: datagrams.or(found.answers),
            tcp,
            numbered,
        }
    }
}

/// When a flow began to count, and when it ended.
pub(super) fn span(account: &Account, bound_ns: Option<u64>) -> (u64, u64) {
    let begin_ns = account.begin_ns.load(Relaxed);
    let end_ns = account.end_ns.load(Relaxed).min(bound_ns.unwrap_or(u64::MAX));
    (begin_ns, end_ns.max(begin_ns))
}

fn retransmits(flows: &[Flow]) -> Vec<Option<u32>> {
    flows.iter().map(|flow| tcp::info(flow)?.retransmits).collect()
}

/// What a role sends and receives.
fn moved(role: Role, counts: Counts) -> [Option<Moved>; 2] {
    match role {
        Role::Send => [Some(counts.sent), None],
        Role::Receive => [None, Some(counts.received)],
        // A connection that could not be made, or was not served, is among what was not sent.
        Role::Request | Role::Respond | Role::Connect | Role::Accept => {
            [Some(counts.sent), Some(counts.received)]
        }
    }
}

fn transactions(role: Role, counts: Counts) -> Option<u64> {
    (!matches!(role, Role::Send | Role::Receive)).then_some(counts.transactions)
}
