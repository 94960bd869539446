//! What a receiver counted.

use std::collections::{BTreeMap, HashMap};

use measure::window::{Account, Window};

use crate::headers::{self, Flow};
use crate::mark::{self, Reading};

/// The most flows that are told apart; frames of others are counted together.
pub const FLOWS_MAX: usize = 1 << 16;
/// The most streams of marks that are followed: each takes up to 272 KiB. Marked frames of others are counted together.
pub const STREAMS_MAX: usize = 1024;

/// Frames and their bytes: of frames without FCS, or of UDP payloads
/// ([`ReceiverKind::counts_payload`](super::ReceiverKind::counts_payload)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// How many.
    pub frames: u64,
    /// How many bytes they have together.
    pub bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        self.bytes += bytes;
    }
}

/// What arrived. What a receiver cannot tell is None, not 0.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) total: Count,
    pub(super) flows: HashMap<Flow, Count>,
    pub(super) other_flows: Count,
    pub(super) queues: Option<BTreeMap<u32, Count>>,
    pub(super) cpus: Option<BTreeMap<u32, Count>>,
    /// Frames of several queues are taken in turn, so that their order among each other is the receiver's.
    pub(super) order_is_lost: bool,
    marks: Option<Marks>,
}

impl Tally {
    /// Nothing has arrived. Marks are looked at on demand only, since that means reading every byte.
    pub fn new(with_marks: bool) -> Self {
        Self { marks: with_marks.then(Marks::default), ..Self::default() }
    }

    /// All frames.
    pub fn total(&self) -> Count {
        self.total
    }

    /// The flows, in no order. Ways that count in the kernel add them at the end only.
    pub fn flows(&self) -> impl Iterator<Item = (Flow, Count)> + '_ {
        self.flows.iter().map(|(flow, count)| (*flow, *count))
    }

    /// Frames of flows that came after the first [`FLOWS_MAX`].
    pub fn other_flows(&self) -> Count {
        self.other_flows
    }

    /// Frames by receive queue, where the receiver knows it: all queues that it receives from.
    pub fn queues(&self) -> Option<&BTreeMap<u32, Count>> {
        self.queues.as_ref()
    }

    /// Frames by the CPU that took them in, where the receiver knows it: those with at least one.
    pub fn cpus(&self) -> Option<&BTreeMap<u32, Count>> {
        self.cpus.as_ref()
    }

    /// What the marks say, if they were looked at.
    pub fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Whether frames were counted in the order of their arrival, so that reordering can be told.
    pub fn knows_order(&self) -> bool {
        !self.order_is_lost
    }

    /// Counts a frame, stored as far as `bytes` goes.
    #[inline]
    pub(super) fn frame(&mut self, queue: Option<u32>, bytes: &[u8], l2_bytes: u64) {
        let headers = headers::parse(bytes);
        self.count(headers.flow, l2_bytes);
        if let Some(queue) = queue {
            self.queues.get_or_insert_default().entry(queue).or_default().add(1, l2_bytes);
        }
        if let Some(marks) = &mut self.marks {
            marks.read(headers.segment.map_or(&[][..], |segment| &bytes[segment.payload..segment.end]));
        }
    }

    /// Counts a datagram.
    #[inline]
    pub(super) fn datagram(&mut self, flow: Flow, payload: &[u8]) {
        self.count(flow, payload.len() as u64);
        if let Some(marks) = &mut self.marks {
            marks.read(payload);
        }
    }

    #[inline]
    fn count(&mut self, flow: Flow, bytes: u64) {
        self.total.add(1, bytes);
        if let Some(count) = self.flows.get_mut(&flow) {
            count.add(1, bytes);
        } else if self.flows.len() < FLOWS_MAX {
            self.flows.insert(flow, Count { frames: 1, bytes });
        } else {
            self.other_flows.add(1, bytes);
        }
    }
}

/// What marks say.
#[derive(Debug, Default)]
pub struct Marks {
    streams: BTreeMap<u16, Window>,
    corrupted: u64,
    unmarked: u64,
    unfollowed: u64,
}

impl Marks {
    /// The streams, by number.
    pub fn streams(&self) -> impl Iterator<Item = (u16, Account)> + '_ {
        self.streams.iter().map(|(&stream, window)| (stream, window.account()))
    }

    /// Frames whose mark or payload was changed. What number they had is not known, so it is among the lost ones.
    pub fn corrupted(&self) -> u64 {
        self.corrupted
    }

    /// Frames without a mark: somebody else's.
    pub fn unmarked(&self) -> u64 {
        self.unmarked
    }

    /// Marked frames of streams that came after the first [`STREAMS_MAX`].
    pub fn unfollowed(&self) -> u64 {
        self.unfollowed
    }

    #[inline]
    fn read(&mut self, payload: &[u8]) {
        let mark = match mark::read_payload(payload) {
            Reading::Marked(mark) => mark,
            Reading::Corrupted => return self.corrupted += 1,
            Reading::Unmarked => return self.unmarked += 1,
        };
        if let Some(window) = self.streams.get_mut(&mark.stream) {
            window.record(mark.sequence);
        } else if self.streams.len() < STREAMS_MAX {
            self.streams.entry(mark.stream).or_default().record(mark.sequence);
        } else {
            self.unfollowed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::udp4;
    use crate::mark::{Mark, Marker};

    fn marked(stream: u16, sequence: u64) -> Vec<u8> {
        let mut frame = udp4(&[0x77; 30]);
        Marker::locate(&frame).unwrap().write(&mut frame, Mark { stream, sequence });
        frame
    }

    #[test]
    fn frames_are_counted_once_in_each_respect() {
        let mut tally = Tally::new(true);
        for (queue, sequence) in [(0, 0), (1, 1), (0, 3), (0, 3)] {
            tally.frame(Some(queue), &marked(7, sequence), 72);
        }
        let mut changed = marked(7, 2);
        changed[45] ^= 1;
        tally.frame(Some(1), &changed, 72);
        tally.frame(None, &[0; 60], 60);
        assert_eq!(tally.total(), Count { frames: 6, bytes: 420 });
        assert_eq!(tally.queues().unwrap()[&0], Count { frames: 3, bytes: 216 });
        let mut flows: Vec<u64> = tally.flows().map(|(_, count)| count.frames).collect();
        flows.sort();
        assert_eq!((flows, tally.cpus()), (vec![1, 5], None));
        let marks = tally.marks().unwrap();
        assert_eq!((marks.corrupted(), marks.unmarked()), (1, 1));
        let (stream, account) = marks.streams().next().unwrap();
        assert_eq!((stream, account.unique, account.duplicates, account.lost), (7, 3, 1, 1));
    }

    #[test]
    fn flows_and_streams_are_bounded() {
        let mut tally = Tally::new(true);
        let mut frame = udp4(&[0; 30]);
        for number in 0..FLOWS_MAX as u32 + 5 {
            frame[26..30].copy_from_slice(&number.to_be_bytes());
            tally.frame(None, &frame, 72);
        }
        assert_eq!((tally.flows().count(), tally.other_flows().frames), (FLOWS_MAX, 5));
        for stream in 0..STREAMS_MAX as u16 + 5 {
            tally.frame(None, &marked(stream, 1 << 40), 72);
        }
        let marks = tally.marks().unwrap();
        assert_eq!((marks.streams().count(), marks.unfollowed()), (STREAMS_MAX, 5));
    }
}
