//! Packets per second of one loop: synthetic, received by copy, forwarded by a table of this many prefixes to random
//! destinations in it, and sent to a dummy device.
//!
//! `forward_rate [PREFIXES] [ROUNDS]`: the best and the middle of short rounds, since other programs take time from long ones.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::time::Instant;

use datapath::device::{Dummy, Frames, Synthetic, TxLock};
use datapath::receive::{Copying, Poll};
use datapath::stage::forward::{Forward, ForwardConfig, Port, Route, StaticNeighbour, Towards};
use datapath::table::synthetic::{self, Numbers};
use datapath::wire::{Addresses, Ports, ethernet, ethernet::MacAddress, ipv4, protocol, udp};
use datapath::{BUDGET, Worker};
use pagefrag::Source;

/// Routers behind one port.
const NEXT_HOPS: u16 = 64;
/// Different frames that come in: more than a cache holds of what they look up.
const FRAMES: usize = 1 << 20;
const POLLS: usize = 1_000;
const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

fn main() {
    let argument = |at: usize, usual: usize| {
        std::env::args().nth(at).map_or(usual, |text| text.parse().expect("a number"))
    };
    let (prefixes, rounds) = (argument(1, 1_000_000), argument(2, 500));
    let routes = synthetic::ipv4(prefixes, NEXT_HOPS, 1);
    let mut numbers = Numbers::new(2);
    let destinations: Vec<u32> = (0..FRAMES)
        .filter_map(|_| synthetic::covered(&routes, &mut numbers))
        .filter(|address| address >> 16 != 0xa9fe) // Link-local: not for a router.
        .collect();
    let start = Instant::now();
    let forward = Forward::new(&config(&routes)).expect("a right configuration");
    println!("{prefixes} prefixes, set up in {:.1} s", start.elapsed().as_secs_f64());

    let dummy = Dummy::new(1, TxLock::Queue);
    let queue = Synthetic::new(frames(destinations), 0).expect("there is a frame");
    let mut worker =
        Worker::new(Box::new(Copying::new(Box::new(queue), Poll::new(Source::default().share()))))
            .stage(forward)
            .port(Box::new(dummy.queue(0).expect("there is one")));
    let mut round = || {
        let start = Instant::now();
        for _ in 0..POLLS {
            worker.poll(BUDGET, 0).expect("a synthetic device does not fail");
        }
        start.elapsed().as_nanos() as f64 / (POLLS * BUDGET) as f64
    };
    let mut all: Vec<f64> = (0..rounds.max(1)).map(|_| round()).collect();
    all.sort_by(f64::total_cmp);
    for (what, ns) in [("best", all[0]), ("middle", all[all.len() / 2])] {
        println!("{what}: {ns:.1} ns a packet, {:.1} Mpps", 1_000.0 / ns);
    }
    let ledger = worker.ledger();
    assert!(ledger.closes() && ledger.transmitted == ledger.received, "{ledger:?}");
}

/// One port with routers of which all is known: the `bare` router.
fn config(routes: &datapath::table::Routes<u32>) -> ForwardConfig {
    let gateway = |index: usize| std::net::IpAddr::V4((0x0aff_0000 + 1 + index as u32).into());
    let neighbour = |index: usize| StaticNeighbour {
        address: gateway(index),
        port: Some(0),
        mac: MacAddress([2, 0, 0, 1, 0, index as u8]),
    };
    let route = |route: &datapath::table::Route<u32>| Route {
        network: std::net::IpAddr::V4(route.prefix.address().into()),
        prefix_bits: route.prefix.length(),
        towards: Towards::Gateway { address: gateway(route.next_hop.index()), port: Some(0) },
    };
    ForwardConfig {
        ports: vec![Port { mac: OWN, mtu_bytes: 1500, addresses: Vec::new() }],
        routes: routes.as_slice().iter().map(route).collect(),
        neighbours: (0..usize::from(NEXT_HOPS)).map(neighbour).collect(),
        ..ForwardConfig::default()
    }
}

/// 64 bytes with the check sequence: UDP with 18 bytes, one destination after the other.
fn frames(destinations: Vec<u32>) -> Frames {
    let mut template = [0; 60];
    let link =
        ethernet::Header { destination: OWN, source: MacAddress([2, 0, 0, 0, 0, 2]), ether_type: 0x0800 };
    link.write(&mut template).expect("there is room");
    let header = ipv4::Header { protocol: protocol::UDP, source: 0x0a00_0102, ..ipv4::Header::default() };
    header.write(&mut template[14..], 26).expect("there is room");
    let addresses = Addresses::V4 { source: header.source, destination: 0 };
    udp::write_header(&mut template[34..], Ports { source: 9, destination: 9 }, &addresses)
        .expect("there is room");
    let checksum = u16::from_be_bytes([template[24], template[25]]);
    let mut next = 0;
    let make = move |frame: &mut [u8]| {
        let destination = destinations[next];
        next = if next + 1 == destinations.len() { 0 } else { next + 1 };
        frame.copy_from_slice(&template);
        frame[30..34].copy_from_slice(&destination.to_be_bytes());
        let checksum = datapath::wire::checksum::update_u32(checksum, 0, destination);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    };
    Frames::Made { l2_bytes: template.len(), make: Box::new(make) }
}
