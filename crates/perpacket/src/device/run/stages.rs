//! Stages from what a scenario says about the network.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use datapath::stage::PortAddress;
use datapath::stage::filter::{Action, Network, Rule};
use datapath::stage::forward::{
    Forward, ForwardConfig, Port, Route, Router, StaticNeighbour, TableFacts, Towards,
};
use datapath::wire::ethernet::MacAddress;

use super::open::Facts;
use crate::device::tables::MadeUp;
use crate::device::{Prefix, RouteWord, RuleWord};
use crate::scenario::Datapath;

/// Ethernet addresses of ports whose devices have none, as those of TAP devices: local ones, by number.
const OWN_MAC: [u8; 5] = [0x02, 0x70, 0x70, 0x6b, 0x74];

/// The first router that made-up prefixes lead to, on the network of a synthetic device.
const FIRST_HOP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 16);

/// As many made-up prefixes as the scenario says; none where it says none.
pub(super) fn made_up(scenario: &Datapath) -> Result<Option<MadeUp>> {
    let prefixes = scenario.network.prefixes as usize;
    (prefixes > 0).then(|| MadeUp::new(prefixes, scenario.run.seed, FIRST_HOP, 0)).transpose()
}

/// The router of each of so many workers.
pub(super) fn forward(
    scenario: &Datapath,
    ports: &[Facts],
    made_up: Option<&MadeUp>,
    workers: usize,
) -> Result<(Vec<Forward>, TableFacts)> {
    let network = &scenario.network;
    let mut config = ForwardConfig {
        ports: ports.iter().enumerate().map(|(port, facts)| port_of(scenario, port, facts)).collect(),
        routes: network.routes.iter().map(route).collect(),
        neighbours: network
            .neighbours
            .iter()
            .map(|word| StaticNeighbour { address: word.address, port: Some(word.port), mac: word.mac })
            .collect(),
        ..ForwardConfig::default()
    };
    if let Some(made_up) = made_up {
        // A default route of the scenario stands beside one that is made up only if that is not there.
        let has = |route: &Route| {
            made_up.routes.iter().any(|of| (of.network, of.prefix_bits) == (route.network, route.prefix_bits))
        };
        config.routes.retain(|route| !has(route));
        config.routes.extend(&made_up.routes);
        config.neighbours.extend(&made_up.neighbours);
    }
    let router = Router::new(&config).context("set up the router")?;
    Ok((router.workers(workers), router.tables()))
}

/// Rules of the filter.
pub(super) fn rules(words: &[RuleWord]) -> Result<Vec<Rule>> {
    let network = |prefix: Option<Prefix>| -> Result<Option<Network>> {
        let Some(prefix) = prefix else { return Ok(None) };
        Ok(Some(Network::new(prefix.address, prefix.bits).with_context(|| format!("--drop with {prefix}"))?))
    };
    let rule = |word: &RuleWord| -> Result<Rule> {
        Ok(Rule {
            source: network(word.source)?,
            destination: network(word.destination)?,
            protocol: word.protocol,
            destination_ports: word.ports.map(|(first, last)| first..=last),
            ..Rule::any(Action::Drop)
        })
    };
    words.iter().map(rule).collect()
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
