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
use measure::record::{StreamRow, StreamRun, Streams as Recorded, Summary, Variant, Warning};
use stream::outcome::Interval;
use stream::plan::{Ends, Plan, Transport, Work};

use crate::cli::OutputArgs;
use crate::cli::stream::Format;
use crate::ledger;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome};
use crate::scenario::Streams;
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
    /// How the end that answers is called, and its address; none over UNIX sockets.
    pub(crate) answering: Option<(String, SocketAddr)>,
    /// Of rows whose datagrams are accounted for, each with its row.
    pub(crate) ledgers: Vec<(usize, Ledger)>,
    pub(crate) interrupted: bool,
    recorded: Recorded,
}

/// A run of the command, settled.
struct Job<'a> {
    scenario: &'a Streams,
    plans: Vec<Plan>,
    cpus: Ends<Vec<usize>>,
    format: Format,
    stop: Stop,
}

/// Runs what the scenario says, and reports.
pub(crate) fn run(scenario: &Streams, format: Format, output: &OutputArgs) -> Result<Outcome> {
    let plans = scenario.plans()?;
    let is_local = scenario.setting.remote.is_none();
    local::check(&plans, if is_local { 2 } else { 1 })?;
    if is_local && scenario.setting.over != Over::Unix {
        session::enter_own_network()
            .context("make a network namespace without root; run as root, or allow user namespaces")?;
    }
    let setting = &scenario.setting;
    // Each of two hosts has all its CPUs to itself.
    let cpus = match is_local {
        true => Ends { client: setting.local_cpus.clone(), server: setting.remote_cpus.clone() },
        false => Ends::default(),
    };
    let job = Job { scenario, plans, cpus, format, stop: Stop::listen()? };
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
        let wanted = scenario.measurement.confidence;
        let setting = &scenario.setting;
        let mut arranging = match &setting.remote {
            None => Arranging::Local(Local::build(setting.over)?),
            Some(remote) => Arranging::Host(Box::new(Host::find(remote, setting.over)?)),
        };
        let mut progress = Progress::new(output);
        let mut result = StreamsResult {
            scenario,
            rows: Vec::new(),
            plans: self.plans.clone(),
            answering: arranging.answering(),
            ledgers: Vec::new(),
            interrupted: false,
            recorded: Recorded::default(),
        };
        for (index, (&row, plan)) in scenario.work.iter().zip(&self.plans).enumerate() {
            result.rows.push(RowResult::new(row, wanted));
            while result.rows[index].wants_more(scenario.measurement.runs) {
                let run = result.rows[index].runs.len();
                let share = index as f64 / self.plans.len() as f64;
                progress.show(share, &format!("{row}, run {}", run + 1));
                let arranged = match self.run_once(&mut arranging, row, plan, output) {
                    // What the other end does not hear to its end is no run.
                    Err(_) if self.stop.asked() => {
                        progress.clear();
                        result.rows.retain(|row| !row.runs.is_empty());
                        result.interrupted = true;
                        return Ok(result);
                    }
                    arranged => arranged.with_context(|| format!("run {} of {row}", run + 1))?,
                };
                self.keep(&mut result, index, arranged, recorder, output)?;
                if self.stop.asked() {
                    progress.clear();
                    result.interrupted = true;
                    return Ok(result);
                }
            }
        }
        progress.clear();
        Ok(result)
    }

    fn run_once(
        &self,
        arranging: &mut Arranging,
        row: Row,
        plan: &Plan,
        output: &OutputArgs,
    ) -> Result<Arranged> {
        let on_interval = |interval: &Interval| {
            if !output.quiet && self.format == Format::Table {
                report::write_stderr(&report::interval_line(row, interval));
            }
        };
        arranging.exchange(&Asked {
            plan,
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
        let (plan, row) = (&self.plans[index], &mut result.rows[index]);
        let Arranged { exchanged, beside, grown } = arranged;
        let repetition = row.runs.len() as u32;
        let figures = RunFigures::of(plan, &self.cpus, &exchanged);
        for said in exchanged.client.warnings.iter().chain(&exchanged.server.warnings) {
            warn(recorder, said_by_an_end(&row.row.to_string(), said), output)?;
        }
        if let Some(book) = self.ledger(plan, row.row, &figures, grown.as_ref()) {
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
        recorded.rows.truncate(index);
        recorded.rows.push(means);
        // Of long commands not every run, or the record would grow with their square.
        if recorded.runs.len().is_power_of_two() {
            recorder.summary(Summary { streams: Some(recorded.clone()), ..Summary::default() })?;
        }
        Ok(())
    }

    /// Where the datagrams of a run ended. None of other works, and where some were not counted.
    fn ledger(
        &self,
        plan: &Plan,
        row: Row,
        run: &RunFigures,
        grown: Option<&ledger::Grown>,
    ) -> Option<Ledger> {
        let is_counted = plan.transport == Transport::Udp && plan.omit.is_zero();
        let (Work::Bulk { .. }, true, [way]) = (plan.work, is_counted, &run.ways[..]) else { return None };
        let found = way.datagrams?;
        let sent = Count { packets: way.sent?.messages, seen_by: "given to the kernel".into() };
        let mut book = Ledger::new(&row.to_string(), None, sent);
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

    /// Starts the record, and says what is going to happen.
    fn start_record(&self, output: &OutputArgs) -> Result<Recorder> {
        let scenario = self.scenario;
        let variants = scenario.work.iter().map(|row| Variant {
            name: row.to_string(),
            path: scenario.job.clone(),
            ingress: Some(scenario.setting.between()),
            ..Variant::default()
        });
        let cpu = self.cpus.client.first().copied().unwrap_or_default();
        let head = session::head(
            serde_json::to_value(scenario)?,
            cpu,
            Vec::new(),
            variants.collect(),
            session::fresh_seed(),
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
