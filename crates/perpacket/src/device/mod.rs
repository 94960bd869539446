//! The user-space device under test (crate `datapath`) as the commands make it: which memory, which driver, which frames.

mod design;
mod wire;

pub(crate) use design::{Alloc, Lock, RxMode, RxQueue, receiver};
pub(crate) use wire::{Destinations, Wire};
