//! The headers of a frame of unknown origin, one after the other.

use crate::proto::{self, Id, Proto};

/// A header in a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer {
    pub(crate) proto: &'static Proto,
    pub(crate) at: usize,
    /// With optional words and records.
    pub(crate) len: usize,
}

/// The headers of a frame, from its first byte on, and the one that is cut off, if one is.
pub(crate) fn follow(frame: &[u8]) -> (Vec<Layer>, Option<Id>) {
    let mut layers = Vec::new();
    let (mut next, mut at) = (Some(Id::Eth), 0);
    while let Some(id) = next {
        let proto = proto::of(id);
        let Some(header) = frame.get(at..).filter(|rest| rest.len() >= proto.bytes) else { break };
        let len = length(proto, header);
        if len > header.len() {
            break;
        }
        layers.push(Layer { proto, at, len });
        next = upper(id, header, len);
        at += len;
    }
    (layers, next)
}

/// Where the datagram around a header ends by the length of its IP header: padding may follow. None if that is not in the
/// frame, or cuts the header.
pub(crate) fn end_of_datagram(frame: &[u8], layers: &[Layer], index: usize) -> Option<usize> {
    let ip = layers[..index].iter().rev().find(|layer| matches!(layer.proto.id, Id::Ipv4 | Id::Ipv6))?;
    let end = end_by_length(frame, ip)?;
    (end <= frame.len() && end >= layers[index].at + layers[index].proto.bytes).then_some(end)
}

/// Where a datagram ends by the length of its IP header, in the frame or not.
pub(crate) fn end_by_length(frame: &[u8], ip: &Layer) -> Option<usize> {
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    match ip.proto.id {
        Id::Ipv4 => Some(ip.at + word(ip.at + 2)?),
        _ => Some(ip.at + ip.len + word(ip.at + 4)?),
    }
}

/// Bytes of a header, with what belongs to it.
fn length(proto: &Proto, header: &[u8]) -> usize {
    match proto.id {
        Id::Ipv4 => (usize::from(header[0] & 15) * 4).max(proto.bytes),
        Id::Tcp => (usize::from(header[12] >> 4) * 4).max(proto.bytes),
        Id::Icmp6 if matches!(header[0], 2 | 128 | 129) && header.len() >= 8 => 8,
        Id::Gre => proto.bytes + 4 * [0x80, 0x20, 0x10].iter().filter(|&&bit| header[0] & bit != 0).count(),
        Id::Dns => header.len(),
        _ => proto.bytes,
    }
}

/// What follows a header.
fn upper(id: Id, header: &[u8], len: usize) -> Option<Id> {
    let word = |at: usize| u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
    match id {
        Id::Eth => proto::upper_of(id, word(12)).map(|upper| pause_or_pfc(upper, header)),
        Id::Vlan => proto::upper_of(id, word(2)),
        Id::Gre => proto::upper_of(id, word(2)),
        Id::Mpls if header[2] & 1 == 0 => Some(Id::Mpls),
        Id::Mpls => header.get(len).and_then(|first| match first >> 4 {
            4 => Some(Id::Ipv4),
            6 => Some(Id::Ipv6),
            _ => None,
        }),
        // Only the first fragment has the header of the next protocol.
        Id::Ipv4 if word(6) & 0x1fff == 0 => proto::upper_of(id, u32::from(header[9])),
        Id::Ipv6 => proto::upper_of(id, u32::from(header[6])),
        Id::Udp | Id::Tcp => by_port(id, word(0), word(2), header.len() - len),
        Id::Vxlan => Some(Id::Eth),
        _ => None,
    }
}

/// A tunnel's packets go to its port, and their source port is anything. DNS is asked and answers at its port, and what is
/// too short for it there (an empty segment, for one) is something else.
fn by_port(id: Id, source: u32, destination: u32, payload_bytes: usize) -> Option<Id> {
    let dns = |found: &Id| *found == Id::Dns;
    let found = proto::upper_of(id, destination).or_else(|| proto::upper_of(id, source).filter(dns))?;
    (found != Id::Dns || payload_bytes >= proto::of(Id::Dns).bytes).then_some(found)
}

fn pause_or_pfc(upper: Id, header: &[u8]) -> Id {
    if upper == Id::Pause && header.get(14..16) == Some(&[0x01, 0x01]) { Id::Pfc } else { upper }
}
