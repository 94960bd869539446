//! What a sender left to the device, done here: checksums completed, long frames cut into packets.
//!
//! A stack that sends on a veth or TAP device leaves the checksum of TCP and UDP open, and hands over up to 64 KiB of a TCP
//! stream as one frame, since such devices take both. Who passes frames on to a device without these abilities has to do what
//! a network card would have done (`skb_checksum_help`, `tcp_gso_segment`; net/core/dev.c, net/ipv4/tcp_offload.c, 6.18).

use std::ops::Range;

use linux::offload::{Offload, PartialChecksum, SegmentKind};

use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, ether_type};
use crate::wire::{ipv4, ipv6, protocol};

/// Adds everything from the start of the sum to the field that holds that of the pseudo-header. Does nothing where one of the
/// two is not in the frame.
pub(super) fn complete_checksum(frame: &mut [u8], partial: PartialChecksum) {
    let PartialChecksum { start, field } = partial;
    let Some(summed) = frame.get(start..) else { return };
    // 0 would say that there is none; for TCP the two mean the same.
    let checksum = Sum::ZERO.bytes(summed).finish_udp();
    put(frame, field..field + 2, &checksum.to_be_bytes());
}

/// Completes the checksum of a TCP or UDP packet if its field holds the sum of the pseudo-header and no more: for devices that
/// do not say what the sender left open. Whether it did.
///
/// A packet whose right checksum happens to be that sum, one of 65,536, gets the same value again. A broken packet whose field
/// happens to be so is given a right one: use it only where senders are known to leave checksums open.
pub(super) fn complete_if_open(frame: &mut [u8]) -> bool {
    let Some(partial) = open_checksum(frame) else { return false };
    complete_checksum(frame, partial);
    true
}

fn open_checksum(frame: &[u8]) -> Option<PartialChecksum> {
    let network = Network::find(frame)?;
    let field_at = match network.protocol {
        protocol::TCP => tcp::CHECKSUM.start,
        protocol::UDP => udp::CHECKSUM.start,
        _ => return None,
    };
    if network.is_fragment {
        return None;
    }
    let field = network.transport_at + field_at;
    let stored = frame.get(field..field + 2)?;
    // Finishing gives the complement.
    let pseudo = !network.pseudo_header(frame, network.transport_bytes)?.finish();
    (stored == pseudo.to_be_bytes()).then_some(PartialChecksum { start: network.transport_at, field })
}

/// Cuts one long frame.
#[derive(Debug)]
pub(super) struct Segmenter {
    network: Network,
    is_tcp: bool,
    headers_bytes: usize,
    payload_bytes: usize,
    /// Where the payload of the next packet begins.
    next: usize,
    packets: u16,
}

impl Segmenter {
    /// For this frame. None if it is not what the device says that it is, or of a kind that is not known: it is passed on as
    /// it came then.
    pub(super) fn new(frame: &[u8], offload: &Offload) -> Option<Self> {
        let cut = offload.segments?;
        let network = Network::find(frame)?;
        let (is_tcp, header_bytes) = match cut.kind {
            SegmentKind::TcpV4 | SegmentKind::TcpV6 if network.protocol == protocol::TCP => {
                let words = frame.get(network.transport_at + tcp::DATA_OFFSET)? >> 4;
                (true, usize::from(words) * 4)
            }
            SegmentKind::Udp if network.protocol == protocol::UDP => (false, udp::HEADER_BYTES),
            _ => return None,
        };
        let headers_bytes = network.transport_at + header_bytes;
        let is_whole = header_bytes >= udp::HEADER_BYTES
            && (!is_tcp || header_bytes >= tcp::HEADER_BYTES)
            && headers_bytes < frame.len()
            && cut.payload_bytes > 0
            && !network.is_fragment;
        is_whole.then_some(Self {
            network,
            is_tcp,
            headers_bytes,
            payload_bytes: cut.payload_bytes,
            next: headers_bytes,
            packets: 0,
        })
    }

    /// The next packet of the frame, which must be the same as before, written into `packet`; None after the last one.
    pub(super) fn next<'a>(&mut self, frame: &[u8], packet: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let rest = frame.get(self.next..).filter(|rest| !rest.is_empty())?;
        let payload = &rest[..rest.len().min(self.payload_bytes)];
        let is_last = payload.len() == rest.len();
        packet.clear();
        packet.extend_from_slice(frame.get(..self.headers_bytes)?);
        packet.extend_from_slice(payload);
        self.network.set_lengths(packet, self.packets);
        let field = if self.is_tcp {
            let sent_bytes = (self.next - self.headers_bytes) as u32;
            tcp_fields(packet.get_mut(self.network.transport_at..)?, sent_bytes, self.packets == 0, is_last)
        } else {
            let udp_bytes = (packet.len() - self.network.transport_at) as u16;
            put(packet.get_mut(self.network.transport_at..)?, udp::LENGTH, &udp_bytes.to_be_bytes());
            udp::CHECKSUM
        };
        self.finish_checksum(packet, field)?;
        self.next += payload.len();
        self.packets = self.packets.wrapping_add(1);
        Some(packet)
    }

    fn finish_checksum(&self, packet: &mut [u8], field: Range<usize>) -> Option<()> {
        let at = self.network.transport_at;
        let pseudo = self.network.pseudo_header(packet, packet.len() - at)?;
        let transport = packet.get_mut(at..)?;
        put(transport, field.clone(), &[0, 0]);
        let checksum = pseudo.bytes(transport).finish_udp();
        put(transport, field, &checksum.to_be_bytes());
        Some(())
    }
}

/// What differs from packet to packet in a TCP header (RFC 9293 section 3.1): the sequence number; FIN and PSH stand in the
/// last one only, CWR in the first (RFC 3168 section 6.1.2). Says where the checksum is.
fn tcp_fields(segment: &mut [u8], sent_bytes: u32, is_first: bool, is_last: bool) -> Range<usize> {
    const FIN_AND_PSH: u8 = 0x09;
    const CWR: u8 = 0x80;
    if let Some(sequence) = segment.get(tcp::SEQUENCE).and_then(|bytes| bytes.first_chunk::<4>()) {
        let sequence = u32::from_be_bytes(*sequence).wrapping_add(sent_bytes);
        put(segment, tcp::SEQUENCE, &sequence.to_be_bytes());
    }
    if let Some(flags) = segment.get_mut(tcp::FLAGS) {
        *flags &= if is_last { 0xff } else { !FIN_AND_PSH };
        *flags &= if is_first { 0xff } else { !CWR };
    }
    tcp::CHECKSUM
}

/// Fields of TCP.
mod tcp {
    use std::ops::Range;

    pub(super) const HEADER_BYTES: usize = 20;
    pub(super) const SEQUENCE: Range<usize> = 4..8;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const CHECKSUM: Range<usize> = 16..18;
}

/// Fields of UDP.
mod udp {
    use std::ops::Range;

    pub(super) const HEADER_BYTES: usize = 8;
    pub(super) const LENGTH: Range<usize> = 4..6;
    pub(super) const CHECKSUM: Range<usize> = 6..8;
}

/// The network header of a frame, as much as is needed here. It is the sender's own and new, so extension headers of IPv6 are
/// not looked behind.
#[derive(Debug, Clone, Copy)]
struct Network {
    at: usize,
    is_v6: bool,
    protocol: u8,
    is_fragment: bool,
    transport_at: usize,
    /// As the header says.
    transport_bytes: usize,
}

impl Network {
    fn find(frame: &[u8]) -> Option<Self> {
        const TAGS_MAX: usize = 2;
        let mut at = ethernet::HEADER_BYTES;
        let mut kind = short(frame, ethernet::fields::TYPE.start)?;
        for _ in 0..TAGS_MAX {
            if !matches!(kind, ether_type::VLAN | ether_type::SERVICE_VLAN) {
                break;
            }
            kind = short(frame, at + 2)?;
            at += 4;
        }
        match kind {
            ether_type::IPV4 => {
                let header_bytes = usize::from(frame.get(at)? & 0x0f) * 4;
                let fragment = short(frame, at + 6)? & 0x3fff;
                let transport_bytes = usize::from(short(frame, at + 2)?).checked_sub(header_bytes)?;
                (header_bytes >= ipv4::HEADER_BYTES).then_some(Self {
                    at,
                    is_v6: false,
                    protocol: *frame.get(at + 9)?,
                    is_fragment: fragment != 0,
                    transport_at: at + header_bytes,
                    transport_bytes,
                })
            }
            ether_type::IPV6 => Some(Self {
                at,
                is_v6: true,
                protocol: *frame.get(at + 6)?,
                is_fragment: false,
                transport_at: at + ipv6::HEADER_BYTES,
                transport_bytes: usize::from(short(frame, at + 4)?),
            }),
            _ => None,
        }
    }

    /// Of so many bytes of transport header and payload.
    fn pseudo_header(&self, frame: &[u8], transport_bytes: usize) -> Option<Sum> {
        let addresses = if self.is_v6 { self.at + 8..self.at + 40 } else { self.at + 12..self.at + 20 };
        let bytes = u32::try_from(transport_bytes).ok()?;
        Some(
            Sum::ZERO.bytes(frame.get(addresses)?).bytes(&bytes.to_be_bytes()).word(u16::from(self.protocol)),
        )
    }

    /// Length, and for IPv4 identification and checksum, of the packet of this number.
    fn set_lengths(&self, packet: &mut [u8], number: u16) {
        let bytes = packet.len() - self.at;
        let Some(header) = packet.get_mut(self.at..self.transport_at) else { return };
        if self.is_v6 {
            put(header, 4..6, &((bytes - ipv6::HEADER_BYTES) as u16).to_be_bytes());
            return;
        }
        put(header, 2..4, &(bytes as u16).to_be_bytes());
        let identification = short(header, 4).unwrap_or(0).wrapping_add(number);
        put(header, 4..6, &identification.to_be_bytes());
        put(header, 10..12, &[0, 0]);
        let checksum = Sum::ZERO.bytes(header).finish();
        put(header, 10..12, &checksum.to_be_bytes());
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn put(bytes: &mut [u8], at: Range<usize>, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use linux::offload::Segments;

    use super::*;

    /// A frame as a stack hands it over: the pseudo-header's sum in the checksum field. `tag`: with a VLAN tag.
    fn long_frame(is_v6: bool, protocol: u8, payload: &[u8], tag: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if tag {
            frame.extend([0x81, 0, 0, 7]);
        }
        let header_bytes = if protocol == protocol::TCP { 32 } else { 8 };
        let transport_bytes = (header_bytes + payload.len()) as u16;
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(transport_bytes.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0xfd; 16]);
            frame.extend([0xfe; 16]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + transport_bytes).to_be_bytes());
            frame.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let at = frame.len();
        if protocol == protocol::TCP {
            frame.extend([0, 1, 0, 2, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x80, 0x99, 1, 0, 0, 0, 0, 0]);
            frame.extend([1; 12]);
        } else {
            frame.extend([0, 1, 0, 2]);
            frame.extend(transport_bytes.to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend(payload);
        let network = Network::find(&frame).unwrap();
        let field = at + if protocol == protocol::TCP { 16 } else { 6 };
        let sum = !network.pseudo_header(&frame, usize::from(transport_bytes)).unwrap().finish();
        put(&mut frame, field..field + 2, &sum.to_be_bytes());
        frame
    }

    /// Whether lengths and checksums are right; the sum over everything is 0 then.
    fn check(packet: &[u8]) {
        let network = Network::find(packet).unwrap();
        assert_eq!(network.transport_at + network.transport_bytes, packet.len());
        if !network.is_v6 {
            assert_eq!(Sum::ZERO.bytes(&packet[network.at..network.transport_at]).finish(), 0);
        }
        let pseudo = network.pseudo_header(packet, network.transport_bytes).unwrap();
        assert_eq!(pseudo.bytes(&packet[network.transport_at..]).finish(), 0);
    }

    fn cut(frame: &[u8], kind: SegmentKind, payload_bytes: usize) -> Vec<Vec<u8>> {
        let offload = Offload { checksum: None, segments: Some(Segments { kind, payload_bytes }) };
        let mut segmenter = Segmenter::new(frame, &offload).unwrap();
        let (mut packet, mut packets) = (Vec::new(), Vec::new());
        while let Some(packet) = segmenter.next(frame, &mut packet) {
            packets.push(packet.to_vec());
        }
        packets
    }

    #[test]
    fn an_open_checksum_is_completed() {
        for (is_v6, protocol, tag) in
            [(false, 6, false), (true, 6, true), (false, 17, true), (true, 17, false)]
        {
            let mut frame = long_frame(is_v6, protocol, b"odd number of bytes", tag);
            let partial = open_checksum(&frame).unwrap();
            let mut blind = frame.clone();
            complete_checksum(&mut frame, partial);
            let before = Network::find(&frame).unwrap();
            let pseudo = before.pseudo_header(&frame, before.transport_bytes).unwrap();
            assert_eq!(pseudo.bytes(&frame[before.transport_at..]).finish(), 0);
            assert!(complete_if_open(&mut blind));
            assert_eq!(blind, frame);
            assert!(!complete_if_open(&mut blind), "it is complete now");
        }
    }

    #[test]
    fn places_out_of_the_frame_change_nothing() {
        for (start, field) in [(100, 50), (10, 100), (usize::MAX - 1, 0), (60, 59)] {
            let mut frame = vec![7; 60];
            complete_checksum(&mut frame, PartialChecksum { start, field });
            assert_eq!(frame, vec![7; 60]);
        }
    }

    #[test]
    fn a_stream_is_cut_into_packets_that_say_the_same() {
        let payload: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
        for (is_v6, kind, tag) in [(false, SegmentKind::TcpV4, true), (true, SegmentKind::TcpV6, false)] {
            let frame = long_frame(is_v6, protocol::TCP, &payload, tag);
            let packets = cut(&frame, kind, 1448);
            assert_eq!(packets.len(), 4);
            let mut joined = Vec::new();
            for (number, packet) in packets.iter().enumerate() {
                check(packet);
                let network = Network::find(packet).unwrap();
                let segment = &packet[network.transport_at..];
                let sequence = u32::from_be_bytes(*segment[tcp::SEQUENCE].first_chunk().unwrap());
                assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(joined.len() as u32));
                let flags = match number {
                    0 => 0x90,
                    3 => 0x19,
                    _ => 0x10,
                };
                assert_eq!(segment[tcp::FLAGS], flags, "packet {number}");
                if !is_v6 {
                    assert_eq!(short(packet, network.at + 4), Some(0xffff_u16.wrapping_add(number as u16)));
                }
                joined.extend_from_slice(&segment[32..]);
            }
            assert_eq!(joined, payload);
        }
    }

    #[test]
    fn datagrams_are_cut_too() {
        let frame = long_frame(false, protocol::UDP, &[9; 3001], false);
        let packets = cut(&frame, SegmentKind::Udp, 1000);
        assert_eq!(packets.iter().map(|packet| packet.len() - 42).collect::<Vec<_>>(), [1000, 1000, 1000, 1]);
        packets.iter().for_each(|packet| check(packet));
    }

    #[test]
    fn what_is_no_such_frame_is_not_cut() {
        let frame = long_frame(false, protocol::TCP, &[1; 100], false);
        let offload = |kind, payload_bytes| Offload {
            checksum: None,
            segments: Some(Segments { kind, payload_bytes }),
        };
        let good = offload(SegmentKind::TcpV4, 10);
        assert!(Segmenter::new(&frame, &good).is_some());
        assert!(Segmenter::new(&frame, &Offload::default()).is_none());
        for wrong in
            [offload(SegmentKind::Udp, 10), offload(SegmentKind::Unknown, 10), offload(SegmentKind::TcpV4, 0)]
        {
            assert!(Segmenter::new(&frame, &wrong).is_none(), "{wrong:?}");
        }
        for length in 0..=66 {
            assert!(Segmenter::new(&frame[..length], &good).is_none(), "{length} bytes");
        }
        for (at, value) in [(12, 0), (14, 0x41), (20, 0x20), (46, 0x10)] {
            let mut broken = frame.clone();
            broken[at] = value;
            assert!(Segmenter::new(&broken, &good).is_none(), "{value} at {at}");
        }
    }
}
