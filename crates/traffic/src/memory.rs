//! A backend without a kernel: frames end in memory. For tests and dry runs.

use std::collections::VecDeque;

use crate::backend::{Backend, BackendKind, SendError, Sent};
use crate::frames::Frames;

/// Writes frames and keeps the last ones.
#[derive(Debug)]
pub struct Memory {
    frames: Frames,
    room: Vec<u8>,
    kept: VecDeque<Vec<u8>>,
    keep: usize,
    sequence: u64,
    /// How many more frames are taken, for tests of a backend that runs full.
    capacity: u64,
}

impl Memory {
    /// Sends `frames` and keeps the last `keep` of them.
    pub fn new(frames: Frames, keep: usize) -> Self {
        let room = vec![0; frames.l2_bytes_max()];
        Self { frames, room, kept: VecDeque::new(), keep, sequence: 0, capacity: u64::MAX }
    }

    /// Takes only so many frames from now on; then it is full, and sends fewer than asked for.
    #[must_use]
    pub fn with_capacity(mut self, frames: u64) -> Self {
        self.capacity = frames;
        self
    }

    /// The frames kept, the oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &[u8]> {
        self.kept.iter().map(Vec::as_slice)
    }
}

impl Backend for Memory {
    fn kind(&self) -> BackendKind {
        BackendKind::Memory
    }

    /// Every frame taken is confirmed at once.
    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        let mut count = 0;
        while count < packets.min(self.capacity) {
            let Some(l2_bytes) = self.frames.write(self.sequence, &mut self.room) else { break };
            self.sequence += 1;
            count += 1;
            if self.keep > 0 {
                if self.kept.len() == self.keep {
                    self.kept.pop_front();
                }
                self.kept.push_back(self.room[..l2_bytes].to_vec());
            }
        }
        self.capacity -= count;
        Ok(Sent { offered: count, confirmed: count, calls: 0 })
    }

    fn ended(&self) -> bool {
        self.frames.ended()
    }

    fn flush(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_frames_are_kept_and_numbers_go_on() {
        let frames = Frames::generated(20, |sequence, frame| frame.fill(sequence as u8)).unwrap();
        let mut backend = Memory::new(frames, 3);
        backend.send(4).unwrap();
        backend.send(1).unwrap();
        assert_eq!(backend.kept().map(|frame| frame[19]).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn frames_have_their_lengths_and_an_end() {
        let frames =
            Frames::varied(60, |sequence, _| (sequence < 3).then_some(20 + sequence as usize)).unwrap();
        let mut backend = Memory::new(frames, 9);
        assert_eq!((backend.send(2).unwrap().offered, backend.ended()), (2, false));
        assert_eq!((backend.send(2).unwrap().offered, backend.ended()), (1, true));
        assert_eq!(backend.kept().map(<[u8]>::len).collect::<Vec<_>>(), [20, 21, 22]);
    }

    #[test]
    fn a_full_one_takes_fewer() {
        let mut backend = Memory::new(Frames::constant([0; 60]).unwrap(), 0).with_capacity(5);
        assert_eq!(backend.send(3).unwrap().offered, 3);
        assert_eq!(backend.send(3).unwrap().offered, 2);
        assert_eq!(backend.send(3).unwrap().offered, 0);
    }
}
