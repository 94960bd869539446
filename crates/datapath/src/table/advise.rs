//! What is done with a table's memory before it is written.

use super::BuildError;

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
pub(super) fn moved<T>(from: Vec<T>, advise: &mut impl Advise, routes: usize) -> Result<Vec<T>, BuildError> {
    let mut to = Vec::new();
    make_room(&mut to, from.len(), routes)?;
    advise.advise(to.spare_capacity_mut());
    to.extend(from);
    Ok(to)
}

/// Room for so many more elements, of a table of so many routes: without it a push would end the process where memory ends.
#[inline]
pub(super) fn make_room<T>(of: &mut Vec<T>, more: usize, routes: usize) -> Result<(), BuildError> {
    if of.capacity() - of.len() >= more {
        return Ok(());
    }
    let bytes = more.saturating_add(of.len()).saturating_mul(size_of::<T>());
    // Of an array that grows one by one, twice as much; of an empty one, what is asked for.
    let reserved = if of.is_empty() { of.try_reserve_exact(more) } else { of.try_reserve(more) };
    reserved.map_err(|_| BuildError::NoMemory { routes, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut huge: Vec<u64> = Vec::new();
        for more in [usize::MAX, usize::MAX / 16, isize::MAX as usize / 8] {
            let error = make_room(&mut huge, more, 7);
            assert!(matches!(error, Err(BuildError::NoMemory { routes: 7, .. })), "{error:?}");
        }
        assert_eq!(make_room(&mut huge, 3, 7), Ok(()));
        assert!(huge.capacity() >= 3);
    }
}
