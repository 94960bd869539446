//! UDP to its receivers.

use std::net::IpAddr;

use pagefrag::PacketBuf;

use super::{Stage, parsed};
use crate::batch::{Batch, Verdict};
use crate::queue::Inlet;
use crate::reason::Reason;
use crate::wire::udp::{self, Verify};
use crate::wire::{Frame, protocol};

/// What a socket of the kernel holds is told in bytes; here it is packets. `net.core.rmem_default`, 212,992 bytes, is 277 of the smallest
/// skbs (768 bytes of truesize; net/core/sock.c, 6.18).
pub const SOCKET_PACKETS: usize = 277;

/// Where there is no receiver for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unclaimed {
    /// They end as [`Reason::NoSocket`].
    #[default]
    Drop,
    /// The next stage sees them: a router answers that there is no such port, or forwards.
    Pass,
}

/// Gives datagrams to the queue of their destination port, without their headers, which stay in the headroom. Other packets
/// pass, fragments too.
#[derive(Debug)]
pub struct Udp {
    /// By port; [`NOBODY`] where there is none.
    queues: Box<[u16]>,
    addresses: Vec<IpAddr>,
    verify: Verify,
    unclaimed: Unclaimed,
    no_socket: u64,
}

const NOBODY: u16 = u16::MAX;

impl Udp {
    /// Receivers: port, and the queue as [`Verdict::Deliver`] has it. Of a port that is there twice the last one counts.
    pub fn new(receivers: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut queues = vec![NOBODY; 1 << u16::BITS].into_boxed_slice();
        for (port, queue) in receivers {
            queues[usize::from(port)] = queue;
        }
        Self {
            queues,
            addresses: Vec::new(),
            verify: Verify::Checksum,
            unclaimed: Unclaimed::Drop,
            no_socket: 0,
        }
    }

    /// Only what goes to these addresses. Without: whatever comes.
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..self }
    }

    /// Whether checksums are verified; they are, if nothing is said.
    #[must_use]
    pub fn with_verify(self, verify: Verify) -> Self {
        Self { verify, ..self }
    }

    /// What becomes of datagrams that nobody receives.
    #[must_use]
    pub fn with_unclaimed(self, unclaimed: Unclaimed) -> Self {
        Self { unclaimed, ..self }
    }

    #[inline]
    fn verdict(&mut self, packet: &mut PacketBuf) -> Verdict {
        let parsed = match parsed(packet) {
            Ok(Frame::Ip(parsed)) if parsed.protocol == protocol::UDP && parsed.fragment.is_none() => parsed,
            Ok(_) => return Verdict::Pass,
            Err(malformed) => return Verdict::Drop(Reason::Malformed(malformed)),
        };
        if !self.addresses.is_empty() && !self.addresses.contains(&parsed.addresses.destination()) {
            return Verdict::Pass;
        }
        // The checksum is over all of it, and who receives it reads all of it.
        if !packet.is_linear() && packet.linearize().is_err() {
            return Verdict::Drop(Reason::NoBuffer);
        }
        let (port, payload_bytes) = match udp::read(packet.data(), &parsed, self.verify) {
            Ok(datagram) => (datagram.ports.destination, datagram.payload.len()),
            Err(malformed) => return Verdict::Drop(Reason::Malformed(malformed)),
        };
        match self.queues[usize::from(port)] {
            NOBODY => {
                self.no_socket += 1;
                match self.unclaimed {
                    Unclaimed::Drop => Verdict::Drop(Reason::NoSocket),
                    Unclaimed::Pass => Verdict::Pass,
                }
            }
            queue => {
                if packet.pull(parsed.l4_offset() + udp::HEADER_BYTES).is_err() {
                    return Verdict::Drop(Reason::NoBuffer);
                }
                packet.trim(payload_bytes);
                Verdict::Deliver(queue)
            }
        }
    }
}

impl Stage for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        for (_, packet, verdict) in batch.undecided() {
            *verdict = self.verdict(packet);
        }
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        vec![("no such port", self.no_socket)]
    }
}

/// A receiver: takes datagrams and reads them. It has a thread of its own, as a program with a socket has.
#[derive(Debug)]
pub struct Consumer {
    inlet: Inlet,
    totals: ConsumerTotals,
}

/// What a receiver has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerTotals {
    /// Datagrams.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// All its bytes added up, so that each has been read.
    pub sum: u64,
}

impl Consumer {
    /// Of this queue.
    pub fn new(inlet: Inlet) -> Self {
        Self { inlet, totals: ConsumerTotals::default() }
    }

    /// Reads what waits, so many at most; how many there were.
    pub fn read(&mut self, most: usize) -> usize {
        let mut packets = 0;
        while packets < most
            && let Some(packet) = self.inlet.pop()
        {
            packets += 1;
            self.totals.payload_bytes += packet.len() as u64;
            let sum: u64 = packet.slices().flatten().map(|byte| u64::from(*byte)).sum();
            self.totals.sum = self.totals.sum.wrapping_add(sum);
        }
        self.totals.packets += packets as u64;
        packets
    }

    /// Reads until the queue is closed and empty. Where nothing waits, lets other threads run.
    pub fn read_to_end(mut self) -> ConsumerTotals {
        while !self.inlet.is_finished() {
            if self.read(crate::BUDGET) == 0 {
                std::thread::yield_now();
            }
        }
        self.totals
    }

    /// What it has read so far.
    pub fn totals(&self) -> ConsumerTotals {
        self.totals
    }
}
