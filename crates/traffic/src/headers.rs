//! As much of a frame's headers as tells its flow and where its payload lies: Ethernet, up to two VLAN tags, IPv4 or IPv6,
//! UDP or TCP.
//!
//! The program that counts in the kernel ([`crate::receive::Xdp`]) reads the same headers in the same way, so that both
//! give the same flows.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// EtherTypes (IEEE 802 numbers).
pub(crate) const ETHER_IPV4: u16 = 0x0800;
pub(crate) const ETHER_IPV6: u16 = 0x86dd;
pub(crate) const ETHER_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// IP protocols (IANA).
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
/// The most VLAN tags that are looked behind.
pub(crate) const TAGS_MAX: usize = 2;
/// More fragments, or an offset (RFC 791 section 3.1): what lies behind the header may be anything.
pub(crate) const FRAGMENT: u16 = 0x3fff;

const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;

/// What frames have in common that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// IPv4 or IPv6.
    Ip {
        /// The protocol behind the first IP header; extension headers of IPv6 are not looked behind.
        protocol: u8,
        /// Where it comes from.
        source: IpAddr,
        /// Where it goes.
        destination: IpAddr,
        /// Source and destination port, where the protocol has them and the packet is no fragment.
        ports: Option<(u16, u16)>,
    },
    /// Any other frame, and one whose IP header is not whole.
    Other {
        /// The EtherType behind the VLAN tags.
        ether_type: u16,
    },
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ip { protocol, source, destination, ports } => {
                match protocol {
                    TCP => write!(f, "tcp ")?,
                    UDP => write!(f, "udp ")?,
                    SCTP => write!(f, "sctp ")?,
                    1 | 58 => write!(f, "icmp ")?,
                    other => write!(f, "ip/{other} ")?,
                }
                match ports {
                    Some((from, to)) => {
                        write!(f, "{} > {}", SocketAddr::new(source, from), SocketAddr::new(destination, to))
                    }
                    None => write!(f, "{source} > {destination}"),
                }
            }
            Self::Other { ether_type: 0x0806 } => write!(f, "arp"),
            Self::Other { ether_type } => write!(f, "EtherType {ether_type:#06x}"),
        }
    }
}

/// Where the parts of a whole UDP or TCP segment lie, from the start of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) is_udp: bool,
    /// Its header.
    pub(crate) header: usize,
    /// Its payload, which ends where the IP and UDP lengths say: bytes behind it only fill up the frame.
    pub(crate) payload: usize,
    pub(crate) end: usize,
}

/// What [`parse`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) flow: Flow,
    /// None for other protocols, for fragments, and where lengths reach beyond the frame.
    pub(crate) segment: Option<Segment>,
}

/// Reads the headers of a frame without FCS.
#[inline]
pub(crate) fn parse(frame: &[u8]) -> Headers {
    let mut at = ETHERNET_BYTES;
    let mut ether_type = be16(frame, at - 2).unwrap_or(0);
    for _ in 0..TAGS_MAX {
        if !ETHER_VLAN.contains(&ether_type) {
            break;
        }
        let Some(inner) = be16(frame, at + 2) else { break };
        ether_type = inner;
        at += TAG_BYTES;
    }
    let found = match ether_type {
        ETHER_IPV4 => ipv4(frame, at),
        ETHER_IPV6 => ipv6(frame, at),
        _ => None,
    };
    found.unwrap_or(Headers { flow: Flow::Other { ether_type }, segment: None })
}

fn ipv4(frame: &[u8], at: usize) -> Option<Headers> {
    let header: &[u8; IPV4_BYTES] = frame.get(at..)?.first_chunk()?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    if header_bytes < IPV4_BYTES {
        return None;
    }
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0;
    let packet = Packet {
        protocol: header[9],
        source: Ipv4Addr::new(s0, s1, s2, s3).into(),
        destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
        header: at + header_bytes,
        end: at + usize::from(u16::from_be_bytes([header[2], header[3]])),
    };
    Some(packet.headers(frame, fragment))
}

fn ipv6(frame: &[u8], at: usize) -> Option<Headers> {
    let header: &[u8; IPV6_BYTES] = frame.get(at..)?.first_chunk()?;
    let address = |from: usize| -> Option<IpAddr> {
        let bytes: &[u8; 16] = header[from..].first_chunk()?;
        Some(Ipv6Addr::from(*bytes).into())
    };
    let header_end = at + IPV6_BYTES;
    let packet = Packet {
        protocol: header[6],
        source: address(8)?,
        destination: address(24)?,
        header: header_end,
        end: header_end + usize::from(u16::from_be_bytes([header[4], header[5]])),
    };
    Some(packet.headers(frame, false))
}

/// An IP packet, and where what it carries begins and ends.
struct Packet {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    header: usize,
    end: usize,
}

impl Packet {
    fn headers(&self, frame: &[u8], fragment: bool) -> Headers {
        let &Self { protocol, source, destination, header, .. } = self;
        let has_ports = !fragment && matches!(protocol, TCP | UDP | SCTP);
        let ports = || Some((be16(frame, header)?, be16(frame, header + 2)?));
        let ports = if has_ports { ports() } else { None };
        let segment = if fragment { None } else { self.segment(frame) };
        Headers { flow: Flow::Ip { protocol, source, destination, ports }, segment }
    }

    fn segment(&self, frame: &[u8]) -> Option<Segment> {
        let header = self.header;
        let (header_bytes, end) = match self.protocol {
            UDP => (UDP_BYTES, header + usize::from(be16(frame, header + 4)?)),
            TCP => (usize::from(frame.get(header + 12)? >> 4) * 4, self.end),
            _ => return None,
        };
        let payload = header + header_bytes;
        let whole = payload <= end && end <= self.end && self.end <= frame.len();
        let is_udp = self.protocol == UDP;
        let least = if is_udp { UDP_BYTES } else { TCP_BYTES };
        (whole && header_bytes >= least).then_some(Segment { is_udp, header, payload, end })
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// UDP over IPv4, ports 7 and 9, checksum 0, filled up to at least 60 bytes with zeros.
    pub(crate) fn udp4(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
        let udp_bytes = (8 + payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend((20 + udp_bytes).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9]);
        frame.extend(udp_bytes.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame.resize(frame.len().max(60), 0);
        frame
    }

    /// TCP over IPv6, ports 7 and 9.
    pub(crate) fn tcp6(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
        frame.extend((20 + payload.len() as u16).to_be_bytes());
        frame.extend([TCP, 64]);
        for host in [1, 2] {
            frame.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).octets());
        }
        frame.extend([0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
        let mut longer = frame[..12].to_vec();
        longer.extend(tag.to_be_bytes());
        longer.extend([0, 5]);
        longer.extend(&frame[12..]);
        longer
    }

    #[test]
    fn flows_and_payloads_are_found() {
        let plain = udp4(b"0123456789");
        let headers = parse(&plain);
        assert_eq!(headers.flow.to_string(), "udp 10.0.0.1:7 > 10.0.0.2:9");
        assert_eq!(headers.segment, Some(Segment { is_udp: true, header: 34, payload: 42, end: 52 }));
        let twice = parse(&tagged(&tagged(&plain, 0x8100), 0x88a8));
        assert_eq!((twice.flow, twice.segment.unwrap().payload), (headers.flow, 50));
        let thrice = parse(&tagged(&tagged(&tagged(&plain, 0x8100), 0x8100), 0x8100));
        assert_eq!(thrice, Headers { flow: Flow::Other { ether_type: 0x8100 }, segment: None });

        let headers = parse(&tcp6(b"0123456789"));
        assert_eq!(headers.flow.to_string(), "tcp [fd00::1]:7 > [fd00::2]:9");
        assert_eq!(headers.segment, Some(Segment { is_udp: false, header: 54, payload: 74, end: 84 }));
    }

    #[test]
    fn fragments_have_no_ports() {
        let mut frame = udp4(b"0123456789");
        frame[20] = 0x20;
        let headers = parse(&frame);
        assert_eq!((headers.flow.to_string().as_str(), headers.segment), ("udp 10.0.0.1 > 10.0.0.2", None));
        frame[20] = 0x40; // "do not fragment" is none
        assert!(parse(&frame).segment.is_some());
    }

    #[test]
    fn lengths_that_reach_beyond_the_frame_leave_no_payload() {
        let frame = udp4(&[7; 40]);
        for (at, value) in [(16, 0xff), (17, 0xff), (38, 0xff), (39, 7), (39, 0)] {
            let mut wrong = frame.clone();
            wrong[at] = value;
            assert_eq!(parse(&wrong).segment, None, "byte {at} = {value}");
        }
        for cut in 0..frame.len() {
            assert_eq!(parse(&frame[..cut]).segment, None);
        }
        for cut in 0..74 {
            assert_eq!(parse(&tcp6(&[])[..cut]).segment, None);
        }
    }

    #[test]
    fn other_frames_are_told_by_their_ether_type() {
        assert_eq!(parse(&[0; 13]).flow, Flow::Other { ether_type: 0 });
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(parse(&arp).flow.to_string(), "arp");
        let mut short = udp4(&[]);
        short[14] = 0x44;
        assert_eq!(parse(&short).flow.to_string(), "EtherType 0x0800");
    }
}
