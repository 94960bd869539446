//! Fields of a header whose bytes are known to be there.
//!
//! A header is an array, so that the compiler checks constant ranges against its length and no check is left when it
//! runs.

use std::ops::Range;

#[inline(always)]
pub(super) fn u16_at<const N: usize>(header: &[u8; N], field: Range<usize>) -> u16 {
    u16::from_be_bytes([header[field.start], header[field.start + 1]])
}

#[inline(always)]
pub(super) fn u32_at<const N: usize>(header: &[u8; N], field: Range<usize>) -> u32 {
    let at = field.start;
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[inline(always)]
pub(super) fn u128_at<const N: usize>(header: &[u8; N], field: Range<usize>) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&header[field]);
    u128::from_be_bytes(bytes)
}

/// The array that begins at `at`, if so much is there.
#[inline(always)]
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

/// As [`array_at`], to be changed.
#[inline(always)]
pub(super) fn array_at_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}
