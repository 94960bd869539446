//! One set of CPUs for all queues of a device, or one for each.

use std::fmt;
use std::str::FromStr;

use linux::cpumask::{CpuMask, CpuMaskError};

use super::SteeringError;

/// Sets of CPUs for the queues of a device.
///
/// Read from `0x2` or `off` (the same for all queues), or from `1/2` (queue 0, queue 1); displays likewise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueueMasks {
    /// The same for every queue.
    All(CpuMask),
    /// One for each queue, from queue 0 on.
    Each(Vec<CpuMask>),
}

/// A text that is no set of CPUs.
pub type MasksError = CpuMaskError;

impl QueueMasks {
    /// The set for each of so many queues.
    ///
    /// # Errors
    /// Where more or fewer were given.
    pub(super) fn for_queues(
        &self,
        device: &str,
        setting: &'static str,
        queues: u32,
    ) -> Result<Vec<CpuMask>, SteeringError> {
        match self {
            Self::All(mask) => Ok(vec![mask.clone(); queues as usize]),
            Self::Each(masks) if masks.len() == queues as usize => Ok(masks.clone()),
            Self::Each(masks) => {
                Err(SteeringError::Queues { device: device.to_owned(), setting, masks: masks.len(), queues })
            }
        }
    }
}

impl From<CpuMask> for QueueMasks {
    fn from(mask: CpuMask) -> Self {
        Self::All(mask)
    }
}

impl FromStr for QueueMasks {
    type Err = MasksError;

    fn from_str(text: &str) -> Result<Self, MasksError> {
        match text.split('/').map(str::parse).collect::<Result<Vec<CpuMask>, _>>()? {
            masks if masks.len() > 1 => Ok(Self::Each(masks)),
            masks => Ok(Self::All(masks.into_iter().next().unwrap_or_default())),
        }
    }
}

impl fmt::Display for QueueMasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(mask) => mask.fmt(f),
            Self::Each(masks) => {
                f.write_str(&masks.iter().map(CpuMask::to_string).collect::<Vec<_>>().join("/"))
            }
        }
    }
}
