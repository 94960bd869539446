//! A device under test that stays: its poll loops run until it goes, and its account can be read at any time between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use datapath::queue::Inlet;
use datapath::{Ledger, Reason};
use linux::{clock, cpu};
use measure::ledger::Drop as Loss;
use pagefrag::PacketBuf;

use super::plan::Plan;
use super::threads::{Lane, Role};
use crate::scenario::{Datapath, Steering};

/// How long a poll loop may take to answer: it looks after each poll.
const ANSWER: Duration = Duration::from_secs(5);
/// Packets of a receiver's queue that are read before it is looked elsewhere.
const READ_AT_ONCE: usize = 1_024;
/// Polls of a backlog that brought nothing, before its thread sleeps, and for how long.
const LOOKS: u32 = 1_000;
const NAP: Duration = Duration::from_micros(50);
/// What counts the packets that a device did not get from its receiving ring.
const DEVICE: &str = "device under test";

/// Reads packets that were delivered to a receiver's queue: its number, and the packets, without their headers.
pub(crate) type ReadQueue = Box<dyn FnMut(usize, &mut dyn Iterator<Item = PacketBuf>) + Send>;

/// A device under test, with a thread for each poll loop: one that receives, and where flows are steered one for each backlog.
pub(crate) struct Standing {
    /// The loop that receives is the last one.
    loops: Vec<Loop>,
}

/// A poll loop on a thread of its own.
struct Loop {
    shared: Arc<Shared>,
    answers: Receiver<Result<Standings>>,
    /// None once its end was waited for.
    thread: Option<JoinHandle<()>>,
}

/// Where packets are at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standings {
    /// Of all poll loops: what one of them gave to another stands in it as delivered and as received.
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
    /// without a pause. Receivers' queues are read by `read`, in the poll loop after each poll; with `steer`, which goes with the
    /// stage `udp`, flows are dealt out to backlogs first, and the queues are read in the loop of the first of these.
    ///
    /// # Errors
    /// Where a device cannot be opened, or a thread cannot be started.
    pub(crate) fn start(scenario: &Datapath, steer: Option<&Steering>, read: ReadQueue) -> Result<Self> {
        let Plan { lanes, consumers, .. } = match steer {
            Some(steer) => Plan::build_steered(scenario, steer)?,
            None => Plan::build(scenario)?,
        };
        if lanes.iter().filter(|lane| lane.role == Role::Receive).count() != 1 {
            bail!("a device that stays has one loop that receives");
        }
        let mut inlets = consumers.into_iter().map(|consumer| consumer.inlet).collect();
        let mut read = Some(read);
        let mut standing = Self { loops: Vec::new() };
        for lane in lanes {
            // The first loop gets all of them.
            let (inlets, read) = (std::mem::take(&mut inlets), read.take());
            standing.loops.push(Loop::start(lane, inlets, read)?);
        }
        standing.standings()?;
        Ok(standing)
    }

    /// Where its packets are now.
    ///
    /// # Errors
    /// Where the device has failed, or one of its threads does not answer.
    pub(crate) fn standings(&self) -> Result<Standings> {
        self.loops.iter().for_each(|own| own.shared.asked.store(true, Ordering::Release));
        let mut all = Standings::default();
        for own in &self.loops {
            let answer = own
                .answers
                .recv_timeout(ANSWER)
                .context("ask the device under test: its thread has ended or does not answer")?
                .context("the device under test")?;
            all.read += answer.read;
            all.ledger.add(&answer.ledger);
            // Backlogs miss nothing: what the last one says, which receives, holds for all.
            all.ledger.missed = answer.ledger.missed;
        }
        Ok(all)
    }
}

impl Standings {
    /// Frames that were lost since then before the device received them, as far as it tells.
    pub(crate) fn missed_since(&self, before: &Self) -> Option<u64> {
        Some(self.ledger.missed? - before.ledger.missed?)
    }

    /// What was dropped since then, but for this reason, and what was missed.
    pub(crate) fn losses_since(&self, before: &Self, except: Option<Reason>) -> Vec<Loss> {
        let dropped = self.ledger.drops.iter().filter(|(reason, _)| Some(*reason) != except);
        let loss = |reason: &str, counter: &str, packets| Loss {
            reason: reason.into(),
            counter: counter.into(),
            packets,
        };
        let mut losses: Vec<Loss> = dropped
            .map(|(reason, all)| loss(reason.name(), DEVICE, all - before.ledger.drops.of(reason)))
            .collect();
        let missed = self.missed_since(before).unwrap_or(0);
        losses.push(loss("the device's receiving ring was full", "socket of the device under test", missed));
        losses.retain(|loss| loss.packets > 0);
        losses
    }
}

impl Loop {
    fn start(lane: Lane, inlets: Vec<Inlet>, read: Option<ReadQueue>) -> Result<Self> {
        let cpu = lane.cpu;
        let shared = Arc::new(Shared::default());
        let (to_asker, answers) = sync_channel(1);
        let mut poller =
            Poller { lane, inlets, reader: read, read: 0, shared: Arc::clone(&shared), to_asker };
        let thread = thread::Builder::new()
            .name(format!("datapath-{cpu}"))
            .spawn(move || poller.work())
            .context("start a thread of the device under test")?;
        Ok(Self { shared, answers, thread: Some(thread) })
    }
}

impl Drop for Loop {
    /// Lets the thread end, and waits for that.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // a panic has been told by its missing answer
        }
    }
}

/// What a thread has.
struct Poller {
    lane: Lane,
    inlets: Vec<Inlet>,
    /// There where there are inlets.
    reader: Option<ReadQueue>,
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
        let mut idle = 0_u32;
        while !self.shared.stop.load(Ordering::Acquire) {
            let frames = self.lane.worker.poll(self.lane.budget, clock::monotonic_ns())?;
            let read = self.read_queues();
            if self.shared.asked.swap(false, Ordering::AcqRel) {
                let standings = Standings { ledger: self.lane.worker.ledger(), read: self.read };
                drop(self.to_asker.try_send(Ok(standings))); // full: an answer is there
            }
            idle = if frames > 0 || read > 0 { 0 } else { idle.saturating_add(1) };
            if self.lane.role == Role::Backlog && idle > LOOKS {
                thread::sleep(NAP);
            } else if idle > 0 {
                // Another loop, or a reader, may share the CPU.
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Packets that were read.
    fn read_queues(&mut self) -> u64 {
        let Some(reader) = &mut self.reader else { return 0 };
        let mut all = 0;
        for (number, inlet) in self.inlets.iter_mut().enumerate() {
            if inlet.is_empty() {
                continue;
            }
            let mut packets = std::iter::from_fn(|| inlet.pop()).take(READ_AT_ONCE).inspect(|_| all += 1);
            reader(number, &mut packets);
        }
        self.read += all;
        all
    }
}

/// Reads, and keeps nothing.
pub(crate) fn forget() -> ReadQueue {
    Box::new(|_, packets| packets.for_each(drop))
}
