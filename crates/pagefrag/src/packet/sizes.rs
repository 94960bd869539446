//! What a receive buffer is made of, as the kernel reckons it.

use crate::Align;

/// Bytes that a driver leaves free before a packet, for headers that are pushed later: `NET_SKB_PAD` (64) and `NET_IP_ALIGN` (2),
/// which puts the IP header behind 14 bytes of Ethernet at a multiple of 4. Linux 6.18, include/linux/skbuff.h; there,
/// `NET_IP_ALIGN` is 0 on x86.
pub const HEADROOM: usize = 64 + 2;

/// What the kernel keeps at the end of every buffer: `SKB_DATA_ALIGN(sizeof(struct skb_shared_info))` on x86-64, 48 bytes and 17
/// fragments of 16. Linux 6.18, include/linux/skbuff.h. A [`PacketBuf`](crate::PacketBuf) has its own words there; it needs less
/// than half of them, and takes as many so that a buffer costs what the kernel's costs.
pub const TRAILER_BYTES: usize = 320;

/// How much of a longer frame [`copy_break`](crate::copy_break) copies: enough for Ethernet with two tags (22), IPv6 (40) and
/// TCP with all its options (60), rounded up to a cache line.
pub const HEADERS_BYTES: usize = 128;

/// What a receive buffer for so many bytes takes: headroom and data, rounded up to a cache line, and the trailer, as
/// `napi_alloc_skb` reckons (Linux 6.18, net/core/skbuff.c). `usize::MAX` if that is no size.
///
/// ```
/// assert_eq!(pagefrag::buffer_bytes(64), 192 + 320);
/// assert_eq!(pagefrag::buffer_bytes(1514), 1600 + 320);
/// ```
#[inline]
pub const fn buffer_bytes(data_bytes: usize) -> usize {
    let Some(bytes) = data_bytes.checked_add(HEADROOM) else { return usize::MAX };
    let Some(bytes) = bytes.checked_next_multiple_of(Align::CACHE_LINE.bytes()) else { return usize::MAX };
    bytes.saturating_add(TRAILER_BYTES)
}
