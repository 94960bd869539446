//! What every benchmark that sends does first: go before other processes, and have calls of live frames end at once.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use lab::HostSettings;
use lab::journal::Guard;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The CPU that trafgen pins its only worker to.
pub const CPU: usize = 0;
/// The nice value of the session, where the kernel groups processes by session: then that of a process counts among
/// those of its session only (sched(7), "The autogroup feature").
const AUTOGROUP: &str = "/proc/self/autogroup";
/// Before all others.
const NICE: i32 = -20;
/// With it set, a call of live frames ends at once instead of waiting for 20 to 30 ms.
const RCU_EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// The host as borrowed for a benchmark; put back when dropped.
pub struct Ground {
    interrupted: Arc<AtomicBool>,
    _expedited: Guard,
    _first: First,
}

impl Ground {
    /// Needs root. The calling thread, and what it starts, runs on [`CPU`] from now on.
    ///
    /// # Errors
    /// Without root, or what the kernel refuses.
    pub fn prepare() -> Result<Self> {
        ensure!(linux::privilege::full(), "run as root: BPF programs and namespaces are needed");
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .with_context(|| format!("listen to signal {signal}"))?;
        }
        linux::cpu::pin(CPU).context("pin to the CPU that trafgen uses")?;
        let first = First::go().context("go before other processes")?;
        let settings = HostSettings::open_default()?;
        settings.clean().context("put back what a killed run left")?;
        let expedited = settings.hold(RCU_EXPEDITED, "1").context("expedite RCU for the run")?;
        Ok(Self { interrupted, _expedited: expedited, _first: first })
    }

    /// Whether a signal asked for the end. What was measured is printed then, and the host's setting put back.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The calling thread and what it starts go before other processes: with these at work on the same CPU, wall time would be about
/// them. The session is put back when this is dropped.
pub struct First {
    session_nice: Option<String>,
}

impl First {
    /// Needs root.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn go() -> Result<Self> {
        linux::cpu::set_nice(NICE)?;
        // `/autogroup-51 nice 0`; there is no such file where nothing is grouped.
        let group = fs::read_to_string(AUTOGROUP).unwrap_or_default();
        let session_nice = group.rsplit_once("nice ").map(|(_, nice)| nice.trim().to_owned());
        if session_nice.is_some() {
            fs::write(AUTOGROUP, NICE.to_string()).with_context(|| format!("write {NICE} to {AUTOGROUP}"))?;
        }
        Ok(Self { session_nice })
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if let Some(nice) = &self.session_nice {
            drop(fs::write(AUTOGROUP, nice)); // nothing can be done about it
        }
    }
}
