//! When to end: a signal or the clock. Nothing is torn down in a signal handler; loops look here.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Time that a run has to end by itself after a signal.
const PATIENCE: Duration = Duration::from_millis(500);

/// The end of a run, from outside or by time.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    deadline: Option<Deadline>,
    /// The time that a part has once it begins.
    patience: Option<Duration>,
}

impl Stop {
    /// Listens to SIGINT and SIGTERM from now on, and to SIGHUP unless it was to be ignored at the start, as nohup has it. The
    /// first one asks for the end. Another one, [`PATIENCE`] or more after it, ends the process at once; the next start puts
    /// back what that left. One that comes sooner is a key pressed twice.
    pub(crate) fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let hangup_ignored = ignored >> (SIGHUP - 1) & 1 == 1;
        let heard =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !hangup_ignored);
        let mut signals = Signals::new(heard).context("listen to signals")?;
        let flag = Arc::clone(&asked);
        let listen = move || {
            let mut first = None::<Instant>;
            for signal in signals.forever() {
                match first {
                    None => first = Some(Instant::now()),
                    Some(first) if first.elapsed() < PATIENCE => {}
                    Some(_) => std::process::exit(128 + signal),
                }
                flag.store(true, Ordering::Relaxed);
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(listen)
            .context("start the thread that listens to signals")?;
        Ok(Self { asked, deadline: None, patience: None })
    }

    /// The same, which also asks for the end when `length` has passed: that of a part of the run.
    #[must_use]
    pub(crate) fn or_after(&self, length: Duration) -> Self {
        Self { deadline: Some(Deadline::after(length)), ..self.clone() }
    }

    /// The same for a part that begins later, with [`begun_in`](Self::begun_in): getting ready is no part of its time.
    #[must_use]
    pub(crate) fn or_after_its_start(&self, length: Duration) -> Self {
        Self { patience: Some(length), ..self.clone() }
    }

    /// Begins the part whose time was given with [`or_after_its_start`](Self::or_after_its_start), `lead` from now.
    #[must_use]
    pub(crate) fn begun_in(&self, lead: Duration) -> Self {
        match self.patience {
            Some(patience) => Self { patience: None, ..self.or_after(lead + patience) },
            None => self.clone(),
        }
    }

    /// Whether a signal asked for the end, or the time is up where there is one.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| deadline.passed())
    }
}

/// The signals that a process ignores, signal 1 in the lowest bit, from its /proc/PID/status (SigIgn, in hexadecimal;
/// proc_pid_status(5)). None where it does not say.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A point in time after which a loop ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    length: Duration,
}

impl Deadline {
    /// `length` from now.
    pub(crate) fn after(length: Duration) -> Self {
        Self { start: Instant::now(), length }
    }

    /// Whether it has passed.
    pub(crate) fn passed(&self) -> bool {
        self.elapsed() >= self.length
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Share of the time that has passed, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        (self.elapsed().as_secs_f64() / self.length.as_secs_f64()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_run_ends_by_its_time() {
        let stop = Stop { asked: Arc::new(AtomicBool::new(false)), deadline: None, patience: None };
        assert!(stop.or_after(Duration::ZERO).asked() && !stop.asked());
        let part = stop.or_after(Duration::from_secs(3600));
        assert!(!part.asked());
        let later = stop.or_after_its_start(Duration::ZERO);
        assert!(!later.asked(), "it has not begun");
        assert!(later.begun_in(Duration::ZERO).asked());
        assert!(!later.begun_in(Duration::from_secs(3600)).asked() && !stop.begun_in(Duration::ZERO).asked());
        stop.asked.store(true, Ordering::Relaxed);
        assert!(later.asked() && later.begun_in(Duration::from_secs(3600)).asked());
        assert!(part.asked());
    }

    #[test]
    fn ignored_signals_are_a_mask_in_hexadecimal() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t00000001000044ec\n";
        assert_eq!(ignored_signals(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored_signals(""), 0);
    }
}
