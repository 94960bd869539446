//! What every measuring command does before its first slice: settle what the host can do, where to run, and what to
//! keep; and after its last: say how it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use lab::HostSettings;
use lab::journal::{CleanReport, Guard};
use linux::cpu::{self, Ksoftirqd};
use linux::perf::{Counters, Counts, Event};
use linux::{SyscallError, netns, privilege};
use measure::order::{Order, Seed};
use measure::record::{self, CapabilityProbe, Head, Variant, Warning};
use traffic::BackendKind;

use crate::cell::{Cell, Setting};
use crate::cli::OutputArgs;
use crate::host::Abilities;
use crate::recorder::{self, CounterValues, Recorder};
use crate::report::{self, Outcome};
use crate::rig::Workshop;
use crate::scenario::{Clock, Job, Scenario};
use crate::stop::Stop;
use crate::{doctor, environment, paths};

/// The setting of the host that a run changes: RCU grace periods are expedited, so that an injecting call
/// takes 0.1 ms and not 20 to 30.
const RCU_EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// Nice value of threads that measure or send.
pub(crate) const PRIORITY: i32 = -15;

/// A run in progress.
pub(crate) struct Session<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) output: &'a OutputArgs,
    pub(crate) stop: Stop,
    pub(crate) order: Order,
    pub(crate) counters: CounterSet,
    pub(crate) recorder: Recorder,
    pub(crate) workshop: Workshop,
    steal_before: Option<u64>,
    _expedited: Option<Guard>,
}

/// What the host can do, where the run takes place: settled before the cells are resolved.
pub(crate) struct Ground {
    pub(crate) abilities: Abilities,
    pub(crate) cpu: usize,
    stop: Stop,
}

impl Ground {
    /// Listens to signals, pins this thread and raises its priority. Where a path goes through the kernel, it gets as much
    /// privilege as there is before (a namespace of its own for an ordinary user), and probes the ways in; in user space
    /// no privilege is of any use.
    pub(crate) fn settle(scenario: &Scenario) -> Result<Self> {
        if scenario.needs_kernel() {
            enter_own_network()
                .context("make a network namespace without root; run as root, or allow user namespaces")?;
        }
        let stop = Stop::listen()?;
        let allowed = cpu::allowed()?;
        let wanted =
            scenario.host.cpu.or(allowed.last().copied()).context("no CPU is allowed to this process")?;
        ensure!(
            allowed.contains(&wanted),
            "CPU {wanted} is not allowed to this process; allowed: {allowed:?}"
        );
        cpu::pin(wanted)?;
        // Other work then interrupts a slice less often. An ordinary user may not, and measures all the same.
        drop(cpu::set_nice(PRIORITY));
        let abilities = if scenario.needs_kernel() { Abilities::probe() } else { Abilities::in_user_space() };
        let abilities = abilities.sending_from(wanted, &allowed);
        Ok(Self { abilities, cpu: wanted, stop })
    }
}

impl<'a> Session<'a> {
    /// Expedites RCU where packets are injected, starts the record, and prints what is going to happen.
    pub(crate) fn start(
        ground: Ground,
        scenario: &'a Scenario,
        cells: &[Cell],
        output: &'a OutputArgs,
    ) -> Result<Self> {
        let injects =
            |cell: &Cell| matches!(cell.setting.backend, Some(BackendKind::Inject | BackendKind::XdpLive));
        let (expedited, left_behind) = expedite(scenario.host.expedite && cells.iter().any(injects))?;
        let counters = CounterSet::open(ground.cpu).beside(cells).within(scenario);
        let mut capabilities = ground.abilities.as_probes();
        capabilities.extend(counters.as_probes());
        let variants = cells.iter().enumerate().map(|(index, cell)| variant(index, cell, scenario)).collect();
        let scenario_value = serde_json::to_value(scenario)?;
        let head = head(scenario_value, ground.cpu, capabilities, variants, scenario.measurement.seed);
        if !output.quiet {
            let mut text = report::opening(scenario, &head, ground.cpu, output.verbose)?;
            if output.verbose {
                let in_a_lab = |(cell, _): &(&Cell, &Variant)| !cell.path.is_datapath();
                for (cell, variant) in cells.iter().zip(&head.variants).filter(in_a_lab) {
                    text += &format!("lab of {}\n{}\n", variant.name, paths::lay(cell)?);
                }
            }
            report::write_stderr(&text);
        }
        let mut warnings = doctor::left_behind(&left_behind);
        warnings.extend(doctor::warnings(&head.environment));
        warnings.extend(
            ground.abilities.lacking(BackendKind::Inject).and_then(|why| doctor::without_injection(&why)),
        );
        let recorder = Recorder::start(head, output)?;
        let mut session = Self {
            scenario,
            output,
            stop: ground.stop,
            order: Seed(scenario.measurement.seed).order(),
            counters,
            recorder,
            workshop: Workshop::new(scenario),
            steal_before: environment::steal_ticks(),
            _expedited: expedited,
        };
        for warning in warnings {
            session.warn(warning)?;
        }
        Ok(session)
    }

    /// Shows a warning and keeps it.
    pub(crate) fn warn(&mut self, warning: Warning) -> Result<()> {
        if !self.output.quiet {
            report::write_stderr(&report::warning_line(&warning));
        }
        self.recorder.warning(warning)
    }

    /// Ends the record, also of what could not be done, and says where it is.
    ///
    /// # Errors
    /// The error of the run itself, else that of writing its end.
    pub(crate) fn finish(self, outcome: Result<Outcome>) -> Result<Outcome> {
        finish(self.recorder, outcome, &self.stop, self.steal_before, self.output)
    }

    /// The clock as a record names it.
    pub(crate) fn clock(&self) -> record::Clock {
        match self.scenario.measurement.clock {
            Clock::Thread => record::Clock::ThreadCpu,
            Clock::Machine => record::Clock::AllCpus,
        }
    }

    /// Whether results are for people to read on standard output.
    pub(crate) fn prints(&self) -> bool {
        report::prints_text(self.output.json.as_deref())
    }
}

/// Ends the record, also of what could not be done, and says where it is.
///
/// # Errors
/// The error of the run itself, else that of writing its end.
pub(crate) fn finish(
    recorder: Recorder,
    outcome: Result<Outcome>,
    stop: &Stop,
    steal: Option<u64>,
    output: &OutputArgs,
) -> Result<Outcome> {
    let steal = steal.zip(environment::steal_ticks()).and_then(|(before, after)| after.checked_sub(before));
    let end = recorder::end(&outcome, stop.asked(), steal);
    match outcome {
        Ok(outcome) => {
            if let Some(path) = recorder.end(end)?
                && !output.quiet
            {
                report::write_stderr(&format!("record: {}\n", path.display()));
            }
            Ok(outcome)
        }
        Err(error) => {
            drop(recorder.end(end)); // the first error is the one that is told
            Err(error)
        }
    }
}

/// Time of the measuring CPU's ksoftirqd in ns: packet work that was taken from the measuring thread, and that its clock
/// does not see.
pub(crate) const KSOFTIRQD: &str = "ksoftirqd-ns";

/// Why an event that could be opened is not told.
const USER_ONLY: &str = "counted in user mode only, and packets are worked on in the kernel: as root, or with \
                         kernel.perf_event_paranoid at most 1, it is counted there too";

/// The counters of the measuring thread, read around each slice.
pub(crate) struct CounterSet {
    counters: Counters,
    missing: Vec<(Event, SyscallError)>,
    /// Counted outside of the kernel only, and so no packet's: not told.
    user_only: Vec<Event>,
    /// Those of the CPUs that send; empty where one cannot be found.
    ksoftirqd: Vec<Ksoftirqd>,
    /// Whether other threads send as well: their events are in no counter, so none is told.
    partial: bool,
}

/// Why an event that could be opened is not told where several threads send.
const ONE_THREAD_ONLY: &str = "counted for the measuring thread only, and others send as well";

impl CounterSet {
    /// Opens what this machine has, for the calling thread on `cpu`.
    pub(crate) fn open(cpu: usize) -> Self {
        let (counters, missing) = Counters::open(&Event::ALL);
        let ksoftirqd = Ksoftirqd::find(cpu).into_iter().collect();
        Self { user_only: counters.user_only().collect(), counters, missing, ksoftirqd, partial: false }
    }

    /// The same, for cells of which some have threads that send from other CPUs as well.
    fn beside(mut self, cells: &[Cell]) -> Self {
        let cpus: BTreeSet<usize> =
            cells.iter().flat_map(|cell| cell.setting.cpus.iter().skip(1)).copied().collect();
        self.partial = !cpus.is_empty();
        match cpus.into_iter().map(Ksoftirqd::find).collect::<Option<Vec<_>>>() {
            Some(others) if !self.ksoftirqd.is_empty() => self.ksoftirqd.extend(others),
            _ => self.ksoftirqd.clear(),
        }
        self
    }

    /// The same, for paths of which none goes through the kernel: what is counted in user mode is all that there is, and
    /// ksoftirqd does nothing for them.
    fn within(mut self, scenario: &Scenario) -> Self {
        if !scenario.needs_kernel() {
            self.user_only.clear();
            self.ksoftirqd.clear();
        }
        self
    }

    /// Their values now.
    pub(crate) fn read(&self) -> Reading {
        Reading {
            counts: self.counters.read().ok(),
            ksoftirqd_ns: match self.ksoftirqd[..] {
                [] => None,
                ref threads => threads.iter().map(Ksoftirqd::cpu_ns).sum(),
            },
        }
    }

    /// What was counted since a reading, by name; null for what this machine does not have.
    pub(crate) fn since(&self, before: &Reading) -> CounterValues {
        let now = self.read();
        let counted = now.counts.as_ref().zip(before.counts.as_ref()).map(|(now, before)| now.since(before));
        let whole = |event: &Event| !self.partial && !self.user_only.contains(event);
        let value = |event: Event| Some(counted.as_ref().filter(|_| whole(&event))?.of(event)? as f64);
        let deferred = now
            .ksoftirqd_ns
            .zip(before.ksoftirqd_ns)
            .and_then(|(now, before)| Some(now.checked_sub(before)? as f64));
        let events = Event::ALL.iter().map(|&event| (event.name(), value(event)));
        events.chain([(KSOFTIRQD, deferred)]).collect()
    }

    /// Each counter, and why it is not there.
    pub(crate) fn as_probes(&self) -> Vec<CapabilityProbe> {
        let lacking = |event: &Event| {
            let missing = self.missing.iter().find(|(missing, _)| missing == event);
            let user_only = self.user_only.contains(event).then(|| USER_ONLY.to_owned());
            let partial = self.partial.then(|| ONE_THREAD_ONLY.to_owned());
            missing.map(|(_, why)| why.to_string()).or(user_only).or(partial)
        };
        let probe = |event: &Event| CapabilityProbe {
            name: format!("counter {}", event.name()),
            available: lacking(event).is_none(),
            detail: lacking(event),
            ..CapabilityProbe::default()
        };
        Event::ALL.iter().map(probe).collect()
    }
}

/// The counters at one moment.
#[derive(Debug)]
pub(crate) struct Reading {
    counts: Option<Counts>,
    ksoftirqd_ns: Option<u64>,
}

/// Enters a network in which this process may do what labs need: one in a user namespace of its own for an ordinary
/// user; one of its own for root of a user namespace who is still in the host's network. Does nothing for root of the
/// host. To be called before the first thread is started.
///
/// # Errors
/// Where the system forbids it, with the setting or the limit that does so.
pub(crate) fn enter_own_network() -> Result<(), SyscallError> {
    if !privilege::has(privilege::Capability::NetAdmin) {
        return netns::enter_user_namespace();
    }
    if privilege::in_initial_user_namespace() {
        return Ok(());
    }
    netns::leave_foreign_network().or_else(|_| netns::enter_user_namespace())
}

/// A seed that nobody chose, which a scenario in TOML can hold.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one("seed") >> 32
}

/// The head of a record of a run that starts now and measures on `cpu`.
pub(crate) fn head(
    scenario: serde_json::Value,
    cpu: usize,
    capabilities: Vec<CapabilityProbe>,
    variants: Vec<Variant>,
    seed: u64,
) -> Head {
    let started = Timestamp::now();
    Head {
        id: recorder::new_id(started, fresh_seed()),
        started: started.to_string(),
        program: recorder::program(),
        command: std::env::args().collect(),
        scenario,
        environment: environment::read(cpu),
        capabilities,
        variants,
        seed: Seed(seed),
        extra: record::Extra::new(),
    }
}

/// Puts back what killed runs left, says so, and borrows the setting where it is `wanted`: where packets are injected.
pub(crate) fn expedite(wanted: bool) -> Result<(Option<Guard>, CleanReport)> {
    if !privilege::full() {
        return Ok((None, CleanReport::default()));
    }
    if !wanted {
        // Nothing is borrowed, so the journal is not needed; what a killed run left is put back where that is possible.
        let cleaned = HostSettings::open_default().and_then(|settings| settings.clean());
        return Ok((None, cleaned.unwrap_or_default()));
    }
    let settings = HostSettings::open_default()?;
    let left_behind = settings.clean().context("put back what a killed run left")?;
    let guard = settings
        .hold(RCU_EXPEDITED, "1")
        .context("expedite RCU for the run; --no-expedite measures without, in fewer and longer slices")?;
    Ok((Some(guard), left_behind))
}

/// Gives the setting of [`expedite`] back. A warning where that does not work.
pub(crate) fn give_back(expedited: Option<Guard>) -> Option<record::Warning> {
    let error = expedited?.release().err()?;
    Some(crate::flows::not_put_back(&error))
}

/// A cell as the record names it. Those of a comparison stand in pairs, A first.
fn variant(index: usize, cell: &Cell, scenario: &Scenario) -> Variant {
    let setting = &cell.setting;
    let backend = setting.backend.map(|kind| kind.to_string());
    let arm = if index.is_multiple_of(2) { "A" } else { "B" };
    Variant {
        name: match scenario.job {
            Job::Path => format!("{}/{}", cell.path, cell.frame_bytes),
            Job::Ab if scenario.frames.len() > 1 => format!("{}/{} {arm}", cell.path, cell.frame_bytes),
            Job::Ab => format!("{} {arm}", cell.path),
        },
        path: cell.path.to_string(),
        frame_bytes: Some(cell.frame_bytes),
        ingress: paths::ingress(cell),
        backend,
        settings: if cell.path.is_datapath() { device_settings(setting) } else { lab_settings(setting) },
        ..Variant::default()
    }
}

/// What a lab and its frames are made of.
fn lab_settings(setting: &Setting) -> BTreeMap<String, String> {
    with_cpus(
        setting,
        [
            ("flows", setting.flows.to_string()),
            ("rules", setting.rules.to_string()),
            ("batch", setting.batch.to_string()),
            ("gro", setting.gro.to_string()),
            ("gso", setting.gso.to_string()),
            ("rps", setting.rps.clone()),
            ("spin", setting.spin.to_string()),
            ("qdisc", setting.qdisc.clone()),
            ("threads", setting.threads.to_string()),
        ],
    )
}

/// What a device in user space and its frames are made of.
fn device_settings(setting: &Setting) -> BTreeMap<String, String> {
    with_cpus(
        setting,
        [
            ("flows", setting.flows.to_string()),
            ("batch", setting.batch.to_string()),
            ("threads", setting.threads.to_string()),
            ("alloc", setting.alloc.to_string()),
            ("rx", setting.rx.to_string()),
            ("lock", setting.lock.to_string()),
            ("queues", setting.device_queues().to_string()),
            ("prefixes", setting.prefixes.to_string()),
        ],
    )
}

/// The settings, and the CPUs where there are several.
fn with_cpus<const N: usize>(setting: &Setting, pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    let mut settings: BTreeMap<String, String> =
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    if setting.threads > 1 {
        let cpus: Vec<String> = setting.cpus.iter().map(ToString::to_string).collect();
        settings.insert("cpus".to_owned(), cpus.join(","));
    }
    settings
}
