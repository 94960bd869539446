//! When to end: a signal or the clock. Nothing is torn down in a signal handler; loops look here.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The end of a run, from outside or by time.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Listens to SIGINT and SIGTERM from now on, and to SIGHUP unless it was to be ignored at the start, as nohup has it. A
    /// second signal ends the process at once; the next start puts back what that left.
    pub(crate) fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let hangup_ignored = ignored >> (SIGHUP - 1) & 1 == 1;
        for signal in
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !hangup_ignored)
        {
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
                .with_context(|| format!("listen to signal {signal}"))?;
        }
        Ok(Self { asked })
    }

    /// Whether a signal asked for the end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
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
    fn ignored_signals_are_a_mask_in_hexadecimal() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t00000001000044ec\n";
        assert_eq!(ignored_signals(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored_signals(""), 0);
    }
}
