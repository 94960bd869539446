//! `perpacket alloc`: what a packet buffer costs, from allocators of ours and of others.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use linux::cpu;
use measure::ledger::{Count, Ledger};
use measure::order::Seed;
use measure::record::{CapabilityProbe, Extra, MemoryRow, Summary, Variant};

use crate::alloc::{
    Account, Allocator, Baseline, Cell, Figures, Memory, Rounds, Sizes, Threads, figures, memory_here,
    memory_of,
};
use crate::cli::{AllocArgs, OutputArgs};
use crate::recorder::Recorder;
use crate::report::{self, AllocResult, Outcome, OutputFile};
use crate::scenario::{ALLOC, Allocate, AllocateMeasurement, SCHEMA};
use crate::session::{self, PRIORITY, fresh_seed};
use crate::stop::Stop;
use crate::{doctor, environment};

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &AllocArgs) -> Result<Outcome> {
    let named = args.allocators.iter().map(|name| name.parse().map_err(anyhow::Error::msg));
    let mut allocators: Vec<Allocator> = named.collect::<Result<_>>()?;
    if allocators.is_empty() {
        allocators = Allocator::ALL.into();
    }
    let scenario = Allocate {
        schema: SCHEMA.into(),
        job: ALLOC.into(),
        allocators,
        sizes: if args.pattern.is_some() { Vec::new() } else { args.sizes.clone() },
        pattern: args.pattern.clone(),
        threads: args.threads.clone(),
        live: args.live,
        hold: args.hold.unwrap_or(0.0),
        hold_for: args.hold_for,
        cpus: args.cpus.clone(),
        measurement: AllocateMeasurement {
            time_s: args.time.as_secs_f64(),
            seed: args.seed.unwrap_or_else(fresh_seed),
        },
    };
    let scenario = scenario.checked()?;
    if args.memory_only {
        return print_memory(&scenario);
    }
    compare(&scenario, args.svg.as_deref(), &args.output)
}

/// The memory of one allocator under one load, for the process that has started this one.
fn print_memory(scenario: &Allocate) -> Result<Outcome> {
    let (allocators, loads) = (&scenario.allocators, scenario.loads()?);
    ensure!(allocators.len() == 1 && loads.len() == 1, "--memory-only looks at one allocator under one load");
    let memory = memory_here(allocators[0], &loads[0], scenario)?;
    report::write_stdout(&(serde_json::to_string(&memory)? + "\n"))?;
    Ok(Outcome::Good)
}

/// Measures every cell of the scenario in rounds, accounts for every buffer and page, and reports.
pub(crate) fn compare(scenario: &Allocate, svg: Option<&Path>, output: &OutputArgs) -> Result<Outcome> {
    report::each_its_own_file(&[("--json", output.json.as_deref()), ("--svg", svg)])?;
    let stop = Stop::listen()?;
    let cpus = cpus(scenario)?;
    cpu::pin(cpus[0])?;
    // Other work then interrupts a slice less often. An ordinary user may not, and measures all the same.
    drop(cpu::set_nice(PRIORITY));
    let plot = svg.map(OutputFile::open).transpose()?;
    let (cells, notes) = cells(scenario, cpus.len())?;
    let head = session::head(
        serde_json::to_value(scenario)?,
        cpus[0],
        lacking(scenario),
        cells.iter().map(|cell| variant(cell, scenario)).collect(),
        scenario.measurement.seed,
    );
    if !output.quiet {
        report::write_stderr(&report::alloc_opening(scenario, &head, &cpus, output.verbose)?);
    }
    let warnings = doctor::warnings(&head.environment);
    let mut recorder = Recorder::start(head, output)?;
    for warning in warnings {
        if !output.quiet {
            report::write_stderr(&report::warning_line(&warning));
        }
        recorder.warning(warning)?;
    }
    let steal = environment::steal_ticks();
    let outcome = measure(scenario, &cells, &cpus, &stop, &mut recorder, output).and_then(|mut done| {
        done.result.notes = notes;
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&report::alloc_text(&done.result, output.verbose))?;
        }
        if let Some(plot) = plot {
            plot.write(&report::alloc_svg(&done.result))?;
        }
        Ok(done.outcome)
    });
    session::finish(recorder, outcome, &stop, steal, output)
}

/// The CPUs of the measuring thread and of the second one, if there is another one.
fn cpus(scenario: &Allocate) -> Result<Vec<usize>> {
    let allowed = cpu::allowed()?;
    let mut cpus = scenario.cpus.clone();
    if let Some(other) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        anyhow::bail!("CPU {other} is not allowed to this process; allowed: {allowed:?}");
    }
    // The last ones: the first ones take most of the interrupts.
    let more: Vec<usize> = allowed.iter().rev().copied().filter(|cpu| !cpus.contains(cpu)).collect();
    cpus.extend(more.into_iter().take(2_usize.saturating_sub(cpus.len())));
    ensure!(!cpus.is_empty(), "no CPU is allowed to this process");
    Ok(cpus)
}

/// The cells that can be measured here, and what cannot.
fn cells(scenario: &Allocate, cpus: usize) -> Result<(Vec<Cell>, Vec<String>)> {
    let mut notes = Vec::new();
    let mut cells: Vec<Cell> = Baseline::ALL.into_iter().map(Cell::Baseline).collect();
    let own = scenario.cells()?;
    let all = own.len();
    let can = |cell: &Cell| cpus > 1 || matches!(cell, Cell::Allocator { threads: Threads::One, .. });
    cells.extend(own.into_iter().filter(can));
    let missing = all + Baseline::ALL.len() - cells.len();
    ensure!(
        missing < all,
        "two threads need two CPUs, and one is allowed to this process: use --threads one"
    );
    if missing > 0 {
        notes.push("not measured on two threads: one CPU is allowed to this process".into());
    }
    Ok((cells, notes))
}

/// The allocators that are not in this program, as the record has them.
fn lacking(scenario: &Allocate) -> Vec<CapabilityProbe> {
    let probe = |allocator: &Allocator| {
        allocator.lacking().map(|why| CapabilityProbe {
            name: format!("allocator {allocator}"),
            available: false,
            detail: Some(why.into()),
            ..CapabilityProbe::default()
        })
    };
    scenario.allocators.iter().filter_map(probe).collect()
}

/// A cell as the record names it.
fn variant(cell: &Cell, scenario: &Allocate) -> Variant {
    let mut settings = BTreeMap::new();
    let path = match cell {
        Cell::Baseline(_) => "baseline",
        Cell::Allocator { allocator, sizes, threads } => {
            settings.extend([
                ("allocator".to_owned(), allocator.to_string()),
                ("sizes".to_owned(), sizes.to_string()),
                ("threads".to_owned(), threads.name().to_owned()),
                ("live".to_owned(), scenario.live.to_string()),
                ("hold".to_owned(), scenario.hold.to_string()),
            ]);
            "alloc"
        }
    };
    Variant { name: cell.name(), path: path.into(), settings, ..Variant::default() }
}

/// A run that came to its end.
struct Done {
    result: AllocResult,
    outcome: Outcome,
}

fn measure(
    scenario: &Allocate,
    cells: &[Cell],
    cpus: &[usize],
    stop: &Stop,
    recorder: &mut Recorder,
    output: &OutputArgs,
) -> Result<Done> {
    let memory = memory(scenario, cells, stop)?;
    let mut rounds = Rounds::build(cells, scenario, cpus.get(1).copied())?;
    let mut order = Seed(scenario.measurement.seed).order();
    let time = Duration::from_secs_f64(scenario.measurement.time_s);
    let stopped = rounds.measure(time, &mut order, recorder, stop, output)?;
    let (measured, accounts) = rounds.close();
    let Figures { rows, comparisons } = figures(&measured);
    let ledgers = ledgers(cells, &accounts);
    let mut outcome = if ledgers.iter().all(Ledger::closes) { Outcome::Good } else { Outcome::No };
    let known = rows.iter().filter(|row| row.cost.interval.is_some()).count();
    if known < cells.len() || stop.asked() {
        outcome = outcome.worst(Outcome::Inconclusive);
    }
    for book in &ledgers {
        recorder.ledger(book)?;
    }
    let summary = Summary {
        rows: rows.clone(),
        comparisons: comparisons.clone(),
        memory: memory.iter().filter_map(|(index, memory)| memory_row(*index, memory)).collect(),
        stopped: Some(stopped.clone()),
        ..Summary::default()
    };
    recorder.summary(summary)?;
    let result = AllocResult {
        scenario: scenario.clone(),
        cells: cells.to_vec(),
        figures: Figures { rows, comparisons },
        memory,
        ledgers,
        stopped,
        notes: Vec::new(),
    };
    Ok(Done { result, outcome })
}

/// The memory of each allocator under each load, by the index of the cell that takes and ends on one thread, or else of the
/// first one.
fn memory(scenario: &Allocate, cells: &[Cell], stop: &Stop) -> Result<Vec<(usize, Memory)>> {
    let mut seen: Vec<(Allocator, Sizes)> = Vec::new();
    let mut found = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let Cell::Allocator { allocator, sizes, threads: Threads::One } = cell else { continue };
        let pair = (*allocator, sizes.clone());
        if *allocator == Allocator::Loop || seen.contains(&pair) || stop.asked() {
            continue;
        }
        found.push((index, memory_of(*allocator, sizes, scenario)?));
        seen.push(pair);
    }
    Ok(found)
}

fn memory_row(index: usize, memory: &Memory) -> Option<MemoryRow> {
    Some(MemoryRow {
        variant: u16::try_from(index).ok()?,
        in_use_bytes: memory.in_use_bytes,
        resident_bytes: memory.resident_bytes,
        pinned_bytes: memory.pinned_bytes,
        extra: Extra::new(),
    })
}

/// Two for each allocator: where its buffers ended, and, where it keeps an account, its pages.
fn ledgers(cells: &[Cell], accounts: &[Account]) -> Vec<Ledger> {
    let mut all: Vec<Ledger> = Vec::new();
    for (cell, (turnover, pages)) in cells.iter().zip(accounts) {
        let Cell::Allocator { allocator, .. } = cell else { continue };
        let buffers = (turnover.taken, "buffers taken", turnover.ended, "buffers ended");
        let pages = pages.map(|pages| {
            (
                pages.taken,
                "pages taken from the source",
                pages.taken.saturating_sub(pages.left),
                "pages given back",
            )
        });
        for (sent, by, received, seen_by) in [Some(buffers), pages].into_iter().flatten() {
            let mut book = Ledger::new(
                &format!("{} of {allocator}", by.split(' ').next().unwrap_or(by)),
                None,
                Count { packets: sent, seen_by: by.into() },
            );
            book.received.push(Count { packets: received, seen_by: seen_by.into() });
            match all.iter_mut().find(|known| known.path == book.path) {
                Some(known) => drop(known.absorb(&book)), // of the same path
                None => all.push(book),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::{Pages, Turnover};

    #[test]
    fn a_page_or_a_buffer_that_is_left_opens_the_ledger() {
        let cell = |threads| Cell::Allocator { allocator: Allocator::Poll, sizes: Sizes::One(64), threads };
        let cells = [Cell::Baseline(Baseline::Nothing), cell(Threads::One), cell(Threads::Two)];
        let account = |taken, ended, left| (Turnover { taken, ended }, Some(Pages { taken: 8, left }));
        let of = |second| ledgers(&cells, &[Account::default(), account(640, 640, 0), second]);
        let closed = of(account(64, 64, 0));
        assert_eq!(closed.len(), 2);
        assert!(closed.iter().all(Ledger::closes));
        assert_eq!((closed[0].sent.packets, closed[1].sent.packets), (704, 16));
        assert!(!of(account(64, 63, 0))[0].closes());
        assert!(!of(account(64, 64, 1))[1].closes());
    }
}
