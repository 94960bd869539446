//! How evenly packets arrive that were to be sent at a rate: `perpacket gen --rate` by each backend, and `trafgen -b`.
//!
//! All are whole programs with the same configuration, and go out of the same veth device from the same CPU. A program in XDP at
//! the other end stamps every packet with the clock and drops it; all figures are of these stamps. What a sender
//! says of itself is not looked at.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::arena::Wire;
use bench::ground::{CPU, Ground};
use bench::sender::Process;
use bench::stamps::{BINS, Spacing, Stamps};
use clap::Parser;

const BACKENDS: [&str; 4] = ["xdp-live", "af-xdp", "tx-ring", "mmsg"];
/// The one that has to meet the goals.
const TESTED: &str = "xdp-live";
/// By how much its rate may be off, as a share.
const RATE_ERROR: f64 = 0.001;
/// The share of its gaps that may be shorter than twice the rate has: now and then the receiver is late for one packet.
const TOO_FAST: f64 = 0.005;
/// Packets that may come in one burst.
const BURST: u64 = 4;
/// How long packets may take to arrive that were sent.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Longest run of one sender, in packets.
const PACKETS_MOST: u32 = 20_000_000;

/// How evenly packets arrive: perpacket gen and trafgen at a rate
#[derive(Debug, Parser)]
#[command(name = "bench/pace", version)]
struct Args {
    /// The binary under test
    #[arg(long, default_value = "target/release/perpacket")]
    perpacket: PathBuf,
    /// The configuration
    #[arg(long, default_value = "bench/eight-flows.cfg")]
    configuration: PathBuf,
    /// Rates in packets per second
    #[arg(long, value_delimiter = ',', default_values_t = [100, 100_000, 750_000],
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rates: Vec<u32>,
    /// Seconds of each run
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

/// One run of one sender.
struct Run {
    name: &'static str,
    sent: u64,
    arrived: u64,
    spacing: Option<Spacing>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/pace: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    let ground = Ground::prepare()?;
    let most = args.rates.iter().max().map_or(0, |&rate| u64::from(rate) * u64::from(args.seconds));
    ensure!(most <= u64::from(PACKETS_MOST), "{most} packets are too many: at most {PACKETS_MOST} in a run");
    let stamps = Stamps::new(most as u32)?;
    let wire = Wire::build(1, &stamps.program()?)?;
    let mut met = true;
    let mut out = std::io::stdout().lock();
    for &pps in &args.rates {
        let mut runs = Vec::new();
        for process in senders(args, &wire, pps) {
            if ground.interrupted() {
                return Ok(false);
            }
            runs.push(measure(&process, &stamps, pps, args.seconds)?);
        }
        met &= runs.iter().all(|run| run.name != TESTED || run.is_even(pps));
        out.write_all(render(&runs, pps, args.seconds).as_bytes()).context("print the table")?;
    }
    Ok(met)
}

fn senders(args: &Args, wire: &Wire, pps: u32) -> Vec<Process> {
    let (program, configuration) = (args.perpacket.to_string_lossy(), args.configuration.to_string_lossy());
    let (rate, cpu) = (format!("{pps}pps"), CPU.to_string());
    let paced = ["--rate", &rate, "--cpus", &cpu];
    let mut all: Vec<Process> = BACKENDS
        .iter()
        .map(|backend| Process::perpacket(wire, &program, &configuration, backend, &paced))
        .collect();
    all.push(Process::trafgen(wire, &configuration, &["--cpus", "1", "--rate", &rate]));
    for process in &mut all {
        process.least_pps = f64::from(pps) / 4.0;
    }
    all
}

fn measure(process: &Process, stamps: &Stamps, pps: u32, seconds: u32) -> Result<Run> {
    stamps.clear();
    let sent = u64::from(pps) * u64::from(seconds);
    let ended = process.run(sent)?;
    let deadline = Instant::now() + ARRIVAL;
    while stamps.arrived() < sent && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let spacing = ended.then(|| Spacing::of(stamps.times(), 1e9 / f64::from(pps))).flatten();
    Ok(Run { name: process.name, sent, arrived: stamps.arrived(), spacing })
}

impl Run {
    fn is_even(&self, pps: u32) -> bool {
        self.sent == self.arrived
            && self.spacing.as_ref().is_some_and(|spacing| {
                (spacing.achieved_pps / f64::from(pps) - 1.0).abs() <= RATE_ERROR
                    && spacing.too_fast() <= TOO_FAST
                    && spacing.longest_burst <= BURST
            })
    }
}

fn render(runs: &[Run], pps: u32, seconds: u32) -> String {
    let interval = 1e6 / f64::from(pps);
    let mut text = format!(
        "{pps} pps for {seconds} s: one packet each {interval:.3} us\n\n\
         {:<9} {:>9} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>6}  verdict\n",
        "sender", "arrived", "pps", "error %", "p1 us", "median us", "p99 us", "max us", "< 0.45", "burst"
    );
    let us = |ns: u64| ns as f64 / 1e3;
    for run in runs {
        let Some(spacing) = &run.spacing else {
            let _ = writeln!(text, "{:<9} {:>9}  it hung, and was killed", run.name, run.arrived);
            continue;
        };
        let (figures, error) = (spacing.figures, (spacing.achieved_pps / f64::from(pps) - 1.0) * 100.0);
        let verdict = match (run.name == TESTED, run.is_even(pps), run.sent == run.arrived) {
            (_, _, false) => "packets are missing",
            (true, true, _) => "pass",
            (true, false, _) => "FAIL",
            (false, ..) => "",
        };
        let _ = writeln!(
            text, // writing to a String cannot fail
            "{:<9} {:>9} {:>12.2} {:>+9.3} {:>9.2} {:>9.2} {:>9.2} {:>9.1} {:>6.2}% {:>6}  {verdict}",
            run.name,
            run.arrived,
            spacing.achieved_pps,
            error,
            us(figures.p1_ns),
            us(figures.median_ns),
            us(figures.p99_ns),
            us(figures.longest_ns),
            spacing.too_fast() * 100.0,
            spacing.longest_burst,
        );
    }
    text += &histogram(runs);
    text
}

/// Shares of gaps by their length in intervals.
fn histogram(runs: &[Run]) -> String {
    let mut text = format!("\n{:<9}", "gaps, %");
    for (index, low) in BINS.iter().enumerate() {
        let bin = match BINS.get(index + 1) {
            Some(high) => format!("{low}-{high}"),
            None => format!(">= {low}"),
        };
        let _ = write!(text, " {bin:>9}");
    }
    text += "  of the interval\n";
    for run in runs {
        let Some(spacing) = &run.spacing else { continue };
        let _ = write!(text, "{:<9}", run.name);
        for share in spacing.shares {
            let _ = write!(
                text,
                " {:>9}",
                if share == 0.0 { "-".into() } else { format!("{:.3}", share * 100.0) }
            );
        }
        text.push('\n');
    }
    text.push('\n');
    text
}
