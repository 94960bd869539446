//! The threads that send.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;
use linux::{clock, cpu};
use measure::gaps::Gaps;
use traffic::{Generator, Pace, Sent};

/// How often the one who waits looks around.
const LOOK: Duration = Duration::from_millis(20);

/// Time until the first packet is due: long enough for all threads to have begun.
pub(crate) const LEAD: Duration = Duration::from_millis(5);

/// One thread about to send.
pub(crate) struct Worker {
    /// Which part of the packets is its.
    pub(crate) number: usize,
    /// The CPU that it runs on.
    pub(crate) cpu: usize,
    pub(crate) generator: Box<dyn Generator>,
    /// Packets that it is to send; none: until it is stopped, or there are no more.
    pub(crate) count: Option<u64>,
    /// Packets between two reports.
    pub(crate) chunk: u64,
    /// Its pace, where it has one.
    pub(crate) pace: Option<Pace>,
}

/// What a thread did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) number: usize,
    pub(crate) cpu: usize,
    pub(crate) sent: Sent,
    /// From its start, with a pace from when its first packet is due, to the end of its last call.
    pub(crate) wall_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) gaps: Option<Gaps>,
    pub(crate) grain: Option<u32>,
    /// When its first packet was due, and when the last ones were handed over; none without a pace.
    pub(crate) from_to_ns: Option<(u64, u64)>,
    /// Why it ended early.
    pub(crate) error: Option<anyhow::Error>,
}

/// Lets all workers send until each is done or `over` says so, which is asked with the number of packets that are
/// confirmed so far.
pub(crate) fn run(
    workers: Vec<Worker>,
    netns: Option<&Netns>,
    mut over: impl FnMut(u64) -> bool,
) -> Result<Vec<Done>> {
    let stop = AtomicBool::new(false);
    let confirmed = AtomicU64::new(0);
    let start_ns = clock::monotonic_ns() + LEAD.as_nanos() as u64;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, mut worker) in workers.into_iter().enumerate() {
            // A recording begins with its first packet.
            let own_ns = start_ns + worker.pace.map_or(0, |pace| pace.start_ns);
            worker.generator.start_at(own_ns);
            worker.pace = worker.pace.map(|pace| Pace { start_ns: own_ns, ..pace });
            let (stop, confirmed) = (&stop, &confirmed);
            let builder = thread::Builder::new().name(format!("sender {number}"));
            let started = builder
                .spawn_scoped(scope, move || worker.work(netns, stop, confirmed))
                .with_context(|| format!("start the thread of sender {number}"));
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            if over(confirmed.load(Ordering::Relaxed)) {
                stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(LOOK);
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Done>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok(threads.into_iter().map(join).collect())
    })
}

impl Worker {
    /// All that one thread does.
    fn work(mut self, netns: Option<&Netns>, stop: &AtomicBool, confirmed: &AtomicU64) -> Done {
        let mut done = Done {
            number: self.number,
            cpu: self.cpu,
            sent: Sent::default(),
            wall_ns: 0,
            cpu_ns: 0,
            gaps: None,
            grain: None,
            from_to_ns: None,
            error: None,
        };
        done.error = self.send(netns, stop, confirmed, &mut done).err();
        done.gaps = self.generator.gaps();
        done.grain = self.generator.grain();
        done.from_to_ns = self.pace.map(|pace| pace.start_ns).zip(self.generator.last_ns());
        done
    }

    fn send(
        &mut self,
        netns: Option<&Netns>,
        stop: &AtomicBool,
        confirmed: &AtomicU64,
        done: &mut Done,
    ) -> Result<()> {
        cpu::pin(self.cpu)?;
        if let Some(netns) = netns {
            netns.enter()?;
        }
        let (begin, thread) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let result = self.send_all(stop, confirmed, &mut done.sent);
        let end = clock::monotonic_ns();
        done.wall_ns = match self.pace {
            Some(pace) => end.saturating_sub(pace.start_ns.max(begin)),
            None => end - begin,
        };
        done.cpu_ns = clock::thread_cpu_ns() - thread;
        if let Some(spent) = self.generator.spent() {
            (done.wall_ns, done.cpu_ns) = (spent.wall_ns, spent.cpu_ns);
        }
        result
    }

    fn send_all(&mut self, stop: &AtomicBool, confirmed: &AtomicU64, sent: &mut Sent) -> Result<()> {
        let mut add = |more: Sent| {
            *sent += more;
            confirmed.fetch_add(more.confirmed, Ordering::Relaxed);
            more.offered
        };
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 && !stop.load(Ordering::Relaxed) {
            let wanted = left.min(self.chunk);
            let offered = match self.generator.send(wanted, stop) {
                Ok(more) => add(more),
                Err(error) => {
                    add(error.sent());
                    return Err(error.into());
                }
            };
            left -= offered.min(left);
            if offered < wanted {
                break;
            }
        }
        match self.generator.flush() {
            Ok(more) => add(more),
            Err(error) => {
                add(error.sent());
                return Err(error.into());
            }
        };
        Ok(())
    }
}
