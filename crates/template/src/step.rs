//! What varies, in the form that is written fastest.
//!
//! Most fields that vary have two or four bytes, and hold a counter that does not wrap before it begins again, or a
//! random number. These are done here, in a dozen instructions each; all others are left to [`Varying::write`].

use crate::counter::Divisor;
use crate::plan::{Source, Varying};
use crate::random::Random;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// `first + (k mod period) * step`, modulo 2^16.
    Count2(Count),
    /// The same, modulo 2^32.
    Count4(Count),
    /// A number from `first` on, below `first + count`.
    Random2(Drawn),
    Random4(Drawn),
    /// The field of that number.
    Other(usize),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    at: u32,
    first: u64,
    /// In two's complement.
    step: u64,
    period: Divisor,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawn {
    at: u32,
    first: u64,
    count: u64,
}

/// The steps that write what varies, in its order.
pub(crate) fn steps(varying: &[Varying]) -> Vec<Step> {
    varying.iter().enumerate().map(|(index, varying)| fast(varying).unwrap_or(Step::Other(index))).collect()
}

fn fast(varying: &Varying) -> Option<Step> {
    let (at, bytes) = (u32::try_from(varying.at.start).ok()?, varying.at.len());
    if varying.mask != 0 || !matches!(bytes, 2 | 4) {
        return None;
    }
    let drawn = match &varying.source {
        Source::Small(counter) => {
            let (first, step, period) = counter.unwrapped()?;
            let count = Count { at, first, step, period };
            return Some(if bytes == 2 { Step::Count2(count) } else { Step::Count4(count) });
        }
        Source::Range(first, last) => {
            Drawn { at, first: *first, count: last.checked_sub(*first)?.checked_add(1)? }
        }
        // The upper bits of a number, which are its product with this count.
        Source::Bytes => Drawn { at, first: 0, count: 1 << (8 * bytes) },
        _ => return None,
    };
    Some(if bytes == 2 { Step::Random2(drawn) } else { Step::Random4(drawn) })
}

impl Step {
    #[inline]
    pub(crate) fn write(&self, varying: &[Varying], k: u64, random: &mut Random, out: &mut [u8]) {
        match self {
            Self::Count2(count) => put(out, count.at, (count.value(k) as u16).to_be_bytes()),
            Self::Count4(count) => put(out, count.at, (count.value(k) as u32).to_be_bytes()),
            Self::Random2(drawn) => put(out, drawn.at, (drawn.value(random) as u16).to_be_bytes()),
            Self::Random4(drawn) => put(out, drawn.at, (drawn.value(random) as u32).to_be_bytes()),
            Self::Other(index) => varying[*index].write(k, random, out),
        }
    }
}

impl Count {
    #[inline]
    fn value(&self, k: u64) -> u64 {
        self.first.wrapping_add(self.period.remainder(k).wrapping_mul(self.step))
    }
}

impl Drawn {
    #[inline]
    fn value(&self, random: &mut Random) -> u64 {
        self.first.wrapping_add(random.below(self.count))
    }
}

#[inline]
fn put<const N: usize>(out: &mut [u8], at: u32, bytes: [u8; N]) {
    let at = at as usize;
    out[at..at + N].copy_from_slice(&bytes);
}
