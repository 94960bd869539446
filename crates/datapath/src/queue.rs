//! Queues with a limit between threads: to a receiver, or to the worker of another CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use pagefrag::PacketBuf;

use crate::batch::Batch;
use crate::device::{DeviceError, RxTotals};
use crate::reason::Reason;
use crate::receive::{Receive, ReceiveTotals};

/// Makes a queue for so many packets. What does not fit is dropped for this reason.
pub fn bounded(limit: usize, full: Reason) -> (Outlet, Inlet) {
    let shared = Arc::new(Shared { packets: ArrayQueue::new(limit.max(1)), closed: AtomicBool::new(false) });
    (Outlet { shared: Arc::clone(&shared), full }, Inlet { shared, received: 0 })
}

#[derive(Debug)]
struct Shared {
    packets: ArrayQueue<PacketBuf>,
    closed: AtomicBool,
}

/// The end that packets are put in. A copy of it is another producer.
#[derive(Debug, Clone)]
pub struct Outlet {
    shared: Arc<Shared>,
    full: Reason,
}

impl Outlet {
    /// Adds a packet, or gives it back because the queue is full.
    #[inline]
    pub fn push(&mut self, packet: PacketBuf) -> Result<(), PacketBuf> {
        self.shared.packets.push(packet)
    }

    /// Why a packet is dropped that does not fit.
    pub fn reason(&self) -> Reason {
        self.full
    }

    /// Packets waiting now.
    pub fn len(&self) -> usize {
        self.shared.packets.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.shared.packets.is_empty()
    }

    /// The most that wait.
    pub fn limit(&self) -> usize {
        self.shared.packets.capacity()
    }

    /// Ends what waits, where nobody will read it any more. How many packets that were.
    pub fn discard(&self) -> u64 {
        let mut packets = 0;
        while self.shared.packets.pop().is_some() {
            packets += 1;
        }
        packets
    }

    /// Whether it was said that nothing will come any more.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Says that nothing will come any more.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}

/// The end that packets are taken from: a receiving side like that of a device.
#[derive(Debug)]
pub struct Inlet {
    shared: Arc<Shared>,
    received: u64,
}

impl Inlet {
    /// The next packet.
    #[inline]
    pub fn pop(&mut self) -> Option<PacketBuf> {
        let packet = self.shared.packets.pop()?;
        self.received += 1;
        Some(packet)
    }

    /// Packets waiting now.
    pub fn len(&self) -> usize {
        self.shared.packets.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.shared.packets.is_empty()
    }

    /// Whether it was closed and is empty.
    pub fn is_finished(&self) -> bool {
        // In this order: nothing is put in after the close.
        self.shared.closed.load(Ordering::Acquire) && self.shared.packets.is_empty()
    }
}

impl Receive for Inlet {
    fn poll(&mut self, budget: usize, batch: &mut Batch) -> Result<usize, DeviceError> {
        let mut packets = 0;
        while packets < budget
            && let Some(packet) = self.pop()
        {
            batch.push(packet);
            packets += 1;
        }
        Ok(packets)
    }

    /// They go back to whoever they came from, as anything does that is dropped elsewhere.
    fn reclaim(&mut self, packets: &mut Vec<PacketBuf>) {
        packets.clear();
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        std::thread::yield_now();
        Ok(())
    }

    fn ended(&self) -> bool {
        self.is_finished()
    }

    fn totals(&mut self) -> ReceiveTotals {
        let queue = RxTotals { received: self.received, missed: Some(0), ..RxTotals::default() };
        ReceiveTotals { queue, ..ReceiveTotals::default() }
    }

    fn pinned_bytes(&self) -> Option<u64> {
        None
    }
}
