//! The four rings of AF_XDP: one side writes entries and moves the producer, the other reads them and moves the
//! consumer (Documentation/networking/af_xdp.rst; net/xdp/xsk_queue.h, 6.18).
//!
//! Indices run freely through all 32 bits and wrap; an entry's place is the index modulo the size, a power of
//! two. Each side keeps copies of both indices, so that shared memory is touched once a batch. Entries are written
//! and read as atomics too: a buggy other side may make figures wrong, but not this program undefined.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::packet::mapping::Mapping;

/// Where the parts of a ring lie in its mapping, and how large it is.
#[derive(Debug, Clone)]
pub(super) struct Ring {
    pub(super) memory: Arc<Mapping>,
    pub(super) producer_at: usize,
    pub(super) consumer_at: usize,
    pub(super) flags_at: usize,
    pub(super) entries_at: usize,
    /// Number of entries, a power of two.
    pub(super) size: u32,
}

impl Ring {
    /// Whether the kernel asks to be woken for this ring (`XDP_RING_NEED_WAKEUP`).
    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.word32(self.flags_at).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn place(&self, index: u32, entry_bytes: usize) -> usize {
        self.entries_at + (index & (self.size - 1)) as usize * entry_bytes
    }
}

/// An entry of a ring.
pub(super) trait Entry: Copy {
    fn write(self, memory: &Mapping, at: usize);
    fn read(memory: &Mapping, at: usize) -> Self;
}

/// Fill and completion ring: the place of a chunk in the user memory.
impl Entry for u64 {
    fn write(self, memory: &Mapping, at: usize) {
        memory.word64(at).store(self, Ordering::Relaxed);
    }

    fn read(memory: &Mapping, at: usize) -> Self {
        memory.word64(at).load(Ordering::Relaxed)
    }
}

/// Transmit and receive ring: `struct xdp_desc`.
impl Entry for libc::xdp_desc {
    fn write(self, memory: &Mapping, at: usize) {
        memory.word64(at).store(self.addr, Ordering::Relaxed);
        memory.word32(at + 8).store(self.len, Ordering::Relaxed);
        memory.word32(at + 12).store(self.options, Ordering::Relaxed);
    }

    fn read(memory: &Mapping, at: usize) -> Self {
        Self {
            addr: memory.word64(at).load(Ordering::Relaxed),
            len: memory.word32(at + 8).load(Ordering::Relaxed),
            options: memory.word32(at + 12).load(Ordering::Relaxed),
        }
    }
}

/// The writing side of a ring.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) ring: Ring,
    /// Where the next entry is written.
    produced: u32,
    /// What the other side was told of.
    published: u32,
    /// What the other side had consumed when last looked at.
    consumed: u32,
}

impl Producer {
    pub(super) fn new(ring: Ring) -> Self {
        let produced = ring.memory.word32(ring.producer_at).load(Ordering::Relaxed);
        let consumed = ring.memory.word32(ring.consumer_at).load(Ordering::Acquire);
        Self { ring, produced, published: produced, consumed }
    }

    /// Writes up to `wanted` entries, as far as there is room, and publishes them together; how many.
    pub(super) fn produce<E: Entry>(&mut self, wanted: u32, mut entry: impl FnMut(u32) -> E) -> u32 {
        let count = wanted.min(self.room(wanted));
        for offset in 0..count {
            self.write(entry(offset));
        }
        self.publish();
        count
    }

    /// Writes an entry if there is room; whether there was. The other side sees it after [`Self::publish`].
    #[inline]
    pub(super) fn stage<E: Entry>(&mut self, entry: E) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        self.write(entry);
        true
    }

    /// Tells the other side of all entries written so far.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published != self.produced {
            self.published = self.produced;
            // Release: the entries, and what they refer to, are in memory before the index tells of them.
            self.ring.memory.word32(self.ring.producer_at).store(self.produced, Ordering::Release);
        }
    }

    /// Whether the other side has consumed everything that it was told of.
    pub(super) fn is_consumed(&self) -> bool {
        self.ring.memory.word32(self.ring.consumer_at).load(Ordering::Relaxed) == self.published
    }

    #[inline]
    fn write<E: Entry>(&mut self, entry: E) {
        entry.write(&self.ring.memory, self.ring.place(self.produced, size_of::<E>()));
        self.produced = self.produced.wrapping_add(1);
    }

    /// Free entries: exact when fewer than `wanted` seemed free, else a lower bound.
    #[inline]
    fn room(&mut self, wanted: u32) -> u32 {
        let known = self.ring.size.saturating_sub(self.produced.wrapping_sub(self.consumed));
        if known >= wanted {
            return known;
        }
        // Acquire: the other side is done with the entries before they are written again.
        self.consumed = self.ring.memory.word32(self.ring.consumer_at).load(Ordering::Acquire);
        self.ring.size.saturating_sub(self.produced.wrapping_sub(self.consumed))
    }
}

/// The reading side of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) ring: Ring,
    consumed: u32,
    /// What the other side was told of.
    released: u32,
    /// What the other side had produced when last looked at.
    produced: u32,
    /// What [`Self::look_ahead`] has shown.
    shown: u32,
}

/// Entries that are read one by one are given back so many at a time: each time costs the other side's CPU a cache line.
const RELEASE_BATCH: u32 = 32;

impl Consumer {
    pub(super) fn new(ring: Ring) -> Self {
        let consumed = ring.memory.word32(ring.consumer_at).load(Ordering::Relaxed);
        Self { ring, consumed, released: consumed, produced: consumed, shown: consumed }
    }

    /// Reads up to `wanted` entries, as far as there are any, and gives their places back; how many.
    pub(super) fn consume<E: Entry>(&mut self, wanted: u32, mut entry: impl FnMut(E)) -> u32 {
        let count = self.look().min(wanted);
        for _ in 0..count {
            entry(self.read());
        }
        self.release();
        count
    }

    /// Reads an entry, if there is one. Its place is given back some entries later, or when there is none.
    #[inline]
    pub(super) fn take<E: Entry>(&mut self) -> Option<E> {
        if self.consumed == self.produced {
            self.release();
            if self.look() == 0 {
                return None;
            }
        }
        let entry = self.read();
        if self.consumed.wrapping_sub(self.released) >= RELEASE_BATCH {
            self.release();
        }
        Some(entry)
    }

    /// Shows entries, of those known to be there, up to `distance` ahead of the one that was taken last, each once.
    #[inline]
    pub(super) fn look_ahead<E: Entry>(&mut self, distance: u32, mut entry: impl FnMut(E)) {
        let known = self.produced.wrapping_sub(self.consumed).min(distance);
        // What was taken needs not be shown any more.
        let mut ahead = self.shown.wrapping_sub(self.consumed);
        if ahead > self.ring.size {
            ahead = 0;
        }
        while ahead < known {
            let at = self.ring.place(self.consumed.wrapping_add(ahead), size_of::<E>());
            entry(E::read(&self.ring.memory, at));
            ahead += 1;
        }
        self.shown = self.consumed.wrapping_add(ahead);
    }

    /// How many entries there are.
    fn look(&mut self) -> u32 {
        // Acquire: the entries are read after the index that tells of them.
        let produced = self.ring.memory.word32(self.ring.producer_at).load(Ordering::Acquire);
        let count = produced.wrapping_sub(self.consumed).min(self.ring.size);
        self.produced = self.consumed.wrapping_add(count);
        count
    }

    #[inline]
    fn read<E: Entry>(&mut self) -> E {
        let at = self.ring.place(self.consumed, size_of::<E>());
        self.consumed = self.consumed.wrapping_add(1);
        E::read(&self.ring.memory, at)
    }

    #[inline]
    fn release(&mut self) {
        if self.released != self.consumed {
            self.released = self.consumed;
            // Release: the entries have been read before the other side may write them again.
            self.ring.memory.word32(self.ring.consumer_at).store(self.consumed, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Both ends of a ring in plain memory, its indices starting anywhere.
    fn ends(size: u32, start: u32) -> (Producer, Consumer) {
        let memory = Arc::new(Mapping::anonymous(256 + size as usize * 16).unwrap());
        memory.word32(0).store(start, Ordering::Relaxed);
        memory.word32(64).store(start, Ordering::Relaxed);
        let ring = Ring { memory, producer_at: 0, consumer_at: 64, flags_at: 128, entries_at: 192, size };
        (Producer::new(ring.clone()), Consumer::new(ring))
    }

    #[test]
    fn the_wakeup_flag_is_read() {
        let (producer, _) = ends(2, 0);
        assert!(!producer.ring.needs_wakeup());
        producer.ring.memory.word32(128).store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.ring.needs_wakeup());
    }

    #[test]
    fn descriptors_keep_their_fields() {
        let (mut producer, mut consumer) = ends(4, u32::MAX);
        producer.produce(3, |n| libc::xdp_desc { addr: u64::MAX - u64::from(n), len: n + 60, options: n });
        let mut seen = Vec::new();
        consumer.consume(9, |d: libc::xdp_desc| seen.push((d.addr, d.len, d.options)));
        assert_eq!(seen, [(u64::MAX, 60, 0), (u64::MAX - 1, 61, 1), (u64::MAX - 2, 62, 2)]);
    }

    #[test]
    fn two_threads_pass_everything_in_order() {
        const TOTAL: u64 = 200_000;
        let (mut producer, mut consumer) = ends(64, u32::MAX - 1000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < TOTAL {
                    let wanted = (TOTAL - next).min(17) as u32;
                    next += u64::from(producer.produce(wanted, |offset| next + u64::from(offset)));
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < TOTAL {
                consumer.consume(23, |value: u64| {
                    assert_eq!(value, expected);
                    expected += 1;
                });
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn what_is_ahead_is_shown_once_and_stays() {
        let (mut producer, mut consumer) = ends(8, u32::MAX - 2);
        let ahead = |consumer: &mut Consumer| {
            let mut seen = Vec::new();
            consumer.look_ahead(3, |value: u64| seen.push(value));
            seen
        };
        assert_eq!(ahead(&mut consumer), []);
        producer.produce(6, u64::from);
        assert_eq!(consumer.take::<u64>(), Some(0));
        assert_eq!(ahead(&mut consumer), [1, 2, 3]);
        assert_eq!(ahead(&mut consumer), []);
        assert_eq!((consumer.take::<u64>(), ahead(&mut consumer)), (Some(1), vec![4]));
        // Some are taken without a look ahead.
        (2..6).for_each(|value| assert_eq!(consumer.take(), Some(value)));
        assert_eq!(ahead(&mut consumer), []);
        producer.produce(2, |n| u64::from(n) + 6);
        assert_eq!((consumer.take::<u64>(), ahead(&mut consumer)), (Some(6), vec![7]));
    }

    proptest! {
        /// Against a queue of limited length: what comes out, and how much fits, is the same.
        #[test]
        fn a_ring_is_a_bounded_queue(
            bits in 0_u32..6,
            start: u32,
            steps in proptest::collection::vec((0..4_u8, 0_u32..80), 1..60),
        ) {
            let size = 1 << bits;
            let (mut producer, mut consumer) = ends(size, start);
            let (mut model, mut next) = (VecDeque::new(), 0_u64);
            for (step, wanted) in steps {
                // What was read one by one may keep its place for a while: none of it where all is read.
                match step {
                    0 => {
                        consumer.release();
                        let expected = wanted.min(size - model.len() as u32);
                        let count = producer.produce(wanted, |offset| next + u64::from(offset));
                        prop_assert_eq!(count, expected);
                        model.extend(next..next + u64::from(count));
                        next += u64::from(count);
                    }
                    1 => {
                        consumer.release();
                        let room = size - model.len() as u32;
                        for number in 0..wanted {
                            prop_assert_eq!(producer.stage(next), number < room);
                            if number < room {
                                model.push_back(next);
                                next += 1;
                            }
                        }
                        prop_assert_eq!(consumer.look() as usize + wanted.min(room) as usize, model.len());
                        producer.publish();
                        prop_assert_eq!(producer.is_consumed(), model.is_empty());
                    }
                    2 => {
                        let expected: Vec<u64> = model.drain(..model.len().min(wanted as usize)).collect();
                        let mut seen = Vec::new();
                        consumer.consume(wanted, |value: u64| seen.push(value));
                        prop_assert_eq!(seen, expected);
                    }
                    _ => {
                        for _ in 0..wanted {
                            prop_assert_eq!(consumer.take::<u64>(), model.pop_front());
                        }
                    }
                }
            }
        }
    }
}
