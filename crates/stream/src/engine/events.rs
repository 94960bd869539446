//! Many flows on one thread: those that can move take turns, the others wait for an event or a time.
//!
//! Sockets are registered once, edge-triggered and for both directions, so that no call changes what is waited for. A flow
//! waits only after a call said that there is nothing, or no room, so that no edge is missed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use linux::{SyscallError, clock};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::EngineError;
use super::pace::wait_until;
use super::task::Step;
use super::thread::{PATIENCE, Running, Thread};

/// Steps of a flow before another has its turn.
const STEPS: usize = 16;
/// Events taken at a time.
const EVENTS: usize = 512;

struct Flow {
    queued: bool,
    over: bool,
    /// The time that is waited for.
    until_ns: Option<u64>,
    /// Which of its sockets was registered last.
    registered: Option<u64>,
}

struct Loop {
    epoll: OwnedFd,
    flows: Vec<Flow>,
    /// Flows that can move.
    queue: VecDeque<usize>,
    /// Times, and who waits for them; some are no longer waited for.
    times: BinaryHeap<Reverse<(u64, usize)>>,
    live: usize,
}

pub(super) fn run(thread: &mut Thread<'_>, flows: &mut [Running<'_>]) -> Result<(), EngineError> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed("epoll_create", error))?;
    let fresh = |_| Flow { queued: false, over: false, until_ns: None, registered: None };
    let mut waiting = Loop {
        epoll,
        flows: (0..flows.len()).map(fresh).collect(),
        queue: VecDeque::with_capacity(flows.len()),
        times: BinaryHeap::with_capacity(flows.len()),
        live: flows.len(),
    };
    let mut events = Vec::with_capacity(EVENTS);
    let mut flags = thread.common.control.flags();
    waiting.queue_all();
    while waiting.live > 0 {
        let now = thread.common.control.flags();
        if now != flags {
            flags = now;
            // Each learns of it, also those that wait.
            waiting.queue_all();
        }
        for _ in 0..waiting.queue.len() {
            let Some(index) = waiting.queue.pop_front() else { break };
            waiting.flows[index].queued = false;
            waiting.steps(thread, flows, index, flags)?;
            // A round of ten thousand flows takes long: the end of the time is not put off until it is over.
            if thread.common.control.flags() != flags {
                break;
            }
        }
        if waiting.live > 0 {
            waiting.wait(&mut events)?;
        }
    }
    Ok(())
}

impl Loop {
    fn queue_all(&mut self) {
        (0..self.flows.len()).for_each(|index| self.enqueue(index));
    }

    fn enqueue(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        if !flow.queued && !flow.over {
            flow.queued = true;
            flow.until_ns = None;
            self.queue.push_back(index);
        }
    }

    /// A flow's turn.
    fn steps(
        &mut self,
        thread: &mut Thread<'_>,
        flows: &mut [Running<'_>],
        index: usize,
        flags: u32,
    ) -> Result<(), EngineError> {
        let running = &mut flows[index];
        for _ in 0..STEPS {
            match thread.turn(running, flags)? {
                Step::Moved => {}
                Step::Blocked => return self.register(running, index),
                Step::Until(at_ns) => {
                    self.flows[index].until_ns = Some(at_ns);
                    self.times.push(Reverse((at_ns, index)));
                    return self.register(running, index);
                }
                Step::Over => {
                    self.flows[index].over = true;
                    self.live -= 1;
                    if let Some(fd) = running.task.socket() {
                        // A socket that nothing is done with must not wake the others up. It may not have been registered.
                        let _ = epoll::delete(&self.epoll, fd);
                    }
                    return Ok(());
                }
            }
        }
        self.enqueue(index);
        Ok(())
    }

    /// Makes sure that the socket that a flow waits for is registered.
    fn register(&mut self, running: &Running<'_>, index: usize) -> Result<(), EngineError> {
        let Some(fd) = running.task.socket() else { return Ok(()) };
        let generation = running.task.generation();
        if self.flows[index].registered == Some(generation) {
            return Ok(());
        }
        let both =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(index as u64), both) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("epoll_ctl", error)),
        }
        self.flows[index].registered = Some(generation);
        Ok(())
    }

    /// Takes events and times that have come; waits for them where no flow can move.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineError> {
        let mut timeout = if self.queue.is_empty() { PATIENCE } else { Duration::ZERO };
        if let Some(at_ns) = self.next_time() {
            timeout = wait_until(at_ns, timeout);
        }
        let timeout = Timespec::try_from(timeout).ok();
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("epoll_wait", error)),
        }
        for event in events.iter() {
            let data = event.data;
            self.enqueue(data.u64() as usize);
        }
        if self.next_time().is_some() {
            let now_ns = clock::monotonic_ns();
            while let Some(at_ns) = self.next_time()
                && at_ns <= now_ns
            {
                if let Some(Reverse((_, index))) = self.times.pop() {
                    self.enqueue(index);
                }
            }
        }
        Ok(())
    }

    /// The next time that a flow still waits for.
    fn next_time(&mut self) -> Option<u64> {
        while let Some(&Reverse((at_ns, index))) = self.times.peek() {
            if self.flows[index].until_ns == Some(at_ns) {
                return Some(at_ns);
            }
            self.times.pop();
        }
        None
    }
}

fn failed(call: &'static str, error: Errno) -> EngineError {
    SyscallError::new(call, "flows of a thread", error.into()).into()
}
