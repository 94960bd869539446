//! What a backend sends.

use thiserror::Error;

/// Shortest Ethernet header; the kernel refuses less.
const L2_BYTES_MIN: usize = 14;
/// Longest frame that any backend takes.
const L2_BYTES_MAX: usize = 65_535;

/// The frames of a run, without FCS, in the order in which they are sent.
///
/// Frames that are given beforehand are the cheap way: backends copy them into their rings once, and then send the
/// same memory again and again. A cycle of N frames that differ in a port is how N flows are sent at that price.
/// Frames written by a closure cost the closure and a store to memory for each.
pub struct Frames {
    source: Source,
}

/// Writes the frame of a number and says how long it is; `None` when there is no such frame, nor any later one.
type Fill = Box<dyn FnMut(u64, &mut [u8]) -> Option<usize> + Send>;

enum Source {
    Prebuilt(Vec<Vec<u8>>),
    Written { l2_bytes_max: usize, fill: Fill, ended: bool },
}

/// Why frames cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// There is none.
    #[error("there are no frames to send")]
    None,
    /// One has an impossible length.
    #[error(
        "a frame of {0} bytes (without FCS) cannot be sent: it must have {L2_BYTES_MIN} to {L2_BYTES_MAX}"
    )]
    Length(usize),
}

impl Frames {
    /// The same frame every time.
    pub fn constant(frame: impl Into<Vec<u8>>) -> Result<Self, FrameError> {
        Self::cycle(vec![frame.into()])
    }

    /// These frames in turn, from the first again after the last. Lengths may differ.
    pub fn cycle(frames: Vec<Vec<u8>>) -> Result<Self, FrameError> {
        if frames.is_empty() {
            return Err(FrameError::None);
        }
        frames.iter().try_for_each(|frame| check(frame.len()))?;
        Ok(Self { source: Source::Prebuilt(frames) })
    }

    /// Frames of one length, written by `fill`, which gets the frame's number, from 0 and without gaps, and the bytes
    /// to fill. What they hold before is undefined: zeros or an earlier frame. It must write all that matters.
    pub fn generated(
        l2_bytes: usize,
        mut fill: impl FnMut(u64, &mut [u8]) + Send + 'static,
    ) -> Result<Self, FrameError> {
        Self::varied(l2_bytes, move |sequence, frame| {
            fill(sequence, frame);
            Some(frame.len())
        })
    }

    /// Frames of lengths up to `l2_bytes_max`, written by `fill`, which gets what [`Self::generated`] says and returns the
    /// frame's length, or `None` when the frames have come to an end. It is not called again then.
    ///
    /// A length below that of an Ethernet header is made up to it with zeros, one above `l2_bytes_max` is cut to it: whoever
    /// minds checks the length in `fill`.
    pub fn varied(
        l2_bytes_max: usize,
        fill: impl FnMut(u64, &mut [u8]) -> Option<usize> + Send + 'static,
    ) -> Result<Self, FrameError> {
        check(l2_bytes_max)?;
        Ok(Self { source: Source::Written { l2_bytes_max, fill: Box::new(fill), ended: false } })
    }

    /// Length of the longest frame, without FCS.
    pub fn l2_bytes_max(&self) -> usize {
        match &self.source {
            Source::Prebuilt(frames) => frames.iter().map(Vec::len).max().unwrap_or(0),
            Source::Written { l2_bytes_max, .. } => *l2_bytes_max,
        }
    }

    /// Whether [`Self::write`] has found no more frames.
    pub fn ended(&self) -> bool {
        matches!(self.source, Source::Written { ended: true, .. })
    }

    /// After how many frames they repeat; `None` when they are written one by one.
    pub fn period(&self) -> Option<usize> {
        match &self.source {
            Source::Prebuilt(frames) => Some(frames.len()),
            Source::Written { .. } => None,
        }
    }

    /// Writes a frame to the start of `room`, which must be as long as the longest, and returns its length; `None` after
    /// the last frame. Each frame is written once: what writes them may take them from a stream.
    pub fn write(&mut self, sequence: u64, room: &mut [u8]) -> Option<usize> {
        match &mut self.source {
            Source::Prebuilt(frames) => {
                let frame = &frames[(sequence % frames.len() as u64) as usize];
                room[..frame.len()].copy_from_slice(frame);
                Some(frame.len())
            }
            Source::Written { ended: true, .. } => None,
            Source::Written { l2_bytes_max, fill, ended } => {
                let room = &mut room[..*l2_bytes_max];
                let Some(l2_bytes) = fill(sequence, room) else {
                    *ended = true;
                    return None;
                };
                if l2_bytes < L2_BYTES_MIN {
                    room[l2_bytes..L2_BYTES_MIN].fill(0);
                }
                Some(l2_bytes.clamp(L2_BYTES_MIN, room.len()))
            }
        }
    }

    /// How many slots a ring of about `wanted` should have so that each slot always gets the same frame: a multiple of
    /// the period and of `multiple`. `None` when that is not possible below `limit`.
    pub(crate) fn fixed_slots(&self, wanted: usize, multiple: usize, limit: usize) -> Option<usize> {
        let period = self.period()?;
        let step = (period / common_divisor(period, multiple)).checked_mul(multiple)?;
        wanted.checked_next_multiple_of(step).filter(|&slots| slots <= limit)
    }
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Whether any backend takes a frame of such a length.
pub(crate) fn check(l2_bytes: usize) -> Result<(), FrameError> {
    if (L2_BYTES_MIN..=L2_BYTES_MAX).contains(&l2_bytes) { Ok(()) } else { Err(FrameError::Length(l2_bytes)) }
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.period() {
            Some(period) => write!(f, "Frames(cycle of {period})"),
            None => write!(f, "Frames(up to {} bytes, written one by one)", self.l2_bytes_max()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_starts_again() {
        let mut frames = Frames::cycle(vec![vec![1; 20], vec![2; 30]]).unwrap();
        let mut room = [0; 30];
        let lengths: Vec<usize> = (0..3).map(|sequence| frames.write(sequence, &mut room).unwrap()).collect();
        assert_eq!(
            (lengths, room[0], frames.period(), frames.l2_bytes_max()),
            (vec![20, 30, 20], 1, Some(2), 30)
        );
    }

    #[test]
    fn impossible_frames_are_refused() {
        assert_eq!(Frames::cycle(vec![]).unwrap_err(), FrameError::None);
        assert_eq!(Frames::constant([0; 13]).unwrap_err(), FrameError::Length(13));
        assert_eq!(Frames::generated(65_536, |_, _| ()).unwrap_err(), FrameError::Length(65_536));
        assert_eq!(Frames::varied(13, |_, _| None).unwrap_err(), FrameError::Length(13));
    }

    #[test]
    fn lengths_vary_within_bounds_until_the_end() {
        let lengths = [20, 30, 5, 99];
        let mut calls = 0;
        let fill = move |sequence, frame: &mut [u8]| {
            calls += 1;
            assert!(calls <= 5 && frame.len() == 40);
            frame.fill(7);
            lengths.get(sequence as usize).copied()
        };
        let mut frames = Frames::varied(40, fill).unwrap();
        let mut room = [0; 50];
        assert_eq!(frames.write(0, &mut room), Some(20));
        assert_eq!(frames.write(1, &mut room), Some(30));
        assert_eq!(frames.write(2, &mut room), Some(14));
        assert_eq!(room[..14], [7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frames.write(3, &mut room), Some(40));
        assert!(!frames.ended());
        assert_eq!((frames.write(4, &mut room), frames.write(5, &mut room)), (None, None));
        assert!(frames.ended() && frames.period().is_none());
    }

    #[test]
    fn slots_are_a_multiple_of_the_period() {
        let cycle = |period| Frames::cycle(vec![vec![0; 60]; period]).unwrap();
        assert_eq!(cycle(1).fixed_slots(256, 32, 4096), Some(256));
        assert_eq!(cycle(8).fixed_slots(256, 32, 4096), Some(256));
        assert_eq!(cycle(3).fixed_slots(256, 32, 4096), Some(288));
        assert_eq!(cycle(48).fixed_slots(256, 32, 4096), Some(288));
        assert_eq!(cycle(1001).fixed_slots(256, 32, 4096), None);
        assert_eq!(Frames::generated(60, |_, _| ()).unwrap().fixed_slots(256, 1, 4096), None);
    }
}
