//! The threads of a device under test: those that poll, and those that read the queues of receivers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use datapath::device::{RxTotals, TxTotals};
use datapath::queue::{Inlet, Outlet};
use datapath::{Ledger, Reason, Worker};
use linux::{clock, cpu};

/// How often the one who waits looks around.
const LOOK: Duration = Duration::from_millis(20);
/// How long a thread sleeps at most while its device has nothing: it looks for the end then, and stages see the time pass.
const WAIT: Duration = Duration::from_millis(20);
/// Polls between two looks at the others, while there are packets.
const POLLS: u32 = 64;
/// How long devices and stages have to let go of their packets at the end.
const SETTLE: Duration = Duration::from_secs(1);
/// Empty looks of a thread at a queue between threads before it sleeps, and how long.
const LOOKS: u32 = 1_000;
const NAP: Duration = Duration::from_micros(50);

/// What a thread is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It receives from devices.
    Receive,
    /// It works on the backlog of its CPU.
    Backlog,
    /// It reads the queue of a UDP port.
    Consumer(u16),
}

/// A thread that polls.
pub(crate) struct Lane {
    pub(crate) role: Role,
    pub(crate) cpu: usize,
    pub(crate) worker: Worker,
    /// Frames that it is to receive; none: until it is stopped.
    pub(crate) count: Option<u64>,
    pub(crate) budget: usize,
    /// Whether it sleeps while there is nothing.
    pub(crate) sleeps: bool,
    /// Queues that it puts packets in. They end with the last thread that receives.
    pub(crate) outlets: Vec<Outlet>,
    /// The other end of the queue that a backlog's thread reads.
    pub(crate) backlog: Option<Outlet>,
}

/// A thread that reads the queue of a UDP port.
pub(crate) struct Consumer {
    pub(crate) port: u16,
    pub(crate) cpu: usize,
    pub(crate) inlet: Inlet,
}

/// What a thread did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) role: Role,
    pub(crate) cpu: usize,
    pub(crate) packets: u64,
    pub(crate) l2_bytes: u64,
    pub(crate) wall_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) waits: u64,
    /// None for a consumer.
    pub(crate) polled: Option<Polled>,
    /// Why it ended early.
    pub(crate) error: Option<anyhow::Error>,
}

/// What a poll loop counted.
#[derive(Debug)]
pub(crate) struct Polled {
    pub(crate) ledger: Ledger,
    pub(crate) polls: u64,
    pub(crate) full_polls: u64,
    pub(crate) rx: Vec<RxTotals>,
    pub(crate) tx: Vec<TxTotals>,
    pub(crate) events: Vec<(&'static str, &'static str, u64)>,
    pub(crate) pinned_bytes: Option<u64>,
}

/// What threads tell each other.
struct Shared {
    stop: AtomicBool,
    /// Frames received by all lanes.
    received: AtomicU64,
    /// Threads that receive and have not ended.
    receivers: AtomicUsize,
    /// Frames after which all end; none: the lanes have numbers of their own, or no end.
    count: Option<u64>,
}

/// Lets all threads run until each is done or `over` says so, which is asked with the number of frames received so far.
/// With `together` the count is that of all lanes. Lanes that receive end first, then what they deliver to.
pub(crate) fn run(
    lanes: Vec<Lane>,
    consumers: Vec<Consumer>,
    together: Option<u64>,
    mut over: impl FnMut(u64) -> bool,
) -> Result<Vec<Done>> {
    let receivers = lanes.iter().filter(|lane| lane.role == Role::Receive).count();
    let shared = Shared {
        stop: AtomicBool::new(false),
        received: AtomicU64::new(0),
        receivers: AtomicUsize::new(receivers),
        count: together,
    };
    let shared = &shared;
    let queues: Vec<Outlet> = lanes.iter().flat_map(|lane| &lane.outlets).cloned().collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let jobs =
            lanes.into_iter().map(Box::new).map(Job::Lane).chain(consumers.into_iter().map(Job::Consumer));
        for (number, job) in jobs.enumerate() {
            let builder = thread::Builder::new().name(format!("datapath {number}"));
            let started = builder.spawn_scoped(scope, move || job.work(shared));
            match started.with_context(|| format!("start thread {number} of the device under test")) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.stop.store(true, Ordering::Relaxed);
                    // The others wait for them, and who would close them may not have been started.
                    queues.iter().for_each(Outlet::close);
                    return Err(error);
                }
            }
        }
        while !threads.iter().all(ScopedJoinHandle::is_finished) {
            if over(shared.received.load(Ordering::Relaxed)) {
                shared.stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(LOOK);
        }
        let join = |thread: ScopedJoinHandle<'_, Done>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok(threads.into_iter().map(join).collect())
    })
}

enum Job {
    Lane(Box<Lane>),
    Consumer(Consumer),
}

impl Job {
    fn work(self, shared: &Shared) -> Done {
        match self {
            Self::Lane(lane) => lane.work(shared),
            Self::Consumer(consumer) => consumer.work(shared),
        }
    }
}

impl Lane {
    fn work(mut self, shared: &Shared) -> Done {
        let (begin, thread) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut waits = 0;
        let ending = Ending { shared, outlets: std::mem::take(&mut self.outlets), role: self.role };
        let polled =
            cpu::pin(self.cpu).map_err(anyhow::Error::from).and_then(|()| self.poll_all(shared, &mut waits));
        let (wall_ns, cpu_ns) = (clock::monotonic_ns() - begin, clock::thread_cpu_ns() - thread);
        if polled.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let settled = self.settle();
        drop(ending);
        let mut ledger = self.worker.ledger();
        if polled.is_err() {
            ledger.drops.count(Reason::Abandoned, self.abandoned());
        }
        let (polls, full_polls) = self.worker.polls();
        Done {
            role: self.role,
            cpu: self.cpu,
            packets: ledger.received,
            l2_bytes: 0,
            wall_ns,
            cpu_ns,
            waits,
            error: polled.and(settled).err(),
            polled: Some(Polled {
                polls,
                full_polls,
                rx: self.worker.rx_totals(),
                tx: self.worker.tx_totals(),
                events: self.worker.events(),
                pinned_bytes: self.worker.pinned_bytes(),
                ledger,
            }),
        }
    }

    fn poll_all(&mut self, shared: &Shared, waits: &mut u64) -> Result<()> {
        let mut left = self.count.unwrap_or(u64::MAX);
        let (mut polls, mut fresh, mut looks) = (0, 0, 0);
        // A backlog ends when it is closed and empty, whatever the others do.
        let is_first = self.role == Role::Receive;
        while left > 0 {
            let budget = usize::try_from(left).map_or(self.budget, |left| left.min(self.budget));
            let frames = self.worker.poll(budget, clock::monotonic_ns())?;
            left = left.saturating_sub(frames as u64);
            fresh += frames as u64;
            polls += 1;
            if frames > 0 && polls < POLLS && shared.count.is_none() {
                continue;
            }
            polls = 0;
            if is_first && shared.is_over(&mut fresh) {
                break;
            }
            if frames > 0 {
                looks = 0;
                continue;
            }
            if self.worker.ended() {
                break;
            }
            if self.sleeps && is_first {
                *waits += 1;
                self.worker.wait(WAIT)?;
            } else if self.sleeps {
                looks += 1;
                if looks > LOOKS {
                    *waits += 1;
                    thread::sleep(NAP);
                }
            }
        }
        if is_first {
            shared.is_over(&mut fresh);
        }
        Ok(())
    }

    /// Packets of a backlog that nobody will work on, until nothing more is put into it.
    fn abandoned(&self) -> u64 {
        let Some(backlog) = &self.backlog else { return 0 };
        let mut packets = 0;
        loop {
            // In this order: nothing is put in after the close.
            let is_closed = backlog.is_closed();
            packets += backlog.discard();
            if is_closed {
                return packets;
            }
            thread::sleep(NAP);
        }
    }

    /// Lets stages and devices finish, for a time at most: what is left then is in the ledger as held.
    fn settle(&mut self) -> Result<()> {
        let begin = clock::monotonic_ns();
        loop {
            self.worker.settle()?;
            let waited = Duration::from_nanos(clock::monotonic_ns() - begin);
            if self.worker.ledger().held == 0 || waited >= SETTLE {
                return Ok(());
            }
            thread::sleep(NAP);
        }
    }
}

/// The end of a thread, however it comes: the last one that receives closes the queues, for whose readers it would be none
/// otherwise.
struct Ending<'a> {
    shared: &'a Shared,
    outlets: Vec<Outlet>,
    role: Role,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        if self.role == Role::Receive && self.shared.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.outlets.iter().for_each(Outlet::close);
        }
    }
}

impl Shared {
    /// Adds frames to those of all lanes; whether it is time to end.
    fn is_over(&self, fresh: &mut u64) -> bool {
        let all = self.received.fetch_add(*fresh, Ordering::Relaxed) + *fresh;
        *fresh = 0;
        self.stop.load(Ordering::Relaxed) || self.count.is_some_and(|count| all >= count)
    }
}

impl Consumer {
    fn work(mut self, shared: &Shared) -> Done {
        let (begin, thread) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let error = cpu::pin(self.cpu).err().map(anyhow::Error::from);
        if error.is_some() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let (mut packets, mut l2_bytes, mut waits, mut looks) = (0, 0, 0, 0);
        loop {
            match self.inlet.pop() {
                Some(packet) => {
                    packets += 1;
                    l2_bytes += packet.len() as u64;
                    looks = 0;
                }
                None if self.inlet.is_finished() => break,
                None if looks < LOOKS => {
                    looks += 1;
                    std::hint::spin_loop();
                }
                None => {
                    waits += 1;
                    thread::sleep(NAP);
                }
            }
        }
        Done {
            role: Role::Consumer(self.port),
            cpu: self.cpu,
            packets,
            l2_bytes,
            wall_ns: clock::monotonic_ns() - begin,
            cpu_ns: clock::thread_cpu_ns() - thread,
            waits,
            polled: None,
            error,
        }
    }
}
