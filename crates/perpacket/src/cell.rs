//! What is measured: a path at a frame size, in a setting; and the factors by which two such cells can differ.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use traffic::BackendKind;
use traffic::programs::MAX_SPIN;

use crate::device::{Alloc, Lock, RxMode};
use crate::words::nearest;

/// UDP destination port of the first flow; the others follow.
pub(crate) const FIRST_PORT: u16 = 5_000;

/// The most flows: as many as there are ports from there on.
pub(crate) const MAX_FLOWS: u16 = u16::MAX - FIRST_PORT + 1;

/// One thing to measure: a path at a frame size, in a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) path: PathName,
    pub(crate) frame_bytes: u32,
    pub(crate) setting: Setting,
}

impl Cell {
    /// The same cell with one factor set to a value.
    pub(crate) fn with(&self, factor: Factor, value: &str) -> Result<Self> {
        let mut cell = self.clone();
        let setting = &mut cell.setting;
        match factor {
            Factor::Nothing | Factor::Command => {}
            Factor::Rules => setting.rules = number("rules", value)?,
            Factor::Frame => cell.frame_bytes = number("frame", value)?,
            Factor::Flows => setting.flows = parse_flows(value).map_err(anyhow::Error::msg)?,
            Factor::Batch => setting.batch = number("batch", value)?,
            Factor::Backend => setting.backend = Some(parse_backend(value)?),
            Factor::Gro => setting.gro = parse_switch("gro", value)?,
            Factor::Gso => setting.gso = parse_switch("gso", value)?,
            Factor::Rps => setting.rps = value.into(),
            Factor::Qdisc => setting.qdisc = value.into(),
            Factor::Threads => setting.threads = number("threads", value)?,
            Factor::Alloc => setting.alloc = named(value)?,
            Factor::Rx => setting.rx = named(value)?,
            Factor::Lock => setting.lock = named(value)?,
            Factor::Queues => setting.queues = Some(number("queues", value)?),
            Factor::Prefixes => setting.prefixes = number("prefixes", value)?,
            Factor::Spin => setting.spin = number("spin", value)?,
        }
        cell.setting.check()?;
        Ok(cell)
    }
}

/// What a lab or a device and its frames are made of. Every field is a possible factor of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Setting {
    /// How frames get in; none means the best that the path takes and the host has.
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<BackendKind>,
    /// Flows, by destination port.
    pub(crate) flows: u16,
    /// Packet-filter rules that match nothing.
    pub(crate) rules: u32,
    /// Frames handed over at once.
    pub(crate) batch: u32,
    /// GRO and NAPI on the receiving device.
    pub(crate) gro: bool,
    /// Whether sockets hand over many datagrams as one, for the kernel to cut.
    pub(crate) gso: bool,
    /// CPU mask of receive packet steering, in hexadecimal.
    pub(crate) rps: String,
    /// Steps of work added to every frame, very roughly 0.5 to 1 ns each.
    pub(crate) spin: u32,
    /// Kind of the queueing discipline of the sender's device; [`NO_QDISC`] means that it is bypassed.
    pub(crate) qdisc: String,
    /// Threads that send together, each on a CPU of its own. The measuring one is the first.
    pub(crate) threads: u32,
    /// Where the buffers of a device in user space come from that frames are copied into.
    pub(crate) alloc: Alloc,
    /// How it gets frames into packets.
    pub(crate) rx: RxMode,
    /// What keeps threads apart that send through it.
    pub(crate) lock: Lock,
    /// Its sending queues; none means one for each thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u32>,
    /// Prefixes in its routing table.
    pub(crate) prefixes: u32,
    /// CPUs of the threads, settled with the way in where there is more than one. The measuring one's is the first.
    #[serde(skip)]
    pub(crate) cpus: Vec<usize>,
}

/// No queueing discipline: packet sockets bypass what there is. A UDP socket cannot, and finds none: a veth has `noqueue` where
/// nothing else was asked for (IFF_NO_QUEUE, drivers/net/veth.c, 6.18).
pub(crate) const NO_QDISC: &str = "none";

/// The most threads, and the most sending queues.
const MAX_THREADS: u32 = 256;

/// Prefixes in a routing table where nothing else is asked for: few enough for the fastest cache.
pub(crate) const PREFIXES: u32 = 10;

impl Default for Setting {
    fn default() -> Self {
        Self {
            backend: None,
            flows: 1,
            rules: 0,
            batch: 64,
            gro: false,
            gso: false,
            rps: "0".into(),
            spin: 0,
            qdisc: NO_QDISC.into(),
            threads: 1,
            alloc: Alloc::default(),
            rx: RxMode::default(),
            lock: Lock::default(),
            queues: None,
            prefixes: PREFIXES,
            cpus: Vec::new(),
        }
    }
}

impl Setting {
    /// Refuses what no lab can be made of. What a path cannot take is refused by the path.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(self.flows >= 1, "flows = 0: at least one flow is needed to send anything");
        ensure!(self.flows <= MAX_FLOWS, "{}", too_many_flows(&self.flows.to_string()));
        ensure!(
            (1..=256).contains(&self.batch),
            "batch = {}: 1 to 256 frames can be handed over at once (TEST_XDP_MAX_BATCH, net/bpf/test_run.c)",
            self.batch
        );
        ensure!(self.rules <= 10_000, "rules = {}: at most 10,000 are built", self.rules);
        ensure!(self.spin <= MAX_SPIN, "spin = {}: at most {MAX_SPIN} steps a frame", self.spin);
        self.rps_mask()?;
        ensure!(
            (1..=MAX_THREADS).contains(&self.threads),
            "threads = {}: 1 to {MAX_THREADS} threads can send",
            self.threads
        );
        ensure!(
            self.queues.is_none_or(|queues| (1..=MAX_THREADS).contains(&queues)),
            "queues = {}: a device has 1 to {MAX_THREADS} sending queues",
            self.queues.unwrap_or_default()
        );
        ensure!(
            (1..=crate::device::MAX_PREFIXES).contains(&self.prefixes),
            "prefixes = {}: a table has 1 to {} prefixes",
            self.prefixes,
            crate::device::MAX_PREFIXES
        );
        let name_like =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        // IFNAMSIZ of the kernel, with the zero at the end (net/sched/sch_api.c, 6.18).
        ensure!(
            (1..=15).contains(&self.qdisc.len()) && self.qdisc.bytes().all(name_like),
            "qdisc = {}: none, or the name of a kind is needed, for example pfifo_fast",
            self.qdisc
        );
        Ok(())
    }

    /// Whether a queueing discipline is on the way.
    pub(crate) fn has_qdisc(&self) -> bool {
        self.qdisc != NO_QDISC
    }

    /// Sending queues of a device in user space.
    pub(crate) fn device_queues(&self) -> u32 {
        self.queues.unwrap_or(self.threads)
    }

    /// Queues that each end of the sender's veth pair needs: one for every thread, and so many that its driver, which goes by
    /// the number of the CPU, finds another one for each (drivers/net/veth.c, veth_select_rxq, 6.18). None where one thread
    /// sends: then there is one.
    pub(crate) fn veth_queues(&self) -> Option<u32> {
        let highest = self.cpus.iter().max().map_or(0, |&cpu| cpu as u32 + 1);
        (self.threads > 1).then(|| highest.max(self.threads))
    }

    /// What differs from what is measured where nothing is asked for, by its key.
    pub(crate) fn changed(&self) -> Vec<(&'static str, String)> {
        let all = |setting: &Self| {
            [
                ("backend", setting.backend.map_or(String::new(), |kind| kind.to_string())),
                ("flows", setting.flows.to_string()),
                ("rules", setting.rules.to_string()),
                ("batch", setting.batch.to_string()),
                ("gro", setting.gro.to_string()),
                ("gso", setting.gso.to_string()),
                ("rps", setting.rps.clone()),
                ("spin", setting.spin.to_string()),
                ("qdisc", setting.qdisc.clone()),
                ("threads", setting.threads.to_string()),
                ("alloc", setting.alloc.to_string()),
                ("rx", setting.rx.to_string()),
                ("lock", setting.lock.to_string()),
                ("queues", setting.queues.map_or(String::new(), |queues| queues.to_string())),
                ("prefixes", setting.prefixes.to_string()),
            ]
        };
        let pairs = all(self).into_iter().zip(all(&Self::default()));
        pairs.filter(|(own, usual)| own != usual).map(|(own, _)| own).collect()
    }

    /// The steering mask as a number; 0 is off.
    pub(crate) fn rps_mask(&self) -> Result<u64> {
        let digits = self.rps.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).with_context(|| {
            format!("rps = {}: a CPU mask in hexadecimal is needed, for example 0x2", self.rps)
        })
    }
}

/// A path by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum PathName {
    Floor,
    XdpDrop,
    XdpTx,
    TcDrop,
    RawDrop,
    Forward,
    Forward6,
    Bridge,
    Udp,
    UdpNoport,
    /// Those with this prefix go through the device under test in user space.
    DatapathDrop,
    DatapathDummy,
    DatapathForward,
    DatapathUdp,
}

/// Frame sizes that a lab's devices take, in bytes with the FCS: Ethernet's least, and an MTU of 1,500 with the Ethernet header
/// and the FCS.
const KERNEL_FRAME_BYTES: RangeInclusive<u32> = 64..=1_518;

impl PathName {
    /// Every path, those of the kernel first, each kind from the cheapest on.
    pub(crate) const ALL: [Self; 14] = [
        Self::Floor,
        Self::XdpDrop,
        Self::XdpTx,
        Self::TcDrop,
        Self::RawDrop,
        Self::Forward,
        Self::Forward6,
        Self::Bridge,
        Self::Udp,
        Self::UdpNoport,
        Self::DatapathDrop,
        Self::DatapathDummy,
        Self::DatapathForward,
        Self::DatapathUdp,
    ];

    /// Whether it goes through the device under test in user space, and not through the kernel.
    pub(crate) fn is_datapath(self) -> bool {
        matches!(self, Self::DatapathDrop | Self::DatapathDummy | Self::DatapathForward | Self::DatapathUdp)
    }

    /// The frame sizes that it takes, in bytes with the FCS.
    pub(crate) fn frame_sizes(self) -> RangeInclusive<u32> {
        if self.is_datapath() { crate::device::FRAME_BYTES } else { KERNEL_FRAME_BYTES }
    }

    /// Refuses a frame that it does not take.
    pub(crate) fn check_frame(self, frame_bytes: u32) -> Result<()> {
        let sizes = self.frame_sizes();
        let (what, mtu) =
            if self.is_datapath() { ("datapath paths", "9,000") } else { ("the lab's devices", "1,500") };
        ensure!(
            sizes.contains(&frame_bytes),
            "frame size {frame_bytes}: {what} take {} to {} bytes (with the 4-byte FCS; MTU {mtu})",
            sizes.start(),
            sizes.end()
        );
        Ok(())
    }

    /// Its name on the command line and in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::XdpDrop => "xdp-drop",
            Self::XdpTx => "xdp-tx",
            Self::TcDrop => "tc-drop",
            Self::RawDrop => "raw-drop",
            Self::Forward => "forward",
            Self::Forward6 => "forward6",
            Self::Bridge => "bridge",
            Self::Udp => "udp",
            Self::UdpNoport => "udp-noport",
            Self::DatapathDrop => "datapath:drop",
            Self::DatapathDummy => "datapath:dummy",
            Self::DatapathForward => "datapath:forward",
            Self::DatapathUdp => "datapath:udp",
        }
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PathName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == text)
            .ok_or_else(|| nearest("path", text, Self::ALL.map(|path| path.name()).into_iter()))
    }
}

impl TryFrom<String> for PathName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PathName> for String {
    fn from(path: PathName) -> Self {
        path.name().into()
    }
}

/// What can differ between two variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub(crate) enum Factor {
    Nothing,
    Command,
    Rules,
    Frame,
    Flows,
    Batch,
    Backend,
    Gro,
    Gso,
    Rps,
    Spin,
    /// How it queues, and whether that costs. The work of the kinds that hand a packet on at once is done by the thread that
    /// sends it, in the same call (`__dev_xmit_skb`, `qdisc_run`) or in a softirq on top of it (after 64 packets in a row,
    /// `net.core.dev_weight`; net/core/dev.c, net/sched/sch_generic.c, 6.18). Where several threads send, one of them takes
    /// packets of another out, which is in their common clock. What `ksoftirqd` takes over is recorded as always. A kind
    /// that holds packets back lets them go by a timer, in nobody's time: those need the clock `machine`.
    Qdisc,
    /// How many send at once. The cost is the CPU time of all of them for each packet; wall time is in the record.
    Threads,
    Alloc,
    Rx,
    Lock,
    Queues,
    Prefixes,
}

impl Factor {
    /// The factors that `--vary` takes.
    const VARIED: [(&'static str, Self); 16] = [
        ("rules", Self::Rules),
        ("frame", Self::Frame),
        ("flows", Self::Flows),
        ("batch", Self::Batch),
        ("backend", Self::Backend),
        ("gro", Self::Gro),
        ("gso", Self::Gso),
        ("rps", Self::Rps),
        ("spin", Self::Spin),
        ("qdisc", Self::Qdisc),
        ("threads", Self::Threads),
        ("alloc", Self::Alloc),
        ("rx", Self::Rx),
        ("lock", Self::Lock),
        ("queues", Self::Queues),
        ("prefixes", Self::Prefixes),
    ];

    /// The key of `--vary`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            _ => Self::VARIED.iter().find(|(_, factor)| *factor == self).map_or("nothing", |(name, _)| name),
        }
    }

    /// Whether both variants can be the same lab and the same program, with other numbers in its control map
    /// or call. What cannot is rebuilt every few hundred pairs, so that its layout in memory is not the result.
    pub(crate) fn in_place(self) -> bool {
        matches!(self, Self::Nothing | Self::Command | Self::Flows | Self::Spin)
    }

    /// The key and the two values of `KEY=A,B`.
    pub(crate) fn parse_vary(text: &str) -> Result<(Self, String, String)> {
        let (key, values) = text
            .split_once('=')
            .with_context(|| format!("--vary {text}: write KEY=A,B, for example rules=0,50"))?;
        let factor = Self::VARIED.iter().find(|(name, _)| *name == key).map(|(_, factor)| *factor);
        let Some(factor) = factor else {
            bail!("--vary {key}: {}", nearest("factor", key, Self::VARIED.iter().map(|(name, _)| *name)));
        };
        match values.split(',').map(str::trim).collect::<Vec<_>>()[..] {
            [a, b] if !a.is_empty() && !b.is_empty() => Ok((factor, a.into(), b.into())),
            _ => bail!("--vary {text}: two values are compared, separated by one comma"),
        }
    }
}

/// `on` and `off`.
pub(crate) fn parse_switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        other => bail!("{name} = {other}: use on or off"),
    }
}

/// A number of flows.
pub(crate) fn parse_flows(value: &str) -> Result<u16, String> {
    let number: u64 = value.parse().map_err(|_| format!("flows = {value}: a whole number is needed"))?;
    let flows = u16::try_from(number).ok().filter(|&flows| flows <= MAX_FLOWS);
    flows.ok_or_else(|| too_many_flows(value))
}

fn too_many_flows(value: &str) -> String {
    format!(
        "flows = {value}: at most {}, since each has a destination port of its own, from {} on",
        MAX_FLOWS, FIRST_PORT
    )
}

/// A backend by name.
pub(crate) fn parse_backend(value: &str) -> Result<BackendKind> {
    let names = BackendKind::ALL.map(|kind| kind.to_string());
    value
        .parse()
        .map_err(|_| anyhow::anyhow!("{}", nearest("backend", value, names.iter().map(String::as_str))))
}

fn named<T: FromStr<Err = String>>(value: &str) -> Result<T> {
    value.parse().map_err(anyhow::Error::msg)
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T>
where
    T::Err: Display,
{
    value.parse().map_err(|e| anyhow::anyhow!("{name} = {value}: {e}"))
}

/// An optional value as the text that it prints as.
pub(crate) mod text {
    use super::{Display, FromStr};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(from)?;
        text.parse().map(Some).map_err(|e: T::Err| D::Error::custom(format!("`{text}`: {e}")))
    }
}
