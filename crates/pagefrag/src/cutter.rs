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
    /// Of the block in hand: the bytes before it are free, those from it on were cut. 0 where there is none, so that one comparison tells
    /// both.
    offset: usize,
    /// Nothing was cut from the block in hand before its last refill.
    fresh: bool,
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
            offset: 0,
            fresh: false,
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
        let start = match self.start(bytes, align) {
            Some(start) => start,
            None => self.refill_for(bytes, align)?,
        };
        // SAFETY: `start` found a byte before the offset, or a refill did: there is a block in hand.
        let hand = unsafe { self.hand.as_mut().unwrap_unchecked() };
        debug_assert!(hand.bulk.bias() > self.offset, "bias and offset are out of step");
        // SAFETY: bias > offset (see `InHand`), and offset is at least 1, as it was not less than what is cut.
        let reference = unsafe { hand.bulk.take() };
        self.offset = start;
        // SAFETY: the block is larger than `start`.
        let data = unsafe { hand.data.add(start) };
        // SAFETY: `Memory` initialised the block; the bytes from `start` to the offset before were free, and are not cut
        // again before `renew` has found that no fragment is left.
        Ok(unsafe { Frag::new(data, bytes, reference) })
    }

    /// Where a fragment would begin. None if less is left than that. An empty fragment takes a byte too, as it takes a reference.
    #[inline]
    fn start(&self, bytes: usize, align: Align) -> Option<usize> {
        Some(align.at_or_before(self.offset.checked_sub(bytes.max(1))?))
    }

    /// Whether the bytes of the fragment that was cut last are still the zeros that its block came with.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
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

    /// Several, of which neighbours mostly belong to one block: those of a run come back together.
    #[inline]
    pub(crate) fn give_back_all(&mut self, references: impl Iterator<Item = Reference>) {
        let mut run: Option<Bulk> = None;
        for reference in references {
            let other = match &mut run {
                Some(run) => run.put_back(reference),
                None => Some(reference),
            };
            if let Some(reference) = other
                && let Some(run) = run.replace(Bulk::of(reference))
            {
                self.give_back_run(run);
            }
        }
        if let Some(run) = run {
            self.give_back_run(run);
        }
    }

    fn give_back_run(&mut self, run: Bulk) {
        let hand = self.hand.as_mut().map(|hand| &mut hand.bulk);
        let mut known = hand.into_iter().chain(self.waiting.iter_mut());
        let mut left = Some(run);
        while let (Some(run), Some(bulk)) = (left.take(), known.next()) {
            left = bulk.put_back_bulk(run);
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
    fn refill_for(&mut self, bytes: usize, align: Align) -> Result<usize, AllocError> {
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
        })?;
        // The whole block is there, and it is as large as was asked for.
        self.start(bytes, align).ok_or(AllocError::OutOfMemory { bytes })
    }

    /// Gets a whole block of at least `bytes` in hand: the same one if nobody else holds it, else one that has waited, else a
    /// new one. On failure the block in hand stays there, with what is left of it.
    fn refill(&mut self, bytes: usize) -> Result<(), Refusal> {
        if let Some(hand) = &mut self.hand
            && hand.bulk.renew()
        {
            self.offset = hand.bulk.bytes();
            self.fresh = false;
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

    /// A whole block; the one before is returned.
    fn take_in_hand(&mut self, new: Whole) -> Option<Bulk> {
        self.offset = new.bulk.bytes();
        self.fresh = new.fresh;
        let new = InHand { data: new.bulk.data(), bulk: new.bulk };
        self.hand.replace(new).map(|before| before.bulk)
    }

    /// A block that has waited and is whole again: the first one of the `looks` oldest.
    fn waited(&mut self, looks: usize) -> Option<Whole> {
        let place = self.waiting.iter_mut().take(looks).position(Bulk::renew)?;
        self.stats.reuses_after_waiting += 1;
        self.last_given_back = place;
        Some(Whole { bulk: self.waiting.remove(place), fresh: false })
    }

    /// Takes a whole block in hand. The one before, which has holders, waits; without a place it is left to them.
    fn exchange(&mut self, new: Whole) {
        let Some(before) = self.take_in_hand(new) else { return };
        let may_wait = self.most_waiting > 0 && before.bytes() == LARGE_BLOCK_BYTES;
        if may_wait && self.waiting.len() < self.most_waiting && self.waiting.try_reserve(1).is_ok() {
            return self.waiting.push(before);
        }
        self.stats.left_to_holders += 1;
        if may_wait && !self.waiting.is_empty() {
            // The oldest one has waited long enough.
            self.waiting.remove(0);
            self.waiting.push(before);
        }
    }

    /// The block in hand is whole. A small one is a makeshift: it is kept only while there is no large one.
    fn reuse(&mut self, bytes: usize) -> Result<(), Refusal> {
        let block_bytes = self.hand.as_ref().map_or(0, |hand| hand.bulk.bytes());
        if block_bytes < LARGE_BLOCK_BYTES {
            match self.obtain_large(block_bytes) {
                Ok(large) => {
                    self.take_in_hand(large);
                    return Ok(());
                }
                Err(refusal) if bytes > block_bytes => return Err(refusal),
                Err(_) => {}
            }
        }
        self.stats.reuses += 1;
        Ok(())
    }

    fn obtain_large(&mut self, returned_bytes: usize) -> Result<Whole, Refusal> {
        let bulk = Bulk::obtain(&self.source, LARGE_BLOCK_BYTES, returned_bytes)?;
        self.stats.large_refills += 1;
        Ok(Whole { bulk, fresh: true })
    }

    fn obtain_small(&mut self) -> Result<Whole, Refusal> {
        let bulk = Bulk::obtain(&self.source, SMALL_BLOCK_BYTES, 0)?;
        self.stats.small_refills += 1;
        Ok(Whole { bulk, fresh: true })
    }
}

/// A block of which nobody holds a fragment.
struct Whole {
    bulk: Bulk,
    /// Nothing was ever cut from it.
    fresh: bool,
}

/// The block that is being cut.
///
/// Always `bulk.bias() > offset` of the [`Cutter`]: both begin with the block's size, the bias one higher; a cut takes one reference
/// and at least one byte, and only the bias ever goes up again. So a reference is left as long as a byte is left, and
/// one remains with the cache when none is.
struct InHand {
    bulk: Bulk,
    /// Also in the node, which is read here as seldom as possible: others write its count.
    data: NonNull<u8>,
}

// SAFETY: `data` points into the block that the bulk keeps alive, of which only the cutter cuts; `Bulk` is Send.
unsafe impl Send for InHand {}
