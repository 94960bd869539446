//! Routing tables of the devices of a run. One of a million prefixes takes long to make, so that all devices share it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datapath::stage::PortAddress;
use datapath::stage::forward::{ForwardConfig, Port, Route, Router, StaticNeighbour, Towards};
use datapath::table::synthetic::{self, Numbers};
use datapath::wire::ethernet::MacAddress;

use super::wire::{PORT_ADDRESS, PORT_MAC};

/// Routers that packets go on to. Few, so that what is known of them stays in the fastest cache, as with a real router's.
const NEXT_HOPS: u16 = 16;
/// Seed of every table and of the addresses in it: the same for each run, so that runs can be compared.
const SEED: u64 = 1;
/// The least and the most different destinations, powers of two.
const DESTINATIONS: (usize, usize) = (1 << 16, 1 << 20);
/// The MTU of both ports, in bytes.
const MTU_BYTES: usize = 9_000;
const EGRESS_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];

/// Tables by their number of prefixes.
#[derive(Default)]
pub(crate) struct Tables(BTreeMap<u32, Arc<Routing>>);

/// A router and packets' addresses.
pub(crate) struct Routing {
    /// Packets come in by its port 0 and leave by its port 1.
    pub(crate) router: Router,
    /// Addresses within the table.
    pub(crate) destinations: Arc<[u32]>,
}

impl Tables {
    /// The table of so many prefixes.
    pub(crate) fn of(&mut self, prefixes: u32) -> Result<Arc<Routing>> {
        if let Some(routing) = self.0.get(&prefixes) {
            return Ok(Arc::clone(routing));
        }
        let routing =
            Routing::make(prefixes).with_context(|| format!("make a table of {prefixes} prefixes"))?;
        let routing = Arc::new(routing);
        self.0.insert(prefixes, Arc::clone(&routing));
        Ok(routing)
    }
}

impl Routing {
    fn make(prefixes: u32) -> Result<Self> {
        let table = synthetic::ipv4(prefixes as usize, NEXT_HOPS, SEED);
        let gateway = |index: usize| IpAddr::V4(Ipv4Addr::new(198, 18, 1, index as u8 + 2));
        let routes =
            table.as_slice().iter().filter(|route| is_elsewhere(route.prefix.address())).map(|route| Route {
                network: IpAddr::V4(route.prefix.address().into()),
                prefix_bits: route.prefix.length(),
                towards: Towards::Gateway { address: gateway(route.next_hop.index()), port: Some(1) },
            });
        let neighbours = (0..NEXT_HOPS).map(|index| StaticNeighbour {
            address: gateway(index.into()),
            port: Some(1),
            mac: MacAddress([2, 0, 0, 0, 3, index as u8]),
        });
        let config = ForwardConfig {
            ports: vec![port(PORT_MAC, PORT_ADDRESS), port(EGRESS_MAC, Ipv4Addr::new(198, 18, 1, 1))],
            routes: routes.collect(),
            neighbours: neighbours.collect(),
            ..ForwardConfig::default()
        };
        let within: Vec<(u32, u8)> =
            table.as_slice().iter().map(|route| (route.prefix.address(), route.prefix.length())).collect();
        Ok(Self { router: Router::new(&config)?, destinations: destinations(&within, SEED)? })
    }
}

fn port(mac: [u8; 6], address: Ipv4Addr) -> Port {
    let addresses = vec![PortAddress { address: address.into(), prefix_bits: 24 }];
    Port { mac: MacAddress(mac), mtu_bytes: MTU_BYTES, addresses }
}

/// Addresses of hosts, each within a prefix drawn at random.
pub(super) fn destinations(prefixes: &[(u32, u8)], seed: u64) -> Result<Arc<[u32]>> {
    let (least, most) = DESTINATIONS;
    let wanted = prefixes.len().next_power_of_two().clamp(least, most);
    let mut numbers = Numbers::new(seed);
    let mut addresses = Vec::with_capacity(wanted);
    // A few prefixes may lie within what no packet is sent to.
    for _ in 0..64 * wanted {
        let (network, bits) = prefixes[numbers.below(prefixes.len() as u64) as usize];
        let host = (numbers.u64() as u32).checked_shr(bits.into()).unwrap_or(0);
        if is_beyond(Ipv4Addr::from(network | host)) {
            addresses.push(network | host);
        }
        if addresses.len() == wanted {
            return Ok(addresses.into());
        }
    }
    ensure!(false, "its prefixes hold no addresses that packets are forwarded to");
    Ok(addresses.into())
}

/// Whether a prefix that was made up does not begin among the addresses that our own links have (198.18.0.0/15): it may be that
/// of a link.
pub(super) fn is_elsewhere(address: u32) -> bool {
    address >> 17 != u32::from_be_bytes([198, 18, 0, 0]) >> 17
}

/// Whether a router forwards packets to this address, and it is not that of one of our own links (198.18.0.0/15).
fn is_beyond(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    !address.is_link_local() && (first != 198 || second & 0xfe != 18)
}
