//! A thread of an end, with its flows.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use linux::{clock, cpu, socket};

use super::build;
use super::control::{COUNTING, ENOUGH, STOP};
use super::counters::Account;
use super::events;
use super::pace::sleep_until;
use super::task::{Buffers, Common, Step, Task, Tools, found, is_peer_gone, warn};
use super::{EngineError, Flow, Role};
use crate::plan::Pace;

/// How long a call waits before the flags are looked at.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// What a thread is given.
pub(super) struct Share<'a> {
    pub(super) common: &'a Common<'a>,
    /// Its flows, and where each counts.
    pub(super) flows: Vec<(&'a Flow, &'a Account)>,
    pub(super) cpu: Option<usize>,
}

/// Runs flows to their end; the CPU time of the thread since counting began, ns.
pub(super) fn run(share: &Share<'_>) -> Result<u64, EngineError> {
    if let Some(cpu) = share.cpu {
        cpu::pin(cpu)?;
    }
    let common = share.common;
    let only: Vec<&Flow> = share.flows.iter().map(|&(flow, _)| flow).collect();
    let mut buffers = build::buffers(common, &only)?;
    let waits = matches!(&only[..], [flow] if may_wait(flow, common));
    let mut flows = Vec::with_capacity(share.flows.len());
    for &(flow, account) in &share.flows {
        let task = build::task(flow, account, common, &buffers)?;
        if let Some(fd) = task.socket() {
            socket::set_nonblocking(&fd, !waits)?;
            if waits {
                socket::set_timeouts(&fd, PATIENCE)?;
            }
        }
        flows.push(Running { task, account, counting: false });
    }
    common.control.ready_and_wait();
    let mut thread = Thread { common, buffers: &mut buffers, waits, cpu_begin_ns: None };
    match &mut flows[..] {
        [flow] if waits => thread.alone(flow)?,
        flows => events::run(&mut thread, flows)?,
    }
    let cpu_begin_ns = thread.cpu_begin_ns;
    if let (Some(recorder), Some(&(_, first))) = (&buffers.latency, share.flows.first())
        && recorder.count() > 0
    {
        found(first).latency = Some(recorder.latency());
        let flows = share.flows.len();
        warn(first, format!("the latencies of {flows} flows of a thread stand with the first of them"));
    }
    Ok(cpu_begin_ns.map_or(0, |begin_ns| clock::thread_cpu_ns() - begin_ns))
}

/// Whether a flow never has to wait for its socket and for a time at once.
fn may_wait(flow: &Flow, common: &Common<'_>) -> bool {
    !(flow.role == Role::Request
        && matches!(
            common.plan.pace,
            Some(Pace::Schedule { .. } | Pace::Spread { .. } | Pace::DepartureTimes { .. })
        ))
}

/// A flow with its place to count.
pub(super) struct Running<'a> {
    pub(super) task: Box<dyn Task + 'a>,
    account: &'a Account,
    counting: bool,
}

pub(super) struct Thread<'a> {
    pub(super) common: &'a Common<'a>,
    buffers: &'a mut Buffers,
    /// Whether calls wait.
    waits: bool,
    /// The thread's CPU time when counting began.
    cpu_begin_ns: Option<u64>,
}

impl Thread<'_> {
    /// The only flow, to its end.
    fn alone(&mut self, flow: &mut Running<'_>) -> Result<(), EngineError> {
        loop {
            match self.turn(flow, self.common.control.flags())? {
                Step::Moved | Step::Blocked => {}
                Step::Until(at_ns) => sleep_until(at_ns, PATIENCE),
                Step::Over => return Ok(()),
            }
        }
    }

    /// One step of a flow that is not over.
    #[inline]
    pub(super) fn turn(&mut self, flow: &mut Running<'_>, flags: u32) -> Result<Step, EngineError> {
        let restarts = flags & COUNTING != 0 && !flow.counting;
        if restarts {
            flow.counting = true;
            flow.account.begin_ns.store(clock::monotonic_ns(), Relaxed);
            self.cpu_begin_ns.get_or_insert_with(clock::thread_cpu_ns);
        }
        let mut tools = Tools {
            common: self.common,
            account: flow.account,
            counters: flow.account.counters(flow.counting),
            counting: flow.counting,
            enough: flags & ENOUGH != 0,
            waits: self.waits,
            buffers: self.buffers,
        };
        if restarts {
            flow.task.restart(&mut tools);
        }
        let step = if flags & STOP != 0 {
            flow.task.stop(&mut tools).map(|()| Step::Over)
        } else {
            flow.task.step(&mut tools)
        };
        let step = match step {
            Ok(step) => step,
            Err(error) if is_peer_gone(&error) => {
                warn(flow.account, format!("a flow ended early: {error}"));
                Step::Over
            }
            Err(error) => return Err(error),
        };
        if step == Step::Over {
            end(flow.account, flow.task.as_mut(), &mut tools);
        }
        Ok(step)
    }
}

#[cold]
fn end(account: &Account, task: &mut dyn Task, tools: &mut Tools<'_>) {
    // The time of the last call, not of what closing takes; some flows have told it themselves.
    if tools.counting && account.end_ns.load(Relaxed) == 0 {
        account.end_ns.store(clock::monotonic_ns(), Relaxed);
    }
    task.finish(tools);
    account.over.store(true, Release);
}
