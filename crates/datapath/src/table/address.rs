//! What tables are asked with.

use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 address as `u32` or an IPv6 address as `u128`, in the host's order: the first bit on the wire is the
/// highest.
pub trait Address: Copy + Ord + Hash + fmt::Debug + Default + Send + Sync + sealed::Sealed {
    /// How many bits it has.
    const BITS: u8;
    /// How many bits the first array of a [`Poptrie`](super::Poptrie) decides; see there.
    const FIRST_BITS: u32;

    /// `count` bits (1 to 31) from bit `from` on, counted from the highest. Bits behind the last are 0.
    fn bits(self, from: u32, count: u32) -> usize;

    /// The highest `length` bits, the others 0.
    fn masked(self, length: u8) -> Self;

    /// As the highest bits of a number.
    fn to_highest(self) -> u128;

    /// The highest bits of a number.
    fn from_highest(bits: u128) -> Self;

    /// As people write it.
    fn display(self) -> IpAddr;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

impl Address for u32 {
    const BITS: u8 = 32;
    const FIRST_BITS: u32 = 18;

    #[inline(always)]
    fn bits(self, from: u32, count: u32) -> usize {
        (self.wrapping_shl(from) >> (32 - count)) as usize
    }

    #[inline]
    fn masked(self, length: u8) -> u32 {
        self & u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0)
    }

    #[inline(always)]
    fn to_highest(self) -> u128 {
        u128::from(self) << 96
    }

    #[inline]
    fn from_highest(bits: u128) -> u32 {
        (bits >> 96) as u32
    }

    fn display(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    const FIRST_BITS: u32 = 20;

    #[inline(always)]
    fn bits(self, from: u32, count: u32) -> usize {
        // Shifts of 128 bits are dear: one of them where nothing lies behind the last bit.
        match 128u32.checked_sub(from + count) {
            Some(behind) => (self >> behind) as usize & ((1 << count) - 1),
            None => (self.wrapping_shl(from) >> (128 - count)) as usize,
        }
    }

    #[inline]
    fn masked(self, length: u8) -> u128 {
        self & u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0)
    }

    #[inline(always)]
    fn to_highest(self) -> u128 {
        self
    }

    #[inline]
    fn from_highest(bits: u128) -> u128 {
        bits
    }

    fn display(self) -> IpAddr {
        Ipv6Addr::from_bits(self).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_highest() {
        assert_eq!(0xc0a8_0101u32.bits(0, 8), 0xc0);
        assert_eq!(0xc0a8_0101u32.bits(12, 6), 0b10_0000);
        assert_eq!(0xc0a8_0103u32.bits(30, 6), 0b11_0000, "nothing is behind the last");
        assert_eq!(1u128.bits(124, 6), 0b00_0100);
        assert_eq!(3u128.bits(122, 6), 0b00_0011);
        assert_eq!((0x2001u128 << 112).bits(0, 16), 0x2001);
    }

    #[test]
    fn masks_of_every_length() {
        assert_eq!(u32::MAX.masked(0), 0);
        assert_eq!(u32::MAX.masked(1), 1 << 31);
        assert_eq!(u32::MAX.masked(32), u32::MAX);
        assert_eq!(u128::MAX.masked(0), 0);
        assert_eq!(u128::MAX.masked(127), u128::MAX - 1);
        assert_eq!(u128::MAX.masked(128), u128::MAX);
    }

    #[test]
    fn to_the_highest_bits_and_back() {
        assert_eq!(0xc0a8_0101u32.to_highest(), 0xc0a8_0101u128 << 96);
        assert_eq!(u32::from_highest(0xc0a8_0101u32.to_highest() | 7), 0xc0a8_0101);
        assert_eq!(u128::from_highest(7u128.to_highest()), 7);
    }
}
