//! The NUMA node that memory is on.

use std::io;
use std::ops::Range;
use std::ptr;

/// Prefers a node for pages of this range that are made from now on (mbind(2), MPOL_PREFERRED): where the node is full,
/// others are used. Binding strictly would let a full node end the process (MPOL_BIND, out of memory).
///
/// # Safety
/// The range belongs to a mapping of the caller.
pub(super) unsafe fn prefer(range: &Range<*mut u8>, node: u32) -> io::Result<()> {
    const NODES: usize = 1024; // as many as CONFIG_NODES_SHIFT allows
    let mut mask = [0_u64; NODES / 64];
    *mask.get_mut(node as usize / 64).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
    let bytes = range.end.addr() - range.start.addr();
    // The kernel reads one bit less than it is told (`get_nodes`, mm/mempolicy.c, 6.18).
    let told_bits = NODES + 1;
    // SAFETY: the kernel reads all of the mask and no more, and sets how pages of the caller's mapping will be placed; it
    // changes no content.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            range.start,
            bytes,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            told_bits,
            0_u32,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many bytes of the pages of this range are on which node, ascending; pages that are not there yet are on none
/// (move_pages(2), which only asks when it is given no nodes).
pub(super) fn nodes(range: Range<*mut u8>, page_bytes: usize) -> io::Result<Vec<(u32, usize)>> {
    let mut found: Vec<(u32, usize)> = Vec::new();
    let pages = (range.end.addr() - range.start.addr()) / page_bytes;
    let mut addresses = [ptr::null_mut::<u8>(); 512];
    for batch in (0..pages).step_by(addresses.len()) {
        let len = (pages - batch).min(addresses.len());
        for (index, address) in addresses[..len].iter_mut().enumerate() {
            *address = range.start.wrapping_add((batch + index) * page_bytes);
        }
        let mut status = [0_i32; 512];
        // SAFETY: the kernel reads `len` addresses, and writes as many numbers; it reads nothing at those addresses.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                len,
                addresses.as_ptr(),
                ptr::null::<i32>(),
                status.as_mut_ptr(),
                0,
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        for node in status[..len].iter().filter_map(|&node| u32::try_from(node).ok()) {
            match found.iter_mut().find(|(known, _)| *known == node) {
                Some((_, bytes)) => *bytes += page_bytes,
                None => found.push((node, page_bytes)),
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}
