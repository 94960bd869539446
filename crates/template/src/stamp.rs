//! Stamps: what a sender writes at the start of a UDP payload so that a receiver can tell which packets are missing, and
//! how long each was on its way.
//!
//! A stamp is [`BYTES`] bytes, all numbers in network byte order:
//!
//! | bytes | content |
//! |---|---|
//! | 0–1 | `a1 5e` |
//! | 2–3 | stream: each sender numbers its packets by itself |
//! | 4–9 | sequence: the packet's number in its stream, from 0, without gaps |
//! | 10–17 | when the packet was written, in ns of `CLOCK_MONOTONIC` |
//!
//! It fills the payload of a 64-byte frame over IPv4, and needs 84 bytes over IPv6. It stands in front, not at the end,
//! because there it lies in the cache line of the headers and at an even place of the checksum, and because a receiver
//! of long packets may then take their first bytes only. Nothing but the first two bytes confirms it: it is meant for networks in which
//! nobody else sends. Where packets may be changed on their way, a mark is what is wanted (`docs/formats.md`).

/// How long a stamp is.
pub const BYTES: usize = 18;

/// The first two bytes.
pub(crate) const MAGIC: u16 = 0xa15e;
/// Bits of the sequence, in the low part of the word whose high part is the stream.
pub(crate) const SEQUENCE_BITS: u32 = 48;
/// Where the word of stream and sequence begins.
pub(crate) const NUMBER_AT: usize = 2;
/// Where the time begins.
pub(crate) const SENT_AT: usize = 10;

/// What a packet says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Which sender's numbering it belongs to.
    pub stream: u16,
    /// The packet's number there, below 2⁴⁸: enough for a month at 100 million packets a second.
    pub sequence: u64,
    /// When it was written, in ns of `CLOCK_MONOTONIC`. What it waited for before it was sent is included: for the other frames
    /// of its batch, or in a ring.
    pub sent_ns: u64,
}

impl Stamp {
    /// The bytes to put at the start of a payload. A sequence of 2⁴⁸ or more runs over into the stream.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..NUMBER_AT].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[NUMBER_AT..SENT_AT].copy_from_slice(&number(self.stream, self.sequence).to_be_bytes());
        bytes[SENT_AT..].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes
    }
}

/// Stream and sequence as one word.
pub(crate) fn number(stream: u16, sequence: u64) -> u64 {
    (u64::from(stream) << SEQUENCE_BITS).wrapping_add(sequence)
}

/// Reads the stamp at the start of a UDP payload; what follows it does not matter. None where there is none.
#[inline]
pub fn read(payload: &[u8]) -> Option<Stamp> {
    let (bytes, _) = payload.split_first_chunk::<BYTES>()?;
    let [m0, m1, n0, n1, n2, n3, n4, n5, n6, n7, t0, t1, t2, t3, t4, t5, t6, t7] = *bytes;
    if u16::from_be_bytes([m0, m1]) != MAGIC {
        return None;
    }
    let number = u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
    Some(Stamp {
        stream: (number >> SEQUENCE_BITS) as u16,
        sequence: number & ((1 << SEQUENCE_BITS) - 1),
        sent_ns: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The layout is a format: these bytes must never change.
    #[test]
    fn a_stamp_is_laid_out_as_documented() {
        let stamp = Stamp { stream: 0x0102, sequence: 0x0304_0506_0708, sent_ns: 0x1112_1314_1516_1718 };
        let bytes = [0xa1, 0x5e, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(stamp.to_bytes(), bytes);
        assert_eq!(read(&bytes), Some(stamp));
        assert_eq!(read(&bytes[..17]), None);
        assert_eq!(read(&[&bytes[..], &[7; 1000]].concat()), Some(stamp));
        assert_eq!(read(&[&[0xa1, 0x5f], &bytes[2..]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_may_be_read(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            match read(&payload) {
                Some(stamp) => prop_assert_eq!(&stamp.to_bytes()[..], &payload[..BYTES]),
                None => prop_assert!(payload.len() < BYTES || payload[..2] != [0xa1, 0x5e]),
            }
        }

        #[test]
        fn what_is_written_is_read(
            stream: u16, sequence in 0..1_u64 << 48, sent_ns: u64, rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let stamp = Stamp { stream, sequence, sent_ns };
            let mut payload = stamp.to_bytes().to_vec();
            payload.extend(rest);
            prop_assert_eq!(read(&payload), Some(stamp));
            payload.truncate(BYTES - 1);
            prop_assert_eq!(read(&payload), None);
        }
    }
}
