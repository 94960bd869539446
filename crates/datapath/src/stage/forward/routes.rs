//! The tables of both IP versions, and what they are asked with.

use std::collections::HashSet;
use std::net::IpAddr;

use super::config::{ConfigError, Prefixed};
use crate::table::{self, Address, Advise, Inspect, NextHop, Poptrie, Prefix};

/// Where packets go, as places in the list of next hops.
#[derive(Debug)]
pub(super) struct Routes {
    v4: Poptrie<u32>,
    v6: Poptrie<u128>,
    prefixes: usize,
}

/// What the tables of a router take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// Prefixes of both IP versions, those of its own networks and addresses included.
    pub prefixes: usize,
    /// Memory, in bytes.
    pub bytes: usize,
    /// How much of it lies in huge pages now, in bytes. None where the kernel does not tell (before Linux 6.7).
    pub huge_bytes: Option<usize>,
}

impl Routes {
    pub(super) fn new(prefixes: &[Prefixed]) -> Result<Self, ConfigError> {
        let v4 = |network| if let IpAddr::V4(network) = network { Some(network.to_bits()) } else { None };
        let v6 = |network| if let IpAddr::V6(network) = network { Some(network.to_bits()) } else { None };
        let failed = |error: table::BuildError| ConfigError::Table(error.to_string());
        Ok(Self {
            v4: Poptrie::build_in(&collected(prefixes, v4)?, &mut Huge).map_err(failed)?,
            v6: Poptrie::build_in(&collected(prefixes, v6)?, &mut Huge).map_err(failed)?,
            prefixes: prefixes.len(),
        })
    }

    pub(super) fn facts(&self) -> TableFacts {
        let mut got = Got(Some(0));
        self.v4.inspect(&mut got);
        self.v6.inspect(&mut got);
        let bytes = self.v4.memory_bytes() + self.v6.memory_bytes();
        TableFacts { prefixes: self.prefixes, bytes, huge_bytes: got.0 }
    }

    pub(super) fn look_up_v4(&self, destinations: &[u32], found: &mut Vec<Option<NextHop>>) {
        found.resize(destinations.len(), None);
        self.v4.lookup_burst(destinations, found);
    }

    pub(super) fn look_up_v6(&self, destinations: &[u128], found: &mut Vec<Option<NextHop>>) {
        found.resize(destinations.len(), None);
        self.v6.lookup_burst(destinations, found);
    }
}

/// Asks for huge pages. Where the kernel has none, look-ups are slower, and that is all.
struct Huge;

impl Advise for Huge {
    fn advise<T>(&mut self, memory: &mut [T]) {
        linux::memory::advise_huge(memory).ok();
    }
}

/// Adds up what lies in huge pages.
struct Got(Option<usize>);

impl Inspect for Got {
    fn see<T>(&mut self, memory: &[T]) {
        // An array without room for one has none, and the kernel is not asked.
        let has_room = size_of_val(memory) >= linux::memory::HUGE_PAGE_BYTES;
        let huge = if has_room { linux::memory::huge_bytes(memory) } else { Some(0) };
        self.0 = self.0.zip(huge).map(|(sum, more)| sum + more);
    }
}

/// Those of one version.
fn collected<A: Address>(
    prefixes: &[Prefixed],
    of_version: impl Fn(IpAddr) -> Option<A>,
) -> Result<table::Routes<A>, ConfigError> {
    let mut count = 0;
    let mut routes = Vec::new();
    for prefixed in prefixes {
        let Some(network) = of_version(prefixed.network) else { continue };
        let prefix = Prefix::new(network, prefixed.prefix_bits).map_err(ConfigError::Prefix)?;
        let next_hop = u16::try_from(prefixed.place).ok().and_then(NextHop::new);
        let next_hop = next_hop.ok_or(ConfigError::Hops { most: usize::from(NextHop::INDEX_MAX) + 1 })?;
        routes.push(table::Route { prefix, next_hop });
        count += 1;
    }
    let routes: table::Routes<A> = routes.into_iter().collect();
    if routes.len() < count {
        return Err(twice(prefixes));
    }
    Ok(routes)
}

#[cold]
fn twice(prefixes: &[Prefixed]) -> ConfigError {
    let mut seen = HashSet::new();
    let again = prefixes.iter().find(|of| !seen.insert((of.network, of.prefix_bits)));
    let (network, prefix_bits) =
        again.map_or((std::net::Ipv4Addr::UNSPECIFIED.into(), 0), |of| (of.network, of.prefix_bits));
    ConfigError::RouteTwice { network, prefix_bits }
}
