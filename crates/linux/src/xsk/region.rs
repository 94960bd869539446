//! Memory that AF_XDP sockets and packet buffers have in common.

use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::SyscallError;
use crate::packet::mapping::Mapping;

/// A stretch of memory in pages, for packet buffers that AF_XDP sockets read and write ([`super::open_pages`]). As a
/// [`pagefrag::Memory`] it gives pages out to pools and caches.
///
/// Clones are the same memory. It is unmapped when no page, no source and no socket has it any more.
#[derive(Debug, Clone)]
pub struct Region(Arc<Pages>);

#[derive(Debug)]
struct Pages {
    mapping: Mapping,
    page_bytes: usize,
    pages: u32,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Pages that came back, with what was in them. Room for all, so that to give one back never allocates.
    used: Vec<u32>,
    /// Those from here on were never given out, and are zero.
    fresh: u32,
}

impl Region {
    /// So many pages of the size of the system's, which is the largest that a socket takes; in huge pages where the kernel has
    /// them.
    ///
    /// # Errors
    /// ENOMEM when there is no memory.
    pub fn new(pages: u32) -> Result<Self, SyscallError> {
        let page_bytes = rustix::param::page_size();
        let failed = |error| {
            let object = format!("{pages} pages of {page_bytes} bytes");
            SyscallError::new("allocate packet memory", object, error)
        };
        let bytes = (pages as usize).max(1).checked_mul(page_bytes);
        let bytes = bytes.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let mapping = Mapping::anonymous_huge(bytes).map_err(failed)?;
        let free = Free { used: Vec::with_capacity(pages as usize), fresh: 0 };
        Ok(Self(Arc::new(Pages { mapping, page_bytes, pages: pages.max(1), free: Mutex::new(free) })))
    }

    /// How many pages there are.
    pub fn pages(&self) -> u32 {
        self.0.pages
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// How many pages are not given out.
    pub fn free_pages(&self) -> u32 {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.used.len() as u32 + (self.0.pages - free.fresh)
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.pages as usize * self.0.page_bytes
    }

    /// Where these bytes lie, if all of them are here.
    #[inline]
    pub(super) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.start())?;
        (offset.checked_add(bytes.len())? <= self.bytes()).then_some(offset as u64)
    }

    #[inline]
    fn start(&self) -> usize {
        self.0.mapping.at(0, 0, 1).addr()
    }
}

impl Region {
    /// A page that is nobody's, and whether somebody had it before.
    fn take(&self, layout: Layout) -> Option<(NonNull<u8>, bool)> {
        let Pages { mapping, page_bytes, pages, free } = &*self.0;
        if layout.size() > *page_bytes || layout.align() > *page_bytes {
            return None;
        }
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        let (page, is_used) = match free.used.pop() {
            Some(page) => (page, true),
            None if free.fresh < *pages => {
                free.fresh += 1;
                (free.fresh - 1, false)
            }
            None => return None,
        };
        drop(free);
        let start = mapping.at(page as usize * page_bytes, *page_bytes, 1);
        NonNull::new(start).map(|start| (start, is_used))
    }
}

// SAFETY: a page is given out once until it is freed (`Free`), lies wholly in the mapping, which every clone keeps alive,
// and is aligned to its size, that of a system's page; from `alloc` it is zero, as the kernel made it or as it is made here.
unsafe impl pagefrag::Memory for Region {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (start, is_used) = self.take(layout)?;
        if is_used {
            // SAFETY: the page has so many bytes, and it is nobody's at the moment.
            unsafe { start.write_bytes(0, self.0.page_bytes) };
        }
        Some(start)
    }

    fn alloc_used(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.take(layout).map(|(start, _)| start)
    }

    unsafe fn free(&self, data: NonNull<u8>, _layout: Layout) {
        let page = (data.addr().get() - self.start()) / self.0.page_bytes;
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner).used.push(page as u32);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use pagefrag::{Align, PagePool, PoolConfig, Source};

    use super::*;

    #[test]
    fn every_page_is_given_out_once_and_comes_back() {
        let region = Region::new(3).unwrap();
        let source = Source::new(region.clone()).share();
        let mut pool = PagePool::new(PoolConfig::default().with_source(source));
        let mut pages: Vec<_> = (0..3).map(|_| pool.alloc().unwrap()).collect();
        assert!(pool.alloc().is_err());
        let mut offsets: Vec<_> = pages.iter().map(|page| region.offset_of(page).unwrap()).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 4096, 8192]);
        pages.iter_mut().for_each(|page| page.fill(0xff));
        assert_eq!(region.free_pages(), 0);
        drop((pages, pool));
        assert_eq!(region.free_pages(), 3);
        let source = Source::new(region.clone()).share();
        let mut pool = PagePool::new(PoolConfig::default().with_source(source.clone()));
        assert!(pool.alloc().unwrap().iter().all(|&byte| byte == 0xff), "a pool needs no zeros");
        let mut cache = pagefrag::PollCache::with_source(source);
        assert!(cache.alloc(100, Align::CACHE_LINE).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_does_not_fit_a_page_is_refused() {
        let region = Region::new(16).unwrap();
        let source = Source::new(region.clone()).share();
        let mut cache = pagefrag::PollCache::with_source(source.clone());
        let fragment = cache.alloc(100, Align::CACHE_LINE).unwrap();
        assert_eq!(fragment.block_bytes(), 4096, "no large block");
        let config = PoolConfig::default().with_page_bytes(8192).with_source(source);
        assert!(PagePool::new(config).alloc().is_err());
    }

    #[test]
    fn other_bytes_are_not_here() {
        let region = Region::new(2).unwrap();
        assert_eq!(region.offset_of(&[0; 8]), None);
        assert_eq!(region.offset_of(&[]), None);
    }
}
