//! Marks: what a sender writes at the end of a payload so that a receiver can tell what was lost, came twice, came late
//! or was changed on the way.
//!
//! A mark is [`MARK_BYTES`] bytes and is the end of a UDP or TCP payload; `docs/formats.md` has its layout. Its check covers
//! the payload in front of it and the numbers in it, and nothing else: MAC addresses, VLAN tags, TTL, addresses, ports and
//! checksums may legally change on a path. Bytes behind the payload, which fill up a short frame, carry nothing.
//!
//! The check finds every change of a single word of 64 bits for sure in its state, of which it keeps 32 bits: a changed
//! payload passes once in four thousand million. It is no protection against somebody who wants to deceive.

use thiserror::Error;

use crate::headers::{self, Segment};

/// How long a mark is: the payload of a UDP packet in a 64-byte frame over IPv4 has 18 bytes.
pub const MARK_BYTES: usize = 16;

const MAGIC: u16 = 0x9dc7;

/// A number of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Which numbering it belongs to; each worker of a sender has its own.
    pub stream: u16,
    /// Its number there, from 0 and without gaps.
    pub sequence: u64,
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// A mark, confirmed by its check.
    Marked(Mark),
    /// A mark, and it or the payload before it was changed. Its number says nothing then. Where the two bytes that
    /// tell a mark were changed and others too, it is taken as unmarked.
    Corrupted,
    /// No mark: a frame of somebody else, or no whole UDP or TCP packet.
    Unmarked,
}

/// Why a frame cannot carry a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MarkError {
    /// Nothing to put it into.
    #[error(
        "a frame of {l2_bytes} bytes (without FCS) cannot carry a mark: it is no whole UDP or TCP packet, or it is a \
         fragment; send UDP or TCP, or leave out --mark"
    )]
    NoPayload {
        /// Length of the frame.
        l2_bytes: usize,
    },
    /// Too little room.
    #[error(
        "a payload of {payload_bytes} bytes has no room for a mark, which takes {MARK_BYTES}: make the frame \
         {missing_bytes} bytes longer"
    )]
    TooShort {
        /// Payload that there is.
        payload_bytes: usize,
        /// What is lacking.
        missing_bytes: usize,
    },
}

/// The place of the mark in frames of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    segment: Segment,
}

impl Marker {
    /// Finds the place. It holds for every frame with the same headers and lengths; finding it anew for each frame costs
    /// some nanoseconds.
    ///
    /// # Errors
    /// [`MarkError`]; frames that are to be marked are asked beforehand.
    #[inline]
    pub fn locate(frame: &[u8]) -> Result<Self, MarkError> {
        let segment = headers::parse(frame).segment.ok_or(MarkError::NoPayload { l2_bytes: frame.len() })?;
        let payload_bytes = segment.end - segment.payload;
        match MARK_BYTES.checked_sub(payload_bytes) {
            None | Some(0) => Ok(Self { segment }),
            Some(missing_bytes) => Err(MarkError::TooShort { payload_bytes, missing_bytes }),
        }
    }

    /// Where the mark begins, from the start of the frame.
    pub fn offset(&self) -> usize {
        self.segment.end - MARK_BYTES
    }

    /// Writes a mark over the end of the payload, and brings the packet's checksum up to date. A UDP checksum of 0
    /// means that there is none, and stays. A checksum that was wrong before is wrong by the same afterwards.
    ///
    /// A frame shorter than the one the place was found in is left as it is.
    #[inline]
    pub fn write(&self, frame: &mut [u8], mark: Mark) {
        let Segment { payload, end, .. } = self.segment;
        let Some(segment) = frame.get_mut(payload..end) else { return };
        let Some((body, place)) = segment.split_last_chunk_mut::<MARK_BYTES>() else { return };
        let (before, after) = (u128::from_be_bytes(*place), encode(mark, body));
        // One store of the whole: what is written in pieces and read at once later waits for the pieces.
        *place = after.to_be_bytes();
        self.fix_checksum(frame, sum(before), sum(after));
    }

    /// RFC 1624: the new checksum is ~(~old + ~before + after). Bytes at an odd place of the segment count swapped.
    fn fix_checksum(&self, frame: &mut [u8], before: u16, after: u16) {
        let Segment { is_udp, header, .. } = self.segment;
        let field = header + if is_udp { 6 } else { 16 };
        let Some(bytes) = frame.get_mut(field..field + 2) else { return };
        let old = u16::from_be_bytes([bytes[0], bytes[1]]);
        if is_udp && old == 0 {
            return;
        }
        let is_odd = (self.offset() - header) % 2 == 1;
        let change = fold(u64::from(!before) + u64::from(after));
        let change = if is_odd { change.swap_bytes() } else { change };
        let new = !fold(u64::from(!old) + u64::from(change));
        // A UDP checksum that comes out as 0 is sent as its other form (RFC 768).
        let new = if is_udp && new == 0 { 0xffff } else { new };
        bytes.copy_from_slice(&new.to_be_bytes());
    }
}

/// Reads the mark of a frame.
pub fn read(frame: &[u8]) -> Reading {
    match headers::parse(frame).segment {
        Some(segment) => read_payload(&frame[segment.payload..segment.end]),
        None => Reading::Unmarked,
    }
}

/// Reads the mark at the end of a UDP or TCP payload.
#[inline]
pub fn read_payload(payload: &[u8]) -> Reading {
    let Some((body, place)) = payload.split_last_chunk::<MARK_BYTES>() else { return Reading::Unmarked };
    let word = u128::from_be_bytes(*place);
    let mark = Mark { stream: (word >> 112) as u16, sequence: (word >> 48) as u64 };
    let differs = word ^ encode(mark, body);
    match (differs as u16 == 0, differs >> 16 == 0) {
        (true, true) => Reading::Marked(mark),
        (false, false) => Reading::Unmarked,
        _ => Reading::Corrupted,
    }
}

/// A mark behind `body`, as one number in network byte order: stream, sequence, check, magic.
#[inline]
fn encode(mark: Mark, body: &[u8]) -> u128 {
    u128::from(mark.stream) << 112
        | u128::from(mark.sequence) << 48
        | u128::from(check(mark, body)) << 16
        | u128::from(MAGIC)
}

/// The sum of the 16-bit words of a mark, in one's complement.
#[inline]
fn sum(mark: u128) -> u16 {
    let halves = [(mark >> 64) as u64, mark as u64];
    fold(halves.iter().map(|half| (half >> 32) + (half & 0xffff_ffff)).sum())
}

/// Folds a sum of words to 16 bits, carries added at the end.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The check of a mark and of the payload in front of it.
#[inline]
fn check(mark: Mark, body: &[u8]) -> u32 {
    let (groups, rest) = body.as_chunks::<{ 8 * LANES.len() }>();
    let mut state = LANES[0];
    if !groups.is_empty() {
        // Four words side by side: a step waits only for the one four words before.
        let mut lanes = LANES;
        for group in groups {
            for (lane, word) in lanes.iter_mut().zip(group.as_chunks::<8>().0) {
                *lane = step(*lane, u64::from_le_bytes(*word));
            }
        }
        let [first, others @ ..] = lanes;
        state = others.into_iter().fold(first, step);
    }
    let (words, end) = rest.as_chunks::<8>();
    for word in words {
        state = step(state, u64::from_le_bytes(*word));
    }
    if !end.is_empty() {
        state = step(state, end.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }
    state = step(state, mark.sequence);
    state = step(state, (body.len() as u64) << 16 | u64::from(mark.stream));
    (state.wrapping_mul(FACTOR) >> 32) as u32
}

/// Where the state of a check begins: the first digits of pi.
const LANES: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// An odd number with its bits well spread: the golden ratio's.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// For a given state no two words lead to the same, and for a given word no two states.
#[inline]
fn step(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(FACTOR);
    mixed ^ mixed >> 29
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::headers::tests::{tcp6, udp4};

    const MARK: Mark = Mark { stream: 0x0102, sequence: 0x0304_0506_0708_090a };

    fn marked(mut frame: Vec<u8>) -> Vec<u8> {
        Marker::locate(&frame).unwrap().write(&mut frame, MARK);
        frame
    }

    /// The checksum of a UDP or TCP packet over its pseudo header, from its definition.
    fn is_checksum_right(frame: &[u8]) -> bool {
        let Segment { is_udp, header, end, .. } = headers::parse(frame).segment.unwrap();
        let addresses = if frame[12] == 8 { &frame[26..34] } else { &frame[22..54] };
        let mut bytes = addresses.to_vec();
        bytes.extend(((end - header) as u32).to_be_bytes());
        bytes.extend([0, 0, 0, if is_udp { 17 } else { 6 }]);
        bytes.extend(&frame[header..end]);
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        let sum: u64 = bytes.as_chunks::<2>().0.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
        fold(sum) == 0xffff
    }

    /// Fills in a right checksum, by trying: for tests only.
    fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
        let Segment { is_udp, header, .. } = headers::parse(&frame).segment.unwrap();
        let field = header + if is_udp { 6 } else { 16 };
        for value in 1..=0xffff_u16 {
            frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
            if is_checksum_right(&frame) {
                return frame;
            }
        }
        unreachable!()
    }

    #[test]
    fn a_mark_fits_the_shortest_frame_and_is_read_back() {
        let frame = udp4(&[0xaa; 18]);
        assert_eq!((frame.len(), Marker::locate(&frame).unwrap().offset()), (60, 44));
        let frame = marked(frame);
        assert_eq!(read(&frame), Reading::Marked(MARK));
        assert_eq!(frame[44..54], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(frame[58..60], MAGIC.to_be_bytes());
        assert_eq!(frame[40..44], [0, 0, 0xaa, 0xaa], "no checksum stays none; the payload stays");
    }

    /// The layout is a format: these values, computed by another program, must never change.
    #[test]
    fn the_check_is_what_the_format_says() {
        let frame = marked(udp4(&[0xaa; 18]));
        assert_eq!(frame[54..58], [0x1f, 0xe1, 0x71, 0x91]);
        let long = marked(udp4(&[0xaa; 100]));
        assert_eq!(long[136..140], [0xc1, 0x19, 0x93, 0x66]);
    }

    #[test]
    fn checksums_stay_right_at_even_and_odd_places() {
        for payload in [16, 17, 18, 19, 33, 100, 101] {
            for frame in
                [with_checksum(udp4(&vec![0x5c; payload])), with_checksum(tcp6(&vec![0x5c; payload]))]
            {
                let frame = marked(frame);
                assert!(is_checksum_right(&frame), "{payload}");
                assert_eq!(read(&frame), Reading::Marked(MARK));
            }
        }
        // Every sum that may come out, 0 among them, which UDP sends as 0xffff.
        let mut frame = with_checksum(udp4(&[0; 18]));
        let marker = Marker::locate(&frame).unwrap();
        for sequence in 0..200_000 {
            marker.write(&mut frame, Mark { stream: 7, sequence });
            assert!(frame[40..42] != [0, 0] && is_checksum_right(&frame), "{sequence}");
        }
    }

    #[test]
    fn every_changed_bit_of_payload_or_mark_is_found() {
        for payload in [16, 18, 47, 48, 49, 80, 100, 1472] {
            let frame = marked(udp4(&vec![0x11; payload]));
            for bit in 42 * 8..(42 + payload) * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(&changed), Reading::Corrupted, "{payload} bytes, bit {bit}");
            }
            // Up to the mark's last two bytes.
            for swapped in (42..42 + payload - 5).step_by(2) {
                let mut changed = frame.clone();
                changed.swap(swapped, swapped + 2);
                changed.swap(swapped + 1, swapped + 3);
                let expected = if changed == frame { Reading::Marked(MARK) } else { Reading::Corrupted };
                assert_eq!(read(&changed), expected, "{payload} bytes, words swapped at {swapped}");
            }
        }
    }

    #[test]
    fn what_a_path_may_change_is_not_checked() {
        let frame = marked(udp4(&[0x11; 40]));
        // Addresses, TTL, header checksum, ports, UDP checksum.
        for at in (0..12).chain([15, 18, 19, 22, 24, 25]).chain(26..38).chain([40, 41]) {
            let mut changed = frame.clone();
            changed[at] ^= 0xff;
            assert_eq!(read(&changed), Reading::Marked(MARK), "byte {at}");
        }
        let mut longer = frame.clone();
        longer.extend([7; 20]);
        assert_eq!(read(&longer), Reading::Marked(MARK));
    }

    #[test]
    fn frames_without_a_mark_have_none() {
        assert_eq!(read(&[]), Reading::Unmarked);
        assert_eq!(read(&[0; 60]), Reading::Unmarked);
        assert_eq!(read(&udp4(&[])), Reading::Unmarked);
        assert_eq!(read(&udp4(&[0; 15])), Reading::Unmarked);
        assert_eq!(read(&udp4(&[0; 1000])), Reading::Unmarked);
        for cut in 0..60 {
            assert_eq!(read(&marked(udp4(&[0; 18]))[..cut]), Reading::Unmarked);
        }
    }

    #[test]
    fn a_frame_without_room_is_refused_with_what_it_lacks() {
        let error = Marker::locate(&udp4(&[0; 11])).unwrap_err();
        assert_eq!(error, MarkError::TooShort { payload_bytes: 11, missing_bytes: 5 });
        assert!(error.to_string().contains("5 bytes longer"), "{error}");
        assert_eq!(Marker::locate(&[0; 60]).unwrap_err(), MarkError::NoPayload { l2_bytes: 60 });
        // A place found in a longer frame does no harm.
        let marker = Marker::locate(&udp4(&[0; 100])).unwrap();
        marker.write(&mut [0; 60], MARK);
    }
}
