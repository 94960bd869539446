//! Control data of a message (cmsg(3)) as bytes: the size of the segments that one message stands for.

/// `struct cmsghdr`: its length with the header, the level, the type (include/linux/socket.h, 6.18).
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const LEN_BYTES: usize = HEADER_BYTES - 8;
/// Items start at multiples of a long (`CMSG_ALIGN`).
const ALIGN: usize = size_of::<libc::c_long>();

/// Bytes of control data that [`write_segment_bytes`] fills.
pub(super) const SEGMENT_BYTES: usize = HEADER_BYTES + ALIGN;

/// Asks the kernel to cut a message into datagrams of `bytes` (UDP_SEGMENT, a 16-bit number: net/ipv4/udp.c,
/// `__udp_cmsg_send`, 6.18).
pub(super) fn write_segment_bytes(bytes: u16, room: &mut [u8]) {
    let room = &mut room[..SEGMENT_BYTES];
    room.fill(0);
    let len = HEADER_BYTES + size_of::<u16>();
    room[..LEN_BYTES].copy_from_slice(&len.to_ne_bytes()[..LEN_BYTES]);
    room[LEN_BYTES..LEN_BYTES + 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    room[LEN_BYTES + 4..HEADER_BYTES].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    room[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&bytes.to_ne_bytes());
}

/// The size of the datagrams that the kernel put into one message (UDP_GRO, an int: include/linux/udp.h,
/// `udp_cmsg_recv`, 6.18); None where it holds one.
pub(crate) fn segment_bytes(mut control: &[u8]) -> Option<usize> {
    while let Some((header, _)) = control.split_at_checked(HEADER_BYTES) {
        let len = usize::from_ne_bytes(*header.first_chunk()?);
        let word = |at: usize| Some(i32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let data = control.get(HEADER_BYTES..len)?;
        if (word(LEN_BYTES)?, word(LEN_BYTES + 4)?) == (libc::SOL_UDP, libc::UDP_GRO) {
            let bytes = i32::from_ne_bytes(*data.first_chunk()?);
            return usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
        }
        control = control.get(len.checked_next_multiple_of(ALIGN)?..)?;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut item = (HEADER_BYTES + data.len()).to_ne_bytes().to_vec();
        item.extend(level.to_ne_bytes());
        item.extend(kind.to_ne_bytes());
        item.extend(data);
        item.resize(item.len().next_multiple_of(ALIGN), 0);
        item
    }

    #[test]
    fn the_size_is_found_behind_other_items() {
        let size = item(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes());
        assert_eq!(segment_bytes(&size), Some(1472));
        let other = item(libc::SOL_SOCKET, 29, &[1; 12]);
        assert_eq!(segment_bytes(&[other.clone(), size].concat()), Some(1472));
        assert_eq!(segment_bytes(&other), None);
        assert_eq!(segment_bytes(&[]), None);
        let none = item(libc::SOL_UDP, libc::UDP_GRO, &0_i32.to_ne_bytes());
        assert_eq!(segment_bytes(&none), None);
    }

    #[test]
    fn what_is_asked_of_the_kernel_is_laid_out_as_it_reads_it() {
        let mut room = [0xff; SEGMENT_BYTES + 1];
        write_segment_bytes(18, &mut room);
        assert_eq!(room[..SEGMENT_BYTES], item(libc::SOL_UDP, libc::UDP_SEGMENT, &18_u16.to_ne_bytes()));
        assert_eq!(room[SEGMENT_BYTES], 0xff);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes: Vec<u8>) {
            let _ = segment_bytes(&bytes);
        }
    }
}
