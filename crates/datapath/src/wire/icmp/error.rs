//! Errors: whether one may be sent about a packet, and what is in it.
//!
//! How many are sent is for the caller to limit (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)): this needs a clock. It
//! also needs to know which addresses are broadcasts of its own networks, which no packet says.

use crate::wire::{
    Addresses, Family, NoRoom, Parsed, checksum::Sum, ethernet::MacAddress, ipv4, ipv6, protocol, room,
};

use super::{HEADER_BYTES, fields, sum_of, v4, v6};

/// What went wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// Its time to live ran out here.
    HopLimit,
    /// No route leads there.
    NoRoute,
    /// The last router, this one, gets no answer from the host.
    NoNeighbour,
    /// A filter forbids it.
    Prohibited,
    /// Nobody listens at the port.
    NoPort,
    /// The next link does not carry it, and it may not be fragmented.
    TooBig {
        /// What that link carries.
        mtu_bytes: u32,
    },
}

impl Problem {
    /// Type and code.
    fn numbers(self, family: Family) -> (u8, u8) {
        match (self, family) {
            (Problem::HopLimit, Family::V4) => (v4::TIME_EXCEEDED, 0),
            (Problem::NoRoute, Family::V4) => (v4::UNREACHABLE, 0),
            (Problem::NoNeighbour, Family::V4) => (v4::UNREACHABLE, 1),
            (Problem::NoPort, Family::V4) => (v4::UNREACHABLE, 3),
            (Problem::TooBig { .. }, Family::V4) => (v4::UNREACHABLE, 4),
            (Problem::Prohibited, Family::V4) => (v4::UNREACHABLE, 13),
            (Problem::HopLimit, Family::V6) => (v6::TIME_EXCEEDED, 0),
            (Problem::NoRoute, Family::V6) => (v6::UNREACHABLE, 0),
            (Problem::Prohibited, Family::V6) => (v6::UNREACHABLE, 1),
            (Problem::NoNeighbour, Family::V6) => (v6::UNREACHABLE, 3),
            (Problem::NoPort, Family::V6) => (v6::UNREACHABLE, 4),
            (Problem::TooBig { .. }, Family::V6) => (v6::TOO_BIG, 0),
        }
    }

    /// Bytes 4 to 7 of the message: the link's size, if it is about that (RFC 1191 section 4, RFC 4443 section 3.2).
    fn rest(self, family: Family) -> [u8; 4] {
        match (self, family) {
            (Problem::TooBig { mtu_bytes }, Family::V4) => mtu_bytes.min(0xffff).to_be_bytes(),
            (Problem::TooBig { mtu_bytes }, Family::V6) => mtu_bytes.to_be_bytes(),
            _ => [0; 4],
        }
    }
}

/// Why no error may be sent about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Silence {
    /// It is an error itself, or may be one: its type cannot be seen, or is not known.
    AboutError,
    /// It is a fragment, and not the first. In IPv6 only if it belongs to an ICMPv6 message, which RFC 4443 section 2.4
    /// (e.1) asks for and no more.
    LaterFragment,
    /// It goes to a group or to everyone.
    ToGroup,
    /// It came to a group or to everyone on the link.
    LinkGroup,
    /// Its source is not one host.
    Source,
}

impl Silence {
    /// All of them, in the order of [`index`](Silence::index).
    pub const ALL: [Silence; 5] =
        [Silence::AboutError, Silence::LaterFragment, Silence::ToGroup, Silence::LinkGroup, Silence::Source];

    /// Its place in [`ALL`](Silence::ALL), for arrays of counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As the counter is called.
    pub const fn name(self) -> &'static str {
        match self {
            Silence::AboutError => "icmp-about-error",
            Silence::LaterFragment => "icmp-later-fragment",
            Silence::ToGroup => "icmp-to-group",
            Silence::LinkGroup => "icmp-link-group",
            Silence::Source => "icmp-source",
        }
    }
}

/// Whether an error may be sent about this packet: RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 (e).
pub fn may_send(problem: Problem, frame: &[u8], packet: &Parsed) -> Result<(), Silence> {
    let family = packet.addresses.family();
    // RFC 4443 section 2.4 (e.3): so that the path's size can be found for groups too.
    let groups_too = family == Family::V6 && matches!(problem, Problem::TooBig { .. });
    if packet.link_destination.is_multicast() && !groups_too {
        return Err(Silence::LinkGroup);
    }
    if packet.is_to_group() && !groups_too {
        return Err(Silence::ToGroup);
    }
    if packet.has_invalid_source() || packet.link_source == MacAddress::BROADCAST {
        return Err(Silence::Source);
    }
    let is_icmp = match family {
        Family::V4 => packet.protocol == protocol::ICMP,
        Family::V6 => packet.protocol == protocol::ICMPV6,
    };
    if packet.is_later_fragment() && (family == Family::V4 || is_icmp) {
        return Err(Silence::LaterFragment);
    }
    let is_hidden = family == Family::V6 && ipv6::is_extension(packet.protocol);
    if is_hidden && !packet.is_later_fragment() || is_icmp && is_error(frame, packet, family) {
        return Err(Silence::AboutError);
    }
    Ok(())
}

/// As the kernel decides: unknown types of ICMP are taken for errors (`__icmp_send`, net/ipv4/icmp.c, 6.18), of ICMPv6 those
/// that the first bit says (`is_ineligible`, net/ipv6/icmp.c), and redirects (RFC 4443 section 2.4 (e.2)).
fn is_error(frame: &[u8], packet: &Parsed, family: Family) -> bool {
    let Some(kind) = packet.l4(frame).get(fields::TYPE) else { return true };
    match family {
        Family::V4 => !matches!(kind, 0 | 8 | 9 | 10 | 13..=18),
        Family::V6 => *kind < v6::FIRST_INFORMATIONAL || *kind == v6::REDIRECT,
    }
}

/// Who sends an error: the address of the device that the packet came in by (RFC 1812 section 4.3.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Its IPv4 address.
    pub v4: u32,
    /// Its IPv6 address.
    pub v6: u128,
}

/// The longest error: what [`write()`] needs room for at most.
pub const BYTES_MAX: usize = ipv6::LINK_BYTES_MIN;

/// Bytes that an error puts in front of what it quotes: network header and ICMP header.
pub const fn front_bytes(family: Family) -> usize {
    match family {
        Family::V4 => ipv4::HEADER_BYTES + HEADER_BYTES,
        Family::V6 => ipv6::HEADER_BYTES + HEADER_BYTES,
    }
}

/// How much of a packet is quoted: as much as fits 576 bytes in all (RFC 1812 section 4.3.2.3) or 1280 (RFC 4443 section 2.4
/// (c)).
pub fn quoted_bytes(packet: &Parsed) -> usize {
    let family = packet.addresses.family();
    let limit_bytes = match family {
        Family::V4 => ipv4::DATAGRAM_BYTES_MIN,
        Family::V6 => ipv6::LINK_BYTES_MIN,
    };
    packet.l3_bytes.min(limit_bytes - front_bytes(family))
}

/// Writes an error about the packet, which must be as it came, to the start of `out`: network header, message, and
/// [as much](quoted_bytes) of the packet as belongs there. How long it is, without a link header.
pub fn write(
    out: &mut [u8],
    problem: Problem,
    sender: &Sender,
    frame: &[u8],
    packet: &Parsed,
) -> Result<usize, NoRoom> {
    let front = front_bytes(packet.addresses.family());
    let quoted = packet.l3(frame);
    let quoted = &quoted[..quoted.len().min(quoted_bytes(packet))];
    let bytes = front + quoted.len();
    let out = room(out, bytes, "an ICMP error")?;
    out[front..].copy_from_slice(quoted);
    write_front(out, problem, sender, packet)?;
    Ok(bytes)
}

/// As [`write()`], where the quotation lies in place already: `out` is the whole error, its first [`front_bytes`] are
/// written, and nothing is copied.
pub fn write_front(out: &mut [u8], problem: Problem, sender: &Sender, packet: &Parsed) -> Result<(), NoRoom> {
    let family = packet.addresses.family();
    let header_bytes = front_bytes(family) - HEADER_BYTES;
    room(out, front_bytes(family), "an ICMP error")?;
    let message_bytes = out.len() - header_bytes;
    let addresses = match packet.addresses {
        Addresses::V4 { source: destination, .. } => {
            // Internetwork control (RFC 1812 section 4.3.2.5).
            let traffic_class = 0xc0;
            let header = ipv4::Header {
                traffic_class,
                fragment: 0,
                protocol: protocol::ICMP,
                source: sender.v4,
                destination,
                ..ipv4::Header::default()
            };
            header.write(out, message_bytes)?;
            Addresses::V4 { source: sender.v4, destination }
        }
        Addresses::V6 { source: destination, .. } => {
            let header = ipv6::Header {
                next_header: protocol::ICMPV6,
                source: sender.v6,
                destination,
                ..ipv6::Header::default()
            };
            header.write(out, message_bytes)?;
            Addresses::V6 { source: sender.v6, destination }
        }
    };
    write_message_header(&mut out[header_bytes..], problem, &addresses);
    Ok(())
}

/// What follows the header is the quotation.
fn write_message_header(message: &mut [u8], problem: Problem, addresses: &Addresses) {
    let family = addresses.family();
    let (kind, code) = problem.numbers(family);
    message[fields::TYPE] = kind;
    message[fields::CODE] = code;
    message[fields::CHECKSUM].fill(0);
    message[fields::REST].copy_from_slice(&problem.rest(family));
    let sum: Sum = sum_of(message, addresses);
    message[fields::CHECKSUM].copy_from_slice(&sum.finish().to_be_bytes());
}
