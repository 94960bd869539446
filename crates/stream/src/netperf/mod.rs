//! netperf's control protocol (2.7.0 and later), both ends of it, and its classic columns.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | the messages of the control connection, as plain data |
//! | [`server`] | answers a real netperf |
//! | [`client`] | asks a real netserver |
//! | [`columns`] | what netperf prints |
//!
//! Read from netperf 2.7.1 (commit afc51ff) and checked against exchanges recorded from it.

mod arrange;
pub mod client;
pub mod columns;
mod control;
pub mod server;
mod told;
pub mod wire;

pub use control::ControlError;

/// Where netserver listens.
pub const PORT: u16 = 12865;
