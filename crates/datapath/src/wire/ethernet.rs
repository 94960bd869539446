//! Ethernet II without its trailer.

use std::fmt;

use super::{NoRoom, field::array_at_mut, room};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 14;

/// Where the fields are.
pub mod fields {
    use std::ops::Range;

    /// Who it is for.
    pub const DESTINATION: Range<usize> = 0..6;
    /// Who sent it.
    pub const SOURCE: Range<usize> = 6..12;
    /// What follows, if it is at least 0x0600 (IEEE 802.3 clause 3.2.6).
    pub const TYPE: Range<usize> = 12..14;
}

/// EtherTypes (IEEE registration authority).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A tag of IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// A service tag of IEEE 802.1ad.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// The lowest number that is a type: below, it is a length (IEEE 802.3).
    pub const LOWEST: u16 = 0x0600;
}

/// The address of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Everyone.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);
    /// Nobody.
    pub const ZERO: MacAddress = MacAddress([0; 6]);

    /// For a group, everyone included.
    #[inline]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Of the group that stands for an IPv6 multicast address (RFC 2464 section 7).
    pub fn of_ipv6_multicast(address: u128) -> MacAddress {
        let [.., a, b, c, d] = address.to_be_bytes();
        MacAddress([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who it is for.
    pub destination: MacAddress,
    /// Who sent it.
    pub source: MacAddress,
    /// What follows, or a length ([`ether_type::LOWEST`]).
    pub ether_type: u16,
}

impl Header {
    /// None if the frame is shorter than that.
    #[inline]
    pub fn read(frame: &[u8]) -> Option<Header> {
        let header: &[u8; HEADER_BYTES] = frame.first_chunk()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, high, low] = *header;
        Some(Header {
            destination: MacAddress([d0, d1, d2, d3, d4, d5]),
            source: MacAddress([s0, s1, s2, s3, s4, s5]),
            ether_type: u16::from_be_bytes([high, low]),
        })
    }

    /// To the start of a frame.
    #[inline]
    pub fn write(&self, frame: &mut [u8]) -> Result<(), NoRoom> {
        let header = room(frame, HEADER_BYTES, "an Ethernet header")?;
        header[fields::DESTINATION].copy_from_slice(&self.destination.0);
        header[fields::SOURCE].copy_from_slice(&self.source.0);
        header[fields::TYPE].copy_from_slice(&self.ether_type.to_be_bytes());
        Ok(())
    }
}

/// Writes both addresses, as a router does with what it passes on. False, and nothing done, if there is no header.
#[inline]
pub fn readdress(frame: &mut [u8], destination: MacAddress, source: MacAddress) -> bool {
    let Some(addresses) = array_at_mut::<12>(frame, 0) else { return false };
    addresses[fields::DESTINATION].copy_from_slice(&destination.0);
    addresses[fields::SOURCE].copy_from_slice(&source.0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let header = Header {
            destination: MacAddress([0x02, 1, 2, 3, 4, 5]),
            source: MacAddress([0x02, 6, 7, 8, 9, 10]),
            ether_type: ether_type::IPV6,
        };
        let mut frame = [0; 20];
        header.write(&mut frame).unwrap();
        assert_eq!(frame[..14], [2, 1, 2, 3, 4, 5, 2, 6, 7, 8, 9, 10, 0x86, 0xdd]);
        assert_eq!(Header::read(&frame), Some(header));
        for short in 0..14 {
            assert_eq!(Header::read(&frame[..short]), None);
        }
    }

    #[test]
    fn a_short_buffer_is_told_and_left_alone() {
        let header =
            Header { destination: MacAddress::BROADCAST, source: MacAddress::BROADCAST, ether_type: 0 };
        let mut frame = [7; 13];
        let error = header.write(&mut frame).unwrap_err();
        assert_eq!(
            error.to_string(),
            "write an Ethernet header of 14 bytes: the buffer has 13; give it a larger one"
        );
        assert!(!readdress(&mut frame[..11], MacAddress::ZERO, MacAddress::ZERO));
        assert_eq!(frame, [7; 13]);
    }

    #[test]
    fn groups() {
        assert!(MacAddress::BROADCAST.is_multicast());
        assert!(MacAddress([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(!MacAddress([0x02, 0, 0, 0, 0, 1]).is_multicast());
        // ff02::1:ff00:9
        let group = 0xff02_0000_0000_0000_0000_0001_ff00_0009;
        assert_eq!(MacAddress::of_ipv6_multicast(group).to_string(), "33:33:ff:00:00:09");
    }
}
