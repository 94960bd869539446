//! `perpacket path`: what one packet costs on kernel paths, and in a device in user space.

use anyhow::{Context, Result, bail};
use measure::ledger::Ledger;
use measure::marginal::{absolute_cost, over_floor, round_costs};
use measure::record::{Clock, CostRow, Extra, Summary, Warning};

use crate::cell::{Cell, PathName};
use crate::cli::{OutputArgs, PathArgs};
use crate::commands::usual_slice;
use crate::diagnosis;
use crate::report::{self, CellResult, Outcome};
use crate::rounds::{Measured, Rounds, Stopped};
use crate::scenario::{Job, SCHEMA, Scenario};
use crate::session::{Ground, KSOFTIRQD, Session};

/// What is measured when no path is named.
const DEFAULT_PATHS: [PathName; 5] =
    [PathName::Floor, PathName::XdpDrop, PathName::RawDrop, PathName::Forward, PathName::Udp];

/// Share of a cost from which on what its clock misses is said.
const NOTICEABLE: f64 = 0.01;

/// Confidence of the printed intervals.
const CONFIDENCE: f64 = 0.95;

/// Packets in a slice where nothing else is asked for.
const SLICE: u64 = 5_000;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &PathArgs) -> Result<Outcome> {
    let paths = paths(&args.paths)?;
    let slice = usual_slice(&paths, SLICE);
    let scenario = Scenario {
        schema: SCHEMA.into(),
        job: Job::Path,
        paths,
        frames: args.frame.clone(),
        setting: args.setting.resolve()?,
        measurement: args.slice.resolve(args.time, args.precision, slice)?,
        host: args.host.resolve(),
        compare: None,
    };
    let scenario = scenario.checked()?;
    measure(&scenario, &args.output)
}

/// Measures every cell of the scenario in rounds, accounts for every packet, and reports.
pub(crate) fn measure(scenario: &Scenario, output: &OutputArgs) -> Result<Outcome> {
    let ground = Ground::settle(scenario)?;
    let (cells, notes) = resolve(scenario, &ground)?;
    let mut session = Session::start(ground, scenario, &cells, output)?;
    let outcome = measure_cells(&mut session, &cells, &notes);
    session.finish(outcome)
}

/// The labs stand as long as this runs.
fn measure_cells(session: &mut Session<'_>, cells: &[Cell], notes: &[String]) -> Result<Outcome> {
    let mut rounds = Rounds::build(cells, session)?;
    let stopped = rounds.measure(session)?;
    let measured = rounds.take();

    let mut summary = Summary { rows: rows(&measured, session), ..Summary::default() };
    summary.stopped = Some(stopped.to_string());
    let mut outcome = judge(&summary.rows, &measured, &stopped);
    for warning in blind_spots(&summary.rows, cells) {
        session.warn(warning)?;
    }
    let mut ledgers = rounds.ledgers()?;
    for (cell, book) in cells.iter().zip(&mut ledgers).filter(|(_, book)| !book.closes()) {
        diagnosis::explain(cell, session.scenario.measurement.clock, book);
    }
    for book in &ledgers {
        session.recorder.ledger(book)?;
        outcome = outcome.worst(if book.closes() { Outcome::Good } else { Outcome::No });
    }
    session.recorder.summary(summary.clone())?;
    if session.prints() {
        print(&summary, &measured, &ledgers, notes, session.output)?;
    }
    Ok(outcome)
}

/// The paths by name; the default ones where nothing is named.
fn paths(names: &[String]) -> Result<Vec<PathName>> {
    if names.is_empty() {
        return Ok(DEFAULT_PATHS.into());
    }
    names.iter().map(|name| name.parse().map_err(anyhow::Error::msg)).collect()
}

/// The cells that can be measured here, and notes on what is different or not measured, and why. An error when
/// none is left.
fn resolve(scenario: &Scenario, ground: &Ground) -> Result<(Vec<Cell>, Vec<String>)> {
    let (mut cells, mut notes, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for cell in scenario.cells() {
        match ground.abilities.resolve(&cell, scenario.measurement.clock) {
            Ok(resolved) => {
                if cell.setting.backend.is_none() {
                    notes.extend(ground.abilities.fallback(&resolved));
                }
                cells.push(resolved);
            }
            Err(error) => refused.push(report::chain(&error)),
        }
    }
    notes.dedup();
    refused.dedup();
    if cells.is_empty() {
        bail!("{}", refused.join("\n  "));
    }
    notes.extend(refused.into_iter().map(|reason| format!("not measured: {reason}")));
    Ok((cells, notes))
}

/// One row a cell, with the cost over the floor where the floor was measured at the same frame size.
fn rows(measured: &[Measured], session: &Session<'_>) -> Vec<CostRow> {
    let floor_of = |cell: &Cell| {
        let same = |m: &&Measured| m.cell.path == PathName::Floor && m.cell.frame_bytes == cell.frame_bytes;
        measured.iter().find(same).filter(|_| cell.path != PathName::Floor)
    };
    let row = |(index, m): (usize, &Measured)| {
        let cost = absolute_cost(&m.samples, CONFIDENCE)?;
        let costs = round_costs(&m.samples);
        let over =
            floor_of(&m.cell).and_then(|floor| over_floor(&costs, &round_costs(&floor.samples), CONFIDENCE));
        Some(CostRow {
            variant: u16::try_from(index).ok()?,
            clock: session.clock(),
            cost,
            over_floor: over,
            void_slices: m.void_slices,
            counters_per_packet: m.counters_per_packet(),
            extra: Extra::new(),
        })
    };
    measured.iter().enumerate().filter_map(row).collect()
}

/// Warnings for cells of whose packets a noticeable part was worked on by ksoftirqd.
fn blind_spots(rows: &[CostRow], cells: &[Cell]) -> Vec<Warning> {
    let warning = |row: &CostRow| {
        let deferred_ns = row.counters_per_packet.get(KSOFTIRQD).copied().flatten()?;
        let cell = &cells[usize::from(row.variant)];
        (row.clock == Clock::ThreadCpu && !cell.path.is_datapath() && deferred_ns > NOTICEABLE * row.cost.ns)
            .then(|| Warning {
                what: format!("a part of {} at {} bytes is not in its figure", cell.path, cell.frame_bytes),
                fact: format!("ksoftirqd took {deferred_ns:.1} ns a packet from the measuring thread"),
                next_step: "add it, or measure when less other work runs on this CPU".into(),
                ..Warning::default()
            })
    };
    rows.iter().filter_map(warning).collect()
}

/// Good when every cell has a figure with an interval; no when one has none because its packets were lost; inconclusive
/// when there was no time for one.
fn judge(rows: &[CostRow], measured: &[Measured], stopped: &Stopped) -> Outcome {
    let known = |row: &CostRow| row.cost.interval.is_some();
    if measured.iter().any(|m| m.samples.is_empty() && m.void_slices > 0) {
        Outcome::No
    } else if *stopped != Stopped::Interrupted && rows.len() == measured.len() && rows.iter().all(known) {
        Outcome::Good
    } else {
        Outcome::Inconclusive
    }
}

fn print(
    summary: &Summary,
    measured: &[Measured],
    ledgers: &[Ledger],
    notes: &[String],
    output: &OutputArgs,
) -> Result<()> {
    let row_of = |index: usize| summary.rows.iter().find(|row| usize::from(row.variant) == index);
    let results: Vec<CellResult<'_>> = measured
        .iter()
        .zip(ledgers)
        .enumerate()
        .map(|(index, (m, ledger))| CellResult {
            cell: &m.cell,
            slices: m.slices,
            void_slices: m.void_slices,
            row: row_of(index),
            ledger,
        })
        .collect();
    let mut text = report::cost_table(&results);
    if let Some(stopped) = &summary.stopped {
        text += &format!("{stopped}\n");
    }
    for line in notes {
        text += &format!("{line}\n");
    }
    if output.verbose {
        text += &report::counters_text(&results);
    }
    let told = |book: &&Ledger| output.verbose || !book.closes() || book.dropped_packets() > 0;
    for book in ledgers.iter().filter(told) {
        text += &report::ledger_text(book);
    }
    report::write_stdout(&text).context("print the result")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Setting;

    #[test]
    fn a_cell_whose_packets_were_lost_is_no_and_one_without_time_is_inconclusive() {
        let cell = Cell { path: PathName::Forward, frame_bytes: 64, setting: Setting::default() };
        let time_up = Stopped::TimeUp { rounds: 1, seconds: 1.0, percent: 0.5, precise: 0, of: 1 };
        let mut measured = Measured::new(cell);
        assert_eq!(judge(&[], std::slice::from_ref(&measured), &time_up), Outcome::Inconclusive);
        measured.void_slices = 12;
        for stopped in [time_up, Stopped::Interrupted] {
            assert_eq!(judge(&[], std::slice::from_ref(&measured), &stopped), Outcome::No);
        }
    }
}
