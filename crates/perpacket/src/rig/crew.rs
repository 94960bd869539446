//! Several poll loops that run together, each on a thread and a CPU of its own.

use std::hint;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use datapath::device::DeviceError;
use linux::cpu;

use crate::device::{Lane, Sent};

/// Looks at a gate before the CPU is left to others: far longer than a wake-up takes.
const LOOKS: u32 = 100_000;

/// The poll loops of a device: the first runs on the calling thread.
pub(super) struct Crew {
    own: Lane,
    others: Vec<Helper>,
    gate: Arc<Gate>,
}

impl Crew {
    /// Starts a thread for each lane but the first, pinned to the CPU that stands at its place. The calling thread is not
    /// pinned: that is the caller's.
    ///
    /// # Errors
    /// Where there is no lane, or a thread cannot be started or pinned.
    pub(super) fn start(lanes: Vec<Lane>, cpus: &[usize]) -> Result<Self> {
        let gate = Arc::new(Gate { threads: lanes.len(), came: AtomicUsize::new(0) });
        let mut lanes = lanes.into_iter();
        let own = lanes.next().context("a device without a poll loop")?;
        let others = lanes.zip(cpus.iter().skip(1));
        let others = others.map(|(lane, &cpu)| Helper::start(lane, cpu, Arc::clone(&gate)));
        Ok(Self { own, others: others.collect::<Result<_>>()?, gate })
    }

    /// Each lane takes its share of the packets all the way; the shares differ by one at most. They begin together, when the
    /// last thread is awake, and time is counted from then on.
    pub(super) fn run(&mut self, packets: u64) -> Result<Sent> {
        let threads = self.others.len() as u64 + 1;
        let share = |index: usize| packets / threads + u64::from((index as u64) < packets % threads);
        for (index, helper) in self.others.iter_mut().enumerate() {
            helper.give(share(index + 1));
        }
        self.gate.pass();
        let own = self.own.run(share(0));
        let others: Vec<_> = self.others.iter_mut().map(Helper::result).collect();
        self.gate.close();
        let mut all = Sent::default();
        for sent in std::iter::once(own).chain(others) {
            let sent = sent?;
            all.packets += sent.packets;
            all.cpu_ns += sent.cpu_ns;
        }
        Ok(all)
    }

    /// What each lane says, between two runs.
    pub(super) fn ask<T>(&mut self, question: impl Fn(&mut Lane) -> T) -> Vec<T> {
        let mut answers = vec![question(&mut self.own)];
        for helper in &self.others {
            answers.push(question(&mut helper.lane.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        answers
    }
}

/// Where threads wait for each other in a loop: sleeping would let one of them begin after the others.
struct Gate {
    threads: usize,
    came: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.came.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0;
        while self.came.load(Ordering::Acquire) < self.threads {
            looks += 1;
            if looks < LOOKS { hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// For the next time. Only when all have passed.
    fn close(&self) {
        self.came.store(0, Ordering::Release);
    }
}

/// A thread with a lane, asleep until it gets packets to work on.
struct Helper {
    lane: Arc<Mutex<Lane>>,
    /// None once it is to end.
    jobs: Option<SyncSender<u64>>,
    results: Receiver<Result<Sent, DeviceError>>,
    /// None once its end was waited for.
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(lane: Lane, cpu: usize, gate: Arc<Gate>) -> Result<Self> {
        let lane = Arc::new(Mutex::new(lane));
        let (jobs, next_job) = sync_channel::<u64>(1);
        let (done, results) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let own = Arc::clone(&lane);
        let work = move || {
            if ready.send(cpu::pin(cpu)).is_err() {
                return;
            }
            while let Ok(packets) = next_job.recv() {
                let mut lane = own.lock().unwrap_or_else(PoisonError::into_inner);
                gate.pass();
                let sent = lane.run(packets);
                drop(lane);
                if done.send(sent).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name(format!("poll-{cpu}"))
            .spawn(work)
            .with_context(|| format!("start a thread for CPU {cpu}"))?;
        let mut helper = Self { lane, jobs: Some(jobs), results, thread: Some(thread) };
        match is_ready.recv() {
            Ok(pinned) => pinned.with_context(|| format!("keep a poll loop on CPU {cpu}"))?,
            Err(_) => helper.panicked(),
        }
        Ok(helper)
    }

    fn give(&mut self, packets: u64) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(packets).is_err()) {
            self.panicked()
        }
    }

    fn result(&mut self) -> Result<Sent, DeviceError> {
        self.results.recv().unwrap_or_else(|_| self.panicked())
    }

    /// The thread ended before it was told to: its panic goes on here.
    fn panicked(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => panic!("a thread with a poll loop ended before its time"),
        }
    }
}

impl Drop for Helper {
    /// Lets the thread end, and waits for that.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // a panic was told, or is being told
        }
    }
}
