//! What a packet buffer costs, from allocators of ours and of others, under one and the same loop.
//!
//! ```text
//! Cell       an allocator (`kind`), a size or a mix of sizes (`load`), and who takes and ends
//!  └ Bench   the cell made real: on one thread, on two, or from one to another (`bench`, `beside`)
//!     └ Worker  the loop (`arm`), over one arm for each family of allocators (`arms/`)
//!  └ Rounds  all cells in random order, a slice of work and an empty one in pairs (`rounds`)
//!  └ figures cost, ratio to the poll cache, what guarding adds
//!  └ memory  what is resident for what is in use, in a process of its own for each
//! ```

mod arm;
mod arms;
mod bench;
mod beside;
mod figures;
mod kind;
mod load;
mod memory;
mod rounds;

#[cfg(test)]
pub(crate) use arm::{Pages, Turnover};
pub(crate) use bench::Account;
pub(crate) use figures::{Figures, bases, figures, usual};
pub(crate) use kind::{Allocator, Baseline, Cell, Threads};
pub(crate) use load::{LARGEST_BYTES, Sizes};
pub(crate) use memory::{Memory, here as memory_here, of as memory_of};
pub(crate) use rounds::Rounds;
