//! Paced UDP flows into one socket and thread a port: what share arrives, where the rest went, and what steering changes.
//!
//! ```text
//! Ways       how packets get in: the same for both settings, unless that is what differs
//!  └ Arena   a lab for one run: sender, device and host steered, receivers; or UserArena, with a device in user space
//!     └ run  send, drain, count; account says where each packet ended
//!  └ figures of the runs of each setting, and the difference of two
//!  └ report/flows
//! ```

mod account;
mod arena;
mod figures;
mod reading;
mod receivers;
mod rows;
mod setting;
mod steering;
mod user;
mod ways;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::HostSettings;
use linux::cpu;
use measure::ledger::Ledger;
use measure::order::Seed;
use measure::record::{FlowRun, Summary, Variant, Warning};
use traffic::BackendKind;

use crate::cli::OutputArgs;
use crate::host::Abilities;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome, OutputFile};
use crate::scenario::{Dut, Flows};
use crate::stop::Stop;
use crate::trial::Load;
use crate::{doctor, environment, session};

pub(crate) use arena::{Arena, Blueprint, FlowTrial};
pub(crate) use figures::{Figures, FlowsResult, longest_gap_ns, paused};
pub(crate) use setting::{FlowFactor, FlowSetting, two_values};
pub(crate) use steering::{borrowed_host, not_put_back};
use user::UserArena;
pub(crate) use user::refusal as refusal_in_user_space;

/// A run of the command, settled.
struct Job<'a> {
    scenario: &'a Flows,
    /// One for each setting.
    blueprints: Vec<Blueprint>,
    /// What is asked of the sender with each setting.
    loads: Vec<Load>,
    /// Where settings of the host are borrowed; none where none is.
    host: Option<HostSettings>,
    stop: Stop,
}

/// Runs what the scenario says, and reports. `svg` is where the plot goes.
pub(crate) fn run(scenario: &Flows, svg: Option<&Path>, output: &OutputArgs) -> Result<Outcome> {
    report::each_its_own_file(&[("--json", output.json.as_deref()), ("--svg", svg)])?;
    let svg = svg.map(OutputFile::open).transpose()?;
    session::enter_own_network()
        .context("make a network namespace without root; run as root, or allow user namespaces")?;
    let stop = Stop::listen()?;
    let abilities = Abilities::probe();
    let (mut job, fallback) = Job::settle(scenario, &abilities, stop)?;
    // Receivers and sender take over the priority of this thread.
    drop(cpu::set_nice(session::PRIORITY));
    let (expedited, left_behind) = session::expedite(scenario.host.expedite && job.kernel_sends())?;
    job.borrow_host()?;

    let (mut recorder, of_host) = job.start_record(&abilities, output)?;
    let mut warnings = doctor::left_behind(&left_behind);
    warnings.extend(of_host);
    warnings.extend(fallback);
    warnings.extend(job.warnings());
    for warning in warnings {
        recorder.warn(warning)?;
    }
    let steal = environment::steal_ticks();
    let measured = job.measure(&mut recorder, output);
    for warning in steering::changed_meanwhile(job.host.as_ref()) {
        recorder.warn(warning)?;
    }
    let outcome = measured.and_then(|result| {
        recorder.summary(Summary { flows: Some(result.flows.clone()), ..Summary::default() })?;
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&report::flows_text(&result, output.verbose))?;
        }
        if let Some(file) = svg {
            file.write(&report::flows_svg(&result))?;
        }
        Ok(result.outcome())
    });
    if let Some(warning) = session::give_back(expedited) {
        recorder.warn(warning)?;
    }
    session::finish(recorder, outcome, &job.stop, steal, output)
}

impl<'a> Job<'a> {
    /// Settles the way in and the CPUs. A warning where the way is not the one that would be taken first.
    fn settle(scenario: &'a Flows, abilities: &Abilities, stop: Stop) -> Result<(Self, Option<Warning>)> {
        let allowed = cpu::allowed()?;
        let sender_cpu =
            scenario.host.cpu.or(allowed.last().copied()).context("no CPU is allowed to this process")?;
        ensure!(
            allowed.contains(&sender_cpu),
            "CPU {sender_cpu} is not allowed to this process; allowed: {allowed:?}"
        );
        let mut receiver_cpus: Vec<usize> = allowed.into_iter().filter(|&cpu| cpu != sender_cpu).collect();
        if receiver_cpus.is_empty() {
            receiver_cpus.push(sender_cpu);
        }
        let (settings, fallback) = ways::settle(scenario, abilities)?;
        settings.iter().try_for_each(|setting| steering::check(setting, scenario.dut))?;
        let napi = settings
            .iter()
            .any(|setting| setting.needs_napi() || setting.backend == Some(BackendKind::XdpLive));
        let connected = settings.iter().any(|setting| setting.rfs > 0);
        let loads = settings
            .iter()
            .map(|setting| Ok(Load { pps: setting.pps()?, packets: scenario.load.packets }))
            .collect::<Result<_>>()?;
        let blueprint = |setting| Blueprint {
            dut: scenario.dut,
            setting,
            napi,
            stamp: scenario.load.stamp,
            connected,
            imix: false,
            closed_ports: scenario.load.closed_ports,
            sender_cpu,
            receiver_cpus: receiver_cpus.clone(),
        };
        let blueprints = settings.into_iter().map(blueprint).collect();
        Ok((Self { scenario, blueprints, loads, host: None, stop }, fallback))
    }

    /// Whether programs in the kernel send, whose calls wait for grace periods of RCU.
    fn kernel_sends(&self) -> bool {
        let kinds = self.blueprints.iter().filter_map(|blueprint| blueprint.setting.backend);
        kinds.into_iter().any(|kind| matches!(kind, BackendKind::Inject | BackendKind::XdpLive))
    }

    /// Opens the journal where a setting of the host is changed.
    fn borrow_host(&mut self) -> Result<()> {
        let of_kernel = |blueprint: &&Blueprint| blueprint.dut == Dut::Kernel;
        for blueprint in self.blueprints.iter().filter(of_kernel) {
            if self.host.is_none() {
                self.host = borrowed_host(&blueprint.setting)?;
            }
        }
        Ok(())
    }

    /// All runs: those of a repetition one after the other, in random order.
    fn measure(&self, recorder: &mut Recorder, output: &OutputArgs) -> Result<FlowsResult> {
        let mut order = Seed(self.scenario.measurement.seed).order();
        let mut progress = Progress::new(output);
        let mut result = FlowsResult::new(self.scenario, &self.blueprints);
        for repetition in 0..self.scenario.measurement.runs {
            let mut variants: Vec<usize> = (0..self.blueprints.len()).collect();
            order.shuffle(&mut variants);
            for variant in variants {
                let mut warnings = Vec::new();
                let done = self.run_once(variant, repetition, &mut progress, &result, &mut warnings);
                for warning in warnings {
                    recorder.warn(warning)?;
                }
                let (run, book) = done?;
                recorder.ledger(&book)?;
                result.add(run, book);
                // Of long commands not every run, or the record would grow with their square.
                if result.flows.runs.len().is_power_of_two() {
                    let flows = Some(result.flows.clone());
                    recorder.summary(Summary { flows, ..Summary::default() })?;
                }
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

    /// Builds the lab of a setting, sends into it, and takes it down again.
    fn run_once(
        &self,
        variant: usize,
        repetition: u32,
        progress: &mut Progress,
        before: &FlowsResult,
        warnings: &mut Vec<Warning>,
    ) -> Result<(FlowRun, Ledger)> {
        let name = self.scenario.name(variant);
        let what = || format!("run {} of {name}", repetition + 1);
        let (blueprint, load) = (&self.blueprints[variant], self.loads[variant]);
        let (done, all) =
            (before.flows.runs.len(), self.blueprints.len() * self.scenario.measurement.runs as usize);
        let watch = |sent| {
            let part = sent as f64 / load.packets as f64;
            let share = (done as f64 + part) / all as f64;
            progress.show(share, &format!("run {} of {all}, {name}: {sent} packets sent", done + 1));
        };
        let done = match blueprint.dut {
            Dut::Kernel => Arena::build(blueprint, self.host.as_ref()).and_then(|mut arena| {
                let done = arena.run(&load, &self.stop, watch);
                warnings.extend(arena.finish().iter().map(steering::not_put_back));
                done
            }),
            Dut::Datapath => {
                UserArena::build(blueprint).and_then(|mut arena| arena.run(&load, &self.stop, watch))
            }
        };
        let FlowTrial { mut run, trial } = done.with_context(what)?;
        run.variant = variant as u16;
        run.repetition = repetition;
        let mut book = trial.ledger;
        if self.blueprints.len() > 1 {
            book.notes.push(name);
        }
        Ok((run, book))
    }

    fn warnings(&self) -> Vec<Warning> {
        let settings: Vec<&FlowSetting> = self.blueprints.iter().map(|own| &own.setting).collect();
        let mut warnings = match self.scenario.dut {
            Dut::Kernel => steering::held_by_others(&settings),
            Dut::Datapath => Vec::new(),
        };
        warnings.extend(self.one_cpu());
        warnings
    }

    fn one_cpu(&self) -> Option<Warning> {
        let blueprint = self.blueprints.first()?;
        blueprint.receiver_cpus.contains(&blueprint.sender_cpu).then(|| Warning {
            what: "sender and receivers share a CPU".into(),
            fact: format!("CPU {} is the only one that this process may use", blueprint.sender_cpu),
            next_step: "give it a second one: what is lost here is lost because of that".into(),
            ..Warning::default()
        })
    }

    /// Starts the record, and says what is going to happen. What makes this host noisy.
    fn start_record(&self, abilities: &Abilities, output: &OutputArgs) -> Result<(Recorder, Vec<Warning>)> {
        let variants = self.blueprints.iter().enumerate().map(|(index, blueprint)| {
            let setting = &blueprint.setting;
            Variant {
                name: self.scenario.name(index),
                path: "flows".into(),
                frame_bytes: Some(setting.frame),
                ingress: setting.backend.map(|kind| blueprint.ingress(kind)),
                backend: setting.backend.map(|kind| kind.to_string()),
                settings: arena::settings_of(setting),
                ..Variant::default()
            }
        });
        let head = session::head(
            serde_json::to_value(self.scenario)?,
            self.blueprints[0].sender_cpu,
            abilities.as_probes(),
            variants.collect(),
            self.scenario.measurement.seed,
        );
        if !output.quiet {
            let mut text = report::flows_opening(self.scenario, &head, &self.blueprints, output.verbose)?;
            if output.verbose {
                for (variant, blueprint) in self.blueprints.iter().enumerate() {
                    text += &format!("lab of {}\n{}\n", self.scenario.name(variant), blueprint.plan()?);
                }
            }
            report::write_stderr(&text);
        }
        let warnings = doctor::warnings(&head.environment);
        Ok((Recorder::start(head, output)?, warnings))
    }
}
