//! ICMP (RFC 792) and ICMPv6 (RFC 4443): reading a message, answering an echo request, and [`error`]s.

pub mod error;

use super::{
    Addresses, Family, Malformed, Parsed,
    checksum::{Sum, update},
    field::{array_at, array_at_mut, u16_at},
    ipv4, ipv6, protocol,
};

/// Bytes of the header that all messages have.
pub const HEADER_BYTES: usize = 8;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// What it is.
    pub const TYPE: usize = 0;
    /// More about that.
    pub const CODE: usize = 1;
    /// Over the message, in IPv6 with a pseudo header.
    pub const CHECKSUM: Range<usize> = 2..4;
    /// Depends on the type.
    pub const REST: Range<usize> = 4..8;
}

/// Types of ICMP (IANA).
pub mod v4 {
    /// Answer to an echo request.
    pub const ECHO_REPLY: u8 = 0;
    /// It did not get there.
    pub const UNREACHABLE: u8 = 3;
    /// Asks for an answer.
    pub const ECHO_REQUEST: u8 = 8;
    /// Its time to live ran out.
    pub const TIME_EXCEEDED: u8 = 11;
}

/// Types of ICMPv6 (IANA).
pub mod v6 {
    /// It did not get there.
    pub const UNREACHABLE: u8 = 1;
    /// It is larger than the next link.
    pub const TOO_BIG: u8 = 2;
    /// Its hop limit ran out.
    pub const TIME_EXCEEDED: u8 = 3;
    /// The first type that is no error (RFC 4443 section 2.1).
    pub const FIRST_INFORMATIONAL: u8 = 128;
    /// Asks for an answer.
    pub const ECHO_REQUEST: u8 = 128;
    /// Answer to an echo request.
    pub const ECHO_REPLY: u8 = 129;
    /// Who has this address?
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// I have.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// There is a better way.
    pub const REDIRECT: u8 = 137;
}

/// A message whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// [`v4`] or [`v6`], as the packet is.
    pub kind: u8,
    /// More about that.
    pub code: u8,
    /// All of it, header included.
    pub bytes: &'a [u8],
}

/// The message of a packet. None if it is another protocol, or a fragment.
pub fn read<'a>(frame: &'a [u8], packet: &Parsed) -> Result<Option<Message<'a>>, Malformed> {
    if packet.fragment.is_some() || packet.protocol != protocol_of(packet) {
        return Ok(None);
    }
    let bytes = packet.l4(frame);
    let header: &[u8; HEADER_BYTES] = array_at(bytes, 0).ok_or(Malformed::IcmpShort)?;
    if sum_of(bytes, &packet.addresses).finish() != 0 {
        return Err(Malformed::IcmpChecksum);
    }
    Ok(Some(Message { kind: header[fields::TYPE], code: header[fields::CODE], bytes }))
}

fn protocol_of(packet: &Parsed) -> u8 {
    match packet.addresses.family() {
        Family::V4 => protocol::ICMP,
        Family::V6 => protocol::ICMPV6,
    }
}

/// Of a message, its checksum field included.
pub(super) fn sum_of(message: &[u8], addresses: &Addresses) -> Sum {
    match addresses.family() {
        Family::V4 => Sum::ZERO.bytes(message),
        Family::V6 => {
            Sum::ZERO.pseudo_header(addresses, protocol::ICMPV6, message.len() as u32).bytes(message)
        }
    }
}

/// Makes a frame with an echo request its answer, where it lies: addresses of link and network swapped, a new time to
/// live. False, and nothing changed, if it is something else, goes to a group, or has IP options or extension headers
/// (which would have to be answered in kind: RFC 1122 section 3.2.2.6).
pub fn answer_echo(frame: &mut [u8], packet: &Parsed) -> Result<bool, Malformed> {
    let Some(message) = read(frame, packet)? else { return Ok(false) };
    let (request, reply) = match packet.addresses.family() {
        Family::V4 => (v4::ECHO_REQUEST, v4::ECHO_REPLY),
        Family::V6 => (v6::ECHO_REQUEST, v6::ECHO_REPLY),
    };
    let is_answered = (message.kind, message.code) == (request, 0)
        && !packet.is_to_group()
        && !packet.has_invalid_source()
        && !packet.has_options();
    if !is_answered {
        return Ok(false);
    }
    let Some(header) = array_at_mut::<HEADER_BYTES>(frame, packet.l4_offset()) else { return Ok(false) };
    // In IPv6 the addresses are in the sum, whichever way round.
    let checksum = update(u16_at(header, fields::CHECKSUM), u16::from(request) << 8, u16::from(reply) << 8);
    header[fields::TYPE] = reply;
    header[fields::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    turn_round(frame, packet);
    Ok(true)
}

/// Swaps the addresses, and gives it a whole time to live.
fn turn_round(frame: &mut [u8], packet: &Parsed) {
    super::ethernet::readdress(frame, packet.link_source, packet.link_destination);
    match packet.addresses.swapped() {
        Addresses::V4 { source, destination } => {
            use ipv4::fields;
            let Some(header) = array_at_mut::<{ ipv4::HEADER_BYTES }>(frame, packet.l3_offset) else {
                return;
            };
            header[fields::SOURCE].copy_from_slice(&source.to_be_bytes());
            header[fields::DESTINATION].copy_from_slice(&destination.to_be_bytes());
            let word = |ttl: u8| u16::from_be_bytes([ttl, packet.protocol]);
            let checksum = update(u16_at(header, fields::CHECKSUM), word(packet.ttl), word(ipv4::TTL));
            header[fields::TTL] = ipv4::TTL;
            header[fields::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        }
        Addresses::V6 { source, destination } => {
            use ipv6::fields;
            let Some(header) = array_at_mut::<{ ipv6::HEADER_BYTES }>(frame, packet.l3_offset) else {
                return;
            };
            header[fields::SOURCE].copy_from_slice(&source.to_be_bytes());
            header[fields::DESTINATION].copy_from_slice(&destination.to_be_bytes());
            header[fields::HOP_LIMIT] = ipv6::HOP_LIMIT;
        }
    }
}
