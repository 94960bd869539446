//! What a namespace counted between two moments, from every place that a packet can show up in.
//!
//! A [`Reader`] opens all of them once, in its namespace, and reads them from any thread. Nothing is summed
//! up or judged here: one loss may stand in two counters (an RPS loss in `softnet_stat` and in the device's
//! `rx_dropped`; `Udp.RcvbufErrors` within `Udp.InErrors`), and which of them close a ledger is the path's to
//! say.
//!
//! The places are read one after the other, so packets in flight make them differ: read when the traffic has
//! ended.

use std::collections::BTreeMap;
use std::fmt;

use linux::SyscallError;
use linux::ethtool::EthtoolSocket;
use linux::nft::{Family, NftSocket};
use linux::procfs::{self, NetFile};
use linux::route::RouteSocket;

use crate::apply::{Device, Lab};

/// Where a counter stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The namespace's protocol counters, `/proc/net/snmp`, `netstat` and `snmp6`.
    Protocol,
    /// The kernel's counters of a device.
    Link(String),
    /// The queueing discipline that was installed for all that a device sends. What waits in it counts as `queued`.
    Qdisc(String),
    /// The counters of a device's driver (`ethtool -S`).
    Driver(String),
    /// A named packet-filter counter: family, table, counter.
    Rule(String),
    /// A CPU's receive path, `/proc/net/softnet_stat`. It belongs to the whole host.
    Softnet(u32),
}

/// A counter's name. Displays as `link f0: rx_packets`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Where it stands.
    pub place: Place,
    /// The kernel's or the driver's name for it.
    pub name: String,
}

impl Key {
    /// The counter `name` at `place`.
    pub fn new(place: Place, name: impl Into<String>) -> Self {
        Self { place, name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Protocol => write!(f, "{}", self.name),
            Place::Link(device) => write!(f, "link {device}: {}", self.name),
            Place::Qdisc(device) => write!(f, "queueing discipline of {device}: {}", self.name),
            Place::Driver(device) => write!(f, "driver of {device}: {}", self.name),
            Place::Rule(counter) => write!(f, "rule counter {counter}: {}", self.name),
            Place::Softnet(cpu) => write!(f, "CPU {cpu} (whole host): {}", self.name),
        }
    }
}

/// All counters of a namespace at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    counters: BTreeMap<Key, u64>,
}

impl Snapshot {
    /// A counter; `None` where this kernel, driver or namespace has no such one.
    pub fn get(&self, place: Place, name: &str) -> Option<u64> {
        self.counters.get(&Key::new(place, name)).copied()
    }

    /// All counters in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.counters.iter().map(|(key, &value)| (key, value))
    }

    fn put(&mut self, place: &Place, name: impl Into<String>, value: u64) {
        self.counters.insert(Key::new(place.clone(), name), value);
    }
}

/// By how much each counter grew, of those that stand in both snapshots and differ. A negative figure means
/// that what counted was made anew.
pub fn diff(before: &Snapshot, after: &Snapshot) -> BTreeMap<Key, i64> {
    let grown = |(key, value): (&Key, u64)| {
        let old = before.counters.get(key)?;
        let by = match key.place {
            // Counters of 32 bits that wrap.
            Place::Softnet(_) => i64::from((value as u32).wrapping_sub(*old as u32)),
            Place::Qdisc(_) if key.name == "drops" => i64::from((value as u32).wrapping_sub(*old as u32)),
            _ => value.wrapping_sub(*old).cast_signed(),
        };
        (by != 0).then(|| (key.clone(), by))
    };
    after.iter().filter_map(grown).collect()
}

/// A named packet-filter counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCounter {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
}

impl RuleCounter {
    /// The counter `name` of a table.
    pub fn new(family: Family, table: &str, name: &str) -> Self {
        Self { family, table: table.to_owned(), name: name.to_owned() }
    }

    /// Where it stands in a [`Snapshot`]; its counters are called `packets` and `bytes`.
    pub fn place(&self) -> Place {
        Place::Rule(format!("{} {} {}", self.family.name(), self.table, self.name))
    }
}

/// All counters of one namespace, open for reading.
#[derive(Debug)]
pub struct Reader {
    snmp: NetFile,
    /// Its extension, where packets without a route are counted (`IpExt.InNoRoutes`).
    netstat: NetFile,
    /// Absent where the kernel has no IPv6.
    snmp6: Option<NetFile>,
    softnet: NetFile,
    route: RouteSocket,
    ethtool: EthtoolSocket,
    devices: Vec<WatchedDevice>,
    rules: Option<(NftSocket, Vec<RuleCounter>)>,
}

#[derive(Debug)]
struct WatchedDevice {
    device: Device,
    /// The driver's names for its counters; none where it has no counters.
    names: Vec<String>,
}

impl Reader {
    /// Opens the counters of a lab's namespace: those of its devices, and these of its packet filter.
    ///
    /// # Errors
    /// Where a file or socket cannot be opened.
    ///
    /// # Panics
    /// As [`Lab::netns`].
    pub fn open(lab: &Lab, role: &str, rules: &[RuleCounter]) -> Result<Self, SyscallError> {
        let devices: Vec<Device> =
            lab.devices().iter().filter(|device| device.role == role).cloned().collect();
        lab.netns(role).run(|| Self::open_here(devices, rules))?
    }

    /// Opens the counters of the calling thread's namespace.
    fn open_here(devices: Vec<Device>, rules: &[RuleCounter]) -> Result<Self, SyscallError> {
        let ethtool = EthtoolSocket::open()?;
        let watch = |device: Device| {
            let names = ethtool.statistic_names(&device.name).unwrap_or_default();
            WatchedDevice { device, names }
        };
        Ok(Self {
            snmp: NetFile::open("snmp")?,
            netstat: NetFile::open("netstat")?,
            snmp6: NetFile::open("snmp6").ok(),
            softnet: NetFile::open("softnet_stat")?,
            route: RouteSocket::open()?,
            devices: devices.into_iter().map(watch).collect(),
            ethtool,
            rules: if rules.is_empty() { None } else { Some((NftSocket::open()?, rules.to_vec())) },
        })
    }

    /// The counters now.
    ///
    /// # Errors
    /// ENODEV where a device is gone, ENOENT where a named counter is.
    pub fn read(&mut self) -> Result<Snapshot, SyscallError> {
        let mut snapshot = Snapshot::default();
        self.read_protocols(&mut snapshot)?;
        for cpu in procfs::softnet_stat(self.softnet.read()?) {
            let place = Place::Softnet(cpu.cpu);
            snapshot.put(&place, "processed", cpu.processed.into());
            snapshot.put(&place, "dropped", cpu.dropped.into());
            snapshot.put(&place, "time_squeezed", cpu.time_squeezed.into());
            let optional = [("received_rps", cpu.received_rps), ("flow_limited", cpu.flow_limited)];
            for (name, value) in optional {
                value.into_iter().for_each(|value| snapshot.put(&place, name, value.into()));
            }
        }
        for WatchedDevice { device, names } in &self.devices {
            let place = Place::Link(device.name.clone());
            let stats = self.route.link_stats(device.ifindex)?;
            stats.fields().for_each(|(name, value)| snapshot.put(&place, name, value));
            if let Some(stats) = self.route.root_qdisc_stats(device.ifindex).ok().flatten() {
                let place = Place::Qdisc(device.name.clone());
                let counted = [
                    ("packets", stats.packets),
                    ("drops", stats.drops.into()),
                    ("queued", stats.queued.into()),
                ];
                counted.into_iter().for_each(|(name, value)| snapshot.put(&place, name, value));
            }
            if !names.is_empty() {
                let place = Place::Driver(device.name.clone());
                let values = self.ethtool.statistic_values(&device.name, names.len())?;
                names.iter().zip(values).for_each(|(name, value)| snapshot.put(&place, name, value));
            }
        }
        if let Some((socket, rules)) = &mut self.rules {
            for rule in rules.iter() {
                let counted = socket.named_counter(rule.family, &rule.table, &rule.name)?;
                snapshot.put(&rule.place(), "packets", counted.packets);
                snapshot.put(&rule.place(), "bytes", counted.bytes);
            }
        }
        Ok(snapshot)
    }

    fn read_protocols(&mut self, snapshot: &mut Snapshot) -> Result<(), SyscallError> {
        let mut protocols = procfs::paired_counters(self.snmp.read()?);
        protocols.extend(procfs::paired_counters(self.netstat.read()?));
        if let Some(snmp6) = &mut self.snmp6 {
            protocols.extend(procfs::snmp6_counters(snmp6.read()?));
        }
        protocols.retain(|name, _| concerns_packets(name));
        protocols.into_iter().for_each(|(name, value)| snapshot.put(&Place::Protocol, name, value));
        Ok(())
    }
}

/// Whether a protocol counter tells about a packet's way through IP, ICMP or UDP. The others are of TCP, of
/// UDP-Lite or settings in the guise of counters.
fn concerns_packets(name: &str) -> bool {
    const PREFIXES: [&str; 7] = ["Ip.", "IpExt.", "Icmp.", "Udp.", "Ip6", "Icmp6", "Udp6"];
    const SETTINGS: [&str; 3] = ["Ip.Forwarding", "Ip.DefaultTTL", "Ip.ReasmTimeout"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !SETTINGS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(counters: &[(Place, &str, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        counters.iter().for_each(|(place, name, value)| snapshot.put(place, *name, *value));
        snapshot
    }

    #[test]
    fn only_what_grew_is_in_the_difference() {
        let link = Place::Link("a".to_owned());
        let before =
            snapshot(&[(link.clone(), "rx", 5), (link.clone(), "tx", 1), (Place::Protocol, "Ip.X", 9)]);
        let after =
            snapshot(&[(link.clone(), "rx", 8), (link.clone(), "tx", 1), (Place::Protocol, "Ip.Y", 9)]);
        assert_eq!(diff(&before, &after), BTreeMap::from([(Key::new(link.clone(), "rx"), 3)]));
        assert_eq!(diff(&after, &before), BTreeMap::from([(Key::new(link, "rx"), -3)]));
    }

    #[test]
    fn softnet_wraps_at_32_bits_and_the_others_do_not() {
        let cpu = Place::Softnet(0);
        let old = u64::from(u32::MAX) - 1;
        let (before, after) =
            (snapshot(&[(cpu.clone(), "processed", old)]), snapshot(&[(cpu.clone(), "processed", 3)]));
        assert_eq!(diff(&before, &after).values().copied().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn protocol_counters_are_chosen() {
        for name in [
            "Ip.InReceives",
            "Udp.RcvbufErrors",
            "Ip6OutForwDatagrams",
            "Udp6NoPorts",
            "Icmp.OutRateLimitHost",
        ] {
            assert!(concerns_packets(name), "{name}");
        }
        for name in [
            "Tcp.InSegs",
            "TcpExt.SyncookiesSent",
            "Ip.Forwarding",
            "UdpLite.InErrors",
            "UdpLite6InErrors",
            "IcmpMsg.InType3",
        ] {
            assert!(!concerns_packets(name), "{name}");
        }
    }
}
