//! The page that fragments are being cut from, from its end to its start.

use core::ptr::NonNull;

use super::node::{Bias, Part, Whole};
use crate::Align;

/// As in `cutter`: always `bias.parts() > offset`, since a fragment takes one part and at least one byte, and only the
/// parts ever become more again. So a part is left as long as a byte is, and one stays with the pool.
pub(crate) struct Hand {
    bias: Bias,
    data: NonNull<u8>,
    /// The bytes before it are free.
    offset: usize,
}

// SAFETY: `data` points into the page that the bias keeps alive, of which only this type cuts; `Bias` is Send.
unsafe impl Send for Hand {}

impl Hand {
    pub(crate) fn new(page: Whole, page_bytes: usize) -> Hand {
        let data = page.data();
        Hand { bias: page.into_bias(page_bytes + 1), data, offset: page_bytes }
    }

    #[inline]
    pub(crate) fn has_room(&self, bytes: usize, align: Align) -> bool {
        self.start(bytes, align).is_some()
    }

    #[inline]
    fn start(&self, bytes: usize, align: Align) -> Option<usize> {
        Some(align.at_or_before(self.offset.checked_sub(bytes.max(1))?))
    }

    /// Where a fragment begins, and its part: initialised bytes that are not cut again before nobody has a part of the page.
    /// None if less is left than that. An empty fragment takes a byte too, as it takes a part.
    #[inline]
    pub(crate) fn cut(&mut self, bytes: usize, align: Align) -> Option<(NonNull<u8>, Part)> {
        let start = self.start(bytes, align)?;
        debug_assert!(self.bias.parts() > self.offset, "bias and offset are out of step");
        // SAFETY: there are more parts than `offset` (see the type), which is at least 1.
        let part = unsafe { self.bias.take() };
        self.offset = start;
        // SAFETY: the page is larger than `start`.
        Some((unsafe { self.data.add(start) }, part))
    }

    /// Takes a fragment of this page back. One of another page is returned.
    #[inline]
    pub(crate) fn put_back(&mut self, part: Part) -> Option<Part> {
        self.bias.put_back(part)
    }

    /// Begins again at the page's end, if nobody has a part of it, and the pool keeps it when it is back.
    #[inline]
    pub(crate) fn begin_again(&mut self, page_bytes: usize) -> bool {
        let begins = !self.is_shared() && self.bias.is_kept();
        if begins {
            // SAFETY: nobody else has a part, and the number is not 0.
            unsafe { self.bias.renew(page_bytes + 1) };
            self.offset = page_bytes;
        }
        begins
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.bias.is_shared()
    }

    /// The page, if nobody has a part of it; else it is left to those.
    pub(crate) fn end(self) -> Option<Whole> {
        self.bias.end()
    }
}
