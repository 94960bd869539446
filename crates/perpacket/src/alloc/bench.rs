//! One cell made real: an allocator under a load, on one thread or two, which runs and times slices.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use linux::{clock, procfs};

use super::arm::{Arm, Pages, Turnover, Worker};
use super::beside::Beside;

/// What a slice took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timed {
    /// Buffers taken.
    pub(crate) buffers: u64,
    /// Wall time, as the measuring thread saw it.
    pub(crate) wall_ns: u64,
    /// CPU time: of both threads where each works for itself, else of the one that takes.
    pub(crate) cpu_ns: u64,
    pub(crate) involuntary_switches: Option<u32>,
}

/// Where the buffers and pages of a cell ended.
pub(crate) type Account = (Turnover, Option<Pages>);

/// A cell.
pub(crate) trait Bench {
    /// Takes and ends so many bursts, and times it. Without a burst it takes what timing takes.
    fn slice(&mut self, bursts: u64, beside: Option<&Beside>) -> Result<Timed>;

    /// Takes one burst and does not end it: the bytes that are in use then, and those that the allocator keeps by its own
    /// account. Only of one thread.
    fn hold_burst(&mut self) -> Result<(usize, Option<usize>)> {
        bail!("memory is looked at on one thread")
    }

    /// Ends everything and says where it ended.
    fn close(self: Box<Self>) -> Account;
}

/// The clocks around a piece of work of the calling thread.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Timed> {
    let switches = procfs::thread_usage().involuntary_switches;
    let (wall, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
    work()?;
    let (cpu_ns, wall_ns) = (clock::thread_cpu_ns() - cpu, clock::monotonic_ns() - wall);
    let switches = procfs::thread_usage().involuntary_switches - switches;
    Ok(Timed { buffers: 0, wall_ns, cpu_ns, involuntary_switches: u32::try_from(switches).ok() })
}

/// One thread takes and ends.
pub(crate) struct One<A: Arm> {
    pub(crate) worker: Worker<A>,
    pub(crate) live: u64,
}

impl<A: Arm> Bench for One<A> {
    fn slice(&mut self, bursts: u64, _: Option<&Beside>) -> Result<Timed> {
        let timed = timed(|| self.worker.run(bursts))?;
        Ok(Timed { buffers: bursts * self.live, ..timed })
    }

    fn hold_burst(&mut self) -> Result<(usize, Option<usize>)> {
        self.worker.hold_burst()
    }

    fn close(self: Box<Self>) -> Account {
        self.worker.close()
    }
}

/// Two threads at the same time, of which each takes and ends its own. The workers lie apart: what one of them writes is in no
/// line that the other one reads, nor in the line beside it, which some CPUs fetch along.
pub(crate) struct Two<A: Arm> {
    pub(crate) here: Apart<Worker<A>>,
    pub(crate) there: Arc<Mutex<Apart<Worker<A>>>>,
    pub(crate) live: u64,
}

/// In lines of its own, two by two.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<A: Arm> Bench for Two<A> {
    fn slice(&mut self, bursts: u64, beside: Option<&Beside>) -> Result<Timed> {
        let beside = beside.context("two threads need a second CPU")?;
        let there = Arc::clone(&self.there);
        let other = move || {
            let mut worker = there.lock().unwrap_or_else(PoisonError::into_inner);
            timed(|| worker.0.run(bursts))
        };
        let (own, other) = beside.together(other, || timed(|| self.here.0.run(bursts)))?;
        let (own, other) = (own?, other?);
        Ok(Timed { buffers: 2 * bursts * self.live, cpu_ns: own.cpu_ns + other.cpu_ns, ..own })
    }

    fn close(self: Box<Self>) -> Account {
        let (mut turnover, pages) = self.here.0.close();
        let Some(there) = Arc::into_inner(self.there) else { return (turnover, None) };
        let (theirs, their_pages) = there.into_inner().unwrap_or_else(PoisonError::into_inner).0.close();
        turnover.add(theirs);
        let sum = match (pages, their_pages) {
            (Some(one), Some(other)) => {
                Some(Pages { taken: one.taken + other.taken, left: one.left + other.left })
            }
            (one, other) => one.or(other),
        };
        (turnover, sum)
    }
}

/// One thread takes, the other one ends.
pub(crate) struct Across<A: Arm> {
    pub(crate) worker: Worker<A>,
    pub(crate) ring: Arc<Ring<A::Buffer>>,
    pub(crate) live: u64,
}

/// Bursts on their way from one thread to the other. A slot belongs to the one that takes while it is not `full`, and to the
/// other one while it is, so that nobody ever waits for its lock: a burst costs each side one free lock and a flag.
pub(crate) struct Ring<B> {
    slots: Vec<Slot<B>>,
    /// Buffers that the other side has ended.
    ended: AtomicU64,
    /// Bursts that were handed over, where the next slice goes on.
    bursts: AtomicU64,
    /// One side has failed: nobody is waited for any more.
    broken: AtomicBool,
}

/// A line of its own for each.
#[repr(align(128))]
struct Slot<B> {
    full: AtomicBool,
    burst: Mutex<Vec<B>>,
}

/// Buffers in the ring, about, as in the kernel's page_frag_test (tools/testing/selftests/mm/page_frag, 6.18).
const RING_BUFFERS: usize = 512;

impl<B> Ring<B> {
    pub(crate) fn new(live: usize) -> Arc<Self> {
        let slot = |_| Slot { full: AtomicBool::new(false), burst: Mutex::new(Vec::with_capacity(live)) };
        let slots = (0..(RING_BUFFERS / live).max(2)).map(slot).collect();
        Arc::new(Self {
            slots,
            ended: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        })
    }

    /// Gives `work` a slot that is full or not, as wanted, and turns it into the opposite.
    #[inline]
    fn turn<R>(&self, burst: u64, full: bool, work: impl FnOnce(&mut Vec<B>) -> R) -> Result<R> {
        let slot = &self.slots[burst as usize % self.slots.len()];
        while slot.full.load(Ordering::Acquire) != full {
            if self.broken.load(Ordering::Relaxed) {
                bail!("the other thread has ended early");
            }
            spin_loop();
        }
        let done = work(&mut slot.burst.lock().unwrap_or_else(PoisonError::into_inner));
        slot.full.store(!full, Ordering::Release);
        Ok(done)
    }
}

/// Breaks the ring unless the work came to its end.
struct Breaks<'a>(&'a AtomicBool, bool);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl<A: Arm> Across<A> {
    fn take_all(&mut self, first: u64, bursts: u64) -> Result<()> {
        let mut breaks = Breaks(&self.ring.broken, false);
        for burst in first..first + bursts {
            self.ring.turn(burst, false, |buffers| self.worker.burst_into(buffers))??;
        }
        // Until the other side has ended the last one.
        let slots = self.ring.slots.len() as u64;
        for burst in (first + bursts).saturating_sub(slots)..first + bursts {
            while self.ring.slots[(burst % slots) as usize].full.load(Ordering::Acquire) {
                if self.ring.broken.load(Ordering::Relaxed) {
                    bail!("the other thread has ended early");
                }
                spin_loop();
            }
        }
        breaks.1 = true;
        Ok(())
    }
}

impl<A: Arm> Bench for Across<A> {
    fn slice(&mut self, bursts: u64, beside: Option<&Beside>) -> Result<Timed> {
        let beside = beside.context("two threads need a second CPU")?;
        let ring = Arc::clone(&self.ring);
        let first = ring.bursts.fetch_add(bursts, Ordering::Relaxed);
        let other = move || -> Result<()> {
            let mut breaks = Breaks(&ring.broken, false);
            let mut ended = 0;
            for burst in first..first + bursts {
                ring.turn(burst, true, |buffers| {
                    ended += buffers.len() as u64;
                    A::empty_far(buffers);
                })?;
            }
            ring.ended.fetch_add(ended, Ordering::Relaxed);
            breaks.1 = true;
            Ok(())
        };
        let (own, other) = beside.together(other, || timed(|| self.take_all(first, bursts)))?;
        let own = own?;
        other?;
        Ok(Timed { buffers: bursts * self.live, ..own })
    }

    fn close(self: Box<Self>) -> Account {
        let (mut turnover, pages) = self.worker.close();
        turnover.ended += self.ring.ended.load(Ordering::Relaxed);
        (turnover, pages)
    }
}

/// Steps that no allocator is in, to hold the figures against.
pub(crate) struct Step<F: FnMut()>(pub(crate) F);

/// Steps in what is a burst elsewhere.
pub(crate) const STEPS: u64 = 64;

impl<F: FnMut()> Bench for Step<F> {
    fn slice(&mut self, bursts: u64, _: Option<&Beside>) -> Result<Timed> {
        let timed = timed(|| {
            for step in 0..bursts * STEPS {
                black_box(step);
                (self.0)();
            }
            Ok(())
        })?;
        Ok(Timed { buffers: bursts * STEPS, ..timed })
    }

    fn close(self: Box<Self>) -> Account {
        Account::default()
    }
}
