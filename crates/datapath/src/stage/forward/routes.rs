//! The tables of both IP versions, and what they are asked with.

use std::collections::HashMap;
use std::net::IpAddr;

use super::config::{ConfigError, network_of};

/// Where packets go, as places in the list of next hops.
#[derive(Debug)]
pub(super) struct Routes {
    all: HashMap<(IpAddr, u8), u32>,
}

/// What is found where there is no route: a place that there is not.
pub(super) const NO_ROUTE: u32 = u32::MAX;

impl Routes {
    pub(super) fn new(prefixes: &[(IpAddr, u8, usize)], _hops: usize) -> Result<Self, ConfigError> {
        let mut all = HashMap::new();
        for &(network, prefix_bits, place) in prefixes {
            if all.insert((network, prefix_bits), place as u32).is_some() {
                return Err(ConfigError::RouteTwice { network, prefix_bits });
            }
        }
        Ok(Self { all })
    }

    pub(super) fn look_up_v4(&self, destinations: &[u32], found: &mut Vec<u32>) {
        found.extend(destinations.iter().map(|to| self.find(IpAddr::V4((*to).into()), 32)));
    }

    pub(super) fn look_up_v6(&self, destinations: &[u128], found: &mut Vec<u32>) {
        found.extend(destinations.iter().map(|to| self.find(IpAddr::V6((*to).into()), 128)));
    }

    fn find(&self, to: IpAddr, bits: u8) -> u32 {
        let best = (0..=bits).rev().find_map(|bits| self.all.get(&(network_of(to, bits), bits)));
        best.copied().unwrap_or(NO_ROUTE)
    }
}
