//! A thread of an end, with its flows.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::Duration;

use linux::{clock, cpu, socket};

use super::control::{COUNTING, ENOUGH, STOP};
use super::counters::Account;
use super::stream_flow::{StreamReceiver, StreamSender};
use super::task::{Buffers, Common, Step, Task, Tools, is_peer_gone};
use super::{Endpoint, EngineError, Flow, Role};

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
    let plan = share.common.plan;
    let mut buffers = Buffers::new(plan.send_bytes as usize, plan.receive_bytes as usize);
    let mut flows = Vec::with_capacity(share.flows.len());
    let waits = share.flows.len() == 1;
    for &(flow, account) in &share.flows {
        let task = task(flow, share.common)?;
        if let Some(fd) = task.socket() {
            socket::set_nonblocking(&fd, !waits)?;
            if waits {
                socket::set_timeouts(&fd, PATIENCE)?;
            }
        }
        flows.push(Running { task, account, counting: false });
    }
    share.common.control.ready_and_wait();
    let mut thread = Thread { common: share.common, buffers: &mut buffers, waits, cpu_begin_ns: None };
    // TODO-EPOLL
    for flow in &mut flows {
        thread.alone(flow)?;
    }
    Ok(clock::thread_cpu_ns() - thread.cpu_begin_ns.unwrap_or_default())
}

fn task<'a>(flow: &'a Flow, common: &Common<'_>) -> Result<Box<dyn Task + 'a>, EngineError> {
    use std::os::fd::AsFd;
    let plan = common.plan;
    let socket = match &flow.endpoint {
        Endpoint::Tcp(socket) => socket.as_fd(),
        Endpoint::UnixStream(socket) => socket.as_fd(),
        _ => return Err(EngineError::Mismatch { role: "send", with: "this socket", why: "not yet" }),
    };
    Ok(match flow.role {
        Role::Send => Box::new(StreamSender::new(socket, plan.send_bytes as usize)),
        Role::Receive => Box::new(StreamReceiver::new(socket)),
        _ => return Err(EngineError::Mismatch { role: "do that", with: "this socket", why: "not yet" }),
    })
}

struct Running<'a> {
    task: Box<dyn Task + 'a>,
    account: &'a Account,
    counting: bool,
}

struct Thread<'a> {
    common: &'a Common<'a>,
    buffers: &'a mut Buffers,
    waits: bool,
    /// The thread's CPU time when counting began.
    cpu_begin_ns: Option<u64>,
}

impl Thread<'_> {
    /// One flow to its end.
    fn alone(&mut self, flow: &mut Running<'_>) -> Result<(), EngineError> {
        loop {
            match self.turn(flow)? {
                Step::Moved | Step::Blocked => {}
                Step::Until(at_ns) => {
                    thread::sleep(Duration::from_nanos(at_ns.saturating_sub(clock::monotonic_ns())))
                }
                Step::Over => return Ok(()),
            }
        }
    }

    /// One step of a flow, if it is not over by that.
    fn turn(&mut self, flow: &mut Running<'_>) -> Result<Step, EngineError> {
        let flags = self.common.control.flags();
        if flags & COUNTING != 0 && !flow.counting {
            flow.counting = true;
            flow.account.begin_ns.store(clock::monotonic_ns(), Relaxed);
            flow.task.restart();
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
        let step = if flags & STOP != 0 {
            flow.task.stop(&mut tools).map(|()| Step::Over)
        } else {
            flow.task.step(&mut tools)
        };
        let step = match step {
            Err(error) if is_peer_gone(&error) => {
                let mut found = flow.account.found.lock().unwrap_or_else(PoisonError::into_inner);
                found.warnings.push(format!("a flow ended early: {error}"));
                Step::Over
            }
            step => step?,
        };
        if step == Step::Over {
            flow.task.finish(&mut tools);
            if flow.counting && flow.account.end_ns.load(Relaxed) == 0 {
                flow.account.end_ns.store(clock::monotonic_ns(), Relaxed);
            }
            flow.account.over.store(true, Release);
        }
        Ok(step)
    }
}
