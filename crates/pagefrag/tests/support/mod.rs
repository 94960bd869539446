//! Memory that watches what is done with it, and can be told to refuse.
#![allow(dead_code, unreachable_pub, unsafe_code)]

use std::{
    alloc::Layout,
    collections::BTreeMap,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard},
};

use pagefrag::{Heap, Memory, Source};

/// What freed memory is filled with, so that a fragment that is still in use shows it.
pub const FREED: u8 = 0xdf;

#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Address and size of every block that is alive.
    blocks: BTreeMap<usize, usize>,
    /// Larger ones are refused.
    largest: Option<usize>,
    calls: u64,
    /// The call that is refused, whatever it asks for.
    refused_call: Option<u64>,
    /// What is given now is a makeshift.
    gives_makeshift: bool,
}

impl Watched {
    pub fn new() -> Watched {
        Watched::default()
    }

    pub fn source(&self) -> Source {
        Source::new(self.clone())
    }

    /// Refuses blocks that are larger; `usize::MAX` refuses none, 0 all.
    pub fn refuse_larger_than(&self, bytes: usize) {
        self.state().largest = Some(bytes);
    }

    /// Refuses one call, counted from 0 from the beginning.
    pub fn refuse_call(&self, call: u64) {
        self.state().refused_call = Some(call);
    }

    /// From now on blocks are a makeshift, or not.
    pub fn give_makeshift(&self, is_makeshift: bool) {
        self.state().gives_makeshift = is_makeshift;
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    pub fn blocks(&self) -> usize {
        self.state().blocks.len()
    }

    pub fn alive_bytes(&self) -> usize {
        self.state().blocks.values().sum()
    }

    /// Start and size of the block that is alive and has these bytes.
    pub fn block_of(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        let first = bytes.as_ptr().addr();
        let state = self.state();
        let (&start, &size) = state.blocks.range(..=first).next_back()?;
        (first + bytes.len() <= start + size).then_some((start, size))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it looks")
    }
}

// SAFETY: the memory is the heap's; the rest is bookkeeping.
unsafe impl Memory for Watched {
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mut state = self.state();
        let call = state.calls;
        state.calls += 1;
        if state.refused_call == Some(call) || state.largest.is_some_and(|largest| layout.size() > largest) {
            return None;
        }
        let data = Heap.alloc(layout)?;
        assert_eq!(data.as_ptr().addr() % layout.align(), 0);
        state.blocks.insert(data.as_ptr().addr(), layout.size());
        Some(data)
    }

    fn is_makeshift(&self, _data: NonNull<u8>) -> bool {
        self.state().gives_makeshift
    }

    unsafe fn free(&self, data: NonNull<u8>, layout: Layout) {
        let known = self.state().blocks.remove(&data.as_ptr().addr());
        assert_eq!(known, Some(layout.size()), "a block is freed twice, or with another size");
        // SAFETY: the block is whole, and nobody uses it any more.
        unsafe { data.write_bytes(FREED, layout.size()) };
        // SAFETY: `alloc` got it from the heap with this layout.
        unsafe { Heap.free(data, layout) }
    }
}
