//! What a sender has left to the device: a checksum to be completed, a stream to be cut into packets
//! (`struct virtio_net_hdr`, include/uapi/linux/virtio_net.h, 6.18).
//!
//! Packet sockets (`PACKET_VNET_HDR`) and TAP devices (`IFF_VNET_HDR`) put this header in front of a frame, in the byte
//! order of the machine. Between two namespaces nobody ever does this work unless somebody asks: the frame comes as the
//! sender's stack left it.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 10;

/// Flags and kinds, as numbered there.
const NEEDS_CHECKSUM: u8 = 1;
const KIND_ECN: u8 = 0x80;
const KINDS: [(u8, SegmentKind); 3] =
    [(1, SegmentKind::TcpV4), (4, SegmentKind::TcpV6), (5, SegmentKind::Udp)];

/// What is left to do with a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// A checksum that is not complete.
    pub checksum: Option<PartialChecksum>,
    /// The packets that the frame stands for.
    pub segments: Option<Segments>,
}

/// The field holds the sum of the pseudo-header; that of everything from `start` on is to be added, and the complement
/// stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Where the sum begins, in bytes from the start of the frame.
    pub start: usize,
    /// Where the field is, in bytes from the start of the frame.
    pub field: usize,
}

/// How a frame is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// What it carries.
    pub kind: SegmentKind,
    /// Bytes of payload in each packet but the last.
    pub payload_bytes: usize,
}

/// What is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// A TCP segment in IPv4.
    TcpV4,
    /// A TCP segment in IPv6.
    TcpV6,
    /// UDP datagrams of one length, in either.
    Udp,
    /// Something else, that this crate knows nothing of.
    Unknown,
}

impl Offload {
    /// Reads the header; nothing is left to do if it is shorter than that.
    pub fn read(header: &[u8]) -> Self {
        let Some(header) = header.first_chunk::<HEADER_BYTES>() else { return Self::default() };
        let [flags, kind, ..] = *header;
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, offset) = (word(6), word(8));
        let checksum =
            (flags & NEEDS_CHECKSUM != 0).then_some(PartialChecksum { start, field: start + offset });
        let kind = kind & !KIND_ECN;
        let segments = (kind != 0).then(|| Segments {
            kind: KINDS
                .iter()
                .find(|(number, _)| *number == kind)
                .map_or(SegmentKind::Unknown, |(_, kind)| *kind),
            payload_bytes: word(4),
        });
        Self { checksum, segments }
    }

    /// Whether there is nothing to do.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.checksum.is_none() && self.segments.is_none()
    }

    /// The same, of a frame that has so many more bytes in front of its network header.
    #[must_use]
    pub(crate) fn moved_by(self, bytes: usize) -> Self {
        let moved =
            |sum: PartialChecksum| PartialChecksum { start: sum.start + bytes, field: sum.field + bytes };
        Self { checksum: self.checksum.map(moved), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read() {
        let mut header = [0; HEADER_BYTES];
        assert!(Offload::read(&header).is_none());
        assert!(Offload::read(&[1; 9]).is_none());
        for (at, value) in [(2, 54_u16), (4, 1448), (6, 34), (8, 16)] {
            header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        assert!(Offload::read(&header).is_none(), "neither flag nor kind");
        header[..2].copy_from_slice(&[1, 0x81]);
        let read = Offload::read(&header);
        assert_eq!(read.checksum, Some(PartialChecksum { start: 34, field: 50 }));
        assert_eq!(read.segments, Some(Segments { kind: SegmentKind::TcpV4, payload_bytes: 1448 }));
        assert_eq!(read.moved_by(4).checksum, Some(PartialChecksum { start: 38, field: 54 }));
        header[1] = 3;
        assert_eq!(Offload::read(&header).segments.map(|cut| cut.kind), Some(SegmentKind::Unknown));
    }
}
