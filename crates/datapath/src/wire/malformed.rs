//! Why a packet is refused.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What is wrong with a packet. The length is not what a header says, a field has a value that it may not
        /// have, or a checksum is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Malformed {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Malformed {
            /// All of them, in the order of [`index`](Malformed::index).
            pub const ALL: &[Malformed] = &[$(Malformed::$variant,)+];

            /// As the counter is called.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Malformed::$variant => $name,)+
                }
            }
        }
    };
}

reasons! {
    /// Shorter than an Ethernet header.
    EthernetShort = "ethernet-short",
    /// Shorter than an ARP packet for IPv4 on Ethernet.
    ArpShort = "arp-short",
    /// Not for IPv4 on Ethernet.
    ArpKind = "arp-kind",
    /// Shorter than an IPv4 header.
    Ipv4Short = "ipv4-short",
    /// Another version than the EtherType says.
    Ipv4Version = "ipv4-version",
    /// The header says that it is shorter than 20 bytes.
    Ipv4HeaderLength = "ipv4-header-length",
    /// The packet is shorter than its header, or longer than the frame.
    Ipv4TotalLength = "ipv4-total-length",
    /// The checksum of the header is wrong.
    Ipv4Checksum = "ipv4-checksum",
    /// Shorter than an IPv6 header.
    Ipv6Short = "ipv6-short",
    /// Another version than the EtherType says.
    Ipv6Version = "ipv6-version",
    /// The payload is longer than the frame.
    Ipv6PayloadLength = "ipv6-payload-length",
    /// An extension header is longer than the payload.
    Ipv6Extension = "ipv6-extension",
    /// Shorter than a UDP header.
    UdpShort = "udp-short",
    /// The datagram is shorter than its header, or longer than the packet.
    UdpLength = "udp-length",
    /// The checksum is wrong, or missing on IPv6.
    UdpChecksum = "udp-checksum",
    /// Shorter than what its type needs.
    IcmpShort = "icmp-short",
    /// The checksum is wrong.
    IcmpChecksum = "icmp-checksum",
    /// The hop limit is not 255: it came through a router.
    NeighbourHopLimit = "neighbour-hop-limit",
    /// The code is not 0.
    NeighbourCode = "neighbour-code",
    /// The target is a group.
    NeighbourTarget = "neighbour-target",
    /// An option has no length, or is longer than the packet.
    NeighbourOption = "neighbour-option",
    /// Source, destination, flags and options do not go together (RFC 4861 sections 7.1.1, 7.1.2).
    NeighbourUse = "neighbour-use",
}

impl Malformed {
    /// Its place in [`ALL`](Malformed::ALL), for arrays of counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_the_place() {
        for (place, reason) in Malformed::ALL.iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = Malformed::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Malformed::ALL.len());
        assert!(names.iter().all(|n| n.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric())));
    }
}
