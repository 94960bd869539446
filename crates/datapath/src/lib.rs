//! A device under test in user space: small, but it really forwards.
//!
//! What a network stack does with a packet, with one choice at a time to be swapped and its price measured: which memory a
//! packet is received into, whether it is copied, how it is dropped, forwarded, delivered or steered, which lock a
//! sending queue has. No kernel is needed for that ([`Synthetic`](device::Synthetic) to [`Dummy`](device::Dummy)); with one, frames
//! come from packet sockets, AF_XDP and TAP devices, and other hosts cannot tell it from a router.
//!
//! # The flow of a packet
//!
//! ```text
//! Worker::poll, as NAPI: at most 64 packets
//!  └ Receive    a queue of a device, and buffers of one allocator: copied, or handed up in its page
//!     └ Batch   packets, each with a verdict; none is moved until all stages have seen it
//!  └ Stage…     early drop, filter, forward, udp, steering: decide
//!  └ dispatch   by verdict: dropped for a reason, to a port (Transmit), to a queue (Outlet)
//!  └ reclaim    what ended or left goes back to the receiving side, whose memory it is
//! ```
//!
//! Every packet is in the [`Ledger`]: received + made = transmitted + delivered + held + dropped by reason.
//!
//! # Map
//!
//! `worker` is the loop, `batch` and `reason` its words, `ledger` the account. `device` is where packets come from and go to,
//! `receive` how a driver gets them into buffers, `stage` what decides; `queue` joins workers. `wire` reads and changes
//! headers, `table` finds the next hop, `steering` hashes flows: these three are pure.
//!
//! # What it is not
//!
//! No replacement of a router: routes and neighbours are few kinds, and nothing is configured while it runs. Its figures are of
//! this code on this CPU: there is no DMA mapping, no interrupt and no IOMMU in user space.

mod batch;
pub mod device;
mod ledger;
pub mod queue;
mod reason;
pub mod receive;
pub mod stage;
pub mod steering;
pub mod table;
pub mod wire;
mod worker;

pub use batch::{BUDGET, Batch, Verdict};
pub use ledger::{Drops, Ledger};
pub use reason::Reason;
pub use worker::Worker;
