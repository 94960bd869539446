//! The second thread: pinned to a CPU of its own, it works at the same time as the measuring one.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use linux::cpu;

use crate::session::PRIORITY;

type Job = Box<dyn FnOnce() + Send>;

/// It lasts as long as the run, so that what an allocator keeps for each thread is warm.
pub(crate) struct Beside {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    /// Starts it on this CPU.
    pub(crate) fn start(cpu: usize) -> Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (ready, pinned) = channel();
        let run = move || {
            let done = cpu::pin(cpu);
            let works = done.is_ok();
            drop(cpu::set_nice(PRIORITY)); // an ordinary user may not, and measures all the same
            drop(ready.send(done));
            if works {
                todo.into_iter().for_each(|job| job());
            }
        };
        let thread =
            thread::Builder::new().name("beside".into()).spawn(run).context("start the second thread")?;
        pinned.recv().context("the second thread has ended early")??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Both at once: `other` on the second thread, `own` here. They begin together.
    pub(crate) fn together<R: Send + 'static, S>(
        &self,
        other: impl FnOnce() -> R + Send + 'static,
        own: impl FnOnce() -> S,
    ) -> Result<(S, R)> {
        const ENDED: &str = "the second thread has ended early";
        let here = Arc::new(AtomicBool::new(false));
        let there = Arc::new(AtomicBool::new(false));
        let (result, results): (Sender<R>, Receiver<R>) = channel();
        let (is_here, is_there) = (Arc::clone(&here), Arc::clone(&there));
        let job = move || {
            is_there.store(true, Ordering::Release);
            while !is_here.load(Ordering::Acquire) {
                spin_loop();
            }
            drop(result.send(other()));
        };
        self.jobs.as_ref().context(ENDED)?.send(Box::new(job)).ok().context(ENDED)?;
        while !there.load(Ordering::Acquire) {
            spin_loop();
        }
        here.store(true, Ordering::Release);
        let own = own();
        Ok((own, results.recv().context(ENDED)?))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // what it had to say it said by its jobs
        }
    }
}
