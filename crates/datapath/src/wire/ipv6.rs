//! IPv6 (RFC 8200).

use super::{Malformed, NoRoom, field::array_at, protocol, room};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 40;
/// What every link must carry in one piece (RFC 8200 section 5): 1280.
pub const LINK_BYTES_MIN: usize = 1280;
/// The hop limit that a sender gives.
pub const HOP_LIMIT: u8 = 64;
/// How many extension headers are looked behind.
pub const EXTENSIONS_MAX: usize = 8;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// 6, traffic class, and flow label.
    pub const VERSION_AND_LABEL: Range<usize> = 0..4;
    /// Everything behind the fixed header, in bytes.
    pub const PAYLOAD_LENGTH: Range<usize> = 4..6;
    /// What follows.
    pub const NEXT_HEADER: usize = 6;
    /// Time to live.
    pub const HOP_LIMIT: usize = 7;
    /// Who sent it.
    pub const SOURCE: Range<usize> = 8..24;
    /// Who it is for.
    pub const DESTINATION: Range<usize> = 24..40;
}

/// The fixed header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How it is to be treated.
    pub traffic_class: u8,
    /// Which flow it belongs to; 20 bits.
    pub flow_label: u32,
    /// What follows ([`super::protocol`]).
    pub next_header: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// Who sent it.
    pub source: u128,
    /// Who it is for.
    pub destination: u128,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            traffic_class: 0,
            flow_label: 0,
            next_header: protocol::NO_NEXT,
            hop_limit: HOP_LIMIT,
            source: 0,
            destination: 0,
        }
    }
}

impl Header {
    /// To the start of a packet of `payload_bytes`. The length says at most 65535.
    pub fn write(&self, packet: &mut [u8], payload_bytes: usize) -> Result<(), NoRoom> {
        let header = room(packet, HEADER_BYTES, "an IPv6 header")?;
        let length = u16::try_from(payload_bytes).unwrap_or(u16::MAX);
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        header[fields::VERSION_AND_LABEL].copy_from_slice(&first.to_be_bytes());
        header[fields::PAYLOAD_LENGTH].copy_from_slice(&length.to_be_bytes());
        header[fields::NEXT_HEADER] = self.next_header;
        header[fields::HOP_LIMIT] = self.hop_limit;
        header[fields::SOURCE].copy_from_slice(&self.source.to_be_bytes());
        header[fields::DESTINATION].copy_from_slice(&self.destination.to_be_bytes());
        Ok(())
    }
}

/// What comes after the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// The first header that is not walked over: the transport, or what nobody here can read.
    pub(super) protocol: u8,
    /// Where that begins, from the start of the packet.
    pub(super) offset: usize,
    /// The fragment header's field, if there was one: offset in units of 8 bytes and flags.
    pub(super) fragment: Option<u16>,
    /// The walk ended at [`EXTENSIONS_MAX`] with an extension header.
    pub(super) unfinished: bool,
}

/// Walks over the extension headers of a packet (whole, cut to its length). Behind a fragment header whose offset is
/// not zero there are only bytes, whatever it says that follows.
pub(super) fn walk(packet: &[u8], next_header: u8) -> Result<Chain, Malformed> {
    let mut chain = Chain { protocol: next_header, offset: HEADER_BYTES, fragment: None, unfinished: false };
    for _ in 0..EXTENSIONS_MAX {
        let is_rest = chain.fragment.is_some_and(|field| field >> 3 != 0);
        if is_rest || !is_extension(chain.protocol) {
            return Ok(chain);
        }
        let &[next, length, a, b, ..] =
            array_at::<8>(packet, chain.offset).ok_or(Malformed::Ipv6Extension)?;
        let bytes = match chain.protocol {
            protocol::FRAGMENT => {
                chain.fragment = Some(u16::from_be_bytes([a, b]));
                8
            }
            protocol::AUTHENTICATION => (usize::from(length) + 2) * 4,
            _ => (usize::from(length) + 1) * 8,
        };
        chain.protocol = next;
        chain.offset += bytes;
        if chain.offset > packet.len() {
            return Err(Malformed::Ipv6Extension);
        }
    }
    chain.unfinished = is_extension(chain.protocol);
    Ok(chain)
}

/// Those whose length can be read (IANA, "IPv6 Extension Header Types"); an ESP header's cannot.
#[inline]
pub(super) fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION
            | protocol::MOBILITY
            | protocol::HOST_IDENTITY
            | protocol::SHIM6
    )
}

/// To a group: ff00::/8 (RFC 4291 section 2.7).
#[inline]
pub const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// Of this link only: fe80::/10 (RFC 4291 section 2.5.6). Such packets are never passed on.
#[inline]
pub const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0x3fa
}

/// May not stand as a source in a packet that is passed on (RFC 4291 sections 2.5.2, 2.5.3, 2.7): none, loopback, a
/// group.
#[inline]
pub const fn is_invalid_source(address: u128) -> bool {
    address <= 1 || is_multicast(address)
}

/// The group in which whoever has that address listens (RFC 4291 section 2.7.1): ff02::1:ffXX:XXXX.
#[inline]
pub const fn solicited_node(address: u128) -> u128 {
    0xff02_0000_0000_0000_0000_0001_ff00_0000 | address & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_rfc_8200_has_it() {
        let header = Header {
            traffic_class: 0xab,
            flow_label: 0xc_dead,
            next_header: 17,
            hop_limit: 7,
            source: 0x2001_0db8 << 96 | 1,
            destination: 0x2001_0db8 << 96 | 2,
        };
        let mut packet = [0xee; 41];
        header.write(&mut packet, 0x1234).unwrap();
        assert_eq!(packet[..8], [0x6a, 0xbc, 0xde, 0xad, 0x12, 0x34, 17, 7]);
        assert_eq!(packet[8..12], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!((packet[23], packet[39], packet[40]), (1, 2, 0xee));
        assert!(header.write(&mut packet[..39], 0).is_err());
    }

    #[test]
    fn the_example_of_rfc_4291_section_2_7_1() {
        // 4037::01:800:200e:8c6c
        let address = 0x4037_0000_0000_0000_0001_0800_200e_8c6c;
        assert_eq!(solicited_node(address), 0xff02_0000_0000_0000_0000_0001_ff0e_8c6c);
    }

    #[test]
    fn kinds_of_addresses() {
        assert!(is_link_local(0xfe80 << 112 | 1) && is_link_local(0xfebf << 112));
        assert!(!is_link_local(0xfec0 << 112) && !is_link_local(0xfe7f << 112));
        assert!(is_invalid_source(0) && is_invalid_source(1) && is_invalid_source(0xff02 << 112 | 1));
        assert!(!is_invalid_source(2) && !is_invalid_source(0xfe80 << 112 | 1));
    }

    /// A packet whose extension headers are these.
    fn packet(extensions: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0; HEADER_BYTES];
        packet.extend(extensions.iter().flat_map(|e| e.iter()));
        packet
    }

    #[test]
    fn walks_over_everything_that_has_a_length() {
        let hop_by_hop = [protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0];
        let routing = [protocol::AUTHENTICATION, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let authentication = [protocol::UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let packet = packet(&[&hop_by_hop, &routing, &authentication, &[0; 8]]);
        let chain = walk(&packet, protocol::HOP_BY_HOP).unwrap();
        let wanted =
            Chain { protocol: protocol::UDP, offset: 40 + 8 + 16 + 12, fragment: None, unfinished: false };
        assert_eq!(chain, wanted);
    }

    #[test]
    fn stops_behind_a_fragment_that_is_not_the_first() {
        let first = [protocol::DESTINATION, 0, 0, 1, 0, 0, 0, 1];
        let options = [protocol::TCP, 0, 1, 4, 0, 0, 0, 0];
        let chain = walk(&packet(&[&first, &options]), protocol::FRAGMENT).unwrap();
        assert_eq!((chain.protocol, chain.offset, chain.fragment), (protocol::TCP, 56, Some(1)));
        let later = [protocol::DESTINATION, 0, 0x01, 0x01, 0, 0, 0, 1];
        let chain = walk(&packet(&[&later, &options]), protocol::FRAGMENT).unwrap();
        assert_eq!((chain.protocol, chain.offset), (protocol::DESTINATION, 48));
    }

    #[test]
    fn an_extension_longer_than_the_packet_is_refused() {
        for short in 0..8 {
            let cut = vec![protocol::UDP; short];
            assert_eq!(walk(&packet(&[&cut]), protocol::DESTINATION), Err(Malformed::Ipv6Extension));
        }
        let long = [protocol::UDP, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(walk(&packet(&[&long]), protocol::DESTINATION), Err(Malformed::Ipv6Extension));
    }

    #[test]
    fn gives_up_after_the_bound() {
        let options = [protocol::DESTINATION, 0, 1, 4, 0, 0, 0, 0];
        let last = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0];
        let mut headers = vec![&options[..]; EXTENSIONS_MAX - 1];
        headers.push(&last);
        assert!(!walk(&packet(&headers), protocol::DESTINATION).unwrap().unfinished);
        headers.insert(0, &options);
        let chain = walk(&packet(&headers), protocol::DESTINATION).unwrap();
        assert!(chain.unfinished);
        assert_eq!((chain.protocol, chain.offset), (protocol::DESTINATION, 40 + 8 * EXTENSIONS_MAX));
    }
}
