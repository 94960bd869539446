//! Receiving by copying every frame.

use std::time::Duration;

use pagefrag::PacketBuf;

use super::{Buffers, Receive, ReceiveTotals};
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
        queue.lend(budget, &mut |frame| match copied(buffers, frame) {
            Some(packet) => batch.push(packet),
            None => *no_buffer += 1,
        })
    }

    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>) {
        for packet in packets.drain(..) {
            self.buffers.give_back(packet);
        }
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

/// None where there is no memory.
#[inline]
pub(super) fn copied(buffers: &mut impl Buffers, frame: &[u8]) -> Option<PacketBuf> {
    let mut packet = buffers.buffer(frame.len()).ok()?;
    packet.put(frame.len()).ok()?.copy_from_slice(frame);
    Some(packet)
}
