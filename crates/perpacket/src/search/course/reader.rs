//! The threads that read UDP sockets while packets are sent, on other CPUs than the sender's.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::Lab;
use linux::cpu;
use linux::udp::{ReceiverSpec, UdpReceiver};

use crate::cell::FIRST_PORT;
use crate::stop::Deadline;

/// Socket memory that is asked for: as of the path `udp`, enough for about 1,000 frames of a page each, since the kernel doubles
/// it. Far more would let a short trial pass above what is read in time.
pub(super) const BUFFER_BYTES: usize = 512 * (4_096 + 1_024);
/// How long a thread looks again without a pause when its socket is empty: waking it up is work of the sender's CPU, so at all
/// but the lowest rates it is not asleep.
const LOOKS: Duration = Duration::from_millis(1);
/// How long it sleeps at most while nothing comes.
const WAIT: Duration = Duration::from_millis(5);
/// How long is waited for a reader that gets no CPU.
const ANSWER: Duration = Duration::from_secs(2);
/// The most flows, each of which has a socket and a thread.
const FLOWS_MAX: u16 = 64;

/// Threads that read a socket each.
pub(super) struct Readers {
    counts: Vec<Arc<Counts>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The socket memory that was got, in bytes.
    pub(super) buffer_bytes: usize,
}

/// What one thread counted since it was started.
#[derive(Debug, Default)]
struct Counts {
    /// Datagrams that were read.
    received: AtomicU64,
    /// Datagrams for which the socket had no room.
    dropped: AtomicU64,
    /// The number of the question whether the socket is empty, and the last one that was answered: it was found empty after it was
    /// asked, and `dropped` is no older.
    asked: AtomicU64,
    answered: AtomicU64,
    failed: AtomicBool,
}

impl Readers {
    /// Binds a socket for each of `flows` ports at `address` in the namespace `role`, and starts the threads, in turn on `cpus`.
    ///
    /// # Errors
    /// Where a socket cannot be bound, or a thread cannot be started.
    pub(super) fn start(
        lab: &Lab,
        role: &'static str,
        address: IpAddr,
        flows: u16,
        cpus: &[usize],
    ) -> Result<Self> {
        if flows > FLOWS_MAX {
            bail!(
                "flows = {flows}: each has a socket and a thread that reads it, {FLOWS_MAX} at most in a search"
            );
        }
        let mut readers = Self {
            counts: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            buffer_bytes: usize::MAX,
        };
        for flow in 0..flows {
            let mut spec = ReceiverSpec::new(SocketAddr::new(address, FIRST_PORT + flow));
            spec.receive_buffer_bytes = BUFFER_BYTES;
            let socket = lab.netns(role).run(|| UdpReceiver::bind(&spec))??;
            readers.buffer_bytes = readers.buffer_bytes.min(socket.receive_buffer_bytes());
            let counts = Arc::new(Counts::default());
            let (stop, own) = (Arc::clone(&readers.stop), Arc::clone(&counts));
            let cpu = cpus[usize::from(flow) % cpus.len()];
            let work = move || {
                let done =
                    cpu::pin(cpu).map_err(anyhow::Error::from).and_then(|()| read(socket, &own, &stop));
                own.failed.store(done.is_err(), Ordering::Release);
            };
            let thread = thread::Builder::new().name(format!("reader {flow}")).spawn(work);
            readers.threads.push(thread.context("start the thread that reads a socket")?);
            readers.counts.push(counts);
        }
        Ok(readers)
    }

    /// Datagrams that were read so far.
    ///
    /// # Errors
    /// Where a thread has failed: what it would have read is not known.
    pub(super) fn received(&self) -> Result<u64> {
        if self.counts.iter().any(|counts| counts.failed.load(Ordering::Acquire)) {
            bail!("read the sockets of the path: a thread that reads has failed");
        }
        Ok(self.counts.iter().map(|counts| counts.received.load(Ordering::Acquire)).sum())
    }

    /// Waits until each socket was found empty, as long as that is to be expected: what was read and dropped is known then.
    pub(super) fn wait_until_empty(&self) {
        let ask = |counts: &Arc<Counts>| counts.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let questions: Vec<u64> = self.counts.iter().map(ask).collect();
        let is_open = |(counts, &question): (&Arc<Counts>, &u64)| {
            counts.answered.load(Ordering::Acquire) < question && !counts.failed.load(Ordering::Acquire)
        };
        let deadline = Deadline::after(ANSWER);
        while self.counts.iter().zip(&questions).any(is_open) && !deadline.passed() {
            thread::sleep(LOOKS / 4);
        }
    }

    /// Datagrams that were lost for lack of room, as of the last time that each socket was found empty.
    pub(super) fn dropped(&self) -> u64 {
        self.counts.iter().map(|counts| counts.dropped.load(Ordering::Acquire)).sum()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            drop(thread.join()); // its failure has been told
        }
    }
}

/// Reads until it is to stop.
fn read(mut socket: UdpReceiver, counts: &Counts, stop: &AtomicBool) -> Result<()> {
    let mut since = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let question = counts.asked.load(Ordering::Acquire);
        let datagrams = socket.recv_batch()?.datagrams as u64;
        if datagrams > 0 {
            counts.received.fetch_add(datagrams, Ordering::Release);
            since = Instant::now();
            continue;
        }
        let is_asked = counts.answered.load(Ordering::Relaxed) < question;
        if since.elapsed() < LOOKS && !is_asked {
            continue;
        }
        counts.dropped.store(socket.drops()?, Ordering::Release);
        counts.answered.store(question, Ordering::Release);
        if is_asked {
            continue;
        }
        socket.wait_readable(WAIT)?;
    }
    Ok(())
}
