//! The network around a synthetic device, where nothing else is said: a sender in front of the device under test, and hosts
//! behind it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath::wire::ethernet::MacAddress;

use super::wire::{PORT_ADDRESS, PORT_MAC, SENDER, SENDER_MAC};
use super::{AddressWord, MacWord, NeighbourWord, Prefix, RouteWord};
use crate::scenario::Network;

/// A host behind the device under test, from the addresses set aside for benchmarks (RFC 2544 appendix C.2.2), and not of
/// the network that the device and the sender are in.
pub(crate) const BEHIND: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// The sender and the device under test in IPv6, from the addresses set aside for that (RFC 5180 section 8).
pub(crate) const SENDER6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
const PORT_ADDRESS6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2);

/// The network of a device with one port: what it receives goes back to where it came from, whatever the destination.
pub(crate) fn network() -> Network {
    let mac = MacAddress(SENDER_MAC);
    let address = |address: IpAddr, bits| AddressWord { port: 0, prefix: Prefix { address, bits } };
    let route = |all: IpAddr, via: IpAddr| RouteWord {
        prefix: Prefix { address: all, bits: 0 },
        port: 0,
        via: Some(via),
    };
    let neighbour = |address: IpAddr| NeighbourWord { port: 0, address, mac };
    Network {
        prefixes: 0,
        addresses: vec![address(PORT_ADDRESS.into(), 24), address(PORT_ADDRESS6.into(), 64)],
        routes: vec![
            route(Ipv4Addr::UNSPECIFIED.into(), SENDER.into()),
            route(Ipv6Addr::UNSPECIFIED.into(), SENDER6.into()),
        ],
        neighbours: vec![neighbour(SENDER.into()), neighbour(SENDER6.into())],
        macs: vec![MacWord { port: 0, mac: MacAddress(PORT_MAC) }],
    }
}
