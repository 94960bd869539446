//! Faults made on purpose, in front of a receiving queue: what a bad wire does, with every frame accounted for.
//!
//! At any time, frames handed up = frames of the queue − dropped + duplicated − held.

use std::collections::VecDeque;
use std::time::Duration;

use linux::clock::monotonic_ns;
use pagefrag::Page;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::{DeviceError, Injected, Land, Landed, Lend, RxTotals};
use crate::BUDGET;

const MILLION: u32 = 1_000_000;
/// So many frames are held at most: 64 MiB where each has a page of 4096 bytes.
const HELD_MAX: usize = 16 << 10;

/// How often what happens to a frame, in parts per million. Faults are drawn one by one, in this order; a frame that is dropped has no
/// other, and of reordering and delay the first one counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// It is lost.
    pub drop_ppm: u32,
    /// One byte of it is changed.
    pub corrupt_ppm: u32,
    /// It comes twice.
    pub duplicate_ppm: u32,
    /// It comes after the next frame that is handed up. If there is none at once, it comes when the queue is found empty, and was
    /// not reordered.
    pub reorder_ppm: u32,
    /// It comes later by `delay`; others overtake it. While 16,384 frames are held, no more are taken from the queue: a full wire.
    pub delay_ppm: u32,
    /// How much later.
    pub delay: Duration,
    /// The same faults in the same order for the same seed.
    pub seed: u64,
}

impl FaultSpec {
    /// # Errors
    /// [`DeviceError::Setup`] where a probability is above one.
    fn check(&self) -> Result<(), DeviceError> {
        let all = [
            ("drop", self.drop_ppm),
            ("corrupt", self.corrupt_ppm),
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
            ("delay", self.delay_ppm),
        ];
        match all.into_iter().find(|(_, ppm)| *ppm > MILLION) {
            Some((name, ppm)) => Err(DeviceError::Setup(format!(
                "fault {name}: {ppm} parts per million are more than all; the most is {MILLION}"
            ))),
            None => Ok(()),
        }
    }
}

/// Draws what happens.
#[derive(Debug)]
struct Dice {
    spec: FaultSpec,
    random: Xoshiro256PlusPlus,
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy)]
struct Fate {
    is_dropped: bool,
    /// Which byte, and what is added to it (never 0).
    corruption: Option<(usize, u8)>,
    is_duplicated: bool,
    is_reordered: bool,
    is_delayed: bool,
}

impl Fate {
    fn is_harmless(&self) -> bool {
        let Self { is_dropped, corruption, is_duplicated, is_reordered, is_delayed } = *self;
        !(is_dropped || is_duplicated || is_reordered || is_delayed) && corruption.is_none()
    }
}

impl Dice {
    fn new(spec: FaultSpec) -> Result<Self, DeviceError> {
        spec.check()?;
        Ok(Self { spec, random: Xoshiro256PlusPlus::seed_from_u64(spec.seed) })
    }

    fn throw(&mut self, l2_bytes: usize) -> Fate {
        let spec = self.spec;
        let is_dropped = self.happens(spec.drop_ppm);
        let is_corrupted = !is_dropped && l2_bytes > 0 && self.happens(spec.corrupt_ppm);
        let is_duplicated = !is_dropped && self.happens(spec.duplicate_ppm);
        let is_reordered = !is_dropped && self.happens(spec.reorder_ppm);
        let is_delayed = !is_dropped && !is_reordered && self.happens(spec.delay_ppm);
        let corruption = is_corrupted.then(|| {
            let place = self.below(l2_bytes as u32) as usize;
            (place, self.below(255) as u8 + 1)
        });
        Fate { is_dropped, corruption, is_duplicated, is_reordered, is_delayed }
    }

    /// Nothing is drawn for what never happens.
    #[inline]
    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(MILLION) < ppm
    }

    /// A number below `end`, by multiplication: its error of 2^-32 does not matter here.
    #[inline]
    fn below(&mut self, end: u32) -> u32 {
        let high = self.random.next_u64() >> 32;
        ((high * u64::from(end)) >> 32) as u32
    }
}

/// Frames that are handed up later.
#[derive(Debug)]
struct Later<F> {
    /// After the next frame.
    swapped: Option<F>,
    /// By the time when they are due ([`monotonic_ns`]), the earliest first.
    delayed: VecDeque<(u64, F)>,
    /// At once, when there is room.
    ready: VecDeque<F>,
}

impl<F> Default for Later<F> {
    fn default() -> Self {
        Self { swapped: None, delayed: VecDeque::new(), ready: VecDeque::new() }
    }
}

impl<F> Later<F> {
    fn len(&self) -> u64 {
        (self.delayed.len() + self.ready.len()) as u64 + u64::from(self.swapped.is_some())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more may be delayed.
    fn room(&self) -> usize {
        HELD_MAX.saturating_sub(self.delayed.len())
    }

    /// What may be handed up now.
    fn next(&mut self, now_ns: &mut Option<u64>) -> Option<F> {
        if let Some(frame) = self.ready.pop_front() {
            return Some(frame);
        }
        let (due_ns, _) = self.delayed.front()?;
        let now_ns = *now_ns.get_or_insert_with(monotonic_ns);
        if *due_ns > now_ns { None } else { self.delayed.pop_front().map(|(_, frame)| frame) }
    }

    /// How long until something is due, at most `timeout`.
    fn patience(&self, timeout: Duration) -> Duration {
        if !self.ready.is_empty() || self.swapped.is_some() {
            return Duration::ZERO;
        }
        match self.delayed.front() {
            Some((due_ns, _)) => Duration::from_nanos(due_ns.saturating_sub(monotonic_ns())).min(timeout),
            None => timeout,
        }
    }
}

fn due_ns(delay: Duration) -> u64 {
    monotonic_ns().saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
}

/// Faults in front of a queue that lends frames. Frames are copied only where they are changed or kept.
pub struct FaultyLend {
    queue: Box<dyn Lend>,
    dice: Dice,
    later: Later<Vec<u8>>,
    /// Buffers used before.
    spare: Vec<Vec<u8>>,
    handed: u64,
    injected: Injected,
}

impl FaultyLend {
    /// Over this queue.
    ///
    /// # Errors
    /// [`DeviceError::Setup`] where a probability is above one.
    pub fn new(queue: Box<dyn Lend>, spec: FaultSpec) -> Result<Self, DeviceError> {
        let dice = Dice::new(spec)?;
        let (later, spare, injected) = (Later::default(), Vec::new(), Injected::default());
        Ok(Self { queue, dice, later, spare, handed: 0, injected })
    }

    /// Hands up what is due, `budget` at most.
    fn hand_due(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let (mut handed, mut now_ns) = (0, None);
        while handed < budget
            && let Some(frame) = self.later.next(&mut now_ns)
        {
            each(&frame);
            self.spare.push(frame);
            handed += 1;
        }
        handed
    }
}

impl Lend for FaultyLend {
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let mut handed = self.hand_due(budget, each);
        let rest = (budget - handed).min(self.later.room());
        let Self { queue, dice, later, spare, injected, .. } = self;
        let mut found = Ok(0);
        if rest > 0 {
            let mut hands = Hands { handed: 0, budget: budget - handed, each: &mut *each, later, spare };
            found = queue.lend(rest, &mut |frame| hands.meet(dice, frame, injected));
            handed += hands.handed;
        }
        if matches!(found, Ok(0))
            && handed < budget
            && let Some(frame) = self.later.swapped.take()
        {
            each(&frame);
            self.spare.push(frame);
            handed += 1;
        }
        self.handed += handed as u64;
        found.map(|_| handed)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        match self.later.patience(timeout) {
            Duration::ZERO => Ok(()),
            patience => self.queue.wait(patience),
        }
    }

    fn totals(&mut self) -> RxTotals {
        let injected = Injected { held: self.later.len(), ..self.injected };
        RxTotals { received: self.handed, injected, ..self.queue.totals() }
    }

    fn ended(&self) -> bool {
        self.later.is_empty() && self.queue.ended()
    }
}

/// Where frames go during one call.
struct Hands<'a> {
    handed: usize,
    budget: usize,
    each: &'a mut dyn FnMut(&[u8]),
    later: &'a mut Later<Vec<u8>>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl Hands<'_> {
    #[inline]
    fn meet(&mut self, dice: &mut Dice, frame: &[u8], injected: &mut Injected) {
        let mut fate = dice.throw(frame.len());
        let swapped = self.later.swapped.take();
        // One waits already, and this is what it waits for.
        fate.is_reordered &= swapped.is_none();
        let handed_before = self.handed_in_all();
        if fate.is_harmless() {
            self.hand(frame);
        } else {
            self.do_harm(fate, dice.spec.delay, frame, injected);
        }
        let Some(swapped) = swapped else { return };
        if self.handed_in_all() > handed_before {
            injected.reordered += 1;
            self.hand_own(swapped);
        } else {
            self.later.swapped = Some(swapped);
        }
    }

    fn handed_in_all(&self) -> usize {
        self.handed + self.later.ready.len()
    }

    fn do_harm(&mut self, fate: Fate, delay: Duration, frame: &[u8], injected: &mut Injected) {
        if fate.is_dropped {
            injected.dropped += 1;
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        if let Some((place, added)) = fate.corruption {
            injected.corrupted += 1;
            copy[place] = copy[place].wrapping_add(added);
        }
        if fate.is_duplicated {
            injected.duplicated += 1;
            self.hand(&copy);
        }
        if fate.is_reordered {
            self.later.swapped = Some(copy);
        } else if fate.is_delayed {
            injected.delayed += 1;
            self.later.delayed.push_back((due_ns(delay), copy));
        } else {
            self.hand_own(copy);
        }
    }

    /// Up, or where there is no more room, first in the next call.
    #[inline]
    fn hand(&mut self, frame: &[u8]) {
        if self.handed < self.budget {
            self.handed += 1;
            (self.each)(frame);
        } else {
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(frame);
            self.later.ready.push_back(copy);
        }
    }

    fn hand_own(&mut self, frame: Vec<u8>) {
        if self.handed < self.budget {
            self.handed += 1;
            (self.each)(&frame);
            self.spare.push(frame);
        } else {
            self.later.ready.push_back(frame);
        }
    }
}

/// Faults in front of a queue that writes into pages. Nothing is copied: what is kept is kept in its page.
pub struct FaultyLand {
    queue: Box<dyn Land>,
    dice: Dice,
    later: Later<Landed>,
    handed: u64,
    injected: Injected,
}

impl FaultyLand {
    /// Over this queue.
    ///
    /// # Errors
    /// [`DeviceError::Setup`] where a probability is above one, or where frames are to come twice: there is no second page for them.
    pub fn new(queue: Box<dyn Land>, spec: FaultSpec) -> Result<Self, DeviceError> {
        if spec.duplicate_ppm > 0 {
            let why = "there is no page for the second one: receive by copying to have them";
            return Err(DeviceError::Setup(format!(
                "fault duplicate: not where frames are handed up in pages; {why}"
            )));
        }
        let dice = Dice::new(spec)?;
        Ok(Self { queue, dice, later: Later::default(), handed: 0, injected: Injected::default() })
    }

    /// The frame that is handed up in place of this one, if any.
    fn meet(&mut self, mut landed: Landed) -> Option<Landed> {
        let Self { queue, dice, later, injected, .. } = self;
        let fate = dice.throw(landed.l2_bytes);
        if fate.is_dropped {
            injected.dropped += 1;
            // The page goes to its pool by itself where the device has no room for it.
            drop(queue.post(landed.page));
            return None;
        }
        if let Some((place, added)) = fate.corruption
            && let Some(byte) = landed.page.get_mut(landed.offset + place)
        {
            injected.corrupted += 1;
            *byte = byte.wrapping_add(added);
        }
        if fate.is_reordered && later.swapped.is_none() {
            later.swapped = Some(landed);
            return None;
        }
        if fate.is_delayed {
            injected.delayed += 1;
            later.delayed.push_back((due_ns(dice.spec.delay), landed));
            return None;
        }
        if let Some(swapped) = later.swapped.take() {
            injected.reordered += 1;
            later.ready.push_back(swapped);
        }
        Some(landed)
    }
}

impl Land for FaultyLand {
    fn post(&mut self, page: Page) -> Result<(), Page> {
        self.queue.post(page)
    }

    fn room(&self) -> usize {
        self.queue.room()
    }

    fn landed(&mut self) -> Result<Option<Landed>, DeviceError> {
        let mut next = self.later.next(&mut None);
        // Bounded: where every frame is dropped, the caller must come to look at the time.
        for _ in 0..BUDGET {
            if next.is_some() {
                break;
            }
            let landed = if self.later.room() > 0 { self.queue.landed()? } else { None };
            match landed {
                Some(landed) => next = self.meet(landed),
                None => {
                    next = self.later.swapped.take();
                    break;
                }
            }
        }
        self.handed += u64::from(next.is_some());
        Ok(next)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        match self.later.patience(timeout) {
            Duration::ZERO => Ok(()),
            patience => self.queue.wait(patience),
        }
    }

    fn totals(&mut self) -> RxTotals {
        let injected = Injected { held: self.later.len(), ..self.injected };
        RxTotals { received: self.handed, injected, ..self.queue.totals() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
