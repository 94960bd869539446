//! One file a command: from arguments to a scenario, and from there to the outcome.

pub(crate) mod ab;
pub(crate) mod alloc;
pub(crate) mod datapath;
pub(crate) mod doctor;
pub(crate) mod flows;
pub(crate) mod generate;
pub(crate) mod path;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod sink;
pub(crate) mod stream;
pub(crate) mod wire;

use std::time::Duration;

use anyhow::{Context, Result};

use crate::cell::{PathName, Setting, parse_backend, parse_switch};
use crate::cli::{HostArgs, SettingArgs, SliceArgs};
use crate::scenario::{HostUse, Measurement};
use crate::session::fresh_seed;

/// Packets in a slice where nothing else is asked for and all paths are in user space: there a packet costs a tenth of
/// what it costs in the kernel, and a slice is to last as long.
const SLICE_IN_USER_SPACE: u64 = 50_000;

/// Packets in a slice where nothing else is asked for; `in_kernel` where a path goes through the kernel.
fn usual_slice(paths: &[PathName], in_kernel: u64) -> u64 {
    if paths.iter().all(|path| path.is_datapath()) { SLICE_IN_USER_SPACE } else { in_kernel }
}

impl SettingArgs {
    /// The setting that the arguments describe.
    pub(crate) fn resolve(&self) -> Result<Setting> {
        Ok(Setting {
            backend: self.backend.as_deref().map(parse_backend).transpose()?,
            flows: self.flows.unwrap_or(Setting::default().flows),
            rules: self.rules,
            batch: self.batch,
            gro: parse_switch("gro", &self.gro)?,
            gso: parse_switch("gso", &self.gso)?,
            rps: self.rps.clone(),
            spin: self.spin,
            qdisc: self.qdisc.clone(),
            threads: self.threads,
            alloc: self.device.alloc,
            rx: self.device.rx,
            lock: self.device.lock,
            queues: self.device.queues,
            prefixes: self.device.prefixes,
            cpus: Vec::new(),
        })
    }
}

impl SliceArgs {
    /// How it is measured, within `time`, to `precision`; in slices of `packets` where nothing else is asked for.
    pub(crate) fn resolve(&self, time: Duration, precision: f64, packets: u64) -> Result<Measurement> {
        Ok(Measurement {
            packets: self.packets.unwrap_or(packets),
            clock: self.clock.parse().context("--clock")?,
            time_s: time.as_secs_f64(),
            precision,
            seed: self.seed.unwrap_or_else(fresh_seed),
        })
    }
}

impl HostArgs {
    /// What is asked of the host.
    pub(crate) fn resolve(&self) -> HostUse {
        HostUse { cpu: self.cpu, expedite: !self.no_expedite }
    }
}
