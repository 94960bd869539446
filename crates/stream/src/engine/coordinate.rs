//! The thread that called: starts the others, keeps the time, reads counters and puts together what was counted.

use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use linux::{clock, cpu};

use super::control::{COUNTING, Control, ENOUGH, STOP};
use super::counters::Account;
use super::intervals::{Reader, span};
use super::task::{Common, found};
use super::thread::{self, Share};
use super::{End, EngineError, Flow, Settings};
use crate::cpu::Snapshot;
use crate::outcome::Side;
use crate::plan::{Pace, Plan, SocketOptions, Threads, Until};

/// Begin and end are looked at this often, if nothing wakes up the thread before.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn run(flows: &[Flow], settings: &Settings<'_>, control: &Control) -> Result<Side, EngineError> {
    let side = run_threads(flows, settings, control);
    control.end();
    side
}

fn run_threads(flows: &[Flow], settings: &Settings<'_>, control: &Control) -> Result<Side, EngineError> {
    let plan = settings.plan;
    let (options, threads): (&SocketOptions, &Threads) = match settings.end {
        End::Client => (&plan.options.client, &plan.threads.client),
        End::Server => (&plan.options.server, &plan.threads.server),
    };
    let accounts: Arc<[Account]> = flows.iter().map(|_| Account::default()).collect();
    control.watch(&accounts);
    let common = Common { plan, options, control, budget: Common::budget(plan) };
    let count = thread_count(threads, flows.len())?;
    if plan.omit.is_zero() {
        control.raise(COUNTING); // before anything moves
    }
    control.change(|stage| stage.threads = Some(count));
    let mut clock = Clock::new(flows, &accounts, settings, control);
    let threads_ns = std::thread::scope(|scope| {
        let start = |index: usize| {
            let mine = flows.iter().zip(accounts.iter()).skip(index).step_by(count).collect();
            let cpu = (!threads.cpus.is_empty()).then(|| threads.cpus[index % threads.cpus.len()]);
            let share = Share { common: &common, flows: mine, cpu };
            let ended = Ended(control);
            std::thread::Builder::new().name(format!("flows-{index}")).spawn_scoped(scope, move || {
                let _ended = ended;
                thread::run(&share).inspect_err(|_| share.common.control.stop())
            })
        };
        // A thread that could not be started has ended too, as its closure is gone.
        let handles: Vec<_> = (0..count).map(start).collect();
        if handles.iter().any(Result::is_err) {
            control.stop();
        }
        clock.keep(count);
        join(handles)
    })?;
    Ok(clock.side(threads_ns))
}

/// Says that a thread has ended, also when it panicked: nobody shall wait for it.
struct Ended<'a>(&'a Control);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.raise(STOP);
        }
        self.0.change(|stage| stage.ended += 1);
    }
}

/// What each thread used; or the first thing that went wrong.
fn join(
    handles: Vec<std::io::Result<ScopedJoinHandle<'_, Result<u64, EngineError>>>>,
) -> Result<Vec<u64>, EngineError> {
    let joined: Vec<_> = handles
        .into_iter()
        .map(|handle| handle.map_err(EngineError::Thread)?.join().map_err(|_| EngineError::Panicked)?)
        .collect();
    joined.into_iter().collect()
}

fn thread_count(threads: &Threads, flows: usize) -> Result<usize, EngineError> {
    let most = match threads.count {
        Some(count) => count as usize,
        None => cpu::allowed()?.len(),
    };
    Ok(most.min(flows).max(1))
}

/// Keeps the time of a run.
struct Clock<'a> {
    accounts: &'a [Account],
    settings: &'a Settings<'a>,
    control: &'a Control,
    reader: Reader<'a>,
    begin_ns: u64,
    /// When counting began.
    counting_ns: Option<u64>,
    enough: bool,
    /// All that has moved when it was last looked at, and since when that has not changed.
    motion: u64,
    still_since_ns: u64,
    looked_ns: u64,
    gave_up: bool,
    cpu: Option<Snapshot>,
    warnings: Vec<String>,
}

impl<'a> Clock<'a> {
    fn new(
        flows: &'a [Flow],
        accounts: &'a [Account],
        settings: &'a Settings<'a>,
        control: &'a Control,
    ) -> Self {
        Self {
            accounts,
            settings,
            control,
            reader: Reader::new(flows, accounts, settings),
            begin_ns: 0,
            counting_ns: None,
            enough: false,
            motion: 0,
            still_since_ns: 0,
            looked_ns: 0,
            gave_up: false,
            cpu: None,
            warnings: Vec::new(),
        }
    }

    /// Until all threads have ended.
    fn keep(&mut self, threads: usize) {
        let mut stage = self.control.stage();
        while !stage.begun && !self.control.stopped() {
            stage = self.control.wait(stage, LOOK);
        }
        drop(stage);
        self.begin();
        loop {
            let now_ns = clock::monotonic_ns();
            let next_ns = self.look(now_ns);
            let stage = self.control.stage();
            if stage.ended >= threads {
                return;
            }
            let left_ns = next_ns.saturating_sub(clock::monotonic_ns());
            drop(self.control.wait(stage, Duration::from_nanos(left_ns)));
        }
    }

    fn begin(&mut self) {
        self.begin_ns = clock::monotonic_ns();
        (self.still_since_ns, self.looked_ns) = (self.begin_ns, self.begin_ns);
        if self.settings.plan.omit.is_zero() {
            self.begin_counting();
        } else {
            self.reader.begin(false, self.begin_ns);
        }
    }

    fn begin_counting(&mut self) {
        self.control.raise(COUNTING);
        if self.settings.cpu {
            match Snapshot::take() {
                Ok(snapshot) => self.cpu = Some(snapshot),
                Err(error) => self.warnings.push(format!("CPU time is not accounted for: {error}")),
            }
        }
        let now_ns = clock::monotonic_ns();
        self.counting_ns = Some(now_ns);
        self.reader.begin(true, now_ns);
    }

    /// Does what is due; when to look again.
    fn look(&mut self, now_ns: u64) -> u64 {
        let plan = self.settings.plan;
        let mut next_ns = now_ns + LOOK.as_nanos() as u64;
        match self.counting_ns {
            None => {
                let omit_ns = self.begin_ns.saturating_add(nanoseconds(plan.omit));
                if now_ns >= omit_ns && !self.control.stopped() {
                    self.begin_counting();
                    return now_ns;
                }
                next_ns = next_ns.min(omit_ns);
            }
            Some(counting_ns) => {
                if let Until::Time(time) = plan.until
                    && !self.enough
                {
                    let end_ns = counting_ns.saturating_add(nanoseconds(time));
                    if now_ns >= end_ns {
                        self.enough = true;
                        self.control.raise(ENOUGH);
                    } else {
                        next_ns = next_ns.min(end_ns);
                    }
                }
            }
        }
        if let Some(close_ns) = self.reader.next_ns() {
            if now_ns >= close_ns {
                self.reader.close(now_ns);
            }
            next_ns = next_ns.min(self.reader.next_ns().unwrap_or(next_ns));
        }
        next_ns.min(self.watch(now_ns))
    }

    /// Gives up when nothing has moved for long; when to look again.
    fn watch(&mut self, now_ns: u64) -> u64 {
        let patience_ns = nanoseconds(patience(self.settings));
        let every_ns = (patience_ns / 8).clamp(20_000_000, 1_000_000_000);
        if now_ns < self.looked_ns + every_ns {
            return self.looked_ns + every_ns;
        }
        self.looked_ns = now_ns;
        let moved =
            |account: &Account| account.omitted.read().motion().wrapping_add(account.counted.read().motion());
        let motion = self.accounts.iter().map(moved).fold(0, u64::wrapping_add);
        if motion != self.motion {
            (self.motion, self.still_since_ns) = (motion, now_ns);
        } else if now_ns - self.still_since_ns >= patience_ns && !self.gave_up && !self.control.stopped() {
            self.gave_up = true;
            self.warnings.push(format!(
                "nothing moved for {:.1} s: the peer, or the way to it, is gone; the run ended with what was counted until then",
                patience_ns as f64 / 1e9
            ));
            self.control.stop();
        }
        now_ns + every_ns
    }

    /// What this end counted.
    fn side(mut self, threads_ns: Vec<u64>) -> Side {
        let cpu = self.cpu.take().and_then(|before| match Snapshot::take() {
            Ok(after) => Some(before.until(&after, threads_ns)),
            Err(error) => {
                self.warnings.push(format!("CPU time is not accounted for: {error}"));
                None
            }
        });
        // Having waited in vain is no part of the time.
        let bound_ns = self.gave_up.then_some(self.still_since_ns);
        let spans = || {
            let all = self.accounts.iter().map(|account| span(account, bound_ns));
            all.filter(|&(begin_ns, _)| begin_ns > 0)
        };
        let begin_ns = spans().map(|(begin_ns, _)| begin_ns).min().unwrap_or(0);
        let end_ns = spans().map(|(_, end_ns)| end_ns).max().unwrap_or(0);
        if self.counting_ns.is_none() {
            self.warnings.push("the run ended before what is omitted was over: nothing was counted".into());
        }
        self.reader.finish(end_ns);
        let flows = self.reader.totals(bound_ns);
        self.warnings.extend(warnings(self.accounts));
        Side {
            wall_ns: end_ns - begin_ns,
            flows,
            cpu,
            intervals: std::mem::take(&mut self.reader.intervals),
            warnings: self.warnings,
        }
    }
}

/// What flows have to say, each thing once and how many said it.
fn warnings(accounts: &[Account]) -> Vec<String> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for account in accounts {
        for warning in found(account).warnings.drain(..) {
            match all.iter_mut().find(|(text, _)| *text == warning) {
                Some((_, times)) => *times += 1,
                None => all.push((warning, 1)),
            }
        }
    }
    let said = |(text, times)| if times == 1 { text } else { format!("{text} ({times} flows)") };
    all.into_iter().map(said).collect()
}

/// How long nothing may move. At a slow pace that is longer than the time between two messages.
fn patience(settings: &Settings<'_>) -> Duration {
    let slowest = pause(settings.plan).saturating_mul(3);
    settings.give_up_after.max(slowest)
}

/// The time between two messages of a flow that keeps a pace.
fn pause(plan: &Plan) -> Duration {
    let bits = f64::from(plan.send_bytes) * 8.0;
    let seconds = match plan.pace {
        None => return Duration::ZERO,
        Some(
            Pace::Kernel { bits_per_second }
            | Pace::DepartureTimes { bits_per_second }
            | Pace::Spread { bits_per_second },
        ) => bits / bits_per_second.max(1) as f64,
        Some(Pace::Schedule { per_second }) => 1.0 / per_second,
    };
    Duration::try_from_secs_f64(seconds.min(1e6)).unwrap_or(Duration::ZERO)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
