//! UDP (RFC 768), where it is delivered.

use super::{
    Addresses, Malformed, NoRoom, Parsed, Ports,
    checksum::Sum,
    field::{array_at, u16_at},
    protocol, room,
};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// Whose it is.
    pub const SOURCE: Range<usize> = 0..2;
    /// Whom it is for.
    pub const DESTINATION: Range<usize> = 2..4;
    /// Header and payload, in bytes.
    pub const LENGTH: Range<usize> = 4..6;
    /// Over pseudo header, header and payload; 0 if there is none.
    pub const CHECKSUM: Range<usize> = 6..8;
}

/// A datagram that may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Whose, and for whom.
    pub ports: Ports,
    /// What it brings.
    pub payload: &'a [u8],
}

/// Whether checksums are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The whole datagram is read.
    Checksum,
    /// A device or a tunnel has done so, or the price is not wanted.
    Nothing,
}

/// The datagram of a packet that says it is UDP and is no fragment. Bytes behind its length are ignored, as the kernel
/// does (`udp_queue_rcv_skb`, net/ipv4/udp.c, 6.18).
pub fn read<'a>(frame: &'a [u8], packet: &Parsed, verify: Verify) -> Result<Datagram<'a>, Malformed> {
    let l4 = packet.l4(frame);
    let header: &[u8; HEADER_BYTES] = array_at(l4, 0).ok_or(Malformed::UdpShort)?;
    let length = usize::from(u16_at(header, fields::LENGTH));
    if length < HEADER_BYTES {
        return Err(Malformed::UdpLength);
    }
    let datagram = l4.get(..length).ok_or(Malformed::UdpLength)?;
    if verify == Verify::Checksum && !is_right(datagram, header, &packet.addresses) {
        return Err(Malformed::UdpChecksum);
    }
    let ports =
        Ports { source: u16_at(header, fields::SOURCE), destination: u16_at(header, fields::DESTINATION) };
    Ok(Datagram { ports, payload: &datagram[HEADER_BYTES..] })
}

fn is_right(datagram: &[u8], header: &[u8; HEADER_BYTES], addresses: &Addresses) -> bool {
    if u16_at(header, fields::CHECKSUM) == 0 {
        return matches!(addresses, Addresses::V4 { .. });
    }
    Sum::ZERO.pseudo_header(addresses, protocol::UDP, datagram.len() as u32).bytes(datagram).finish() == 0
}

/// Writes a header before the payload, which lies in `datagram` already: length, and checksum over all of it. Fails if
/// it is shorter than a header, or longer than a datagram may be (then the room is said to be 65535).
pub fn write_header(datagram: &mut [u8], ports: Ports, addresses: &Addresses) -> Result<(), NoRoom> {
    let what = "a UDP datagram";
    let length = u16::try_from(datagram.len()).map_err(|_| NoRoom {
        what,
        needed_bytes: datagram.len(),
        room_bytes: usize::from(u16::MAX),
    })?;
    let header = room(datagram, HEADER_BYTES, what)?;
    header[fields::SOURCE].copy_from_slice(&ports.source.to_be_bytes());
    header[fields::DESTINATION].copy_from_slice(&ports.destination.to_be_bytes());
    header[fields::LENGTH].copy_from_slice(&length.to_be_bytes());
    header[fields::CHECKSUM].fill(0);
    let sum = Sum::ZERO.pseudo_header(addresses, protocol::UDP, u32::from(length)).bytes(datagram);
    datagram[fields::CHECKSUM].copy_from_slice(&sum.finish_udp().to_be_bytes());
    Ok(())
}
