//! Memory for packet buffers: huge pages, and pages of one NUMA node.
//!
//! An [`Arena`] is mapped and made present once, and gives blocks to the caches and pools of `pagefrag`, which is cheaper than
//! the heap where a pool takes pages from it: a page of 4096 bytes, aligned so, takes two from most heaps.
//!
//! What was asked for and what was got are two things: [`Arena::got`] asks the kernel.

mod buddy;
mod huge;
mod numa;

use std::alloc::Layout;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagefrag::{Heap, Memory};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use buddy::Buddy;
pub use huge::{HUGE_PAGE_BYTES, advise_huge, huge_bytes};

use crate::SyscallError;

/// The smallest block.
const GRANULE_BYTES: usize = 4096;

/// Which pages a region is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pages {
    /// The kernel's ordinary ones.
    #[default]
    Ordinary,
    /// Transparent huge pages: ordinary ones where the kernel has no huge ones, or is set to `never`. Needs nothing.
    Transparent,
    /// Huge pages of 2 MiB that the administrator has set aside (`vm.nr_hugepages`), or an error.
    Reserved,
}

/// What to map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    /// How much. Rounded up to whole pages of the wanted size.
    pub bytes: usize,
    /// Of which pages.
    pub pages: Pages,
    /// The NUMA node to be preferred; none: that of the CPU which maps it.
    pub numa_node: Option<u32>,
    /// Whether the heap steps in when the region is used up. Such blocks are a makeshift, which a page pool does not keep.
    pub or_heap: bool,
}

/// What the kernel gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// The size of the region.
    pub bytes: usize,
    /// How much of it is mapped by huge pages; none where the kernel does not tell (before Linux 6.7).
    pub huge_bytes: Option<usize>,
    /// How much of it is on which NUMA node, ascending; none where the kernel does not tell (without CONFIG_NUMA).
    pub node_bytes: Option<Vec<(u32, usize)>>,
}

/// Memory for `pagefrag::Source::new`. A clone is the same region: keep one to ask what was got.
///
/// ```
/// use linux::memory::{Pages, Arena, Want};
/// use pagefrag::{PagePool, PoolConfig, Source};
///
/// let region = Arena::map(Want { bytes: 8 << 20, pages: Pages::Transparent, ..Want::default() })?;
/// let mut pool = PagePool::new(PoolConfig::default().with_source(Source::new(region.clone()).share()));
/// let page = pool.alloc()?;
/// assert_eq!(region.free_bytes(), (8 << 20) - page.block_bytes());
/// // Perhaps Some(8 << 20), perhaps Some(0): it depends on the host.
/// let _huge = region.got().huge_bytes;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stretch: Stretch,
    free: Mutex<Buddy>,
    or_heap: bool,
}

impl Arena {
    /// Maps a region and makes all of it present, so that no page fault is left for a packet.
    ///
    /// # Errors
    /// ENOMEM when there are not so many (reserved huge) pages; EINVAL for a node that is not there; EPERM where a container
    /// does not allow a choice of node.
    pub fn map(want: Want) -> Result<Arena, SyscallError> {
        let unit = if want.pages == Pages::Ordinary { GRANULE_BYTES } else { HUGE_PAGE_BYTES };
        let object = || format!("{} bytes of {:?} memory", want.bytes, want.pages);
        let bytes = want.bytes.max(1).checked_next_multiple_of(unit);
        // As many granules as the free list can number.
        let fitting = bytes.filter(|bytes| bytes / GRANULE_BYTES < u32::MAX as usize);
        let too_large = || SyscallError::new("mmap", object(), io::ErrorKind::OutOfMemory.into());
        let bytes = fitting.ok_or_else(too_large)?;
        let stretch =
            Stretch::map(bytes, want.pages).map_err(|error| SyscallError::new("mmap", object(), error))?;
        if want.pages == Pages::Transparent {
            // A kernel without them answers EINVAL, and then the pages are ordinary ones, which `got` tells.
            let _ = stretch.advise(Advice::LinuxHugepage);
        }
        if let Some(node) = want.numa_node {
            stretch
                .prefer(node)
                .map_err(|error| SyscallError::new("mbind", format!("NUMA node {node}"), error))?;
        }
        stretch
            .populate()
            .map_err(|error| SyscallError::new("madvise MADV_POPULATE_WRITE", object(), error))?;
        let free = Mutex::new(Buddy::new((bytes / GRANULE_BYTES) as u32));
        Ok(Arena(Arc::new(Inner { stretch, free, or_heap: want.or_heap })))
    }

    /// What the kernel has given, as it is now: it may split huge pages, and move what is on a node.
    pub fn got(&self) -> Got {
        let stretch = &self.0.stretch;
        let start = stretch.start.as_ptr();
        Got {
            bytes: stretch.bytes,
            huge_bytes: huge::scan_huge(start.addr()..start.addr() + stretch.bytes).ok(),
            node_bytes: numa::nodes(start..start.wrapping_add(stretch.bytes), GRANULE_BYTES).ok(),
        }
    }

    /// How much of the region is in no block.
    pub fn free_bytes(&self) -> usize {
        self.free().free_granules() * GRANULE_BYTES
    }

    fn free(&self) -> MutexGuard<'_, Buddy> {
        // Nothing in it panics halfway.
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, data: NonNull<u8>) -> bool {
        let stretch = &self.0.stretch;
        data.addr().get().wrapping_sub(stretch.start.addr().get()) < stretch.bytes
    }
}

// SAFETY: the buddy allocator gives every granule out once until it is back (its tests), inside the stretch, which is mapped
// as long as the region is; the kernel made its pages zero, and `alloc` makes those zero that were used. What comes from the
// heap keeps the heap's promises, and is told by its address.
unsafe impl Memory for Arena {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let data = self.alloc_used(layout)?;
        if self.has(data) {
            // SAFETY: the block is ours alone, and has so many bytes.
            unsafe { data.write_bytes(0, layout.size()) };
        }
        Some(data)
    }

    fn alloc_used(&self, layout: Layout) -> Option<NonNull<u8>> {
        let start = order(layout).and_then(|order| self.free().alloc(order));
        match start {
            // SAFETY: the granule lies inside the stretch.
            Some(start) => Some(unsafe { self.0.stretch.start.add(start as usize * GRANULE_BYTES) }),
            None if self.0.or_heap => Heap.alloc(layout),
            None => None,
        }
    }

    unsafe fn free(&self, data: NonNull<u8>, layout: Layout) {
        if !self.has(data) {
            // SAFETY: what is not of the region came from the heap with this layout.
            return unsafe { Heap.free(data, layout) };
        }
        let start = (data.addr().get() - self.0.stretch.start.addr().get()) / GRANULE_BYTES;
        if let Some(order) = order(layout) {
            Arena::free(self).free(start as u32, order);
        }
    }

    fn is_makeshift(&self, data: NonNull<u8>) -> bool {
        !self.has(data)
    }
}

/// The block for this layout, as a power of two of granules. None for nothing, and for an alignment that the start of the
/// region need not have.
fn order(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).checked_next_power_of_two()?;
    let fits = layout.size() > 0 && layout.align() <= HUGE_PAGE_BYTES && bytes <= 1 << 42;
    fits.then(|| (bytes.max(GRANULE_BYTES) / GRANULE_BYTES).ilog2() as usize)
}

/// Mapped memory of this process alone, whose start is aligned to a huge page.
#[derive(Debug)]
struct Stretch {
    start: NonNull<u8>,
    bytes: usize,
    /// All that was mapped; the stretch lies inside.
    mapped: *mut u8,
    mapped_bytes: usize,
}

// SAFETY: the memory belongs to this value alone and is not tied to a thread; only who has a block of it touches it.
unsafe impl Send for Stretch {}
// SAFETY: as above; `&Stretch` gives no access to the memory.
unsafe impl Sync for Stretch {}

impl Stretch {
    fn map(bytes: usize, pages: Pages) -> io::Result<Stretch> {
        let flags = match pages {
            Pages::Reserved => MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            _ => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        // Reserved huge pages are aligned by themselves.
        let spare = if pages == Pages::Reserved { 0 } else { HUGE_PAGE_BYTES };
        let mapped_bytes = bytes.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a null hint lets the kernel choose an unused address, so no memory of ours is replaced.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let mapped = mapped.cast::<u8>();
        let start = mapped.wrapping_add(mapped.addr().wrapping_neg() % HUGE_PAGE_BYTES);
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Stretch { start, bytes, mapped, mapped_bytes })
    }

    fn prefer(&self, node: u32) -> io::Result<()> {
        let start = self.start.as_ptr();
        // SAFETY: the stretch is our mapping.
        unsafe { numa::prefer(&(start..start.wrapping_add(self.bytes)), node) }
    }

    /// Makes all pages present. Not by writing to them: where a cgroup has no huge page left, that ends the process.
    fn populate(&self) -> io::Result<()> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Before Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                // SAFETY: the stretch is our mapping, and nobody has a block of it yet.
                unsafe { self.start.write_bytes(0, self.bytes) };
                Ok(())
            }
            answer => answer,
        }
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is our mapping; the advice given here (huge pages, populate) changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.bytes, advice) }.map_err(io::Error::from)
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `map`, and no block of it is left: each keeps its source, and so its region, alive.
        let _ = unsafe { munmap(self.mapped.cast(), self.mapped_bytes) };
    }
}
