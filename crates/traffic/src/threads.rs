//! Several backends that send together, each on a thread and a CPU of its own.
//!
//! The thread that calls is the first: with one backend nothing is different from that backend alone. The others live on
//! threads that wait between two calls, asleep, so that waiting costs no CPU time. What it costs to wake them (a futex
//! and an interrupt to an idle CPU: microseconds), to wait for the last one, and that they begin a little later than the
//! first is part of each call, whatever its number of packets: it belongs to the fixed cost of a call, which measuring
//! with two lengths takes off.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use linux::{SyscallError, clock, cpu};

use crate::backend::{Backend, BackendKind, SendError, Sent};

/// One backend on the calling thread, and others on threads of their own, as one.
#[derive(Debug)]
pub struct Threads {
    own: Box<dyn Backend>,
    others: Vec<Worker>,
}

impl Threads {
    /// Starts a thread for each of `others`, pinned to the CPU that stands beside it, in the network namespace that the
    /// calling thread is in now. The calling thread is neither pinned nor moved: that is the caller's.
    ///
    /// # Errors
    /// Where a thread cannot be started, or not be pinned to its CPU.
    pub fn start(
        own: Box<dyn Backend>,
        others: Vec<(usize, Box<dyn Backend>)>,
    ) -> Result<Self, SyscallError> {
        let others = others.into_iter().map(|(cpu, backend)| Worker::start(cpu, backend));
        Ok(Self { own, others: others.collect::<Result<_, _>>()? })
    }

    /// Gives each thread its work, does the caller's part, and waits for all. Results are added; of several errors the
    /// first is returned, with what all threads sent.
    fn together(&mut self, job: impl Fn(usize) -> Job) -> Result<Sent, SendError> {
        for (index, worker) in self.others.iter_mut().enumerate() {
            worker.give(job(index + 1));
        }
        let own = job(0).run(self.own.as_mut());
        let results = self.others.iter_mut().map(Worker::result);
        let (mut sent, mut failed) = (Sent::default(), None);
        for result in std::iter::once(own).chain(results) {
            match result {
                Ok(part) => sent += part,
                Err(error) => {
                    sent += error.sent();
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(sent), |error| Err(error.having_sent(sent)))
    }
}

impl Backend for Threads {
    fn kind(&self) -> BackendKind {
        self.own.kind()
    }

    /// Each thread sends its share, all at once; the shares differ by a packet at most.
    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        let threads = self.others.len() as u64 + 1;
        let (each, more) = (packets / threads, packets % threads);
        self.together(|index| Job::Send(each + u64::from((index as u64) < more)))
    }

    fn flush(&mut self) -> Result<Sent, SendError> {
        self.together(|_| Job::Flush)
    }

    fn other_threads_cpu_ns(&self) -> u64 {
        let others = self.others.iter().map(|worker| worker.cpu_ns.load(Ordering::Acquire));
        others.sum::<u64>() + self.own.other_threads_cpu_ns()
    }
}

/// What a thread is told to do.
#[derive(Debug, Clone, Copy)]
enum Job {
    Send(u64),
    Flush,
}

impl Job {
    fn run(self, backend: &mut dyn Backend) -> Result<Sent, SendError> {
        match self {
            Self::Send(0) => Ok(Sent::default()),
            Self::Send(packets) => backend.send(packets),
            Self::Flush => backend.flush(),
        }
    }
}

/// A thread with a backend, asleep until it gets a job.
#[derive(Debug)]
struct Worker {
    /// None once it is to end.
    jobs: Option<SyncSender<Job>>,
    results: Receiver<Result<Sent, SendError>>,
    /// Its CPU time when its last job was done. What it used to fall asleep after that stands there after the next.
    cpu_ns: Arc<AtomicU64>,
    /// None once its end was waited for.
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(cpu: usize, mut backend: Box<dyn Backend>) -> Result<Self, SyscallError> {
        let (jobs, next_job) = sync_channel::<Job>(1);
        let (done, results) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let used = Arc::clone(&cpu_ns);
        let work = move || {
            let pinned = cpu::pin(cpu);
            used.store(clock::thread_cpu_ns(), Ordering::Release);
            if ready.send(pinned).is_err() {
                return;
            }
            while let Ok(job) = next_job.recv() {
                let result = job.run(backend.as_mut());
                used.store(clock::thread_cpu_ns(), Ordering::Release);
                if done.send(result).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name(format!("send-{cpu}"));
        let thread = builder
            .spawn(work)
            .map_err(|error| SyscallError::new("start a thread", format!("CPU {cpu}"), error))?;
        let mut worker = Self { jobs: Some(jobs), results, cpu_ns, thread: Some(thread) };
        match is_ready.recv() {
            Ok(pinned) => pinned.map(|()| worker),
            Err(_) => worker.panicked(),
        }
    }

    fn give(&mut self, job: Job) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            self.panicked()
        }
    }

    fn result(&mut self) -> Result<Sent, SendError> {
        self.results.recv().unwrap_or_else(|_| self.panicked())
    }

    /// The thread ended before it was told to: its panic goes on here.
    fn panicked(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => panic!("a sending thread ended before its time"),
        }
    }
}

impl Drop for Worker {
    /// Lets the thread end, and waits until its backend is closed.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // a panic was told, or is being told
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::Sender;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Frames, Memory};

    fn memory(capacity: u64) -> Box<dyn Backend> {
        Box::new(Memory::new(Frames::constant([0; 60]).unwrap(), 0).with_capacity(capacity))
    }

    /// A CPU that this process may use, for every thread: tests do not measure.
    fn any_cpu() -> usize {
        cpu::allowed().unwrap()[0]
    }

    fn beside(own: Box<dyn Backend>, others: Vec<Box<dyn Backend>>) -> Threads {
        let cpu = any_cpu();
        Threads::start(own, others.into_iter().map(|backend| (cpu, backend)).collect()).unwrap()
    }

    /// Says what it was asked for and where it ran, and fails if told to.
    #[derive(Debug)]
    struct Told {
        told: Sender<(u64, Option<usize>)>,
        fails: bool,
    }

    impl Backend for Told {
        fn kind(&self) -> BackendKind {
            BackendKind::Memory
        }

        fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
            let allowed = cpu::allowed().unwrap();
            self.told.send((packets, (allowed.len() == 1).then(|| allowed[0]))).unwrap();
            let sent = Sent { offered: packets, confirmed: packets, calls: 1 };
            let stalled = SendError::Stalled {
                backend: BackendKind::Memory,
                sent,
                outstanding: 1,
                waited: Duration::ZERO,
            };
            if self.fails { Err(stalled) } else { Ok(sent) }
        }

        fn flush(&mut self) -> Result<Sent, SendError> {
            Ok(Sent { confirmed: 1, ..Sent::default() })
        }
    }

    #[test]
    fn packets_are_split_and_results_added() {
        let (told, asked) = std::sync::mpsc::channel();
        let backend = |fails| Box::new(Told { told: told.clone(), fails }) as Box<dyn Backend>;
        let mut threads = beside(backend(false), vec![backend(false), backend(false)]);
        assert_eq!(threads.send(11).unwrap(), Sent { offered: 11, confirmed: 11, calls: 3 });
        let mut shares: Vec<_> = asked.try_iter().map(|(packets, _)| packets).collect();
        shares.sort_unstable();
        assert_eq!(shares, [3, 4, 4]);
        assert_eq!(threads.send(2).unwrap().confirmed, 2, "fewer packets than threads");
        assert_eq!(threads.flush().unwrap().confirmed, 3);
        assert_eq!(threads.kind(), BackendKind::Memory);
    }

    #[test]
    fn a_failure_of_one_keeps_what_all_sent() {
        let (told, asked) = std::sync::mpsc::channel();
        let backend = |fails| Box::new(Told { told: told.clone(), fails }) as Box<dyn Backend>;
        let mut threads = beside(backend(false), vec![backend(true), backend(false)]);
        let error = threads.send(9).unwrap_err();
        assert_eq!(error.sent(), Sent { offered: 9, confirmed: 9, calls: 3 });
        assert!(matches!(error, SendError::Stalled { outstanding: 1, .. }));
        assert_eq!(asked.try_iter().count(), 3);
        assert!(threads.send(9).is_err(), "the threads are still there");
    }

    #[test]
    fn one_that_is_full_sends_fewer() {
        let mut threads = beside(memory(100), vec![memory(3)]);
        assert_eq!(threads.send(20).unwrap().offered, 13);
    }

    #[test]
    fn the_others_are_pinned_and_their_time_counts() {
        let (told, asked) = std::sync::mpsc::channel();
        let cpu = *cpu::allowed().unwrap().last().unwrap();
        let other = Box::new(Told { told, fails: false });
        let mut threads = Threads::start(memory(u64::MAX), vec![(cpu, other)]).unwrap();
        let (before, deadline) = (threads.other_threads_cpu_ns(), Instant::now() + Duration::from_secs(10));
        while threads.other_threads_cpu_ns() == before {
            threads.send(2).unwrap();
            assert!(Instant::now() < deadline);
        }
        assert_eq!(asked.recv().unwrap(), (1, Some(cpu)));
        assert_eq!(memory(1).other_threads_cpu_ns(), 0);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        assert!(Threads::start(memory(1), vec![(usize::MAX, memory(1))]).is_err());
    }

    #[test]
    fn a_panic_on_a_thread_goes_on_in_the_caller() {
        let panics = Frames::generated(60, |_, _| panic!("no frame")).unwrap();
        let mut threads = beside(memory(100), vec![Box::new(Memory::new(panics, 0))]);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| threads.send(2)));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"no frame"));
    }
}
