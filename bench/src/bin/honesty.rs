//! Does `perpacket ab` find what is there, and nothing else?
//!
//! Many comparisons beside an artificial load, in random order: of the same with the same (A/A), and of two variants whose difference
//! is known, because it was measured in long runs of its own. Counted is how often A/A is called different, how often the known
//! difference is found, and how often the interval covers it. What two common methods say on the very same
//! slices stands beside it: run A then run B, and benchstat-style blocks.
//!
//! It takes about an hour and prints its table as Markdown.
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use measure::foil;
use measure::order::{Order, Seed};
use measure::paired::PairSample;
use measure::quantile::{Interval, median};
use measure::record::{self, Record};
use measure::verdict::Verdict;

/// Many comparisons with known answers, beside an artificial load
#[derive(Debug, Parser)]
#[command(name = "bench/honesty", version)]
struct Args {
    /// The binary under test
    #[arg(long, default_value = "target/release/perpacket")]
    perpacket: PathBuf,
    /// Comparisons of the same with the same, on raw-drop
    #[arg(long, default_value_t = 120)]
    same: u32,
    /// Comparisons with each of the two known costs, on raw-drop
    #[arg(long, default_value_t = 60)]
    known: u32,
    /// Comparisons of each kind on xdp-drop, with programs reloaded
    #[arg(long, default_value_t = 12)]
    reloaded: u32,
    /// Seconds of one comparison
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Seconds of one calibration of a known cost; each is done twice
    #[arg(long, default_value_t = 90)]
    calibration: u32,
    /// Steps of added work of A and of B for the two known costs, as FROM-TO,FROM-TO [default: those whose difference is
    /// nearest to 1 and to 2 ns, found first]
    #[arg(long, value_delimiter = ',', value_parser = parse_steps)]
    spin: Vec<(u32, u32)>,
    /// Seed of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Numbers of steps that are tried.
const SPIN_MOST: u32 = 5;

/// One kind of comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    path: &'static str,
    /// Steps of added work of A and of B; the same for A/A.
    spin: (u32, u32),
    reload: bool,
}

impl Kind {
    fn is_same(self) -> bool {
        self.spin.0 == self.spin.1
    }

    fn arguments(self, seconds: u32) -> Vec<String> {
        let mut words = vec!["ab".into(), self.path.into(), format!("--time={seconds}s"), "--fixed".into()];
        if !self.is_same() {
            words.push(format!("--vary=spin={},{}", self.spin.0, self.spin.1));
        }
        if self.reload {
            words.push("--reload=250".into());
        }
        words
    }
}

/// A cost that is known from long runs of its own.
struct Known {
    kind: Kind,
    ns: f64,
    /// Half of its 95 % interval.
    unsure_ns: f64,
}

impl Known {
    /// Whether an interval covers the cost, as well as that is known: both are unsure.
    fn is_covered(&self, said: &Said) -> bool {
        let bound = if self.ns > said.difference_ns { said.interval.high } else { said.interval.low };
        let towards = bound - said.difference_ns;
        (self.ns - said.difference_ns).abs() <= towards.hypot(self.unsure_ns)
    }
}

/// What one comparison said.
struct Said {
    kind: Kind,
    verdict: Verdict,
    difference_ns: f64,
    interval: Interval,
    relative_half_width: f64,
    run_a_then_b: bool,
    benchstat: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "bench/honesty: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Whether every goal is met.
fn run(args: &Args) -> Result<bool> {
    let start = Instant::now();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        for number in 0..cpus {
            let over = &over;
            scope.spawn(move || load(over, number as u64));
        }
        let done = measure_all(args);
        over.store(true, Ordering::Relaxed);
        let (table, good) = done?;
        let text = format!("{table}\n{:.0} minutes in all.\n", start.elapsed().as_secs_f64() / 60.0);
        std::io::stdout().write_all(text.as_bytes()).context("print the table")?;
        Ok(good)
    })
}

fn measure_all(args: &Args) -> Result<(String, bool)> {
    let mut order = Seed(args.seed).order();
    let spins = if args.spin.is_empty() { screen(args)? } else { args.spin.clone() };
    let raw = |spin| Kind { path: "raw-drop", spin, reload: false };
    let xdp = |spin| Kind { path: "xdp-drop", spin, reload: true };
    let mut kinds = vec![(raw((0, 0)), args.same), (xdp((0, 0)), args.reloaded)];
    for &spin in &spins {
        kinds.extend([(raw(spin), args.known), (xdp(spin), args.reloaded)]);
    }

    // Half of each calibration before, half after the comparisons: a drift would show as a difference of the two.
    let known_kinds: Vec<Kind> = kinds.iter().map(|(kind, _)| *kind).filter(|kind| !kind.is_same()).collect();
    let first = calibrate(args, &known_kinds)?;
    let said = compare_all(args, &kinds, &mut order)?;
    let second = calibrate(args, &known_kinds)?;

    let mut table = String::new();
    writeln!(table, "| known cost | first, ns | second, ns | mean, ns |\n|---|---|---|---|")?;
    let mut known = Vec::new();
    for (kind, (first, second)) in known_kinds.iter().zip(first.iter().zip(&second)) {
        let mean = (first.difference_ns + second.difference_ns) / 2.0;
        let one = |said: &Said| {
            format!("{:.2} [{:.2}, {:.2}]", said.difference_ns, said.interval.low, said.interval.high)
        };
        writeln!(
            table,
            "| {} {:?} steps | {} | {} | {mean:.2} |",
            kind.path,
            kind.spin,
            one(first),
            one(second)
        )?;
        let unsure_ns = first.interval.half_width().hypot(second.interval.half_width()) / 2.0;
        known.push(Known { kind: *kind, ns: mean, unsure_ns });
    }
    writeln!(
        table,
        "\n| comparison | runs | called different | interval covers the mean | half width, median | difference, median | \
         run A then B: different | benchstat blocks: different |\n|---|---|---|---|---|---|---|---|"
    )?;
    for (kind, _) in &kinds {
        let cost = known.iter().find(|known| known.kind == *kind).map_or(0.0, |known| known.ns);
        writeln!(table, "{}", row(*kind, cost, &said))?;
    }
    let (goals, good) = goals(&spins, &known, &said);
    Ok((table + &goals, good))
}

/// The goals for raw-drop, as shares of what was run, each with pass or fail.
fn goals(spins: &[(u32, u32)], known: &[Known], all: &[Said]) -> (String, bool) {
    let of = |spin: (u32, u32)| -> Vec<&Said> {
        all.iter().filter(|said| said.kind.path == "raw-drop" && said.kind.spin == spin).collect()
    };
    let share = |said: &[&Said], test: &dyn Fn(&Said) -> bool| {
        said.iter().filter(|said| test(said)).count() as f64 / said.len().max(1) as f64
    };
    let differs = |said: &Said| matches!(said.verdict, Verdict::Faster | Verdict::Slower);
    let covers = |said: &Said| known.iter().any(|known| known.kind == said.kind && known.is_covered(said));
    let same = of((0, 0));
    let mut widths: Vec<f64> = same.iter().map(|said| said.relative_half_width).collect();
    let width = median(&mut widths).unwrap_or(f64::INFINITY);
    let mut list = vec![
        (
            "A/A called different, at most 10 of 120",
            share(&same, &differs),
            share(&same, &differs) <= 10.0 / 120.0,
        ),
        ("A/A, half width of the median run, at most 0.3 %", width, width <= 0.003),
    ];
    for (spin, text, least) in [
        (spins.first(), "the smaller cost found, at least 48 of 60", 48.0 / 60.0),
        (spins.get(1), "the larger cost found, at least 56 of 60", 56.0 / 60.0),
    ] {
        let found = spin.map_or(0.0, |&spin| share(&of(spin), &differs));
        list.push((text, found, found >= least));
    }
    let burdened: Vec<&Said> = spins.iter().flat_map(|&spin| of(spin)).collect();
    let covered = share(&burdened, &covers);
    list.push((
        "the known cost covered, as well as it is known, at least 108 of 120",
        covered,
        covered >= 108.0 / 120.0,
    ));
    let mut text = String::from("\n| goal | measured | |\n|---|---|---|\n");
    for (goal, measured, met) in &list {
        text += &format!("| {goal} | {:.1} % | {} |\n", measured * 100.0, if *met { "pass" } else { "FAIL" });
    }
    (text, list.iter().all(|(.., met)| *met))
}

/// The numbers of steps that cost nearest to 1 ns and to 2 ns here and now.
fn screen(args: &Args) -> Result<Vec<(u32, u32)>> {
    let mut costs = vec![0.0];
    for spin in 1..=SPIN_MOST {
        let kind = Kind { path: "raw-drop", spin: (0, spin), reload: false };
        let said = compare_once(args, kind, args.calibration / 2)?;
        drop(writeln!(std::io::stderr(), "{spin} steps: {:.2} ns", said.difference_ns));
        costs.push(said.difference_ns);
    }
    let steps = |from: usize| (from + 1..costs.len()).map(move |to| (from, to));
    let pairs: Vec<(usize, usize)> = (0..costs.len()).flat_map(steps).collect();
    let nearest = |wanted: f64| {
        let cost = |&(from, to): &(usize, usize)| costs[to] - costs[from];
        let enough = pairs.iter().filter(|pair| cost(pair) > 0.95 * wanted);
        enough.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|&(from, to)| (from as u32, to as u32))
    };
    let spins: Vec<(u32, u32)> = [1.0, 2.0].into_iter().filter_map(nearest).collect();
    ensure!(
        spins.len() == 2 && spins[0] != spins[1],
        "no two numbers of steps differ by about 1 and 2 ns here: name them with --spin"
    );
    Ok(spins)
}

/// `2-3`: two steps in A, three in B.
fn parse_steps(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}`: write FROM-TO, for example 0-1"))
}

/// The long runs that say how much a known cost is.
fn calibrate(args: &Args, kinds: &[Kind]) -> Result<Vec<Said>> {
    kinds.iter().map(|kind| compare_once(args, *kind, args.calibration)).collect()
}

/// All comparisons, in random order.
fn compare_all(args: &Args, kinds: &[(Kind, u32)], order: &mut Order) -> Result<Vec<Said>> {
    let mut list: Vec<Kind> = kinds.iter().flat_map(|(kind, times)| vec![*kind; *times as usize]).collect();
    order.shuffle(&mut list);
    let mut said = Vec::new();
    for (done, kind) in list.iter().enumerate() {
        let one = match compare_once(args, *kind, args.seconds) {
            Ok(one) => one,
            Err(error) => {
                drop(writeln!(
                    std::io::stderr(),
                    "{}/{} failed, and counts for nothing: {error:#}",
                    done + 1,
                    list.len()
                ));
                continue;
            }
        };
        let line = format!(
            "{}/{} {} {:?}: {:+.2} [{:+.2}, {:+.2}] ns, ±{:.3} %, {:?}\n",
            done + 1,
            list.len(),
            kind.path,
            kind.spin,
            one.difference_ns,
            one.interval.low,
            one.interval.high,
            one.relative_half_width * 100.0,
            one.verdict
        );
        drop(std::io::stderr().write_all(line.as_bytes()));
        said.push(one);
    }
    Ok(said)
}

/// One comparison by the program under test, and what the other methods say on its slices.
fn compare_once(args: &Args, kind: Kind, seconds: u32) -> Result<Said> {
    let file = std::env::temp_dir().join(format!("perpacket-honesty-{}.json", std::process::id()));
    let done = Command::new(&args.perpacket)
        .args(kind.arguments(seconds))
        .args(["--no-save", "--quiet", "--json"])
        .arg(&file)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("run {}; build it with cargo build --release", args.perpacket.display()))?;
    ensure!(matches!(done.code(), Some(0 | 3)), "the comparison ended with {done}");
    let record = record::read(BufReader::new(File::open(&file)?))?;
    std::fs::remove_file(&file)?;
    let summary = record.summary.as_ref().context("the record has no summary")?;
    let row =
        summary.comparisons.first().context("the record has no comparison: too few pairs for an interval")?;
    let pairs = pairs(&record);
    let ordered =
        |(a, b): (Vec<f64>, Vec<f64>)| foil::run_a_then_b(&a, &b).is_some_and(|row| row.delta.is_some());
    let blocks =
        |(a, b): (Vec<f64>, Vec<f64>)| foil::benchstat(&a, &b).is_some_and(|row| row.delta.is_some());
    Ok(Said {
        kind,
        verdict: row.verdict,
        difference_ns: row.comparison.difference_ns,
        interval: row.comparison.difference_interval,
        relative_half_width: row.comparison.ratio_interval.half_width(),
        run_a_then_b: ordered(foil::as_run_a_then_b(&pairs)),
        benchstat: blocks(foil::as_benchstat(&pairs, 10)),
    })
}

/// The slices of a record as pairs, in ns per packet with the fixed cost in: the other methods know no better.
fn pairs(record: &Record) -> Vec<PairSample> {
    let slices: Vec<_> = record.slices.iter().collect();
    let cost = |slice: &measure::slice::Slice| slice.cpu_ns as f64 / slice.packets as f64;
    let pair = |two: &[measure::slice::Slice]| {
        let [first, second] = two else { return None };
        let (a, b) = if first.variant < second.variant { (first, second) } else { (second, first) };
        (a.pair == b.pair && a.variant != b.variant && a.void.is_none() && b.void.is_none())
            .then(|| PairSample { block: a.block, a_ns: cost(a), b_ns: cost(b) })
    };
    slices.chunks_exact(2).filter_map(pair).collect()
}

fn row(kind: Kind, cost: f64, all: &[Said]) -> String {
    let said: Vec<&Said> = all.iter().filter(|said| said.kind == kind).collect();
    let count = |test: &dyn Fn(&Said) -> bool| said.iter().filter(|said| test(said)).count();
    let middle = |value: &dyn Fn(&Said) -> f64| {
        let mut values: Vec<f64> = said.iter().map(|said| value(said)).collect();
        median(&mut values).unwrap_or(f64::NAN)
    };
    format!(
        "| {}, {} | {} | {} | {} | {:.3} % | {:+.2} ns | {} | {} |",
        kind.path,
        if kind.is_same() { "the same (A/A)".into() } else { format!("+{cost:.2} ns known") },
        said.len(),
        count(&|said| matches!(said.verdict, Verdict::Faster | Verdict::Slower)),
        count(&|said| said.interval.contains(cost)),
        middle(&|said| said.relative_half_width) * 100.0,
        middle(&|said| said.difference_ns),
        count(&|said| said.run_a_then_b),
        count(&|said| said.benchstat),
    )
}

/// Other work, on whatever CPU: busy about a third of the time, in bursts of 1 to 20 ms, half of them in memory.
fn load(over: &AtomicBool, seed: u64) {
    let mut order = Seed(seed).order();
    let mut memory = vec![0u64; 1 << 19]; // 4 MiB
    while !over.load(Ordering::Relaxed) {
        let end = Instant::now() + Duration::from_micros(1_000 + order.below(19_000));
        let in_memory = order.pair_order();
        let mut sum = 0u64;
        while Instant::now() < end {
            for _ in 0..1_000 {
                let at = if in_memory { order.below(memory.len() as u64) as usize } else { 0 };
                sum = sum.wrapping_mul(3).wrapping_add(memory[at]);
                memory[at] = sum;
            }
        }
        thread::sleep(Duration::from_micros(2_000 + order.below(38_000)));
    }
}
