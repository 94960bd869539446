//! Counters as functions of the packet's number, so that any packet can be made without those before it.

/// The values of a counter: `base` plus or minus `(start + (k mod period) * step) mod modulus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    base: u128,
    down: bool,
    start: u128,
    step: u128,
    /// 0 stands for 2^128.
    modulus: u128,
    /// 0 stands for none.
    period: u128,
}

/// A [`Counter`] whose numbers and products have at most 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallCounter {
    pub(crate) base: u64,
    pub(crate) down: bool,
    pub(crate) start: u64,
    pub(crate) step: u64,
    modulus: Divisor,
    period: Divisor,
}

impl SmallCounter {
    /// The value for the k-th packet that has the counter.
    #[inline]
    pub(crate) fn at(&self, k: u64) -> u64 {
        let moved = self.start + self.period.remainder(k) * self.step;
        let moved = if moved < self.modulus.number { moved } else { self.modulus.remainder(moved) };
        if self.down { self.base - moved } else { self.base + moved }
    }

    /// After how many packets the values come again.
    pub(crate) fn period(&self) -> Option<u64> {
        Some(self.period.number)
    }

    /// `first`, `step` and `period`, so that each value is `first + (k mod period) * step` in two's complement; none if
    /// the values wrap within the period.
    pub(crate) fn unwrapped(&self) -> Option<(u64, u64, Divisor)> {
        let last = (self.period.number - 1).checked_mul(self.step)?.checked_add(self.start)?;
        let signed = |step: u64| if self.down { step.wrapping_neg() } else { step };
        let first = self.base.wrapping_add(signed(self.start));
        (last < self.modulus.number).then_some((first, signed(self.step), self.period))
    }

    /// The same in the form that it comes from.
    pub(crate) fn wide(&self) -> Counter {
        Counter {
            base: self.base.into(),
            down: self.down,
            start: self.start.into(),
            step: self.step.into(),
            modulus: self.modulus.number.into(),
            period: self.period.number.into(),
        }
    }

    /// What the packet's number is reduced by.
    pub(crate) fn period_number(&self) -> u64 {
        self.period.number
    }

    /// What the value is reduced by.
    pub(crate) fn modulus_number(&self) -> u64 {
        self.modulus.number
    }
}

/// A [`Counter`] over all values of a number of bits, at most 64: `(start + k * step) & mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Powers {
    pub(crate) start: u64,
    pub(crate) step: u64,
    pub(crate) mask: u64,
}

/// A divisor with what makes its remainders cheap: for 32 bits, two multiplications instead of a division (Lemire,
/// Kaser and Kurz, "Faster remainder by direct computation", 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Divisor {
    number: u64,
    /// 2^64 / number, rounded up; 2^64 is 0.
    inverse: u64,
}

impl Divisor {
    /// `number` must not be 0.
    pub(crate) fn new(number: u64) -> Self {
        Self { number, inverse: (u64::MAX / number).wrapping_add(1) }
    }

    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) fn divide(self, value: u64) -> (u64, u64) {
        if value < self.number {
            return (0, value);
        }
        let quotient = match (value | self.number) >> 32 {
            // 2^64 / 1 has no room in the inverse.
            0 if self.number != 1 => ((u128::from(self.inverse) * u128::from(value)) >> 64) as u64,
            _ => value / self.number,
        };
        (quotient, value - quotient * self.number)
    }

    #[inline]
    pub(crate) fn remainder(self, value: u64) -> u64 {
        if (value | self.number) >> 32 == 0 {
            let fraction = self.inverse.wrapping_mul(value);
            return ((u128::from(fraction) * u128::from(self.number)) >> 64) as u64;
        }
        self.remainder_of_large(value)
    }

    #[inline(never)]
    fn remainder_of_large(self, value: u64) -> u64 {
        match value {
            _ if value < self.number => value,
            _ if self.number.is_power_of_two() => value & (self.number - 1),
            _ => value % self.number,
        }
    }
}

impl Counter {
    /// From `least` to `most` inclusive. Above `most` it goes on at the remainder by `most + 1`, but not below
    /// `least`; ranges of more than 64 bits go on at the remainder by their length.
    ///
    /// This is how trafgen counts in a field: 5 to 10 by 4 is 5, 9, 5, 9; 1 to 10 by 4 is 1, 5, 9, 2, 6, 10, 3 ...
    /// Downwards it is the mirror image.
    pub(crate) fn in_field(least: u128, most: u128, step: u128, down: bool) -> Self {
        // In single steps, to begin again is to go on at the remainder.
        if step == 1 || most > u128::from(u64::MAX) {
            let base = if down { most } else { least };
            return Self::new(base, down, 0, step, (most - least).wrapping_add(1), 0);
        }
        let modulus = most + 1;
        let step = step % modulus;
        let period = if least == 0 { 0 } else { first_restart(least, modulus, step) };
        let base = if down { least + most } else { 0 };
        Self::new(base, down, least, step, modulus, period)
    }

    /// The bytes in front of the last `bytes` (at most 8), if they are the same in all values, and the counter of the
    /// last ones.
    pub(crate) fn narrow(&self, bytes: usize) -> Option<(u128, Self)> {
        let bits = 8 * bytes as u32;
        let (base, last) = (self.base, self.modulus.checked_sub(1)?);
        let other = if self.down { base.checked_sub(last)? } else { base.checked_add(last)? };
        let fits = bits <= 64 && self.start == 0 && base >> bits == other >> bits;
        let low = base & ((1 << bits.min(64)) - 1);
        fits.then_some((base - low, Self { base: low, ..*self }))
    }

    /// All values of `bits` bits, from `start` on.
    pub(crate) fn whole(start: u128, bits: u32, step: u128, down: bool) -> Self {
        let modulus = 1_u128.checked_shl(bits).unwrap_or(0);
        let reduce = |value: u128| if modulus == 0 { value } else { value % modulus };
        let step = if down { reduce(modulus.wrapping_sub(reduce(step))) } else { step };
        Self::new(0, false, reduce(start), step, modulus, 0)
    }

    /// From `least` to `most` inclusive, or back, going on at the remainder by their number: counters of one byte.
    pub(crate) fn in_byte(least: u8, most: u8, step: u8, down: bool) -> Self {
        let base = if down { most } else { least };
        Self::new(u128::from(base), down, 0, u128::from(step), u128::from(most - least) + 1, 0)
    }

    fn new(base: u128, down: bool, start: u128, step: u128, modulus: u128, period: u128) -> Self {
        let step = if modulus == 0 { step } else { step % modulus };
        let natural = if modulus == 0 { 0 } else { modulus / gcd(step, modulus) };
        let period = if period == 0 { natural } else { period };
        Self { base, down, start, step, modulus, period }
    }

    /// The same in a form that is faster, if it fits.
    pub(crate) fn small(&self) -> Option<SmallCounter> {
        let fits = self.modulus != 0 && self.modulus <= 1 << 32 && self.period != 0 && self.base < 1 << 63;
        fits.then(|| SmallCounter {
            base: self.base as u64,
            down: self.down,
            start: self.start as u64,
            step: self.step as u64,
            modulus: Divisor::new(self.modulus as u64),
            period: Divisor::new(self.period as u64),
        })
    }

    /// The same as a mask, if it has that form.
    pub(crate) fn powers(&self) -> Option<Powers> {
        let whole = self.modulus.is_power_of_two() && self.modulus <= 1 << 64 && self.base == 0 && !self.down;
        let natural = self.modulus != 0 && self.period == self.modulus / gcd(self.step, self.modulus);
        (whole && natural).then_some(Powers {
            start: self.start as u64,
            step: self.step as u64,
            mask: (self.modulus - 1) as u64,
        })
    }

    /// The value for the k-th packet that has the counter.
    pub(crate) fn at(&self, k: u64) -> u128 {
        let k = match self.period {
            0 => u128::from(k),
            period => u128::from(k) % period,
        };
        let moved = match self.modulus {
            0 => self.start.wrapping_add(k.wrapping_mul(self.step)),
            modulus => (self.start + multiply(k, self.step, modulus)) % modulus,
        };
        if self.down { self.base.wrapping_sub(moved) } else { self.base.wrapping_add(moved) }
    }

    /// After how many packets the values come again; none if later than 2^64.
    pub(crate) fn period(&self) -> Option<u64> {
        u64::try_from(self.period).ok().filter(|&period| period > 0)
    }
}

/// A counter that keeps each value for several packets, or begins again after so many.
#[derive(Debug, Clone)]
pub(crate) struct HeldCounter {
    hold: Divisor,
    again: Option<Divisor>,
    counter: Counter,
    small: Option<SmallCounter>,
}

impl HeldCounter {
    /// Neither `hold` nor `again` may be 0.
    pub(crate) fn new(counter: Counter, hold: u64, again: Option<u64>) -> Self {
        Self { hold: Divisor::new(hold), again: again.map(Divisor::new), small: counter.small(), counter }
    }

    /// The value for the k-th packet that has the counter.
    pub(crate) fn at(&self, k: u64) -> u128 {
        let step = self.steps(k);
        match &self.small {
            Some(small) => u128::from(small.at(step)),
            None => self.counter.at(step),
        }
    }

    fn steps(&self, k: u64) -> u64 {
        let k = self.again.map_or(k, |again| again.divide(k).1);
        self.hold.divide(k).0
    }

    /// After how many packets the values come again.
    pub(crate) fn period(&self) -> Option<u64> {
        let whole = self.counter.period().and_then(|period| period.checked_mul(self.hold.number));
        match (whole, self.again) {
            (Some(whole), Some(again)) if !again.number.is_multiple_of(whole) => Some(again.number),
            (None, Some(again)) => Some(again.number),
            (whole, _) => whole,
        }
    }

    /// Packets that keep one value.
    pub(crate) fn hold(&self) -> u64 {
        self.hold.number
    }

    /// Packets after which it begins again, if that is given.
    pub(crate) fn again(&self) -> Option<u64> {
        self.again.map(Divisor::number)
    }

    /// As [`Counter::narrow`].
    pub(crate) fn narrow(&self, bytes: usize) -> Option<(u128, Self)> {
        let (prefix, counter) = self.counter.narrow(bytes)?;
        Some((prefix, Self { counter, small: counter.small(), ..self.clone() }))
    }

    /// What it counts, one step a number.
    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }
}

/// The greatest common divisor.
pub(crate) fn gcd(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b
}

/// `a * b mod modulus` without overflow, for both below it and a modulus of up to 127 bits.
fn multiply(a: u128, b: u128, modulus: u128) -> u128 {
    if let Some(product) = a.checked_mul(b) {
        return product % modulus;
    }
    let add = |x: u128, y: u128| if x >= modulus - y { x - (modulus - y) } else { x + y };
    let (mut rest, mut power, mut sum) = (a, b % modulus, 0);
    while rest != 0 {
        if rest & 1 == 1 {
            sum = add(sum, power);
        }
        power = add(power, power);
        rest >>= 1;
    }
    sum
}

/// The smallest k >= 1 with `(least + k * step) mod modulus <= least`: where counting begins again.
///
/// All values have at most 64 bits (`modulus` may be 2^64).
fn first_restart(least: u128, modulus: u128, step: u128) -> u128 {
    if step == 0 || least + step >= modulus {
        return 1;
    }
    // With k = j + 1, j * step must fall between these two.
    let (low, high) = (modulus - least - step, modulus - step);
    first_between(step, modulus, low, high).map_or(1, |j| j + 1)
}

/// The smallest j >= 0 with `low <= a * j mod m <= high`, by the steps of Euclid's algorithm.
fn first_between(a: u128, m: u128, low: u128, high: u128) -> Option<u128> {
    if low == 0 {
        return Some(0);
    }
    let a = a % m;
    if a == 0 {
        return None;
    }
    if 2 * a > m {
        return first_between(m - a, m, m - high, m - low);
    }
    let first = low.div_ceil(a);
    if first * a <= high {
        return Some(first);
    }
    // No multiple of a lies between low and high; one must between low + m*y and high + m*y.
    let turns = first_between(m % a, a, (a - high % a) % a, (a - low % a) % a)?;
    Some((low + m * turns).div_ceil(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// trafgen's rule, one packet after the other.
    fn by_steps(least: u64, most: u64, step: u64, count: usize) -> Vec<u128> {
        let mut value = least;
        (0..count)
            .map(|_| {
                let now = value;
                value = ((value + step) % (most + 1)).max(least);
                u128::from(now)
            })
            .collect()
    }

    #[test]
    fn a_field_counts_like_one_packet_after_the_other() {
        for most in 0..40 {
            for least in 0..=most {
                for step in 0..45 {
                    let counter = Counter::in_field(least.into(), most.into(), step.into(), false);
                    let found: Vec<u128> = (0..200).map(|k| counter.at(k)).collect();
                    assert_eq!(found, by_steps(least, most, step, 200), "{least} {most} {step}");
                    let small = counter.small().unwrap();
                    let found: Vec<u128> = (0..200).map(|k| small.at(k).into()).collect();
                    assert_eq!(found, by_steps(least, most, step, 200), "{least} {most} {step}");
                    let down = Counter::in_field(least.into(), most.into(), step.into(), true);
                    assert_eq!(down.at(7), u128::from(least + most) - counter.at(7));
                }
            }
        }
    }

    #[test]
    fn remainders_are_those_of_a_division() {
        let edges = |middle: u64| [middle.wrapping_sub(1), middle, middle.wrapping_add(1)];
        let numbers: Vec<u64> =
            (0..64).flat_map(|bit| edges(1 << bit)).chain([3, 10, 1000, 65_521, 4_294_967_291]).collect();
        for &divisor in numbers.iter().filter(|&&number| number > 0) {
            for &value in &numbers {
                for value in edges(value).into_iter().chain(edges(value.wrapping_mul(divisor))) {
                    let found = Divisor::new(divisor);
                    assert_eq!(found.remainder(value), value % divisor, "{value} {divisor}");
                    assert_eq!(found.divide(value), (value / divisor, value % divisor), "{value} {divisor}");
                }
            }
        }
    }

    #[test]
    fn large_ranges_count_like_small_ones() {
        let most = u64::from(u32::MAX) + 5;
        for (least, step) in [(1, 1 << 30), (77, 3_000_000_019), (1000, 999_999_937)] {
            let counter = Counter::in_field(least.into(), most.into(), step.into(), false);
            let found: Vec<u128> = (0..5000).map(|k| counter.at(k)).collect();
            assert_eq!(found, by_steps(least, most, step, 5000), "{least} {step}");
        }
        let all = Counter::in_field(0, u128::from(u64::MAX), 1, false);
        assert_eq!(all.at(u64::MAX), u128::from(u64::MAX));
    }

    #[test]
    fn a_long_field_is_narrowed_to_what_changes() {
        let base = 0xfd00_u128 << 112;
        for down in [false, true] {
            let wide = Counter::in_field(base + 0x1_0001, base + 0x1_0109, 7, down);
            let (prefix, narrow) = wide.narrow(2).unwrap();
            assert_eq!(prefix, base + 0x1_0000);
            assert!((0..1000).all(|k| prefix + narrow.at(k) == wide.at(k)));
            assert!(narrow.small().is_some());
        }
        assert_eq!(Counter::in_field(base, base + 0x1_0000, 1, false).narrow(2), None);
        assert_eq!(Counter::in_field(0, u128::MAX, 1, false).narrow(8), None);
    }

    #[test]
    fn a_value_may_be_held_and_begin_again() {
        let counter = Counter::in_field(5, 7, 1, false);
        let values = |again| {
            let held = HeldCounter::new(counter, 2, again);
            ((0..9).map(|k| held.at(k)).collect::<Vec<u128>>(), held.period())
        };
        assert_eq!(values(None), (vec![5, 5, 6, 6, 7, 7, 5, 5, 6], Some(6)));
        assert_eq!(values(Some(3)), (vec![5, 5, 6, 5, 5, 6, 5, 5, 6], Some(3)));
        assert_eq!(values(Some(12)).1, Some(6));
        assert_eq!(HeldCounter::new(counter, u64::MAX, None).period(), None);
    }

    #[test]
    fn a_byte_starts_where_it_is_told_to() {
        let values = |down| (0..5).map(|k| Counter::in_byte(5, 10, 4, down).at(k)).collect::<Vec<u128>>();
        assert_eq!(values(false), [5, 9, 7, 5, 9]);
        assert_eq!(values(true), [10, 6, 8, 10, 6]);
        assert_eq!(Counter::in_byte(0, 255, 1, true).at(256), 255);
        assert_eq!(
            Counter::in_byte(3, 7, 1, true).small().unwrap().at(u64::MAX),
            7 - u128::from(u64::MAX % 5) as u64
        );
    }

    #[test]
    fn a_whole_field_carries_and_wraps() {
        let mac = Counter::whole(0xffff_ffff_fffe, 48, 1, false);
        assert_eq!([mac.at(1), mac.at(2)], [0xffff_ffff_ffff, 0]);
        let ipv6 = Counter::whole(u128::MAX, 128, 1, false);
        assert_eq!([ipv6.at(0), ipv6.at(1)], [u128::MAX, 0]);
        let down = Counter::whole(1, 16, 1, true);
        assert_eq!([down.at(0), down.at(1), down.at(2)], [1, 0, 0xffff]);
    }

    #[test]
    fn ranges_wider_than_64_bits_are_exact() {
        let (least, most) = (1_u128 << 100, (1 << 100) + (1 << 90) + 6);
        let step = (1 << 80) + 12_345;
        let counter = Counter::in_field(least, most, step, false);
        let k = u64::MAX;
        // The same by hand: 2^64 - 1 steps are 2^64 steps less one.
        let count = most - least + 1;
        let mut power = step % count;
        for _ in 0..64 {
            power = (power * 2) % count;
        }
        assert_eq!(counter.at(k), least + (power + count - step) % count);
    }
}
