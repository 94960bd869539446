//! Which CPUs work on packets: settings of the lab's devices, and those that belong to the host.

use anyhow::{Context, Result};
use lab::journal::Guard;
use lab::{HostSettings, Lab, Plan};
use linux::cpu;

use super::setting::FlowSetting;
use crate::paths::SYS;

/// What is set before the devices exist.
pub(super) fn plan(setting: &FlowSetting, plan: &mut Plan) {
    if let Ok(mask @ 1..) = setting.rps_mask() {
        plan.rps_mask(SYS, &format!("{mask:x}"));
    }
}

/// Queues of both ends of the veth pair: one for each CPU where sending CPUs are to have their own.
pub(super) fn queues(setting: &FlowSetting) -> u32 {
    let cpus = || cpu::allowed().ok().and_then(|cpus| cpus.last().copied()).map_or(1, |last| last as u32 + 1);
    if setting.xps_mask().is_ok_and(|mask| mask != 0) { cpus() } else { 1 }
}

/// Steers the lab's devices and the host, and checks that it holds.
pub(super) fn apply(setting: &FlowSetting, _lab: &Lab, host: Option<&HostSettings>) -> Result<Vec<Guard>> {
    let mut held = Vec::new();
    let mut hold = |path: &str, value: String| -> Result<()> {
        let host = host.with_context(|| format!("set {path} to {value}: it belongs to the host, and only root may"))?;
        held.push(host.hold(path, &value).with_context(|| format!("set {path} to {value} for the run"))?);
        Ok(())
    };
    if let Some(packets) = setting.backlog {
        hold("/proc/sys/net/core/netdev_max_backlog", packets.to_string())?;
    }
    Ok(held)
}

/// Whether anything of the host is changed.
pub(crate) fn needs_host(setting: &FlowSetting) -> bool {
    setting.backlog.is_some() || setting.rfs > 0 || setting.flow_limit_mask().is_ok_and(|mask| mask != 0)
}
