//! What `datapath` does, wholly resolved.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::datapath_checks::check;
use super::{SCHEMA, keys_of, read};
use crate::device::{
    AddressWord, Alloc, DeviceWord, FaultWord, Lock, MacWord, NeighbourWord, RouteWord, RuleWord, RxMode,
};
use crate::words::nearest;

/// What the job is called in a scenario.
pub(crate) const DATAPATH_JOB: &str = "datapath";

/// One run of the device under test, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Datapath {
    /// Always [`SCHEMA`].
    pub(crate) schema: String,
    /// Always [`DATAPATH_JOB`].
    pub(crate) job: String,
    /// What is done with packets.
    pub(crate) stage: StageName,
    /// What the filter drops before that, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drop: Vec<RuleWord>,
    /// What goes wrong on purpose at every receiving queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<FaultWord>,
    /// A capture file for all frames received and sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) capture: Option<PathBuf>,
    /// Where packets come from and go to.
    pub(crate) devices: Devices,
    /// The frames of a synthetic device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) frames: Option<FramesOf>,
    /// How frames get into packets.
    pub(crate) receive: Receiving,
    /// Threads, and what ends the run.
    pub(crate) run: Running,
    /// The network around a device that forwards.
    #[serde(default, skip_serializing_if = "Network::is_empty")]
    pub(crate) network: Network,
    /// Queues of receivers; only with [`StageName::Udp`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) udp: Option<UdpQueues>,
    /// CPUs and their backlogs; only with [`StageName::Steer`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) steer: Option<Steering>,
}

/// What is done with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StageName {
    /// They are dropped before a byte is looked at.
    Drop,
    /// They are routed.
    Forward,
    /// They go to queues of receivers by their port.
    Udp,
    /// They go to CPUs by their flow.
    Steer,
}

/// Devices by what is done with them. With `rx` and `tx` packets go one way; with `ports` all ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub(crate) struct Devices {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rx: Option<DeviceWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tx: Option<DeviceWord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<DeviceWord>,
    /// Devices of the host that may be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow: Vec<String>,
    /// Whether a capture file begins again at its end.
    #[serde(rename = "loop", skip_serializing_if = "is_false")]
    pub(crate) again: bool,
    /// What keeps threads apart that send through one dummy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<Lock>,
}

/// The frames of a synthetic device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FramesOf {
    /// UDP frames of this size, with FCS, where there is no program. To the made-up prefixes in a random order, where there
    /// are some.
    pub(crate) frame_bytes: u32,
    /// Their flows, which differ in the destination port.
    pub(crate) flows: u16,
    /// A program in the packet language, in place of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// Its name in messages; what it includes in quotes is looked for beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

impl Default for FramesOf {
    fn default() -> Self {
        Self { frame_bytes: 64, flows: 1, program: None, name: None }
    }
}

/// How frames get into packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Receiving {
    pub(crate) mode: RxMode,
    /// Where the memory comes from that is copied to; none where nothing is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alloc: Option<Alloc>,
    /// The most packets of one poll.
    pub(crate) budget: usize,
    /// Whether threads look for packets without a pause.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) busy: bool,
}

/// Threads, and what ends the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// Threads that receive, each with queues of its own.
    pub(crate) threads: usize,
    /// Their CPUs; none means the last ones allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpus: Vec<usize>,
    /// Frames of all threads together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// Seconds; none: until the count is reached, the file ends, or a signal comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_s: Option<f64>,
    /// Seed of random frames, of faults and of the table.
    pub(crate) seed: u64,
}

/// The network around a device that forwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub(crate) struct Network {
    /// Made-up prefixes of IPv4 in the table, all by way of the last port.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) prefixes: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) routes: Vec<RouteWord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<AddressWord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) neighbours: Vec<NeighbourWord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) macs: Vec<MacWord>,
}

/// Queues of receivers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UdpQueues {
    /// `5000` or `5000-5007`: a queue and a thread for each.
    pub(crate) ports: String,
    /// The most packets that wait in one.
    pub(crate) limit: usize,
}

/// CPUs and their backlogs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Steering {
    pub(crate) cpus: Vec<usize>,
    /// The most packets that wait for one.
    pub(crate) backlog: usize,
    /// Whether a flow with more than half of the packets is held back when a backlog is half full.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) flow_limit: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl StageName {
    const NAMES: [(&'static str, Self); 4] =
        [("drop", Self::Drop), ("forward", Self::Forward), ("udp", Self::Udp), ("steer", Self::Steer)];
}

impl FromStr for StageName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, stage)| *stage);
        found.ok_or_else(|| nearest("stage", text, Self::NAMES.iter().map(|(name, _)| *name)))
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, stage)| stage == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl Network {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Devices {
    /// The devices that are received from, by port.
    pub(crate) fn receiving(&self) -> Vec<&DeviceWord> {
        self.rx.iter().chain(&self.ports).collect()
    }

    /// The devices that are sent to, by port.
    pub(crate) fn sending(&self) -> Vec<&DeviceWord> {
        self.tx.iter().chain(&self.ports).collect()
    }

    /// Each device once.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DeviceWord> {
        self.rx.iter().chain(&self.tx).chain(&self.ports)
    }

    /// Ports that routes and addresses may name. With `rx` and `tx` there is one: it is received from one of them, and
    /// sent to the other.
    pub(crate) fn port_count(&self) -> usize {
        self.receiving().len().max(self.sending().len())
    }
}

impl Datapath {
    /// Reads a scenario file of `datapath`.
    pub(super) fn from_toml(text: &str) -> Result<Self> {
        read::<Self>(text, &known_keys())?.checked()
    }

    /// The scenario as a file.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("write the scenario as TOML")
    }

    /// The scenario, if all of it goes together, as far as that can be told without asking the kernel.
    pub(crate) fn checked(self) -> Result<Self> {
        ensure!(self.job == DATAPATH_JOB, "the job `{}` is not `{DATAPATH_JOB}`", self.job);
        check(&self)?;
        Ok(self)
    }

    /// Threads that send to the device `tx`: those that work on backlogs where packets are steered, else those that receive.
    pub(crate) fn senders(&self) -> usize {
        self.steer.as_ref().map_or(self.run.threads, |steer| steer.cpus.len())
    }
}

/// Every key that a scenario of `datapath` can have, from a whole one.
fn known_keys() -> BTreeSet<String> {
    let text = String::new;
    keys_of(&Datapath {
        schema: SCHEMA.into(),
        job: DATAPATH_JOB.into(),
        stage: StageName::Forward,
        drop: vec![RuleWord::default()],
        fault: Some(FaultWord::default()),
        capture: Some(PathBuf::new()),
        devices: Devices {
            rx: Some(DeviceWord::Synthetic),
            tx: Some(DeviceWord::Synthetic),
            ports: vec![DeviceWord::Synthetic],
            allow: vec![text()],
            again: true,
            lock: Some(Lock::Queue),
        },
        frames: Some(FramesOf { program: Some(text()), name: Some(text()), ..FramesOf::default() }),
        receive: Receiving { mode: RxMode::Copy, alloc: Some(Alloc::Poll), budget: 1, busy: true },
        run: Running { threads: 1, cpus: vec![0], count: Some(1), time_s: Some(1.0), seed: 0 },
        network: whole_network(),
        udp: Some(UdpQueues { ports: text(), limit: 1 }),
        steer: Some(Steering { cpus: vec![], backlog: 1, flow_limit: true }),
    })
}

fn whole_network() -> Network {
    let one = std::net::IpAddr::from([0; 4]);
    let prefix = crate::device::Prefix { address: one, bits: 0 };
    let mac = datapath::wire::ethernet::MacAddress::ZERO;
    Network {
        prefixes: 1,
        routes: vec![RouteWord { prefix, port: 0, via: None }],
        addresses: vec![AddressWord { port: 0, prefix }],
        neighbours: vec![NeighbourWord { port: 0, address: one, mac }],
        macs: vec![MacWord { port: 0, mac }],
    }
}
