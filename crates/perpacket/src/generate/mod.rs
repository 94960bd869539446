//! The generator: packets that a person describes, over any backend, at the rate asked for, and what really left.
//!
//! ```text
//! Source     the program compiled, or the capture file opened
//!  └ way     the backend: the best that packets, target and host allow
//!  └ Place   the lab or device, and the counters at both sides of it
//!  └ Worker  one thread each: a Generator, which sends when packets are due
//!  └ Sending what was sent, what the kernel counted, the gaps: reported and kept
//! ```

mod capture;
mod file;
mod look;
mod pktgen;
mod place;
mod source;
mod way;
pub(crate) mod workers;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use linux::{clock, cpu};
use measure::gaps::Gaps;
use measure::ledger::{Count, Ledger};
use measure::record::{Extra, Generated, GeneratedBy, Summary, Variant, Warning};
use traffic::{BackendKind, Pace};

use crate::cli::OutputArgs;
use crate::host::Abilities;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Outcome};
use crate::scenario::{Generate, TIME_S, Target};
use crate::stop::{Deadline, Stop};
use crate::{doctor, environment, session};

use place::{Counted, Place};
use way::Way;
use workers::Done;

pub(crate) use look::look;
pub(crate) use source::{FLAGS, compile, period, read_program};

/// Why packets of xdp-live may be missing.
const XDP_LIVE_HINT: &str = "a veth takes redirected packets only if its other end has NAPI on: `ethtool -K PEER gro on` there, or an XDP \
                             program; other devices need a driver with ndo_xdp_xmit. The other backends need neither";

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;

/// Time that a run at a rate has to catch up after the end of its time: a part of it, and some more, in seconds.
const GRACE_SHARE: f64 = 0.02;
const GRACE_S: f64 = 0.2;

/// What was asked for and the packets of it, ready to be sent.
struct Job<'a> {
    scenario: &'a Generate,
    source: source::Source,
    cpus: Vec<usize>,
    /// Packets per second of all workers together.
    pps: Option<f64>,
    /// Packets of all workers together; none: until the time is up.
    count: Option<u64>,
}

/// What was sent, and what the kernel says to it.
pub(crate) struct Sending {
    /// What every worker did, and the sums.
    pub(crate) generated: Generated,
    /// The gaps of all workers.
    pub(crate) gaps: Option<Gaps>,
    /// Where the packets ended; none where no kernel has seen them.
    pub(crate) ledger: Option<Ledger>,
    /// By how many packets the counter of the device differs from what was sent, in a lab, where nobody else sends.
    pub(crate) disagreement: Option<i64>,
    /// Packets that were to be sent; none where the time decided.
    pub(crate) wanted: Option<u64>,
    /// What may be the reason where packets are missing.
    pub(crate) hint: Option<String>,
    /// Whether a signal ended it.
    pub(crate) interrupted: bool,
    /// Why workers ended early.
    pub(crate) failures: Vec<String>,
}

/// Sends what the scenario says, and reports.
pub(crate) fn run(scenario: &Generate, output: &OutputArgs) -> Result<Outcome> {
    if let Target::File(path) = scenario.target() {
        return file::write(scenario, &path, output);
    }
    if scenario.target() == Target::Lab {
        session::enter_own_network()?;
    }
    let stop = Stop::listen()?;
    let job = Job::prepare(scenario)?;
    drop(cpu::set_nice(session::PRIORITY));
    let abilities = Abilities::probe();
    let way = way::choose(&job, &abilities)?;
    let kernel_sends = matches!(way.kind, BackendKind::Inject | BackendKind::XdpLive);
    let (_expedited, left_behind) = session::expedite(scenario.host.expedite && kernel_sends)?;

    let mut recorder = start_record(&job, &way, &abilities, output)?;
    let mut warnings = doctor::left_behind(&left_behind);
    warnings.extend(job.source.warnings(scenario));
    warnings.extend(way.fallback.clone());
    if way.kind == BackendKind::Pktgen {
        warnings.extend(pktgen::warnings(&job));
    }
    if way.kind == BackendKind::Udp {
        warnings.push(Warning {
            what: "UDP sockets send payloads".into(),
            fact: "addresses and ports are the packets'; MAC addresses, TTL, TOS, identification and checksums are the \
                   kernel's, whatever the packets say"
                .into(),
            next_step: "every other backend sends packets as they are".into(),
            ..Warning::default()
        });
    }
    for warning in warnings {
        if !output.quiet {
            report::write_stderr(&report::warning_line(&warning));
        }
        recorder.warning(warning)?;
    }
    let steal = environment::steal_ticks();
    let outcome = send(&job, &way, &abilities, &stop, output).and_then(|sending| {
        if let Some(book) = &sending.ledger {
            recorder.ledger(book)?;
        }
        recorder.summary(Summary { generated: Some(sending.generated.clone()), ..Summary::default() })?;
        if report::prints_text(output.json.as_deref()) {
            report::write_stdout(&report::sending_text(&sending, output.verbose))?;
        }
        Ok(judge(&sending, scenario.send.strict))
    });
    session::finish(recorder, outcome, &stop, steal, output)
}

impl<'a> Job<'a> {
    /// Compiles or opens what is sent, and settles how many packets each worker has and how fast.
    fn prepare(scenario: &'a Generate) -> Result<Self> {
        let source = source::Source::open(scenario)?;
        let allowed = cpu::allowed()?;
        let threads = scenario.send.threads as usize;
        let cpus = match &scenario.send.cpus[..] {
            // The last CPUs: the first ones take most of the interrupts.
            [] => (0..threads).map(|number| allowed[allowed.len() - 1 - number % allowed.len()]).collect(),
            named => named.to_vec(),
        };
        if let Some(other) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            anyhow::bail!("CPU {other} is not allowed to this process; allowed: {allowed:?}");
        }
        let pps = scenario.rate()?.map(|rate| rate.pps(source.mean_l2_bytes()));
        let by_time =
            pps.zip(scenario.send.time_s).map(|(pps, seconds)| (pps * seconds).round().max(1.0) as u64);
        let count = [scenario.send.count, by_time, source.count()].into_iter().flatten().min();
        let shortest = source.shortest_l2_bytes();
        ensure!(
            shortest >= ETHERNET_BYTES || matches!(scenario.target(), Target::File(_)),
            "packets of {shortest} bytes have no Ethernet header ({ETHERNET_BYTES} bytes), and no device takes them"
        );
        Ok(Self { scenario, source, cpus, pps, count })
    }

    /// When packets are due, those of all workers together, where a rate was asked for.
    fn pace(&self) -> Option<Pace> {
        Some(Pace { start_ns: 0, interval_ns: 1e9 / self.pps? })
    }

    /// How long is sent at most. At a rate a count ends the run, and what is left when the time is up is what a delay held
    /// back: it has a little longer.
    fn time(&self) -> Duration {
        let asked = self.scenario.send.time_s.unwrap_or(*TIME_S.end());
        let grace = if self.pps.is_some() { GRACE_S + GRACE_SHARE * asked } else { 0.0 };
        Duration::from_secs_f64(asked + grace)
    }

    /// Packets that must be sent, or the run has not done what it was asked for. A time asks for none.
    fn wanted(&self) -> Option<u64> {
        let send = &self.scenario.send;
        if send.time_s.is_some() { None } else { send.count.or(self.source.count()) }
    }

    /// Packets of worker number `worker` of `workers`.
    fn share(&self, worker: usize, workers: usize) -> Option<u64> {
        let (count, worker, workers) = (self.count?, worker as u64, workers as u64);
        Some(count / workers + u64::from(worker < count % workers))
    }
}

/// Builds the place, opens the workers, lets them send, and counts.
fn send(
    job: &Job<'_>,
    way: &Way,
    abilities: &Abilities,
    stop: &Stop,
    output: &OutputArgs,
) -> Result<Sending> {
    let target = job.scenario.target();
    let longest = job.source.longest_l2_bytes();
    let mut place = match &target {
        Target::Lab => {
            // One for each CPU: a veth gives what a CPU sends to the queue of its number.
            let queues = cpu::allowed()?.last().map_or(1, |last| last + 1).max(job.cpus.len()) as u32;
            Some(Place::lab(way.kind, longest, queues, abilities.lacking(BackendKind::XdpLive).is_none())?)
        }
        Target::Device(name) => Some(Place::device(name, way.kind, longest)?),
        Target::Memory | Target::File(_) => None,
    };
    let workers = way::open_workers(job, way, place.as_ref())?;
    ensure!(!workers.is_empty(), "the program has no packet for any of the {} threads", job.cpus.len());
    let deadline = Deadline::after(job.time());
    let mut progress = Progress::new(output);
    let start = clock::monotonic_ns();
    let mut live = report::Live::new(job.pps, job.source.mean_l2_bytes());
    let (netns, mut meter) = match &mut place {
        Some(place) => (place.home.netns(), Some(&mut place.meter)),
        None => (None, None),
    };
    let done = workers::run(workers, netns, |confirmed| {
        let seconds = (clock::monotonic_ns() - start) as f64 / 1e9;
        let share = job.count.map_or(0.0, |count| confirmed as f64 / count as f64).max(deadline.share());
        if let Some(line) = live.line(seconds, confirmed, || Some(meter.as_mut()?.counted().ok()?.dropped)) {
            progress.show(share, &line);
        }
        stop.asked() || deadline.passed()
    })?;
    progress.clear();
    let counted = place.as_mut().map(|place| place.meter.counted()).transpose();
    let mut failures: Vec<String> = counted.as_ref().err().map(report::chain).into_iter().collect();
    failures.extend(job.source.failure());
    let mut sending = Sending::new(job, way, done, place.zip(counted.unwrap_or_default()));
    sending.failures.extend(failures);
    Ok(Sending { interrupted: stop.asked(), ..sending })
}

impl Sending {
    fn new(job: &Job<'_>, way: &Way, done: Vec<Done>, counted: Option<(Place, Counted)>) -> Self {
        let packets = done.iter().map(|done| done.sent.confirmed).sum();
        let gaps = done.iter().filter_map(|done| done.gaps.as_ref()).fold(None::<Gaps>, |sum, gaps| {
            let mut sum = sum.unwrap_or_default();
            sum.add(gaps);
            Some(sum)
        });
        let workers: Vec<GeneratedBy> = done
            .iter()
            .map(|done| GeneratedBy {
                cpu: u32::try_from(done.cpu).unwrap_or(u32::MAX),
                packets: done.sent.confirmed,
                l2_bytes: job.source.l2_bytes(done.number, done.sent.confirmed),
                wall_ns: done.wall_ns,
                cpu_ns: done.cpu_ns,
                calls: u64::from(done.sent.calls),
                extra: Extra::new(),
            })
            .collect();
        let generated = Generated {
            packets,
            l2_bytes: workers.iter().map(|worker| worker.l2_bytes).sum(),
            wall_ns: workers.iter().map(|worker| worker.wall_ns).max().unwrap_or(0),
            asked_pps: job.pps,
            grain: done.iter().filter_map(|done| done.grain).max(),
            gaps: gaps.as_ref().map(|gaps| gaps.values().collect()),
            workers,
            extra: Extra::new(),
        };
        let sent = Count { packets, seen_by: way.seen_by().into() };
        let ledger: Option<Ledger> = counted
            .as_ref()
            .map(|(place, counted)| counted.ledger(sent, &place.name, job.source.frame_bytes()));
        let is_open = ledger.as_ref().is_some_and(|book| !book.closes());
        let hint = (is_open && way.kind == BackendKind::XdpLive).then(|| XDP_LIVE_HINT.to_owned());
        Self {
            generated,
            gaps,
            ledger,
            hint,
            disagreement: counted.as_ref().and_then(|(_, counted)| counted.disagreement(packets)),
            wanted: job.wanted(),
            interrupted: false,
            failures: done.iter().filter_map(|done| done.error.as_ref()).map(report::chain).collect(),
        }
    }

    /// Packets that were sent against those that were due by the end, as a share: 0 is exact. None without a rate.
    pub(crate) fn rate_error(&self) -> Option<f64> {
        let g = &self.generated;
        let interval_ns = 1e9 / g.asked_pps? * g.workers.len() as f64;
        let due: f64 =
            g.workers.iter().map(|worker| (worker.wall_ns as f64 / interval_ns).floor() + 1.0).sum();
        Some(g.packets as f64 / due - 1.0)
    }

    /// Whether the rate that was asked for was held, to a thousandth or to a packet of each worker.
    pub(crate) fn rate_held(&self) -> bool {
        let one_packet = self.generated.workers.len() as f64 / self.generated.packets.max(1) as f64;
        self.rate_error().is_none_or(|error| error.abs() <= one_packet.clamp(0.001, 0.01))
    }
}

/// Good when all that was asked for was sent, and every packet of it is accounted for.
fn judge(sending: &Sending, strict: bool) -> Outcome {
    let closes = sending.ledger.as_ref().is_none_or(|book| book.closes() && book.dropped_packets() == 0)
        && sending.disagreement.is_none();
    let sent = sending.generated.packets;
    let is_whole = sending.wanted.is_none_or(|wanted| sent == wanted);
    let in_order = closes && sending.failures.is_empty() && (sending.rate_held() || !strict);
    match (in_order, is_whole) {
        (true, true) => Outcome::Good,
        // A person ended it before all was sent.
        (true, false) if sending.interrupted => Outcome::Inconclusive,
        _ => Outcome::No,
    }
}

/// Starts the record, and says what is going to happen.
fn start_record(job: &Job<'_>, way: &Way, abilities: &Abilities, output: &OutputArgs) -> Result<Recorder> {
    let scenario = job.scenario;
    let mut settings = BTreeMap::from([("threads".to_owned(), scenario.send.threads.to_string())]);
    settings.extend(scenario.send.rate.clone().map(|rate| ("rate".to_owned(), rate)));
    let variant = Variant {
        name: "gen".into(),
        path: "gen".into(),
        frame_bytes: job.source.frame_bytes(),
        backend: Some(way.kind.to_string()),
        settings,
        ..Variant::default()
    };
    let head = session::head(
        serde_json::to_value(scenario)?,
        job.cpus[0],
        abilities.as_probes(),
        vec![variant],
        scenario.packets.seed,
    );
    if !output.quiet {
        report::write_stderr(&report::generator_opening(
            scenario,
            &head,
            way.kind,
            &job.cpus,
            output.verbose,
        )?);
    }
    Recorder::start(head, output)
}

/// A warning that is told and kept.
fn warning(what: &str, fact: String, next_step: &str) -> Warning {
    Warning { what: what.into(), fact, next_step: next_step.into(), ..Warning::default() }
}
