//! `perpacket ab`: two variants of a path in interleaved pairs.

use anyhow::{Context, Result};
use measure::holm;
use measure::record::{ComparisonRow, Extra, Summary};
use measure::verdict::{Criteria, Verdict, judge_family};

use crate::cell::{Cell, Factor, PathName};
use crate::cli::{AbArgs, OutputArgs};
use crate::diagnosis;
use crate::pairs::{Answer, Pairs};
use crate::report::{self, Outcome};
use crate::scenario::{Compare, Job, SCHEMA, Scenario, default_precision};
use crate::session::{Ground, Session};

/// Packets in a slice where nothing else is asked for: with twice as many as `path` takes, as much time gives an interval
/// that is a sixth narrower.
const SLICE: u64 = 10_000;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &AbArgs) -> Result<Outcome> {
    let scenario = Scenario {
        schema: SCHEMA.into(),
        job: Job::Ab,
        paths: args
            .paths
            .iter()
            .map(|name| name.parse::<PathName>().map_err(anyhow::Error::msg))
            .collect::<Result<_>>()?,
        frames: vec![args.frame],
        setting: args.setting.resolve()?,
        measurement: args.slice.resolve(args.time, default_precision(), SLICE)?,
        host: args.host.resolve(),
        compare: Some(compare(args)?),
    };
    scenario.check()?;
    measure(&scenario, &args.output)
}

/// Compares on every path of the scenario, one after the other, and judges them as one family.
pub(crate) fn measure(scenario: &Scenario, output: &OutputArgs) -> Result<Outcome> {
    let compare = scenario.compare.as_ref().context("the scenario compares nothing: [compare] is missing")?;
    let ground = Ground::settle(scenario)?;
    let mut variants = Vec::new();
    for cell in scenario.cells() {
        let pair = [cell.with(compare.vary, &compare.a)?, cell.with(compare.vary, &compare.b)?];
        variants.extend(ground.abilities.resolve_pair(pair, scenario.measurement.clock, compare.vary)?);
    }
    let mut session = Session::start(ground, scenario, &variants, output)?;
    let outcome = measure_pairs(&mut session, compare, &variants);
    session.finish(outcome)
}

fn measure_pairs(session: &mut Session<'_>, compare: &Compare, variants: &[Cell]) -> Result<Outcome> {
    let mut answers: Vec<(Cell, Answer)> = Vec::new();
    let mut outcome = Outcome::Good;
    let mut ledgers = String::new();
    for (index, pair) in variants.chunks_exact(2).enumerate() {
        let cells = [pair[0].clone(), pair[1].clone()];
        let mut pairs = Pairs::new(session.scenario, compare, cells, 2 * index);
        let answer = pairs.measure(session)?;
        for book in pairs.ledgers() {
            let mut book = book.clone();
            if !book.closes() {
                diagnosis::explain(&pair[0], &mut book)?;
                outcome = Outcome::No;
            }
            if !book.closes() || session.output.verbose {
                ledgers += &report::ledger_text(&book);
            }
            session.recorder.ledger(&book)?;
        }
        answers.push((pair[0].clone(), answer));
        if session.stop.asked() {
            break;
        }
    }
    judge(&mut answers, compare);
    let summary = Summary { comparisons: rows(&answers, compare, session), ..Summary::default() };
    session.recorder.summary(summary)?;
    if session.prints() {
        report::write_stdout(&(report::comparison_table(&answers, compare) + &ledgers))?;
    }
    let undecided = |(_, answer): &(Cell, Answer)| matches!(answer.verdict, Verdict::Inconclusive { .. });
    if compare.vary != Factor::Nothing && answers.iter().any(undecided) {
        outcome = outcome.worst(Outcome::Inconclusive);
    }
    Ok(outcome)
}

fn compare(args: &AbArgs) -> Result<Compare> {
    let (vary, a, b) = match (&args.vary, &args.a, &args.b) {
        (Some(vary), ..) => Factor::parse_vary(vary)?,
        (None, Some(a), Some(b)) => (Factor::Command, a.clone(), b.clone()),
        _ => (Factor::Nothing, String::new(), String::new()),
    };
    Ok(Compare { vary, a, b, margin: args.margin, early_stop: !args.fixed, reload_pairs: args.reload })
}

/// Replaces each verdict by the one that holds among all paths of the run (Holm).
fn judge(answers: &mut [(Cell, Answer)], compare: &Compare) {
    let comparisons: Vec<_> = answers.iter().filter_map(|(_, answer)| answer.comparison).collect();
    let criteria = criteria(compare);
    let mut verdicts = judge_family(&comparisons, &criteria).into_iter();
    for (_, answer) in answers.iter_mut().filter(|(_, answer)| answer.comparison.is_some()) {
        if let Some(verdict) = verdicts.next() {
            answer.verdict = verdict;
        }
    }
}

fn criteria(compare: &Compare) -> Criteria {
    Criteria { margin: Some(compare.margin), min_effect: 0.0 }
}

fn rows(answers: &[(Cell, Answer)], compare: &Compare, session: &Session<'_>) -> Vec<ComparisonRow> {
    let p_values: Vec<f64> =
        answers.iter().filter_map(|(_, answer)| Some(answer.comparison?.p_value)).collect();
    let mut adjusted = holm::adjust(&p_values).into_iter();
    let row = |(index, (_, answer)): (usize, &(Cell, Answer))| {
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
    answers.iter().enumerate().filter_map(row).collect()
}
