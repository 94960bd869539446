//! ns for a look-up as the table grows: `cargo run --release -p datapath --example lookup [PLOT.svg]`
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
    let mut points = Vec::new();
    println!("table    prefixes     build ms   MiB  addresses     chain  single   burst");
    for count in [10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        let routes = synthetic::ipv4(count, NEXT_HOPS, 4);
        let (table, build_ms) = built(|| Dir24::build(&routes).expect("few next hops, no long prefixes"));
        let head = format!("dir24   {count:>9} v4 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        let ns =
            report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
        points.extend([("DIR-24-8, IPv4, burst", count, ns[2]), ("DIR-24-8, IPv4, chain", count, ns[0])]);
        let (table, build_ms) = built(|| Poptrie::build(&routes).expect("small"));
        let head = format!("poptrie {count:>9} v4 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        let ns =
            report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
        points.extend([("poptrie, IPv4, burst", count, ns[2]), ("poptrie, IPv4, chain", count, ns[0])]);
    }
    for count in [10, 100, 1_000, 10_000, 100_000, 220_000, 1_000_000] {
        let routes = synthetic::ipv6(count, NEXT_HOPS, 6);
        let (table, build_ms) = built(|| Poptrie::build(&routes).expect("small"));
        let head = format!("poptrie {count:>9} v6 {build_ms:>8.1} {:>5.1}", mebibytes(table.memory_bytes()));
        let ns =
            report(&head, &routes, |address| table.lookup(address), |from, to| table.lookup_burst(from, to));
        points.extend([("poptrie, IPv6, burst", count, ns[2]), ("poptrie, IPv6, chain", count, ns[0])]);
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, plot(&points)).expect("the plot can be written");
    }
}

/// Both axes logarithmic: prefixes from 10 to 1,000,000, ns from 1 to 1,000.
fn plot(points: &[(&'static str, usize, f64)]) -> String {
    const COLOURS: [&str; 3] = ["#1b6ca8", "#c4501b", "#3a7d44"];
    let x = |count: usize| 60.0 + ((count as f64).log10() - 1.0) * 100.0;
    let y = |ns: f64| 350.0 - ns.max(1.0).log10() * 100.0;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"780\" height=\"400\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"780\" height=\"400\" fill=\"white\"/>\n<text x=\"60\" y=\"24\">ns per look-up (covered addresses) over prefixes</text>\n",
    );
    for power in 0..=3 {
        let (at, ns) = (y(10f64.powi(power)), 10u32.pow(power as u32));
        svg += &format!(
            "<path d=\"M60 {at}H560\" stroke=\"#ddd\"/><text x=\"52\" y=\"{}\" text-anchor=\"end\">{ns}</text>\n",
            at + 4.0
        );
    }
    for power in 1..=6 {
        let (count, label) = (10usize.pow(power), ["10", "100", "1,000", "10,000", "100,000", "1,000,000"]);
        svg += &format!(
            "<text x=\"{}\" y=\"370\" text-anchor=\"middle\">{}</text>\n",
            x(count),
            label[power as usize - 1]
        );
    }
    let mut series: Vec<&str> = points.iter().map(|point| point.0).collect();
    series.sort_unstable();
    series.dedup();
    for (index, name) in series.iter().enumerate() {
        let own: Vec<_> = points.iter().filter(|point| point.0 == *name).collect();
        let path: Vec<String> =
            own.iter().map(|point| format!("{:.1},{:.1}", x(point.1), y(point.2))).collect();
        let dash = if name.ends_with("chain") { " stroke-dasharray=\"5 4\"" } else { "" };
        let colour = COLOURS[index / 2 % COLOURS.len()];
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n",
            path.join(" ")
        );
        let at = 60 + 22 * index;
        svg += &format!(
            "<path d=\"M580 {at}h30\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"618\" y=\"{}\">{name}</text>\n",
            at + 4
        );
    }
    svg + "</svg>\n"
}

fn built<T>(build: impl Fn() -> T) -> (T, f64) {
    let start = Instant::now();
    let table = build();
    (table, start.elapsed().as_secs_f64() * 1e3)
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Prints what it measures; the figures of the last line.
fn report<A: Address>(
    head: &str,
    routes: &Routes<A>,
    lookup: impl Fn(A) -> Option<NextHop>,
    burst: impl Fn(&[A], &mut [Option<NextHop>]),
) -> [f64; 3] {
    let mut numbers = Numbers::new(1);
    let anywhere = (0..SLICE * SLICES).map(|_| A::from_highest(numbers.u128())).collect();
    let covered = (0..SLICE * SLICES).filter_map(|_| synthetic::covered(routes, &mut numbers)).collect();
    let mut last = [0.0; 3];
    let kinds: [(&str, Vec<A>); 2] = [("random", anywhere), ("covered", covered)];
    for (kind, addresses) in kinds {
        // Random ones of IPv6 are in no block of a registry, and end in the first array.
        if A::BITS == 128 && kind == "random" {
            continue;
        }
        last = measure(&addresses, &lookup, &burst);
        let [chain, single, burst] = last;
        println!("{head}  {kind:<10} {chain:>7.1} {single:>7.1} {burst:>7.1}");
    }
    last
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
