//! What both caches do: fragments are cut from a block from its end to its start.

use alloc::{sync::Arc, vec::Vec};
use core::ptr::NonNull;

use crate::{
    Align, AllocError, Frag, LARGE_BLOCK_BYTES, SMALL_BLOCK_BYTES, Source, Stats,
    block::{Bulk, Reference, Refusal},
};

/// How many of the blocks that wait a refill looks at, the oldest first. Each look may fetch a line that another CPU wrote.
const LOOKS: usize = 4;

/// The core. Guarded by whoever has it: every call that changes something needs `&mut`.
pub(crate) struct Cutter {
    source: Arc<Source>,
    hand: Option<InHand>,
    /// Large blocks that are cut to their end and have holders, the oldest first.
    waiting: Vec<Bulk>,
    /// Which of them the fragment that was given back last belonged to: the next one mostly does too.
    last_given_back: usize,
    most_waiting: usize,
    stats: Stats,
}

impl Cutter {
    pub(crate) fn new(source: Arc<Source>) -> Cutter {
        Cutter {
            source,
            hand: None,
            waiting: Vec::new(),
            last_given_back: 0,
            most_waiting: 0,
            stats: Stats::default(),
        }
    }

    pub(crate) fn set_most_waiting(&mut self, blocks: usize) {
        self.waiting.truncate(blocks);
        self.most_waiting = blocks;
    }

    /// In one piece for both outcomes: a fragment that comes out of a function, or that two branches make, is put together in
    /// memory and read back at once in other words than it was written in, which costs more than all the rest.
    #[inline]
    pub(crate) fn alloc(&mut self, bytes: usize, align: Align) -> Result<Frag, AllocError> {
        if !self.hand.as_ref().is_some_and(|hand| hand.has_room(bytes, align)) {
            self.refill_for(bytes)?;
        }
        // After a refill the whole block is there, and it is as large as was asked for.
        self.hand.as_mut().and_then(|hand| hand.cut(bytes, align)).ok_or(AllocError::OutOfMemory { bytes })
    }

    /// Whether the bytes of the fragment that was cut last are still the zeros that its block came with.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.hand.as_ref().is_some_and(|hand| hand.fresh)
    }

    #[inline]
    pub(crate) fn give_back(&mut self, reference: Reference) {
        let foreign = match &mut self.hand {
            Some(hand) => hand.bulk.put_back(reference),
            None => Some(reference),
        };
        let Some(reference) = foreign else { return };
        match self.waiting.get_mut(self.last_given_back) {
            Some(bulk) => {
                if let Some(other) = bulk.put_back(reference) {
                    self.give_back_waiting(other);
                }
            }
            None => self.give_back_waiting(reference),
        }
    }

    /// To any block that waits, else to nobody.
    #[cold]
    #[inline(never)]
    fn give_back_waiting(&mut self, mut reference: Reference) {
        for (place, bulk) in self.waiting.iter_mut().enumerate() {
            match bulk.put_back(reference) {
                Some(other) => reference = other,
                None => {
                    self.last_given_back = place;
                    return;
                }
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let in_hand_bytes = self.hand.as_ref().map_or(0, |hand| hand.bulk.bytes());
        let waiting_bytes = self.waiting.iter().map(Bulk::bytes).sum();
        Stats { pinned_bytes: self.source.alive_bytes(), in_hand_bytes, waiting_bytes, ..self.stats }
    }

    #[cold]
    #[inline(never)]
    fn refill_for(&mut self, bytes: usize) -> Result<(), AllocError> {
        if bytes > LARGE_BLOCK_BYTES {
            self.stats.too_large += 1;
            return Err(AllocError::TooLarge { bytes });
        }
        self.refill(bytes).map_err(|refusal| {
            self.stats.failures += 1;
            match refusal {
                Refusal::Limit => AllocError::Limit { bytes, limit_bytes: self.source.limit_bytes() },
                Refusal::Memory => AllocError::OutOfMemory { bytes },
            }
        })
    }

    /// Gets a whole block of at least `bytes` in hand: the same one if nobody else holds it, else one that has waited, else a
    /// new one. On failure the block in hand stays there, with what is left of it.
    fn refill(&mut self, bytes: usize) -> Result<(), Refusal> {
        if let Some(hand) = &mut self.hand
            && hand.renew()
        {
            return self.reuse(bytes);
        }
        if let Some(waited) = self.waited(LOOKS) {
            self.exchange(waited);
            return Ok(());
        }
        let new = self.obtain_large(0).or_else(|refusal| self.waited(usize::MAX).ok_or(refusal)).or_else(
            |refusal| match bytes {
                ..=SMALL_BLOCK_BYTES => self.obtain_small(),
                _ => Err(refusal),
            },
        )?;
        self.exchange(new);
        Ok(())
    }

    /// A block that has waited and is whole again: the first one of the `looks` oldest.
    fn waited(&mut self, looks: usize) -> Option<InHand> {
        let place = self.waiting.iter_mut().take(looks).position(Bulk::renew)?;
        self.stats.reuses_after_waiting += 1;
        self.last_given_back = place;
        Some(InHand::used(self.waiting.remove(place)))
    }

    /// Takes a whole block in hand. The one before, which has holders, waits; without a place it is left to them.
    fn exchange(&mut self, new: InHand) {
        let Some(before) = self.hand.replace(new) else { return };
        let may_wait = self.most_waiting > 0 && before.bulk.bytes() == LARGE_BLOCK_BYTES;
        if may_wait && self.waiting.len() < self.most_waiting && self.waiting.try_reserve(1).is_ok() {
            return self.waiting.push(before.bulk);
        }
        self.stats.left_to_holders += 1;
        if may_wait && !self.waiting.is_empty() {
            // The oldest one has waited long enough.
            self.waiting.remove(0);
            self.waiting.push(before.bulk);
        }
    }

    /// The block in hand is whole. A small one is a makeshift: it is kept only while there is no large one.
    fn reuse(&mut self, bytes: usize) -> Result<(), Refusal> {
        let block_bytes = self.hand.as_ref().map_or(0, |hand| hand.bulk.bytes());
        if block_bytes < LARGE_BLOCK_BYTES {
            match self.obtain_large(block_bytes) {
                Ok(large) => {
                    self.hand = Some(large);
                    return Ok(());
                }
                Err(refusal) if bytes > block_bytes => return Err(refusal),
                Err(_) => {}
            }
        }
        self.stats.reuses += 1;
        Ok(())
    }

    fn obtain_large(&mut self, returned_bytes: usize) -> Result<InHand, Refusal> {
        let bulk = Bulk::obtain(&self.source, LARGE_BLOCK_BYTES, returned_bytes)?;
        self.stats.large_refills += 1;
        Ok(InHand::new(bulk))
    }

    fn obtain_small(&mut self) -> Result<InHand, Refusal> {
        let bulk = Bulk::obtain(&self.source, SMALL_BLOCK_BYTES, 0)?;
        self.stats.small_refills += 1;
        Ok(InHand::new(bulk))
    }
}

/// The block that is being cut.
///
/// Always `bulk.bias() > offset`: both begin with the block's size, the bias one higher; a cut takes one reference
/// and at least one byte, and only the bias ever goes up again. So a reference is left as long as a byte is left, and
/// one remains with the cache when none is.
struct InHand {
    bulk: Bulk,
    /// Also in the node, which is read here as seldom as possible: others write its count.
    data: NonNull<u8>,
    /// The bytes before it are free, those from it on were cut.
    offset: usize,
    /// Nothing was cut from it before its last refill.
    fresh: bool,
}

// SAFETY: `data` points into the block that the bulk keeps alive, of which only this type cuts; `Bulk` is Send.
unsafe impl Send for InHand {}

impl InHand {
    fn new(bulk: Bulk) -> InHand {
        InHand { data: bulk.data(), offset: bulk.bytes(), bulk, fresh: true }
    }

    /// Of a block that has been cut before, and that nobody else holds any more.
    fn used(bulk: Bulk) -> InHand {
        InHand { fresh: false, ..InHand::new(bulk) }
    }

    #[inline]
    fn has_room(&self, bytes: usize, align: Align) -> bool {
        self.start(bytes, align).is_some()
    }

    #[inline]
    fn start(&self, bytes: usize, align: Align) -> Option<usize> {
        Some(align.at_or_before(self.offset.checked_sub(bytes.max(1))?))
    }

    /// None if less is left than that. An empty fragment takes a byte too, as it takes a reference.
    #[inline]
    fn cut(&mut self, bytes: usize, align: Align) -> Option<Frag> {
        let start = self.start(bytes, align)?;
        debug_assert!(self.bulk.bias() > self.offset, "bias and offset are out of step");
        // SAFETY: bias > offset (see the type), and offset is at least 1, as it was not less than what is cut.
        let reference = unsafe { self.bulk.take() };
        self.offset = start;
        // SAFETY: the block is larger than `start`.
        let data = unsafe { self.data.add(start) };
        // SAFETY: `Memory` initialised the block; the bytes from `start` to the offset before were free, and are not cut
        // again before `renew` has found that no fragment is left.
        Some(unsafe { Frag::new(data, bytes, reference) })
    }

    fn renew(&mut self) -> bool {
        let renewed = self.bulk.renew();
        if renewed {
            self.offset = self.bulk.bytes();
            self.fresh = false;
        }
        renewed
    }
}
