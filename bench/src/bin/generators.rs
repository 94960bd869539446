//! `perpacket gen` and trafgen as whole programs, with one and the same configuration; and two threads of perpacket.
//!
//! All send from the same CPU, out of the same veth device, whose peer counts and drops in XDP. Rounds are interleaved and in
//! random order. Each sends two lengths in each round, whose difference leaves out its start and its end. Every packet is
//! counted at the receiver.
//!
//! Two threads send into two queues of such a peer. Their rate is read off the receiver's counter while they run.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::arena::Arena;
use bench::ground::{CPU, Ground};
use bench::rounds::Rounds;
use bench::sender::{Process, Sender};
use bench::table::{self, Goal};
use clap::Parser;
use measure::quantile::median;
use measure::record;

/// Backends, and how many times as many packets as the others they send.
const BACKENDS: [(&str, u64); 4] = [("xdp-live", 10), ("af-xdp", 2), ("tx-ring", 1), ("mmsg", 1)];
/// What a ratio to trafgen must be.
const GOALS: [(&str, Goal); 1] = [("xdp-live", Goal::Ratio(6.0))];
/// Packets of 64 bytes that 10 Gbit/s carry in a second.
const WIRE_SPEED_PPS: f64 = 14_880_952.0;
/// The CPUs of two threads.
const CPUS: [usize; 2] = [0, 1];
/// How long a program may take to send its first packet.
const START: Duration = Duration::from_secs(10);
/// What is left out at both ends of a run of two threads.
const EDGE: Duration = Duration::from_millis(300);

/// perpacket gen and trafgen, whole programs with the same configuration
#[derive(Debug, Parser)]
#[command(name = "bench/generators", version)]
struct Args {
    /// The binary under test
    #[arg(long, default_value = "target/release/perpacket")]
    perpacket: PathBuf,
    /// The configuration
    #[arg(long, default_value = "bench/eight-flows.cfg")]
    configuration: PathBuf,
    /// Rounds, each with every sender once
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(6..=10_000))]
    rounds: u32,
    /// Packets of the longer of the two lengths (af-xdp 2 times, xdp-live 10 times as many); the shorter is a ninth of it
    #[arg(long, default_value_t = 450_000, value_parser = clap::value_parser!(u64).range(9_000..=10_000_000))]
    packets: u64,
    /// Runs of one thread and of two
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Seconds of each of these
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/generators: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    let ground = Ground::prepare()?;
    let faster = beside_trafgen(args, &ground)?;
    Ok(two_threads(args, &ground)? && faster)
}

fn beside_trafgen(args: &Args, ground: &Ground) -> Result<bool> {
    let arena = Arena::build(1)?;
    let (program, configuration) = (args.perpacket.to_string_lossy(), args.configuration.to_string_lossy());
    let cpu = CPU.to_string();
    let ours = BACKENDS.iter().map(|&(backend, factor)| {
        let process = Process::perpacket(&arena.wire, &program, &configuration, backend, &["--cpus", &cpu]);
        Sender::Process(Process { factor, ..process })
    });
    let reference = Sender::Process(Process::trafgen(&arena.wire, &configuration, &["--cpus", "1"]));
    let mut senders: Vec<Sender> = ours.chain([reference]).collect();
    let rounds = Rounds { rounds: args.rounds, packets: args.packets, seed: args.seed };
    let rows = rounds.run(&mut senders, &arena, ground)?;
    let title = format!(
        "{configuration} as whole programs into a veth peer that drops in XDP: CPU {CPU}, seed {}",
        args.seed
    );
    let (text, met) = table::render(&title, &rows, &GOALS);
    std::io::stdout().write_all(text.as_bytes()).context("print the table")?;
    Ok(met)
}

/// One run of some threads.
struct Run {
    /// Packets per second that the receiver counted.
    received_mpps: f64,
    /// Packets per second of each thread, as they say.
    threads_mpps: Vec<f64>,
    sent: u64,
    received: u64,
}

/// One thread and two in turn, into as many queues.
fn two_threads(args: &Args, ground: &Ground) -> Result<bool> {
    linux::cpu::allow_only(&CPUS).context("use two CPUs")?;
    let arena = Arena::build(CPUS.len() as u32)?;
    let mut text = format!(
        "\nxdp-live into {} queues of a veth peer that drop in XDP, {} s each, median [lowest, highest] in Mpps:\n\n",
        CPUS.len(),
        args.seconds
    );
    let mut runs: [Vec<Run>; CPUS.len()] = Default::default();
    for _ in 0..args.runs {
        for (index, runs) in runs.iter_mut().enumerate() {
            if !ground.interrupted() {
                runs.push(threads(args, &arena, index + 1)?);
            }
        }
    }
    let mut met = true;
    for (index, runs) in runs.iter().enumerate() {
        let count = index + 1;
        let total: Vec<f64> = runs.iter().map(|run| run.received_mpps).collect();
        let _ = write!(text, "{count} of {count} threads: received {}", spread(&total)); // cannot fail
        for (thread, cpu) in CPUS.iter().enumerate().take(count) {
            let own: Vec<f64> = runs.iter().filter_map(|run| run.threads_mpps.get(thread).copied()).collect();
            let _ = write!(text, "; thread on CPU {cpu} sent {}", spread(&own));
        }
        let (sent, received) =
            runs.iter().fold((0, 0), |(sent, received), run| (sent + run.sent, received + run.received));
        let _ = writeln!(text, "; {sent} sent, {received} counted");
        met &= sent == received && !runs.is_empty();
        if count == CPUS.len() {
            let fast = median(&mut total.clone()).is_some_and(|mpps| mpps * 1e6 >= WIRE_SPEED_PPS);
            let verdict = if fast { "pass" } else { "FAIL" };
            let _ = writeln!(
                text,
                "goal: {:.2} Mpps, 10 Gbit/s of 64-byte frames: {verdict}",
                WIRE_SPEED_PPS / 1e6
            );
            met &= fast;
        }
    }
    std::io::stdout().write_all(text.as_bytes()).context("print the figures")?;
    Ok(met)
}

/// Lets so many threads send for the time, and reads the receiver's counter meanwhile.
fn threads(args: &Args, arena: &Arena, count: usize) -> Result<Run> {
    let file = std::env::temp_dir().join(format!("perpacket-generators-{}.json", std::process::id()));
    let before = arena.received()?;
    let mut child = start(args, arena, count, &file)?;
    let rate = rate_while_running(arena, &mut child, before, Duration::from_secs(args.seconds.into()));
    let done = child.wait().context("wait for perpacket gen")?;
    ensure!(done.success(), "perpacket gen with {count} threads ended with {done}");
    let record = record::read(BufReader::new(File::open(&file)?))?;
    std::fs::remove_file(&file)?;
    let generated = record.summary.and_then(|summary| summary.generated);
    let generated = generated.context("the record does not say what was sent")?;
    let mpps = |packets: u64, ns: u64| packets as f64 * 1e3 / ns as f64;
    Ok(Run {
        received_mpps: rate?,
        threads_mpps: generated.workers.iter().map(|worker| mpps(worker.packets, worker.wall_ns)).collect(),
        sent: generated.packets,
        received: arena.received_of(before + generated.packets)? - before,
    })
}

fn start(args: &Args, arena: &Arena, count: usize, record: &Path) -> Result<Child> {
    let device = arena.wire.device();
    let cpus: Vec<String> = CPUS.iter().take(count).map(usize::to_string).collect();
    Command::new(&args.perpacket)
        .arg("gen")
        .arg(&args.configuration)
        .args(["--to", device, "--allow-device", device, "--backend", "xdp-live"])
        .args(["--threads", &count.to_string(), "--cpus", &cpus.join(",")])
        .args(["--time", &format!("{}s", args.seconds), "--no-save", "--quiet", "--no-expedite", "--json"])
        .arg(record)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("start {}; build it with cargo build --release", args.perpacket.display()))
}

/// Mpps that the receiver counts, from shortly after the first packet to shortly before the end.
fn rate_while_running(arena: &Arena, child: &mut Child, before: u64, time: Duration) -> Result<f64> {
    let deadline = Instant::now() + START;
    while arena.received()? == before {
        ensure!(Instant::now() < deadline && child.try_wait()?.is_none(), "perpacket gen sent nothing");
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(EDGE);
    let (first, start) = (arena.received()?, Instant::now());
    thread::sleep(time - 2 * EDGE);
    let (last, elapsed) = (arena.received()?, start.elapsed());
    Ok((last - first) as f64 / elapsed.as_nanos() as f64 * 1e3)
}

fn spread(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    median(&mut values.to_vec()).map_or("-".into(), |middle| format!("{middle:.2} [{low:.2}, {high:.2}]"))
}
