//! Where a fragment may begin.

use crate::SMALL_BLOCK_BYTES;

/// The alignment of a fragment's first byte: a power of two, a page at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Align {
    bytes: usize,
}

impl Align {
    /// Anywhere. Fragments lie side by side, and neighbours share cache lines.
    pub const BYTE: Align = Align { bytes: 1 };
    /// At a cache line (64 bytes): what is written by different CPUs does not share one, if it begins there.
    pub const CACHE_LINE: Align = Align { bytes: 64 };
    /// At a page (4096 bytes), the most that a block promises.
    pub const PAGE: Align = Align { bytes: SMALL_BLOCK_BYTES };

    /// None unless `bytes` is a power of two of at most a page.
    pub const fn new(bytes: usize) -> Option<Align> {
        if bytes.is_power_of_two() && bytes <= SMALL_BLOCK_BYTES { Some(Align { bytes }) } else { None }
    }

    /// As a number of bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// The last aligned offset that is not behind this one.
    #[inline]
    pub(crate) const fn at_or_before(self, offset: usize) -> usize {
        offset & !(self.bytes - 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_up_to_a_page() {
        for bytes in [0, 3, 24, 63, 4095, 8192, usize::MAX] {
            assert_eq!(Align::new(bytes), None, "{bytes}");
        }
        for bytes in [1, 2, 64, 4096] {
            assert_eq!(Align::new(bytes).map(Align::bytes), Some(bytes));
        }
    }

    #[test]
    fn offsets_are_rounded_towards_the_start() {
        assert_eq!(Align::BYTE.at_or_before(77), 77);
        assert_eq!(Align::CACHE_LINE.at_or_before(64), 64);
        assert_eq!(Align::CACHE_LINE.at_or_before(63), 0);
        assert_eq!(Align::PAGE.at_or_before(32767), 28672);
    }
}
