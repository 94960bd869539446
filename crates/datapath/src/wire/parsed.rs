//! What a frame is, in one pass.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    Malformed,
    arp::Arp,
    checksum::{Sum, update_ttl_decrement},
    ethernet::{self, MacAddress, ether_type},
    field::{array_at, array_at_mut, u16_at, u32_at, u128_at},
    ipv4, ipv6, protocol,
};

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An IP packet, whose network header is right.
    Ip(Parsed),
    /// ARP.
    Arp(Arp),
    /// Nothing that is understood here; not wrong.
    PassedBy(PassedBy),
}

/// What a frame is that is not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassedBy {
    /// It has a VLAN tag (IEEE 802.1Q or 802.1ad).
    Vlan,
    /// The type is a length, as in frames with an LLC header (IEEE 802.3).
    Length,
    /// Another EtherType.
    EtherType,
}

/// An IP packet in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Where it came from on the link.
    pub link_source: MacAddress,
    /// Who it was for on the link.
    pub link_destination: MacAddress,
    /// Where the packet begins in the frame.
    pub l3_offset: usize,
    /// The packet's length as its header has it; padding of the frame is not in it.
    pub l3_bytes: usize,
    /// The network header's length: with options, and with the extension headers of IPv6 that were walked over.
    pub header_bytes: usize,
    /// From and to.
    pub addresses: Addresses,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// What the network header is followed by ([`protocol`]); of IPv6, behind its extension headers. An extension header's
    /// own number where the walk gave up ([`ipv6::EXTENSIONS_MAX`]).
    pub protocol: u8,
    /// If it has them (TCP, UDP, UDP-Lite, SCTP, DCCP), is not a later fragment, and is long enough.
    pub ports: Option<Ports>,
    /// If it is one.
    pub fragment: Option<Fragment>,
}

/// The two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// From and to, as numbers in the host's order, which is what tables are asked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Addresses {
    /// IPv4.
    V4 { source: u32, destination: u32 },
    /// IPv6.
    V6 { source: u128, destination: u128 },
}

impl Addresses {
    /// Which version.
    #[inline]
    pub fn family(&self) -> Family {
        match self {
            Addresses::V4 { .. } => Family::V4,
            Addresses::V6 { .. } => Family::V6,
        }
    }

    /// Who sent it, to be printed.
    pub fn source(&self) -> IpAddr {
        match *self {
            Addresses::V4 { source, .. } => IpAddr::V4(Ipv4Addr::from_bits(source)),
            Addresses::V6 { source, .. } => IpAddr::V6(Ipv6Addr::from_bits(source)),
        }
    }

    /// Who it is for, to be printed.
    pub fn destination(&self) -> IpAddr {
        match *self {
            Addresses::V4 { destination, .. } => IpAddr::V4(Ipv4Addr::from_bits(destination)),
            Addresses::V6 { destination, .. } => IpAddr::V6(Ipv6Addr::from_bits(destination)),
        }
    }

    /// For an answer.
    #[inline]
    #[must_use]
    pub fn swapped(self) -> Addresses {
        match self {
            Addresses::V4 { source, destination } => {
                Addresses::V4 { source: destination, destination: source }
            }
            Addresses::V6 { source, destination } => {
                Addresses::V6 { source: destination, destination: source }
            }
        }
    }
}

/// The first four bytes of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

/// Which part of a packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Where its payload belongs in the whole.
    pub offset_bytes: u16,
    /// Others follow.
    pub more: bool,
}

impl Fragment {
    /// It has the transport header.
    #[inline]
    pub fn is_first(self) -> bool {
        self.offset_bytes == 0
    }
}

impl Parsed {
    /// Where the transport header begins in the frame.
    #[inline]
    pub fn l4_offset(&self) -> usize {
        self.l3_offset + self.header_bytes
    }

    /// What is behind the network header, padding of the frame left out.
    #[inline]
    pub fn l4<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.l4_offset()..self.l3_offset + self.l3_bytes).unwrap_or(&[])
    }

    /// The packet, padding of the frame left out.
    #[inline]
    pub fn l3<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.l3_offset..self.l3_offset + self.l3_bytes).unwrap_or(&[])
    }

    /// It is a fragment without a transport header.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|f| !f.is_first())
    }

    /// Ports that tell the flow. Not those of a fragment, as the other fragments of the packet have none and are to
    /// be treated alike.
    #[inline]
    pub fn flow_ports(&self) -> Option<Ports> {
        if self.fragment.is_some() { None } else { self.ports }
    }

    /// IPv4 options, or extension headers of IPv6.
    #[inline]
    pub fn has_options(&self) -> bool {
        let plain = match self.addresses.family() {
            Family::V4 => ipv4::HEADER_BYTES,
            Family::V6 => ipv6::HEADER_BYTES,
        };
        self.header_bytes > plain
    }

    /// The source may not be passed on ([`ipv4::is_invalid_source`], [`ipv6::is_invalid_source`]).
    #[inline]
    pub fn has_invalid_source(&self) -> bool {
        match self.addresses {
            Addresses::V4 { source, .. } => ipv4::is_invalid_source(source),
            Addresses::V6 { source, .. } => ipv6::is_invalid_source(source),
        }
    }

    /// To a group, or to everyone.
    #[inline]
    pub fn is_to_group(&self) -> bool {
        match self.addresses {
            Addresses::V4 { destination, .. } => {
                ipv4::is_multicast(destination) || ipv4::is_broadcast(destination)
            }
            Addresses::V6 { destination, .. } => ipv6::is_multicast(destination),
        }
    }
}

/// Reads and checks the headers of the link and the network, and the ports. The checksum of IPv4 is verified, those of
/// transports are not. Bytes behind the packet are padding, whatever they are.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Frame, Malformed> {
    parse_head(frame, frame.len())
}

/// As [`parse`], of a frame of `frame_bytes` of which only `head` is in one piece. Headers must be in it: a network header that
/// goes on behind it is taken for a short one.
#[inline]
pub fn parse_head(head: &[u8], frame_bytes: usize) -> Result<Frame, Malformed> {
    let frame = head;
    let link = ethernet::Header::read(frame).ok_or(Malformed::EthernetShort)?;
    let packet_bytes = frame_bytes.max(frame.len()) - ethernet::HEADER_BYTES;
    match link.ether_type {
        ether_type::IPV4 => parse_ipv4(frame, packet_bytes, &link).map(Frame::Ip),
        ether_type::IPV6 => parse_ipv6(frame, packet_bytes, &link).map(Frame::Ip),
        ether_type::ARP => Arp::read(&frame[ethernet::HEADER_BYTES..]).map(Frame::Arp),
        ether_type::VLAN | ether_type::SERVICE_VLAN => Ok(Frame::PassedBy(PassedBy::Vlan)),
        ..ether_type::LOWEST => Ok(Frame::PassedBy(PassedBy::Length)),
        _ => Ok(Frame::PassedBy(PassedBy::EtherType)),
    }
}

/// What RFC 1812 section 5.2.2 has a router check.
#[inline]
fn parse_ipv4(frame: &[u8], packet_bytes: usize, link: &ethernet::Header) -> Result<Parsed, Malformed> {
    use ipv4::fields;
    let l3_offset = ethernet::HEADER_BYTES;
    let packet = frame.get(l3_offset..).unwrap_or(&[]);
    let header: &[u8; ipv4::HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Ipv4Short)?;
    let first = header[fields::VERSION_AND_LENGTH];
    if first >> 4 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    let header_bytes = usize::from(first & 0xf) * 4;
    if header_bytes < ipv4::HEADER_BYTES {
        return Err(Malformed::Ipv4HeaderLength);
    }
    let l3_bytes = usize::from(u16_at(header, fields::TOTAL_LENGTH));
    if l3_bytes < header_bytes || l3_bytes > packet_bytes {
        return Err(Malformed::Ipv4TotalLength);
    }
    let sum = match header_bytes {
        ipv4::HEADER_BYTES => Sum::ZERO.bytes(header),
        _ => Sum::ZERO.bytes(packet.get(..header_bytes).ok_or(Malformed::Ipv4Short)?),
    };
    if sum.finish() != 0 {
        return Err(Malformed::Ipv4Checksum);
    }
    let field = u16_at(header, fields::FRAGMENT);
    let protocol = header[fields::PROTOCOL];
    let offset_bytes = (field & ipv4::FRAGMENT_OFFSET) << 3;
    let more = field & ipv4::MORE_FRAGMENTS != 0;
    let fragment = (offset_bytes != 0 || more).then_some(Fragment { offset_bytes, more });
    Ok(Parsed {
        link_source: link.source,
        link_destination: link.destination,
        l3_offset,
        l3_bytes,
        header_bytes,
        addresses: Addresses::V4 {
            source: u32_at(header, fields::SOURCE),
            destination: u32_at(header, fields::DESTINATION),
        },
        ttl: header[fields::TTL],
        protocol,
        ports: ports(&packet[header_bytes..l3_bytes.min(packet.len())], protocol, fragment),
        fragment,
    })
}

#[inline]
fn parse_ipv6(frame: &[u8], packet_bytes: usize, link: &ethernet::Header) -> Result<Parsed, Malformed> {
    use ipv6::fields;
    let l3_offset = ethernet::HEADER_BYTES;
    let packet = frame.get(l3_offset..).unwrap_or(&[]);
    let header: &[u8; ipv6::HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Ipv6Short)?;
    if header[0] >> 4 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let l3_bytes = ipv6::HEADER_BYTES + usize::from(u16_at(header, fields::PAYLOAD_LENGTH));
    if l3_bytes > packet_bytes {
        return Err(Malformed::Ipv6PayloadLength);
    }
    let packet = &packet[..l3_bytes.min(packet.len())];
    let chain = ipv6::walk(packet, header[fields::NEXT_HEADER])?;
    let fragment = chain.fragment.map(|field| Fragment { offset_bytes: field & !7, more: field & 1 != 0 });
    Ok(Parsed {
        link_source: link.source,
        link_destination: link.destination,
        l3_offset,
        l3_bytes,
        header_bytes: chain.offset,
        addresses: Addresses::V6 {
            source: u128_at(header, fields::SOURCE),
            destination: u128_at(header, fields::DESTINATION),
        },
        ttl: header[fields::HOP_LIMIT],
        protocol: chain.protocol,
        ports: ports(&packet[chain.offset..], chain.protocol, fragment),
        fragment,
    })
}

#[inline]
fn ports(l4: &[u8], protocol: u8, fragment: Option<Fragment>) -> Option<Ports> {
    if fragment.is_some_and(|f| !f.is_first()) {
        return None;
    }
    match protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP | protocol::DCCP => {
            let bytes: &[u8; 4] = array_at(l4, 0)?;
            Some(Ports { source: u16_at(bytes, 0..2), destination: u16_at(bytes, 2..4) })
        }
        _ => None,
    }
}

/// Makes the time to live one less, and adjusts the checksum of IPv4 by the difference. The new value; none, and nothing
/// changed, if the packet has come to its end (1 or 0), so that an error quotes it as it came (RFC 1812 section 4.3.2.3).
#[inline]
pub fn decrement_ttl(frame: &mut [u8], packet: &Parsed) -> Option<u8> {
    match packet.addresses.family() {
        Family::V4 => {
            use ipv4::fields;
            let header: &mut [u8; ipv4::HEADER_BYTES] = array_at_mut(frame, packet.l3_offset)?;
            let ttl = header[fields::TTL].checked_sub(1).filter(|ttl| *ttl > 0)?;
            let checksum = update_ttl_decrement(u16_at(header, fields::CHECKSUM));
            header[fields::TTL] = ttl;
            header[fields::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
            Some(ttl)
        }
        Family::V6 => {
            let header: &mut [u8; ipv6::HEADER_BYTES] = array_at_mut(frame, packet.l3_offset)?;
            let field = &mut header[ipv6::fields::HOP_LIMIT];
            let hop_limit = field.checked_sub(1).filter(|limit| *limit > 0)?;
            *field = hop_limit;
            Some(hop_limit)
        }
    }
}
