//! A black hole with any number of queues, as the kernel's dummy device is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagefrag::{Guard, PacketBuf, SpinLock};

use super::{DeviceError, Transmit, TxTotals, move_front};

/// What keeps threads apart that send through one device. Taken for each packet, as `__dev_direct_xmit` does
/// (net/core/dev.c, 6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TxLock {
    /// One lock for the whole device.
    Device,
    /// One lock for each queue, as the kernel has (`HARD_TX_LOCK`).
    #[default]
    Queue,
    /// Nothing (`NETIF_F_LLTX`): each queue must have one user.
    None,
}

/// A device that counts packets and forgets them.
#[derive(Debug)]
pub struct Dummy {
    queues: Box<[Queue]>,
    lock: TxLock,
    device_lock: Padded<SpinLock>,
}

/// One queue. Two cache lines, since the CPU fetches them in pairs: the counters of two queues are not passed between CPUs
/// together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Queue {
    lock: SpinLock,
    taken: AtomicBool,
    packets: AtomicU64,
    l2_bytes: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl Dummy {
    /// A device of so many queues; at least one.
    pub fn new(queues: usize, lock: TxLock) -> Arc<Self> {
        let queues = (0..queues.max(1)).map(|_| Queue::default()).collect();
        Arc::new(Self { queues, lock, device_lock: Padded::default() })
    }

    /// A user of one of its queues.
    ///
    /// # Errors
    /// [`DeviceError::Setup`] if there is no such queue, or if it has a user already and nothing would keep them apart.
    pub fn queue(self: &Arc<Self>, index: usize) -> Result<DummyQueue, DeviceError> {
        let Some(queue) = self.queues.get(index) else {
            let last = self.queues.len() - 1;
            return Err(DeviceError::Setup(format!("dummy: no queue {index}; the last one is {last}")));
        };
        let taken = queue.taken.swap(true, Ordering::Relaxed);
        if taken && self.lock == TxLock::None {
            let why = "without a lock each queue takes one thread: use as many queues as threads, or a lock";
            return Err(DeviceError::Setup(format!("dummy: queue {index} has a user already; {why}")));
        }
        Ok(DummyQueue { device: Arc::clone(self), index })
    }

    /// What each queue counted.
    pub fn totals(&self) -> Vec<QueueTotals> {
        self.queues.iter().map(Queue::totals).collect()
    }

    /// Memory that each queue takes, in bytes, padding included.
    pub fn bytes_per_queue(&self) -> usize {
        size_of::<Queue>()
    }
}

/// What one queue counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without check sequences.
    pub l2_bytes: u64,
}

impl Queue {
    /// Only inside the lock that covers this queue, or by its only user: so that a load and a store are enough.
    #[inline]
    fn count(&self, l2_bytes: usize) {
        self.packets.store(self.packets.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.l2_bytes.store(self.l2_bytes.load(Ordering::Relaxed) + l2_bytes as u64, Ordering::Relaxed);
    }

    fn totals(&self) -> QueueTotals {
        QueueTotals {
            packets: self.packets.load(Ordering::Relaxed),
            l2_bytes: self.l2_bytes.load(Ordering::Relaxed),
        }
    }
}

/// One user of one queue.
#[derive(Debug)]
pub struct DummyQueue {
    device: Arc<Dummy>,
    index: usize,
}

impl Transmit for DummyQueue {
    fn transmit(
        &mut self,
        packets: &mut Vec<PacketBuf>,
        done: &mut Vec<PacketBuf>,
    ) -> Result<(), DeviceError> {
        let queue = &self.device.queues[self.index];
        let lock = match self.device.lock {
            TxLock::Device => Some(&self.device.device_lock.0),
            TxLock::Queue => Some(&queue.lock),
            TxLock::None => None,
        };
        for packet in &*packets {
            if let Some(lock) = lock {
                lock.enter(|| queue.count(packet.len()));
            } else {
                queue.count(packet.len());
            }
        }
        let count = packets.len();
        move_front(packets, count, done);
        Ok(())
    }

    /// Of the queue, whoever used it.
    fn totals(&mut self) -> TxTotals {
        let QueueTotals { packets, l2_bytes } = self.device.queues[self.index].totals();
        TxTotals { packets, l2_bytes, too_long: 0 }
    }
}

#[cfg(test)]
mod tests {
    use pagefrag::Piece;

    use super::*;

    fn packets(count: usize) -> Vec<PacketBuf> {
        (0..count).map(|_| PacketBuf::from(Piece::from(vec![0u8; 60]))).collect()
    }

    #[test]
    fn every_packet_of_every_thread_is_counted_under_each_lock() {
        for (lock, queues) in [(TxLock::Device, 2), (TxLock::Queue, 2), (TxLock::Queue, 1), (TxLock::None, 2)]
        {
            let device = Dummy::new(queues, lock);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let mut queue = device.queue(thread % queues).unwrap();
                    scope.spawn(move || {
                        for _ in 0..100 {
                            let (mut sent, mut done) = (packets(7), Vec::new());
                            queue.transmit(&mut sent, &mut done).unwrap();
                            assert_eq!((sent.len(), done.len()), (0, 7));
                        }
                    });
                }
            });
            let sum: u64 = device.totals().iter().map(|queue| queue.packets).sum();
            let l2_bytes: u64 = device.totals().iter().map(|queue| queue.l2_bytes).sum();
            assert_eq!((sum, l2_bytes), (1_400, 1_400 * 60), "{lock:?}, {queues} queues");
        }
    }

    #[test]
    fn without_a_lock_a_queue_has_one_user() {
        let device = Dummy::new(1, TxLock::None);
        let _user = device.queue(0).unwrap();
        assert!(device.queue(0).unwrap_err().to_string().contains("has a user already"));
        assert!(device.queue(1).unwrap_err().to_string().contains("no queue 1"));
    }

    #[test]
    fn queues_do_not_share_a_pair_of_cache_lines() {
        assert_eq!(Dummy::new(1, TxLock::Queue).bytes_per_queue(), 128);
    }
}
