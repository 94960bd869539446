//! Routing tables of the devices of a run. One of a million prefixes takes long to make, so that all devices share it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
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
        let made_up = MadeUp::new(prefixes as usize, SEED, Ipv4Addr::new(198, 18, 1, 2), 1)?;
        let config = ForwardConfig {
            ports: vec![port(PORT_MAC, PORT_ADDRESS), port(EGRESS_MAC, Ipv4Addr::new(198, 18, 1, 1))],
            routes: made_up.routes,
            neighbours: made_up.neighbours,
            ..ForwardConfig::default()
        };
        Ok(Self { router: Router::new(&config)?, destinations: made_up.destinations })
    }
}

/// Made-up prefixes, the routers that they lead to, and addresses within them.
pub(super) struct MadeUp {
    pub(super) routes: Vec<Route>,
    pub(super) neighbours: Vec<StaticNeighbour>,
    pub(super) destinations: Arc<[u32]>,
}

impl MadeUp {
    /// So many prefixes, behind routers with addresses from the first one on, all at one port.
    pub(super) fn new(prefixes: usize, seed: u64, first_hop: Ipv4Addr, port: u8) -> Result<Self> {
        check_memory(prefixes)?;
        let table = synthetic::ipv4(prefixes, NEXT_HOPS, seed);
        let hop = |index: usize| IpAddr::V4((first_hop.to_bits() + index as u32).into());
        let made_up = table.as_slice().iter().filter(|route| is_elsewhere(route.prefix.address()));
        let routes = made_up.map(|route| Route {
            network: IpAddr::V4(route.prefix.address().into()),
            prefix_bits: route.prefix.length(),
            towards: Towards::Gateway { address: hop(route.next_hop.index()), port: Some(port) },
        });
        let neighbour = |index: u16| StaticNeighbour {
            address: hop(index.into()),
            port: Some(port),
            mac: MacAddress([2, 0, 0, 0, 3, index as u8]),
        };
        let within: Vec<(u32, u8)> =
            table.as_slice().iter().map(|route| (route.prefix.address(), route.prefix.length())).collect();
        Ok(Self {
            routes: routes.collect(),
            neighbours: (0..NEXT_HOPS).map(neighbour).collect(),
            destinations: destinations(&within, seed)?,
        })
    }
}

/// Whether there is memory to make a table of so many prefixes: it is asked for once and given back untouched. The table itself tells what
/// it lacks; the lists that it is made from would end the process.
///
/// # Errors
/// Where the system refuses it.
fn check_memory(prefixes: usize) -> Result<()> {
    /// At the most at a time, measured with three million prefixes: the set of those made up, both lists of routes, and the table.
    const BYTES_PER_PREFIX: usize = 160;
    let bytes = prefixes.saturating_mul(BYTES_PER_PREFIX);
    Vec::<u8>::new().try_reserve_exact(bytes).with_context(|| {
        format!("make a table of {prefixes} prefixes: it takes up to {bytes} bytes; use fewer --prefixes, or raise the limit of the process (ulimit -v)")
    })
}

fn port(mac: [u8; 6], address: Ipv4Addr) -> Port {
    let addresses = vec![PortAddress { address: address.into(), prefix_bits: 24 }];
    Port { mac: MacAddress(mac), mtu_bytes: MTU_BYTES, addresses }
}

/// Addresses of hosts, each within a prefix drawn at random.
fn destinations(prefixes: &[(u32, u8)], seed: u64) -> Result<Arc<[u32]>> {
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
    bail!("its prefixes hold no addresses that packets are forwarded to")
}

/// Whether a prefix that was made up does not begin among the addresses that our own links have (198.18.0.0/15): it may be that
/// of a link.
fn is_elsewhere(address: u32) -> bool {
    address >> 17 != u32::from_be_bytes([198, 18, 0, 0]) >> 17
}

/// Whether a router forwards packets to this address, and it is not that of one of our own links (198.18.0.0/15).
fn is_beyond(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    !address.is_link_local() && (first != 198 || second & 0xfe != 18)
}
