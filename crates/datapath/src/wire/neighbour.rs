//! Neighbour discovery (RFC 4861): who on this link has an IPv6 address.

use super::{
    Addresses, Malformed, NoRoom, Parsed,
    ethernet::{self, MacAddress, ether_type},
    field::{array_at, u128_at},
    icmp::{self, v6},
    ipv6, protocol, room,
};

/// Bytes of a solicitation or advertisement without options.
const MESSAGE_BYTES: usize = 24;
/// Bytes of an option with a link address.
const OPTION_BYTES: usize = 8;
const WHOLE_BYTES: usize = MESSAGE_BYTES + OPTION_BYTES;
/// Bytes of the frames that are written here.
pub const FRAME_BYTES: usize = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + WHOLE_BYTES;
/// The hop limit that such packets have: no router passes that on, so they come from this link.
pub const HOP_LIMIT: u8 = 255;
/// All nodes of the link (RFC 4291 section 2.7.1): ff02::1.
pub const ALL_NODES: u128 = 0xff02 << 112 | 1;

/// Where the fields are, in the message.
pub mod fields {
    use std::ops::Range;

    /// Of an advertisement.
    pub const FLAGS: usize = 4;
    /// Whose link address is asked for or told.
    pub const TARGET: Range<usize> = 8..24;
}

/// Option: the link address of who sends the solicitation.
const SOURCE_LINK: u8 = 1;
/// Option: the link address of the target.
const TARGET_LINK: u8 = 2;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A message that RFC 4861 sections 7.1.1 and 7.1.2 call valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Asks.
    Solicitation {
        /// Who has this?
        target: u128,
        /// Who asks, if it says so.
        source_link: Option<MacAddress>,
    },
    /// Answers, or tells unasked.
    Advertisement {
        /// This one has
        target: u128,
        /// that link address, if it says so.
        target_link: Option<MacAddress>,
        /// It is a router.
        router: bool,
        /// It was asked.
        solicited: bool,
        /// What is known already is to be replaced.
        replaces: bool,
    },
}

/// The neighbour message of a packet. None if it is something else.
pub fn read(frame: &[u8], packet: &Parsed) -> Result<Option<Neighbour>, Malformed> {
    let Addresses::V6 { source, destination } = packet.addresses else { return Ok(None) };
    let Some(message) = icmp::read(frame, packet)? else { return Ok(None) };
    let option = match message.kind {
        v6::NEIGHBOUR_SOLICITATION => SOURCE_LINK,
        v6::NEIGHBOUR_ADVERTISEMENT => TARGET_LINK,
        _ => return Ok(None),
    };
    let header: &[u8; MESSAGE_BYTES] = array_at(message.bytes, 0).ok_or(Malformed::IcmpShort)?;
    if packet.ttl != HOP_LIMIT {
        return Err(Malformed::NeighbourHopLimit);
    }
    if message.code != 0 {
        return Err(Malformed::NeighbourCode);
    }
    let target = u128_at(header, fields::TARGET);
    if ipv6::is_multicast(target) {
        return Err(Malformed::NeighbourTarget);
    }
    let link = link_option(&message.bytes[MESSAGE_BYTES..], option)?;
    if message.kind == v6::NEIGHBOUR_SOLICITATION {
        let is_group = destination == ipv6::solicited_node(target);
        if source == 0 && (!is_group || link.is_some()) {
            return Err(Malformed::NeighbourUse);
        }
        return Ok(Some(Neighbour::Solicitation { target, source_link: link }));
    }
    let flags = header[fields::FLAGS];
    let solicited = flags & SOLICITED != 0;
    if solicited && ipv6::is_multicast(destination) {
        return Err(Malformed::NeighbourUse);
    }
    let (router, replaces) = (flags & ROUTER != 0, flags & OVERRIDE != 0);
    Ok(Some(Neighbour::Advertisement { target, target_link: link, router, solicited, replaces }))
}

/// The first option of that kind. All are walked over, as none may be without length. One for a link with longer
/// addresses says nothing here.
fn link_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddress>, Malformed> {
    let mut found = None;
    while !options.is_empty() {
        let &[kind, eights] = array_at::<2>(options, 0).ok_or(Malformed::NeighbourOption)?;
        let bytes = usize::from(eights) * 8;
        if bytes == 0 || bytes > options.len() {
            return Err(Malformed::NeighbourOption);
        }
        if kind == wanted && bytes == OPTION_BYTES && found.is_none() {
            found = array_at::<6>(options, 2).map(|address| MacAddress(*address));
        }
        options = &options[bytes..];
    }
    Ok(found)
}

/// Who sends a message of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The device's address.
    pub link: MacAddress,
    /// One of its IPv6 addresses.
    pub address: u128,
}

/// A whole frame that asks everyone who may have `target`. How long it is ([`FRAME_BYTES`]).
pub fn write_solicitation(frame: &mut [u8], own: Own, target: u128) -> Result<usize, NoRoom> {
    let destination = ipv6::solicited_node(target);
    let mut message = [0; WHOLE_BYTES];
    message[icmp::fields::TYPE] = v6::NEIGHBOUR_SOLICITATION;
    message[fields::TARGET].copy_from_slice(&target.to_be_bytes());
    let addresses = Addresses::V6 { source: own.address, destination };
    finish(frame, message, SOURCE_LINK, own.link, MacAddress::of_ipv6_multicast(destination), addresses)
}

/// A whole frame that answers the solicitation in `packet`, whose target is `own.address`. Who asked without an
/// address of its own (to see whether one is taken) is answered by way of everyone (RFC 4861 section 7.2.4). How long
/// it is ([`FRAME_BYTES`]).
pub fn write_advertisement(
    frame: &mut [u8],
    own: Own,
    packet: &Parsed,
    source_link: Option<MacAddress>,
    is_router: bool,
) -> Result<usize, NoRoom> {
    let asker = match packet.addresses {
        Addresses::V6 { source, .. } if source != 0 => Some(source),
        _ => None,
    };
    let mut message = [0; WHOLE_BYTES];
    message[icmp::fields::TYPE] = v6::NEIGHBOUR_ADVERTISEMENT;
    let solicited = if asker.is_some() { SOLICITED } else { 0 };
    message[fields::FLAGS] = OVERRIDE | solicited | if is_router { ROUTER } else { 0 };
    message[fields::TARGET].copy_from_slice(&own.address.to_be_bytes());
    let (destination, link) = match asker {
        Some(asker) => (asker, source_link.unwrap_or(packet.link_source)),
        None => (ALL_NODES, MacAddress::of_ipv6_multicast(ALL_NODES)),
    };
    let addresses = Addresses::V6 { source: own.address, destination };
    finish(frame, message, TARGET_LINK, own.link, link, addresses)
}

/// Option, checksum, and the headers before it.
fn finish(
    frame: &mut [u8],
    mut message: [u8; WHOLE_BYTES],
    option: u8,
    own_link: MacAddress,
    to_link: MacAddress,
    addresses: Addresses,
) -> Result<usize, NoRoom> {
    let frame = room(frame, FRAME_BYTES, "a neighbour discovery frame")?;
    message[MESSAGE_BYTES] = option;
    message[MESSAGE_BYTES + 1] = 1;
    message[MESSAGE_BYTES + 2..].copy_from_slice(&own_link.0);
    let checksum = icmp::sum_of(&message, &addresses).finish();
    message[icmp::fields::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    ethernet::Header { destination: to_link, source: own_link, ether_type: ether_type::IPV6 }.write(frame)?;
    let (header, rest) = frame[ethernet::HEADER_BYTES..].split_at_mut(ipv6::HEADER_BYTES);
    let mut network =
        ipv6::Header { next_header: protocol::ICMPV6, hop_limit: HOP_LIMIT, ..ipv6::Header::default() };
    if let Addresses::V6 { source, destination } = addresses {
        (network.source, network.destination) = (source, destination);
    }
    network.write(header, WHOLE_BYTES)?;
    rest.copy_from_slice(&message);
    Ok(FRAME_BYTES)
}
