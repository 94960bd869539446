//! What pktgen is told, and what it must answer.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// The shortest packets, without FCS and tags: pktgen fills up to its own header of 16 bytes behind UDP's and sends more than
/// it was told to where that is less (net/core/pktgen.c, `fill_packet_ipv4`, 6.12).
const IPV4_BYTES_MIN: u32 = 14 + 20 + 8 + 16;
const IPV6_BYTES_MIN: u32 = 14 + 40 + 8 + 16;
/// A delay that pktgen takes for "never" (`pktgen_if_write`, 6.12).
const NEVER_NS: u64 = 0x7fff_ffff;
/// The most labels (`MAX_MPLS_LABELS`).
pub(super) const LABELS_MAX: usize = 16;

/// The packets of a [`super::Pktgen`]: UDP, each field either the same in all packets or one further in each. All ranges are
/// walked together, one step a packet, and begin with their second value, but those of MAC addresses with the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PktgenPackets {
    /// Length without FCS, tags included; at least [`Self::l2_bytes_min`].
    pub l2_bytes: u32,
    /// The first source MAC address, and how many follow each other; not all zeros, which means the device's own.
    pub source_mac: ([u8; 6], u32),
    /// The same of the destination.
    pub destination_mac: ([u8; 6], u32),
    /// The addresses.
    pub addresses: PktgenAddresses,
    /// The byte behind IP's version: TOS or traffic class.
    pub tos: u8,
    /// The source ports; up to 65534 where there are several, since pktgen's end is exclusive and has 16 bits.
    pub source_ports: RangeInclusive<u16>,
    /// The destination ports; the same.
    pub destination_ports: RangeInclusive<u16>,
    /// Whether the UDP checksum is computed, by the device where it can; else it is 0.
    pub udp_checksum: bool,
    /// What lies between the Ethernet and the IP header.
    pub tags: PktgenTags,
}

/// Addresses of IPv4 or IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PktgenAddresses {
    /// From the first to the last, inclusive.
    V4 {
        /// Sources.
        source: RangeInclusive<Ipv4Addr>,
        /// Destinations.
        destination: RangeInclusive<Ipv4Addr>,
    },
    /// The same in all packets: pktgen knows no ranges of these, only random bits.
    V6 {
        /// Source; not `::`, which means the device's own.
        source: Ipv6Addr,
        /// Destination.
        destination: Ipv6Addr,
    },
}

/// Tags of a packet; pktgen has those of one kind only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PktgenTags {
    /// Up to two VLAN tags with EtherType 0x8100, the outer first: each as its 16 bits of priority, DEI and VLAN.
    Vlan(Vec<u16>),
    /// Up to 16 MPLS labels: each as its 32 bits, of which that for the end of the stack is pktgen's to set.
    Mpls(Vec<u32>),
}

impl PktgenPackets {
    /// The shortest length without FCS that such packets can have.
    pub fn l2_bytes_min(&self) -> u32 {
        let tags = match &self.tags {
            PktgenTags::Vlan(tags) => tags.len(),
            PktgenTags::Mpls(labels) => labels.len(),
        };
        4 * tags as u32
            + match self.addresses {
                PktgenAddresses::V4 { .. } => IPV4_BYTES_MIN,
                PktgenAddresses::V6 { .. } => IPV6_BYTES_MIN,
            }
    }
}

/// One line to write, and the result that it must have then.
///
/// A write succeeds for most of what pktgen does not understand, and cut off numbers are taken for others: only the answer
/// tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) line: String,
    answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Exactly(String),
    /// Where the kernel has a notation of its own.
    Begins(String),
}

impl Setting {
    /// `key value`, answered with `key=value`.
    fn new(key: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        Self { line: format!("{key} {value}"), answer: Answer::Exactly(format!("OK: {key}={value}")) }
    }

    fn answered(key: &str, value: &str, answer: Answer) -> Self {
        Self { line: format!("{key} {value}"), answer }
    }

    /// Whether a result is the answer to it.
    pub(super) fn is_answered_by(&self, result: &str) -> bool {
        match &self.answer {
            Answer::Exactly(answer) => result == answer,
            Answer::Begins(answer) => result.starts_with(answer.as_str()),
        }
    }
}

/// All lines for a new device, in their order. Without a count it sends until it is stopped, without a delay as fast as it
/// can.
///
/// The pace is set by `delay` in ns, since `rate` and `ratep` only compute one from what the sizes are at that moment. Neither
/// `burst` nor `clone_skb` is used: both need a device that can take the same packet twice (a veth cannot), the first makes the
/// rate so many times greater, and the second holds all fields for so many packets.
pub(super) fn settings(packets: &PktgenPackets, count: Option<u64>, delay_ns: Option<u64>) -> Vec<Setting> {
    let mut all = vec![
        Setting::new("count", count.unwrap_or(0)),
        Setting::new("pkt_size", packets.l2_bytes),
        Setting::new("delay", delay_ns.map_or(0, |ns| if ns == NEVER_NS { ns + 1 } else { ns })),
        // What a CPU sends goes to the queue of its number.
        flag("QUEUE_MAP_CPU"),
    ];
    for (key, word, (first, count)) in
        [("src_mac", "srcmac", packets.source_mac), ("dst_mac", "dstmac", packets.destination_mac)]
    {
        let mac = first.map(|byte| format!("{byte:02x}")).join(":");
        all.push(Setting::answered(key, &mac, Answer::Exactly(format!("OK: {word} {mac}"))));
        if count > 1 {
            all.push(Setting::new(&format!("{key}_count"), count));
        }
    }
    all.extend(tags(&packets.tags));
    all.extend(addresses(&packets.addresses, packets.tos));
    for (side, range) in [("src", &packets.source_ports), ("dst", &packets.destination_ports)] {
        let (first, last) = (*range.start(), *range.end());
        // Exclusive where there are several.
        let end = if first < last { last.saturating_add(1) } else { first };
        all.push(Setting::new(&format!("udp_{side}_min"), first));
        all.push(Setting::new(&format!("udp_{side}_max"), end));
    }
    if packets.udp_checksum {
        all.push(flag("UDPCSUM"));
    }
    all
}

fn flag(name: &str) -> Setting {
    Setting::answered("flag", name, Answer::Begins("OK: flags=0x".into()))
}

fn addresses(addresses: &PktgenAddresses, tos: u8) -> Vec<Setting> {
    let hex = |key: &str| {
        Setting::answered(key, &format!("{tos:02x}"), Answer::Exactly(format!("OK: {key}=0x{tos:02x}")))
    };
    match addresses {
        PktgenAddresses::V4 { source, destination } => vec![
            Setting::new("src_min", source.start()),
            Setting::new("src_max", source.end()),
            Setting::new("dst_min", destination.start()),
            Setting::new("dst_max", destination.end()),
            hex("tos"),
        ],
        PktgenAddresses::V6 { source, destination } => {
            let address = |key: &str, address: &Ipv6Addr| {
                Setting::answered(key, &address.to_string(), Answer::Begins(format!("OK: {key}=")))
            };
            vec![address("src6", source), address("dst6", destination), hex("traffic_class")]
        }
    }
}

/// A tag of its own is the inner one: the first that is set.
fn tags(tags: &PktgenTags) -> Vec<Setting> {
    match tags {
        PktgenTags::Vlan(tags) => tags
            .iter()
            .rev()
            .zip(["vlan", "svlan"])
            .flat_map(|(&tag, name)| {
                [("id", tag & 0xfff), ("p", tag >> 13), ("cfi", tag >> 12 & 1)]
                    .map(|(part, value)| Setting::new(&format!("{name}_{part}"), value))
            })
            .collect(),
        PktgenTags::Mpls(labels) if labels.is_empty() => Vec::new(),
        // The bit for the end of the stack would make the label a random one.
        PktgenTags::Mpls(labels) => {
            let words: Vec<String> =
                labels.iter().take(LABELS_MAX).map(|label| format!("{:08x}", label & !0x100)).collect();
            vec![Setting::new("mpls", words.join(","))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn packets() -> PktgenPackets {
        PktgenPackets {
            l2_bytes: 60,
            source_mac: ([2, 0, 0, 0, 1, 1], 1),
            destination_mac: ([2, 0, 0, 0, 1, 0xff], 4),
            addresses: PktgenAddresses::V4 {
                source: [198, 18, 0, 1].into()..=[198, 18, 0, 1].into(),
                destination: [198, 18, 0, 2].into()..=[198, 18, 0, 9].into(),
            },
            tos: 0,
            source_ports: 1024..=1024,
            destination_ports: 5000..=5007,
            udp_checksum: true,
            tags: PktgenTags::Vlan(Vec::new()),
        }
    }

    fn lines(packets: &PktgenPackets, count: Option<u64>, delay_ns: Option<u64>) -> Vec<String> {
        settings(packets, count, delay_ns).into_iter().map(|setting| setting.line).collect()
    }

    #[test]
    fn what_is_written() {
        let expected = [
            "count 10000",
            "pkt_size 60",
            "delay 100000",
            "flag QUEUE_MAP_CPU",
            "src_mac 02:00:00:00:01:01",
            "dst_mac 02:00:00:00:01:ff",
            "dst_mac_count 4",
            "src_min 198.18.0.1",
            "src_max 198.18.0.1",
            "dst_min 198.18.0.2",
            "dst_max 198.18.0.9",
            "tos 00",
            "udp_src_min 1024",
            "udp_src_max 1024",
            "udp_dst_min 5000",
            "udp_dst_max 5008",
            "flag UDPCSUM",
        ];
        assert_eq!(lines(&packets(), Some(10_000), Some(100_000)), expected);
    }

    #[test]
    fn the_traps_are_walked_around() {
        let all = lines(&packets(), None, Some(NEVER_NS));
        assert_eq!((all[0].as_str(), all[2].as_str()), ("count 0", "delay 2147483648"));
        let double = PktgenPackets { tags: PktgenTags::Vlan(vec![0x6064, 0x1005]), ..packets() };
        let tags: Vec<String> =
            lines(&double, None, None).into_iter().filter(|l| l.contains("vlan")).collect();
        // The inner one first: without it the outer one is not taken.
        let expected = ["vlan_id 5", "vlan_p 0", "vlan_cfi 1", "svlan_id 100", "svlan_p 3", "svlan_cfi 0"];
        assert_eq!(tags, expected);
        assert_eq!(double.l2_bytes_min(), 66);
        let labels = PktgenPackets { tags: PktgenTags::Mpls(vec![0x0001_0040, 0x0002_0140]), ..packets() };
        assert!(lines(&labels, None, None).contains(&"mpls 00010040,00020040".to_owned()));
    }

    #[test]
    fn ipv6_has_its_own_words() {
        let addresses = PktgenAddresses::V6 {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
        };
        let packets = PktgenPackets { addresses, tos: 0x28, ..packets() };
        let all = lines(&packets, None, None);
        for line in ["src6 2001:db8::1", "dst6 2001:db8::2", "traffic_class 28"] {
            assert!(all.contains(&line.to_owned()), "{line}: {all:?}");
        }
        assert_eq!(packets.l2_bytes_min(), 78);
    }

    #[test]
    fn only_the_right_answer_counts() {
        let count = Setting::new("count", 100);
        assert!(count.is_answered_by("OK: count=100"));
        for other in ["OK: count=10", "OK: count=1000", "OK: delay=100", "Idle", "ERROR: x"] {
            assert!(!count.is_answered_by(other), "{other}");
        }
        assert!(flag("UDPCSUM").is_answered_by("OK: flags=0x80040"));
        assert!(!flag("UDPCSUM").is_answered_by("Flag -:UDPCSUM:- unknown"));
    }
}
