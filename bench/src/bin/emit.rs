//! What a packet of the packet language costs to make: ns per packet of a handful of programs.
//!
//! Rounds are interleaved and in random order, so that a slow hour and a change of the clock frequency are slow for all, and the median
//! of the rounds is printed. Nothing is sent.

use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bench::ground::First;
use clap::Parser;
use measure::order::Seed;
use measure::quantile::quantile;
use template::{Emitter, ParseOptions, Program};

/// ns per packet that the packet language takes to make packets in memory
#[derive(Debug, Parser)]
#[command(name = "bench/emit", version)]
struct Args {
    /// Rounds, each with every program once
    #[arg(long, default_value_t = 201, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    rounds: u32,
    /// Packets of each program in a round
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    packets: u64,
    /// CPU to run on
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Seed of the order, and of random fields
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a packet with two fields that vary and a checksum may cost.
const GOAL_NS: f64 = 15.0;
const ETH: &str = "eth(da=02:00:00:00:01:02, sa=02:00:00:00:01:01)";

/// Name, whether it has a goal, and text; every 64-byte packet has 18 bytes of payload.
fn programs() -> Vec<(&'static str, bool, String)> {
    let one = |ip: &str, udp: &str| {
        format!("{{ {ETH}, ipv4(ttl=64, sa=198.18.0.1, {ip}), udp({udp}), fill(0, 18) }}")
    };
    let sized = |size: usize, udp: &str| {
        format!(
            "{{ {ETH}, ipv4(ttl=64, sa=198.18.0.1, da=198.18.0.2), udp({udp}), fill(0, {}) }} ",
            size - 46
        )
    };
    let imix: String = [64, 594, 64, 64, 594, 64, 64, 594, 64, 594, 64, 1518]
        .map(|size| sized(size, "sp=1024, dp=dinc(9, 16)"))
        .concat();
    vec![
        (
            "two counters, UDP and IP checksum",
            false,
            one("da=dinc(198.18.0.2, 198.18.0.250)", "sp=1024, dp=dinc(9, 1000)"),
        ),
        (
            "two ports that count, UDP checksum",
            true,
            one("da=198.18.0.2", "sp=dinc(1024, 2000), dp=dinc(9, 1000)"),
        ),
        ("counter and random, UDP checksum", true, one("da=198.18.0.2", "sp=drnd(), dp=dinc(9, 1000)")),
        ("two random, UDP checksum", true, one("da=198.18.0.2", "sp=drnd(), dp=drnd(9, 1000)")),
        ("8 flows, UDP checksum", false, one("da=198.18.0.2", "sp=1024, dp=dinc(9, 16)")),
        ("IMIX of 12 packets, 8 flows each", false, imix),
        ("constant", false, one("da=198.18.0.2", "sp=1024, dp=9")),
    ]
}

/// Where a packet is written: at the start of a cache line, as the slots of rings and frames in the kernel are.
#[repr(align(64))]
struct Frame([u8; 1518]);

/// A program and what its packets cost in each round.
struct Measured {
    name: &'static str,
    has_goal: bool,
    emitter: Emitter,
    bytes: Box<Frame>,
    costs: Vec<f64>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/emit: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    linux::cpu::pin(args.cpu).with_context(|| format!("pin to CPU {}", args.cpu))?;
    // Without root, what else runs is in the figures, as far as the median does not pass over it.
    let _first = First::go();
    let mut all = Vec::new();
    for (name, has_goal, text) in programs() {
        let compiled =
            Program::parse(&text, &ParseOptions::default()).map_err(|error| anyhow!("{name}: {error}"))?;
        let bytes = Box::new(Frame([0; 1518]));
        let emitter = compiled.plan.emitter(0, 1, args.seed)?;
        all.push(Measured { name, has_goal, emitter, bytes, costs: Vec::new() });
    }
    let mut order = Seed(args.seed).order();
    let mut places: Vec<usize> = (0..all.len()).collect();
    for round in 0..u64::from(args.rounds) {
        order.shuffle(&mut places);
        for &place in &places {
            let Measured { emitter, bytes, costs, .. } = &mut all[place];
            costs.push(cost(emitter, &mut bytes.0, round * args.packets, args.packets));
        }
    }
    let mut met = true;
    let mut text = format!(
        "ns per packet on CPU {}, {} rounds of {} packets\n\n{:>7} {:>7} {:>7}\n",
        args.cpu, args.rounds, args.packets, "median", "lowest", "10-90 %"
    );
    for Measured { name, has_goal, costs, .. } in &mut all {
        let [low, middle, high] = [0.1, 0.5, 0.9].map(|share| quantile(costs, share).unwrap_or(f64::NAN));
        let fastest = quantile(costs, 0.0).unwrap_or(f64::NAN);
        let verdict = match (*has_goal, middle < GOAL_NS) {
            (false, _) => String::new(),
            (true, is_met) => {
                met &= is_met;
                format!("  < {GOAL_NS}: {}", if is_met { "pass" } else { "FAIL" })
            }
        };
        text += &format!("{middle:>7.2} {fastest:>7.2} {low:>7.2} to {high:.2}  {name}{verdict}\n");
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(met)
}

/// ns per packet. `emit` is a call that the compiler does not look into: it does not know that the next number follows, nor that
/// nobody reads the bytes.
fn cost(emitter: &Emitter, bytes: &mut [u8], first: u64, packets: u64) -> f64 {
    let start = Instant::now();
    for index in first..first + packets {
        black_box(emitter.emit(index, black_box(&mut *bytes)));
    }
    start.elapsed().as_nanos() as f64 / packets as f64
}
