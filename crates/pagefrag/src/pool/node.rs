//! A page's node: what is known of it, apart from its bytes; and the three ways to have a page.
//!
//! | | the count is | who has it |
//! |---|---|---|
//! | [`Whole`] | 1 | cache, ring; nobody else has a part |
//! | [`Part`] | at least 1 | a [`Page`](super::Page): the whole of it, or a fragment |
//! | [`Bias`] | the bias, and 1 for each part | the pool, while it cuts fragments from the page |
//!
//! A page changes hands without the count being touched: a `Whole` becomes the only `Part`, and the only `Part` is found
//! to be that by a load. The count is set only by who has a `Whole`, never while it is shared.

use alloc::sync::Arc;
use core::{alloc::Layout, mem::ManuallyDrop, ptr, ptr::NonNull};

use super::home::Home;
use crate::{
    SMALL_BLOCK_BYTES,
    block::Refusal,
    sync::{AtomicUsize, Ordering},
};

/// A line of its own, as the counts of two pages are not to be passed between CPUs together.
#[repr(align(64))]
pub(crate) struct Node {
    /// Parts, those included that the pool has in hand.
    count: AtomicUsize,
    data: NonNull<u8>,
    bytes: usize,
    /// The pool that it is accounted by.
    home: Arc<Home>,
    /// The same, if the pool keeps it when it is back; null for a makeshift, which is not kept.
    kept_by: *const Home,
}

/// A page that nobody else has a part of. Dropped, it goes back to the source.
pub(crate) struct Whole(NonNull<Node>);

/// One of a page's count. Dropped on any thread; with the last one the page goes home.
pub(crate) struct Part(NonNull<Node>);

/// Parts of a page that its pool has in hand, taken in bulk. Never none. Dropped as so many parts.
pub(crate) struct Bias {
    node: NonNull<Node>,
    parts: usize,
}

// SAFETY: node and page belong to this value alone. `Home` is Send and Sync.
unsafe impl Send for Whole {}
// SAFETY: the node is only read through it, but for the count, which is atomic, and for its end, which comes once and
// after everything else (`end_parts`).
unsafe impl Send for Part {}
// SAFETY: as above; `&Part` gives access to what never changes.
unsafe impl Sync for Part {}
// SAFETY: as for `Part`; the number goes along with it.
unsafe impl Send for Bias {}

impl Whole {
    /// A new page. `returned_bytes`: what will be freed in exchange.
    pub(crate) fn obtain(home: &Arc<Home>, returned_bytes: usize) -> Result<Whole, Refusal> {
        if !home.source.charge(home.page_bytes, returned_bytes) {
            return Err(Refusal::Limit);
        }
        match Node::build(home) {
            Some(node) => Ok(Whole(node)),
            None => {
                home.source.discharge(home.page_bytes);
                Err(Refusal::Memory)
            }
        }
    }

    /// The page's first byte, and its only part.
    #[inline]
    pub(crate) fn into_part(self) -> (NonNull<u8>, Part) {
        (self.data(), Part(self.into_raw()))
    }

    /// Sets the count, and takes all of it in hand.
    pub(crate) fn into_bias(self, parts: usize) -> Bias {
        let node = self.into_raw();
        // SAFETY: the node is alive, as nobody but us has it.
        let count = unsafe { &(*node.as_ptr()).count };
        // Relaxed: who gets a part gets it from us.
        count.store(parts, Ordering::Relaxed);
        Bias { node, parts }
    }

    #[inline]
    pub(crate) fn data(&self) -> NonNull<u8> {
        // SAFETY: the node is alive as long as `self`, and `data` is never written again.
        unsafe { (*self.0.as_ptr()).data }
    }

    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Node> {
        ManuallyDrop::new(self).0
    }

    /// # Safety
    ///
    /// `node` came from `into_raw`, and was not used since.
    #[inline]
    pub(crate) unsafe fn from_raw(node: NonNull<Node>) -> Whole {
        Whole(node)
    }

    /// Back to its pool, from any thread: into the ring, or to the source if the ring is full, the pool has ended, or the page
    /// is a makeshift.
    pub(crate) fn go_home(self) {
        // SAFETY: the node is alive, and `kept_by` is never written again.
        let home = unsafe { (*self.0.as_ptr()).kept_by };
        if home.is_null() {
            self.home().count_makeshift();
            return;
        }
        // SAFETY: the node's own reference keeps it alive, and is not dropped before the consumer has the page.
        unsafe { Home::take_back(home, self) };
    }

    fn home(&self) -> &Home {
        // SAFETY: the node is alive as long as `self`, and `home` is never written again.
        unsafe { &(*self.0.as_ptr()).home }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: nobody but us has the page, and this is its end.
        unsafe { Node::release(self.0) }
    }
}

impl Part {
    /// The same for two parts of one page, and only for those while they are there.
    pub(crate) fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// The page, and what keeps account of it.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.page_bytes() + size_of::<Node>()
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        // SAFETY: this part keeps the node alive, and `bytes` is never written again.
        unsafe { (*self.0.as_ptr()).bytes }
    }

    /// Whether the page goes back to this pool and is kept there.
    #[inline]
    pub(crate) fn is_kept_by(&self, home: &Arc<Home>) -> bool {
        // SAFETY: this part keeps the node alive, and `kept_by` is never written again.
        ptr::eq(unsafe { (*self.0.as_ptr()).kept_by }, Arc::as_ptr(home))
    }

    /// Whether the page is accounted by this pool.
    pub(crate) fn is_of(&self, home: &Arc<Home>) -> bool {
        // SAFETY: this part keeps the node alive, and `home` is never written again.
        Arc::ptr_eq(unsafe { &(*self.0.as_ptr()).home }, home)
    }

    /// The page, if there is no other part of it. A load: a count of one is ours, and only who has a part could make it more.
    #[inline]
    pub(crate) fn try_whole(self) -> Result<Whole, Part> {
        // SAFETY: this part keeps the node alive.
        let count = unsafe { &(*self.0.as_ptr()).count };
        // Acquire, from all who ended their parts.
        if count.load(Ordering::Acquire) == 1 { Ok(Whole(ManuallyDrop::new(self).0)) } else { Err(self) }
    }

    /// Ends this part, and gives the page to who ended the last one.
    #[inline]
    pub(crate) fn end(self) -> Option<Whole> {
        match self.try_whole() {
            Ok(whole) => Some(whole),
            // SAFETY: a `Part` stands for one of the count, and ends here.
            Err(part) => unsafe { Node::end_parts(ManuallyDrop::new(part).0, 1) },
        }
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        // A copy, and `self` is not used again.
        if let Some(whole) = Part(self.0).end() {
            whole.go_home();
        }
    }
}

impl Bias {
    #[inline]
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// Gives one part out. Touches nothing that is shared.
    ///
    /// # Safety
    ///
    /// More than one must be in hand.
    #[inline]
    pub(crate) unsafe fn take(&mut self) -> Part {
        debug_assert!(self.parts > 1, "the last part of the pool was given out");
        self.parts -= 1;
        Part(self.node)
    }

    /// Takes a part of this page back without an atomic operation. One of another page is returned.
    #[inline]
    pub(crate) fn put_back(&mut self, part: Part) -> Option<Part> {
        if part.0 != self.node {
            return Some(part);
        }
        self.parts += 1;
        core::mem::forget(part);
        None
    }

    /// Whether others have parts. If not, it stays so, as only we give them out. Acquires what they did.
    pub(crate) fn is_shared(&self) -> bool {
        // SAFETY: the bias keeps the node alive.
        let count = unsafe { &(*self.node.as_ptr()).count };
        count.load(Ordering::Acquire) != self.parts
    }

    /// Whether the pool keeps this page when it is back.
    pub(crate) fn is_kept(&self) -> bool {
        // SAFETY: the bias keeps the node alive, and `kept_by` is never written again.
        !unsafe { (*self.node.as_ptr()).kept_by }.is_null()
    }

    /// Takes so many parts in hand anew.
    ///
    /// # Safety
    ///
    /// Nobody else has a part ([`is_shared`](Bias::is_shared)), and `parts` is not 0.
    pub(crate) unsafe fn renew(&mut self, parts: usize) {
        // SAFETY: the bias keeps the node alive.
        let count = unsafe { &(*self.node.as_ptr()).count };
        count.store(parts, Ordering::Relaxed);
        self.parts = parts;
    }

    /// Ends all parts in hand; the page is the caller's if nobody has another one. That costs a load where it is so already.
    pub(crate) fn end(self) -> Option<Whole> {
        let shared = self.is_shared();
        let bias = ManuallyDrop::new(self);
        if !shared {
            // SAFETY: the node is alive, as its page is ours alone.
            let count = unsafe { &(*bias.node.as_ptr()).count };
            count.store(1, Ordering::Relaxed);
            return Some(Whole(bias.node));
        }
        // SAFETY: `parts` of the count are here, and end here.
        unsafe { Node::end_parts(bias.node, bias.parts) }
    }
}

impl Drop for Bias {
    fn drop(&mut self) {
        // SAFETY: `parts` of the count are here, and end here.
        if let Some(whole) = unsafe { Node::end_parts(self.node, self.parts) } {
            whole.go_home();
        }
    }
}

impl Node {
    const LAYOUT: Layout = Layout::new::<Node>();

    fn build(home: &Arc<Home>) -> Option<NonNull<Node>> {
        let bytes = home.page_bytes;
        let layout = Node::page_layout(bytes)?;
        // SAFETY: a node has a size.
        let node = NonNull::new(unsafe { alloc::alloc::alloc(Node::LAYOUT) })?.cast::<Node>();
        let memory = home.source.memory();
        let Some(data) = memory.alloc_used(layout) else {
            // SAFETY: it came from this allocator with this layout just now.
            unsafe { alloc::alloc::dealloc(node.as_ptr().cast(), Node::LAYOUT) };
            return None;
        };
        let kept_by = if memory.is_makeshift(data) { ptr::null() } else { Arc::as_ptr(home) };
        let content = Node { count: AtomicUsize::new(1), data, bytes, home: Arc::clone(home), kept_by };
        // SAFETY: the node is valid for writes, aligned, and nobody else knows it.
        unsafe { node.write(content) };
        Some(node)
    }

    fn page_layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, SMALL_BLOCK_BYTES).ok()
    }

    /// Subtracts from the count. Who takes it to zero has the page.
    ///
    /// # Safety
    ///
    /// The caller owns so many parts, and uses neither node nor page afterwards unless it gets them back.
    unsafe fn end_parts(node: NonNull<Node>, parts: usize) -> Option<Whole> {
        // SAFETY: the caller's parts keep the node alive.
        let count = unsafe { &(*node.as_ptr()).count };
        // Release: what was done with the bytes comes before their reuse or end.
        if count.fetch_sub(parts, Ordering::Release) != parts {
            return None;
        }
        // Acquire, from all who ended parts. A load and not a fence, so that thread sanitizers see it.
        count.load(Ordering::Acquire);
        // Nobody has a part, and nobody can get one.
        count.store(1, Ordering::Relaxed);
        Some(Whole(node))
    }

    /// To the source, and then out of the pool's account.
    ///
    /// # Safety
    ///
    /// The caller has the page alone, and does not use it any more.
    #[cold]
    unsafe fn release(node: NonNull<Node>) {
        // SAFETY: the node is valid, and freed below, so that its content is not used twice.
        let Node { data, bytes, home, .. } = unsafe { node.read() };
        // SAFETY: it came from this allocator with this layout (`build`).
        unsafe { alloc::alloc::dealloc(node.as_ptr().cast(), Node::LAYOUT) };
        if let Some(layout) = Node::page_layout(bytes) {
            // SAFETY: `build` got it from this memory with this layout, and nobody has a part of it.
            unsafe { home.source.memory().free(data, layout) };
        }
        home.source.discharge(bytes);
        home.count_released();
    }
}
