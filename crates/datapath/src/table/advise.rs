//! What is done with a table's memory before it is written.

/// Is shown every large array of a table once, allocated but not touched: the moment to ask for huge pages
/// (`MADV_HUGEPAGE`), as the kernel decides how large a page is when it is first written. Random look-ups in 32 MiB of
/// small pages miss the TLB mostly. In a virtual machine it may change nothing, if the host's own pages are small:
/// measure.
pub trait Advise {
    /// Some memory. What is in it means nothing yet.
    fn advise<T>(&mut self, memory: &mut [T]);
}

/// Is shown every large array of a table that is there: to see what memory it got.
pub trait Inspect {
    /// Some memory of the table.
    fn see<T>(&mut self, memory: &[T]);
}

/// Leaves the memory as it comes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Advise for Plain {
    fn advise<T>(&mut self, _memory: &mut [T]) {}
}

/// The same elements in memory that was advised before they were written.
pub(super) fn moved<T>(from: Vec<T>, advise: &mut impl Advise) -> Vec<T> {
    let mut to = Vec::with_capacity(from.len());
    advise.advise(to.spare_capacity_mut());
    to.extend(from);
    to
}
