//! Receiving by copying every frame.

use std::time::Duration;

use pagefrag::{AllocError, PacketBuf};

use super::{Buffers, Receive, ReceiveTotals};
use crate::batch::Batch;
use crate::device::{DeviceError, Lend, RxTotals};

/// Copies each frame into a buffer that is just large enough. The device's memory is free again at once.
pub struct Copying<B> {
    queue: Box<dyn Lend>,
    buffers: B,
    losses: Losses,
}

impl<B: Buffers> Copying<B> {
    /// From this queue into buffers of this allocator.
    pub fn new(queue: Box<dyn Lend>, buffers: B) -> Self {
        Self { queue, buffers, losses: Losses::default() }
    }
}

impl<B: Buffers> Receive for Copying<B> {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        let Self { queue, buffers, losses } = self;
        queue.lend(budget, &mut |frame| match copied(buffers, frame) {
            Ok(packet) => batch.push(packet),
            Err(loss) => losses.count(loss),
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
        self.losses.totals(self.queue.totals())
    }

    fn pinned_bytes(&self) -> Option<u64> {
        self.buffers.pinned_bytes()
    }
}

/// The frame in a buffer of its own.
#[inline]
pub(super) fn copied(buffers: &mut impl Buffers, frame: &[u8]) -> Result<PacketBuf, Loss> {
    let mut packet = buffers.buffer(frame.len()).map_err(Loss::of)?;
    // A buffer holds what it was asked for.
    packet.put(frame.len()).map_err(|_| Loss::TooLong)?.copy_from_slice(frame);
    Ok(packet)
}

/// Why a frame got no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// There was no memory.
    NoBuffer,
    /// No buffer of this allocator is so large, whatever memory there is.
    TooLong,
}

impl Loss {
    #[cold]
    fn of(error: AllocError) -> Self {
        match error {
            AllocError::TooLarge { .. } => Self::TooLong,
            _ => Self::NoBuffer,
        }
    }
}

/// How many frames got none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    no_buffer: u64,
    too_long: u64,
}

impl Losses {
    #[cold]
    pub(super) fn count(&mut self, loss: Loss) {
        match loss {
            Loss::NoBuffer => self.no_buffer += 1,
            Loss::TooLong => self.too_long += 1,
        }
    }

    pub(super) fn totals(&self, queue: RxTotals) -> ReceiveTotals {
        ReceiveTotals { queue, no_buffer: self.no_buffer, too_long: self.too_long }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use pagefrag::{LARGE_BLOCK_BYTES, Source};

    use super::super::Poll;
    use super::*;

    /// Lends one frame of each of these lengths.
    struct Frames(Vec<usize>);

    impl Lend for Frames {
        fn lend(&mut self, _: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
            Ok(self.0.drain(..).map(|l2_bytes| each(&vec![0; l2_bytes])).count())
        }

        fn wait(&mut self, _: Duration) -> Result<(), DeviceError> {
            Ok(())
        }

        fn totals(&mut self) -> RxTotals {
            RxTotals::default()
        }
    }

    #[test]
    fn a_frame_that_no_buffer_holds_is_too_long_and_one_without_memory_has_no_buffer() {
        // Memory for one block.
        let source = Arc::new(Source::default().with_limit_bytes(LARGE_BLOCK_BYTES));
        let large = LARGE_BLOCK_BYTES - 1024;
        let frames = Frames(vec![large, LARGE_BLOCK_BYTES, large, large]);
        let mut receive = Copying::new(Box::new(frames), Poll::new(source));
        let mut batch = Batch::new();
        assert_eq!(receive.poll(64, &mut batch).unwrap(), 4);
        let totals = receive.totals();
        assert_eq!((batch.len(), totals.too_long, totals.no_buffer), (1, 1, 2));
    }
}
