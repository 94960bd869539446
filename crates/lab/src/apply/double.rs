//! A host that only remembers: what was asked of it, and what would still be there.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use linux::SyscallError;

use super::{Device, Host, Spaces};
use crate::plan::Step;

/// What was asked of a [`RecordingHost`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A namespace was made.
    Made {
        /// Its role.
        role: String,
    },
    /// A step was carried out in a namespace.
    Performed {
        /// Role of the first namespace of the step.
        role: String,
        /// The step, as it displays.
        step: String,
    },
    /// A namespace was given back.
    Discarded {
        /// Its role.
        role: String,
    },
}

impl Event {
    /// The role of the namespace that it happened in.
    pub fn role(&self) -> &str {
        match self {
            Self::Made { role } | Self::Performed { role, .. } | Self::Discarded { role } => role,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made { role } => write!(f, "make namespace {role}"),
            Self::Performed { step, .. } => f.write_str(step),
            Self::Discarded { role } => write!(f, "give back namespace {role}"),
        }
    }
}

/// A host without a kernel, for tests: it can refuse any one step, as a kernel does for want of privilege.
#[derive(Debug, Default)]
pub struct RecordingHost {
    events: Vec<Event>,
    /// What exists, as "namespace gen" and "device g0 in gen".
    existing: BTreeSet<String>,
    fail_at: Option<usize>,
    ready_after: u32,
    asked: u32,
}

impl RecordingHost {
    /// A host that refuses step `number` (the first is 0) with EPERM.
    pub fn failing_at(number: usize) -> Self {
        Self { fail_at: Some(number), ..Self::default() }
    }

    /// A host whose devices are ready only after having been asked for `times` times in vain.
    pub fn ready_after(times: u32) -> Self {
        Self { ready_after: times, ..Self::default() }
    }

    /// What was asked of the host, in order; what it refused is not in it.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// What would still be there.
    pub fn left(&self) -> Vec<String> {
        self.existing.iter().cloned().collect()
    }

    /// How often the host was asked whether devices are ready.
    pub fn asked_whether_ready(&self) -> u32 {
        self.asked
    }

    fn refuse_or_record(&mut self, event: Event) -> Result<(), SyscallError> {
        if self.fail_at == Some(self.events.len()) {
            let refusal = io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error());
            return Err(SyscallError::new("refuse as asked", event.role(), refusal));
        }
        self.events.push(event);
        Ok(())
    }
}

impl Host for RecordingHost {
    type Space = ();

    fn make(&mut self, role: &str) -> Result<(), SyscallError> {
        self.refuse_or_record(Event::Made { role: role.to_owned() })?;
        self.existing.insert(format!("namespace {role}"));
        Ok(())
    }

    fn perform(&mut self, step: &Step, _: &mut Spaces<()>) -> Result<Vec<Device>, SyscallError> {
        let role = step.roles().next().unwrap_or_default().to_owned();
        self.refuse_or_record(Event::Performed { role, step: step.to_string() })?;
        let mut devices = Vec::new();
        for (role, name) in step.makes() {
            self.existing.insert(format!("device {name} in {role}"));
            devices.push(Device {
                role: role.to_owned(),
                name: name.to_owned(),
                ifindex: self.existing.len() as u32,
                mac: [0; 6],
                mtu_bytes: 1500,
                tx_queues: None,
                rx_queues: None,
            });
        }
        Ok(devices)
    }

    fn not_ready(&mut self, devices: &[Device], _: &mut Spaces<()>) -> Result<Vec<Device>, SyscallError> {
        self.asked += 1;
        Ok(if self.asked > self.ready_after { Vec::new() } else { devices.to_vec() })
    }

    fn discard(&mut self, role: &str, (): ()) {
        self.events.push(Event::Discarded { role: role.to_owned() });
        let within = format!(" in {role}");
        let itself = format!("namespace {role}");
        self.existing.retain(|thing| *thing != itself && !thing.ends_with(&within));
    }
}
