//! Longest-prefix match: which next hop leads to an address.
//!
//! [`Routes`] is the list that is changed. A table is made from it as a whole, within a fraction of a second for the
//! whole Internet, and is only read from then on: any number of threads may share it, and whoever forwards takes a
//! new one when there is one.
//!
//! | table | for | what it costs |
//! |---|---|---|
//! | [`Dir24`] | IPv4; the router does not use it | 32 MiB whatever the routes; one access for prefixes up to /24, two beyond |
//! | [`Poptrie`] | IPv4 and IPv6: the router's | 9 MiB for 1,000,000 routes of IPv4, 10 for 220,000 of IPv6; one access for each 6 bits |
//!
//! Both answer bursts faster than single addresses: the accesses of one do not depend on those of another, and the
//! CPU has many under way at once, as long as no wrong guess of a branch stops it. So `lookup_burst` works in stages,
//! each a short loop over all addresses.
//!
//! ```
//! use datapath::table::{Dir24, NextHop, Prefix, Route, Routes};
//!
//! let hop = |index| NextHop::new(index).unwrap();
//! let routes: Routes<u32> = [
//!     Route { prefix: Prefix::new(0, 0)?, next_hop: hop(0) },
//!     Route { prefix: Prefix::new(0x0a00_0000, 8)?, next_hop: hop(1) },
//! ]
//! .into_iter()
//! .collect();
//! let table = Dir24::build(&routes)?;
//! assert_eq!(table.lookup(0x0a01_0203), Some(hop(1)));
//! let mut found = [None; 2];
//! table.lookup_burst(&[0x0a01_0203, 0xc0a8_0001], &mut found);
//! assert_eq!(found, [Some(hop(1)), Some(hop(0))]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod advise;
mod dir24;
mod error;
mod poptrie;
mod routes;
pub mod synthetic;

pub use address::Address;
pub use advise::{Advise, Inspect, Plain};
pub use dir24::Dir24;
pub use error::{BuildError, PrefixError};
pub use poptrie::Poptrie;
pub use routes::{NextHop, Prefix, Route, Routes};
