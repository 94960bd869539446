//! `perpacket ab`: two variants of a path in interleaved pairs.

use std::time::Duration;

use anyhow::{Context, Result};
use measure::crossover::{self, Crossover};
use measure::holm;
use measure::record::{ComparisonRow, Extra, Summary, Warning};
use measure::verdict::{Verdict, judge_family};

use crate::cell::{Cell, Factor, PathName, Setting};
use crate::cli::{AbArgs, OutputArgs};
use crate::commands::usual_slice;
use crate::diagnosis;
use crate::flows;
use crate::pairs::{Answer, Pairs, criteria};
use crate::report::{self, Outcome};
use crate::scenario::{Compare, FLOWS_JOB, Job, SCHEMA, Scenario, default_precision};
use crate::session::{Ground, Session};

/// Packets in a slice where nothing else is asked for: with twice as many as `path` takes, as much time gives an interval
/// that is a sixth narrower.
const SLICE: u64 = 10_000;

/// Time for each path and frame size where nothing is said; as in the arguments.
const TIME: Duration = Duration::from_secs(10);

/// Share of a cost from which on what its clock misses is said.
pub(crate) const NOTICEABLE: f64 = 0.01;

/// What a comparison of ways to receive in user space says nothing about.
const LEFT_OUT: &str = "user space leaves out: mapping pages for DMA, and cache misses on what a network card has just written. \
                        Copying has these misses at once, a page that is handed up has them when somebody reads it\n";

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &AbArgs) -> Result<Outcome> {
    if args.paths == [FLOWS_JOB] {
        let (vary, seed) = (args.vary.as_deref(), args.slice.seed);
        let scenario = super::flows::compared(vary, is_plain(args)?, seed, &args.host)?;
        return flows::run(&scenario, None, &args.output);
    }
    let paths: Vec<PathName> =
        args.paths.iter().map(|name| name.parse().map_err(anyhow::Error::msg)).collect::<Result<_>>()?;
    let slice = usual_slice(&paths, SLICE);
    let scenario = Scenario {
        schema: SCHEMA.into(),
        job: Job::Ab,
        paths,
        frames: args.frame.clone(),
        setting: args.setting.resolve()?,
        measurement: args.slice.resolve(args.time, default_precision(), slice)?,
        host: args.host.resolve(),
        compare: Some(compare(args)?),
    };
    measure(&scenario.checked()?, &args.output)
}

/// Whether nothing is asked for but what differs and where results go.
fn is_plain(args: &AbArgs) -> Result<bool> {
    let of_flows = args.setting.resolve()? == Setting::default() && args.frame == [64];
    let of_slices = args.time == TIME && args.slice.clock == "thread" && args.margin == default_precision();
    let is_usual = !args.fixed && args.reload.is_none() && args.slice.packets.is_none();
    Ok(of_flows && of_slices && args.a.is_none() && is_usual)
}

/// Compares on every path of the scenario at every frame size, one after the other, and judges them as one family.
pub(crate) fn measure(scenario: &Scenario, output: &OutputArgs) -> Result<Outcome> {
    let compare = scenario.compare.as_ref().context("the scenario compares nothing: [compare] is missing")?;
    let ground = Ground::settle(scenario)?;
    let (mut variants, mut notes) = (Vec::new(), Vec::new());
    for cell in scenario.cells() {
        let pair = [cell.with(compare.vary, &compare.a)?, cell.with(compare.vary, &compare.b)?];
        variants.extend(ground.abilities.resolve_pair(pair, scenario.measurement.clock, compare.vary)?);
    }
    if scenario.setting.backend.is_none() && compare.vary != Factor::Backend {
        notes.extend(variants.iter().filter_map(|cell| ground.abilities.fallback(cell)));
        notes.dedup();
    }
    let mut session = Session::start(ground, scenario, &variants, output)?;
    let outcome = measure_pairs(&mut session, compare, &variants, &notes);
    session.finish(outcome)
}

fn measure_pairs(
    session: &mut Session<'_>,
    compare: &Compare,
    variants: &[Cell],
    notes: &[String],
) -> Result<Outcome> {
    let mut answers: Vec<([Cell; 2], Answer)> = Vec::new();
    let mut outcome = Outcome::Good;
    let mut ledgers = String::new();
    for (index, pair) in variants.chunks_exact(2).enumerate() {
        let cells = [pair[0].clone(), pair[1].clone()];
        let mut pairs = Pairs::new(session.scenario, compare, cells.clone(), 2 * index, variants.len() / 2);
        let answer = pairs.measure(session)?;
        let apart = pairs.ledgers().count() == 2;
        for ((cell, book), name) in pairs.ledgers().zip(["A", "B"]) {
            let mut book = book.clone();
            if apart {
                book.notes.push(format!("packets of variant {name}"));
            }
            if !book.closes() {
                diagnosis::explain(cell, session.scenario.measurement.clock, &mut book);
                outcome = Outcome::No;
            }
            if !book.closes() || book.dropped_packets() > 0 || session.output.verbose {
                ledgers += &report::ledger_text(&book);
            }
            session.recorder.ledger(&book)?;
        }
        if let Some(warning) = blind_spot(pair, &answer, pairs.deferred_ns()) {
            session.warn(warning)?;
        }
        if answer.pairs == 0 && answer.void_pairs > 0 {
            outcome = Outcome::No;
        }
        answers.push((cells, answer));
        if session.stop.asked() {
            break;
        }
    }
    judge(&mut answers, compare);
    session.recorder.summary(summary(&answers, compare, session))?;
    if session.prints() {
        let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
        let crossovers = crossovers(&answers, compare);
        let left_out = if crossovers.is_empty() { "" } else { LEFT_OUT };
        let table = report::comparison_table(&answers, &crossovers, compare);
        report::write_stdout(&(table + left_out + &notes + &ledgers))?;
    }
    let undecided =
        |(_, answer): &([Cell; 2], Answer)| matches!(answer.verdict, Verdict::Inconclusive { .. });
    let unknown = |(_, answer): &([Cell; 2], Answer)| answer.comparison.is_none();
    let open = match compare.vary {
        Factor::Nothing => answers.iter().any(unknown),
        _ => answers.iter().any(undecided),
    };
    if open {
        outcome = outcome.worst(Outcome::Inconclusive);
    }
    Ok(outcome)
}

/// Where the cheaper way to receive changes with the frame size, on each path that was measured at enough sizes.
fn crossovers(answers: &[([Cell; 2], Answer)], compare: &Compare) -> Vec<(PathName, Crossover)> {
    if compare.vary != Factor::Rx {
        return Vec::new();
    }
    let mut paths: Vec<PathName> = answers.iter().map(|([a, _], _)| a.path).collect();
    paths.dedup();
    let of_path = |path: PathName| {
        let rows = answers.iter().filter(|([a, _], _)| a.path == path);
        let points: Vec<_> = rows.map(|([a, _], answer)| (a.frame_bytes, answer.verdict)).collect();
        Some((path, crossover::crossover(&points)?))
    };
    paths.into_iter().filter_map(of_path).collect()
}

/// A warning where ksoftirqd took a noticeable part of the work, which the thread's clock does not see: a variant that defers
/// more would look cheaper.
fn blind_spot(pair: &[Cell], answer: &Answer, deferred_ns: [Option<f64>; 2]) -> Option<Warning> {
    let comparison = answer.comparison.as_ref().filter(|_| !pair[0].path.is_datapath())?;
    let [a, b] = [deferred_ns[0]?, deferred_ns[1]?];
    let noticeable = NOTICEABLE * comparison.a_ns.min(comparison.b_ns);
    (a.max(b) > noticeable || (a - b).abs() > noticeable / 2.0).then(|| Warning {
        what: format!("a part of the work of {} is not in its figures", pair[0].path),
        fact: format!("ksoftirqd took {a:.1} ns a packet of A and {b:.1} of B from the measuring thread"),
        next_step: "measure when less other work runs on this CPU, or with --clock machine".into(),
        ..Warning::default()
    })
}

fn compare(args: &AbArgs) -> Result<Compare> {
    let (vary, a, b) = match (&args.vary, &args.a, &args.b) {
        (Some(vary), ..) => Factor::parse_vary(vary)?,
        (None, Some(a), Some(b)) => (Factor::Command, a.clone(), b.clone()),
        _ => (Factor::Nothing, String::new(), String::new()),
    };
    Ok(Compare { vary, a, b, margin: args.margin, early_stop: !args.fixed, reload_pairs: args.reload })
}

/// Replaces each verdict by the one that holds among all comparisons of the run (Holm).
fn judge(answers: &mut [([Cell; 2], Answer)], compare: &Compare) {
    let comparisons: Vec<_> = answers.iter().filter_map(|(_, answer)| answer.judged()).collect();
    let criteria = criteria(compare);
    let mut verdicts = judge_family(&comparisons, &criteria).into_iter();
    for (_, answer) in answers.iter_mut().filter(|(_, answer)| answer.judged().is_some()) {
        if let Some(verdict) = verdicts.next() {
            answer.verdict = verdict;
        }
    }
}

fn summary(answers: &[([Cell; 2], Answer)], compare: &Compare, session: &Session<'_>) -> Summary {
    let p_values: Vec<f64> =
        answers.iter().filter_map(|(_, answer)| Some(answer.comparison?.p_value)).collect();
    let mut adjusted = holm::adjust(&p_values).into_iter();
    let row = |(index, (_, answer)): (usize, &([Cell; 2], Answer))| {
        Some(ComparisonRow {
            a: 2 * index as u16,
            b: 2 * index as u16 + 1,
            clock: session.clock(),
            comparison: answer.comparison?,
            adjusted_p_value: adjusted.next(),
            criteria: criteria(compare),
            verdict: answer.verdict,
            looks: answer.looks,
            look: answer.look,
            warmup_pairs: answer.warmup_pairs,
            trend_left: Some(answer.trend_left),
            void_pairs: answer.void_pairs,
            extra: Extra::new(),
        })
    };
    let stopped: Vec<String> = answers
        .iter()
        .map(|([a, b], answer)| format!("{}: {}", report::subject([a, b], answers), answer.stopped))
        .collect();
    Summary {
        comparisons: answers.iter().enumerate().filter_map(row).collect(),
        stopped: Some(stopped.join("; ")),
        ..Summary::default()
    }
}
