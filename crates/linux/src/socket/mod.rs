//! Connected sockets as programs that move bulk data use them: options, the state of a TCP connection, and the ways in which
//! bytes get into a socket and out of it.
//!
//! Every function is one call on a socket that the caller owns; those that move bytes return the kernel's answer as
//! [`io::Result`], because "not now" is no error there and nothing is formatted on the way.
//!
//! | file | holds |
//! |---|---|
//! | `options` | options that are set and read back |
//!
//! [`io::Result`]: std::io::Result

mod options;

pub use options::*;
