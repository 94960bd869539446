//! Bulk into a datagram socket: UDP, UNIX.

use std::io;
use std::os::fd::BorrowedFd;

use linux::socket::{self, SendBatch};
use linux::{SyscallError, clock};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::pace::Pacer;
use super::task::{Buffers, Common, Step, Task, Tools, failed, step_of, warn};
use super::{EngineError, Marks};
use crate::plan::{Pace, Transport};

/// The most datagrams, and payload bytes, in one buffer that is cut (linux::udp says where from).
const SEGMENTS_MOST: usize = linux::udp::GSO_SEGMENTS_MAX;
const BUFFER_MOST: usize = linux::udp::GSO_BYTES_MAX;
/// How long before a datagram departs it is handed over at most: a queueing discipline without times of departure sends at once.
const AHEAD_NS: u64 = 2_000_000;
/// Empty datagrams that say that this was all: three, as one may be lost.
const FAREWELLS: usize = 3;

/// Gives datagrams to a socket that is connected.
#[derive(Debug)]
pub(super) struct DatagramSender<'a> {
    socket: BorrowedFd<'a>,
    marks: Marks,
    message_bytes: usize,
    /// Datagrams in one buffer, buffers in one call.
    segments: usize,
    slots: usize,
    pacer: Option<Pacer>,
    departs: bool,
    farewell: bool,
    next: u64,
    was_refused: bool,
}

impl<'a> DatagramSender<'a> {
    pub(super) fn new(
        socket: BorrowedFd<'a>,
        marks: Marks,
        common: &Common<'_>,
        udp: bool,
    ) -> Result<Self, EngineError> {
        let plan = common.plan;
        let message_bytes = plan.send_bytes as usize;
        check_size(message_bytes, marks)?;
        let asked = usize::from(common.options.gso_segments.unwrap_or(1));
        let segments =
            if udp { asked.min(BUFFER_MOST / message_bytes.max(1)).clamp(1, SEGMENTS_MOST) } else { 1 };
        if segments > 1 {
            socket::set_segment_bytes(&socket, message_bytes as u16)?;
        }
        let departs = matches!(plan.pace, Some(Pace::DepartureTimes { .. }));
        if departs {
            socket::set_departure_times(socket)?;
        }
        let slots = if departs { 1 } else { usize::from(common.options.batch.unwrap_or(1).max(1)) };
        Ok(Self {
            socket,
            marks,
            message_bytes,
            segments: if departs { 1 } else { segments },
            slots,
            pacer: Pacer::new(plan, plan.send_bytes),
            departs,
            farewell: plan.transport == Transport::UnixDatagram || marks == Marks::None,
            next: 0,
            was_refused: false,
        })
    }

    /// Datagrams that one call sends.
    fn most(&self) -> usize {
        self.slots * self.segments
    }

    /// Hands over so many datagrams; how many the kernel took.
    fn give(&mut self, buffers: &mut Buffers, datagrams: usize, now_ns: u64) -> io::Result<usize> {
        if self.most() == 1 {
            let datagram = &mut buffers.send[..self.message_bytes];
            self.marks.write(datagram, self.next, now_ns);
            return Ok(send(self.socket, datagram, SendFlags::NOSIGNAL).map(|_| 1)?);
        }
        let Some(batch) = &mut buffers.send_batch else { return Err(io::ErrorKind::InvalidInput.into()) };
        let slots = datagrams.div_ceil(self.segments);
        self.mark(batch, datagrams, now_ns);
        // Only the last slot of the last call may hold fewer.
        let last = datagrams - (slots - 1) * self.segments;
        if last < self.segments {
            batch.set_len(slots - 1, last * self.message_bytes);
        }
        let sent = batch.send(self.socket, 0, slots);
        if last < self.segments {
            batch.set_len(slots - 1, self.segments * self.message_bytes);
        }
        Ok((sent? * self.segments).min(datagrams))
    }

    fn mark(&self, batch: &mut SendBatch, datagrams: usize, now_ns: u64) {
        if self.marks == Marks::None {
            return;
        }
        let mut number = self.next;
        let end = self.next + datagrams as u64;
        for slot in 0..datagrams.div_ceil(self.segments) {
            for datagram in batch.slot_mut(slot).chunks_exact_mut(self.message_bytes) {
                if number == end {
                    return;
                }
                self.marks.write(datagram, number, now_ns);
                number += 1;
            }
        }
    }

    /// What a call that failed means.
    fn refusal(&mut self, error: &io::Error, tools: &Tools<'_>) -> Result<Step, EngineError> {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        match errno {
            // Neither was sent: the same numbers are tried again.
            Errno::NOBUFS => {
                tools.counters.refused(1);
                Ok(Step::Moved)
            }
            Errno::CONNREFUSED => {
                tools.counters.refused(1);
                if !std::mem::replace(&mut self.was_refused, true) {
                    let text = "the peer's host answered that nobody receives at its port (ECONNREFUSED): look whether the \
                                other end still runs";
                    warn(tools.account, text.into());
                }
                Ok(Step::Moved)
            }
            Errno::MSGSIZE | Errno::INVAL => {
                let error = SyscallError::new(
                    "send",
                    format!("a datagram of {} bytes", self.message_bytes),
                    errno.into(),
                );
                let advice = "it is longer than UDP (65,507 bytes over IPv4) or, with GSO, the MTU allows: send less at a time";
                Err(error.with_detail(advice).into())
            }
            _ => step_of("send", errno),
        }
    }
}

/// What slots of a thread's batch must hold; none where calls send one datagram.
pub(super) fn send_batch(common: &Common<'_>, udp: bool) -> Result<Option<SendBatch>, SyscallError> {
    let (plan, options) = (common.plan, common.options);
    let message_bytes = plan.send_bytes as usize;
    let asked = usize::from(options.gso_segments.unwrap_or(1));
    let segments =
        if udp { asked.min(BUFFER_MOST / message_bytes.max(1)).clamp(1, SEGMENTS_MOST) } else { 1 };
    let slots = usize::from(options.batch.unwrap_or(1).max(1));
    if slots * segments == 1 {
        return Ok(None);
    }
    SendBatch::new(slots, segments * message_bytes).map(Some)
}

fn check_size(bytes: usize, marks: Marks) -> Result<(), EngineError> {
    let bytes_u64 = bytes as u64;
    if bytes < marks.bytes() {
        let why = "the marks by which loss is seen take 32 bytes (iperf3's 12 or 16): send at least so many";
        return Err(EngineError::Size { bytes: bytes_u64, why });
    }
    if bytes > BUFFER_MOST {
        return Err(EngineError::Size {
            bytes: bytes_u64,
            why: "a datagram has at most 65,507 bytes of payload",
        });
    }
    if bytes == 0 {
        return Err(EngineError::Size {
            bytes: 0,
            why: "an empty datagram says that there are no more: send at least one byte",
        });
    }
    Ok(())
}

impl Task for DatagramSender<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        let mut now_ns = 0;
        if self.marks != Marks::None || self.pacer.is_some() {
            now_ns = clock::monotonic_ns();
        }
        let mut departs_ns = None;
        if let Some(pacer) = &mut self.pacer
            && !tools.is_done()
        {
            let messages = (self.slots * self.segments) as u64;
            let ready_ns = pacer.ready_ns(now_ns, messages);
            let ahead_ns = if self.departs { AHEAD_NS } else { 0 };
            if ready_ns > now_ns + ahead_ns {
                return Ok(Step::Until(ready_ns - ahead_ns / 2));
            }
            departs_ns = self.departs.then_some(ready_ns);
        }
        let wanted = (self.most() * self.message_bytes) as u64;
        let granted = tools.claim(wanted);
        if granted == 0 {
            return Ok(Step::Over);
        }
        // A part of a datagram becomes a whole one.
        let datagrams = (granted as usize).div_ceil(self.message_bytes);
        let sent = match departs_ns {
            Some(at_ns) => {
                let datagram = &mut tools.buffers.send[..self.message_bytes];
                self.marks.write(datagram, self.next, now_ns);
                socket::send_at(self.socket, datagram, at_ns).map(|_| 1)
            }
            None => self.give(tools.buffers, datagrams, now_ns),
        };
        let taken = *sent.as_ref().unwrap_or(&0);
        let bytes = (taken * self.message_bytes) as u64;
        tools.give_back(granted.saturating_sub(bytes));
        match sent {
            Ok(_) => {
                self.next += taken as u64;
                tools.counters.sent(bytes, taken as u64);
                if let Some(pacer) = &mut self.pacer {
                    pacer.sent(now_ns, taken as u64);
                }
                Ok(Step::Moved)
            }
            Err(error) => self.refusal(&error, tools),
        }
    }

    fn finish(&mut self, _tools: &mut Tools<'_>) {
        if self.farewell {
            farewell(self.socket);
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}

/// Says that this was all, to a receiver that has no other way to know.
pub(super) fn farewell(socket: BorrowedFd<'_>) {
    // A full queue (UNIX) is emptied by the receiver soon, or there is none.
    let end_ns = clock::monotonic_ns() + 1_000_000_000;
    let mut said = 0;
    while said < FAREWELLS && clock::monotonic_ns() < end_ns {
        match send(socket, &[], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => said += 1,
            Err(Errno::AGAIN | Errno::NOBUFS) => std::thread::sleep(std::time::Duration::from_micros(200)),
            Err(_) => return,
        }
    }
}

/// An error of a call that receives, as a step: what ICMP said of what was sent is none.
pub(super) fn receive_error(error: &io::Error) -> Result<Step, EngineError> {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => Ok(Step::Moved),
        Some(errno) => step_of("recv", errno),
        None => Err(failed("recv", io::Error::from(error.kind()))),
    }
}
