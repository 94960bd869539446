//! The ways to send that perpacket has, side by side with trafgen's transmit ring.
//!
//! All send the same frame on the same CPU, out of the same veth device, whose peer counts and drops in XDP: so the
//! figures contain the sender, the veth pair and one short program, and nothing else. Rounds are interleaved and in
//! random order. Every sender sends two lengths in each round, whose difference leaves its start-up out; that
//! matters for an outside program. Every frame is counted at the receiver.
//!
//! trafgen runs as it comes, on one CPU, but for two of its habits: it does not change the host's socket limits
//! (`--no-sock-mem`) nor interrupt affinities (`-Q`). It pins itself to CPU 0, so all others are pinned there too.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bench::arena::{self, Arena};
use bench::ground::{CPU, Ground};
use bench::rounds::Rounds;
use bench::sender::Sender;
use bench::table::{self, Goal};
use clap::Parser;

/// What a ratio to trafgen must be.
const GOALS: [(&str, Goal); 4] = [
    ("xdp-live", Goal::Ratio(6.0)),
    ("af-xdp", Goal::Ratio(1.2)),
    ("tx-ring", Goal::LowerBound(0.97)),
    ("mmsg", Goal::LowerBound(0.97)),
];

/// perpacket's senders beside trafgen, into the same XDP-dropping veth peer
#[derive(Debug, Parser)]
#[command(name = "bench/backends", version)]
struct Args {
    /// Rounds, each with every sender once
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(6..=10_000))]
    rounds: u32,
    /// Packets of the longer of the two lengths; the shorter is a ninth of it
    #[arg(long, default_value_t = 450_000, value_parser = clap::value_parser!(u64).range(9_000..=10_000_000))]
    packets: u64,
    /// Frame size in bytes, with the 4-byte FCS
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(64..=1518))]
    frame: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/backends: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    let ground = Ground::prepare()?;
    let arena = Arena::build(1)?;
    let mut senders = Sender::backends(&arena.wire, &arena::frame(args.frame)?)?;
    let rounds = Rounds { rounds: args.rounds, packets: args.packets, seed: args.seed };
    let rows = rounds.run(&mut senders, &arena, &ground)?;
    let title = format!(
        "Into a veth peer that drops in XDP: {}-byte frames (with FCS), CPU {CPU}, seed {}",
        args.frame, args.seed
    );
    let (text, met) = table::render(&title, &rows, &GOALS);
    std::io::stdout().write_all(text.as_bytes()).context("print the table")?;
    Ok(met)
}
