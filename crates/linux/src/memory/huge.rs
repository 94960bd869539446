//! Huge pages under memory that is there already, and how much of it has them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::SyscallError;

/// What the kernel calls a huge page here: 2 MiB, as on x86-64 and on arm64 with pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Asks the kernel to use huge pages for a large table (madvise(2), MADV_HUGEPAGE): fewer misses of the TLB where accesses
/// are random. To be called before it is filled, as pages are made when they are first written.
///
/// Returns how many bytes can have huge pages: whole ones of [`HUGE_PAGE_BYTES`], aligned, inside the slice; 0 if there are
/// none, and then nothing was asked. What was really got, [`huge_bytes`] tells. The content is not touched.
///
/// # Errors
/// EINVAL where the kernel was built without transparent huge pages.
pub fn advise_huge<T>(table: &mut [T]) -> Result<usize, SyscallError> {
    let Some(range) = whole_pages(table, HUGE_PAGE_BYTES) else { return Ok(0) };
    let start = table.as_mut_ptr().cast::<u8>();
    let start = start.wrapping_add(range.start - start.addr());
    // SAFETY: the range lies inside memory that `table` borrows alone; the advice does not change what is in it.
    let answer = unsafe { libc::madvise(start.cast(), range.len(), libc::MADV_HUGEPAGE) };
    match answer {
        0 => Ok(range.len()),
        _ => Err(SyscallError::last("madvise MADV_HUGEPAGE", format!("{} bytes", range.len()))),
    }
}

/// How many bytes of the huge pages that lie wholly inside the slice are mapped as such now. None where the kernel does not
/// tell (the ioctl PAGEMAP_SCAN, since Linux 6.7).
pub fn huge_bytes<T>(table: &[T]) -> Option<usize> {
    scan_huge(whole_pages(table, HUGE_PAGE_BYTES)?).ok()
}

/// The addresses of the whole pages of this size inside; none if there are none.
fn whole_pages<T>(table: &[T], page_bytes: usize) -> Option<Range<usize>> {
    let start = table.as_ptr().addr();
    let first = start.checked_next_multiple_of(page_bytes)?;
    let end = (start + size_of_val(table)) & !(page_bytes - 1);
    (first < end).then_some(first..end)
}

/// `struct pm_scan_arg` of include/uapi/linux/fs.h (Linux 6.18).
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`, the same file.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScannedRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const _: () = assert!(size_of::<ScanArguments>() == 0x60);
const PAGE_IS_HUGE: u64 = 1 << 6;

/// Bytes of this range of addresses that are mapped by huge pages.
pub(super) fn scan_huge(range: Range<usize>) -> io::Result<usize> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut regions = [ScannedRegion::default(); 64];
    let (mut start, end) = (range.start as u64, range.end as u64);
    let mut huge_bytes = 0;
    while start < end {
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: regions.len() as u64,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArguments::default()
        };
        // SAFETY: the kernel reads and writes `arguments`, and writes at most `regions_len` entries of `regions`; both outlive
        // the call. Of the range it only reads how it is mapped.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        huge_bytes +=
            regions[..found].iter().map(|region| (region.end - region.start) as usize).sum::<usize>();
        if arguments.walk_end <= start {
            break;
        }
        start = arguments.walk_end;
    }
    Ok(huge_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_leaves_the_content_alone() {
        let mut table: Vec<u64> = (0..1 << 20).collect();
        match advise_huge(&mut table) {
            // 8 MiB hold at least three huge pages, wherever they begin.
            Ok(bytes) => assert!((3 * HUGE_PAGE_BYTES..=8 << 20).contains(&bytes), "{bytes}"),
            Err(error) => assert!(error.to_string().starts_with("madvise"), "{error}"),
        }
        assert!(table.iter().copied().eq(0..1 << 20));
        if let Some(bytes) = huge_bytes(&table) {
            assert!(bytes <= 8 << 20 && bytes.is_multiple_of(HUGE_PAGE_BYTES), "{bytes}");
        }
    }

    #[test]
    fn what_has_no_whole_huge_page_is_left_as_it_is() {
        assert_eq!(advise_huge::<u8>(&mut []).unwrap(), 0);
        assert_eq!(advise_huge(&mut [0u64; 100]).unwrap(), 0);
        assert_eq!(advise_huge(&mut [(); 1 << 30]).unwrap(), 0);
        assert_eq!(huge_bytes(&[0u8; 10]), None);
    }
}
