//! How many packets are handed over at once.
//!
//! One, as long as that keeps the rate. A sender that is behind and does not gain on it, because handing over takes longer
//! than it may, doubles its grain, up to 64. If that has not made a packet cheaper, it goes back and leaves it at that.
//!
//! Being behind alone says nothing: the thread may have lost its CPU, and grains do not bring that back. So what counts is
//! the median time of handing over, which no interruption moves. Where it is longer than packets take at the rate, the
//! rate is out of reach, and that is acted upon soon. Where it is only longer than at twice the rate, the sender does not
//! make up for what it loses; that has to last before evenness is given up for it.
//!
//! What was too slow may have been so for a while only. A sender that is on time tries half of its grain after a second,
//! and each time that it has to take that back, it waits twice as long until the next time.

/// Most packets in a grain.
const MAX: u64 = 64;
/// How long the sender is behind before its grain is doubled: when the rate is out of reach, and when it is lost time that
/// is not made up for.
const SOON_NS: u64 = 10_000_000;
const LASTING_NS: u64 = 100_000_000;
/// How long a grain is kept before half of it is tried, at first.
const KEEP_NS: u64 = 1_000_000_000;
/// Part of the time that packets take at the rate: at twice the rate it is 0.5.
const TWICE_THE_RATE: f64 = 0.6;
/// Part of a packet's cost that it may still have after the grain was doubled, if that was worth it.
const CHEAPER: f64 = 0.95;
/// Grains whose median is taken.
const SAMPLES: usize = 64;

/// The number, and what it is judged by.
#[derive(Debug)]
pub(super) struct Grain {
    interval_ns: f64,
    packets: u64,
    used: u64,
    /// A larger one does not help.
    settled: bool,
    /// What a packet cost before it was doubled, until it is known whether that helped.
    cost_before_ns: Option<f64>,
    /// When it was changed last, and how long it is kept.
    changed_ns: u64,
    keep_ns: u64,
    trial: Trial,
}

/// How handing over went since the sender is behind.
#[derive(Debug)]
struct Trial {
    grains: usize,
    since_ns: u64,
    /// How late the first one was.
    lag_ns: u64,
    /// What a packet cost, in ns, in the last grains.
    costs: Box<[f64; SAMPLES]>,
}

/// A grain that was handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handed {
    /// When.
    pub(super) at_ns: u64,
    /// How long after it was due.
    pub(super) lag_ns: u64,
    /// What a packet of the grain before it took.
    pub(super) cost_ns: f64,
}

impl Grain {
    pub(super) fn new(interval_ns: f64) -> Self {
        let trial = Trial { grains: 0, since_ns: 0, lag_ns: 0, costs: Box::new([0.0; SAMPLES]) };
        Self {
            interval_ns,
            packets: 1,
            used: 1,
            settled: false,
            cost_before_ns: None,
            changed_ns: 0,
            keep_ns: KEEP_NS,
            trial,
        }
    }

    /// How many packets are handed over next.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// The most until now.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Judges anew, after a grain.
    pub(super) fn note(&mut self, handed: Handed) {
        let on_time_ns = 2.0 * self.packets as f64 * self.interval_ns;
        if handed.lag_ns as f64 <= on_time_ns {
            (self.trial.grains, self.cost_before_ns) = (0, None);
            if self.packets > 1 && handed.at_ns.saturating_sub(self.changed_ns) >= self.keep_ns {
                self.change(self.packets / 2, handed.at_ns);
                self.settled = false;
            }
        } else if !self.settled {
            self.trial.note(handed);
            if self.trial.grains.is_multiple_of(SAMPLES) {
                self.judge(handed);
            }
        }
    }

    fn judge(&mut self, handed: Handed) {
        let behind_ns = handed.at_ns.saturating_sub(self.trial.since_ns);
        if behind_ns < SOON_NS {
            return;
        }
        let cost_ns = self.trial.median_ns();
        if self.cost_before_ns.take().is_some_and(|before_ns| cost_ns > CHEAPER * before_ns) {
            self.change(self.packets / 2, handed.at_ns);
            self.settled = true;
            return;
        }
        let out_of_reach = cost_ns > self.interval_ns;
        let lasting = behind_ns >= LASTING_NS;
        let limited = out_of_reach || lasting && cost_ns > TWICE_THE_RATE * self.interval_ns;
        if limited && handed.lag_ns >= self.trial.lag_ns && self.packets < MAX {
            if self.packets < self.used {
                self.keep_ns = self.keep_ns.saturating_mul(2);
            }
            self.change(self.packets * 2, handed.at_ns);
            self.cost_before_ns = Some(cost_ns);
        } else if lasting {
            self.trial.grains = 0;
        }
    }

    fn change(&mut self, packets: u64, at_ns: u64) {
        self.packets = packets;
        self.used = self.used.max(packets);
        self.changed_ns = at_ns;
        self.trial.grains = 0;
    }
}

impl Trial {
    fn note(&mut self, handed: Handed) {
        if self.grains == 0 {
            (self.since_ns, self.lag_ns) = (handed.at_ns, handed.lag_ns);
        }
        self.costs[self.grains % SAMPLES] = handed.cost_ns;
        self.grains += 1;
    }

    fn median_ns(&mut self) -> f64 {
        let (_, median_ns, _) = self.costs.select_nth_unstable_by(SAMPLES / 2, f64::total_cmp);
        *median_ns
    }
}
