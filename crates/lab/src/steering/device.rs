//! Steering of one device: of a lab, or of the host.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use linux::SyscallError;
use linux::cpumask::{self, CpuMask};
use linux::napi::NapiThread;
use linux::netns::Netns;
use linux::netsysfs::{Attribute, NetSysfs, Queues};
use rustix::io::Errno;

use super::{QueueMasks, SteeringError, Taken, Value, table_length};
use crate::apply::Lab;
use crate::journal::{Guard, HostSettings};

/// How one device spreads packets over CPUs. None leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSteering {
    /// The CPUs that take over what the device receives, chosen by each packet's hash (RPS); none switches it off.
    pub rps_cpus: Option<QueueMasks>,
    /// The CPUs that send by each transmit queue (XPS). Only for devices with more than one.
    pub xps_cpus: Option<QueueMasks>,
    /// Flows that each receive queue remembers the consumer's CPU of (RFS), rounded up to a power of two; 0 switches it off. It
    /// takes [`HostSteering::rps_sock_flow_entries`](super::HostSteering::rps_sock_flow_entries) too, or has no effect.
    pub rps_flow_cnt: Option<u32>,
    /// Whether threads of the kernel poll the device. A veth must be up, with GRO or an XDP program on.
    pub threaded: Option<bool>,
    /// How long GRO may keep packets, and interrupts stay off, in ns.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Polls without a packet until interrupts are on again.
    pub napi_defer_hard_irqs: Option<u32>,
}

/// What a device was found to have after all was set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Every setting that was asked for, as the kernel prints it.
    pub settings: Vec<Taken>,
    /// The threads that began to poll the device when `threaded` was set, to be pinned or watched; none where it was set before.
    pub napi_threads: Vec<NapiThread>,
}

impl DeviceSteering {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets all of it on a device of a lab; it goes with the lab.
    ///
    /// # Errors
    /// [`SteeringError`]: what was asked for of what, what the kernel said or has instead, and what to do.
    ///
    /// # Panics
    /// Where the lab has no such role, as [`Lab::netns`].
    pub fn apply(&self, lab: &Lab, role: &str, device: &str) -> Result<Applied, SteeringError> {
        self.apply_in(lab.netns(role), device)
    }

    /// Sets all of it on a device of a namespace that ends with the run.
    ///
    /// # Errors
    /// As [`DeviceSteering::apply`].
    pub fn apply_in(&self, netns: &Netns, device: &str) -> Result<Applied, SteeringError> {
        if self.is_empty() {
            return Ok(Applied::default());
        }
        let before: HashSet<NapiThread> = self.napi_threads(device).into_iter().collect();
        let mut sysfs = NetSysfs::of(netns).map_err(|source| refused(device, None, source))?;
        let settings = self.carry_out(&mut sysfs, device, &possible(device)?)?;
        let mut napi_threads = self.napi_threads(device);
        napi_threads.retain(|thread| !before.contains(thread));
        Ok(Applied { settings, napi_threads })
    }

    /// Sets all of it on a device of the host, as `/sys` shows it, until the guards are dropped. The thread may be in any network
    /// namespace.
    ///
    /// # Errors
    /// As [`DeviceSteering::apply`], and those of [`HostSettings::hold`]. What had been changed is put back.
    pub fn hold(&self, settings: &HostSettings, device: &str) -> Result<Vec<Guard>, SteeringError> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let root = Path::new("/sys/class/net").join(device);
        let mut files = HostFiles { settings, root, guards: Vec::new() };
        self.carry_out(&mut files, device, &possible(device)?)?;
        Ok(files.guards)
    }

    /// The threads that poll devices of this name, where it matters.
    fn napi_threads(&self, device: &str) -> Vec<NapiThread> {
        if self.threaded == Some(true) { NapiThread::of_devices_named(device) } else { Vec::new() }
    }

    pub(super) fn carry_out(
        &self,
        files: &mut impl Files,
        device: &str,
        possible: &CpuMask,
    ) -> Result<Vec<Taken>, SteeringError> {
        let settings = self.settings(device, files.queues(device)?)?;
        for (attribute, value) in &settings {
            value.check(&format!("{attribute} of {device}"), possible)?;
        }
        let set = |(attribute, value): (Attribute, Value)| {
            let set = files.set(device, attribute, &value.text());
            let found = match files.read(device, attribute) {
                // Who may not write what is so already has what was asked for: an ordinary user by `rps_default_mask`, a veth
                // without NAPI that is not to be polled by threads.
                Ok(found) if set.is_ok() || value.is(&found) => found,
                read => {
                    set?;
                    read?
                }
            };
            let taken = value.check_taken(&format!("{attribute} of {device}"), &found)?;
            Ok(Taken { name: attribute.to_string(), ..taken })
        };
        settings.into_iter().map(set).collect()
    }

    /// What is to be written, in this order: tables before the masks that make use of them.
    fn settings(&self, device: &str, queues: Queues) -> Result<Vec<(Attribute, Value)>, SteeringError> {
        let mut settings = Vec::new();
        let number = |value: u64| Value::Number(value);
        let single = [
            (Attribute::Threaded, self.threaded.map(u64::from)),
            (Attribute::NapiDeferHardIrqs, self.napi_defer_hard_irqs.map(u64::from)),
            (Attribute::GroFlushTimeout, self.gro_flush_timeout_ns),
        ];
        settings
            .extend(single.into_iter().filter_map(|(attribute, value)| Some((attribute, number(value?)))));
        if let Some(asked) = self.rps_flow_cnt {
            let value = table_length(&format!("rps_flow_cnt of {device}"), asked)?;
            settings.extend((0..queues.rx).map(|queue| (Attribute::RpsFlowCnt { queue }, value.clone())));
        }
        if let Some(masks) = &self.rps_cpus {
            let masks = masks.for_queues(device, "rps_cpus", queues.rx)?;
            let of = |(queue, mask)| (Attribute::RpsCpus { queue }, Value::Mask(mask));
            settings.extend((0..).zip(masks).map(of));
        }
        if let Some(masks) = &self.xps_cpus {
            let masks = masks.for_queues(device, "xps_cpus", queues.tx)?;
            let of = |(queue, mask)| (Attribute::XpsCpus { queue }, Value::Mask(mask));
            settings.extend((0..).zip(masks).map(of));
        }
        Ok(settings)
    }
}

/// The settings of a device, wherever they are.
pub(super) trait Files {
    fn queues(&self, device: &str) -> Result<Queues, SteeringError>;
    fn set(&mut self, device: &str, attribute: Attribute, value: &str) -> Result<(), SteeringError>;
    fn read(&self, device: &str, attribute: Attribute) -> Result<String, SteeringError>;
}

impl Files for NetSysfs {
    fn queues(&self, device: &str) -> Result<Queues, SteeringError> {
        Self::queues(self, device).map_err(|source| refused(device, None, source))
    }

    fn set(&mut self, device: &str, attribute: Attribute, value: &str) -> Result<(), SteeringError> {
        self.write(device, attribute, value).map_err(|source| refused(device, Some(attribute), source))
    }

    fn read(&self, device: &str, attribute: Attribute) -> Result<String, SteeringError> {
        Self::read(self, device, attribute).map_err(|source| refused(device, Some(attribute), source))
    }
}

/// A device of the host. What was set is held by the guards.
struct HostFiles<'a> {
    settings: &'a HostSettings,
    root: PathBuf,
    guards: Vec<Guard>,
}

impl Files for HostFiles<'_> {
    fn queues(&self, device: &str) -> Result<Queues, SteeringError> {
        NetSysfs::mounted()
            .and_then(|sysfs| sysfs.queues(device))
            .map_err(|source| refused(device, None, source))
    }

    fn set(&mut self, _: &str, attribute: Attribute, value: &str) -> Result<(), SteeringError> {
        self.guards.push(self.settings.hold(self.root.join(attribute.to_string()), value)?);
        Ok(())
    }

    fn read(&self, _: &str, attribute: Attribute) -> Result<String, SteeringError> {
        Ok(self.settings.read(self.root.join(attribute.to_string()))?)
    }
}

fn possible(device: &str) -> Result<CpuMask, SteeringError> {
    cpumask::possible().map_err(|source| refused(device, None, source))
}

fn refused(device: &str, attribute: Option<Attribute>, source: SyscallError) -> SteeringError {
    let next = next_step(attribute, source.errno().map(Errno::from_raw_os_error));
    SteeringError::Kernel { device: device.to_owned(), source, next }
}

/// What to do about the kernel's answer.
pub(super) fn next_step(attribute: Option<Attribute>, answer: Option<Errno>) -> &'static str {
    match (attribute, answer) {
        // rps_cpus_store asks for CAP_NET_ADMIN on the host, while rps_default_mask belongs to the namespace (net/core/net-sysfs.c,
        // net/core/sysctl_net_core.c, 6.18).
        (Some(Attribute::RpsCpus { .. }), Some(Errno::PERM | Errno::ACCESS)) => {
            "Run it as root of the host; an ordinary user can set one mask for all devices of a namespace, before they are made: \
             net.core.rps_default_mask"
        }
        (_, Some(Errno::PERM | Errno::ACCESS)) => "Run it as root of the host, or leave this setting alone",
        (Some(Attribute::XpsCpus { .. }), Some(Errno::NOENT)) => {
            "XPS chooses among transmit queues, and the device has one: give it more, or leave this setting alone"
        }
        (Some(Attribute::Threaded), Some(Errno::OPNOTSUPP)) => {
            "The device has no NAPI that a thread could run: a veth has it while it is up and GRO or an XDP program is on"
        }
        (Some(_), Some(Errno::NOENT)) => "This kernel has no such setting (CONFIG_RPS, CONFIG_XPS)",
        (None, Some(Errno::NOENT)) => "Name a device that is in this network namespace",
        (Some(Attribute::RpsCpus { .. }), Some(Errno::INVAL)) => {
            "All these CPUs are isolated (isolcpus, nohz_full), and the kernel takes packets to others only"
        }
        _ => "See the kernel's Documentation/networking/scaling.rst for what this setting can be",
    }
}
