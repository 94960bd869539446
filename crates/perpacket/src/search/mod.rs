//! `perpacket search`: the highest rate at which a path loses no more than a goal allows.
//!
//! ```text
//! place   what is searched on: a path, a frame size, and the way in, settled
//!  └ course  the path made real, along which trials are sent
//!  └ hunt    one search: asks `measure::search` for trials, makes them, and keeps what came of each
//!  └ report/search  bounds and rates, their spread over repetitions, and where packets were lost
//! ```

mod course;
mod hunt;
mod place;
mod spread;

use std::path::Path;

use anyhow::{Result, bail};
use linux::cpu;
use measure::ledger::Ledger;
use measure::record::{SearchRow, Summary, TrialPart, Warning};
use measure::search::Ending;
use traffic::BackendKind;

use crate::cli::OutputArgs;
use crate::host::Abilities;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome, OutputFile};
use crate::scenario::Search;
use crate::stop::Stop;
use crate::{doctor, environment, session};

use course::{Cpus, lay};
use hunt::Hunt;
pub(crate) use place::Place;
pub(crate) use spread::{Spread, is_the_senders};

/// What was found on one place.
pub(crate) struct Searched {
    pub(crate) place: Place,
    /// One for each repetition that was made.
    pub(crate) rows: Vec<SearchRow>,
    /// Where the packets of all trials ended; none where no trial was made.
    pub(crate) ledger: Option<Ledger>,
    /// That of the first trial in which packets are unaccounted for, which may look closed in the sum of all.
    pub(crate) open: Option<Ledger>,
    /// What the sender does beside sending, where that bounds what it can offer.
    pub(crate) shared: Option<String>,
    /// The trials, where they are to be printed.
    pub(crate) trials: Vec<TrialPart>,
}

/// Searches on every path at every frame size, and reports.
pub(crate) fn run(scenario: &Search, svg: Option<&Path>, output: &OutputArgs) -> Result<Outcome> {
    session::enter_own_network()?;
    let stop = Stop::listen()?;
    let allowed = cpu::allowed()?;
    let cpus = Cpus::of(&allowed, scenario.host.cpu)?;
    // This thread only waits and looks: not on the sender's CPU.
    cpu::pin(cpus.others[0])?;
    // Other work then interrupts a trial less often. An ordinary user may not, and measures all the same.
    drop(cpu::set_nice(session::PRIORITY));
    let abilities = Abilities::probe().sending_from(cpus.sender, &allowed);
    let (places, notes) = place::settle(scenario, &abilities)?;
    report::each_its_own_file(&[("--json", output.json.as_deref()), ("--svg", svg)])?;
    let plot = svg.map(OutputFile::open).transpose()?;
    let injects = |place: &Place| {
        matches!(place.cell.setting.backend, Some(BackendKind::Inject | BackendKind::XdpLive))
    };
    let (expedited, left_behind) = session::expedite(scenario.host.expedite && places.iter().any(injects))?;
    let head = session::head(
        serde_json::to_value(scenario)?,
        cpus.sender,
        abilities.as_probes(),
        places.iter().map(|place| place.variant(scenario)).collect(),
        0,
    );
    if !output.quiet {
        report::write_stderr(&report::search_opening(scenario, &head, &cpus_text(&cpus), output.verbose)?);
    }
    let mut warnings = doctor::left_behind(&left_behind);
    warnings.extend(doctor::warnings(&head.environment));
    warnings.extend(place::warnings(scenario, &cpus));
    let mut recorder = Recorder::start(head, output)?;
    warnings.extend(notes.iter().map(|note| not_searched(note)));
    for warning in warnings {
        recorder.warn(warning)?;
    }
    let steal = environment::steal_ticks();
    let outcome = search_all(scenario, places, &cpus, &stop, &mut recorder, output).and_then(|searched| {
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&report::search_text(&searched, output.verbose))?;
        }
        if let Some(plot) = plot {
            plot.write(&report::search_svg(&searched))?;
        }
        Ok(judge(&searched, scenario.runs, !notes.is_empty()))
    });
    if let Some(warning) = session::give_back(expedited) {
        recorder.warn(warning)?;
    }
    session::finish(recorder, outcome, &stop, steal, output)
}

fn cpus_text(cpus: &Cpus) -> String {
    let others: Vec<String> = cpus.others.iter().map(ToString::to_string).collect();
    format!("sender on CPU {}, receivers on CPU {}", cpus.sender, others.join(", "))
}

/// Every place in turn, and that as often as was asked for: what the machine does meanwhile then meets all of them. Each time
/// all is built anew.
fn search_all(
    scenario: &Search,
    places: Vec<Place>,
    cpus: &Cpus,
    stop: &Stop,
    recorder: &mut Recorder,
    output: &OutputArgs,
) -> Result<Vec<Searched>> {
    let new =
        |place| Searched { place, rows: vec![], ledger: None, open: None, shared: None, trials: vec![] };
    let mut all: Vec<Searched> = places.into_iter().map(new).collect();
    let mut progress = Progress::new(output);
    let searches = f64::from(scenario.runs) * all.len() as f64;
    let mut done = 0.0;
    for run in 0..scenario.runs {
        for index in 0..all.len() {
            let searched = &mut all[index];
            if stop.asked() {
                break;
            }
            let place = &searched.place;
            let mut laid = lay(place, scenario, cpus)?;
            let variant = u16::try_from(index)?;
            let hunt = Hunt { goals: &scenario.goals, limits: scenario.limits(), variant, run };
            let found = hunt.on(laid.course.as_mut(), stop, |trial, share| {
                progress.show((done + share) / searches, &report::trial_line(place, run, trial));
                if output.verbose {
                    searched.trials.push(trial.clone());
                }
                recorder.trial(trial.clone())
            })?;
            done += 1.0;
            searched.shared = laid.shared;
            searched.rows.push(found.row);
            searched.open = searched.open.take().or(found.open);
            match (&mut searched.ledger, found.ledger) {
                (Some(sum), Some(more)) => drop(sum.absorb(&more)), // of the same path
                (sum, more) => *sum = sum.take().or(more),
            }
            recorder.summary(summary(&all))?;
        }
    }
    progress.clear();
    for book in all.iter().filter_map(|searched| searched.ledger.as_ref()) {
        recorder.ledger(book)?;
    }
    if all.iter().all(|searched| searched.rows.iter().all(|row| row.trials == 0)) && !stop.asked() {
        bail!("no trial was made within the time: use a greater --time");
    }
    Ok(all)
}

fn summary(all: &[Searched]) -> Summary {
    Summary {
        search: all.iter().flat_map(|searched| searched.rows.iter().cloned()).collect(),
        ..Summary::default()
    }
}

/// A path at a frame size that was asked for, and cannot be searched on.
fn not_searched(why: &str) -> Warning {
    Warning {
        what: "not all that was asked for is searched on".into(),
        fact: why.into(),
        next_step: "leave it out, or change what it does not take".into(),
        ..Warning::default()
    }
}

/// Good where the bounds of every goal were found in every repetition. No where packets are unaccounted for, or a path loses more
/// than a goal allows at the least rate. What only ends a search (its time, the sender, the greatest rate, a signal), or was left out, leaves open
/// what the path can do.
fn judge(all: &[Searched], runs: u32, is_left_out: bool) -> Outcome {
    let mut outcome = if is_left_out { Outcome::Inconclusive } else { Outcome::Good };
    for searched in all {
        let is_open = searched.ledger.as_ref().is_some_and(|book| !book.closes());
        if is_open || searched.open.is_some() {
            outcome = outcome.worst(Outcome::No);
        }
        if searched.rows.len() < runs as usize {
            outcome = outcome.worst(Outcome::Inconclusive);
        }
        for goal in searched.rows.iter().flat_map(|row| &row.goals) {
            outcome = outcome.worst(match goal.result.ending {
                Ending::Regular => Outcome::Good,
                Ending::LosesAtMinimum => Outcome::No,
                _ => Outcome::Inconclusive,
            });
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_open() {
        assert!(matches!(judge(&[], 1, false), Outcome::Good));
        assert!(matches!(judge(&[], 1, true), Outcome::Inconclusive));
    }
}
