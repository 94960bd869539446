//! What frames hold, and what is wrong with them: a check of packets before they are sent, or after they came.
//!
//! It sees bytes only, and adds up checksums by code of its own: it is the check of what the compiler computes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::layers::{self, Layer};
use crate::proto::Id;

const FCS_BYTES: usize = 4;
/// The least frame on Ethernet, without FCS (IEEE 802.3).
const LEAST_L2_BYTES: usize = 60;
/// Flows that are told apart, so that random frames do not fill the memory.
const MOST_FLOWS: usize = 1 << 20;

/// Counts frames by size and flow, and what is wrong with them. Frames are Ethernet frames without FCS.
///
/// A flow is all that a switch, a router or a receiver may tell packets apart by: for each header in turn, tunnels and
/// what is in them included, the VLAN's number, the MPLS label, the key of GRE, the number of VXLAN, addresses and
/// protocol of IP, ports of UDP and TCP, and type and identifier of ICMP messages that have one. A frame without IP is
/// told by its Ethernet header.
#[derive(Debug, Default)]
pub struct Audit {
    packets: u64,
    l2_bytes: u64,
    sizes: BTreeMap<usize, u64>,
    flows: HashMap<Box<[u8]>, u64>,
    beyond: u64,
    problems: BTreeMap<Problem, Occurrences>,
    without_udp_checksum: u64,
    key: Vec<u8>,
}

/// Something that is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// Shorter than 60 bytes without FCS, the least on Ethernet.
    Runt,
    /// The Ethernet source is a group address.
    GroupSource,
    /// A header is cut off.
    Truncated,
    /// The version or the header's length of IP is impossible.
    IpHeader,
    /// The time to live or hop limit is 0.
    TtlZero,
    /// The length of IPv4 is not that of the bytes that are there.
    Ipv4Length,
    /// The length of IPv6 is not that of the bytes that are there.
    Ipv6Length,
    /// The length of UDP is not that of its datagram.
    UdpLength,
    /// The data offset of TCP is impossible.
    TcpHeader,
    /// A wrong checksum of an IPv4 header.
    Ipv4Checksum,
    /// A wrong checksum of UDP.
    UdpChecksum,
    /// No checksum of UDP over IPv6, where it is needed (RFC 8200 section 8.1).
    UdpChecksumMissing,
    /// A wrong checksum of TCP.
    TcpChecksum,
    /// A wrong checksum of ICMP.
    IcmpChecksum,
    /// A wrong checksum of ICMPv6.
    Icmpv6Checksum,
    /// A wrong checksum of GRE.
    GreChecksum,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runt => "frame below 64 bytes (with FCS)",
            Self::GroupSource => "source MAC address is a group address",
            Self::Truncated => "header cut off",
            Self::IpHeader => "impossible version or header length of IP",
            Self::TtlZero => "time to live is 0",
            Self::Ipv4Length => "wrong IPv4 length",
            Self::Ipv6Length => "wrong IPv6 length",
            Self::UdpLength => "wrong UDP length",
            Self::TcpHeader => "impossible data offset of TCP",
            Self::Ipv4Checksum => "wrong IPv4 header checksum",
            Self::UdpChecksum => "wrong UDP checksum",
            Self::UdpChecksumMissing => "no UDP checksum over IPv6",
            Self::TcpChecksum => "wrong TCP checksum",
            Self::IcmpChecksum => "wrong ICMP checksum",
            Self::Icmpv6Checksum => "wrong ICMPv6 checksum",
            Self::GreChecksum => "wrong GRE checksum",
        })
    }
}

/// How often something was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrences {
    /// Packets that have it.
    pub packets: u64,
    /// Number of the first one, from 0.
    pub first: u64,
    last: u64,
}

/// How packets are spread over flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCounts {
    /// Different flows.
    pub distinct: u64,
    /// Packets of the smallest.
    pub smallest: u64,
    /// Packets of the largest.
    pub largest: u64,
    /// Packets of flows beyond the first 1,048,576, which were not told apart: if there are any, there are more flows.
    pub beyond: u64,
}

impl Audit {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a frame, given without its FCS. Any bytes will do.
    pub fn add(&mut self, frame: &[u8]) {
        let (layers, cut) = layers::follow(frame);
        let mut found = Found::default();
        if frame.len() < LEAST_L2_BYTES {
            found.problems.push(Problem::Runt);
        }
        if cut.is_some() {
            found.problems.push(Problem::Truncated);
        }
        for index in 0..layers.len() {
            Look { frame, layers: &layers, index }.check(&mut found);
        }
        self.count_flow(frame, &layers);
        for problem in found.problems {
            let index = self.packets;
            let known =
                self.problems.entry(problem).or_insert(Occurrences { packets: 0, first: index, last: index });
            known.packets += u64::from(known.packets == 0 || known.last != index);
            known.last = index;
        }
        self.without_udp_checksum += u64::from(found.without_udp_checksum);
        *self.sizes.entry(frame.len() + FCS_BYTES).or_default() += 1;
        self.l2_bytes += frame.len() as u64;
        self.packets += 1;
    }

    /// Frames that were counted.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Their bytes without FCS.
    pub fn l2_bytes(&self) -> u64 {
        self.l2_bytes
    }

    /// Frames of each size in bytes, with the FCS.
    pub fn sizes(&self) -> &BTreeMap<usize, u64> {
        &self.sizes
    }

    /// Flows, and how packets are spread over them.
    pub fn flows(&self) -> FlowCounts {
        FlowCounts {
            distinct: self.flows.len() as u64,
            smallest: self.flows.values().copied().min().unwrap_or(0),
            largest: self.flows.values().copied().max().unwrap_or(0),
            beyond: self.beyond,
        }
    }

    /// What is wrong, and with how many packets; nothing if all is right.
    pub fn problems(&self) -> impl Iterator<Item = (Problem, Occurrences)> + '_ {
        self.problems.iter().map(|(&problem, &occurrences)| (problem, occurrences))
    }

    /// Packets with a UDP header over IPv4 whose checksum is 0, which means that there is none; this is allowed.
    pub fn without_udp_checksum(&self) -> u64 {
        self.without_udp_checksum
    }

    fn count_flow(&mut self, frame: &[u8], layers: &[Layer]) {
        self.key.clear();
        for layer in layers {
            flow_key(frame, layer, &mut self.key);
        }
        let any_ip = layers.iter().any(|layer| matches!(layer.proto.id, Id::Ipv4 | Id::Ipv6));
        if !any_ip {
            self.key.extend_from_slice(frame.get(..14).unwrap_or(frame));
        }
        if let Some(packets) = self.flows.get_mut(self.key.as_slice()) {
            *packets += 1;
        } else if self.flows.len() < MOST_FLOWS {
            self.flows.insert(self.key.as_slice().into(), 1);
        } else {
            self.beyond += 1;
        }
    }
}

/// Adds what tells flows apart in a header, with a byte in front that says which header.
fn flow_key(frame: &[u8], layer: &Layer, key: &mut Vec<u8>) {
    let (id, at) = (layer.proto.id, layer.at);
    let echo = |types: &[u8]| types.contains(&frame[at]) && layer.len.max(8) + at <= frame.len();
    // First byte and length of each part, from the header's first byte on.
    let parts: &[(usize, usize)] = match id {
        Id::Vlan => {
            key.extend([id as u8, frame[at] & 0x0f, frame[at + 1]]);
            return;
        }
        Id::Mpls => {
            key.extend([id as u8, frame[at], frame[at + 1], frame[at + 2] & 0xf0]);
            return;
        }
        Id::Gre if frame[at] & 0xa0 == 0x20 => &[(4, 4)],
        Id::Gre if frame[at] & 0xa0 == 0xa0 => &[(8, 4)],
        Id::Vxlan => &[(4, 3)],
        Id::Ipv4 => &[(9, 1), (12, 8)],
        Id::Ipv6 => &[(6, 1), (8, 32)],
        Id::Udp | Id::Tcp => &[(0, 4)],
        Id::Icmp4 if echo(&[0, 8, 13, 14]) => &[(0, 1), (4, 2)],
        Id::Icmp6 if echo(&[128, 129]) => &[(0, 1), (4, 2)],
        Id::Icmp4 | Id::Icmp6 => &[(0, 2)],
        _ => return,
    };
    key.push(id as u8);
    for &(start, len) in parts {
        key.extend_from_slice(&frame[at + start..at + start + len]);
    }
}

#[derive(Default)]
struct Found {
    problems: Vec<Problem>,
    without_udp_checksum: bool,
}

/// One header of a frame.
struct Look<'a> {
    frame: &'a [u8],
    layers: &'a [Layer],
    index: usize,
}

impl Look<'_> {
    fn check(&self, found: &mut Found) {
        let Layer { proto, at, .. } = self.layers[self.index];
        match proto.id {
            Id::Eth if self.frame[at + 6] & 1 == 1 => found.problems.push(Problem::GroupSource),
            Id::Ipv4 => self.check_ipv4(&mut found.problems),
            Id::Ipv6 => self.check_ipv6(&mut found.problems),
            Id::Udp => self.check_udp(found),
            Id::Tcp => self.check_tcp(&mut found.problems),
            Id::Icmp4 => self.check_sum(None, Problem::IcmpChecksum, &mut found.problems),
            Id::Icmp6 => self.check_sum(Some(58), Problem::Icmpv6Checksum, &mut found.problems),
            Id::Gre if self.frame[at] & 0x80 != 0 => {
                self.check_sum(None, Problem::GreChecksum, &mut found.problems);
            }
            _ => {}
        }
    }

    fn check_ipv4(&self, problems: &mut Vec<Problem>) {
        let Layer { at, len, .. } = self.layers[self.index];
        let header = &self.frame[at..at + len];
        if header[0] >> 4 != 4 || header[0] & 15 < 5 {
            return problems.push(Problem::IpHeader);
        }
        if header[8] == 0 {
            problems.push(Problem::TtlZero);
        }
        if sum(&[header]) != 0xffff {
            problems.push(Problem::Ipv4Checksum);
        }
        if !self.length_is_right(len) {
            problems.push(Problem::Ipv4Length);
        }
    }

    fn check_ipv6(&self, problems: &mut Vec<Problem>) {
        let Layer { at, len, .. } = self.layers[self.index];
        if self.frame[at] >> 4 != 6 {
            return problems.push(Problem::IpHeader);
        }
        if self.frame[at + 7] == 0 {
            problems.push(Problem::TtlZero);
        }
        if !self.length_is_right(len) {
            problems.push(Problem::Ipv6Length);
        }
    }

    /// Whether an IP header says how many bytes there are, `least` or more. In a frame of the least size, padding may
    /// follow.
    fn length_is_right(&self, least: usize) -> bool {
        let layer = &self.layers[self.index];
        let Some(end) = layers::end_by_length(self.frame, layer) else { return false };
        let there = layers::end_of_datagram(self.frame, self.layers, self.index).unwrap_or(self.frame.len());
        if end < layer.at + least || end > there {
            return false;
        }
        let below = self.layers[..self.index].iter().rev();
        let around = below.clone().find(|below| matches!(below.proto.id, Id::Eth | Id::Ipv4 | Id::Ipv6));
        let padded =
            around.is_some_and(|around| around.proto.id == Id::Eth && there - around.at <= LEAST_L2_BYTES);
        end == there || padded
    }

    fn check_udp(&self, found: &mut Found) {
        let at = self.layers[self.index].at;
        let Some(end) = self.whole_datagram() else { return };
        let said = usize::from(u16::from_be_bytes([self.frame[at + 4], self.frame[at + 5]]));
        if said != end - at {
            found.problems.push(Problem::UdpLength);
        }
        let none = self.frame[at + 6..at + 8] == [0, 0];
        match none {
            false => self.check_sum(Some(17), Problem::UdpChecksum, &mut found.problems),
            true if self.is_over(Id::Ipv6) => found.problems.push(Problem::UdpChecksumMissing),
            true => found.without_udp_checksum = true,
        }
    }

    fn check_tcp(&self, problems: &mut Vec<Problem>) {
        let at = self.layers[self.index].at;
        let Some(end) = self.whole_datagram() else { return };
        let offset = usize::from(self.frame[at + 12] >> 4) * 4;
        if offset < 20 || at + offset > end {
            problems.push(Problem::TcpHeader);
        }
        self.check_sum(Some(6), Problem::TcpChecksum, problems);
    }

    /// The receiver's test: the sum over all, the checksum included, is all ones. With a protocol's number, the pseudo
    /// header belongs to it.
    fn check_sum(&self, pseudo: Option<u8>, problem: Problem, problems: &mut Vec<Problem>) {
        let at = self.layers[self.index].at;
        let Some(end) = self.whole_datagram() else { return };
        let body = &self.frame[at..end];
        let total = match (pseudo, self.addresses()) {
            (None, _) => sum(&[body]),
            (Some(_), None) => return,
            (Some(protocol), Some(addresses)) => {
                let length = (body.len() as u32).to_be_bytes();
                sum(&[addresses, &length, &[0, protocol], body])
            }
        };
        if total != 0xffff {
            problems.push(problem);
        }
    }

    /// Where the datagram ends that the header is in; none if it is only a fragment, or its length is wrong.
    fn whole_datagram(&self) -> Option<usize> {
        let below = &self.layers[self.index.checked_sub(1)?];
        let fragment = below.proto.id == Id::Ipv4 && self.frame[below.at + 6] & 0x20 != 0;
        if fragment { None } else { layers::end_of_datagram(self.frame, self.layers, self.index) }
    }

    fn is_over(&self, id: Id) -> bool {
        self.index.checked_sub(1).is_some_and(|below| self.layers[below].proto.id == id)
    }

    /// Both addresses of the IP header below.
    fn addresses(&self) -> Option<&[u8]> {
        let below = &self.layers[self.index.checked_sub(1)?];
        match below.proto.id {
            Id::Ipv4 => self.frame.get(below.at + 12..below.at + 20),
            Id::Ipv6 => self.frame.get(below.at + 8..below.at + 40),
            _ => None,
        }
    }
}

/// The one's-complement sum of the parts, each of which begins a new pair of bytes.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
