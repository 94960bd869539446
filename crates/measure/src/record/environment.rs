//! What the machine was, as far as it changes results.
//!
//! Every field can be missing: without root, in a container or on another architecture some cannot be
//! read. Missing is `None`, never an empty text or 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Extra;

/// The machine and the kernel at the start of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// `uname -r`.
    pub kernel_release: Option<String>,
    /// `uname -v`: build number, preemption model, build time.
    pub kernel_version: Option<String>,
    /// `/proc/cmdline`.
    pub kernel_command_line: Option<String>,
    /// `uname -m`.
    pub architecture: Option<String>,
    /// CPU model as `/proc/cpuinfo` names it.
    pub cpu_model: Option<String>,
    /// CPUs online.
    pub cores: Option<u32>,
    /// Whether simultaneous multithreading is active (`/sys/devices/system/cpu/smt/active`).
    pub smt: Option<bool>,
    /// cpufreq governor of the measuring CPU.
    pub governor: Option<String>,
    /// Clock source of the kernel.
    pub clocksource: Option<String>,
    /// Hypervisor, or `none` where it is known that there is none.
    pub virtualisation: Option<String>,
    /// Container runtime, or `none` where it is known that there is none.
    pub container: Option<String>,
    /// CPU vulnerabilities and their mitigations (`/sys/devices/system/cpu/vulnerabilities`).
    pub mitigations: Option<BTreeMap<String, String>>,
    /// Kernel debug options that are on and make timing useless or slow (lockdep, KASAN ...).
    pub debug_options: Option<Vec<String>>,
    /// Whether time in interrupts and softirqs is kept apart, and so is in no thread's time
    /// (CONFIG_IRQ_TIME_ACCOUNTING).
    pub irq_time_accounting: Option<bool>,
    /// Load averages over 1, 5 and 15 minutes at the start.
    pub load_average: Option<[f64; 3]>,
    /// Steal ticks (USER_HZ) of all CPUs since boot, at the start.
    pub steal_ticks: Option<u64>,
    /// Whether `/sys/kernel/rcu_expedited` was on while slices ran.
    pub rcu_expedited: Option<bool>,
    /// The emulator, where the system under test ran in one.
    pub emulator: Option<Emulator>,
    /// Devices that packets passed.
    pub devices: Option<Vec<Device>>,
    /// Steering masks and settings, by device and queue: `veth1/rx-0/rps_cpus`.
    pub steering: Option<BTreeMap<String, String>>,
    /// Relevant sysctls by their dotted name.
    pub sysctls: Option<BTreeMap<String, String>>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// QEMU, where it ran the system under test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Emulator {
    /// Version text.
    pub version: Option<String>,
    /// `tcg` or `kvm`.
    pub accelerator: Option<String>,
    /// CPU model that the guest saw.
    pub cpu_model: Option<String>,
    /// The whole command.
    pub command: Option<Vec<String>>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One network device of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name in its namespace.
    pub name: String,
    /// Its role in the path: `ingress`, `peer`, `egress`.
    pub role: Option<String>,
    /// Driver as ethtool names it.
    pub driver: Option<String>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Firmware version.
    pub firmware_version: Option<String>,
    /// Largest payload in bytes.
    pub mtu: Option<u32>,
    /// Offload features by their ethtool names.
    pub features: Option<BTreeMap<String, bool>>,
    /// Receive queues in use.
    pub receive_queues: Option<u32>,
    /// Transmit queues in use.
    pub transmit_queues: Option<u32>,
    /// Entries of a receive ring.
    pub receive_ring: Option<u32>,
    /// Entries of a transmit ring.
    pub transmit_ring: Option<u32>,
    /// How received packets reach the stack on a veth: `netif_rx` or `napi`.
    pub receive_path: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}
