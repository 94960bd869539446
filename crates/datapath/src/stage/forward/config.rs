//! What a router knows from the start.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::limit::IcmpLimit;
use crate::stage::PortAddress;
use crate::table::PrefixError;
use crate::wire::ethernet::MacAddress;
use crate::wire::ipv6;

/// The least that a port may carry: what every IPv4 host must accept (RFC 791 section 3.2).
const MTU_BYTES_MIN: usize = 576;
/// The longest IPv4 packet.
const MTU_BYTES_MAX: usize = 65_535;
/// Ports that a verdict can name.
const PORTS_MAX: usize = 256;

/// A router: its ports, which way packets go, and whose link addresses it need not ask for.
#[derive(Debug, Clone, Default)]
pub struct ForwardConfig {
    /// The ports, in the order of [`Verdict::Transmit`](crate::Verdict::Transmit).
    pub ports: Vec<Port>,
    /// Ways to networks beyond those of the ports' own links, which need none.
    pub routes: Vec<Route>,
    /// Link addresses that are known and stay so.
    pub neighbours: Vec<StaticNeighbour>,
    /// How many ICMP errors are sent.
    pub icmp: IcmpLimit,
}

/// A port.
#[derive(Debug, Clone)]
pub struct Port {
    /// Its link address.
    pub mac: MacAddress,
    /// The longest IP packet that its link carries, in bytes, without a link header.
    pub mtu_bytes: usize,
    /// Its addresses; their networks are reached through it. None where all neighbours are known.
    pub addresses: Vec<PortAddress>,
}

/// A way to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The network, its host bits 0.
    pub network: IpAddr,
    /// Bits that belong to the network.
    pub prefix_bits: u8,
    /// Where it goes.
    pub towards: Towards,
}

/// Where a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Towards {
    /// To the link of this port: who is to get the packet is on it.
    Link(u8),
    /// To a router.
    Gateway {
        /// The router.
        address: IpAddr,
        /// The port that it is behind; if none is given, the one whose network has the address.
        port: Option<u8>,
    },
}

/// A link address that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticNeighbour {
    /// Whose.
    pub address: IpAddr,
    /// The port that it is behind; if none is given, the one whose network has the address.
    pub port: Option<u8>,
    /// The link address.
    pub mac: MacAddress,
}

/// Why a router cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ConfigError {
    #[error("set up a router with {0} ports: it needs 1 to {PORTS_MAX}")]
    PortCount(usize),
    #[error(
        "port {port}: {mac} is no address of a device; give one that is not 0 and whose first byte is even"
    )]
    Mac { port: usize, mac: MacAddress },
    #[error("port {port}: an MTU of {mtu_bytes} bytes; it must be {least} to {MTU_BYTES_MAX}{}", because_v6(*.least))]
    Mtu { port: usize, mtu_bytes: usize, least: usize },
    #[error("port {port}: {address}/{prefix_bits} has more bits than an address")]
    AddressBits { port: usize, address: IpAddr, prefix_bits: u8 },
    #[error("port {port}: {address} is not an address of one host")]
    Address { port: usize, address: IpAddr },
    #[error("ports {first} and {second} both have {address}: give each another address")]
    AddressTwice { first: usize, second: usize, address: IpAddr },
    #[error(
        "ports {first} and {second} have the same network {network}/{prefix_bits}: packets to it could go either way"
    )]
    NetworkTwice { first: usize, second: usize, network: IpAddr, prefix_bits: u8 },
    #[error("route: {0}")]
    Prefix(PrefixError),
    #[error("{what}: there is no port {port}; the last one is {last}")]
    NoPort { what: String, port: u8, last: usize },
    #[error(
        "{what}: {address} is in no network of a port; give a port an address in its network, or name the port"
    )]
    OffLink { what: String, address: IpAddr },
    #[error("{what}: {address} is our own address")]
    Own { what: String, address: IpAddr },
    #[error("{what}: {address} is of the other IP version")]
    OtherFamily { what: String, address: IpAddr },
    #[error(
        "{what}: port {port} has no address of this IP version to ask {address} from; \
         give it one, or tell the link address of {address} (--neighbour {address}=MAC)"
    )]
    CannotAsk { what: String, port: u8, address: IpAddr },
    #[error(
        "neighbour {address}: {mac} is no address of a device; give one that is not 0 and whose first byte is even"
    )]
    NeighbourMac { address: IpAddr, mac: MacAddress },
    #[error("neighbour {address} is given twice for port {port}")]
    NeighbourTwice { address: IpAddr, port: u8 },
    #[error("route to {network}/{prefix_bits} is given twice")]
    RouteTwice { network: IpAddr, prefix_bits: u8 },
    #[error("routes lead to more different next hops than a table can tell, {most}: merge some")]
    Hops { most: usize },
    #[error("the table of routes: {0}")]
    Table(String),
}

fn because_v6(least: usize) -> &'static str {
    if least == MTU_BYTES_MIN { "" } else { ", as there are IPv6 addresses" }
}

/// What the address of a route means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hop {
    /// This neighbour takes it.
    Neighbour { port: u8, address: IpAddr },
    /// The destination is a neighbour.
    Link(u8),
    /// It is for us.
    Local,
    /// The broadcast address of one of our networks.
    Broadcast,
}

/// What a prefix leads to, as a place in the list of next hops.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefixed {
    pub(super) network: IpAddr,
    pub(super) prefix_bits: u8,
    pub(super) place: usize,
}

/// A checked configuration: prefixes, and where each leads as an index of `hops`.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) hops: Vec<Hop>,
    pub(super) prefixes: Vec<Prefixed>,
    /// With their port settled.
    pub(super) neighbours: Vec<(u8, IpAddr, MacAddress)>,
}

impl ForwardConfig {
    /// Checks all of it.
    pub(super) fn plan(&self) -> Result<Plan, ConfigError> {
        self.check_ports()?;
        let neighbours = self.settle_neighbours()?;
        let known: HashSet<(u8, IpAddr)> =
            neighbours.iter().map(|(port, address, _)| (*port, *address)).collect();
        let mut plan = Planner { hops: Vec::new(), places: HashMap::new(), prefixes: Vec::new() };
        self.own_prefixes(&mut plan);
        let mut last: Option<(Towards, usize)> = None;
        for route in &self.routes {
            // Tables come sorted or not, but few next hops follow each other.
            let place = match last {
                Some((towards, place)) if towards == route.towards => place,
                _ => plan.place(self.hop_of(route, &known)?),
            };
            check_family(route)?;
            last = Some((route.towards, place));
            plan.prefixes.push(Prefixed { network: route.network, prefix_bits: route.prefix_bits, place });
        }
        let Planner { hops, prefixes, .. } = plan;
        Ok(Plan { hops, prefixes, neighbours })
    }

    fn check_ports(&self) -> Result<(), ConfigError> {
        if self.ports.is_empty() || self.ports.len() > PORTS_MAX {
            return Err(ConfigError::PortCount(self.ports.len()));
        }
        let mut addresses: HashMap<IpAddr, usize> = HashMap::new();
        let mut networks: HashMap<(IpAddr, u8), usize> = HashMap::new();
        for (port, Port { mac, mtu_bytes, addresses: own }) in self.ports.iter().enumerate() {
            if !is_device(*mac) {
                return Err(ConfigError::Mac { port, mac: *mac });
            }
            let has_v6 = own.iter().any(|own| own.address.is_ipv6());
            let least = if has_v6 { ipv6::LINK_BYTES_MIN } else { MTU_BYTES_MIN };
            if !(least..=MTU_BYTES_MAX).contains(mtu_bytes) {
                return Err(ConfigError::Mtu { port, mtu_bytes: *mtu_bytes, least });
            }
            for &PortAddress { address, prefix_bits } in own {
                if prefix_bits > bits_of(address) {
                    return Err(ConfigError::AddressBits { port, address, prefix_bits });
                }
                if !is_host(address) {
                    return Err(ConfigError::Address { port, address });
                }
                if let Some(first) = addresses.insert(address, port) {
                    return Err(ConfigError::AddressTwice { first, second: port, address });
                }
                let network = network_of(address, prefix_bits);
                let is_link_local =
                    matches!(network, IpAddr::V6(network) if ipv6::is_link_local(network.to_bits()));
                match networks.insert((network, prefix_bits), port) {
                    Some(first) if first != port && !is_link_local => {
                        return Err(ConfigError::NetworkTwice { first, second: port, network, prefix_bits });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn settle_neighbours(&self) -> Result<Vec<(u8, IpAddr, MacAddress)>, ConfigError> {
        let mut seen = HashSet::new();
        let settle = |neighbour: &StaticNeighbour| {
            let &StaticNeighbour { address, port, mac } = neighbour;
            let port = self.port_of(address, port, || format!("neighbour {address}"))?;
            if !is_device(mac) {
                return Err(ConfigError::NeighbourMac { address, mac });
            }
            if !seen.insert((port, address)) {
                return Err(ConfigError::NeighbourTwice { address, port });
            }
            Ok((port, address, mac))
        };
        self.neighbours.iter().map(settle).collect()
    }

    /// Networks of the links, our own addresses in them, and what is no host there.
    fn own_prefixes(&self, plan: &mut Planner) {
        let mut seen = HashSet::new();
        let own: HashSet<IpAddr> = self.own_addresses().map(|(_, own)| own.address).collect();
        for (port, &PortAddress { address, prefix_bits }) in self.own_addresses() {
            plan.add(address, bits_of(address), Hop::Local);
            let network = network_of(address, prefix_bits);
            // Which link a link-local address is on is not for a table to say.
            let is_link_local =
                matches!(network, IpAddr::V6(network) if ipv6::is_link_local(network.to_bits()));
            if is_link_local || prefix_bits == bits_of(address) || !seen.insert((network, prefix_bits)) {
                continue;
            }
            plan.add(network, prefix_bits, Hop::Link(port));
            if let IpAddr::V4(network) = network
                && prefix_bits < 31
            {
                let last = network.to_bits() | u32::MAX.checked_shr(u32::from(prefix_bits)).unwrap_or(0);
                for edge in [network, last.into()].map(IpAddr::V4) {
                    if !own.contains(&edge) && seen.insert((edge, 32)) {
                        plan.add(edge, 32, Hop::Broadcast);
                    }
                }
            }
        }
    }

    fn hop_of(&self, route: &Route, known: &HashSet<(u8, IpAddr)>) -> Result<Hop, ConfigError> {
        let what = || format!("route to {}/{}", route.network, route.prefix_bits);
        match route.towards {
            Towards::Link(port) => {
                self.check_port(port, what)?;
                Ok(Hop::Link(port))
            }
            Towards::Gateway { address, port } => {
                check_family(route)?;
                let port = self.port_of(address, port, what)?;
                let can_ask = self.ports[usize::from(port)]
                    .addresses
                    .iter()
                    .any(|own| same_family(own.address, address));
                if !can_ask && !known.contains(&(port, address)) {
                    return Err(ConfigError::CannotAsk { what: what(), port, address });
                }
                Ok(Hop::Neighbour { port, address })
            }
        }
    }

    /// The port that this neighbour is behind.
    fn port_of(
        &self,
        address: IpAddr,
        port: Option<u8>,
        what: impl Fn() -> String,
    ) -> Result<u8, ConfigError> {
        if self.own_addresses().any(|(_, own)| own.address == address) {
            return Err(ConfigError::Own { what: what(), address });
        }
        if let Some(port) = port {
            self.check_port(port, what)?;
            return Ok(port);
        }
        let on_link = self.own_addresses().filter(|(_, own)| own.has(address));
        let nearest = on_link.max_by_key(|(_, own)| own.prefix_bits);
        nearest.map(|(port, _)| port).ok_or_else(|| ConfigError::OffLink { what: what(), address })
    }

    fn check_port(&self, port: u8, what: impl Fn() -> String) -> Result<(), ConfigError> {
        if usize::from(port) < self.ports.len() {
            return Ok(());
        }
        Err(ConfigError::NoPort { what: what(), port, last: self.ports.len() - 1 })
    }

    fn own_addresses(&self) -> impl Iterator<Item = (u8, &PortAddress)> {
        (0u8..=u8::MAX)
            .zip(&self.ports)
            .flat_map(|(port, of)| of.addresses.iter().map(move |own| (port, own)))
    }
}

/// Next hops as they are found, each once.
struct Planner {
    hops: Vec<Hop>,
    places: HashMap<Hop, usize>,
    prefixes: Vec<Prefixed>,
}

impl Planner {
    fn add(&mut self, network: IpAddr, prefix_bits: u8, hop: Hop) {
        let place = self.place(hop);
        self.prefixes.push(Prefixed { network, prefix_bits, place });
    }

    fn place(&mut self, hop: Hop) -> usize {
        *self.places.entry(hop).or_insert_with(|| {
            self.hops.push(hop);
            self.hops.len() - 1
        })
    }
}

fn check_family(route: &Route) -> Result<(), ConfigError> {
    match route.towards {
        Towards::Gateway { address, .. } if !same_family(address, route.network) => {
            let what = format!("route to {}/{}", route.network, route.prefix_bits);
            Err(ConfigError::OtherFamily { what, address })
        }
        _ => Ok(()),
    }
}

fn is_device(mac: MacAddress) -> bool {
    !mac.is_multicast() && mac != MacAddress::ZERO
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

pub(super) fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}

/// With the bits of hosts 0.
pub(super) fn network_of(address: IpAddr, prefix_bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits.min(32))).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_bits.min(128))).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> PortAddress {
        let (address, bits) = text.split_once('/').unwrap();
        PortAddress { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
    }

    fn port(last: u8, addresses: &[&str]) -> Port {
        let mac = MacAddress([2, 0, 0, 0, 0, last]);
        Port { mac, mtu_bytes: 1500, addresses: addresses.iter().map(|text| own(text)).collect() }
    }

    fn route(network: &str, towards: Towards) -> Route {
        let PortAddress { address: network, prefix_bits } = own(network);
        Route { network, prefix_bits, towards }
    }

    fn gateway(address: &str, port: Option<u8>) -> Towards {
        Towards::Gateway { address: address.parse().unwrap(), port }
    }

    fn neighbour(address: &str, port: Option<u8>, last: u8) -> StaticNeighbour {
        StaticNeighbour { address: address.parse().unwrap(), port, mac: MacAddress([2, 0, 0, 0, 1, last]) }
    }

    fn config() -> ForwardConfig {
        ForwardConfig {
            ports: vec![port(1, &["10.0.1.1/24", "fe80::1/64"]), port(2, &["10.0.2.1/24", "fe80::2/64"])],
            ..ForwardConfig::default()
        }
    }

    /// What is said about a configuration that was right and was changed.
    fn refusal(change: impl FnOnce(&mut ForwardConfig)) -> String {
        let mut config = config();
        change(&mut config);
        config.plan().map(|plan| format!("{plan:?}")).unwrap_err().to_string()
    }

    #[test]
    fn ports_and_addresses_that_cannot_be() {
        assert_eq!(refusal(|of| of.ports.clear()), "set up a router with 0 ports: it needs 1 to 256");
        let odd = refusal(|of| of.ports[1].mac.0[0] = 3);
        assert!(odd.starts_with("port 1: 03:00:00:00:00:02 is no address of a device"), "{odd}");
        let short = refusal(|of| of.ports[0].mtu_bytes = 1000);
        assert_eq!(
            short,
            "port 0: an MTU of 1000 bytes; it must be 1280 to 65535, as there are IPv6 addresses"
        );
        for (address, wanted) in [
            ("10.0.3.1/33", "port 0: 10.0.3.1/33 has more bits than an address"),
            ("224.0.0.1/24", "port 0: 224.0.0.1 is not an address of one host"),
            ("10.0.2.1/30", "ports 0 and 1 both have 10.0.2.1: give each another address"),
            (
                "10.0.2.9/24",
                "ports 0 and 1 have the same network 10.0.2.0/24: packets to it could go either way",
            ),
        ] {
            assert_eq!(refusal(|of| of.ports[0].addresses.push(own(address))), wanted);
        }
    }

    #[test]
    fn routes_that_lead_nowhere() {
        for (added, wanted) in [
            (
                route("0.0.0.0/0", Towards::Link(2)),
                "route to 0.0.0.0/0: there is no port 2; the last one is 1",
            ),
            (
                route("0.0.0.0/0", gateway("10.9.9.9", None)),
                "route to 0.0.0.0/0: 10.9.9.9 is in no network of a port; give a port an address in its network, or name the port",
            ),
            (
                route("0.0.0.0/0", gateway("10.0.1.1", None)),
                "route to 0.0.0.0/0: 10.0.1.1 is our own address",
            ),
            (route("::/0", gateway("10.0.1.9", None)), "route to ::/0: 10.0.1.9 is of the other IP version"),
        ] {
            assert_eq!(refusal(|of| of.routes.push(added)), wanted);
        }
        let mute = refusal(|of| {
            of.ports.push(port(3, &[]));
            of.routes.push(route("0.0.0.0/0", gateway("10.9.9.9", Some(2))));
        });
        assert!(mute.contains("port 2 has no address of this IP version to ask 10.9.9.9 from"), "{mute}");
        assert!(mute.contains("--neighbour 10.9.9.9=MAC"), "{mute}");
    }

    #[test]
    fn neighbours_that_cannot_be() {
        let twice = refusal(|of| {
            of.neighbours = vec![neighbour("10.0.2.9", None, 1), neighbour("10.0.2.9", Some(1), 2)];
        });
        assert_eq!(twice, "neighbour 10.0.2.9 is given twice for port 1");
        let group = StaticNeighbour { mac: MacAddress::BROADCAST, ..neighbour("10.0.2.9", None, 1) };
        assert!(
            refusal(|of| of.neighbours.push(group)).contains("ff:ff:ff:ff:ff:ff is no address of a device")
        );
    }

    #[test]
    fn a_gateway_that_is_known_needs_no_address_to_ask_from() {
        let config = ForwardConfig {
            ports: vec![port(1, &[])],
            routes: vec![
                route("0.0.0.0/0", gateway("10.9.9.9", Some(0))),
                route("::/0", gateway("fe80::9", Some(0))),
            ],
            neighbours: vec![neighbour("10.9.9.9", Some(0), 1), neighbour("fe80::9", Some(0), 2)],
            ..ForwardConfig::default()
        };
        let plan = config.plan().unwrap();
        assert_eq!((plan.hops.len(), plan.prefixes.len()), (2, 2));
    }

    #[test]
    fn own_addresses_broadcasts_and_links_have_places_of_their_own() {
        let plan = config().plan().unwrap();
        let of = |text: &str| {
            let PortAddress { address, prefix_bits } = own(text);
            let found =
                plan.prefixes.iter().find(|of| (of.network, of.prefix_bits) == (address, prefix_bits));
            found.map(|of| plan.hops[of.place])
        };
        assert_eq!(of("10.0.1.1/32"), Some(Hop::Local));
        assert_eq!(of("10.0.2.0/24"), Some(Hop::Link(1)));
        assert_eq!((of("10.0.1.0/32"), of("10.0.1.255/32")), (Some(Hop::Broadcast), Some(Hop::Broadcast)));
        assert_eq!(of("fe80::1/128"), Some(Hop::Local));
        assert_eq!(of("fe80::/64"), None, "which link, the address does not say");
    }
}
