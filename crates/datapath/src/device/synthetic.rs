//! A device on whose wire there is always a next frame.

use std::collections::VecDeque;
use std::time::Duration;

use pagefrag::Page;

use super::{DeviceError, Land, Landed, Lend, RxTotals};

/// Bytes that are written anew for each frame that lands in a page: what a stage may have changed in it before. A network
/// card would have written the whole frame, without any work of the CPU.
const REWRITTEN_BYTES: usize = 128;

/// Writes the next frame to the slice.
pub type Maker = Box<dyn FnMut(&mut [u8]) + Send>;

/// The frames on the wire.
pub enum Frames {
    /// One after the other, again and again.
    Cycle(Vec<Box<[u8]>>),
    /// Each one new: a function writes its next one to the slice, and all have the same length.
    Made {
        /// Their length without check sequence.
        l2_bytes: usize,
        /// Writes one.
        make: Maker,
    },
}

/// A receiving queue with frames from a template: no kernel, no wire, no interrupt.
pub struct Synthetic {
    frames: Frames,
    next: usize,
    /// Where a frame is made that is lent.
    scratch: Box<[u8]>,
    posted: VecDeque<Page>,
    ring_entries: usize,
    received: u64,
    left: u64,
}

impl Synthetic {
    /// A queue with a ring of so many pages, where it is used with pages.
    ///
    /// # Errors
    /// [`DeviceError::Setup`] if there is no frame at all.
    pub fn new(frames: Frames, ring_entries: usize) -> Result<Self, DeviceError> {
        let longest = match &frames {
            Frames::Cycle(all) => all.iter().map(|frame| frame.len()).max().unwrap_or(0),
            Frames::Made { l2_bytes, .. } => *l2_bytes,
        };
        if longest == 0 {
            return Err(DeviceError::Setup("synthetic: there is no frame to receive".into()));
        }
        Ok(Self {
            frames,
            next: 0,
            scratch: vec![0; longest].into(),
            posted: VecDeque::with_capacity(ring_entries),
            ring_entries,
            received: 0,
            left: u64::MAX,
        })
    }

    /// Ends after so many frames.
    #[must_use]
    pub fn with_count(self, packets: u64) -> Self {
        Self { left: packets, ..self }
    }

    fn budget(&self, budget: usize) -> usize {
        usize::try_from(self.left).map_or(budget, |left| left.min(budget))
    }

    fn count(&mut self, frames: usize) {
        self.received += frames as u64;
        self.left -= frames as u64;
    }
}

impl Lend for Synthetic {
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let budget = self.budget(budget);
        match &mut self.frames {
            Frames::Cycle(frames) => {
                for _ in 0..budget {
                    each(&frames[self.next]);
                    self.next += 1;
                    if self.next == frames.len() {
                        self.next = 0;
                    }
                }
            }
            Frames::Made { make, .. } => {
                for _ in 0..budget {
                    make(&mut self.scratch);
                    each(&self.scratch);
                }
            }
        }
        self.count(budget);
        Ok(budget)
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn totals(&mut self) -> RxTotals {
        RxTotals { received: self.received, missed: Some(0), ..RxTotals::default() }
    }

    fn ended(&self) -> bool {
        self.left == 0
    }
}

impl Land for Synthetic {
    fn post(&mut self, page: Page) -> Result<(), Page> {
        if self.posted.len() == self.ring_entries {
            return Err(page);
        }
        self.posted.push_back(page);
        Ok(())
    }

    fn room(&self) -> usize {
        self.ring_entries - self.posted.len()
    }

    fn landed(&mut self) -> Result<Option<Landed>, DeviceError> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(mut page) = self.posted.pop_front() else { return Ok(None) };
        let offset = pagefrag::HEADROOM;
        let l2_bytes = match &mut self.frames {
            Frames::Cycle(frames) => {
                let frame = &frames[self.next];
                let head = frame.len().min(REWRITTEN_BYTES);
                let Some(place) = page.get_mut(offset..offset + frame.len()) else {
                    return Err(too_long(frame.len(), page.len()));
                };
                place[..head].copy_from_slice(&frame[..head]);
                self.next = if self.next + 1 == frames.len() { 0 } else { self.next + 1 };
                frame.len()
            }
            Frames::Made { l2_bytes, make } => {
                let Some(place) = page.get_mut(offset..offset + *l2_bytes) else {
                    return Err(too_long(*l2_bytes, page.len()));
                };
                make(place);
                *l2_bytes
            }
        };
        self.count(1);
        Ok(Some(Landed { page, offset, l2_bytes }))
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn totals(&mut self) -> RxTotals {
        Lend::totals(self)
    }
}

fn too_long(l2_bytes: usize, page_bytes: usize) -> DeviceError {
    let room = page_bytes.saturating_sub(pagefrag::HEADROOM);
    DeviceError::Setup(format!(
        "synthetic: a frame of {l2_bytes} bytes does not fit a page with room for {room}: use larger pages"
    ))
}
