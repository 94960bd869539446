//! Bulk out of a datagram socket.

use std::os::fd::BorrowedFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use linux::socket::{self, ReceiveBatch};
use linux::{SyscallError, clock};

use super::datagram_send::receive_error;
use super::task::{Common, Step, Task, Tools, warn};
use super::{EngineError, Marks};
use crate::plan::Taking;

/// How long what has arrived already is read after the run was stopped.
const DRAIN_NS: u64 = 50_000_000;
/// A slot for what the kernel joins.
const JOINED_BYTES: usize = 1 << 16;

/// Takes datagrams, until it is stopped or an empty one comes.
#[derive(Debug)]
pub(super) struct DatagramReceiver<'a> {
    socket: BorrowedFd<'a>,
    marked: bool,
    lengths_only: bool,
    /// An empty datagram ends it.
    ends: bool,
}

impl<'a> DatagramReceiver<'a> {
    pub(super) fn new(
        socket: BorrowedFd<'a>,
        marks: Marks,
        taking: Taking,
        common: &Common<'_>,
        udp: bool,
    ) -> Result<Self, EngineError> {
        if udp && common.options.gro {
            socket::set_receive_joined(&socket, true)?;
        }
        let marked = marks != Marks::None;
        let lengths_only = taking == Taking::Discard;
        if lengths_only && marked {
            return Err(EngineError::Unsupported {
                what: "MSG_TRUNC",
                over: "datagrams whose numbers are to be read",
                instead: "let them be copied, or leave the marks out",
            });
        }
        Ok(Self { socket, marked, lengths_only, ends: !udp || !marked })
    }

    /// One call, and what came by it.
    fn take(&mut self, tools: &mut Tools<'_>, wait: bool) -> Result<Step, EngineError> {
        let Some(batch) = &mut tools.buffers.receive_batch else { return Ok(Step::Over) };
        let slots = if self.lengths_only {
            batch.receive_lengths(self.socket, wait)
        } else {
            batch.receive(self.socket, wait)
        };
        let slots = match slots {
            Ok(slots) => slots,
            Err(error) => return receive_error(&error),
        };
        let now_ns = clock::monotonic_ns();
        let (mut bytes, mut datagrams) = (0, 0);
        let mut over = false;
        let mut found = if self.marked {
            Some(tools.account.found.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            None
        };
        for slot in 0..slots {
            if batch.bytes(slot) == 0 {
                over |= self.ends;
            } else if let Some(arrivals) = found.as_mut().and_then(|found| found.arrivals.as_mut()) {
                for datagram in batch.segments(slot) {
                    if arrivals.take(datagram, now_ns) {
                        bytes += datagram.len();
                        datagrams += 1;
                    }
                }
            } else {
                bytes += batch.bytes(slot);
                datagrams += batch.datagrams(slot);
            }
        }
        drop(found);
        if datagrams > 0 {
            tools.counters.received(bytes as u64, datagrams as u64);
            if tools.counting {
                // Idle waiting at the end is not part of the transfer.
                tools.account.end_ns.store(now_ns, Relaxed);
            }
        }
        Ok(if over { Step::Over } else { Step::Moved })
    }
}

/// What a thread's flows receive into.
pub(super) fn receive_batch(
    common: &Common<'_>,
    taking: Taking,
    udp: bool,
) -> Result<ReceiveBatch, SyscallError> {
    let options = common.options;
    let joined = udp && options.gro;
    let bytes = match taking {
        Taking::Discard => 0,
        _ if joined => JOINED_BYTES,
        _ => common.plan.receive_bytes as usize,
    };
    ReceiveBatch::new(usize::from(options.batch.unwrap_or(1).max(1)), bytes, joined)
}

impl Task for DatagramReceiver<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError> {
        self.take(tools, tools.waits)
    }

    fn stop(&mut self, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        // What is there now; a sender that goes on does not prolong it.
        let end_ns = clock::monotonic_ns() + DRAIN_NS;
        while self.take(tools, false)? == Step::Moved && clock::monotonic_ns() < end_ns {}
        Ok(())
    }

    fn finish(&mut self, tools: &mut Tools<'_>) {
        let found = tools.account.found.lock().unwrap_or_else(PoisonError::into_inner);
        let foreign = found.arrivals.as_ref().map_or(0, |arrivals| arrivals.foreign);
        drop(found);
        if foreign > 0 {
            let text = format!(
                "{foreign} datagrams came that are not of this run (no mark, or another cookie): not counted"
            );
            warn(tools.account, text);
        }
    }

    fn restart(&mut self, tools: &mut Tools<'_>) {
        let mut found = tools.account.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arrivals) = &mut found.arrivals {
            arrivals.tracker.end_omit();
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket)
    }
}
