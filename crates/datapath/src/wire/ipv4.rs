//! IPv4 (RFC 791).

use super::{NoRoom, checksum::Sum, room};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = 60;
/// What every network must carry in one piece, and every host must accept (RFC 791 section 3.2): 576.
pub const DATAGRAM_BYTES_MIN: usize = 576;
/// The time to live that a sender gives (RFC 1700; RFC 1122 section 3.2.1.7).
pub const TTL: u8 = 64;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// 4, and the header's length in words of 4 bytes.
    pub const VERSION_AND_LENGTH: usize = 0;
    /// How it is to be treated (RFC 2474, RFC 3168).
    pub const TRAFFIC_CLASS: usize = 1;
    /// Header and payload, in bytes.
    pub const TOTAL_LENGTH: Range<usize> = 2..4;
    /// Same for all fragments of a packet.
    pub const IDENTIFICATION: Range<usize> = 4..6;
    /// Flags, and the fragment's offset in units of 8 bytes.
    pub const FRAGMENT: Range<usize> = 6..8;
    /// Time to live.
    pub const TTL: usize = 8;
    /// What follows.
    pub const PROTOCOL: usize = 9;
    /// Of the header.
    pub const CHECKSUM: Range<usize> = 10..12;
    /// Who sent it.
    pub const SOURCE: Range<usize> = 12..16;
    /// Who it is for.
    pub const DESTINATION: Range<usize> = 16..20;
}

/// Flag: may not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Flag: fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// Mask: offset of the fragment, in units of 8 bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A header without options, as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How it is to be treated.
    pub traffic_class: u8,
    /// Same for all fragments of a packet.
    pub identification: u16,
    /// Flags and offset; most send [`DONT_FRAGMENT`].
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows ([`super::protocol`]).
    pub protocol: u8,
    /// Who sent it.
    pub source: u32,
    /// Who it is for.
    pub destination: u32,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            traffic_class: 0,
            identification: 0,
            fragment: DONT_FRAGMENT,
            ttl: TTL,
            protocol: 0,
            source: 0,
            destination: 0,
        }
    }
}

impl Header {
    /// To the start of a packet of `payload_bytes`, with its checksum. The total length says at most 65535.
    pub fn write(&self, packet: &mut [u8], payload_bytes: usize) -> Result<(), NoRoom> {
        let header = room(packet, HEADER_BYTES, "an IPv4 header")?;
        let total = u16::try_from(HEADER_BYTES + payload_bytes).unwrap_or(u16::MAX);
        header[fields::VERSION_AND_LENGTH] = 0x45;
        header[fields::TRAFFIC_CLASS] = self.traffic_class;
        header[fields::TOTAL_LENGTH].copy_from_slice(&total.to_be_bytes());
        header[fields::IDENTIFICATION].copy_from_slice(&self.identification.to_be_bytes());
        header[fields::FRAGMENT].copy_from_slice(&self.fragment.to_be_bytes());
        header[fields::TTL] = self.ttl;
        header[fields::PROTOCOL] = self.protocol;
        header[fields::CHECKSUM].fill(0);
        header[fields::SOURCE].copy_from_slice(&self.source.to_be_bytes());
        header[fields::DESTINATION].copy_from_slice(&self.destination.to_be_bytes());
        let checksum = Sum::ZERO.bytes(header).finish();
        header[fields::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

/// To a group: 224.0.0.0/4 (RFC 5771).
#[inline]
pub const fn is_multicast(address: u32) -> bool {
    address >> 28 == 0xe
}

/// To everyone on the wire: 255.255.255.255 (RFC 919).
#[inline]
pub const fn is_broadcast(address: u32) -> bool {
    address == u32::MAX
}

/// May not stand as a source in a packet from outside (RFC 1812 section 5.3.7, RFC 1122 section 3.2.1.3): network 0,
/// loopback, a group, and 240.0.0.0/4, broadcast included.
#[inline]
pub const fn is_invalid_source(address: u32) -> bool {
    matches!((address >> 24) as u8, 0 | 127 | 224..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn address(a: u8, b: u8, c: u8, d: u8) -> u32 {
        u32::from_be_bytes([a, b, c, d])
    }

    /// The example of a header that Wikipedia ("Internet checksum") works out by hand: checksum 0xB861.
    #[test]
    fn a_header_worked_out_by_hand() {
        let header = Header {
            fragment: DONT_FRAGMENT,
            protocol: 17,
            source: address(192, 168, 0, 1),
            destination: address(192, 168, 0, 199),
            ..Header::default()
        };
        let mut packet = [0; 24];
        header.write(&mut packet, 0x73 - 20).unwrap();
        assert_eq!(
            packet[..20],
            [
                0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
                0x01, 0xc0, 0xa8, 0x00, 0xc7
            ]
        );
        assert!(header.write(&mut packet[..19], 0).is_err());
    }

    #[test]
    fn sources_from_outside() {
        for (source, invalid) in [
            (address(0, 0, 0, 0), true),
            (address(0, 255, 255, 255), true),
            (address(1, 0, 0, 0), false),
            (address(10, 0, 0, 1), false),
            (address(126, 255, 255, 255), false),
            (address(127, 0, 0, 1), true),
            (address(128, 0, 0, 0), false),
            (address(223, 255, 255, 255), false),
            (address(224, 0, 0, 1), true),
            (address(240, 0, 0, 1), true),
            (address(255, 255, 255, 255), true),
        ] {
            assert_eq!(is_invalid_source(source), invalid, "{source:08x}");
        }
        assert!(is_multicast(address(239, 255, 255, 255)) && is_multicast(address(224, 0, 0, 0)));
        assert!(!is_multicast(address(223, 255, 255, 255)) && !is_multicast(address(240, 0, 0, 0)));
    }
}
