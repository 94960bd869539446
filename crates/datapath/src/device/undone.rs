//! Frames as a stack hands them over, shown as packets.

use linux::offload::Offload;

use super::offload::{Segmenter, complete_checksum};

/// What is under way of the frame at the front of a queue that hands over frames with work left to do.
#[derive(Debug, Default)]
pub(super) struct Undone {
    cutting: Option<Segmenter>,
    packet: Vec<u8>,
}

impl Undone {
    /// Shows `frame`, or the packets that it stands for, `budget` at most (not 0); how many, and whether nothing of it is left. Until
    /// then it must be called with the same frame again.
    #[inline]
    pub(super) fn show(
        &mut self,
        frame: &mut [u8],
        offload: Offload,
        budget: usize,
        each: &mut dyn FnMut(&[u8]),
    ) -> (usize, bool) {
        if offload.is_none() {
            each(frame);
            return (1, true);
        }
        self.show_undone(frame, offload, budget, each)
    }

    fn show_undone(
        &mut self,
        frame: &mut [u8],
        offload: Offload,
        budget: usize,
        each: &mut dyn FnMut(&[u8]),
    ) -> (usize, bool) {
        if self.cutting.is_none() {
            self.cutting = Segmenter::new(frame, &offload);
        }
        let Some(cutting) = &mut self.cutting else {
            if let Some(partial) = offload.checksum {
                complete_checksum(frame, partial);
            }
            each(frame);
            return (1, true);
        };
        for shown in 0..budget {
            let Some(packet) = cutting.next(frame, &mut self.packet) else {
                self.cutting = None;
                return (shown, true);
            };
            each(packet);
        }
        (budget, false)
    }
}
