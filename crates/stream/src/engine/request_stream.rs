//! Requests over a stream socket: responses come in the order of the requests.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use linux::clock;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::EngineError;
use super::pace::Pacer;
use super::task::{Common, Exchange, Lap, Step, Task, Tools, step_of};

/// Sends requests and awaits their responses.
#[derive(Debug)]
pub(super) struct StreamRequester<'a> {
    socket: BorrowedFd<'a>,
    exchange: Exchange,
    pacer: Option<Pacer>,
    lap: Lap,
    /// When each request that waits for its response began, or was due.
    waiting: VecDeque<u64>,
    /// Bytes of requests that the socket had no room for.
    unsent: usize,
    /// Bytes of the response that is being received.
    have: usize,
    no_more: bool,
}

impl<'a> StreamRequester<'a> {
    pub(super) fn new(socket: BorrowedFd<'a>, exchange: Exchange, common: &Common<'_>, lap: Lap) -> Self {
        Self {
            socket,
            exchange,
            pacer: Pacer::new(common.plan, 1),
            lap,
            waiting: VecDeque::with_capacity(exchange.outstanding),
            unsent: 0,
            have: 0,
            no_more: false,
        }
    }

    /// Begins as many requests as may be; when the next is due, where that is what lacks.
    fn begin(&mut self, tools: &mut Tools<'_>) -> Option<u64> {
        while !self.no_more && self.waiting.len() < self.exchange.outstanding {
            let now_ns = clock::monotonic_ns();
            let mut begin_ns = now_ns;
            if let Some(pacer) = &mut self.pacer
                && !tools.is_done()
            {
                begin_ns = pacer.ready_ns(now_ns, 1);
                if begin_ns > now_ns {
                    return Some(begin_ns);
                }
            }
            if tools.claim(1) == 0 {
                self.no_more = true;
                break;
            }
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(now_ns, 1);
            }
            self.waiting.push_back(begin_ns);
            self.unsent += self.exchange.request_bytes;
        }
        None
    }

    fn send(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        while self.unsent > 0 {
            // Requests that begin together go out together: whole ones, as the content is the same.
            let bytes = self.unsent.min(tools.buffers.send.len());
            match send(self.socket, &tools.buffers.send[..bytes], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    let whole = |left: usize| left.div_ceil(self.exchange.request_bytes);
                    let messages = whole(self.unsent) - whole(self.unsent - sent);
                    self.unsent -= sent;
                    tools.counters.sent(sent as u64, messages as u64);
                }
                Err(error) => match step_of("send", error)? {
                    Step::Moved => {}
                    step => return Ok(step),
                },
            }
        }
        Ok(Step::Moved)
    }

    /// Counts what was received as responses.
    fn receive(&mut self, received: usize, tools: &mut Tools<'_>) {
        self.have += received;
        let done = (self.have / self.exchange.response_bytes).min(self.waiting.len());
        if done > 0 {
            self.have -= done * self.exchange.response_bytes;
            let now_ns = clock::monotonic_ns();
            for begin_ns in self.waiting.drain(..done) {
                self.lap.record(tools, begin_ns, now_ns);
            }
            tools.counters.transactions(done as u64);
        }
        tools.counters.received(received as u64, done as u64);
    }
}

impl Task for StreamRequester<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        let due_ns = self.begin(tools);
        if self.waiting.is_empty() {
            return Ok(due_ns.map_or(Step::Over, Step::Until));
        }
        let sent = self.send(tools)?;
        let at_most = tools.buffers.receive.len();
        match recv(self.socket, &mut tools.buffers.receive[..at_most], RecvFlags::empty()) {
            // The peer has closed.
            Ok((_, 0)) => {
                self.lap.lost_peer(tools, self.waiting.len());
                Ok(Step::Over)
            }
            Ok((_, received)) => {
                self.receive(received, tools);
                Ok(Step::Moved)
            }
            Err(error) => Ok(match (step_of("recv", error)?, due_ns) {
                (Step::Blocked, Some(due_ns)) if sent == Step::Moved => Step::Until(due_ns),
                (step, _) => step,
            }),
        }
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        let _ = shutdown(self.socket, Shutdown::Write);
        self.lap.tell(tools);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
