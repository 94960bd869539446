//! How packets get in: by the same way with both settings, unless that is what differs.

use anyhow::{Result, bail, ensure};
use measure::record::Warning;
use traffic::BackendKind;

use super::setting::{FlowFactor, FlowSetting, OFF};
use crate::host::Abilities;
use crate::scenario::{Dut, Flows};

/// The ways, the best one first where none is asked for. AF_XDP and redirects are taken only where they are asked for: the
/// first needs a driver's help to be fast, and the second polling at the receiving end.
const BEST: [BackendKind; 3] = [BackendKind::Inject, BackendKind::Mmsg, BackendKind::TxRing];
/// Those into a device in user space, whose socket polls.
const BEST_IN_USER_SPACE: [BackendKind; 3] = [BackendKind::XdpLive, BackendKind::Mmsg, BackendKind::TxRing];

/// The settings of a scenario with their way in.
///
/// # Errors
/// Where the way asked for is not there, or bypasses what is asked for; or where no way takes both settings.
pub(super) fn settle(scenario: &Flows, abilities: &Abilities) -> Result<(Vec<FlowSetting>, Option<Warning>)> {
    settle_by(scenario, &|kind| abilities.lacking(kind))
}

/// The same, with what says why a way is not there.
fn settle_by(
    scenario: &Flows,
    lacking: &dyn Fn(BackendKind) -> Option<String>,
) -> Result<(Vec<FlowSetting>, Option<Warning>)> {
    let mut settings = scenario.settings()?;
    let varies = scenario.compare.as_ref().map(|compare| compare.vary);
    for setting in &settings {
        let Some(kind) = setting.backend else { continue };
        if let Some(lacking) = lacking(kind) {
            bail!("{kind} is not available here: {lacking}");
        }
        if let Some(refusal) = obstacle(setting, kind, scenario.dut) {
            bail!("{refusal}; use --backend mmsg (or tx-ring)");
        }
    }
    if settings.iter().all(|setting| setting.backend.is_some()) {
        return Ok((settings, None));
    }
    ensure!(varies != Some(FlowFactor::Backend), "backend: name the way of both settings");
    let against = |kind: BackendKind| {
        lacking(kind).or_else(|| settings.iter().find_map(|setting| obstacle(setting, kind, scenario.dut)))
    };
    let best = if scenario.dut == Dut::Datapath { BEST_IN_USER_SPACE } else { BEST };
    let Some(kind) = best.into_iter().find(|&kind| against(kind).is_none()) else {
        let reasons: Vec<String> =
            best.iter().filter_map(|&kind| Some(format!("{kind}: {}", against(kind)?))).collect();
        bail!("no way in is available here ({})", reasons.join("; "));
    };
    let fallback = against(best[0]).filter(|_| kind != best[0]).map(|why| Warning {
        what: format!("packets go in by {kind}, whose cost is in every figure"),
        fact: format!("{}: {why}", best[0]),
        next_step: "compare with runs by the same way only".into(),
        ..Warning::default()
    });
    settings.iter_mut().for_each(|setting| setting.backend = Some(kind));
    Ok((settings, fallback))
}

/// Why packets of this setting cannot go in this way.
fn obstacle(setting: &FlowSetting, kind: BackendKind, dut: Dut) -> Option<String> {
    match kind {
        BackendKind::Inject if dut == Dut::Datapath => Some(
            "inject with dut = datapath: injected packets enter behind the device's driver, where the device in user space does not \
             get them"
                .into(),
        ),
        BackendKind::Inject => setting.bypassed_by_inject(),
        BackendKind::XdpLive if setting.xps != OFF => Some(
            "xps with xdp-live: redirected frames go by the ring of the CPU that sends (drivers/net/veth.c, veth_xdp_xmit, 6.18), so it \
             would change nothing"
                .into(),
        ),
        BackendKind::AfXdp if setting.xps != OFF => Some(
            "xps with af-xdp: its socket names the queue itself (net/core/dev.c, __dev_direct_xmit, 6.18), so it would change nothing"
                .into(),
        ),
        BackendKind::Udp if setting.source_count() > 1 => Some(format!(
            "udp with {} source addresses: a socket sends from an address of its host, and the lab has one",
            setting.source_count()
        )),
        BackendKind::Udp
        | BackendKind::XdpLive
        | BackendKind::Mmsg
        | BackendKind::TxRing
        | BackendKind::AfXdp => None,
        other => Some(format!("{other} does not send these packets into a lab")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{FLOWS_JOB, FlowCompare, FlowLoad, FlowMeasurement, HostUse, SCHEMA};

    fn scenario(vary: Option<(FlowFactor, &str, &str)>, setting: FlowSetting) -> Flows {
        Flows {
            schema: SCHEMA.into(),
            job: FLOWS_JOB.into(),
            dut: Dut::Kernel,
            load: FlowLoad { packets: 1, stamp: true, closed_ports: 0 },
            setting,
            measurement: FlowMeasurement { runs: 1, seed: 0 },
            host: HostUse::default(),
            compare: vary.map(|(vary, a, b)| FlowCompare { vary, a: a.into(), b: b.into() }),
        }
    }

    fn kinds(scenario: &Flows, there: &[BackendKind]) -> Result<Vec<BackendKind>> {
        let lacking = |kind| (!there.contains(&kind)).then(|| "not there".to_owned());
        let (settings, _) = settle_by(scenario, &lacking)?;
        Ok(settings.iter().filter_map(|setting| setting.backend).collect())
    }

    #[test]
    fn both_settings_go_in_by_one_way() {
        use BackendKind::{Inject, Mmsg, TxRing};
        let all = [Inject, Mmsg, TxRing];
        let rps = scenario(Some((FlowFactor::Rps, "off", "0x1")), FlowSetting::default());
        assert_eq!(kinds(&rps, &all).unwrap(), [Inject, Inject]);
        assert_eq!(kinds(&rps, &[TxRing]).unwrap(), [TxRing, TxRing]);
        let gro = scenario(Some((FlowFactor::Gro, "off", "on")), FlowSetting::default());
        assert_eq!(kinds(&gro, &all).unwrap(), [Mmsg, Mmsg]);
        let both = scenario(Some((FlowFactor::Backend, "inject", "mmsg")), FlowSetting::default());
        assert_eq!(kinds(&both, &all).unwrap(), [Inject, Mmsg]);
        assert!(kinds(&rps, &[]).unwrap_err().to_string().contains("inject: not there; mmsg: not there"));
    }

    #[test]
    fn what_the_way_in_bypasses_is_refused() {
        let by_inject = FlowSetting { backend: Some(BackendKind::Inject), ..FlowSetting::default() };
        for (factor, value) in [
            (FlowFactor::Gro, "on"),
            (FlowFactor::BusyPoll, "50"),
            (FlowFactor::PreferBusyPoll, "on"),
            (FlowFactor::Threaded, "on"),
            (FlowFactor::Xps, "0x1"),
        ] {
            let vary = scenario(Some((factor, "off", value)), by_inject.clone());
            let error = kinds(&vary, &BackendKind::ALL).unwrap_err().to_string();
            assert!(error.contains("with inject") && error.contains("use --backend mmsg"), "{error}");
        }
        for (kind, name) in [(BackendKind::XdpLive, "xdp-live"), (BackendKind::AfXdp, "af-xdp")] {
            let by = FlowSetting { backend: Some(kind), ..FlowSetting::default() };
            let error =
                kinds(&scenario(Some((FlowFactor::Xps, "off", "0x1")), by.clone()), &BackendKind::ALL);
            assert!(error.unwrap_err().to_string().contains(&format!("xps with {name}")));
            assert!(kinds(&scenario(None, by), &BackendKind::ALL).is_ok());
        }
    }
}
