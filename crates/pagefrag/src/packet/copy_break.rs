//! Short frames are copied, long ones handed on.

use super::{HEADERS_BYTES, PacketBuf, Piece};

/// A packet of a received frame, as drivers make it: one of at most `limit_bytes` is copied into a small buffer, and the
/// memory that it came in is returned, to receive the next one; of a longer one only the first [`HEADERS_BYTES`] are
/// copied, and the rest is attached where it lies.
///
/// `allocate` is asked for an empty packet with so many bytes of tail room. What does not fit into that which it returns is
/// attached, so that no frame is cut short. Where it fails, the frame comes back with its error.
///
/// igb, ixgbe and fm10k copy up to 256 bytes (`IGB_RX_HDR_LEN`; Linux 6.18, drivers/net/ethernet/intel/igb/igb_main.c), and
/// find where the headers of longer frames end, where this copies a fixed number.
///
/// ```
/// use pagefrag::{Align, PacketBuf, PollCache, HEADROOM, buffer_bytes, copy_break};
///
/// let mut cache = PollCache::new();
/// let page = vec![7; 1514];
/// let (packet, copied) = copy_break(page, 256, |bytes| {
///     cache.alloc(buffer_bytes(bytes), Align::CACHE_LINE).map(|frag| PacketBuf::new(frag, HEADROOM))
/// })
/// .map_err(|(error, _page)| error)?;
/// assert_eq!((packet.len(), packet.head_len(), copied), (1514, 128, None));
/// # Ok::<(), pagefrag::AllocError>(())
/// ```
#[inline]
pub fn copy_break<M, E>(
    frame: M,
    limit_bytes: usize,
    allocate: impl FnOnce(usize) -> Result<PacketBuf, E>,
) -> Result<(PacketBuf, Option<M>), (E, M)>
where
    M: AsRef<[u8]> + Into<Piece>,
{
    let frame_bytes = frame.as_ref().len();
    let wanted = if frame_bytes <= limit_bytes { frame_bytes } else { frame_bytes.min(HEADERS_BYTES) };
    let mut packet = match allocate(wanted) {
        Ok(packet) => packet,
        Err(error) => return Err((error, frame)),
    };
    let copied = copy_into(&mut packet, frame.as_ref(), wanted);
    if copied == frame_bytes {
        return Ok((packet, Some(frame)));
    }
    let mut rest = frame.into();
    rest.advance(copied);
    packet.attach(rest);
    Ok((packet, None))
}

/// Up to `wanted` of the first bytes, as many as there is room for. How many that were.
#[inline]
fn copy_into(packet: &mut PacketBuf, frame: &[u8], wanted: usize) -> usize {
    let fitting = wanted.min(packet.tailroom());
    match (packet.put(fitting), frame.get(..fitting)) {
        (Ok(space), Some(bytes)) => {
            space.copy_from_slice(bytes);
            fitting
        }
        _ => 0,
    }
}
