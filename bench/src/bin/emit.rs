//! What a packet of the packet language costs to make: ns per packet of a handful of programs.
//!
//! Rounds are interleaved, so that a slow hour is slow for all, and the median of the rounds is printed. Nothing is sent.

use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use template::{Emitter, ParseOptions, Program};

/// ns per packet that the packet language takes to make packets in memory
#[derive(Debug, Parser)]
#[command(name = "emit", version)]
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
}

const ETH: &str = "eth(da=02:00:00:00:01:02, sa=02:00:00:00:01:01)";

/// Name and text; every 64-byte packet has 18 bytes of payload.
fn programs() -> Vec<(&'static str, String)> {
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
            one("da=dinc(198.18.0.2, 198.18.0.250)", "sp=1024, dp=dinc(9, 1000)"),
        ),
        ("two ports that count, UDP checksum", one("da=198.18.0.2", "sp=dinc(1024, 2000), dp=dinc(9, 1000)")),
        ("counter and random, UDP checksum", one("da=198.18.0.2", "sp=drnd(), dp=dinc(9, 1000)")),
        ("two random, UDP checksum", one("da=198.18.0.2", "sp=drnd(), dp=drnd(9, 1000)")),
        ("8 flows, UDP checksum", one("da=198.18.0.2", "sp=1024, dp=dinc(9, 16)")),
        ("IMIX of 12 packets, 8 flows each", imix),
        ("constant", one("da=198.18.0.2", "sp=1024, dp=9")),
    ]
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "emit: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    linux::cpu::pin(args.cpu).with_context(|| format!("pin to CPU {}", args.cpu))?;
    let mut all = Vec::new();
    for (name, text) in programs() {
        let compiled =
            Program::parse(&text, &ParseOptions::default()).map_err(|error| anyhow!("{name}: {error}"))?;
        let emitter = compiled.plan.emitter(0, 1, 1)?;
        all.push((name, emitter, vec![0; compiled.plan.longest_l2_bytes()], Vec::new()));
    }
    for round in 0..u64::from(args.rounds) {
        for (_, emitter, bytes, costs) in &mut all {
            costs.push(cost(emitter, bytes, round * args.packets, args.packets));
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "ns per packet, median of {} rounds of {} packets, and the fastest",
        args.rounds, args.packets
    )?;
    for (name, _, _, costs) in &mut all {
        ensure!(!costs.is_empty(), "no round was run");
        costs.sort_by(f64::total_cmp);
        writeln!(out, "{:>7.2} {:>7.2}  {name}", costs[costs.len() / 2], costs[0])?;
    }
    Ok(())
}

fn cost(emitter: &Emitter, bytes: &mut [u8], first: u64, packets: u64) -> f64 {
    let start = Instant::now();
    for index in first..first + packets {
        black_box(emitter.emit(index, black_box(bytes)));
    }
    start.elapsed().as_nanos() as f64 / packets as f64
}
