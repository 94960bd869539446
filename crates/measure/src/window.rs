//! What became of numbered packets: lost, twice, out of order, too late to tell.
//!
//! A stream's packets carry 64-bit numbers, each one greater by one than that of the packet sent before. A [`Window`] takes the
//! numbers as they arrive and keeps for each of the newest (65,536 by default) whether it came. That is exact within the
//! window, and a number from before it is counted apart: whether it is a second copy or a late first one cannot be known
//! any more, and is not guessed. Memory and time do not depend on how far numbers jump.
//!
//! - **Lost** are the numbers between the lowest and the highest seen that did not come (or came when they were too old). Numbers
//!   before the first and after the last that arrived are not seen to be missing: [`Account::lost_of`] includes them when
//!   it is known how many were sent.
//! - **Reordered** is the first copy of a packet whose number is smaller than the next expected one, which is one more
//!   than the highest seen (RFC 4737 section 3.3). A packet behind a gap is in order; the late ones that fill the gap
//!   are reordered. A reordered packet is not lost.
//! - **Duplicates** are all copies after the first. They have no part in reordering (RFC 4737 section 3.3).
//! - The **extent** of a reordered packet is how many packets arrived since the earliest one with a higher number, itself
//!   included (RFC 4737 section 4.2.1): how much of a buffer would bring it back into order.
//!
//! ```
//! use measure::window::{Arrival, Window};
//!
//! let mut window = Window::new();
//! for number in [0, 1, 3, 4, 2, 4, 6] {
//!     window.record(number);
//! }
//! let account = window.account();
//! assert_eq!((account.lost, account.reordered, account.duplicates), (1, 1, 1));
//! assert_eq!(account.extent_max, Some(2));
//! assert_eq!(account.lost_of(10), Some(4)); // and 7, 8, 9
//! assert_eq!(window.record(5), Arrival::Reordered { extent: 1 });
//! ```

/// Numbers that a window remembers unless another size is asked for.
pub const NUMBERS: u32 = 1 << 16;

const WORD: u64 = u64::BITS as u64;

/// The numbers of one stream, as they arrive.
#[derive(Debug, Clone)]
pub struct Window {
    /// One less than a power of two, of at least one word: a number's place is its bits under this.
    mask: u64,
    /// Which of the newest numbers came: the bit of a number is that number modulo the size.
    came: Box<[u64]>,
    /// Which of them was the highest seen when it came.
    led: Box<[u64]>,
    /// For these: how many first copies had come before. Modulo 2³², which is more than can lie in a window.
    order: Box<[u32]>,
    /// Lowest and highest number, once there is one: 0 before.
    lowest: u64,
    highest: u64,
    unique: u64,
    duplicates: u64,
    reordered: u64,
    too_old: u64,
    extent_max: Option<u64>,
}

/// What one packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A number above all before it.
    InOrder,
    /// The first copy of a number below the highest.
    Reordered {
        /// Packets since the earliest with a higher number, itself included.
        extent: u64,
    },
    /// A further copy.
    Duplicate,
    /// Older than the window: a further copy, or a first one that counts as lost.
    TooOld,
}

/// Totals of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// The lowest and the highest number that counted. None before the first packet.
    pub range: Option<(u64, u64)>,
    /// First copies.
    pub unique: u64,
    /// Numbers between lowest and highest that did not come, or came too late to tell.
    pub lost: u64,
    /// Further copies.
    pub duplicates: u64,
    /// First copies below the highest number at that time.
    pub reordered: u64,
    /// The greatest extent of a reordered packet. None where none was.
    pub extent_max: Option<u64>,
    /// Packets older than the window.
    pub too_old: u64,
}

impl Account {
    /// Packets, all copies.
    pub fn packets(&self) -> u64 {
        self.unique + self.duplicates + self.too_old
    }

    /// Numbers lost when `sent` packets were sent, numbered from 0: those before the first and after the last that
    /// arrived are among them. None when a number arrived that cannot have been sent.
    pub fn lost_of(&self, sent: u64) -> Option<u64> {
        match self.range {
            Some((_, highest)) if highest >= sent => None,
            _ => sent.checked_sub(self.unique),
        }
    }
}

impl Window {
    /// A window of [`NUMBERS`] numbers: 272 KiB, which are touched as numbers come.
    pub fn new() -> Self {
        Self::with_size(NUMBERS)
    }

    /// A window of at least so many numbers, rounded up to a power of two, at most 2³⁰.
    pub fn with_size(numbers: u32) -> Self {
        let numbers = numbers.clamp(WORD as u32, 1 << 30).next_power_of_two();
        let words = numbers as usize / WORD as usize;
        Self {
            mask: u64::from(numbers) - 1,
            came: vec![0; words].into(),
            led: vec![0; words].into(),
            order: vec![0; numbers as usize].into(),
            lowest: 0,
            highest: 0,
            unique: 0,
            duplicates: 0,
            reordered: 0,
            too_old: 0,
            extent_max: None,
        }
    }

    /// Takes the number of the next packet that arrived.
    #[inline]
    pub fn record(&mut self, number: u64) -> Arrival {
        let highest = self.highest;
        if number > highest && self.unique > 0 {
            // What the next number's bits were does not matter: they are set.
            if number - highest > 1 {
                self.forget(highest, number);
            }
            self.highest = number;
            return self.lead(number);
        }
        self.record_late(number)
    }

    /// As [`Self::record`], for the first number of all, and for one that is not above the highest.
    fn record_late(&mut self, number: u64) -> Arrival {
        if self.unique == 0 {
            (self.lowest, self.highest) = (number, number);
            return self.lead(number);
        }
        if self.highest - number > self.mask {
            self.too_old += 1;
            return Arrival::TooOld;
        }
        if self.has_come(number) {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        let extent = self.extent(number);
        self.lowest = self.lowest.min(number);
        self.take(number);
        self.reordered += 1;
        self.extent_max = self.extent_max.max(Some(extent));
        Arrival::Reordered { extent }
    }

    /// The totals so far. A number that is missing now may still come, as long as it is in the window.
    pub fn account(&self) -> Account {
        // A window's numbers at a jump from 0 to the end of the range are one more than fit: hence both less one.
        let &Self { lowest, highest, unique, duplicates, reordered, too_old, extent_max, .. } = self;
        let range = (unique > 0).then_some((lowest, highest));
        let lost = range.map_or(0, |(lowest, highest)| highest - lowest - (unique - 1));
        Account { range, unique, lost, duplicates, reordered, extent_max, too_old }
    }

    /// Notes a number that is the highest.
    #[inline]
    fn lead(&mut self, number: u64) -> Arrival {
        let (word, bit) = self.place(number);
        self.led[word] |= bit;
        self.order[(number & self.mask) as usize] = self.unique as u32;
        self.take(number);
        Arrival::InOrder
    }

    fn take(&mut self, number: u64) {
        let (word, bit) = self.place(number);
        self.came[word] |= bit;
        self.unique += 1;
    }

    fn has_come(&self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        self.came[word] & bit != 0
    }

    /// Makes room for the numbers above `highest` up to `number`: those a whole window before them are forgotten.
    fn forget(&mut self, highest: u64, number: u64) {
        if number - highest > self.mask {
            self.came.fill(0);
            self.led.fill(0);
            return;
        }
        let (mut next, mut left) = (highest + 1, number - highest);
        while left > 0 {
            let (word, first) = self.place(next);
            let count = left.min(WORD - next % WORD);
            // `count` bits from the first one on.
            let mask = first.wrapping_mul(u64::MAX >> (WORD - count));
            self.came[word] &= !mask;
            self.led[word] &= !mask;
            next = next.wrapping_add(count); // past the last number there is nothing left
            left -= count;
        }
    }

    /// How many first copies came since the earliest above `number`, this one included. The earliest above it was the highest
    /// when it came, and of such ones the smallest is the earliest.
    fn extent(&self, number: u64) -> u64 {
        let (mut word, bit) = self.place(number);
        // Bits above the number's own. The highest number of all has led, so the search ends.
        let mut bits = self.led[word] & !(bit | (bit - 1));
        while bits == 0 {
            word = (word + 1) & (self.led.len() - 1);
            bits = self.led[word];
        }
        let leader = word * WORD as usize + bits.trailing_zeros() as usize;
        u64::from((self.unique as u32).wrapping_sub(self.order[leader]))
    }

    /// The word and the bit of a number.
    fn place(&self, number: u64) -> (usize, u64) {
        let index = number & self.mask;
        ((index / WORD) as usize, 1 << (index % WORD))
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The same from the definitions, with everything that ever arrived.
    #[derive(Default)]
    struct Naive {
        size: u64,
        /// First copies, in the order in which they came.
        arrived: Vec<u64>,
        account: Account,
    }

    impl Naive {
        fn record(&mut self, number: u64) -> Arrival {
            let highest = self.arrived.iter().max().copied();
            let arrival = match highest {
                Some(highest) if highest >= self.size && number <= highest - self.size => Arrival::TooOld,
                _ if self.arrived.contains(&number) => Arrival::Duplicate,
                Some(highest) if number < highest => {
                    let earliest = self.arrived.iter().position(|&other| other > number).unwrap();
                    Arrival::Reordered { extent: (self.arrived.len() - earliest) as u64 }
                }
                _ => Arrival::InOrder,
            };
            match arrival {
                Arrival::TooOld => self.account.too_old += 1,
                Arrival::Duplicate => self.account.duplicates += 1,
                Arrival::InOrder => self.arrived.push(number),
                Arrival::Reordered { extent } => {
                    self.arrived.push(number);
                    self.account.reordered += 1;
                    self.account.extent_max = self.account.extent_max.max(Some(extent));
                }
            }
            arrival
        }

        fn account(&self) -> Account {
            let range = self.arrived.iter().min().copied().zip(self.arrived.iter().max().copied());
            let unique = self.arrived.len() as u64;
            let lost =
                range.map_or(0, |(low, high)| u128::from(high) - u128::from(low) + 1 - u128::from(unique));
            Account { range, unique, lost: lost as u64, ..self.account }
        }
    }

    /// Numbers near each other, with jumps, from anywhere.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![
            20 => Just(1_i64),
            10 => -5..6_i64,
            5 => -100..100_i64,
            1 => -300..300_i64,
            1 => any::<i64>(),
        ];
        let start = prop_oneof![0..10_u64, any::<u64>(), u64::MAX - 300..=u64::MAX];
        (start, prop::collection::vec(step, 0..400)).prop_map(|(start, steps)| {
            let mut at = start;
            steps
                .into_iter()
                .map(|step| {
                    at = at.checked_add_signed(step).unwrap_or(at);
                    at
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_window_counts_as_the_definitions_say(numbers in numbers(), size in prop_oneof![Just(64), Just(128), Just(512)]) {
            let mut window = Window::with_size(size);
            let mut naive = Naive { size: u64::from(size), ..Naive::default() };
            for number in numbers {
                prop_assert_eq!(window.record(number), naive.record(number), "{}", number);
                prop_assert_eq!(window.account(), naive.account());
            }
        }

        #[test]
        fn what_is_sent_is_lost_or_came(sent in 1..300_u64, fate in prop::collection::vec((0..4_u8, -20..20_i64), 300)) {
            // Each packet is left out, comes, or comes twice, displaced.
            let mut arrivals: Vec<(i64, u64)> = Vec::new();
            for (number, (copies, shift)) in (0..sent).zip(fate) {
                arrivals.extend((0..copies.saturating_sub(1)).map(|copy| (number as i64 * 4 + shift * i64::from(copy + 1), number)));
            }
            arrivals.sort();
            let mut copies: BTreeMap<u64, u64> = BTreeMap::new();
            let mut window = Window::new();
            for (_, number) in arrivals {
                window.record(number);
                *copies.entry(number).or_default() += 1;
            }
            let account = window.account();
            prop_assert_eq!(account.unique, copies.len() as u64);
            prop_assert_eq!(account.duplicates, copies.values().map(|count| count - 1).sum::<u64>());
            prop_assert_eq!(account.lost_of(sent), Some(sent - copies.len() as u64));
            prop_assert_eq!(account.packets(), copies.values().sum::<u64>());
        }
    }

    #[test]
    fn loss_at_both_ends_is_seen_when_the_number_sent_is_known() {
        let mut window = Window::new();
        assert_eq!((window.account().lost, window.account().lost_of(5)), (0, Some(5)));
        for number in [3, 4, 6] {
            window.record(number);
        }
        let account = window.account();
        assert_eq!((account.range, account.lost), (Some((3, 6)), 1));
        assert_eq!((account.lost_of(10), account.lost_of(7), account.lost_of(6)), (Some(7), Some(4), None));
    }

    #[test]
    fn a_late_number_before_the_first_widens_the_range() {
        let mut window = Window::new();
        window.record(10);
        assert_eq!(window.record(7), Arrival::Reordered { extent: 1 });
        assert_eq!((window.account().range, window.account().lost), (Some((7, 10)), 2));
    }

    #[test]
    fn the_whole_range_of_numbers_counts_without_overflow() {
        let mut window = Window::new();
        window.record(0);
        assert_eq!(window.record(u64::MAX), Arrival::InOrder);
        assert_eq!(window.account().lost, u64::MAX - 1);
        assert_eq!(window.record(u64::MAX - 1), Arrival::Reordered { extent: 1 });
        assert_eq!(window.record(0), Arrival::TooOld);
    }

    #[test]
    fn past_two_to_the_32_numbers_go_on() {
        // Counters of 32 bits wrapped here in other tools.
        let start = (1_u64 << 32) - 3;
        let mut window = Window::new();
        (start..start + 6).for_each(|number| _ = window.record(number));
        let account = window.account();
        assert_eq!((account.unique, account.lost, account.reordered, account.too_old), (6, 0, 0, 0));
    }

    #[test]
    fn a_sender_that_starts_again_is_told_apart_from_loss() {
        let mut window = Window::with_size(64);
        (0..1000).for_each(|number| _ = window.record(number));
        (0..900).for_each(|number| assert_eq!(window.record(number), Arrival::TooOld));
        let account = window.account();
        assert_eq!((account.lost, account.too_old, account.duplicates), (0, 900, 0));
    }
}
