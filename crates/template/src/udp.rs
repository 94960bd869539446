//! One UDP frame: its description, the check of it, and its bytes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use thiserror::Error;

use crate::checksum;
use crate::stamp::{self, Stamp};

/// Bytes of the frame check sequence, which a frame size includes and the kernel is not handed.
const FCS_BYTES: u32 = 4;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// The default of Linux (IPDEFTTL), enough for any path through a lab.
const TTL: u8 = 64;
const PROTOCOL_UDP: u8 = 17;
/// "No Next Header" (RFC 8200 section 4.7).
const PROTOCOL_NONE: u8 = 59;
/// Header checksum and source address of IPv4, from the start of the frame.
pub(crate) const IPV4_CHECKSUM: Range<usize> = 24..26;
pub(crate) const IPV4_SOURCE: Range<usize> = 26..30;

/// Source and destination of the network layer; they choose its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Addresses {
    V4 { source: Ipv4Addr, destination: Ipv4Addr },
    V6 { source: Ipv6Addr, destination: Ipv6Addr },
}

/// A UDP datagram in an Ethernet frame, sent as `flows` flows that differ in the destination port, from `sources` addresses.
///
/// Frame number `s` belongs to flow `s mod flows`, and is the number `s / flows` of that flow; its source is the number
/// `(s / flows) mod sources`. So each flow visits all sources in order before it comes to the first one again.
///
/// The payload is a fixed pattern, with a stamp in front where that is asked for. An IPv6 frame too short for a UDP header (64 and 65 bytes with the FCS) carries
/// none: its next header is 59, and it can have one flow only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpFrame {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// Source and destination addresses.
    pub addresses: Addresses,
    /// UDP source port, the same for all flows.
    pub source_port: u16,
    /// UDP destination port of the first flow; the n-th has `destination_port + n`.
    pub destination_port: u16,
    /// Number of flows, at least 1.
    pub flows: u16,
    /// Number of source addresses, at least 1. Those after the first count up from the address in `addresses`, which
    /// must be of IPv4 if there are several. The caller knows which of them the path takes: nothing here keeps them within a network,
    /// and Linux drops what comes from 0.0.0.0/8, 127.0.0.0/8, or 224.0.0.0 and above (net/ipv4/route.c,
    /// `ip_route_input_slow`, 6.18), or fails the reverse path filter.
    pub sources: u32,
    /// Whether the payload begins with a [`stamp`](mod@stamp): number and time of the packet. It takes 18 bytes, which
    /// a frame of 64 bytes has over IPv4, and one of 84 bytes over IPv6.
    pub stamp: bool,
    /// Size of the frame with the 4-byte FCS.
    pub frame_bytes: u32,
}

/// Why a description is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The size is outside what Ethernet and the headers allow.
    #[error(
        "a frame of {frame_bytes} bytes cannot be made: {least} to {most} (with the 4-byte FCS) are possible"
    )]
    Size {
        /// What was asked for.
        frame_bytes: u32,
        /// The smallest size possible.
        least: u32,
        /// The largest size possible.
        most: u32,
    },
    /// There are no flows, or their ports run past 65535.
    #[error(
        "{flows} flows from port {first_port} are not possible: at least 1, and the last port at most 65535"
    )]
    Flows {
        /// What was asked for.
        flows: u16,
        /// Destination port of the first flow.
        first_port: u16,
    },
    /// Several flows were asked for in a frame that has no room for a port.
    #[error("an IPv6 frame of {frame_bytes} bytes has no room for a UDP header: {flows} flows need 66 bytes")]
    NoPorts {
        /// What was asked for.
        frame_bytes: u32,
        /// What was asked for.
        flows: u16,
    },
    /// There are no sources, or they run past the last address.
    #[error(
        "{sources} source addresses from {first} are not possible: at least 1, and the last at most 255.255.255.255"
    )]
    Sources {
        /// What was asked for.
        sources: u32,
        /// The first of them.
        first: Ipv4Addr,
    },
    /// Several sources were asked for over IPv6.
    #[error("{0} source addresses need IPv4: over IPv6 frames have one")]
    SourcesOverIpv6(u32),
    /// The payload has no room for a stamp.
    #[error(
        "a frame of {frame_bytes} bytes has no room for number and time, which take {} bytes of payload: make it \
         {missing_bytes} bytes longer",
        stamp::BYTES
    )]
    Stamp {
        /// What was asked for.
        frame_bytes: u32,
        /// What is lacking.
        missing_bytes: u32,
    },
}

impl UdpFrame {
    /// Bytes handed to the kernel: the frame without its FCS.
    pub fn l2_bytes(&self) -> usize {
        self.frame_bytes.saturating_sub(FCS_BYTES) as usize
    }

    /// The frame with everything computed that does not vary, ready to be written.
    pub fn check(&self) -> Result<CheckedFrame, FrameError> {
        let (least, most) = (64, 65_535);
        if !(least..=most).contains(&self.frame_bytes) {
            return Err(FrameError::Size { frame_bytes: self.frame_bytes, least, most });
        }
        if self.flows == 0 || self.destination_port.checked_add(self.flows - 1).is_none() {
            return Err(FrameError::Flows { flows: self.flows, first_port: self.destination_port });
        }
        let headers = ETHERNET_BYTES + self.network_bytes() + UDP_BYTES;
        let has_udp = self.l2_bytes() >= headers;
        if !has_udp && self.flows > 1 {
            return Err(FrameError::NoPorts { frame_bytes: self.frame_bytes, flows: self.flows });
        }
        self.check_sources()?;
        let stamped = headers + if self.stamp { stamp::BYTES } else { 0 };
        match stamped.saturating_sub(self.l2_bytes()) {
            missing if self.stamp && missing > 0 => {
                Err(FrameError::Stamp { frame_bytes: self.frame_bytes, missing_bytes: missing as u32 })
            }
            _ => Ok(CheckedFrame::new(self, has_udp)),
        }
    }

    fn check_sources(&self) -> Result<(), FrameError> {
        let sources = self.sources;
        match self.addresses {
            Addresses::V4 { source, .. } => {
                let last = sources.checked_sub(1).and_then(|more| source.to_bits().checked_add(more));
                last.map(|_| ()).ok_or(FrameError::Sources { sources, first: source })
            }
            Addresses::V6 { .. } if sources == 1 => Ok(()),
            Addresses::V6 { .. } => Err(FrameError::SourcesOverIpv6(sources)),
        }
    }

    fn network_bytes(&self) -> usize {
        match self.addresses {
            Addresses::V4 { .. } => IPV4_BYTES,
            Addresses::V6 { .. } => IPV6_BYTES,
        }
    }
}

/// Where the varying fields of a datagram are.
#[derive(Debug, Clone)]
pub(crate) struct UdpFields {
    pub(crate) destination_port: Range<usize>,
    pub(crate) checksum: Range<usize>,
    /// Sum over the pseudo header and the datagram with everything 0 that varies, in the host's order, folded.
    pub(crate) partial_sum: u32,
}

/// Several source addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sources {
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Sum over the IPv4 header with checksum and source 0, as a number, folded.
    pub(crate) header_sum: u16,
}

/// A stamp.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StampField {
    /// Where it begins: at an even place of the datagram.
    pub(crate) at: usize,
    pub(crate) stream: u16,
}

/// A frame that can be written: every byte known but those that vary from one packet to the next.
#[derive(Debug, Clone)]
pub struct CheckedFrame {
    /// The whole frame without FCS; what varies is 0.
    pub(crate) bytes: Vec<u8>,
    pub(crate) header_bytes: usize,
    pub(crate) first_port: u16,
    pub(crate) flows: u16,
    pub(crate) udp: Option<UdpFields>,
    /// None where there is one, which is in `bytes` then.
    pub(crate) sources: Option<Sources>,
    pub(crate) stamp: Option<StampField>,
}

impl CheckedFrame {
    /// Length without the FCS.
    pub fn l2_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number of flows, at least 1.
    pub fn flows(&self) -> u16 {
        self.flows
    }

    /// Number of source addresses, at least 1.
    pub fn sources(&self) -> u32 {
        self.sources.map_or(1, |sources| sources.count)
    }

    /// Whether its packets carry number and time.
    pub fn has_stamp(&self) -> bool {
        self.stamp.is_some()
    }

    /// The same frame for one of several senders, each of which numbers its packets by itself. Without a stamp
    /// it makes no difference.
    pub fn with_stream(mut self, stream: u16) -> Self {
        self.stamp = self.stamp.map(|stamp| StampField { stream, ..stamp });
        self
    }

    /// After how many packets the same frames come again; None where they never do, because of the stamp.
    pub fn period(&self) -> Option<u64> {
        (!self.has_stamp()).then(|| u64::from(self.flows) * u64::from(self.sources()))
    }

    /// Writes packet number `sequence`, header and payload, into the first [`l2_bytes`](Self::l2_bytes) of `out`.
    ///
    /// `now` gives the time in ns of `CLOCK_MONOTONIC`; it is called for a stamp only.
    ///
    /// # Panics
    /// If `out` is shorter than the frame.
    #[inline]
    pub fn write(&self, sequence: u64, out: &mut [u8], now: impl FnOnce() -> u64) {
        let out = &mut out[..self.bytes.len()];
        out.copy_from_slice(&self.bytes);
        let Some(udp) = &self.udp else { return };
        let flows = u64::from(self.flows);
        let port = self.first_port + (sequence % flows) as u16;
        out[udp.destination_port.clone()].copy_from_slice(&port.to_be_bytes());
        let mut sum = u64::from(checksum::to_number(udp.partial_sum)) + u64::from(port);
        if let Some(sources) = &self.sources {
            let address = sources.first + (sequence / flows % u64::from(sources.count)) as u32;
            let header_sum = u64::from(sources.header_sum) + u64::from(address);
            let header_checksum = checksum::finish(checksum::fold(header_sum));
            out[IPV4_SOURCE].copy_from_slice(&address.to_be_bytes());
            out[IPV4_CHECKSUM].copy_from_slice(&header_checksum.to_be_bytes());
            sum += u64::from(address);
        }
        if let Some(field) = &self.stamp {
            let stamp = Stamp { stream: field.stream, sequence, sent_ns: now() };
            out[field.at..field.at + stamp::BYTES].copy_from_slice(&stamp.to_bytes());
            // The first two bytes are in the partial sum.
            let words = [stamp::number(stamp.stream, sequence), stamp.sent_ns];
            sum += words.iter().map(|word| (word >> 32) + (word & 0xffff_ffff)).sum::<u64>();
        }
        let checksum = checksum::finish_udp(checksum::fold(sum));
        out[udp.checksum.clone()].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Packet number `sequence` as a vector; a stamp has the time 0: it is for frames that are the same every time, and for
    /// what is handed over once and then written by a program.
    pub fn to_vec(&self, sequence: u64) -> Vec<u8> {
        let mut out = vec![0; self.l2_bytes()];
        self.write(sequence, &mut out, || 0);
        out
    }

    fn new(frame: &UdpFrame, has_udp: bool) -> Self {
        let mut bytes = vec![0; frame.l2_bytes()];
        let payload = bytes.len() - ETHERNET_BYTES - frame.network_bytes();
        let next = if has_udp { PROTOCOL_UDP } else { PROTOCOL_NONE };
        bytes[0..6].copy_from_slice(&frame.destination_mac);
        bytes[6..12].copy_from_slice(&frame.source_mac);
        let mut sources = None;
        let pseudo_sum = match frame.addresses {
            Addresses::V4 { source, destination } => {
                bytes[12..14].copy_from_slice(&[0x08, 0x00]);
                let fixed = if frame.sources > 1 { Ipv4Addr::UNSPECIFIED } else { source };
                write_ipv4(&mut bytes[14..34], fixed, destination, payload as u16);
                if frame.sources > 1 {
                    bytes[IPV4_CHECKSUM].fill(0);
                    let header_sum = checksum::to_number(checksum::add(0, &bytes[14..34]));
                    sources = Some(Sources { first: source.to_bits(), count: frame.sources, header_sum });
                }
                checksum::add(0, &bytes[26..34])
            }
            Addresses::V6 { source, destination } => {
                bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
                write_ipv6(&mut bytes[14..54], source, destination, payload as u16, next);
                checksum::add(0, &bytes[22..54])
            }
        };
        let start = ETHERNET_BYTES + frame.network_bytes();
        for (index, byte) in bytes[start..].iter_mut().enumerate() {
            *byte = index as u8;
        }
        let mut header_bytes = if has_udp { start + UDP_BYTES } else { start };
        let stamp = frame.stamp.then(|| {
            let at = header_bytes;
            header_bytes += stamp::BYTES;
            bytes[at..header_bytes].fill(0);
            bytes[at..at + stamp::NUMBER_AT].copy_from_slice(&stamp::MAGIC.to_be_bytes());
            StampField { at, stream: 0 }
        });
        let udp = has_udp.then(|| write_udp(&mut bytes, start, frame.source_port, pseudo_sum));
        let (first_port, flows) = (frame.destination_port, frame.flows);
        Self { bytes, header_bytes, first_port, flows, udp, sources, stamp }
    }
}

fn write_ipv4(header: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr, payload: u16) {
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(payload + IPV4_BYTES as u16).to_be_bytes());
    header[6] = 0x40; // Don't Fragment (RFC 791 section 3.1)
    header[8] = TTL;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let sum = checksum::finish(checksum::add(0, header));
    header[10..12].copy_from_slice(&sum.to_ne_bytes());
}

fn write_ipv6(header: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr, payload: u16, next: u8) {
    header[0] = 0x60;
    header[4..6].copy_from_slice(&payload.to_be_bytes());
    header[6] = next;
    header[7] = TTL;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
}

fn write_udp(bytes: &mut [u8], start: usize, source_port: u16, pseudo_sum: u32) -> UdpFields {
    let length = (bytes.len() - start) as u16;
    bytes[start..start + 2].copy_from_slice(&source_port.to_be_bytes());
    bytes[start + 2..start + 4].fill(0);
    bytes[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
    bytes[start + 6..start + 8].fill(0);
    let sum = checksum::add(pseudo_sum, &[0, PROTOCOL_UDP]);
    let sum = checksum::add(sum, &length.to_be_bytes());
    UdpFields {
        destination_port: start + 2..start + 4,
        checksum: start + 6..start + 8,
        partial_sum: checksum::add(sum, &bytes[start..]),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn v4(frame_bytes: u32, flows: u16) -> UdpFrame {
        UdpFrame {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            addresses: Addresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 1, 1].into() },
            source_port: 1024,
            destination_port: 9,
            flows,
            sources: 1,
            stamp: false,
            frame_bytes,
        }
    }

    pub(crate) fn v6(frame_bytes: u32, flows: u16) -> UdpFrame {
        let source = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);
        let destination = Ipv6Addr::new(0xfd00, 0, 0, 2, 0, 0, 0, 1);
        UdpFrame { addresses: Addresses::V6 { source, destination }, ..v4(frame_bytes, flows) }
    }

    /// The receiver's test (RFC 1071 section 1): a sum over everything, the checksum included, is all ones.
    fn receiver_accepts(bytes: &[u8]) -> bool {
        let (addresses, start) = if bytes[12] == 0x08 { (26..34, 34) } else { (22..54, 54) };
        let ip_good = bytes[12] != 0x08 || checksum::add(0, &bytes[14..34]) == 0xffff;
        let mut sum = checksum::add(0, &bytes[addresses]);
        sum = checksum::add(sum, &[0, PROTOCOL_UDP]);
        sum = checksum::add(sum, &((bytes.len() - start) as u16).to_be_bytes());
        ip_good && checksum::add(sum, &bytes[start..]) == 0xffff
    }

    #[test]
    fn checksums_hold_for_every_flow_and_size() {
        for frame_bytes in [64, 65, 66, 67, 128, 272, 1518, 9018] {
            for flows in [1, 2, 8, 1000] {
                let frame = v4(frame_bytes, flows).check().unwrap();
                for sequence in [0, 1, 7, 999, u64::MAX] {
                    assert!(receiver_accepts(&frame.to_vec(sequence)), "v4 {frame_bytes} {flows} {sequence}");
                }
            }
        }
        let frame = v6(66, 60_000).check().unwrap();
        for sequence in 0..70_000 {
            assert!(receiver_accepts(&frame.to_vec(sequence)), "v6 {sequence}");
        }
    }

    #[test]
    fn lengths_are_those_on_the_wire() {
        let bytes = v4(64, 1).check().unwrap().to_vec(0);
        assert_eq!(bytes.len(), 60);
        assert_eq!(bytes[16..18], 46u16.to_be_bytes()); // IPv4 total length
        assert_eq!(bytes[38..40], 26u16.to_be_bytes()); // UDP length
    }

    #[test]
    fn flows_take_turns_and_wrap() {
        let frame = v4(64, 3).check().unwrap();
        let ports: Vec<u8> = (0..5).map(|sequence| frame.to_vec(sequence)[37]).collect();
        assert_eq!(ports, [9, 10, 11, 9, 10]);
    }

    #[test]
    fn a_short_ipv6_frame_has_no_udp_header() {
        let bytes = v6(64, 1).check().unwrap().to_vec(0);
        assert_eq!((bytes.len(), bytes[20]), (60, PROTOCOL_NONE));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let size = |frame_bytes| FrameError::Size { frame_bytes, least: 64, most: 65_535 };
        assert_eq!(v4(63, 1).check().unwrap_err(), size(63));
        assert_eq!(v4(0, 1).check().unwrap_err(), size(0));
        assert_eq!(v4(70_000, 1).check().unwrap_err(), size(70_000));
        assert_eq!(v4(64, 0).check().unwrap_err(), FrameError::Flows { flows: 0, first_port: 9 });
        assert_eq!(v4(64, 65_530).check().unwrap_err(), FrameError::Flows { flows: 65_530, first_port: 9 });
        assert_eq!(v6(64, 2).check().unwrap_err(), FrameError::NoPorts { frame_bytes: 64, flows: 2 });
    }
}
