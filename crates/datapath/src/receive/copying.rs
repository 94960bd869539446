//! Receiving by copying every frame.

use std::time::Duration;

use super::{Buffers, Receive, ReceiveTotals};
use crate::Packets;
use crate::batch::Batch;
use crate::device::{DeviceError, Lend};

/// Copies each frame into a buffer that is just large enough. The device's memory is free again at once.
pub struct Copying<B> {
    queue: Box<dyn Lend>,
    buffers: B,
    no_buffer: u64,
}

impl<B: Buffers> Copying<B> {
    /// From this queue into buffers of this allocator.
    pub fn new(queue: Box<dyn Lend>, buffers: B) -> Self {
        Self { queue, buffers, no_buffer: 0 }
    }
}

impl<B: Buffers> Receive for Copying<B> {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        let Self { queue, buffers, no_buffer } = self;
        queue.lend(budget, &mut |frame| *no_buffer += u64::from(!copied(buffers, frame, batch)))
    }

    fn reclaim(&mut self, packets: &mut Packets) {
        packets.end_all(|packet| self.buffers.give_back(packet));
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.wait(timeout)
    }

    fn ended(&self) -> bool {
        self.queue.ended()
    }

    fn totals(&mut self) -> ReceiveTotals {
        ReceiveTotals { queue: self.queue.totals(), no_buffer: self.no_buffer, too_long: 0 }
    }

    fn pinned_bytes(&self) -> Option<u64> {
        self.buffers.pinned_bytes()
    }
}

/// Copies a frame into a new packet of the batch; false where there is no memory for it.
#[inline]
pub(super) fn copied(buffers: &mut impl Buffers, frame: &[u8], batch: &mut Batch) -> bool {
    let packet = batch.push_empty();
    if buffers.fill(packet, frame.len()).is_ok()
        && let Ok(room) = packet.put(frame.len())
    {
        room.copy_from_slice(frame);
        return true;
    }
    batch.pop();
    false
}
