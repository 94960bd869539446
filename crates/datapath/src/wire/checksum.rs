//! The Internet checksum (RFC 1071), whole or by its difference (RFC 1624).
//!
//! Sums are kept in the host's byte order: one's-complement sums commute with swapping bytes (RFC 1071 section 2 (B)), so
//! only the result has to be turned. Eight bytes go in at a time, as two numbers of 32 bits in a sum of 64 that cannot
//! overflow before 2^32 of them (RFC 1071 section 2 (C)).

/// A sum that is not finished. Pieces but the last must be of an even number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Of nothing.
    pub const ZERO: Sum = Sum(0);

    /// Adds bytes as 16-bit words; an odd last byte is padded with zero.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        let (eights, rest) = bytes.as_chunks::<8>();
        let mut total = self.0;
        for eight in eights {
            let value = u64::from_ne_bytes(*eight);
            total += (value & 0xffff_ffff) + (value >> 32);
        }
        if rest.is_empty() {
            return Sum(total);
        }
        let mut padded = [0; 8];
        for (to, from) in padded.iter_mut().zip(rest) {
            *to = *from;
        }
        let value = u64::from_ne_bytes(padded);
        Sum(total + (value & 0xffff_ffff) + (value >> 32))
    }

    /// Adds a word.
    #[inline]
    #[must_use]
    pub fn word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word.to_be()))
    }

    /// Adds a pseudo header (RFC 768, RFC 8200 section 8.1): addresses, protocol, and the length of what it protects.
    #[inline]
    #[must_use]
    pub fn pseudo_header(self, addresses: &super::Addresses, protocol: u8, bytes: u32) -> Sum {
        let sum = match *addresses {
            super::Addresses::V4 { source, destination } => {
                self.bytes(&source.to_be_bytes()).bytes(&destination.to_be_bytes())
            }
            super::Addresses::V6 { source, destination } => {
                self.bytes(&source.to_be_bytes()).bytes(&destination.to_be_bytes())
            }
        };
        sum.bytes(&bytes.to_be_bytes()).word(u16::from(protocol))
    }

    /// The field's value: the complement of the folded sum. A sum that includes the right field gives 0.
    #[inline]
    pub fn finish(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(!(sum as u16))
    }

    /// As [`finish`](Sum::finish), but 0 becomes 0xFFFF: in UDP, 0 says that there is none (RFC 768).
    #[inline]
    pub fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// The checksum after a word has changed (RFC 1624 equation 3): HC' = ~(~HC + ~m + m').
#[inline]
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// As [`update`], for two words that follow each other, as an IPv4 address is.
#[inline]
#[must_use]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let checksum = update(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update(checksum, old as u16, new as u16)
}

/// The checksum of an IPv4 header whose TTL became one less: [`update`] with everything that is constant worked out, as
/// `ip_decrease_ttl` has it (include/net/ip.h, Linux 6.18).
#[inline]
#[must_use]
pub fn update_ttl_decrement(checksum: u16) -> u16 {
    let sum = u32::from(checksum) + 0x0100;
    (sum + u32::from(sum >= 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 1, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::ZERO.bytes(&bytes).finish(), !0xddf2);
    }

    /// Section 4: equation 2 would give 0xFFFF.
    #[test]
    fn the_example_of_rfc_1624() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn every_ttl_decrement_is_equation_3() {
        for ttl in 1..=255u16 {
            for checksum in (0..=u16::MAX).step_by(if ttl == 1 { 1 } else { 7 }) {
                let (old, new) = (ttl << 8 | 17, (ttl - 1) << 8 | 17);
                let wanted = update(checksum, old, new);
                // 0xFFFF never stands in a right header, whose words are not all zero.
                if checksum != 0xffff {
                    assert_eq!(update_ttl_decrement(checksum), wanted, "{checksum:04x} at ttl {ttl}");
                }
            }
        }
    }

    #[test]
    fn a_sum_of_zero_is_written_as_all_ones_in_udp() {
        let sum = Sum::ZERO.word(0xffff);
        assert_eq!((sum.finish(), sum.finish_udp()), (0, 0xffff));
        assert_eq!(Sum::ZERO.word(0x1234).finish_udp(), Sum::ZERO.word(0x1234).finish());
    }

    proptest! {
        #[test]
        fn eight_at_a_time_is_two_at_a_time(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).finish(), slow(&bytes));
        }

        #[test]
        fn pieces_add_up(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cut in any::<proptest::sample::Index>(),
        ) {
            let (first, second) = bytes.split_at(cut.index(bytes.len() + 1) & !1);
            prop_assert_eq!(Sum::ZERO.bytes(first).bytes(second).finish(), slow(&bytes));
        }

        #[test]
        fn all_ones_do_not_overflow(length in 0usize..70_000) {
            let bytes = vec![0xff; length];
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).finish(), slow(&bytes));
        }

        /// The first word stays, so that not all are zero: for such a sum there are two representations.
        #[test]
        fn a_difference_gives_what_the_whole_gives(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..64),
            at in any::<proptest::sample::Index>(),
            new in any::<u16>(),
        ) {
            bytes[0] |= 1;
            let at = 2 + 2 * at.index(bytes.len() / 2 - 1);
            let before = slow(&bytes);
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), slow(&bytes));
        }

        #[test]
        fn an_address_is_two_words(checksum in any::<u16>(), old in any::<u32>(), new in any::<u32>()) {
            let mut bytes = [0x45, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
            bytes[4..].copy_from_slice(&old.to_be_bytes());
            let before = slow(&bytes);
            bytes[4..].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u32(before, old, new), slow(&bytes));
        }
    }
}
