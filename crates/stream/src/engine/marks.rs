//! What the first bytes of a datagram say: written by who sends, read by who receives.

use super::Marks;
use crate::datagrams::{Tracker, Unwrap};

/// Bytes of perpacket's own mark: cookie, number, time.
pub(super) const OWN_BYTES: usize = 32;

impl Marks {
    /// How many bytes they take.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Own { .. } => OWN_BYTES,
            Self::Iperf3 { wide: false } => 12,
            Self::Iperf3 { wide: true } => 16,
        }
    }

    /// Marks the datagram of a number (from 0). It has room for it.
    #[inline]
    pub(super) fn write(self, datagram: &mut [u8], number: u64, now_ns: u64) {
        match self {
            Self::None => {}
            Self::Own { cookie } => {
                datagram[..16].copy_from_slice(&cookie);
                datagram[16..24].copy_from_slice(&number.to_be_bytes());
                datagram[24..32].copy_from_slice(&now_ns.to_be_bytes());
            }
            Self::Iperf3 { wide } => {
                let (seconds, us) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000 / 1000);
                datagram[..4].copy_from_slice(&(seconds as u32).to_be_bytes());
                datagram[4..8].copy_from_slice(&(us as u32).to_be_bytes());
                if wide {
                    datagram[8..16].copy_from_slice(&(number + 1).to_be_bytes());
                } else {
                    datagram[8..12].copy_from_slice(&((number + 1) as u32).to_be_bytes());
                }
            }
        }
    }

    /// The number and the time (ns of the sender's clock) that a datagram was marked with, as they are written; none where it has
    /// none, or those of another run.
    #[inline]
    pub(super) fn read(self, datagram: &[u8]) -> Option<(u64, u64)> {
        let word = |at: usize| Some(u32::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        match self {
            Self::None => None,
            Self::Own { cookie } => {
                if datagram.first_chunk::<16>()? != &cookie {
                    return None;
                }
                Some((long(16)?, long(24)?))
            }
            Self::Iperf3 { wide } => {
                let at_ns = u64::from(word(0)?) * 1_000_000_000 + u64::from(word(4)?) * 1000;
                let number = if wide { long(8)? } else { u64::from(word(8)?) };
                Some((number, at_ns))
            }
        }
    }
}

/// The datagrams that come, by their marks.
#[derive(Debug)]
pub(super) struct Arrivals {
    marks: Marks,
    pub(super) tracker: Tracker,
    /// Makes 64 bits of numbers of 32.
    unwrap: Option<Unwrap>,
    /// Datagrams without a mark of this run.
    pub(super) foreign: u64,
}

impl Arrivals {
    pub(super) fn new(marks: Marks) -> Option<Self> {
        let (first, unwrap) = match marks {
            Marks::None => return None,
            Marks::Own { .. } => (0, None),
            Marks::Iperf3 { wide } => (1, (!wide).then(|| Unwrap::new(32, 1))),
        };
        Some(Self { marks, tracker: Tracker::starting_at(first), unwrap, foreign: 0 })
    }

    /// How many datagrams the sender had numbered up to the highest that came.
    pub(super) fn numbered(&self) -> Option<u64> {
        let first = u64::from(matches!(self.marks, Marks::Iperf3 { .. }));
        self.tracker.next().map(|next| next - first)
    }

    /// Takes a datagram; whether it is one of this run.
    #[inline]
    pub(super) fn take(&mut self, datagram: &[u8], now_ns: u64) -> bool {
        let Some((number, sent_ns)) = self.marks.read(datagram) else {
            self.foreign += 1;
            return false;
        };
        let number = self.unwrap.as_mut().map_or(number, |unwrap| unwrap.unwrap(number));
        self.tracker.record(number, Some((sent_ns, now_ns)));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Marks; 3] =
        [Marks::Own { cookie: [7; 16] }, Marks::Iperf3 { wide: false }, Marks::Iperf3 { wide: true }];

    #[test]
    fn marks_are_read_as_written() {
        let mut datagram = [0; 40];
        for (marks, first) in ALL.into_iter().zip([0, 1, 1]) {
            marks.write(&mut datagram, 41, 5_000_001_000);
            assert_eq!(marks.read(&datagram[..marks.bytes()]), Some((41 + first, 5_000_001_000)));
            assert_eq!(marks.read(&datagram[..marks.bytes() - 1]), None);
        }
        ALL[1].write(&mut datagram, 0, 3_000_004_999);
        assert_eq!(datagram[..12], [0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1]);
        ALL[2].write(&mut datagram, 1 << 32, 0);
        assert_eq!(datagram[8..16], [0, 0, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn numbers_of_32_bits_go_on_where_they_wrap() {
        let marks = Marks::Iperf3 { wide: false };
        let mut arrivals = Arrivals::new(marks).unwrap();
        let mut datagram = [0; 12];
        let numbers = [0, 1 << 31, (1 << 32) - 3, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, (1 << 32) + 2];
        for number in numbers {
            marks.write(&mut datagram, number, 0);
            assert!(arrivals.take(&datagram, 0));
        }
        let total = arrivals.tracker.total(None);
        assert_eq!((total.received, total.lost), (7, (1 << 32) + 3 - 7));
    }

    #[test]
    fn a_stranger_is_not_counted() {
        let mut arrivals = Arrivals::new(ALL[0]).unwrap();
        let mut datagram = [0; 32];
        Marks::Own { cookie: [8; 16] }.write(&mut datagram, 0, 0);
        assert!(!arrivals.take(&datagram, 0));
        assert_eq!((arrivals.foreign, arrivals.tracker.total(None).received), (1, 0));
    }

    proptest! {
        #[test]
        fn any_datagram_is_read(bytes: Vec<u8>) {
            for marks in ALL {
                let _ = marks.read(&bytes);
            }
        }
    }
}
