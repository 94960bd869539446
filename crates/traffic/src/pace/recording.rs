//! Frames that have times of their own, such as those of a capture file.
//!
//! A backend takes frames when it is told to send, and when to tell it is known from the time of the frame that comes
//! next. So the frames and their times share a look-ahead of one frame.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frames::{FrameError, Frames, check};

/// What is known of a frame of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Its length, without FCS; see [`Frames::varied`].
    pub l2_bytes: usize,
    /// When it was seen, in ns since the beginning of the recording. One before its predecessor's is taken as that.
    pub at_ns: u64,
}

/// Splits a recording into its frames, for a backend, and their times, for [`crate::Timing::Recorded`].
///
/// `next` writes the next frame and says what it is; `None` at the end, and it is not called again then. A source that
/// fails ends as well: it is for `next` to keep the reason. To send the frames at a fixed rate, use [`Frames::varied`].
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use traffic::{Generator, Memory, Paced, Recorded, Timing, recording};
///
/// let mut frames = vec![(0, vec![1; 60]), (1500, vec![2; 80])].into_iter();
/// let (frames, timeline) = recording(80, move |room| {
///     let (at_ns, frame) = frames.next()?;
///     room[..frame.len()].copy_from_slice(&frame);
///     Some(Recorded { l2_bytes: frame.len(), at_ns })
/// })?;
/// let timing = Timing::Recorded { timeline, start_ns: 0, speed: 1.0 };
/// let mut paced = Paced::new(Box::new(Memory::new(frames, 0)), timing);
/// assert_eq!(paced.send(u64::MAX, &AtomicBool::new(false))?.confirmed, 2);
/// assert!(paced.ended());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn recording(
    l2_bytes_max: usize,
    next: impl FnMut(&mut [u8]) -> Option<Recorded> + Send + 'static,
) -> Result<(Frames, Timeline), FrameError> {
    check(l2_bytes_max)?;
    let room = vec![0; l2_bytes_max];
    let reader = Arc::new(Mutex::new(Reader { next: Box::new(next), room, ahead: None, ended: false }));
    let timeline = Timeline { reader: Arc::clone(&reader) };
    let frames = Frames::varied(l2_bytes_max, move |_, room| lock(&reader).take(room))?;
    Ok((frames, timeline))
}

/// The times of a recording's frames.
pub struct Timeline {
    reader: Arc<Mutex<Reader>>,
}

/// Writes the next frame and says what it is; `None` at the end.
type Next = Box<dyn FnMut(&mut [u8]) -> Option<Recorded> + Send>;

struct Reader {
    next: Next,
    /// Holds the frame that was read ahead.
    room: Vec<u8>,
    ahead: Option<Recorded>,
    ended: bool,
}

impl Timeline {
    /// The time of the frame that the backend takes next, in ns since the beginning; `None` at the end.
    pub(super) fn next_ns(&mut self) -> Option<u64> {
        lock(&self.reader).look_ahead().map(|recorded| recorded.at_ns)
    }
}

impl Reader {
    fn look_ahead(&mut self) -> Option<Recorded> {
        if self.ahead.is_none() && !self.ended {
            self.ahead = (self.next)(&mut self.room);
            self.ended = self.ahead.is_none();
        }
        self.ahead
    }

    fn take(&mut self, room: &mut [u8]) -> Option<usize> {
        let Recorded { l2_bytes, .. } = self.look_ahead()?;
        self.ahead = None;
        let l2_bytes = l2_bytes.min(self.room.len()).min(room.len());
        room[..l2_bytes].copy_from_slice(&self.room[..l2_bytes]);
        Some(l2_bytes)
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timeline")
    }
}

/// Only a panic in `next` poisons it, after which what was read ahead is still whole.
fn lock(reader: &Mutex<Reader>) -> MutexGuard<'_, Reader> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_frames_that_come_next() {
        let mut number = 0;
        let next = move |room: &mut [u8]| {
            number += 1;
            assert!(number <= 4, "asked after the end");
            room.fill(number);
            (number < 4)
                .then_some(Recorded { l2_bytes: 20 * usize::from(number), at_ns: u64::from(number) * 5 })
        };
        let (mut frames, mut timeline) = recording(50, next).unwrap();
        let mut room = [0; 50];
        assert_eq!((timeline.next_ns(), timeline.next_ns()), (Some(5), Some(5)));
        assert_eq!((frames.write(0, &mut room), room[19]), (Some(20), 1));
        // Without being asked for its time.
        assert_eq!((frames.write(1, &mut room), room[39]), (Some(40), 2));
        assert_eq!(timeline.next_ns(), Some(15));
        assert_eq!((frames.write(2, &mut room), room[49]), (Some(50), 3));
        assert!(!frames.ended());
        assert_eq!((timeline.next_ns(), frames.write(3, &mut room)), (None, None));
        assert!(frames.ended());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert!(
            [0, 13, usize::MAX].into_iter().all(|l2_bytes_max| recording(l2_bytes_max, |_| None).is_err())
        );
    }
}
