//! One process that serves clients of several protocols at once.
//!
//! Each protocol has a door: a listening socket and one thread, in which connections wait until they have said something
//! (`lobby`). A client then gets a thread of its own, and one of a bounded number of places.

mod doors;
pub(crate) mod lobby;
mod others;
mod protocol;

pub use doors::{OnClient, Served, Server, listen};
pub use others::{Iperf3, Netperf};
pub use protocol::{Account, Own, Protocol, Refused, Verdict};

use std::net::SocketAddr;

use linux::SyscallError;
use thiserror::Error;

/// Why a server does not serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A port cannot be listened on.
    #[error("listen for {protocol} on {address}: {source}; choose another port, or end what has it")]
    Listen {
        /// Whose door.
        protocol: &'static str,
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// It is not known where a socket listens.
    #[error("ask where the door of {protocol} is: {source}")]
    Address {
        /// Whose door.
        protocol: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("start the thread that listens for {protocol}: {source}")]
    Thread {
        /// Whose door.
        protocol: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Waiting for connections failed.
    #[error("wait for connections of {protocol}")]
    Wait {
        /// Whose door.
        protocol: &'static str,
        /// What failed.
        source: SyscallError,
    },
}
