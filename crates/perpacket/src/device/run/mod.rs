//! `perpacket datapath`: devices opened, joined by stages, run by threads, and what became of every packet.
//!
//! ```text
//! open       devices: queues for each thread
//! stages     what the scenario says about the network
//! plan       a worker for each thread, and queues between threads
//! threads    the poll loops, and the threads of receivers
//! account    what they counted, as a record has it
//! standing   the same device for as long as somebody else needs it
//! ```

mod account;
mod open;
mod pcap;
mod plan;
mod stages;
mod standing;
mod template;
mod threads;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use linux::clock;
use measure::record::{Datapath as Results, Extra, Summary, Variant, Warning};

use crate::cli::OutputArgs;
use crate::device::DeviceWord;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome};
use crate::scenario::Datapath;
use crate::stop::{Deadline, Stop};
use crate::{environment, session};

pub(crate) use account::Account;
use plan::Plan;
pub(crate) use standing::{ReadQueue, Standing, Standings, forget};

/// Runs the device under test, and reports.
pub(crate) fn run(scenario: &Datapath, output: &OutputArgs) -> Result<Outcome> {
    let sent_to = match &scenario.devices.tx {
        Some(DeviceWord::Pcap(path)) => Some(path.as_path()),
        _ => None,
    };
    let received_from = match &scenario.devices.rx {
        Some(DeviceWord::Pcap(path)) => Some(path.as_path()),
        _ => None,
    };
    let json = ("--json", output.json.as_deref());
    // That the others are not the same is checked with the scenario.
    for other in [("--rx", received_from), ("--tx", sent_to), ("--capture", scenario.capture.as_deref())] {
        report::each_its_own_file(&[json, other])?;
    }
    let stop = Stop::listen()?;
    let plan = Plan::build(scenario)?;
    drop(linux::cpu::set_nice(session::PRIORITY));
    let mut recorder = start_record(scenario, &plan, output)?;
    for warning in plan.warnings.clone() {
        if !output.quiet {
            report::write_stderr(&report::warning_line(&warning));
        }
        recorder.warning(warning)?;
    }
    let steal = environment::steal_ticks();
    let outcome = work(scenario, plan, &stop, output).and_then(|account| {
        recorder.ledger(&account.ledger)?;
        recorder.summary(Summary { datapath: Some(account.results.clone()), ..Summary::default() })?;
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&report::datapath_text(&account, output.verbose))?;
        }
        // What came until then has been printed.
        account.failure.map_or(Ok(()), Err)?;
        Ok(judge(&account.ledger, &account.results, scenario, stop.asked()))
    });
    session::finish(recorder, outcome, &stop, steal, output)
}

/// Good where every packet is accounted for.
fn judge(
    ledger: &measure::ledger::Ledger,
    results: &Results,
    scenario: &Datapath,
    interrupted: bool,
) -> Outcome {
    let received: u64 =
        results.ports.iter().filter(|port| port.direction == "rx").map(|port| port.packets).sum();
    match scenario.run.count {
        _ if !ledger.closes() => Outcome::No,
        // A person ended it before all came.
        Some(count) if received < count && interrupted => Outcome::Inconclusive,
        _ => Outcome::Good,
    }
}

/// Lets the threads run, and adds up what they counted.
fn work(scenario: &Datapath, plan: Plan, stop: &Stop, output: &OutputArgs) -> Result<Account> {
    let Plan { lanes, consumers, together, leftovers, .. } = plan;
    let deadline = scenario.run.time_s.map(std::time::Duration::from_secs_f64).map(Deadline::after);
    let mut progress = Progress::new(output);
    let mut live = report::DatapathLive::default();
    let start = clock::monotonic_ns();
    let done = threads::run(lanes, consumers, together, |received| {
        let seconds = (clock::monotonic_ns() - start) as f64 / 1e9;
        let by_count = scenario.run.count.map_or(0.0, |count| received as f64 / count as f64);
        let share = deadline.map_or(0.0, |deadline| deadline.share()).max(by_count);
        if let Some(line) = live.line(seconds, received) {
            progress.show(share, &line);
        }
        stop.asked() || deadline.is_some_and(|deadline| deadline.passed())
    })?;
    progress.clear();
    Ok(Account::new(scenario, done, leftovers))
}

/// Starts the record, and says what is going to happen.
fn start_record(scenario: &Datapath, plan: &Plan, output: &OutputArgs) -> Result<Recorder> {
    let words = |words: Vec<&crate::device::DeviceWord>| {
        let words: Vec<String> = words.into_iter().map(ToString::to_string).collect();
        Some(words.join(" ")).filter(|text| !text.is_empty())
    };
    let receive = &scenario.receive;
    let mut settings = BTreeMap::from([
        ("receive".to_owned(), receive.mode.to_string()),
        ("threads".to_owned(), scenario.run.threads.to_string()),
    ]);
    settings.extend(receive.alloc.map(|alloc| ("alloc".to_owned(), alloc.to_string())));
    settings.extend(words(scenario.devices.sending()).map(|tx| ("tx".to_owned(), tx)));
    let variant = Variant {
        name: format!("datapath {}", scenario.stage),
        path: format!("datapath {}", scenario.stage),
        frame_bytes: account::frame_bytes(scenario),
        ingress: words(scenario.devices.receiving()),
        settings,
        extra: Extra::new(),
        ..Variant::default()
    };
    let cpu = plan.lanes.first().map(|lane| lane.cpu).context("there is no thread to run")?;
    let head = session::head(serde_json::to_value(scenario)?, cpu, vec![], vec![variant], scenario.run.seed);
    if !output.quiet {
        let cpus: Vec<usize> = plan.lanes.iter().map(|lane| lane.cpu).collect();
        report::write_stderr(&report::datapath_opening(scenario, &head, &cpus, output.verbose)?);
    }
    Recorder::start(head, output)
}

/// A warning that is told and kept.
fn warning(what: &str, fact: String, next_step: &str) -> Warning {
    Warning { what: what.into(), fact, next_step: next_step.into(), ..Warning::default() }
}
