//! Whether the kernel's pktgen can send what a program says: found out by looking at the packets, all of them until they
//! repeat.

use std::net::{Ipv4Addr, Ipv6Addr};

use measure::record::Warning;
use template::{Emitter, Plan};
use traffic::{PktgenAddresses, PktgenPackets, PktgenSpec, PktgenTags};

use super::source::{Source, period};
use super::{Job, warning};

/// The most packets that are looked at.
const PERIOD_MAX: u64 = 1 << 20;
/// The TTL of pktgen's packets (net/core/pktgen.c, `fill_packet_ipv4`, 6.12).
const TTL: u8 = 32;

const ETHERNET_BYTES: usize = 14;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;
const ETHER_VLAN: u16 = 0x8100;
const ETHER_SERVICE_VLAN: u16 = 0x88a8;
const ETHER_MPLS: u16 = 0x8847;
/// The bit of a label that ends the stack.
const MPLS_LAST: u32 = 0x100;
const UDP: u8 = 17;
const NO_UDP: &str = "a packet is no UDP over IP behind VLAN tags or MPLS labels";
/// The most VLAN tags and MPLS labels that pktgen writes.
const VLANS_MAX: usize = 2;
const LABELS_MAX: usize = 16;

/// What pktgen is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) packets: PktgenPackets,
    /// In what its packets differ from those of the program.
    differences: Vec<String>,
}

/// What pktgen is to be told for a job, or why it cannot do it.
pub(super) fn told(job: &Job<'_>) -> Result<Told, String> {
    if job.cpus.len() > 1 {
        return Err("it starts and stops all of its threads together: use --threads 1".into());
    }
    if job.scenario.packets.mark {
        return Err("marks are written by the sender, and here the kernel writes the packets".into());
    }
    if job.count.is_some_and(|count| count > PktgenSpec::COUNT_MAX) {
        return Err(format!("it counts to {} packets", PktgenSpec::COUNT_MAX));
    }
    if job.pace().is_some_and(|pace| pace.interval_ns > PktgenSpec::DELAY_NS_MAX as f64) {
        return Err("its slowest rate is here one packet a second".into());
    }
    if job.pace().is_some_and(|pace| pace.interval_ns < 1.0) {
        return Err("its times are whole ns".into());
    }
    match (&job.source, job.source.emitter(0)) {
        (Source::Program { compiled, .. }, Some(emitter)) => of_program(&compiled.plan, emitter),
        (Source::Program { .. }, None) => Err("the first thread has no packet".into()),
        (Source::Capture(_), _) => Err("it makes its own packets, and cannot send those of a file".into()),
    }
}

/// From one packet to the next, in the whole ns that pktgen knows.
pub(super) fn delay_ns(interval_ns: f64) -> u64 {
    (interval_ns.round() as u64).clamp(1, PktgenSpec::DELAY_NS_MAX)
}

/// What is to be known before: that the packets are pktgen's, and that the rate is not quite the one that was asked for.
pub(super) fn warnings(job: &Job<'_>) -> Vec<Warning> {
    let Ok(told) = told(job) else { return Vec::new() };
    let mut all = vec![warning(
        "pktgen makes its own packets",
        told.differences.join("; "),
        "sizes, addresses, ports and tags are the program's; every other backend sends its packets as they are",
    )];
    if let Some(pace) = job.pace() {
        let off = pace.interval_ns / delay_ns(pace.interval_ns) as f64 - 1.0;
        if off.abs() > 1e-3 {
            all.push(warning(
                "pktgen cannot hold this rate",
                format!(
                    "it waits whole ns, here {} instead of {:.2}: {:+.2} %",
                    delay_ns(pace.interval_ns),
                    pace.interval_ns,
                    off * 100.0
                ),
                "take a rate whose interval is a whole number of ns, or another backend",
            ));
        }
    }
    all
}

/// Looks at all packets of a thread until they repeat.
fn of_program(plan: &Plan, emitter: &Emitter) -> Result<Told, String> {
    let period = period(plan, emitter, PERIOD_MAX)
        .ok_or_else(|| format!("the packets are random, or repeat only after more than {PERIOD_MAX}"))?;
    let mut room = vec![0; plan.longest_l2_bytes()];
    let mut parsed = |index| {
        let len = emitter.emit(index, &mut room);
        Headers::parse(&room[..len])
    };
    let first = parsed(0)?;
    let mut walks = first.fields().map(Walk::new);
    for index in 1..=period {
        let next = parsed(index)?;
        if !next.same_besides_fields(&first) {
            return Err("fields vary that are the same in all packets of pktgen: sizes, tags, TOS".into());
        }
        for (walk, value) in walks.iter_mut().zip(next.fields()) {
            walk.step(value)?;
        }
    }
    let [source_mac, destination_mac, source, destination, source_port, destination_port] = walks;
    let macs_walk = source_mac.count() > 1 || destination_mac.count() > 1;
    let others = [&source, &destination, &source_port, &destination_port];
    if macs_walk && others.iter().any(|walk| walk.count() > 1) {
        return Err(
            "its MAC addresses are a step behind its other fields, so that only one kind can vary".into()
        );
    }
    let packets = PktgenPackets {
        l2_bytes: first.l2_bytes as u32,
        source_mac: source_mac.macs()?,
        destination_mac: destination_mac.macs()?,
        addresses: addresses(&first, &source, &destination)?,
        tos: first.tos,
        source_ports: source_port.ports()?,
        destination_ports: destination_port.ports()?,
        udp_checksum: first.has_checksum,
        tags: first.tags.clone(),
    };
    if packets.source_mac.0 == [0; 6] {
        return Err("a source MAC address of zeros is the device's own there".into());
    }
    let least = packets.l2_bytes_min();
    if packets.l2_bytes < least {
        return Err(format!("packets of {} bytes; its own begin at {least}", packets.l2_bytes));
    }
    Ok(Told { packets, differences: first.differences() })
}

fn addresses(first: &Headers, source: &Walk, destination: &Walk) -> Result<PktgenAddresses, String> {
    if first.is_v4 {
        let range = |walk: &Walk| Ipv4Addr::from(walk.first as u32)..=Ipv4Addr::from(walk.last as u32);
        return Ok(PktgenAddresses::V4 { source: range(source), destination: range(destination) });
    }
    if source.count() > 1 || destination.count() > 1 {
        return Err("its IPv6 addresses do not vary".into());
    }
    let (source, destination) = (Ipv6Addr::from(source.first), Ipv6Addr::from(destination.first));
    if source.is_unspecified() {
        return Err("the source :: is the device's own address there".into());
    }
    Ok(PktgenAddresses::V6 { source, destination })
}

/// A field that is the same in all packets, or goes from its first value to its last in steps of one, again and again.
#[derive(Debug, Clone, Copy)]
struct Walk {
    first: u128,
    last: u128,
    now: u128,
    /// Whether it has come back to the first.
    wrapped: bool,
}

impl Walk {
    fn new(first: u128) -> Self {
        Self { first, last: first, now: first, wrapped: false }
    }

    /// The next packet has this value.
    fn step(&mut self, value: u128) -> Result<(), String> {
        let climbs = !self.wrapped && Some(value) == self.now.checked_add(1);
        let again = if self.now == self.last { self.first } else { self.now + 1 };
        if !climbs && value != again {
            return Err(
                "a field varies otherwise than by one from each packet to the next, all of its range".into(),
            );
        }
        if climbs {
            self.last = value;
        } else {
            self.wrapped = true;
        }
        self.now = value;
        Ok(())
    }

    fn count(&self) -> u128 {
        self.last - self.first + 1
    }

    /// The first address and their number.
    fn macs(&self) -> Result<([u8; 6], u32), String> {
        // Its first byte does not change there.
        if self.first >> 40 != self.last >> 40 {
            return Err("the first byte of its MAC addresses does not vary".into());
        }
        let [.., a, b, c, d, e, f] = self.first.to_be_bytes();
        Ok(([a, b, c, d, e, f], self.count() as u32))
    }

    fn ports(&self) -> Result<std::ops::RangeInclusive<u16>, String> {
        if self.count() > 1 && self.last == u128::from(u16::MAX) {
            return Err("its ranges of ports end at 65534".into());
        }
        Ok(self.first as u16..=self.last as u16)
    }
}

/// What matters of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Headers {
    l2_bytes: usize,
    macs: [u128; 2],
    tags: PktgenTags,
    is_v4: bool,
    tos: u8,
    addresses: [u128; 2],
    ports: [u128; 2],
    has_checksum: bool,
    ttl: u8,
    /// Identification, where there is one.
    id: u16,
    dont_fragment: bool,
    flow_label: u32,
}

impl Headers {
    /// Reads a packet, or says what of it pktgen's never have.
    fn parse(frame: &[u8]) -> Result<Self, String> {
        let no_udp = || NO_UDP.to_owned();
        let Between { tags, ether_type, end } = Between::parse(frame)?;
        let ip = frame.get(end..).ok_or_else(no_udp)?;
        let is_v4 = match (ether_type, ip.first().map(|byte| byte >> 4)) {
            (Some(ETHER_IPV4) | None, Some(4)) => true,
            (Some(ETHER_IPV6), Some(6)) => false,
            (None, Some(6)) => false,
            _ => return Err(no_udp()),
        };
        let mut headers = Self {
            l2_bytes: frame.len(),
            macs: [number(&frame[6..12]), number(&frame[..6])],
            tags,
            is_v4,
            tos: 0,
            addresses: [0; 2],
            ports: [0; 2],
            has_checksum: false,
            ttl: 0,
            id: 0,
            dont_fragment: false,
            flow_label: 0,
        };
        let udp = if is_v4 { headers.ipv4(ip) } else { headers.ipv6(ip) };
        let udp = udp.ok_or_else(no_udp)??;
        let header = udp.get(..8).ok_or_else(no_udp)?;
        if number(&header[4..6]) != udp.len() as u128 {
            return Err("a packet has a wrong length, or bytes behind its end".into());
        }
        headers.ports = [number(&header[..2]), number(&header[2..4])];
        headers.has_checksum = header[6..] != [0, 0];
        Ok(headers)
    }

    /// Reads an IPv4 header; what is behind it. None where that is not UDP.
    fn ipv4<'a>(&mut self, ip: &'a [u8]) -> Option<Result<&'a [u8], String>> {
        let header = ip.get(..20).filter(|header| header[9] == UDP)?;
        let fragment = number(&header[6..8]) as u16;
        if header[0] != 0x45 || fragment & 0xbfff != 0 || number(&header[2..4]) != ip.len() as u128 {
            return Some(
                Err("its IPv4 packets have no options, fragments, or bytes behind their end".into()),
            );
        }
        (self.tos, self.ttl) = (header[1], header[8]);
        self.id = number(&header[4..6]) as u16;
        self.dont_fragment = fragment & 0x4000 != 0;
        self.addresses = [number(&header[12..16]), number(&header[16..])];
        Some(Ok(&ip[20..]))
    }

    /// The same of an IPv6 header.
    fn ipv6<'a>(&mut self, ip: &'a [u8]) -> Option<Result<&'a [u8], String>> {
        let header = ip.get(..40).filter(|header| header[6] == UDP)?;
        if number(&header[4..6]) != ip.len() as u128 - 40 {
            return Some(Err("its IPv6 packets have no bytes behind their end".into()));
        }
        let word = number(&header[..4]) as u32;
        (self.tos, self.ttl, self.flow_label) = ((word >> 20) as u8, header[7], word & 0xf_ffff);
        self.addresses = [number(&header[8..24]), number(&header[24..])];
        Some(Ok(&ip[40..]))
    }

    /// What may vary.
    fn fields(&self) -> [u128; 6] {
        let ([a, b], [c, d], [e, f]) = (self.macs, self.addresses, self.ports);
        [a, b, c, d, e, f]
    }

    fn same_besides_fields(&self, other: &Self) -> bool {
        // What pktgen writes itself may do as it likes.
        let alike = Self {
            macs: other.macs,
            addresses: other.addresses,
            ports: other.ports,
            ttl: other.ttl,
            id: other.id,
            dont_fragment: other.dont_fragment,
            flow_label: other.flow_label,
            ..self.clone()
        };
        alike == *other
    }

    /// In what pktgen's packets differ.
    fn differences(&self) -> Vec<String> {
        let mut all = vec!["payload: 16 bytes of its own, then zeros".to_owned()];
        let hops = if self.is_v4 { "TTL" } else { "hop limit" };
        if self.ttl != TTL {
            all.push(format!("{hops} {TTL} instead of {}", self.ttl));
        }
        if self.dont_fragment {
            all.push("DF not set".into());
        }
        if self.is_v4 {
            all.push("identification counts from 0".into());
        }
        if self.flow_label != 0 {
            all.push("flow label 0".into());
        }
        all
    }
}

/// What lies between the Ethernet and the IP header.
struct Between {
    tags: PktgenTags,
    /// The EtherType of what follows; behind labels nobody says it.
    ether_type: Option<u16>,
    /// Where that begins.
    end: usize,
}

impl Between {
    fn parse(frame: &[u8]) -> Result<Self, String> {
        let field =
            |at: usize, len: usize| frame.get(at..at + len).map(number).ok_or_else(|| NO_UDP.to_owned());
        let mut end = ETHERNET_BYTES;
        let mut ether_type = field(end - 2, 2)? as u16;
        let mut vlans = Vec::new();
        while ether_type == ETHER_VLAN {
            vlans.push(field(end, 2)? as u16);
            ether_type = field(end + 2, 2)? as u16;
            end += 4;
        }
        if ether_type == ETHER_SERVICE_VLAN {
            return Err("its VLAN tags have the EtherType 0x8100, the outer one too".into());
        }
        if vlans.len() > VLANS_MAX {
            return Err(format!("it writes up to {VLANS_MAX} VLAN tags"));
        }
        if ether_type != ETHER_MPLS {
            return Ok(Self { tags: PktgenTags::Vlan(vlans), ether_type: Some(ether_type), end });
        }
        if !vlans.is_empty() {
            return Err("it writes VLAN tags or MPLS labels, not both".into());
        }
        let mut labels = Vec::new();
        while labels.last().is_none_or(|label| label & MPLS_LAST == 0) {
            labels.push(field(end, 4)? as u32);
            end += 4;
        }
        if labels.len() > LABELS_MAX {
            return Err(format!("it writes up to {LABELS_MAX} MPLS labels"));
        }
        Ok(Self { tags: PktgenTags::Mpls(labels), ether_type: None, end })
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::source::compile;
    use crate::scenario::Packets;

    fn of(program: &str) -> Result<Told, String> {
        let mac = Some([2, 0, 0, 0, 1, 1]);
        let device =
            template::Device { mac, ipv4: Some([198, 18, 0, 1].into()), ipv6: "2001:db8::1".parse().ok() };
        let compiled = compile(&Packets::default(), program, device).unwrap();
        of_program(&compiled.plan, &compiled.plan.emitter(0, 1, 0).unwrap())
    }

    #[test]
    fn what_the_flags_stand_for_can_be_sent() {
        let told =
            of("size(64): { eth(da=02:00:00:00:01:02), ipv4(ttl=64, df, sa=198.18.0.1, da=198.18.0.2), \
                       udp(sp=1024, dp=dinc(5000, 5007)) }")
            .unwrap();
        let expected = PktgenPackets {
            l2_bytes: 60,
            source_mac: ([2, 0, 0, 0, 1, 1], 1),
            destination_mac: ([2, 0, 0, 0, 1, 2], 1),
            addresses: PktgenAddresses::V4 {
                source: [198, 18, 0, 1].into()..=[198, 18, 0, 1].into(),
                destination: [198, 18, 0, 2].into()..=[198, 18, 0, 2].into(),
            },
            tos: 0,
            source_ports: 1024..=1024,
            destination_ports: 5000..=5007,
            udp_checksum: true,
            tags: PktgenTags::Vlan(vec![]),
        };
        assert_eq!(told.packets, expected);
        let differences = ["payload: 16 bytes of its own, then zeros", "TTL 32 instead of 64", "DF not set"];
        assert_eq!(told.differences[..3], differences);
    }

    #[test]
    fn ranges_tags_and_ipv6_are_seen() {
        let told = of("{ vlan(id=7, pcp=3), vlan(id=9), ipv4(ttl=1, da=dinc(10.0.0.1, 10.0.0.3)), udp(sp=dinc(1, 4), dp=9), \
                       fill(0, 30) }")
        .unwrap();
        assert_eq!(told.packets.tags, PktgenTags::Vlan(vec![0x6007, 9]));
        assert_eq!(told.packets.source_ports, 1..=4);
        let PktgenAddresses::V4 { destination, .. } = told.packets.addresses else { panic!() };
        assert_eq!(destination, Ipv4Addr::new(10, 0, 0, 1)..=Ipv4Addr::new(10, 0, 0, 3));
        let told =
            of("{ mpls(label=5), mpls(label=6), ipv4(ttl=1, da=1.2.3.4), udp(sp=9, dp=9), fill(0, 30) }")
                .unwrap();
        assert_eq!(told.packets.tags, PktgenTags::Mpls(vec![0x5000, 0x6100]));
        let told = of("{ ipv6(hl=32, da=2001:db8::2, fl=3), udp(sp=9, dp=9), fill(0, 20) }").unwrap();
        assert!(matches!(told.packets.addresses, PktgenAddresses::V6 { .. }));
        assert!(told.differences.contains(&"flow label 0".to_owned()));
        let told = of(
            "{ eth(da=dinc(02:00:00:00:00:fe, 02:00:00:00:01:01)), ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 20) }",
        );
        assert_eq!(told.unwrap().packets.destination_mac, ([2, 0, 0, 0, 0, 0xfe], 4));
        // Two packets that follow each other are a range of two.
        let pair = "{ ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 20) } { ipv4(da=1.2.3.4), udp(sp=9, dp=10), fill(0, 20) }";
        assert_eq!(of(pair).unwrap().packets.destination_ports, 9..=10);
    }

    #[test]
    fn what_pktgen_cannot_do_is_refused() {
        let udp = |udp: &str| format!("{{ ipv4(da=1.2.3.4), udp({udp}), fill(0, 20) }}");
        for (program, why) in [
            ("{ ipv4(da=1.2.3.4), tcp(dp=9), fill(0, 30) }".to_owned(), "no UDP"),
            ("{ arp() }".into(), "no UDP"),
            ("{ 1, 2, 3 }".into(), "no UDP"),
            (udp("sp=drnd(), dp=9"), "random"),
            (udp("sp=dinc(1, 9, 2), dp=9"), "otherwise"),
            (udp("sp=ddec(1, 9), dp=9"), "otherwise"),
            (udp("sp=dinc(1, 3, 1, 2), dp=9"), "otherwise"),
            (udp("sp=dinc(65000, 65535), dp=9"), "65534"),
            (udp("sp=9, dp=9, len=20"), "wrong length"),
            ("{ ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 15) }".into(), "begin at 58"),
            ("{ ipv4(da=1.2.3.4, tos=dinc(0, 3)), udp(sp=9, dp=9), fill(0, 20) }".into(), "TOS"),
            ("{ ipv4(da=1.2.3.4, mf), udp(sp=9, dp=9), fill(0, 20) }".into(), "fragments"),
            ("{ vlan(1ad, id=1), ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 20) }".into(), "0x8100"),
            ("{ vlan(id=1), mpls(label=1), ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 20) }".into(), "not both"),
            ("{ eth(sa=00:00:00:00:00:00), ipv4(da=1.2.3.4), udp(sp=9, dp=9), fill(0, 20) }".into(), "of zeros"),
            ("{ ipv6(hl=1, da=dinc(2001:db8::2, 2001:db8::9)), udp(sp=9, dp=9), fill(0, 20) }".into(), "IPv6"),
            ("{ eth(sa=dinc(02:00:00:00:00:01, 02:00:00:00:00:04)), ipv4(da=1.2.3.4), udp(sp=dinc(1, 4), dp=9), fill(0, 20) }".into(), "a step behind"),
        ] {
            let error = of(&program).unwrap_err();
            assert!(error.contains(why), "{program}: {error}");
        }
    }

    #[test]
    fn a_walk_is_whole_and_by_ones() {
        let walk = |values: &[u128]| {
            let mut walk = Walk::new(values[0]);
            values[1..].iter().try_for_each(|&value| walk.step(value)).map(|()| (walk.first, walk.last))
        };
        assert_eq!(walk(&[5, 5, 5]), Ok((5, 5)));
        assert_eq!(walk(&[5, 6, 7, 5, 6, 7, 5]), Ok((5, 7)));
        for wrong in [&[5, 6, 7, 5, 6, 5][..], &[5, 6, 6], &[5, 5, 6], &[6, 5, 6], &[5, 7], &[5, 6, 5, 6, 7]]
        {
            assert!(walk(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn delays_are_whole() {
        assert_eq!([67.2, 100_000.0, 0.3, 1e12].map(delay_ns), [67, 100_000, 1, 1_000_000_000]);
    }
}
