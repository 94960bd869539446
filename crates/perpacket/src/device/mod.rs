//! The user-space device under test (crate `datapath`) as the commands make it: which memory, which driver, which frames, which
//! stages.

mod check;
mod design;
mod lane;
mod tables;
mod wire;

pub(crate) use check::{check, check_memory, refuse_in_the_kernel};
pub(crate) use design::{Alloc, Lock, RxMode, RxQueue, receiver};
pub(crate) use lane::{Lane, Sent};
pub(crate) use tables::Tables;
pub(crate) use wire::{Destinations, Wire};
