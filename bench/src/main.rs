//! The ways to send that perpacket has, side by side with trafgen's transmit ring.
//!
//! All send the same frame on the same CPU, out of the same veth device, whose peer counts and drops in XDP: so the
//! figures contain the sender, the veth pair and one short program, and nothing else. Rounds are interleaved and in
//! random order. Every sender sends two lengths in each round, whose difference leaves its start-up out; that
//! matters for an outside program. Every frame is counted at the receiver.
//!
//! trafgen runs as it comes, on one CPU, but for two of its habits: it does not change the host's socket limits
//! (`--no-sock-mem`) nor interrupt affinities (`-Q`). It pins itself to CPU 0, so all others are pinned there too.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arena;
mod sender;
mod table;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lab::HostSettings;
use measure::order::Seed;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use arena::Arena;
use sender::{Sender, Usage};
use table::Row;

/// The CPU that trafgen pins its only worker to.
const CPU: usize = 0;
/// With it set, a call of live frames ends at once instead of waiting for 20 to 30 ms.
const RCU_EXPEDITED: &str = "/sys/kernel/rcu_expedited";

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
    ensure!(linux::privilege::full(), "run as root: BPF programs and namespaces are needed");
    let interrupted = listen()?;
    linux::cpu::pin(CPU).context("pin to the CPU that trafgen uses")?;
    // Its children too: with others at work on this CPU, wall time would be about them.
    linux::cpu::set_nice(-20).context("go before other processes")?;
    let settings = HostSettings::open_default()?;
    settings.clean().context("put back what a killed run left")?;
    let _expedited = settings.hold(RCU_EXPEDITED, "1").context("expedite RCU for the run")?;

    let mut arena = Arena::build(args.frame)?;
    let mut senders = Sender::all(&arena)?;
    let mut rows: Vec<Row> = senders.iter().map(|sender| Row::new(sender.name())).collect();
    let mut order = Seed(args.seed).order();
    let mut places: Vec<usize> = (0..senders.len()).collect();
    // The first round warms up and is thrown away.
    for round in 0..=args.rounds {
        order.shuffle(&mut places);
        for &place in &places {
            let long_first = order.pair_order();
            let (sender, row) = (&mut senders[place], &mut rows[place]);
            let [long, short] = both(sender, &mut arena, args.packets, long_first)?;
            if round > 0 {
                row.add(&long, &short);
            }
        }
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    let (text, met) = table::render(&rows, args);
    std::io::stdout().write_all(text.as_bytes()).context("print the table")?;
    Ok(met)
}

/// The long and the short run of one sender.
fn both(sender: &mut Sender, arena: &mut Arena, packets: u64, long_first: bool) -> Result<[Usage; 2]> {
    let short = packets / 9;
    let (first, second) = if long_first { (packets, short) } else { (short, packets) };
    let first = sender.run(arena, first)?;
    let second = sender.run(arena, second)?;
    Ok(if long_first { [first, second] } else { [second, first] })
}

/// Set by a signal that asks for the end. The table of what was measured is printed, and the host's setting put back.
fn listen() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&asked))
            .with_context(|| format!("listen to signal {signal}"))?;
    }
    Ok(asked)
}
