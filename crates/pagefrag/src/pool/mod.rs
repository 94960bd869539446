//! Pages for one poll loop, which come back from wherever they went.
//!
//! `cache`, `ring` and the source (`node` builds and releases) are where a page can come from; `hand` cuts fragments from
//! one; `home` is what all pages of a pool share, `closing` its end.
//!
//! The scheme is that of net/core/page_pool.c (Linux 6.18).

mod cache;
mod closing;
mod config;
mod hand;
mod home;
mod node;
mod page;
mod ring;
mod stats;

#[cfg(all(loom, test))]
mod interleavings;

use alloc::sync::Arc;
use core::fmt;

use cache::{Cache, REFILL_PAGES};
use hand::Hand;
use home::{Home, distance};
use node::Whole;

pub(crate) use node::Part;

pub use closing::Closing;
pub use config::PoolConfig;
pub use page::Page;
pub use stats::PoolStats;

use crate::{Align, AllocError, PacketBuf, block::Refusal, packet::Counted};

/// Pages for one thread, made and used by it, which come back from any.
///
/// ```
/// use pagefrag::{Align, PagePool, PoolConfig};
///
/// let mut pool = PagePool::new(PoolConfig::default().with_ring_pages(256));
/// let mut page = pool.alloc()?;
/// page[..4].copy_from_slice(b"ping");
/// page.truncate(4);
/// // Two small packets share one.
/// let small = [pool.alloc_frag(128, Align::CACHE_LINE)?, pool.alloc_frag(128, Align::CACHE_LINE)?];
/// assert_eq!(pool.in_flight(), 2);
///
/// // Handed on and dropped there, or done with here.
/// let there = std::thread::spawn(move || drop(page));
/// small.into_iter().for_each(|frag| pool.recycle(frag));
///
/// # #[cfg(feature = "std")]
/// assert_eq!(pool.close().wait().released, 2);
/// there.join().unwrap();
/// # Ok::<(), pagefrag::AllocError>(())
/// ```
///
/// It may be moved to another thread, not shared:
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<pagefrag::PagePool>();
/// ```
///
/// Dropped, it lets the pages that are out go to the source when they come back. To know when that is so, [`close`] it.
///
/// [`close`]: PagePool::close
pub struct PagePool {
    cache: Cache,
    /// What fragments are cut from.
    hand: Option<Hand>,
    home: Arc<Home>,
    page_bytes: usize,
    /// What the owner counts; the rest is added when it is asked for.
    stats: PoolStats,
}

impl PagePool {
    /// Without a page yet. Allocates the ring.
    pub fn new(config: PoolConfig) -> PagePool {
        let PoolConfig { page_bytes, ring_pages, source } = config.rounded();
        let home = Arc::new(Home::new(source, page_bytes, ring_pages));
        let stats = PoolStats { page_bytes, ..PoolStats::default() };
        PagePool { cache: Cache::new(), hand: None, home, page_bytes, stats }
    }

    /// A whole page: from the owner's cache, which is refilled from the ring; if both are empty, from the source.
    #[inline]
    pub fn alloc(&mut self) -> Result<Page, AllocError> {
        let (data, part) = self.take(self.page_bytes, 0)?.into_part();
        // SAFETY: the page has so many bytes, and no other part.
        Ok(unsafe { Page::new(data, self.page_bytes, part) })
    }

    /// A piece of a page that has room for several. What is larger than half a page is given a page of its own, which can
    /// be [recycled](PagePool::recycle) at once; what is larger than a page is refused.
    #[inline]
    pub fn alloc_frag(&mut self, bytes: usize, align: Align) -> Result<Page, AllocError> {
        let (data, part) = if bytes > self.page_bytes / 2 {
            self.take_large(bytes)?.into_part()
        } else {
            if !self.hand.as_ref().is_some_and(|hand| hand.has_room(bytes, align)) {
                self.refill_hand(bytes)?;
            }
            // After a refill there is room for half a page.
            let cut = self.hand.as_mut().and_then(|hand| hand.cut(bytes, align));
            let Some(cut) = cut else { return Err(AllocError::OutOfMemory { bytes }) };
            self.stats.frags += 1;
            cut
        };
        // SAFETY: a whole page has room for `bytes` and no other part; what was cut has them, and is not cut again before
        // its part has ended.
        Ok(unsafe { Page::new(data, bytes, part) })
    }

    /// Ends a page of this pool: into the owner's cache, without an atomic operation where nobody else has a fragment of
    /// it, or where fragments are still being cut from it. A page of another pool goes there.
    #[inline]
    pub fn recycle(&mut self, page: Page) {
        self.recycle_part(page.into_part());
    }

    /// Ends a packet: as [`recycle`](PagePool::recycle) for every page that it has alone; the rest is dropped.
    #[inline]
    pub fn recycle_packet(&mut self, packet: PacketBuf) {
        packet.end(|counted| self.recycle_counted(counted));
    }

    /// The same for a packet whose pieces may be pages of another pool of this thread: each goes to its own.
    #[inline]
    pub fn recycle_packet_and_pages(&mut self, packet: PacketBuf, other: &mut PagePool) {
        packet.end(|counted| match counted {
            Counted::Page(part) if part.is_kept_by(&self.home) => self.recycle_part(part),
            counted => other.recycle_counted(counted),
        });
    }

    #[inline]
    pub(crate) fn recycle_counted(&mut self, counted: Counted) {
        match counted {
            Counted::Page(part) => self.recycle_part(part),
            Counted::Block(reference) => drop(reference),
        }
    }

    #[inline]
    fn recycle_part(&mut self, part: Part) {
        if !part.is_kept_by(&self.home) {
            return self.send_home(part);
        }
        match part.try_whole() {
            Ok(page) => self.keep(page),
            Err(part) => self.recycle_fragment(part),
        }
    }

    /// Gives all pages back to the source that are not in use: cache, ring, and the page in hand if nobody has a fragment of
    /// it. For pools that share a limit, when another one is refused. Says how many they were.
    pub fn release_spare(&mut self) -> usize {
        let before = self.home.released();
        self.cache.clear();
        drop(self.take_hand());
        // SAFETY: this is the owner.
        unsafe { self.home.consume(self.home.ring.len(), drop) };
        distance(self.home.released() as u64, before as u64)
    }

    /// What this pool has done so far, and where its pages are.
    pub fn stats(&self) -> PoolStats {
        let spare_in_hand = self.hand.as_ref().is_some_and(|hand| !hand.is_shared());
        let in_cache = self.cache.len() + usize::from(spare_in_hand);
        let stats = self.home.complete(self.stats);
        let back = stats.released + (in_cache + stats.in_ring) as u64;
        PoolStats { in_cache, in_flight: distance(stats.slow, back), ..stats }
    }

    /// Pages that were handed out, whole or a fragment of them, and are not back. Exact, but for what other threads give
    /// back at the same time.
    pub fn in_flight(&self) -> usize {
        self.stats().in_flight
    }

    /// Ends the pool: all pages that are not out go to the source now, and the others when they come back.
    pub fn close(mut self) -> Closing {
        self.shut();
        Closing::new(Arc::clone(&self.home), self.stats)
    }

    /// A page that nobody else has. `bytes` is what the caller was asked for, `returned_bytes` what is freed in exchange.
    #[inline]
    fn take(&mut self, bytes: usize, returned_bytes: usize) -> Result<Whole, AllocError> {
        match self.cache.pop() {
            Some(page) => {
                self.stats.fast += 1;
                Ok(page)
            }
            None => self.take_elsewhere(bytes, returned_bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_elsewhere(&mut self, bytes: usize, returned_bytes: usize) -> Result<Whole, AllocError> {
        if let Some(page) = self.refill() {
            self.stats.refill += 1;
            return Ok(page);
        }
        self.stats.empty += 1;
        let refusal = match Whole::obtain(&self.home, returned_bytes) {
            Ok(page) => {
                self.stats.slow += 1;
                return Ok(page);
            }
            Err(refusal) => refusal,
        };
        // The last one there is.
        if let Some(page) = self.take_hand() {
            self.stats.in_place += 1;
            return Ok(page);
        }
        self.stats.failures += 1;
        Err(match refusal {
            Refusal::Limit => AllocError::Limit { bytes, limit_bytes: self.home.source.limit_bytes() },
            Refusal::Memory => AllocError::OutOfMemory { bytes },
        })
    }

    /// From the ring into the cache, which is empty, and one of them out of it.
    fn refill(&mut self) -> Option<Whole> {
        let cache = &mut self.cache;
        let keep = |page| {
            // It has room for them: more than are taken.
            drop(cache.push(page));
        };
        // SAFETY: this is the owner.
        unsafe { self.home.consume(REFILL_PAGES, keep) };
        self.cache.pop()
    }

    /// The page in hand, if nobody has a fragment of it.
    fn take_hand(&mut self) -> Option<Whole> {
        self.hand.take_if(|hand| !hand.is_shared())?.end()
    }

    /// For a piece that leaves no room for a second one. A page begins at the largest alignment.
    #[inline(never)]
    fn take_large(&mut self, bytes: usize) -> Result<Whole, AllocError> {
        if bytes > self.page_bytes {
            self.stats.too_large += 1;
            return Err(AllocError::TooLarge { bytes });
        }
        self.take(bytes, 0)
    }

    /// Has a whole page to cut fragments from: the one in hand if nobody has a part of it, else another one.
    #[inline(never)]
    fn refill_hand(&mut self, bytes: usize) -> Result<(), AllocError> {
        if self.hand.as_mut().is_some_and(|hand| hand.begin_again(self.page_bytes)) {
            self.stats.in_place += 1;
            return Ok(());
        }
        self.exchange_hand(bytes)
    }

    /// Another page to cut fragments from. On failure the one in hand stays there.
    fn exchange_hand(&mut self, bytes: usize) -> Result<(), AllocError> {
        // If nobody has a part of the one in hand, it is a makeshift, and freed as soon as there is another one.
        let is_spare = self.hand.as_ref().is_some_and(|hand| !hand.is_shared());
        let page = self.take(bytes, if is_spare { self.page_bytes } else { 0 })?;
        if let Some(page) = self.hand.take().and_then(Hand::end) {
            page.go_home();
        }
        self.hand = Some(Hand::new(page, self.page_bytes));
        Ok(())
    }

    #[inline]
    fn keep(&mut self, page: Whole) {
        match self.cache.push(page) {
            Ok(()) => self.stats.cached += 1,
            Err(page) => self.cache_is_full(page),
        }
    }

    #[cold]
    fn cache_is_full(&mut self, page: Whole) {
        self.stats.cache_full += 1;
        page.go_home();
    }

    #[inline]
    fn recycle_fragment(&mut self, part: Part) {
        let part = match &mut self.hand {
            Some(hand) => hand.put_back(part),
            None => Some(part),
        };
        if let Some(page) = part.and_then(Part::end) {
            self.keep(page);
        }
    }

    /// A makeshift of this pool, or a page of another one.
    #[cold]
    fn send_home(&mut self, part: Part) {
        if !part.is_of(&self.home) {
            self.stats.foreign += 1;
        }
        drop(part);
    }

    fn shut(&mut self) {
        if let Some(page) = self.hand.take().and_then(Hand::end) {
            drop(page);
        }
        self.cache.clear();
        // SAFETY: this is the owner.
        unsafe { self.home.close_ring() };
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Default for PagePool {
    fn default() -> PagePool {
        PagePool::new(PoolConfig::default())
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
