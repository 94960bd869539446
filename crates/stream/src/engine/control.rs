//! How a run is begun, stopped and watched from another thread.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::counters::{Account, Counts};

/// What was omitted is over: what moves now counts.
pub(super) const COUNTING: u32 = 1;
/// The time is up for ends that send.
pub(super) const ENOUGH: u32 = 1 << 1;
/// Everything ends at once.
pub(super) const STOP: u32 = 1 << 2;

/// Shared between the thread that is in [`run`](super::run) and the one that holds the control connection; for one run.
#[derive(Clone, Debug, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Flags, looked at by each flow between two calls. Nothing else is on its cache line, which changes a few times in all.
    flags: Flags,
    stage: Mutex<Stage>,
    changed: Condvar,
    accounts: OnceLock<Arc<[Account]>>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Flags(AtomicU32);

#[derive(Debug, Default)]
pub(super) struct Stage {
    pub(super) begun: bool,
    /// Threads whose flows can begin; and all of them.
    pub(super) ready: usize,
    pub(super) threads: Option<usize>,
    /// Threads whose flows have ended.
    pub(super) ended: usize,
    over: bool,
}

impl Control {
    /// For a run that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets flows begin once their threads are ready.
    pub fn begin(&self) {
        self.change(|stage| stage.begun = true);
    }

    /// Ends all flows at once, within some 50 ms. What they counted stays; what has already arrived is still read.
    pub fn stop(&self) {
        self.raise(STOP);
        self.change(|_| ());
    }

    /// Whether the run has ended.
    pub fn is_over(&self) -> bool {
        self.stage().over
    }

    /// Whether the threads of all flows are ready, or were.
    pub fn ready(&self) -> bool {
        let stage = self.stage();
        stage.threads.is_some_and(|threads| stage.ready >= threads)
    }

    /// Bytes that all flows have sent and received so far, without what is omitted.
    pub fn bytes(&self) -> u64 {
        self.sum(|counts| counts.sent.bytes + counts.received.bytes)
    }

    /// Transactions that all flows have made so far; where they make none, messages that they have sent and received. Without
    /// what is omitted.
    pub fn units(&self) -> u64 {
        match self.sum(|counts| counts.transactions) {
            0 => self.sum(|counts| counts.sent.messages + counts.received.messages),
            transactions => transactions,
        }
    }

    fn sum(&self, of: impl Fn(Counts) -> u64) -> u64 {
        let accounts = self.shared.accounts.get();
        accounts.map_or(0, |accounts| accounts.iter().map(|account| of(account.counted.read())).sum())
    }

    pub(super) fn watch(&self, accounts: &Arc<[Account]>) {
        let _ = self.shared.accounts.set(Arc::clone(accounts));
    }

    pub(super) fn flags(&self) -> u32 {
        self.shared.flags.0.load(Acquire)
    }

    pub(super) fn raise(&self, flags: u32) {
        self.shared.flags.0.fetch_or(flags, Release);
    }

    pub(super) fn stopped(&self) -> bool {
        self.flags() & STOP != 0
    }

    pub(super) fn stage(&self) -> MutexGuard<'_, Stage> {
        self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, how: impl FnOnce(&mut Stage)) {
        how(&mut self.stage());
        self.shared.changed.notify_all();
    }

    pub(super) fn end(&self) {
        self.change(|stage| stage.over = true);
    }

    /// Waits for a change, at most for so long.
    pub(super) fn wait<'a>(
        &'a self,
        stage: MutexGuard<'a, Stage>,
        at_most: Duration,
    ) -> MutexGuard<'a, Stage> {
        let waited = self.shared.changed.wait_timeout(stage, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A thread is ready; returns when the run has begun, or was stopped before.
    pub(super) fn ready_and_wait(&self) {
        self.change(|stage| stage.ready += 1);
        let mut stage = self.stage();
        while !stage.begun && !self.stopped() {
            stage = self.wait(stage, Duration::from_secs(1));
        }
    }
}

/// How much is left to send, where an amount was asked for rather than a time.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Budget(AtomicU64);

impl Budget {
    pub(super) fn new(amount: u64) -> Self {
        Self(AtomicU64::new(amount))
    }

    /// Takes up to `wanted`; 0 when there is no more.
    pub(super) fn claim(&self, wanted: u64) -> u64 {
        let took = self.0.fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left - left.min(wanted)));
        took.map_or(0, |left| left.min(wanted))
    }

    /// Whether there is no more.
    pub(super) fn is_spent(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Gives back what could not be used.
    pub(super) fn give_back(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }
}
