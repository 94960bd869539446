//! Where packets come from and where they go.
//!
//! A device is seen through its queues. A receiving queue lends its frames ([`Lend`]), or writes them into pages that it was
//! given ([`Land`]), or both; what a driver makes of them is decided in [`receive`](crate::receive). A sending queue
//! ([`Transmit`]) takes packets and gives them back when it is done with them, as a network card does by its completions.

mod af_packet;
mod af_xdp;
mod capture;
mod dummy;
mod fault;
mod lending;
mod offload;
mod synthetic;
mod tap;
mod undone;

use std::time::Duration;

use linux::SyscallError;
use pagefrag::{PacketBuf, Page};

pub use af_packet::{AfPacketRx, AfPacketTx, AfPacketTxSpec};
pub use af_xdp::{AfXdp, AfXdpRx, AfXdpSpec, AfXdpTx, PacketMemory};
pub use capture::{CapturedRx, CapturedTx, Sink, ToSink};
pub use dummy::{Dummy, DummyQueue, QueueTotals, TxLock};
pub use fault::{FaultSpec, FaultyLand, FaultyLend};
pub use lending::Lending;
pub use synthetic::{Frames, Maker, Synthetic};
pub use tap::{TapRx, TapTx, open_tap};

/// Why a device does not work.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] SyscallError),
    /// A file could not be read or written.
    #[error("{doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// It cannot be set up as asked.
    #[error("{0}")]
    Setup(String),
}

/// Frames that a receiving queue counted, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxTotals {
    /// Frames that it handed over.
    pub received: u64,
    /// Frames that the device or the kernel lost before, where it tells. None where it does not.
    pub missed: Option<u64>,
    /// Frames lost and made on purpose by a decorator.
    pub injected: Injected,
}

/// What fault injection did, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Injected {
    /// Lost.
    pub dropped: u64,
    /// Handed over with a byte changed.
    pub corrupted: u64,
    /// Handed over once more.
    pub duplicated: u64,
    /// Handed over after a later one.
    pub reordered: u64,
    /// Handed over later.
    pub delayed: u64,
    /// Held at the moment.
    pub held: u64,
}

/// A receiving queue that lends its frames: they stay the device's, and are copied or ignored.
pub trait Lend: Send {
    /// Hands up to `budget` frames to `each`, without their check sequence, in the order of arrival; how many there
    /// were. None at the moment is 0 and no error.
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError>;

    /// Waits until there may be frames, for a time at most. Does not wait where frames are always there.
    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError>;

    /// What it counted so far.
    fn totals(&mut self) -> RxTotals;

    /// Whether no frame will come any more: the end of a file.
    fn ended(&self) -> bool {
        false
    }
}

/// A receiving queue that writes frames into pages of its user, as a network card does.
pub trait Land: Send {
    /// Gives it a page to write to. It comes back when it is full.
    fn post(&mut self, page: Page) -> Result<(), Page>;

    /// How many pages it could take now.
    fn room(&self) -> usize;

    /// The next frame: its page, where in it the frame begins, and its bytes.
    fn landed(&mut self) -> Result<Option<Landed>, DeviceError>;

    /// As [`Lend::wait`].
    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError>;

    /// What it counted so far.
    fn totals(&mut self) -> RxTotals;
}

/// A frame in the page that it was written to.
#[derive(Debug)]
pub struct Landed {
    /// The page.
    pub page: Page,
    /// Bytes before the frame.
    pub offset: usize,
    /// The frame, without its check sequence.
    pub l2_bytes: usize,
}

/// A sending queue.
pub trait Transmit: Send {
    /// Takes packets from the front of `packets`, as many as there is room for, and moves those that it is done with to
    /// `done`: these, or earlier ones. What is left in `packets` had no room.
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError>;

    /// Moves those that it has become done with to `done`, and pushes out what waits.
    fn complete(&mut self, _done: &mut Vec<PacketBuf>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Packets that it took and that have not left: it has them still, or a copy.
    fn held(&self) -> u64 {
        0
    }

    /// Packets that left, and who says so.
    fn totals(&mut self) -> TxTotals;
}

/// What a sending queue counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxTotals {
    /// Packets that left.
    pub packets: u64,
    /// Their bytes, without check sequences.
    pub l2_bytes: u64,
    /// Packets that it took and dropped, as they are longer than the device takes: none of `packets`.
    pub too_long: u64,
}

impl Injected {
    /// Adds those of another queue.
    pub fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.corrupted += other.corrupted;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.delayed += other.delayed;
        self.held += other.held;
    }
}

/// Moves the first so many packets to `done`.
fn move_front(packets: &mut Vec<PacketBuf>, count: usize, done: &mut Vec<PacketBuf>) {
    if count == packets.len() && done.is_empty() {
        std::mem::swap(packets, done);
    } else {
        done.extend(packets.drain(..count));
    }
}
