//! A device under test that stays: its poll loops run until it goes, and its account can be read at any time between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use datapath::Ledger;
use datapath::queue::Inlet;
use linux::{clock, cpu};

use super::plan::Plan;
use super::threads::Lane;
use crate::scenario::Datapath;

/// How long a poll loop may take to answer: it looks after each poll.
const ANSWER: Duration = Duration::from_secs(5);

/// A device under test with one poll loop, on a thread of its own.
pub(crate) struct Standing {
    shared: Arc<Shared>,
    answers: Receiver<Result<Standings>>,
    /// None once its end was waited for.
    thread: Option<JoinHandle<()>>,
}

/// Where packets are at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standings {
    /// Of the poll loop.
    pub(crate) ledger: Ledger,
    /// Packets that were read from receivers' queues.
    pub(crate) read: u64,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    asked: AtomicBool,
}

impl Standing {
    /// Opens the devices of a scenario with one thread, in the network namespace of the calling thread, and begins to poll
    /// without a pause. Receivers' queues are read by the poll loop itself, after each poll.
    ///
    /// # Errors
    /// Where a device cannot be opened, or the thread cannot be started.
    pub(crate) fn start(scenario: &Datapath) -> Result<Self> {
        let Plan { mut lanes, consumers, .. } = Plan::build(scenario)?;
        let (Some(lane), true) = (lanes.pop(), lanes.is_empty()) else {
            bail!("a device that stays has one poll loop");
        };
        let inlets = consumers.into_iter().map(|consumer| consumer.inlet).collect();
        let cpu = lane.cpu;
        let shared = Arc::new(Shared::default());
        let (to_asker, answers) = sync_channel(1);
        let mut poller = Poller { lane, inlets, read: 0, shared: Arc::clone(&shared), to_asker };
        let thread = thread::Builder::new()
            .name(format!("datapath-{cpu}"))
            .spawn(move || poller.work())
            .context("start the thread of the device under test")?;
        let standing = Self { shared, answers, thread: Some(thread) };
        standing.standings()?;
        Ok(standing)
    }

    /// Where its packets are now.
    ///
    /// # Errors
    /// Where the device has failed, or its thread does not answer.
    pub(crate) fn standings(&self) -> Result<Standings> {
        self.shared.asked.store(true, Ordering::Release);
        self.answers
            .recv_timeout(ANSWER)
            .context("ask the device under test: its thread has ended or does not answer")?
            .context("the device under test")
    }
}

impl Drop for Standing {
    /// Lets the thread end, and waits for that.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // a panic has been told by its missing answer
        }
    }
}

/// What the thread has.
struct Poller {
    lane: Lane,
    inlets: Vec<Inlet>,
    read: u64,
    shared: Arc<Shared>,
    to_asker: SyncSender<Result<Standings>>,
}

impl Poller {
    fn work(&mut self) {
        if let Err(error) =
            cpu::pin(self.lane.cpu).map_err(anyhow::Error::from).and_then(|()| self.poll_all())
        {
            drop(self.to_asker.try_send(Err(error))); // whoever asks next gets it
        }
    }

    fn poll_all(&mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.lane.worker.poll(self.lane.budget, clock::monotonic_ns())?;
            for inlet in &mut self.inlets {
                while let Some(packet) = inlet.pop() {
                    drop(packet);
                    self.read += 1;
                }
            }
            if self.shared.asked.swap(false, Ordering::AcqRel) {
                let standings = Standings { ledger: self.lane.worker.ledger(), read: self.read };
                drop(self.to_asker.try_send(Ok(standings))); // full: an answer is there
            }
        }
        Ok(())
    }
}
