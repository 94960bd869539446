//! A device under test in user space: small, but it really forwards.
//!
//! # Map
//!
//! `wire` reads and changes headers, `table` finds the next hop, `stage` decides what becomes of a packet, `device`
//! is where packets come from and go to, `receive` how a driver gets them into buffers, `worker` the poll loop that joins
//! them, `steering` who works on a flow.

pub mod steering;
pub mod table;
pub mod wire;
