//! ns for a look-up as the table grows: `cargo run --release -p datapath --example lookup`
//!
//! Slices of 10,000 addresses, each answered by every way in turn, so that a busy neighbour disturbs all alike; what
//! is printed is the lower quartile of 200 slices a way. *chain*: each address depends on the answer before, as where
//! one packet is looked up at a time and nothing else is to be done. *single*: one call an address, and the CPU is
//! free to go ahead. *burst*: 64 addresses a call.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use datapath::table::{
    Address, Dir24, NextHop, Poptrie, Routes,
    synthetic::{self, Numbers},
};

const SLICE: usize = 10_000;
const SLICES: usize = 100;
const ROUNDS: usize = 2;
const BURST: usize = 64;
const NEXT_HOPS: u16 = 256;

fn main() {
    println!("table    prefixes     build ms   MiB  addresses     chain  single   burst");
    for count in [10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        let routes = synthetic::ipv4(count, NEXT_HOPS, 4);
        let (table, build_ms) = built(|| Dir24::build(&routes).expect("few next hops, no long prefixes"));
        let head = format!("dir24   {count:>9} v4 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
        let (table, build_ms) = built(|| Poptrie::build(&routes).expect("small"));
        let head = format!("poptrie {count:>9} v4 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
    }
    for count in [10, 100, 1_000, 10_000, 100_000, 220_000, 1_000_000] {
        let routes = synthetic::ipv6(count, NEXT_HOPS, 6);
        let (table, build_ms) = built(|| Poptrie::build(&routes).expect("small"));
        let head = format!("poptrie {count:>9} v6 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
    }
}

fn built<T>(build: impl Fn() -> T) -> (T, f64) {
    let start = Instant::now();
    let table = build();
    (table, start.elapsed().as_secs_f64() * 1e3)
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn report<A: Address>(
    head: &str,
    routes: &Routes<A>,
    lookup: impl Fn(A) -> Option<NextHop>,
    burst: impl Fn(&[A], &mut [Option<NextHop>]),
) {
    let mut numbers = Numbers::new(1);
    let anywhere = (0..SLICE * SLICES).map(|_| A::from_highest(numbers.u128())).collect();
    let covered = (0..SLICE * SLICES).filter_map(|_| synthetic::covered(routes, &mut numbers)).collect();
    let kinds: [(&str, Vec<A>); 2] = [("random", anywhere), ("covered", covered)];
    for (kind, addresses) in kinds {
        // Random ones of IPv6 are in no block of a registry, and end in the first array.
        if A::BITS == 128 && kind == "random" {
            continue;
        }
        let [chain, single, burst] = measure(&addresses, &lookup, &burst);
        println!("{head}  {kind:<10} {chain:>7.1} {single:>7.1} {burst:>7.1}");
    }
}

fn measure<A: Address>(
    addresses: &[A],
    lookup: impl Fn(A) -> Option<NextHop>,
    burst: impl Fn(&[A], &mut [Option<NextHop>]),
) -> [f64; 3] {
    let mut found = [None; BURST];
    let mut times: [Vec<f64>; 3] = Default::default();
    for slice in addresses.chunks(SLICE).cycle().take(SLICES * ROUNDS) {
        times[0].push(ns_each(slice, |slice| {
            let mut at = 0;
            for _ in 0..slice.len() {
                let hop = black_box(lookup(slice[at]));
                // One further, whatever was found; but the CPU cannot know.
                at += 1 + usize::from(hop.is_some_and(|hop| hop.index() >= usize::from(NEXT_HOPS)));
            }
        }));
        times[1].push(ns_each(slice, |slice| {
            for addresses in slice.chunks(BURST) {
                for (found, address) in found.iter_mut().zip(addresses) {
                    *found = lookup(*address);
                }
                black_box(&found);
            }
        }));
        times[2].push(ns_each(slice, |slice| {
            for addresses in slice.chunks(BURST) {
                burst(addresses, &mut found);
                black_box(&found);
            }
        }));
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 4]
    })
}

fn ns_each<A>(slice: &[A], work: impl FnOnce(&[A])) -> f64 {
    let start = Instant::now();
    work(slice);
    start.elapsed().as_nanos() as f64 / slice.len() as f64
}
