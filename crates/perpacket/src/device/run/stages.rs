//! Stages from what a scenario says about the network.

use anyhow::{Context, Result};
use datapath::stage::PortAddress;
use datapath::stage::forward::{Forward, ForwardConfig, Port, Route, StaticNeighbour, Towards};
use datapath::wire::ethernet::MacAddress;

use super::open::Facts;
use crate::device::RouteWord;
use crate::scenario::Datapath;

/// Ethernet addresses of ports whose devices have none, as those of TAP devices: local ones, by number.
const OWN_MAC: [u8; 5] = [0x02, 0x70, 0x70, 0x6b, 0x74];

/// The router of each of so many workers.
pub(super) fn forward(scenario: &Datapath, ports: &[Facts], workers: usize) -> Result<Vec<Forward>> {
    let network = &scenario.network;
    let config = ForwardConfig {
        ports: ports.iter().enumerate().map(|(port, facts)| port_of(scenario, port, facts)).collect(),
        routes: network.routes.iter().map(route).collect(),
        neighbours: network
            .neighbours
            .iter()
            .map(|word| StaticNeighbour { address: word.address, port: Some(word.port), mac: word.mac })
            .collect(),
        ..ForwardConfig::default()
    };
    Forward::group(&config, workers).context("set up the router")
}

fn port_of(scenario: &Datapath, port: usize, facts: &Facts) -> Port {
    let network = &scenario.network;
    let named = network.macs.iter().find(|word| usize::from(word.port) == port).map(|word| word.mac);
    let [a, b, c, d, e] = OWN_MAC;
    let own = MacAddress([a, b, c, d, e, port as u8]);
    let addresses = network.addresses.iter().filter(|word| usize::from(word.port) == port);
    Port {
        mac: named.or(facts.mac).unwrap_or(own),
        mtu_bytes: facts.mtu_bytes,
        addresses: addresses
            .map(|word| PortAddress { address: word.prefix.address, prefix_bits: word.prefix.bits })
            .collect(),
    }
}

fn route(word: &RouteWord) -> Route {
    let towards = match word.via {
        Some(address) => Towards::Gateway { address, port: Some(word.port) },
        None => Towards::Link(word.port),
    };
    Route { network: word.prefix.address, prefix_bits: word.prefix.bits, towards }
}
