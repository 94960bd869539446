//! Which CPUs work on packets: settings of the lab's devices, and those that belong to the host.

use anyhow::{Context, Result};
use lab::journal::Guard;
use lab::steering::{CpuMask, DeviceSteering, HostSteering, QueueMasks};
use lab::{HostSettings, Lab, Plan};
use linux::{cpu, privilege};

use super::setting::FlowSetting;
use crate::paths::{GEN, INGRESS, INGRESS_PEER, SYS};

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
    let queues = queues(setting)?;
    let is_set = |masks: &QueueMasks| *masks != QueueMasks::All(CpuMask::none());
    let receiving = DeviceSteering {
        rps_cpus: Some(setting.rps_masks()?).filter(|masks| is_set(masks) && privilege::full()),
        rps_flow_cnt: (setting.rfs > 0).then(|| setting.rfs.div_ceil(queues)),
        threaded: setting.threaded.then_some(true),
        gro_flush_timeout_ns: setting.prefer_busy_poll.then_some(POLL_TIMEOUT_NS),
        napi_defer_hard_irqs: setting.prefer_busy_poll.then_some(EMPTY_POLLS),
        ..DeviceSteering::default()
    };
    receiving.apply(lab, SYS, INGRESS)?;
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
