//! perpacket's own protocol between two hosts.
//!
//! A client opens a control connection to [`PORT`], says what is to be done ([`plan::Plan`](crate::plan::Plan)), opens its data
//! sockets to the ports that the server names, and both run the [`engine`](crate::engine). At the end each has what it counted
//! itself, and the client also what the server did.
//!
//! - The first 12 bytes of either end are the same in every version, so that two versions can tell that they are two.
//! - Every length is checked before anything is allocated for it.
//! - Test traffic goes only to the address that the control connection came from, and only after the cookie came back from
//!   there: as the first bytes of a TCP connection, or in a UDP datagram.
//! - With a [`Key`] the control connection is authenticated and encrypted (`Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`). Test
//!   traffic is not.
//!
//! It has no words for UNIX sockets, whose ends are on one host.
//!
//! | module | what it holds |
//! |---|---|
//! | [`client`] | from a plan to what both ends counted |
//! | [`server`] | one client from its hello to its results |
//! | [`wire`] | what is on the wire, as bytes and values; docs/protocol.md says the same |
//! | `handshake`, `channel` | version and keys; messages over the control connection |
//! | `sockets` | data sockets, opened at both ends |
//! | `course`, `parts` | a run in progress, and one side from what the engine's calls have counted |

mod channel;
pub mod client;
mod course;
mod error;
mod handshake;
mod key;
mod parts;
pub mod server;
mod sockets;
pub mod wire;

pub use error::OwnError;
pub use key::{Key, KeyError};

/// The TCP port of the control connection: the one after netperf's (12865).
pub const PORT: u16 = 12866;
