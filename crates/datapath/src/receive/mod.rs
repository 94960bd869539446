//! How a driver gets frames into packet buffers: which memory, and whether they are copied.

mod buffers;
mod copying;
mod paged;

use std::time::Duration;

use pagefrag::PacketBuf;

use crate::batch::Batch;
use crate::device::{DeviceError, RxTotals};

pub use buffers::{AnyContext, Buffers, Poll, PollDropped, Pool, System};
pub use copying::Copying;
pub use paged::{Handing, Paged};

/// The receiving side of a driver: a queue, and the memory that its packets are put in.
pub trait Receive: Send {
    /// Adds up to `budget` packets to the batch; how many frames the queue had, those included that there was no buffer
    /// for.
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError>;

    /// Ends packets. The memory of those that came from here is used again without asking anybody.
    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>);

    /// Waits until there may be packets, for a time at most.
    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError>;

    /// Whether no packet will come any more.
    fn ended(&self) -> bool {
        false
    }

    /// What it counted so far.
    fn totals(&mut self) -> ReceiveTotals;

    /// Memory that its packets and its caches keep from other use, in bytes; where it can be told.
    fn pinned_bytes(&self) -> Option<u64>;
}

/// What a driver counted, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveTotals {
    /// What its queue counted.
    pub queue: RxTotals,
    /// Frames that there was no buffer for.
    pub no_buffer: u64,
    /// Frames longer than a buffer may be.
    pub too_long: u64,
}
