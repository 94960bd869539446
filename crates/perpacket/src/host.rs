//! What this host can do, and which of it a cell takes: the best way in that is there, or the reason why there is
//! none.

use anyhow::{Context, Result, bail, ensure};
use measure::record::CapabilityProbe;
use traffic::{Ability, BackendKind};

use crate::cell::{Cell, Factor, PathName, Setting};
use crate::device;
use crate::environment;
use crate::paths::{self, Ends};
use crate::scenario::Clock;

/// The ways in, probed, and what the kernel's clocks see.
#[derive(Debug, Clone)]
pub(crate) struct Abilities {
    ways: Vec<Ability>,
    /// Whether time in softirqs is in no thread's time; none where the kernel does not say.
    irq_time_accounting: Option<bool>,
    /// CPUs to send from, the measuring one first.
    cpus: Vec<usize>,
}

/// Queueing disciplines that, with their default parameters, hand on every packet that they keep as soon as the device takes
/// it (net/sched/sch_*.c, 6.18): all their work is the sending thread's. `fq` holds back only packets of sockets that
/// have a pacing rate, which a packet socket has not unless it is given one.
const HAND_ON_AT_ONCE: [&str; 16] = [
    "noqueue",
    "pfifo",
    "bfifo",
    "pfifo_head_drop",
    "pfifo_fast",
    "mq",
    "prio",
    "sfq",
    "fq",
    "fq_codel",
    "codel",
    "pie",
    "fq_pie",
    "cake",
    "hhf",
    "blackhole",
];

impl Abilities {
    /// Those of a run that needs nothing of the kernel: none was tried.
    pub(crate) fn in_user_space() -> Self {
        Self { ways: Vec::new(), irq_time_accounting: environment::irq_time_accounting(), cpus: Vec::new() }
    }

    /// Tries each way in as far as that is possible without a device.
    pub(crate) fn probe() -> Self {
        Self {
            ways: traffic::probe(),
            irq_time_accounting: environment::irq_time_accounting(),
            cpus: Vec::new(),
        }
    }

    /// A host that has these ways in, and three CPUs.
    #[cfg(test)]
    pub(crate) fn having(available: &[BackendKind]) -> Self {
        let ability = |kind| {
            let lack = (!available.contains(&kind)).then_some(traffic::Lack::NotBuilt);
            Ability { kind, lack }
        };
        let ways = BackendKind::ALL.map(ability).into();
        Self { ways, irq_time_accounting: Some(false), cpus: Vec::new() }.sending_from(2, &[0, 2, 5])
    }

    /// The same, with the CPUs that may send: the measuring one, and the others that this process may use, from the highest
    /// down.
    #[must_use]
    pub(crate) fn sending_from(mut self, measuring: usize, allowed: &[usize]) -> Self {
        let others = allowed.iter().rev().copied().filter(|&cpu| cpu != measuring);
        self.cpus = std::iter::once(measuring).chain(others).collect();
        self
    }

    /// Why a way in is not there; none where it is.
    pub(crate) fn lacking(&self, kind: BackendKind) -> Option<String> {
        let ability = self.ways.iter().find(|ability| ability.kind == kind)?;
        ability.lack.as_ref().map(ToString::to_string)
    }

    /// The probes as they stand in a record.
    pub(crate) fn as_probes(&self) -> Vec<CapabilityProbe> {
        let probe = |ability: &Ability| CapabilityProbe {
            name: ability.kind.to_string(),
            available: ability.is_available(),
            detail: ability.lack.as_ref().map(ToString::to_string),
            ..CapabilityProbe::default()
        };
        self.ways.iter().map(probe).collect()
    }

    /// The cell with its way in settled, checked against what the path, the clock and the host allow.
    ///
    /// # Errors
    /// What cannot be measured, why, and what would work.
    pub(crate) fn resolve(&self, cell: &Cell, clock: Clock) -> Result<Cell> {
        device::check_memory(std::slice::from_ref(cell), Factor::Nothing)?;
        self.resolve_one(cell, clock)
    }

    fn resolve_one(&self, cell: &Cell, clock: Clock) -> Result<Cell> {
        cell.path.check_frame(cell.frame_bytes)?;
        if cell.path.is_datapath() {
            return self.resolve_datapath(cell);
        }
        check_path(cell, clock)?;
        if let Some(kind) = cell.setting.backend {
            self.check_way(cell, kind, clock)?;
        }
        if paths::about(cell.path).needs_bpf
            && let Some(lacking) = self.lacking(BackendKind::Inject)
        {
            bail!("{} needs BPF programs: {lacking}", cell.path);
        }
        let kind = match cell.setting.backend {
            Some(kind) => match self.lacking(kind) {
                Some(lacking) => bail!("{kind} is not available here: {lacking}"),
                None => kind,
            },
            None => self.best(cell, clock)?,
        };
        let mut resolved = cell.clone();
        resolved.setting.backend = Some(kind);
        resolved.setting.cpus = self.cpus_for(cell.setting.threads)?;
        paths::of(cell.path)?.frame(&resolved).check()?;
        Ok(resolved)
    }

    /// The same for a path in user space, whose frames come from memory on every host.
    fn resolve_datapath(&self, cell: &Cell) -> Result<Cell> {
        device::check(cell)?;
        let mut resolved = cell.clone();
        resolved.setting.backend = Some(BackendKind::Memory);
        resolved.setting.cpus = self.cpus_for(cell.setting.threads)?;
        Ok(resolved)
    }

    /// Both variants of a comparison, resolved, with one way in unless that is the factor: what A cannot take must not
    /// become a second difference between them.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub(crate) fn resolve_pair(&self, cells: [Cell; 2], clock: Clock, vary: Factor) -> Result<[Cell; 2]> {
        let [a, b] = &cells;
        ensure!(
            vary != Factor::Command || !a.path.is_datapath(),
            "--a and --b on {}: it has no network namespace for a command to run in; use --vary, or a path through the kernel",
            a.path
        );
        device::check_memory(&cells, vary)?;
        device::check_contention(&cells, vary)?;
        let resolved = [self.resolve_one(a, clock)?, self.resolve_one(b, clock)?];
        let kinds = [0, 1].map(|arm: usize| resolved[arm].setting.backend);
        if vary == Factor::Backend || kinds[0] == kinds[1] {
            return Ok(resolved);
        }
        let with = |cell: &Cell, kind| {
            let mut cell = cell.clone();
            cell.setting.backend = kind;
            self.resolve_one(&cell, clock)
        };
        let common = kinds.into_iter().find_map(|kind| Some([with(a, kind).ok()?, with(b, kind).ok()?]));
        common.with_context(|| format!("no way into {} takes both variants: name one with --backend", a.path))
    }

    /// Says where a cell's way in is not the one that its path would take first, and why.
    pub(crate) fn fallback(&self, cell: &Cell) -> Option<String> {
        let first = *paths::about(cell.path).ingresses.first()?;
        let taken = cell.setting.backend?;
        let lacking = self.lacking(first)?;
        Some(format!("{first} is not available here ({lacking}); {} goes in by {taken}", cell.path))
    }

    /// The CPUs of so many threads; none where there is only the measuring one.
    fn cpus_for(&self, threads: u32) -> Result<Vec<usize>> {
        let (wanted, there) = (threads as usize, self.cpus.len());
        ensure!(
            wanted == 1 || wanted <= there,
            "threads = {threads}: each needs a CPU of its own, and this process may use {there} ({:?}); use --threads {there} \
             at most",
            self.cpus
        );
        Ok(if wanted == 1 { Vec::new() } else { self.cpus[..wanted].to_vec() })
    }

    /// The first of the path's ways in that the host has and that the cell's setting does not rule out.
    fn best(&self, cell: &Cell, clock: Clock) -> Result<BackendKind> {
        let ingresses = paths::about(cell.path).ingresses;
        let refusal = |kind| self.check_way(cell, kind, clock).err().map(|error| error.to_string());
        let against = |kind: BackendKind| self.lacking(kind).or_else(|| refusal(kind));
        if let Some(kind) = ingresses.iter().copied().find(|&kind| against(kind).is_none()) {
            return Ok(kind);
        }
        let reasons: Vec<String> =
            ingresses.iter().filter_map(|&kind| Some(format!("{kind}: {}", against(kind)?))).collect();
        bail!("no way into {} is available here ({})", cell.path, reasons.join("; "))
    }

    /// Refuses a way in that does not lead into the path, that bypasses what the setting asks for, or whose work the clock
    /// does not see.
    fn check_way(&self, cell: &Cell, kind: BackendKind, clock: Clock) -> Result<()> {
        let Cell { path, setting, .. } = cell;
        let about = paths::about(*path);
        let has_program = matches!(kind, BackendKind::Inject | BackendKind::XdpLive);
        ensure!(
            about.ingresses.contains(&kind),
            "{kind} does not lead into {path}: it takes {}",
            about.ingresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        ensure!(
            !setting.gro || kind != BackendKind::Inject,
            "gro = on with inject: injected frames enter behind NAPI and GRO, so it would cost nothing here; use \
             --backend mmsg (or tx-ring, af-xdp, xdp-live)"
        );
        ensure!(
            kind != BackendKind::XdpLive || about.ends != Ends::Stack || setting.gro,
            "xdp-live into {path} with GRO and XDP off on the receiving veth: every frame would be lost there (veth \
             takes redirected frames only with NAPI on, veth_xdp_xmit); use --gro on, or --backend inject"
        );
        ensure!(
            setting.spin == 0 || has_program,
            "spin = {} with {kind}: the added work is in the injecting program; use --backend inject or xdp-live",
            setting.spin
        );
        ensure!(
            !setting.has_qdisc()
                || matches!(kind, BackendKind::Mmsg | BackendKind::TxRing | BackendKind::Udp),
            "qdisc = {} with {kind}: its frames meet no queueing discipline ({}); use --backend mmsg, tx-ring or udp",
            setting.qdisc,
            match kind {
                BackendKind::Inject => "they are received, not sent",
                BackendKind::XdpLive => "a redirect hands them to the driver",
                _ => "AF_XDP hands them to the driver, __dev_direct_xmit in net/xdp/xsk.c",
            }
        );
        ensure!(
            setting.batch == Setting::default().batch
                || has_program
                || matches!(kind, BackendKind::Mmsg | BackendKind::Udp),
            "batch = {} with {kind}: it hands frames over as its ring has room; use --backend inject, xdp-live, mmsg or udp",
            setting.batch
        );
        ensure!(
            !setting.gso || kind == BackendKind::Udp,
            "gso = on with {kind}: its frames are whole, and nothing is left to be cut; use --backend udp"
        );
        ensure!(
            clock == Clock::Machine
                || self.irq_time_accounting != Some(true)
                || !about.works_in_softirq(kind),
            "{path} by {kind} with the clock `thread`: this kernel (CONFIG_IRQ_TIME_ACCOUNTING) keeps the time in softirqs \
             out of it, and that is where its packets are received; use --clock machine --time 2min"
        );
        Ok(())
    }
}

/// Refuses what a path's packets do not meet, whatever the way in, and what the clock cannot see. Each message says
/// what would work.
fn check_path(cell: &Cell, clock: Clock) -> Result<()> {
    let Cell { path, setting, .. } = cell;
    let about = paths::about(*path);
    let ends = about.ends;
    device::refuse_in_the_kernel(*path, setting)?;
    ensure!(
        setting.rules == 0 || about.filtered,
        "rules = {} on {path}: its packets do not pass the packet filter; use raw-drop, forward or udp",
        setting.rules
    );
    ensure!(
        !setting.gro || ends == Ends::Stack,
        "gro = on on {path}: its packets end before GRO; use raw-drop, forward or udp"
    );
    ensure!(
        setting.threads == 1 || *path != PathName::Udp,
        "threads = {} on {path}: the measuring thread alone reads its sockets, after each call, when the others have \
         ended: senders and reader would never meet; use raw-drop, forward or udp-noport",
        setting.threads
    );
    ensure!(
        !setting.has_qdisc() || clock == Clock::Machine || HAND_ON_AT_ONCE.contains(&setting.qdisc.as_str()),
        "qdisc = {} with the clock `thread`: it may hold packets back and send them later, in time that this clock does \
         not see, and would look like a saving; use --clock machine --time 2min, or one of {}",
        setting.qdisc,
        HAND_ON_AT_ONCE.join(" ")
    );
    if setting.rps_mask()? == 0 {
        return Ok(());
    }
    ensure!(
        ends == Ends::Stack,
        "rps = {} on {path}: its packets end before steering; use raw-drop, forward or udp",
        setting.rps
    );
    ensure!(
        clock == Clock::Machine,
        "rps = {} with the clock `thread`: steering moves work to CPUs whose time this clock does not see, and \
         would look like a saving; use --clock machine --time 2min (busy time of all CPUs, slices of a second)",
        setting.rps
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(available: &[BackendKind]) -> Abilities {
        Abilities::having(available)
    }

    fn cell(path: PathName, setting: Setting) -> Cell {
        Cell { path, frame_bytes: 64, setting }
    }

    fn refusal(path: PathName, setting: Setting) -> String {
        host(&BackendKind::ALL).resolve(&cell(path, setting), Clock::Thread).unwrap_err().to_string()
    }

    #[test]
    fn the_best_way_that_is_there_is_taken() {
        let plain = cell(PathName::RawDrop, Setting::default());
        let best = |host: &Abilities| host.resolve(&plain, Clock::Thread).unwrap().setting.backend.unwrap();
        assert_eq!(best(&host(&BackendKind::ALL)), BackendKind::Inject);
        assert_eq!(best(&host(&[BackendKind::TxRing])), BackendKind::TxRing);
        let error = host(&[]).resolve(&plain, Clock::Thread).unwrap_err().to_string();
        assert!(error.contains("inject: it is not in this version; mmsg: "), "{error}");
        let error =
            host(&[BackendKind::Mmsg]).resolve(&cell(PathName::TcDrop, Setting::default()), Clock::Thread);
        assert!(error.unwrap_err().to_string().contains("needs BPF programs"));
        let spinning = cell(PathName::RawDrop, Setting { spin: 1, ..Setting::default() });
        let error = host(&[BackendKind::Mmsg]).resolve(&spinning, Clock::Thread).unwrap_err().to_string();
        assert!(error.contains("spin = 1 with mmsg"), "{error}");
    }

    #[test]
    fn what_the_way_in_bypasses_or_the_clock_misses_is_refused() {
        let backend = |kind| Setting { backend: Some(kind), ..Setting::default() };
        let spinning = Setting { spin: 1, ..backend(BackendKind::Mmsg) };
        let steered = Setting { rps: "0x2".into(), ..Setting::default() };
        let queued = |kind: &str, backend| Setting { qdisc: kind.into(), backend, ..Setting::default() };
        let together = |threads| Setting { threads, ..Setting::default() };
        for (path, setting, what_would_work) in [
            (PathName::RawDrop, backend(BackendKind::XdpLive), "use --gro on, or --backend inject"),
            (PathName::RawDrop, Setting { gro: true, ..backend(BackendKind::Inject) }, "use --backend mmsg"),
            (PathName::RawDrop, spinning, "use --backend inject"),
            (PathName::RawDrop, steered.clone(), "use --clock machine"),
            (PathName::XdpDrop, steered, "use raw-drop"),
            (PathName::XdpDrop, Setting { gro: true, ..Setting::default() }, "use raw-drop"),
            (PathName::Floor, Setting { gro: true, ..Setting::default() }, "use raw-drop"),
            (PathName::Bridge, Setting { rules: 1, ..Setting::default() }, "use raw-drop"),
            (PathName::XdpDrop, backend(BackendKind::Inject), "it takes xdp-live"),
            (PathName::RawDrop, queued("fq", Some(BackendKind::Inject)), "use --backend mmsg"),
            (PathName::XdpDrop, queued("fq", Some(BackendKind::AfXdp)), "use --backend mmsg"),
            (PathName::XdpDrop, queued("fq", Some(BackendKind::XdpLive)), "use --backend mmsg"),
            (PathName::Floor, queued("fq", None), "no way into floor"),
            (PathName::RawDrop, queued("tbf", None), "use --clock machine"),
            (PathName::RawDrop, together(4), "use --threads 3 at most"),
            (PathName::Udp, together(2), "use raw-drop"),
            (PathName::XdpDrop, backend(BackendKind::Udp), "it takes xdp-live"),
            (PathName::Forward6, backend(BackendKind::Udp), "udp does not lead into forward6"),
            (PathName::RawDrop, Setting { gso: true, ..backend(BackendKind::Mmsg) }, "use --backend udp"),
            (PathName::RawDrop, Setting { spin: 1, ..backend(BackendKind::Udp) }, "use --backend inject"),
        ] {
            let error = refusal(path, setting);
            assert!(error.contains(what_would_work), "{path}: {error}");
        }
    }

    #[test]
    fn each_thread_gets_a_cpu_and_the_lab_a_queue_for_it() {
        let all = host(&BackendKind::ALL);
        let resolved = |threads| {
            let setting = Setting { threads, ..Setting::default() };
            all.resolve(&cell(PathName::RawDrop, setting), Clock::Thread).unwrap()
        };
        assert_eq!((resolved(1).setting.cpus, resolved(1).setting.veth_queues()), (vec![], None));
        assert_eq!((resolved(2).setting.cpus, resolved(2).setting.veth_queues()), (vec![2, 5], Some(6)));
        let plan = paths::lay(&resolved(3)).unwrap().to_string();
        assert!(plan.contains("g0 in gen (02:00:00:00:01:01, 6 queues)"), "{plan}");
    }

    #[test]
    fn a_queueing_discipline_is_met_by_both_variants_or_it_is_the_difference() {
        let pair = ["none", "pfifo"]
            .map(|kind| cell(PathName::RawDrop, Setting { qdisc: kind.into(), ..Setting::default() }));
        let resolved = host(&BackendKind::ALL).resolve_pair(pair, Clock::Thread, Factor::Qdisc).unwrap();
        assert_eq!(resolved.clone().map(|cell| cell.setting.backend), [Some(BackendKind::Mmsg); 2]);
        let plans = resolved.map(|cell| paths::lay(&cell).unwrap().to_string());
        assert!(!plans[0].contains("queue what"), "{}", plans[0]);
        assert!(plans[1].contains("in gen, queue what g0 sends by pfifo\n"), "{}", plans[1]);
    }

    #[test]
    fn sockets_are_taken_where_only_they_can_and_have_a_way_to_the_end_of_each_path() {
        let plan = |path, setting| {
            let resolved = host(&BackendKind::ALL).resolve(&cell(path, setting), Clock::Thread).unwrap();
            assert_eq!(resolved.setting.backend, Some(BackendKind::Udp), "{path}");
            paths::lay(&resolved).unwrap().to_string()
        };
        let by_udp = || Setting { backend: Some(BackendKind::Udp), ..Setting::default() };
        let gso = plan(PathName::RawDrop, Setting { gso: true, ..Setting::default() });
        assert!(gso.contains("UDP segmentation"), "{gso}");
        let routed = plan(PathName::Forward, by_udp());
        assert!(routed.contains("in gen, route 198.18.2.0/24 via 198.18.0.2"), "{routed}");
        let switched = plan(PathName::Bridge, by_udp());
        assert!(switched.contains("in gen, route 198.18.2.0/24"), "{switched}");
        assert!(switched.contains("198.18.2.1") && switched.contains("02:00:00:00:02:02"), "{switched}");
        let near = plan(PathName::Udp, Setting { qdisc: "pfifo".into(), ..by_udp() });
        assert!(!near.contains("198.18.2") && near.contains("queue what g0 sends by pfifo"), "{near}");
    }

    #[test]
    fn the_way_in_does_not_become_a_second_difference() {
        let pair = [true, false].map(|gro| cell(PathName::RawDrop, Setting { gro, ..Setting::default() }));
        let all = host(&BackendKind::ALL);
        let resolved = all.resolve_pair(pair.clone(), Clock::Thread, Factor::Gro).unwrap();
        assert_eq!(
            resolved.map(|cell| (cell.setting.backend, cell.setting.gro)),
            [(Some(BackendKind::Mmsg), true), (Some(BackendKind::Mmsg), false)]
        );
        let kinds = [BackendKind::Inject, BackendKind::AfXdp];
        let pair =
            kinds.map(|kind| cell(PathName::RawDrop, Setting { backend: Some(kind), ..Setting::default() }));
        let resolved = all.resolve_pair(pair, Clock::Thread, Factor::Backend).unwrap();
        assert_eq!(resolved.map(|cell| cell.setting.backend), kinds.map(Some));

        let rings = [1, 64].map(|batch| {
            cell(
                PathName::RawDrop,
                Setting { batch, backend: Some(BackendKind::TxRing), ..Setting::default() },
            )
        });
        let error = all.resolve_pair(rings, Clock::Thread, Factor::Batch).unwrap_err().to_string();
        assert!(error.contains("use --backend inject"), "{error}");
    }
}
