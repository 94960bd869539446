//! What may be wrong with routes.

use std::net::IpAddr;

/// Why something is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Longer than the address.
    #[error(
        "prefix {address}/{length}: an address of this version has {bits} bits; give a length from 0 to {bits}"
    )]
    Length {
        /// The address.
        address: IpAddr,
        /// Its length.
        length: u8,
        /// What it may be at most.
        bits: u8,
    },
    /// Bits behind the prefix are set.
    #[error(
        "prefix {address}/{length}: bits behind the first {length} are set; did you mean {network}/{length}, or \
         {address}/{bits}?"
    )]
    HostBits {
        /// The address.
        address: IpAddr,
        /// The prefix's length.
        length: u8,
        /// The address with these bits cleared.
        network: IpAddr,
        /// The length of a single address.
        bits: u8,
    },
}

/// Why there is no table for these routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A next hop's number does not fit an entry.
    #[error(
        "build a table of {routes} routes: next hop {index} is beyond {limit}, the highest that an entry holds; number \
         the next hops from 0, each once, or take a poptrie"
    )]
    TooManyNextHops {
        /// How many routes.
        routes: usize,
        /// The number.
        index: u16,
        /// The highest that is possible.
        limit: u16,
    },
    /// The system refused memory.
    #[error(
        "build a table of {routes} routes: there is no memory for {bytes} more bytes; leave out routes, or raise the limit of the \
         process (ulimit -v) or of its group"
    )]
    NoMemory {
        /// How many routes.
        routes: usize,
        /// How much was asked for.
        bytes: usize,
    },
    /// The table would need more parts than can be numbered.
    #[error("build a table of {routes} routes: it would need more than {limit} {what}; {advice}")]
    TooLarge {
        /// How many routes.
        routes: usize,
        /// Parts of which kind.
        what: &'static str,
        /// How many there may be.
        limit: usize,
        /// What to do.
        advice: &'static str,
    },
}
