//! The Internet checksum (RFC 1071), in the host's byte order.
//!
//! One's-complement sums commute with byte swapping (RFC 1071 section 2 (B)), so a sum over words as the host
//! reads them, stored as the host writes them, is right on every machine. The eBPF form relies on that.

/// Adds the bytes as 16-bit words in the host's order to `sum`; an odd last byte is padded with zero.
pub(crate) fn add(sum: u32, bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(2);
    let mut total = u64::from(sum);
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u32
}

/// As [`add`], without folding, and four bytes at a time, which makes no difference to the folded sum (RFC 1071
/// section 2 (C)).
pub(crate) fn add_unfolded(sum: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut total = sum;
    for word in &mut words {
        total += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    match *words.remainder() {
        [a, b, c] => total + u64::from(u32::from_ne_bytes([a, b, c, 0])),
        [a, b] => total + u64::from(u16::from_ne_bytes([a, b])),
        [a] => total + u64::from(u16::from_ne_bytes([a, 0])),
        _ => total,
    }
}

/// A sum of [`add_unfolded`] in 17 bits, for [`finish`].
pub(crate) fn fold(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    ((sum & 0xffff) + (sum >> 16)) as u32
}

/// A folded sum as the number that its two bytes mean in network order: what is added to it then, and stored in network
/// order again, are numbers.
pub(crate) fn to_number(sum: u32) -> u16 {
    u16::from_be_bytes((sum as u16).to_ne_bytes())
}

/// The complement of the folded sum: the field's value, in the host's order.
pub(crate) fn finish(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !(folded as u16)
}

/// As [`finish`], but 0 becomes 0xFFFF: a UDP checksum of 0 means that there is none (RFC 768), and IPv6 forbids it
/// (RFC 8200 section 8.1).
pub(crate) fn finish_udp(sum: u32) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 section 3: 0001 f203 f4f5 f6f7 sums to ddf2.
    #[test]
    fn sums_the_example_of_the_rfc() {
        let sum = add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum as u16).to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn both_ways_of_adding_agree() {
        let bytes: Vec<u8> = (0..300_u32).map(|n| (n * 7 + 3) as u8 | 0x80).collect();
        for len in 0..bytes.len() {
            let unfolded = fold(add_unfolded(0xffff_fff0, &bytes[..len]));
            let folded = add(add(0, &[0xf0, 0xff, 0xff, 0xff].map(u8::to_le)), &bytes[..len]);
            if cfg!(target_endian = "little") {
                assert_eq!(finish(unfolded), finish(folded), "{len}");
            }
        }
        assert_eq!(finish(fold(u64::MAX)), finish(0xffff));
    }

    #[test]
    fn an_odd_byte_is_padded_behind() {
        assert_eq!(add(0, &[1, 2, 3]), add(0, &[1, 2, 3, 0]));
    }
}
