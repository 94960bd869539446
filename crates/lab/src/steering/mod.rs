//! How received and sent packets are spread over CPUs: set, and read back.
//!
//! [`DeviceSteering`] is what belongs to a device. One of a lab's devices takes it with [`DeviceSteering::apply`], and it goes with
//! the lab. A device of the host takes it with [`DeviceSteering::hold`], through the journal ([`HostSettings`]). [`HostSteering`] is
//! what all devices of all namespaces share, and always goes through the journal.
//!
//! After every writing the setting is read, and compared as a number or a set of CPUs: the kernel rounds up lengths of tables,
//! leaves out CPUs that are offline or isolated, and takes some settings without using them. What did not take is an error.
//!
//! ```
//! use lab::steering::{DeviceSteering, HostSteering, QueueMasks};
//!
//! let device = DeviceSteering { rps_cpus: Some("0x2".parse()?), ..DeviceSteering::default() };
//! assert_eq!(device.rps_cpus, Some(QueueMasks::All("2".parse()?)));
//! // As root: let applied = device.apply(&lab, "sys", "s0")?;
//!
//! let host = HostSteering { netdev_max_backlog: Some(4096), ..HostSteering::default() };
//! // As root: let guards = host.hold(&lab::HostSettings::open_default()?)?;
//! # Ok::<(), lab::steering::MasksError>(())
//! ```

mod device;
mod host;
mod masks;

use linux::SyscallError;
pub use linux::cpumask::{CpuMask, CpuMaskError};

#[cfg(doc)]
use crate::journal::HostSettings;
use crate::journal::JournalError;

pub use device::{Applied, DeviceSteering};
pub use host::HostSteering;
pub use masks::{MasksError, QueueMasks};

/// A setting, and what it was found to be after it had been set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The setting: `queues/rx-0/rps_cpus` below the device, `net.core.netdev_max_backlog`.
    pub name: String,
    /// Its value as the kernel prints it.
    pub value: String,
}

/// Why steering is not as asked. What had been changed on a lab's device stays; on the host it is put back.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// A mask has CPUs that the machine cannot have.
    #[error(
        "could not set {setting} to {asked}: CPU {} is not in this machine, which has {}. Name CPUs that are there",
        list(absent),
        list(possible)
    )]
    NoSuchCpu {
        /// The setting.
        setting: String,
        /// The mask asked for.
        asked: CpuMask,
        /// Its CPUs that cannot be.
        absent: CpuMask,
        /// The CPUs that can be.
        possible: CpuMask,
    },
    /// A mask was given for each of more or fewer queues than the device has.
    #[error(
        "could not set {setting} of {device}: {masks} masks are given, and it has {queues} such queues. Give one for all, or one for each"
    )]
    Queues {
        /// The device.
        device: String,
        /// The setting.
        setting: &'static str,
        /// How many masks were given.
        masks: usize,
        /// How many queues there are.
        queues: u32,
    },
    /// The value is one that the kernel does not take.
    #[error("could not set {setting} to {asked}: {why}")]
    Value {
        /// The setting.
        setting: String,
        /// The value asked for.
        asked: String,
        /// What it must be.
        why: &'static str,
    },
    /// The kernel refused.
    #[error("steering {device}: {source}. {next}")]
    Kernel {
        /// The device.
        device: String,
        /// What the kernel said, to what call, on what object.
        source: SyscallError,
        /// What to do about it.
        next: &'static str,
    },
    /// A setting of the host could not be borrowed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel took the value and has another.
    #[error("{setting} did not take {asked}: it is {found}. {next}")]
    NotTaken {
        /// The setting.
        setting: String,
        /// The value asked for.
        asked: String,
        /// The value read afterwards.
        found: String,
        /// What to do about it.
        next: &'static str,
    },
}

/// What a setting is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(u64),
    Mask(CpuMask),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Mask(mask) => mask.to_string(),
        }
    }

    /// Whether what was read is this value.
    fn is(&self, found: &str) -> bool {
        match self {
            Self::Number(number) => found.trim().parse() == Ok(*number),
            Self::Mask(mask) => found.parse().as_ref() == Ok(mask),
        }
    }

    /// # Errors
    /// CPUs that are not in `possible`.
    fn check(&self, setting: &str, possible: &CpuMask) -> Result<(), SteeringError> {
        let Self::Mask(asked) = self else { return Ok(()) };
        let absent = asked.without(possible);
        if absent.is_empty() {
            return Ok(());
        }
        let (setting, asked, possible) = (setting.to_owned(), asked.clone(), possible.clone());
        Err(SteeringError::NoSuchCpu { setting, asked, absent, possible })
    }

    /// # Errors
    /// What was read is another value.
    fn check_taken(&self, setting: &str, found: &str) -> Result<Taken, SteeringError> {
        let found = found.trim().to_owned();
        if self.is(&found) {
            return Ok(Taken { name: setting.to_owned(), value: found });
        }
        let next = match self {
            Self::Mask(_) => "Name CPUs that are online and not isolated (isolcpus, nohz_full)",
            Self::Number(_) => "Ask for a value that this kernel takes, or see who else changes it",
        };
        Err(SteeringError::NotTaken { setting: setting.to_owned(), asked: self.text(), found, next })
    }
}

/// The length of a table of flows as the kernel makes it: the next power of two, and 0 for none.
///
/// # Errors
/// More than the kernel allows: 2^29 (`rps_sock_flow_sysctl`, net/core/sysctl_net_core.c, 6.18).
fn table_length(setting: &str, asked: u32) -> Result<Value, SteeringError> {
    const LONGEST: u32 = 1 << 29;
    let why = "a table of flows has at most 2^29 entries";
    let refused = || SteeringError::Value { setting: setting.to_owned(), asked: asked.to_string(), why };
    let rounded = if asked == 0 { 0 } else { asked.checked_next_power_of_two().ok_or_else(refused)? };
    if rounded > LONGEST { Err(refused()) } else { Ok(Value::Number(rounded.into())) }
}

/// CPUs as a list: `0, 2`.
fn list(mask: &CpuMask) -> String {
    mask.cpus().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
