//! UDP to its receivers.

use std::net::IpAddr;

use pagefrag::PacketBuf;

use super::{Stage, parsed};
use crate::batch::{Batch, Verdict};
use crate::reason::Reason;
use crate::wire::udp::{self, Verify};
use crate::wire::{Frame, protocol};

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
