//! Steering that all devices of all namespaces share.

use std::io;
use std::path::Path;

use linux::cpumask::{self, CpuMask};

use super::{SteeringError, Value, table_length};
use crate::journal::{Guard, HostSettings, JournalError};

/// All of these are registered for the initial network namespace only (`net_core_table`, net/core/sysctl_net_core.c, 6.18).
const FOLDER: &str = "/proc/sys/net/core";

const RFS_TABLE: &str = "rps_sock_flow_entries";
const FLOW_LIMIT_LENGTH: &str = "flow_limit_table_len";
const FLOW_LIMIT_CPUS: &str = "flow_limit_cpu_bitmap";
const BACKLOG: &str = "netdev_max_backlog";
const BUDGET: &str = "netdev_budget";
const BUDGET_TIME: &str = "netdev_budget_usecs";

/// How the host spreads packets over CPUs. None leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSteering {
    /// Flows of which the kernel remembers on which CPU they are consumed (RFS), rounded up to a power of two; 0 switches it off.
    pub rps_sock_flow_entries: Option<u32>,
    /// The CPUs that, when they hand a packet to a backlog that is half full or more, refuse it where its flow has more than half
    /// of the last 128 (`skb_flow_limit`, net/core/dev.c, and FLOW_LIMIT_HISTORY, net/core/dev.h, 6.18): those that take the interrupts, not those that RPS hands over to.
    /// Its counter is lost when this is written, and so when it is put back: read the counter before.
    pub flow_limit_cpus: Option<CpuMask>,
    /// Into how many buckets those CPUs put flows; a power of two.
    pub flow_limit_table_len: Option<u32>,
    /// Packets that may wait in each CPU's backlog.
    pub netdev_max_backlog: Option<u32>,
    /// Packets that a CPU takes from devices in one go of its receive softirq.
    pub netdev_budget: Option<u32>,
    /// How long such a go may last, in µs. At least two ticks of the kernel's clock: 8000 where it has 250 a second.
    pub netdev_budget_usecs: Option<u32>,
}

impl HostSteering {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the host has now. None: this kernel has no such setting.
    pub fn read(settings: &HostSettings) -> Self {
        Self::read_below(settings, Path::new(FOLDER))
    }

    /// Sets all of it until the guards are dropped, in the order in which they stand. The flow limit's CPUs and length are always
    /// held together, since the tables have the length that was set when their CPU was.
    ///
    /// The thread may be in any network namespace; the journal must have been opened in that of the host.
    ///
    /// # Errors
    /// [`SteeringError`]: what was asked for of what, what is there instead, and what to do; among them
    /// [`JournalError::Conflict`] where a run that is still going on holds another value. What had been changed is put back.
    pub fn hold(&self, settings: &HostSettings) -> Result<Vec<Guard>, SteeringError> {
        self.hold_below(settings, Path::new(FOLDER))
    }

    pub(super) fn read_below(settings: &HostSettings, folder: &Path) -> Self {
        let text = |name: &str| settings.read(folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse().ok();
        Self {
            rps_sock_flow_entries: number(RFS_TABLE),
            flow_limit_cpus: text(FLOW_LIMIT_CPUS).and_then(|mask| mask.parse().ok()),
            flow_limit_table_len: number(FLOW_LIMIT_LENGTH),
            netdev_max_backlog: number(BACKLOG),
            netdev_budget: number(BUDGET),
            netdev_budget_usecs: number(BUDGET_TIME),
        }
    }

    pub(super) fn hold_below(
        &self,
        settings: &HostSettings,
        folder: &Path,
    ) -> Result<Vec<Guard>, SteeringError> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let possible = cpumask::possible().map_err(|error| JournalError::File {
            doing: "read",
            path: error.object.into(),
            source: error.source,
        })?;
        let wanted = self.settings(&Self::read_below(settings, folder))?;
        for (name, value) in &wanted {
            value.check(&in_full(name), &possible)?;
        }
        let mut guards = Vec::new();
        for (name, value) in wanted {
            let path = folder.join(name);
            // Kept before it is checked, so that after an error they are put back in their order.
            guards.push(settings.hold(&path, &value.text()).map_err(|error| explain(name, &value, error))?);
            value.check_taken(&in_full(name), &settings.read(&path)?)?;
        }
        Ok(guards)
    }

    /// What is to be written, in this order.
    fn settings(&self, now: &Self) -> Result<Vec<(&'static str, Value)>, SteeringError> {
        let number = |value: u32| Value::Number(value.into());
        let mut settings = Vec::new();
        for (name, asked) in [
            (BACKLOG, self.netdev_max_backlog),
            (BUDGET, self.netdev_budget),
            (BUDGET_TIME, self.netdev_budget_usecs),
        ] {
            let Some(asked) = asked else { continue };
            // They are signed in the kernel, and a budget of nothing would stop all receiving.
            let least = u32::from(name != BACKLOG);
            if !(least..=i32::MAX as u32).contains(&asked) {
                return Err(bad(name, asked, "it must be positive, and less than 2^31"));
            }
            settings.push((name, number(asked)));
        }
        if let Some(asked) = self.rps_sock_flow_entries {
            settings.push((RFS_TABLE, table_length(&in_full(RFS_TABLE), asked)?));
        }
        if self.flow_limit_cpus.is_some() || self.flow_limit_table_len.is_some() {
            let length = self.flow_limit_table_len.or(now.flow_limit_table_len);
            let length = length.unwrap_or(DEFAULT_FLOW_LIMIT_LENGTH);
            if !length.is_power_of_two() || length > LONGEST_FLOW_LIMIT {
                return Err(bad(FLOW_LIMIT_LENGTH, length, "it must be a power of two, at most 2^20"));
            }
            let cpus = self.flow_limit_cpus.as_ref().or(now.flow_limit_cpus.as_ref());
            settings.push((FLOW_LIMIT_LENGTH, number(length)));
            settings.push((FLOW_LIMIT_CPUS, Value::Mask(cpus.cloned().unwrap_or_default())));
        }
        Ok(settings)
    }
}

/// `netdev_flow_limit_table_len` (net/core/dev.c, 6.18), where it cannot be read: the holding of it then says why.
const DEFAULT_FLOW_LIMIT_LENGTH: u32 = 4096;
/// A table has a byte a bucket and is allocated in one piece; longer ones fail halfway through the CPUs.
const LONGEST_FLOW_LIMIT: u32 = 1 << 20;

/// The kernel's EINVAL says what it is about.
fn explain(name: &str, value: &Value, error: JournalError) -> SteeringError {
    let is_invalid =
        matches!(&error, JournalError::File { source, .. } if source.kind() == io::ErrorKind::InvalidInput);
    if !is_invalid {
        return error.into();
    }
    let why = match name {
        // netdev_budget_usecs_min (net/core/sysctl_net_core.c, 6.18).
        BUDGET_TIME => "the kernel takes at least two ticks of its clock (2,000,000 µs / CONFIG_HZ)",
        FLOW_LIMIT_CPUS => "the kernel takes hexadecimal masks of its CPUs",
        _ => "the kernel does not take this value",
    };
    SteeringError::Value { setting: in_full(name), asked: value.text(), why }
}

fn bad(name: &str, asked: u32, why: &'static str) -> SteeringError {
    SteeringError::Value { setting: in_full(name), asked: asked.to_string(), why }
}

fn in_full(name: &str) -> String {
    format!("net.core.{name}")
}
