//! Paced flows into a socket and a thread for each port, as `flows` has them: lost is what one of them lacks.

use anyhow::{Context, Result, bail, ensure};
use traffic::BackendKind;

use super::super::place::Place;
use super::{Cpus, Laid};
use crate::cell::{Cell, Setting};
use crate::flows::{Arena, Blueprint, FlowSetting, borrowed_host};
use crate::host::Abilities;
use crate::scenario::Search;

/// Flows where nothing is asked for: those of experiment E5.
const FLOWS: u16 = 8;
/// The ways in, best first, where none is asked for.
const WAYS: [BackendKind; 3] = [BackendKind::Inject, BackendKind::Mmsg, BackendKind::TxRing];

/// The cell with its way in settled, and so many flows as are usual where it says nothing.
///
/// # Errors
/// Where there is no way in, or what is asked for is not met by flows.
pub(crate) fn resolve(
    mut cell: Cell,
    scenario: &Search,
    abilities: &Abilities,
) -> Result<(Cell, FlowSetting)> {
    let (setting, usual) = (&cell.setting, Setting::default());
    let kept = Setting {
        backend: setting.backend,
        flows: setting.flows,
        batch: setting.batch,
        gro: setting.gro,
        rps: setting.rps.clone(),
        ..usual
    };
    if let Some((name, value)) = setting.changed().into_iter().find(|pair| !kept.changed().contains(pair)) {
        bail!(
            "{name} = {value} on flows: they take backend, flows, gro and rps, and what stands under `The path flows` in the help"
        );
    }
    if cell.setting.flows == Setting::default().flows {
        cell.setting.flows = FLOWS;
    }
    let flows = scenario.with_flows(flow_setting(&cell)?)?;
    flows.check()?;
    ensure!(
        cell.setting.batch == Setting::default().batch,
        "batch = {} on flows: they are paced, and as many are handed over at once as are due; how many a receiver takes at once is \
         --batch of the command flows",
        cell.setting.batch
    );
    cell.setting.flows = flows.flows as u16;
    ensure!(
        flows.rfs == 0 || flows.source_count() == 1,
        "rfs with several flows on a port: the kernel knows the readers of connected sockets alone, and these have one source"
    );
    let against = |kind: BackendKind| {
        let bypassed = flows.bypassed_by_inject().filter(|_| kind == BackendKind::Inject);
        abilities.lacking(kind).or(bypassed)
    };
    let kind = match cell.setting.backend {
        Some(kind) => {
            ensure!(
                WAYS.contains(&kind) || kind == BackendKind::AfXdp,
                "{kind} does not lead into flows: it takes inject, mmsg, tx-ring or af-xdp"
            );
            if let Some(why) = against(kind) {
                bail!("{kind} into flows: {why}");
            }
            kind
        }
        None => match WAYS.into_iter().find(|&kind| against(kind).is_none()) {
            Some(kind) => kind,
            None => bail!("no way into flows is available here: inject, mmsg and tx-ring are lacking"),
        },
    };
    cell.setting.backend = Some(kind);
    Ok((cell, FlowSetting { backend: Some(kind), ..flows }))
}

/// Builds the lab, and starts the receivers.
pub(super) fn lay(place: &Place, mix: bool, cpus: &Cpus) -> Result<Laid> {
    let setting = place.flows.clone().context("the flows are not settled")?;
    let host = borrowed_host(&setting)?;
    let blueprint = Blueprint {
        dut: crate::scenario::Dut::Kernel,
        napi: setting.needs_napi(),
        stamp: false,
        connected: setting.rfs > 0,
        imix: mix,
        closed_ports: 0,
        sender_cpu: cpus.sender,
        receiver_cpus: cpus.others.clone(),
        setting,
    };
    let shared = super::kernel::shared_up_to_the_socket(&place.cell, cpus)?;
    Ok(Laid { course: Box::new(Arena::build(&blueprint, host.as_ref())?), shared })
}

/// The setting as the command `flows` has it. The receive buffer is that of the path `udp`.
fn flow_setting(cell: &Cell) -> Result<FlowSetting> {
    let setting = &cell.setting;
    let usual = FlowSetting::default();
    Ok(FlowSetting {
        backend: setting.backend,
        frame: cell.frame_bytes,
        flows: setting.flows.into(),
        batch: setting.batch,
        rcvbuf: super::reader::BUFFER_BYTES as u64,
        gro: setting.gro,
        rps: if setting.rps_mask()? == 0 { usual.rps } else { setting.rps.clone() },
        ..FlowSetting::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::PathName;

    fn with(setting: Setting, flows: &str) -> Result<(Cell, FlowSetting)> {
        let text = format!(
            "schema = \"perpacket.scenario/1\"\njob = \"search\"\npaths = [\"flows\"]\nframes = [64]\nmin_pps = 10000.0\n\
             max_pps = 20000.0\ntime_s = 120.0\nruns = 1\n[[goals]]\nname = \"NDR\"\nloss_ratio = 0.0\nexceed_ratio = 0.5\n\
             width = 0.01\ninitial_trial_s = 0.5\nfinal_trial_s = 0.5\nduration_sum_s = 5.5\n[flows]\n{flows}"
        );
        let crate::scenario::AnyScenario::Search(scenario) = crate::scenario::AnyScenario::from_toml(&text)?
        else {
            panic!("another job");
        };
        let cell = Cell { path: PathName::Udp, frame_bytes: 64, setting };
        resolve(cell, &scenario, &Abilities::having(&BackendKind::ALL))
    }

    fn resolved(setting: Setting) -> Result<Cell> {
        Ok(with(setting, "")?.0)
    }

    #[test]
    fn flows_take_what_their_command_takes() {
        let (_, flows) = with(
            Setting::default(),
            "ports = \"8\"\nrcvbuf = \"1MiB\"\nreader = \"threads\"\nrfs = \"4096\"\nbacklog = \"500\"",
        )
        .unwrap();
        assert_eq!((flows.rcvbuf, flows.rfs, flows.backlog), (1 << 20, 4_096, Some(500)));
        let few = with(Setting::default(), "ports = \"4\"\nsockets-per-port = \"2\"").unwrap().1;
        assert_eq!((few.port_count(), few.sockets_per_port, few.source_count()), (4, 2, 2));
        let error = with(Setting::default(), "ports = \"4\"\nrfs = \"4096\"").unwrap_err();
        assert!(error.to_string().contains("rfs with several flows on a port"), "{error}");
    }

    #[test]
    fn there_are_eight_flows_and_the_best_way_in() {
        let cell = resolved(Setting::default()).unwrap();
        assert_eq!((cell.setting.flows, cell.setting.backend), (8, Some(BackendKind::Inject)));
        let flows = flow_setting(&cell).unwrap();
        assert_eq!((flows.flows, flows.rps.as_str()), (8, "off"));
        let steered =
            resolved(Setting { rps: "1".into(), flows: 3, gro: true, ..Setting::default() }).unwrap();
        assert_eq!((steered.setting.flows, steered.setting.backend), (3, Some(BackendKind::Mmsg)));
        assert_eq!(flow_setting(&steered).unwrap().rps, "1");
    }

    #[test]
    fn one_flow_is_one_where_it_is_asked_for() {
        let (cell, flows) = with(Setting::default(), "flows = \"1\"").unwrap();
        assert_eq!((cell.setting.flows, flows.flows, flows.port_count()), (1, 1, 1));
    }

    #[test]
    fn what_flows_do_not_meet_is_refused() {
        let refusal = |setting| resolved(setting).unwrap_err().to_string();
        assert!(refusal(Setting { batch: 4, ..Setting::default() }).contains("batch = 4 on flows"));
        assert!(refusal(Setting { rules: 5, ..Setting::default() }).contains("rules = 5 on flows"));
        let bypassed = Setting { gro: true, backend: Some(BackendKind::Inject), ..Setting::default() };
        assert!(refusal(bypassed).contains("gro = on with inject"));
        let other = Setting { backend: Some(BackendKind::XdpLive), ..Setting::default() };
        assert!(refusal(other).contains("does not lead into flows"));
    }
}
