//! Stages from what a scenario says about the network.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use datapath::stage::PortAddress;
use datapath::stage::filter::{Action, Network, Rule};
use datapath::stage::forward::{
    Forward, ForwardConfig, Port, Route, Router, StaticNeighbour, TableFacts, Towards,
};
use datapath::table::synthetic;
use datapath::wire::ethernet::MacAddress;

use super::open::Facts;
use crate::device::tables::{destinations, is_elsewhere};
use crate::device::{Prefix, RouteWord, RuleWord};
use crate::scenario::Datapath;

/// Ethernet addresses of ports whose devices have none, as those of TAP devices: local ones, by number.
const OWN_MAC: [u8; 5] = [0x02, 0x70, 0x70, 0x6b, 0x74];

/// Routers that made-up prefixes lead to: few, as a real router has.
const NEXT_HOPS: u16 = 16;
/// The first of them, on the network of a synthetic device.
const FIRST_HOP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 16);

/// Made-up prefixes, and addresses within them.
pub(super) struct MadeUp {
    routes: Vec<Route>,
    neighbours: Vec<StaticNeighbour>,
    pub(super) destinations: Arc<[u32]>,
}

impl MadeUp {
    /// As many as the scenario says.
    pub(super) fn new(scenario: &Datapath) -> Result<Option<Self>> {
        let (prefixes, seed) = (scenario.network.prefixes as usize, scenario.run.seed);
        if prefixes == 0 {
            return Ok(None);
        }
        let table = synthetic::ipv4(prefixes, NEXT_HOPS, seed);
        let hop = |index: usize| IpAddr::V4((FIRST_HOP.to_bits() + index as u32).into());
        let made_up = table.as_slice().iter().filter(|route| is_elsewhere(route.prefix.address()));
        let routes = made_up.map(|route| Route {
            network: IpAddr::V4(route.prefix.address().into()),
            prefix_bits: route.prefix.length(),
            towards: Towards::Gateway { address: hop(route.next_hop.index()), port: Some(0) },
        });
        let neighbour = |index: u16| StaticNeighbour {
            address: hop(index.into()),
            port: Some(0),
            mac: MacAddress([2, 0, 0, 0, 3, index as u8]),
        };
        let within: Vec<(u32, u8)> =
            table.as_slice().iter().map(|route| (route.prefix.address(), route.prefix.length())).collect();
        Ok(Some(Self {
            routes: routes.collect(),
            neighbours: (0..NEXT_HOPS).map(neighbour).collect(),
            destinations: destinations(&within, seed)?,
        }))
    }
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
