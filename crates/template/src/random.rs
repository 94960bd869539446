//! Pseudo-random numbers that depend on nothing but the seed, the worker and the packet's number.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): one addition and a
/// mix a number, and a new stream costs nothing, which a stream for every packet needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random {
    state: u64,
}

/// What a state moves by with each number.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the streams of one worker have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    key: u64,
}

impl Streams {
    pub(crate) fn new(seed: u64, worker: u32) -> Self {
        Self { key: mix(seed ^ mix(u64::from(worker).wrapping_add(STEP))) }
    }

    /// Where the stream of packet 0 begins.
    pub(crate) fn key(self) -> u64 {
        self.key
    }

    /// The stream of one packet.
    pub(crate) fn of_packet(self, index: u64) -> Random {
        Random { state: self.key.wrapping_add(index.wrapping_mul(ODD)) }
    }
}

/// The distance of the streams of neighbouring packets: 2^64 / pi, odd. The first 8,192 numbers of a packet come again in
/// no packet that is less than 2^49 away.
pub(crate) const ODD: u64 = 0x517c_c1b7_2722_0a95;

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number from 0 to `last` inclusive; the bias is at most (last + 1) / 2^64.
    pub(crate) fn up_to(&mut self, last: u64) -> u64 {
        match last.checked_add(1) {
            None => self.next(),
            Some(count) => self.below(count),
        }
    }

    /// A number below `count`.
    #[inline]
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    /// As [`up_to`](Self::up_to), with a bias of at most (last + 1) / 2^128.
    pub(crate) fn up_to_wide(&mut self, last: u128) -> u128 {
        let drawn = u128::from(self.next()) << 64 | u128::from(self.next());
        match last.checked_add(1) {
            None => drawn,
            Some(count) => drawn % count,
        }
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_be_bytes()[..part.len()]);
        }
    }
}

/// Steps of the mix: a shift, and a factor after it.
pub(crate) const MIX: [(u32, u64); 3] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb), (31, 1)];

fn mix(value: u64) -> u64 {
    MIX.iter().fold(value, |value, &(shift, factor)| (value ^ (value >> shift)).wrapping_mul(factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation for the state 1234567.
    #[test]
    fn the_numbers_are_those_of_the_reference() {
        let mut random = Random { state: 1_234_567 };
        let found: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn streams_differ_by_seed_worker_and_index() {
        let first = |seed, worker, index| Streams::new(seed, worker).of_packet(index).next();
        let all =
            [first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1), first(1, 1, 0), first(1, 0, 1)];
        for (at, value) in all.iter().enumerate() {
            assert!(!all[..at].contains(value), "{at}");
        }
    }

    #[test]
    fn a_range_is_reached_at_both_ends_and_not_left() {
        let mut random = Random { state: 1 };
        let seen: Vec<u64> = (0..200).map(|_| random.up_to(3)).collect();
        assert!((0..=3).all(|wanted| seen.contains(&wanted)) && seen.iter().all(|value| *value <= 3));
    }
}
