//! Requests that are datagrams: they and their responses may be lost.
//!
//! A request whose response does not come within a time is counted as lost and repeated, with twice the time for the repeat.
//! Its latency counts from the first try. Where there is room for marks, a response says which request it answers; where there
//! is none (the classic request of one byte), it is taken for that of the oldest request, and what comes late for one that was
//! given up is taken away before the next request as far as it has come by then.

use std::os::fd::BorrowedFd;

use linux::clock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::datagram_send::{farewell, receive_error};
use super::pace::Pacer;
use super::task::{Common, Exchange, Lap, Step, Task, Tools, found, step_of};
use super::{EngineError, Marks};
use crate::outcome::Datagrams;
use crate::plan::Transport;

/// The first time a response is waited for, and the longest.
const PATIENCE_NS: u64 = 250_000_000;
const PATIENCE_MOST_NS: u64 = 2_000_000_000;

/// Sends requests and awaits their responses.
#[derive(Debug)]
pub(super) struct DatagramRequester<'a> {
    socket: BorrowedFd<'a>,
    exchange: Exchange,
    marks: Marks,
    pacer: Option<Pacer>,
    lap: Lap,
    /// As many as may wait for their responses at once.
    slots: Vec<Slot>,
    waiting: usize,
    /// Tries so far, repeats included: the number of the next.
    tries: u64,
    /// Responses that may still come for requests that were given up (without marks).
    stray: u64,
    no_more: bool,
    farewell: bool,
    counts: Datagrams,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    state: State,
    begin_ns: u64,
    /// The number of the last try, when it is given up, and how long after it was sent that is.
    number: u64,
    deadline_ns: u64,
    patience_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// To be sent, again or for the first time.
    Due,
    Sent,
}

impl<'a> DatagramRequester<'a> {
    pub(super) fn new(
        socket: BorrowedFd<'a>,
        exchange: Exchange,
        marks: Marks,
        common: &Common<'_>,
        lap: Lap,
    ) -> Self {
        Self {
            socket,
            exchange,
            marks: if exchange.is_marked(marks) { marks } else { Marks::None },
            pacer: Pacer::new(common.plan, 1),
            lap,
            slots: vec![Slot::default(); exchange.outstanding],
            waiting: 0,
            tries: 0,
            stray: 0,
            no_more: false,
            farewell: common.plan.transport == Transport::UnixDatagram,
            counts: Datagrams::default(),
        }
    }

    /// Begins requests in free slots; when the next is due, where that is what lacks.
    fn begin(&mut self, tools: &mut Tools<'_>) -> Option<u64> {
        while !self.no_more && self.waiting < self.slots.len() {
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
            let Some(slot) = self.slots.iter_mut().find(|slot| slot.state == State::Free) else { break };
            *slot = Slot { state: State::Due, begin_ns, patience_ns: PATIENCE_NS, ..Slot::default() };
            self.waiting += 1;
        }
        None
    }

    /// Sends what is due; whether the socket took all.
    fn send(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        for index in 0..self.slots.len() {
            if self.slots[index].state != State::Due {
                continue;
            }
            if self.stray > 0 {
                self.drain(tools);
            }
            let request = &mut tools.buffers.send[..self.exchange.request_bytes];
            let now_ns = clock::monotonic_ns();
            self.marks.write(request, self.tries, now_ns);
            match send(self.socket, request, SendFlags::NOSIGNAL) {
                Ok(sent) => tools.counters.sent(sent as u64, 1),
                // As if it had been lost on the way: it is repeated after a while.
                Err(Errno::NOBUFS | Errno::CONNREFUSED) => tools.counters.refused(1),
                Err(error) => match step_of("send", error)? {
                    Step::Moved => continue,
                    step => return Ok(step),
                },
            }
            let slot = &mut self.slots[index];
            slot.number = self.tries;
            slot.deadline_ns = now_ns + slot.patience_ns;
            slot.state = State::Sent;
            self.tries += 1;
        }
        Ok(Step::Moved)
    }

    /// Takes away what came for requests that were given up.
    fn drain(&mut self, tools: &mut Tools<'_>) {
        // With several on their way it cannot be told from what is waited for.
        let alone = self.slots.iter().all(|slot| slot.state != State::Sent);
        while alone && self.stray > 0 {
            match recv(self.socket, tools.buffers.receive.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((_, received)) => {
                    self.stray -= 1;
                    self.counts.late += u64::from(tools.counting);
                    tools.counters.received(received as u64, 1);
                }
                Err(_) => break,
            }
        }
    }

    /// The slot that a response belongs to.
    fn slot_of(&self, response: &[u8]) -> Option<usize> {
        if self.marks == Marks::None {
            let sent = (0..self.slots.len()).filter(|&slot| self.slots[slot].state == State::Sent);
            return sent.min_by_key(|&slot| self.slots[slot].number);
        }
        let (number, _) = self.marks.read(response)?;
        self.slots.iter().position(|slot| slot.state == State::Sent && slot.number == number)
    }

    fn receive(&mut self, received: usize, tools: &mut Tools<'_>) {
        tools.counters.received(received as u64, 1);
        let counting = u64::from(tools.counting);
        let Some(slot) = self.slot_of(&tools.buffers.receive[..received]) else {
            self.counts.late += counting;
            return;
        };
        let now_ns = clock::monotonic_ns();
        let slot = &mut self.slots[slot];
        slot.state = State::Free;
        self.waiting -= 1;
        self.lap.record(tools, slot.begin_ns, now_ns);
        tools.counters.transactions(1);
        self.counts.received += counting;
    }

    /// Gives up what has waited too long; when the next is to be given up.
    fn give_up(&mut self, tools: &Tools<'_>) -> Option<u64> {
        let now_ns = clock::monotonic_ns();
        for slot in &mut self.slots {
            if slot.state != State::Sent || slot.deadline_ns > now_ns {
                continue;
            }
            self.counts.lost += u64::from(tools.counting);
            self.stray += u64::from(self.marks == Marks::None);
            slot.patience_ns = (slot.patience_ns * 2).min(PATIENCE_MOST_NS);
            slot.state = State::Due;
            if tools.enough {
                slot.state = State::Free;
                self.waiting -= 1;
            }
        }
        let sent = self.slots.iter().filter(|slot| slot.state == State::Sent);
        sent.map(|slot| slot.deadline_ns).min()
    }
}

impl Task for DatagramRequester<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        let due_ns = self.begin(tools);
        if self.waiting == 0 {
            return Ok(due_ns.map_or(Step::Over, Step::Until));
        }
        let blocked = self.send(tools)? == Step::Blocked;
        let step = match recv(self.socket, tools.buffers.receive.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, received)) => {
                self.receive(received, tools);
                return Ok(Step::Moved);
            }
            Err(error) => receive_error(&error.into())?,
        };
        if step != Step::Blocked {
            return Ok(step);
        }
        let deadline_ns = self.give_up(tools);
        if blocked || tools.waits {
            return Ok(Step::Blocked);
        }
        // Those that were given up are sent again at once.
        if self.slots.iter().any(|slot| slot.state == State::Due) || self.waiting == 0 {
            return Ok(Step::Moved);
        }
        Ok([due_ns, deadline_ns].into_iter().flatten().min().map_or(Step::Blocked, Step::Until))
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        if self.farewell {
            farewell(self.socket);
        }
        found(tools.account).answers = Some(self.counts);
        self.lap.tell(tools);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
