//! What is done with packets between receiving and sending.

mod early;
pub mod filter;
pub mod forward;
mod send_all;
pub mod steer;
pub mod udp;

use std::net::IpAddr;

use pagefrag::{Align, HEADROOM, PacketBuf, buffer_bytes};

use crate::Batch;
use crate::wire::{self, Frame, Malformed};

pub use early::EarlyDrop;
pub use filter::Filter;
pub use forward::{Forward, ForwardConfig, Router};
pub use send_all::SendAll;
pub use steer::Steer;
pub use udp::Udp;

/// One step of the way. A stage works on the packets of a batch that have no verdict yet.
pub trait Stage: Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Decides on packets, or changes them and lets them pass. It may add packets that it made or held before, decided. `now_ns`: any
    /// monotonic time, read once a poll.
    fn run(&mut self, batch: &mut Batch, now_ns: u64);

    /// Events that are no end of a packet: name and count. What ended is counted by its verdict.
    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Packets that it made itself, and did not receive.
    fn made(&self) -> u64 {
        0
    }

    /// Packets that it holds.
    fn held(&self) -> u64 {
        0
    }

    /// Lets go of all packets that it holds, decided, at the end of a run.
    fn release(&mut self, _batch: &mut Batch) {}
}

/// Bytes of a transport header that stages look at: the longest is UDP's.
const TRANSPORT_BYTES: usize = 8;

/// What a packet is. Its headers, the begin of the transport header included, are in the first piece afterwards.
#[inline]
pub(crate) fn parsed(packet: &mut PacketBuf) -> Result<Frame, Malformed> {
    if packet.is_linear() { wire::parse(packet.data()) } else { parsed_in_pieces(packet) }
}

/// Makes one piece of it only if that is needed. Without memory for that it is taken as it is.
fn parsed_in_pieces(packet: &mut PacketBuf) -> Result<Frame, Malformed> {
    let frame = wire::parse_head(packet.data(), packet.len());
    let is_whole =
        matches!(&frame, Ok(Frame::Ip(parsed)) if parsed.l4_offset() + TRANSPORT_BYTES <= packet.head_len());
    if is_whole || packet.linearize().is_err() { frame } else { wire::parse(packet.data()) }
}

/// An empty packet in memory of its own, with room for so many bytes. A cache line more than they take, as the system's
/// allocator begins anywhere in one.
pub(crate) fn new_packet(data_bytes: usize) -> PacketBuf {
    PacketBuf::new(vec![0; buffer_bytes(data_bytes) + Align::CACHE_LINE.bytes()], HEADROOM)
}

/// An address of the device under test on one of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that all hosts on the link share.
    pub prefix_bits: u8,
}

impl PortAddress {
    /// Whether this address is on the same link, by its prefix.
    pub fn has(&self, address: IpAddr) -> bool {
        let same = |differing: u32, bits: u32| differing >= u32::from(self.prefix_bits).min(bits);
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same((own.to_bits() ^ other.to_bits()).leading_zeros(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same((own.to_bits() ^ other.to_bits()).leading_zeros(), 128)
            }
            _ => false,
        }
    }
}
