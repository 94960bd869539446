//! Which CPUs work on packets: settings of the lab's devices, and those that belong to the host.

use anyhow::{Context, Result, bail};
use lab::journal::{Changed, Guard, Held, JournalError};
use lab::steering::{CpuMask, DeviceSteering, HostSteering, QueueMasks};
use lab::{HostSettings, Lab, Plan};
use linux::{cpu, cpumask, privilege};
use measure::record::Warning;

use super::setting::{FlowSetting, OFF};
use crate::paths::{GEN, INGRESS, INGRESS_PEER, SYS};
use crate::scenario::Dut;

/// What lets receivers alone poll a device: how long its interrupts stay off after they stopped, in ns, and after how many polls
/// without a packet that time begins (Documentation/networking/napi.rst, "Software IRQ coalescing", 6.18).
const POLL_TIMEOUT_NS: u64 = 2_000_000;
const EMPTY_POLLS: u32 = 2;

/// What is set before the devices exist: all that an ordinary user may.
pub(super) fn plan(setting: &FlowSetting, plan: &mut Plan) -> Result<()> {
    if let QueueMasks::All(mask) = setting.rps_masks()?
        && !mask.is_empty()
        && !privilege::full()
    {
        plan.rps_mask(SYS, &mask.to_string());
    }
    Ok(())
}

/// Queues of both ends of the veth pair: one for each CPU where sending CPUs are to have their own, or as many as masks are given.
pub(super) fn queues(setting: &FlowSetting) -> Result<u32> {
    let given = |masks: &QueueMasks| match masks {
        QueueMasks::Each(masks) => masks.len() as u32,
        QueueMasks::All(_) => 1,
    };
    let xps = setting.xps_masks()?;
    let most = given(&setting.rps_masks()?).max(given(&xps));
    match &xps {
        QueueMasks::All(mask) if !mask.is_empty() => {
            Ok(cpu::allowed()?.last().map_or(1, |last| last + 1).max(2) as u32)
        }
        _ => Ok(most),
    }
}

/// Steers the lab's devices and the host, and checks that it holds.
pub(super) fn apply(setting: &FlowSetting, lab: &Lab, host: Option<&HostSettings>) -> Result<Vec<Guard>> {
    receiving(setting)?.apply(lab, SYS, INGRESS)?;
    let sending =
        DeviceSteering { xps_cpus: Some(setting.xps_masks()?).filter(is_set), ..DeviceSteering::default() };
    sending.apply(lab, GEN, INGRESS_PEER)?;
    let steering = of_host(setting)?;
    if steering.is_empty() {
        return Ok(Vec::new());
    }
    let host =
        host.context("rfs, flow-limit and backlog belong to the host, and only its root may set them")?;
    Ok(steering.hold(host)?)
}

fn is_set(masks: &QueueMasks) -> bool {
    *masks != QueueMasks::All(CpuMask::none())
}

/// What is set of the receiving device: also where [`plan`] has done so before, so that it is read back, and so that an ordinary user
/// is told where it takes more.
fn receiving(setting: &FlowSetting) -> Result<DeviceSteering> {
    let queues = queues(setting)?;
    Ok(DeviceSteering {
        rps_cpus: Some(setting.rps_masks()?).filter(is_set),
        rps_flow_cnt: (setting.rfs > 0).then(|| setting.rfs.div_ceil(queues)),
        threaded: setting.threaded.then_some(true),
        gro_flush_timeout_ns: setting.prefer_busy_poll.then_some(POLL_TIMEOUT_NS),
        napi_defer_hard_irqs: setting.prefer_busy_poll.then_some(EMPTY_POLLS),
        ..DeviceSteering::default()
    })
}

/// Refuses masks with CPUs that there are not, before anything is built.
pub(super) fn check(setting: &FlowSetting, dut: Dut) -> Result<()> {
    let (there, whose) = match dut {
        Dut::Kernel => (cpumask::possible()?, "is not in this machine"),
        Dut::Datapath => (CpuMask::of(cpu::allowed()?), "is not allowed to this process"),
    };
    let each = |masks: QueueMasks| match masks {
        QueueMasks::All(mask) => vec![mask],
        QueueMasks::Each(masks) => masks,
    };
    let flow_limit = if dut == Dut::Kernel { setting.flow_limit_mask()? } else { CpuMask::none() };
    for (name, text, masks) in [
        ("rps", &setting.rps, each(setting.rps_masks()?)),
        ("xps", &setting.xps, each(setting.xps_masks()?)),
        ("flow-limit", &setting.flow_limit, vec![flow_limit]),
    ] {
        let other = masks.iter().flat_map(CpuMask::cpus).find(|&cpu| !there.contains(cpu));
        if let Some(cpu) = other {
            let all: Vec<String> = there.cpus().map(|cpu| cpu.to_string()).collect();
            bail!("{name} = {text}: CPU {cpu} {whose}, which has CPU {}", all.join(", "));
        }
    }
    Ok(())
}

/// What other runs hold of the host that a setting does not ask for, and that it would be measured with.
pub(super) fn held_by_others(settings: &[&FlowSetting]) -> Vec<Warning> {
    if !privilege::full() {
        return Vec::new();
    }
    let held = HostSettings::open_default().and_then(|host| host.held_by_others()).unwrap_or_default();
    let is_asked_for = |held: &Held| {
        let name = held.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        settings.iter().all(|setting| match name.as_str() {
            "netdev_max_backlog" => setting.backlog.is_some(),
            "rps_sock_flow_entries" => setting.rfs > 0,
            "flow_limit_cpu_bitmap" | "flow_limit_table_len" => setting.flow_limit != OFF,
            // Not of steering.
            _ => !held.path.starts_with("/proc/sys/net/core"),
        })
    };
    let warning = |held: Held| {
        Warning {
        what: "another run has changed a setting of the host, and this one is measured with it".into(),
        fact: format!("{} = {}, held by {}", held.path.display(), held.value, held.holder),
        next_step: "wait until that run is over, or ask for a value here: at the same one it is shared, at another one refused".into(),
        ..Warning::default()
    }
    };
    held.into_iter().filter(|held| !is_asked_for(held)).map(warning).collect()
}

/// What could not be put back of the host.
pub(crate) fn not_put_back(error: &JournalError) -> Warning {
    Warning {
        what: "a setting of the host was not put back after the run".into(),
        fact: error.to_string(),
        next_step: "the next start of perpacket tries again, as does perpacket doctor: look at what it says"
            .into(),
        ..Warning::default()
    }
}

/// What somebody changed while it was borrowed.
pub(super) fn changed_meanwhile(host: Option<&HostSettings>) -> Vec<Warning> {
    let warning = |own: Changed| {
        Warning {
        what: "somebody changed a setting of the host during the run, which was measured in part with another value".into(),
        fact: format!(
            "{}: {} was set for the run, {} was found and has been left; before the run it was {}",
            own.path.display(),
            own.applied,
            own.now,
            own.before
        ),
        next_step: "measure again; write the value of before back where the new one is not wanted".into(),
        ..Warning::default()
    }
    };
    host.map_or(Vec::new(), |host| host.take_changed().into_iter().map(warning).collect())
}

/// The journal, where a setting changes something of the host.
///
/// # Errors
/// For an ordinary user, or where the journal cannot be opened.
pub(crate) fn borrowed_host(setting: &FlowSetting) -> Result<Option<HostSettings>> {
    if of_host(setting)?.is_empty() {
        return Ok(None);
    }
    HostSettings::open_default().map(Some).context("borrow settings of the host")
}

/// What is changed of the host.
pub(crate) fn of_host(setting: &FlowSetting) -> Result<HostSteering> {
    let flow_limit = setting.flow_limit_mask()?;
    Ok(HostSteering {
        rps_sock_flow_entries: (setting.rfs > 0).then_some(setting.rfs),
        flow_limit_cpus: Some(flow_limit).filter(|mask| !mask.is_empty()),
        netdev_max_backlog: setting.backlog,
        ..HostSteering::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_set_and_read_back_whoever_runs_it() {
        for rps in ["0x1", "0x1/0x2"] {
            let setting = FlowSetting { rps: rps.into(), ..FlowSetting::default() };
            assert_eq!(receiving(&setting).unwrap().rps_cpus, Some(rps.parse().unwrap()), "{rps}");
        }
        assert!(receiving(&FlowSetting::default()).unwrap().rps_cpus.is_none());
    }
}
