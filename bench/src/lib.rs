//! What the benchmarks share: the network that is sent into, what sends, rounds of several senders, and their table.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arena;
pub mod ground;
pub mod rounds;
pub mod sender;
pub mod stamps;
pub mod table;
