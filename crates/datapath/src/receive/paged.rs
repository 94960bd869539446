//! Receiving from a device that writes frames into pages.

use std::time::Duration;

use pagefrag::{Align, PacketBuf, Page, PagePool, Piece};

use super::{
    Buffers, Receive, ReceiveTotals,
    copying::{Loss, Losses, copied},
};
use crate::batch::Batch;
use crate::device::{DeviceError, Land, Landed};

/// What a driver does with a frame in its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handing {
    /// Copies it; the page goes back to the device.
    Copy,
    /// Copies frames of up to so many bytes; of longer ones only the headers, and the rest stays in the page, which goes along.
    CopyBreak(usize),
    /// Hands the page up with the frame in it. A new one goes to the device.
    Page,
    /// As `Page`, but several frames share one page.
    Fragment,
}

/// The driver of a device that writes into pages of a pool.
pub struct Paged<B> {
    queue: Box<dyn Land>,
    pool: PagePool,
    buffers: B,
    handing: Handing,
    /// Bytes of a piece of a page that the device gets; the whole page if none.
    piece_bytes: Option<usize>,
    losses: Losses,
}

impl<B: Buffers> Paged<B> {
    /// From this queue, whose pages come from `pool`; what is copied goes to `buffers`. `longest`: bytes of the longest frame.
    pub fn new(queue: Box<dyn Land>, pool: PagePool, buffers: B, handing: Handing, longest: usize) -> Self {
        let piece_bytes = (handing == Handing::Fragment).then(|| pagefrag::buffer_bytes(longest));
        Self { queue, pool, buffers, handing, piece_bytes, losses: Losses::default() }
    }

    /// Gives the device as many pages as it takes.
    fn refill(&mut self) {
        for _ in 0..self.queue.room() {
            let page = match self.piece_bytes {
                Some(bytes) => self.pool.alloc_frag(bytes, Align::CACHE_LINE),
                None => self.pool.alloc(),
            };
            let Ok(page) = page else { return };
            if let Err(page) = self.queue.post(page) {
                self.pool.recycle(page);
                return;
            }
        }
    }

    // Not by `pagefrag::copy_break`: it takes the frame as a piece, and gives no whole page back to be posted again.
    fn handed(&mut self, landed: Landed) -> Result<PacketBuf, Loss> {
        let Landed { page, offset, l2_bytes } = landed;
        let copy_bytes = match self.handing {
            Handing::Copy => l2_bytes,
            Handing::CopyBreak(most) if l2_bytes <= most => l2_bytes,
            Handing::CopyBreak(_) => pagefrag::HEADERS_BYTES.min(l2_bytes),
            Handing::Page | Handing::Fragment => {
                let mut packet = PacketBuf::new(page, offset);
                packet.put(l2_bytes).map_err(|_| Loss::TooLong)?;
                return Ok(packet);
            }
        };
        let head = page.get(offset..offset + copy_bytes).ok_or(Loss::TooLong);
        let packet = head.and_then(|head| copied(&mut self.buffers, head));
        if copy_bytes == l2_bytes {
            self.give_to_device(page);
            return packet;
        }
        let mut packet = match packet {
            Ok(packet) => packet,
            Err(loss) => {
                self.give_to_device(page);
                return Err(loss);
            }
        };
        let mut rest = Piece::from(page);
        rest.truncate(offset + l2_bytes);
        rest.advance(offset + copy_bytes);
        packet.attach(rest);
        Ok(packet)
    }

    fn give_to_device(&mut self, page: Page) {
        if let Err(page) = self.queue.post(page) {
            self.pool.recycle(page);
        }
    }
}

impl<B: Buffers> Receive for Paged<B> {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        self.refill();
        let mut frames = 0;
        while frames < budget {
            let Some(landed) = self.queue.landed()? else { break };
            frames += 1;
            match self.handed(landed) {
                Ok(packet) => batch.push(packet),
                Err(loss) => self.losses.count(loss),
            }
        }
        Ok(frames)
    }

    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>) {
        match self.handing {
            Handing::Page | Handing::Fragment => {
                packets.drain(..).for_each(|packet| self.pool.recycle_packet(packet));
            }
            // Nothing is attached to what was copied whole.
            Handing::Copy => packets.drain(..).for_each(|packet| self.buffers.give_back(packet)),
            Handing::CopyBreak(_) => {
                packets.drain(..).for_each(|packet| self.buffers.give_back_with(packet, &mut self.pool));
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        self.queue.wait(timeout)
    }

    fn totals(&mut self) -> ReceiveTotals {
        self.losses.totals(self.queue.totals())
    }

    fn pinned_bytes(&self) -> Option<u64> {
        self.buffers.pinned_bytes()
    }
}
