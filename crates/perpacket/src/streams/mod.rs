//! Bytes and transactions over sockets: `stream` and `rr`.
//!
//! ```text
//! Arranging   makes sockets of both ends and lets them run (here: a lab of two namespaces)
//!  └ Exchanged   what each end counted
//!     └ figures  throughput, CPU, service demand, latency; means over the runs of a row
//!        └ report/stream
//! ```

mod arrange;
mod figures;
mod local;
mod remote;
mod setting;
mod sockets;
mod work;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use measure::confidence::Decision;
use measure::ledger::{Count, Ledger};
use measure::order::Seed;
use measure::record::{StreamRow, StreamRun, Streams as Recorded, Summary, Variant, Warning};
use stream::outcome::Interval;
use stream::plan::{Ends, Plan, Transport, Work};

use crate::cli::OutputArgs;
use crate::cli::stream::Format;
use crate::ledger;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome};
use crate::scenario::{StreamCell, Streams};
use crate::session;
use crate::stop::Stop;
use crate::{doctor, environment};

use arrange::{Arranged, Arranging, Asked};
use local::Local;
use remote::Host;

pub(crate) use figures::{KindOf, Quantity, RowResult, RunFigures, Way};
pub(crate) use remote::{Protocol, Remote, read_key};
pub(crate) use setting::{Over, StreamSetting};
pub(crate) use work::{Row, Word};

/// The longest payload of a datagram that a frame of 1500 bytes takes whole.
const WHOLE_BYTES: u32 = 1452;

/// What the command found.
pub(crate) struct StreamsResult<'a> {
    pub(crate) scenario: &'a Streams,
    pub(crate) rows: Vec<RowResult>,
    /// Those of the rows.
    pub(crate) plans: Vec<Plan>,
    /// How the end that answers is called, and its address: of each setting, where they differ; none over UNIX sockets.
    pub(crate) answering: Vec<(String, SocketAddr)>,
    /// Of rows whose datagrams are accounted for, each with its row.
    pub(crate) ledgers: Vec<(usize, Ledger)>,
    pub(crate) interrupted: bool,
    recorded: Recorded,
}

/// A run of the command, settled.
struct Job<'a> {
    scenario: &'a Streams,
    /// Each row with each setting.
    cells: Vec<StreamCell>,
    cpus: Ends<Vec<usize>>,
    format: Format,
    stop: Stop,
}

/// Runs what the scenario says, and reports.
pub(crate) fn run(scenario: &Streams, format: Format, output: &OutputArgs) -> Result<Outcome> {
    let cells = scenario.cells()?;
    let is_local = scenario.setting.remote.is_none();
    let ends = if is_local { 2 } else { 1 };
    cells.iter().try_for_each(|cell| local::check(&cell.plan, ends))?;
    if is_local && cells.iter().any(|cell| cell.setting.over != Over::Unix) {
        session::enter_own_network()
            .context("make a network namespace without root; run as root, or allow user namespaces")?;
    }
    let setting = &scenario.setting;
    // Each of two hosts has all its CPUs to itself.
    let cpus = match is_local {
        true => Ends { client: setting.local_cpus.clone(), server: setting.remote_cpus.clone() },
        false => Ends::default(),
    };
    let job = Job { scenario, cells, cpus, format, stop: Stop::listen()? };
    let mut recorder = job.start_record(output)?;
    let steal = environment::steal_ticks();
    let outcome = job.measure(&mut recorder, output).and_then(|result| {
        let text = match format {
            Format::Table => report::streams_text(&result, output.verbose),
            Format::Netperf => report::netperf_columns(&result),
            Format::Iperf3 => report::iperf3_json(&result)?,
        };
        recorder.summary(Summary { streams: Some(result.recorded.clone()), ..Summary::default() })?;
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&text)?;
        }
        Ok(result.outcome())
    });
    session::finish(recorder, outcome, &job.stop, steal, output)
}

impl<'a> Job<'a> {
    fn measure(&self, recorder: &mut Recorder, output: &OutputArgs) -> Result<StreamsResult<'a>> {
        let scenario = self.scenario;
        let settings = self.cells.len() / scenario.work.len();
        let mut places = self.places(settings)?;
        let mut answering: Vec<_> = places.iter().filter_map(Arranging::answering).collect();
        answering.dedup();
        let mut order = Seed(scenario.measurement.seed).order();
        let mut progress = Progress::new(output);
        let wanted = scenario.measurement.confidence;
        let new = |cell: &StreamCell| RowResult::new(cell.row, cell.name.clone(), wanted);
        let mut result = StreamsResult {
            scenario,
            rows: self.cells.iter().map(new).collect(),
            plans: self.cells.iter().map(|cell| cell.plan.clone()).collect(),
            answering,
            ledgers: Vec::new(),
            interrupted: false,
            recorded: Recorded::default(),
        };
        for first in (0..self.cells.len()).step_by(settings) {
            let cells = first..first + settings;
            while result.rows[cells.clone()].iter().any(|row| row.wants_more(scenario.measurement.runs)) {
                let mut turn: Vec<usize> = cells.clone().collect();
                order.shuffle(&mut turn);
                for index in turn {
                    let (cell, run) = (&self.cells[index], result.rows[index].runs.len() + 1);
                    progress
                        .show(index as f64 / self.cells.len() as f64, &format!("{}, run {run}", cell.name));
                    match self.run_once(&mut places[index - first], cell, output) {
                        // What the other end does not hear to its end is no run.
                        Err(_) if self.stop.asked() => {}
                        arranged => {
                            let arranged = arranged.with_context(|| format!("run {run} of {}", cell.name))?;
                            self.keep(&mut result, index, arranged, recorder, output)?;
                        }
                    }
                    if self.stop.asked() {
                        progress.clear();
                        result.stopped();
                        return Ok(result);
                    }
                }
            }
        }
        progress.clear();
        Ok(result)
    }

    /// What arranges the runs of each setting.
    fn places(&self, settings: usize) -> Result<Vec<Arranging>> {
        let build = |cell: &StreamCell| {
            Ok(match &cell.setting.remote {
                None => Arranging::Local(Local::build(cell.setting.over)?),
                Some(remote) => Arranging::Host(Box::new(Host::find(remote, cell.setting.over)?)),
            })
        };
        self.cells[..settings].iter().map(build).collect()
    }

    fn run_once(
        &self,
        arranging: &mut Arranging,
        cell: &StreamCell,
        output: &OutputArgs,
    ) -> Result<Arranged> {
        let on_interval = |interval: &Interval| {
            if !output.quiet && self.format == Format::Table {
                report::write_stderr(&report::interval_line(cell.row, interval));
            }
        };
        arranging.exchange(&Asked {
            plan: &cell.plan,
            interval: self.scenario.measurement.interval_s.map(Duration::from_secs_f64),
            cpu: self.scenario.measurement.cpu,
            on_interval: &on_interval,
            stop: &self.stop,
        })
    }

    /// Adds a run to what was found and to the record.
    fn keep(
        &self,
        result: &mut StreamsResult<'_>,
        index: usize,
        arranged: Arranged,
        recorder: &mut Recorder,
        output: &OutputArgs,
    ) -> Result<()> {
        let (cell, row) = (&self.cells[index], &mut result.rows[index]);
        let Arranged { exchanged, beside, grown } = arranged;
        let repetition = row.runs.len() as u32;
        let figures = RunFigures::of(&cell.plan, &self.cpus, &exchanged);
        for said in exchanged.client.warnings.iter().chain(&exchanged.server.warnings) {
            warn(recorder, said_by_an_end(&cell.name, said), output)?;
        }
        if let Some(book) = ledger_of(cell, &figures, grown.as_ref()) {
            recorder.ledger(&book)?;
            result.ledgers.push((index, book));
        }
        let run = StreamRun {
            variant: index as u16,
            repetition,
            client: serde_json::to_value(&exchanged.client)?,
            server: serde_json::to_value(&exchanged.server)?,
            ..StreamRun::default()
        };
        row.add(figures, exchanged, beside);
        let means = StreamRow {
            variant: index as u16,
            runs: row.runs.len() as u32,
            decision: row.decision(),
            means: row.means(),
            ..StreamRow::default()
        };
        let recorded = &mut result.recorded;
        recorded.runs.push(run);
        recorded.rows.retain(|row| usize::from(row.variant) != index);
        recorded.rows.push(means);
        recorded.rows.sort_by_key(|row| row.variant);
        // Of long commands not every run, or the record would grow with their square.
        if recorded.runs.len().is_power_of_two() {
            recorder.summary(Summary { streams: Some(recorded.clone()), ..Summary::default() })?;
        }
        Ok(())
    }

    /// Starts the record, and says what is going to happen.
    fn start_record(&self, output: &OutputArgs) -> Result<Recorder> {
        let scenario = self.scenario;
        let variants = self.cells.iter().map(|cell| Variant {
            name: cell.name.clone(),
            path: scenario.job.clone(),
            ingress: Some(cell.setting.between()),
            ..Variant::default()
        });
        let cpu = self.cpus.client.first().copied().unwrap_or_default();
        let head = session::head(
            serde_json::to_value(scenario)?,
            cpu,
            Vec::new(),
            variants.collect(),
            scenario.measurement.seed,
        );
        if !output.quiet {
            let mut text = report::streams_opening(scenario, &head, output.verbose)?;
            let in_a_lab = output.verbose && scenario.setting.remote.is_none();
            if let (true, Some(plan)) = (in_a_lab, Local::plan(scenario.setting.over)) {
                text += &format!("lab\n{plan}\n");
            }
            report::write_stderr(&text);
        }
        let mut recorder = Recorder::start(head, output)?;
        for warning in self.warnings() {
            warn(&mut recorder, warning, output)?;
        }
        Ok(recorder)
    }

    fn warnings(&self) -> Vec<Warning> {
        let (_, left_behind) = session::expedite(false).unwrap_or_default();
        doctor::left_behind(&left_behind).into_iter().collect()
    }
}

impl StreamsResult<'_> {
    /// A signal ended it: what was not begun has no line.
    fn stopped(&mut self) {
        self.interrupted = true;
        while self.rows.last().is_some_and(|row| row.runs.is_empty()) {
            self.rows.pop();
        }
    }

    /// Messages that are not accounted for are a no; an interval that is too wide decides nothing.
    fn outcome(&self) -> Outcome {
        let opens = |book: &Ledger| !book.closes() && book.notes.is_empty();
        if self.ledgers.iter().any(|(_, book)| opens(book)) {
            return Outcome::No;
        }
        let known = self.rows.iter().all(|row| row.decision() != Some(Decision::NotAchieved));
        if known && !self.interrupted { Outcome::Good } else { Outcome::Inconclusive }
    }
}

/// Where the datagrams of a run ended. None of other works, and where some were not counted.
fn ledger_of(cell: &StreamCell, run: &RunFigures, grown: Option<&ledger::Grown>) -> Option<Ledger> {
    let plan = &cell.plan;
    let is_counted = plan.transport == Transport::Udp && plan.omit.is_zero();
    let (Work::Bulk { .. }, true, [way]) = (plan.work, is_counted, &run.ways[..]) else { return None };
    let found = way.datagrams?;
    let sent = Count { packets: way.sent?.messages, seen_by: "given to the kernel".into() };
    let mut book = Ledger::new(&cell.name, None, sent);
    book.received.push(Count { packets: found.received, seen_by: "read, each number once".into() });
    ledger::add_counters(&mut book, grown?, &[]);
    if book.unaccounted() != 0 {
        let options = &plan.options.server;
        if plan.send_bytes > WHOLE_BYTES {
            book.notes.push("a message was cut into frames, and counters count those".into());
        } else if options.gro || plan.options.client.gso_segments.is_some() {
            book.notes.push("messages went joined, and counters count what was joined as one".into());
        }
    }
    Some(book)
}

fn said_by_an_end(row: &str, said: &str) -> Warning {
    Warning {
        what: format!("{row}: an end of it warns"),
        fact: said.into(),
        next_step: "what it counted is in the figures; look whether they are of use".into(),
        ..Warning::default()
    }
}

/// Shows a warning and keeps it.
fn warn(recorder: &mut Recorder, warning: Warning, output: &OutputArgs) -> Result<()> {
    if !output.quiet {
        report::write_stderr(&report::warning_line(&warning));
    }
    recorder.warning(warning)
}
