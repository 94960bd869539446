//! What this host can do, and which of it a cell takes: the best way in that is there, or the reason why there is
//! none.

use anyhow::{Result, bail, ensure};
use measure::record::CapabilityProbe;
use traffic::{Ability, BackendKind};

use crate::paths::PathName;
use crate::scenario::{Cell, Clock};

/// The largest frame that fits the lab's devices: an MTU of 1,500, the Ethernet header and the FCS.
const FRAME_BYTES_MAX: u32 = 1_518;

/// The ways in, probed.
#[derive(Debug, Clone)]
pub(crate) struct Abilities {
    ways: Vec<(BackendKind, Ability)>,
}

impl Abilities {
    /// Tries each way in as far as that is possible without a device.
    pub(crate) fn probe() -> Self {
        Self { ways: BackendKind::ALL.into_iter().map(|kind| (kind, traffic::probe(kind))).collect() }
    }

    /// Why a way in is not there; none where it is.
    pub(crate) fn lacking(&self, kind: BackendKind) -> Option<String> {
        let (_, ability) = self.ways.iter().find(|(known, _)| *known == kind)?;
        ability.lack.as_ref().map(ToString::to_string)
    }

    /// The probes as they stand in a record.
    pub(crate) fn as_probes(&self) -> Vec<CapabilityProbe> {
        let probe = |(kind, ability): &(BackendKind, Ability)| CapabilityProbe {
            name: kind.to_string(),
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
        let about = cell.path.about();
        if about.needs_bpf
            && let Some(lacking) = self.lacking(BackendKind::Inject)
        {
            bail!("{} needs BPF programs, and this process cannot load them: {lacking}", cell.path);
        }
        let wanted = match cell.setting.backend {
            Some(kind) => self.check_backend(cell, kind)?,
            None => self.best(cell)?,
        };
        let mut resolved = cell.clone();
        resolved.setting.backend = Some(wanted);
        check_setting(&resolved, wanted, clock)?;
        cell.path.path().frame(&resolved).check()?;
        Ok(resolved)
    }

    fn check_backend(&self, cell: &Cell, kind: BackendKind) -> Result<BackendKind> {
        let valid = cell.path.about().ingresses;
        ensure!(
            valid.contains(&kind),
            "{kind} does not lead into {}: it takes {}",
            cell.path,
            valid.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        match self.lacking(kind) {
            Some(lacking) => bail!("{kind} is not available here: {lacking}"),
            None => Ok(kind),
        }
    }

    /// The first of the path's ways in that the host has and that the cell's setting does not rule out.
    fn best(&self, cell: &Cell) -> Result<BackendKind> {
        let ingresses = cell.path.about().ingresses;
        let suits = |kind: &BackendKind| match kind {
            // Both need more than the common lab has, or bypass what is asked for.
            BackendKind::Inject => !cell.setting.gro,
            BackendKind::XdpLive => true,
            _ => cell.setting.spin == 0,
        };
        let available = |kind: &BackendKind| self.lacking(*kind).is_none();
        if let Some(kind) = ingresses.iter().copied().find(|kind| suits(kind) && available(kind)) {
            return Ok(kind);
        }
        let reasons: Vec<String> =
            ingresses.iter().filter_map(|&kind| Some(format!("{kind}: {}", self.lacking(kind)?))).collect();
        bail!("no way into {} is available here ({})", cell.path, reasons.join("; "))
    }
}

/// Refuses what a cell's way in bypasses, and what the clock cannot see. Each message says what would work.
fn check_setting(cell: &Cell, kind: BackendKind, clock: Clock) -> Result<()> {
    let setting = &cell.setting;
    let about = cell.path.about();
    let injected = matches!(kind, BackendKind::Inject | BackendKind::XdpLive);
    let into_the_driver = matches!(cell.path, PathName::Floor | PathName::XdpDrop | PathName::XdpTx);
    ensure!(
        (64..=FRAME_BYTES_MAX).contains(&cell.frame_bytes),
        "frame size {}: the lab's devices take 64 to {FRAME_BYTES_MAX} bytes (with the 4-byte FCS; MTU 1,500)",
        cell.frame_bytes
    );
    ensure!(
        setting.rules == 0 || about.filtered,
        "rules = {} on {}: its packets do not pass the packet filter; use raw-drop, forward or udp",
        setting.rules,
        cell.path
    );
    ensure!(
        !setting.gro || kind != BackendKind::Inject,
        "gro = on with inject: injected frames enter behind NAPI and GRO, so it would cost nothing here; use \
         --backend mmsg (or tx-ring, af-xdp, xdp-live)"
    );
    ensure!(
        kind != BackendKind::XdpLive || into_the_driver || setting.gro,
        "xdp-live into {} with GRO and XDP off on the receiving veth: every frame would be lost there (veth takes \
         redirected frames only with NAPI on, veth_xdp_xmit); use --gro on, or --backend inject",
        cell.path
    );
    ensure!(
        setting.spin == 0 || injected,
        "spin = {} with {kind}: the added work is in the injecting program; use --backend inject or xdp-live",
        setting.spin
    );
    check_steering(cell, into_the_driver, clock)
}

fn check_steering(cell: &Cell, into_the_driver: bool, clock: Clock) -> Result<()> {
    if cell.setting.rps_mask()? == 0 {
        return Ok(());
    }
    ensure!(
        !into_the_driver,
        "rps = {} on {}: its packets end before steering; use raw-drop, forward or udp",
        cell.setting.rps,
        cell.path
    );
    ensure!(
        clock == Clock::Machine,
        "rps = {} with the clock `thread`: steering moves work to CPUs whose time this clock does not see, and \
         would look like a saving; use --clock machine (busy time of all CPUs, slices of a second)",
        cell.setting.rps
    );
    Ok(())
}
