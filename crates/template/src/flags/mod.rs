//! Packets described by a handful of values, as users of pktgen think, and the program that these stand for.

mod values;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::schedule;
pub use values::{AddressRange, Mac, PortRange, Protocol, Sizes, ValueError, VlanTag, parse_switch};

const FCS_BYTES: u32 = 4;
const ETHERNET_BYTES: u32 = 14;
/// A VLAN tag or an MPLS label.
const TAG_BYTES: u32 = 4;
/// Of the least frame on Ethernet.
const LEAST_FRAME: u32 = 64;
/// VLAN tags: one of the provider, one of the customer.
const MOST_VLANS: usize = 2;
const MOST_LABELS: usize = 10;
const LAST_LABEL: u32 = (1 << 20) - 1;
/// Packets after which weights must be exact.
const MOST_PERIOD: u64 = 65_536;
const FIRST_ICMP_ID: u16 = 1;

/// What the flags say. [`Default`] is what they say if none is given: UDP in 64 bytes from 198.18.0.1 port 1024 to 198.18.0.2 port
/// 5000, the addresses of RFC 2544 appendix C.2.2.
///
/// The fields are public and may hold anything; what does not go together is said by [`program`](Self::program). A range whose
/// last is below its first is its first alone.
///
/// Ranges are combined in full: source address, destination address, source port, destination port, and the first one
/// that is a range changes fastest. Each combination is a flow. [`flows`](Self::flows) says how many there are; less than all
/// are the first so many. Without any range the flows differ by their destination port, or ICMP identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// What is on top of IP.
    pub protocol: Protocol,
    /// Sizes of the frames; none for 64 bytes, or the least that holds the headers and the payload.
    pub sizes: Option<Sizes>,
    /// Number of flows, all of them equally often; none for all combinations of the ranges. With several sizes, each size
    /// has all flows.
    pub flows: Option<u64>,
    /// Packets of a flow before the next one; with several sizes, of each size.
    pub flow_length: u64,
    /// Source addresses.
    pub source: Option<AddressRange>,
    /// Destination addresses.
    pub destination: Option<AddressRange>,
    /// Source ports.
    pub source_port: Option<PortRange>,
    /// Destination ports.
    pub destination_port: Option<PortRange>,
    /// Ethernet source; none for the device's.
    pub source_mac: Option<Mac>,
    /// Ethernet destination.
    pub destination_mac: Mac,
    /// VLAN tags, the outer first. With two, the outer one is of IEEE 802.1ad.
    pub vlans: Vec<VlanTag>,
    /// MPLS labels, the outer first.
    pub mpls: Vec<u32>,
    /// Time to live, hop limit, and that of the labels.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Whether UDP over IPv4 has a checksum. All others have one always.
    pub checksum: bool,
    /// What stands in front of the zeros that fill the frame.
    pub payload: Vec<u8>,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            protocol: Protocol::Udp,
            sizes: None,
            flows: None,
            flow_length: 1,
            source: None,
            destination: None,
            source_port: None,
            destination_port: None,
            source_mac: None,
            destination_mac: Mac([2, 0, 0, 0, 1, 2]),
            vlans: Vec::new(),
            mpls: Vec::new(),
            ttl: 64,
            tos: 0,
            checksum: true,
            payload: Vec::new(),
        }
    }
}

/// Flags that do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FlagError {
    #[error("one of source and destination is IPv4 and the other IPv6: name both, of the same version")]
    Versions,
    #[error("0 is no number of flows, nor of packets of a flow: both are at least 1")]
    Zero,
    #[error("the ranges have {combinations} combinations, and {flows} flows are wanted: make a range larger")]
    TooFew { flows: u64, combinations: u128 },
    #[error(
        "{flows} flows are wanted, and {what} {first} to {last} are {most}: name a range of addresses or ports for more"
    )]
    TooMany { flows: u64, what: &'static str, first: u16, last: u16, most: u64 },
    #[error("a value would stay for more than 2^64 packets: make a range or the flows' length smaller")]
    TooLong,
    #[error("ICMP has no ports: leave them out, or take UDP or TCP")]
    Ports,
    #[error("a frame of {size} bytes is too small: headers, payload and FCS have {least}")]
    Size { size: u32, least: u32 },
    #[error("{0} VLAN tags are too many: {MOST_VLANS} are possible")]
    Vlans(usize),
    #[error("no VLAN has the number {id} or the priority {pcp}: 0 to 4095 and 0 to 7 are possible")]
    Vlan { id: u16, pcp: u8 },
    #[error("{0} MPLS labels are too many: {MOST_LABELS} are possible")]
    Labels(usize),
    #[error("no MPLS label has the number {0}: 0 to {LAST_LABEL} are possible")]
    Label(u32),
    #[error("{0} needs its checksum: only UDP over IPv4 can be without")]
    Checksum(&'static str),
    #[error("the weights of the sizes are exact after {0} packets only: at most {MOST_PERIOD} are possible")]
    Weights(u64),
}

impl Flags {
    /// The program that the flags stand for. It is a program like others: it may be shown, changed and parsed.
    ///
    /// # Errors
    /// Flags that do not go together.
    pub fn program(&self) -> Result<String, FlagError> {
        let packet = self.packet()?;
        let mut text = String::new();
        for prefix in self.prefixes()? {
            let _ = writeln!(text, "{prefix}{packet}");
        }
        Ok(text)
    }

    /// What stands before the packets: one for each size.
    fn prefixes(&self) -> Result<Vec<String>, FlagError> {
        let least = self.least_frame();
        let fits = |&size: &u32| size >= least;
        let check = |size: u32| Some(size).filter(fits).ok_or(FlagError::Size { size, least });
        Ok(match &self.sizes {
            None => vec![format!("size({}): ", least.max(LEAST_FRAME))],
            Some(Sizes::One(size)) => vec![format!("size({}): ", check(*size)?)],
            Some(Sizes::Range { first, last }) => vec![format!("size({}-{last}): ", check(*first)?)],
            Some(Sizes::Mix(mix)) => {
                let weights: Vec<u32> = mix.iter().map(|&(_, weight)| weight).collect();
                let period = schedule::period(&weights);
                if period > MOST_PERIOD {
                    return Err(FlagError::Weights(period));
                }
                let one = |&(size, weight): &(u32, u32)| {
                    check(size).map(|size| format!("weight({weight}): size({size}): "))
                };
                mix.iter().map(one).collect::<Result<_, _>>()?
            }
        })
    }

    /// The size of a frame that has nothing but headers and payload.
    fn least_frame(&self) -> u32 {
        let tags = TAG_BYTES * (self.vlans.len() + self.mpls.len()) as u32;
        let network = if self.is_v6() { 40 } else { 20 };
        let transport = if self.protocol == Protocol::Tcp { 20 } else { 8 };
        let payload = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        (ETHERNET_BYTES + tags + network + transport + FCS_BYTES).saturating_add(payload)
    }

    fn is_v6(&self) -> bool {
        let named = [self.source, self.destination];
        named.into_iter().flatten().any(|range| range.is_v6())
    }

    /// The packet in its braces.
    fn packet(&self) -> Result<String, FlagError> {
        let fields = Fields::new(self)?;
        let mut text = String::from("{\n");
        let source = self.source_mac.map_or(String::new(), |mac| format!(", sa={mac}"));
        let _ = write!(text, "  eth(da={}{source})", self.destination_mac);
        self.tags(&mut text)?;
        let [source, destination, source_port, destination_port] = &fields.values;
        let (tos, ttl) = (self.tos, self.ttl);
        let _ = match self.is_v6() {
            false => {
                let tos = if tos == 0 { String::new() } else { format!("tos={tos}, ") };
                write!(text, ",\n  ipv4({tos}ttl={ttl}, df, sa={source}, da={destination})")
            }
            true => {
                let tos = if tos == 0 { String::new() } else { format!("tc={tos}, ") };
                write!(text, ",\n  ipv6({tos}hl={ttl}, sa={source}, da={destination})")
            }
        };
        let ports = format!("sp={source_port}, dp={destination_port}");
        let _ = match self.protocol {
            Protocol::Udp => {
                let none = if self.checksum { "" } else { ", csum=0" };
                write!(text, ",\n  udp({ports}{none})")
            }
            Protocol::Tcp => write!(text, ",\n  tcp({ports}, ack, win=65535)"),
            Protocol::Icmp => {
                let version = if self.is_v6() { 6 } else { 4 };
                write!(text, ",\n  icmp{version}(echorequest, id={destination_port}, seq=0)")
            }
        };
        if !self.payload.is_empty() {
            let _ = write!(text, ",\n  {}", quoted(&self.payload));
        }
        text += "\n}";
        Ok(text)
    }

    fn tags(&self, text: &mut String) -> Result<(), FlagError> {
        if self.vlans.len() > MOST_VLANS {
            return Err(FlagError::Vlans(self.vlans.len()));
        }
        if self.mpls.len() > MOST_LABELS {
            return Err(FlagError::Labels(self.mpls.len()));
        }
        for (index, &VlanTag { id, pcp }) in self.vlans.iter().enumerate() {
            if id > 4095 || pcp > 7 {
                return Err(FlagError::Vlan { id, pcp });
            }
            let outer = if index + 1 < self.vlans.len() { "1ad, " } else { "" };
            let pcp = if pcp == 0 { String::new() } else { format!(", pcp={pcp}") };
            let _ = write!(text, ",\n  vlan({outer}id={id}{pcp})");
        }
        for &label in &self.mpls {
            if label > LAST_LABEL {
                return Err(FlagError::Label(label));
            }
            let _ = write!(text, ",\n  mpls(label={label}, ttl={})", self.ttl);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), FlagError> {
        if self.flows == Some(0) || self.flow_length == 0 {
            return Err(FlagError::Zero);
        }
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.is_v6() != destination.is_v6()
        {
            return Err(FlagError::Versions);
        }
        if self.protocol == Protocol::Icmp && (self.source_port.is_some() || self.destination_port.is_some())
        {
            return Err(FlagError::Ports);
        }
        match (self.checksum, self.protocol) {
            (true, _) => Ok(()),
            (false, Protocol::Udp) if !self.is_v6() => Ok(()),
            (false, Protocol::Udp) => Err(FlagError::Checksum("UDP over IPv6")),
            (false, Protocol::Tcp) => Err(FlagError::Checksum("TCP")),
            (false, Protocol::Icmp) => Err(FlagError::Checksum("ICMP")),
        }
    }
}

/// What the fields that tell flows apart hold, as text: addresses and ports. The last may be an ICMP identifier.
struct Fields {
    values: [String; 4],
}

/// One of these fields: its values, how many there are (2^128 is said as one less), and how a value is shown.
struct Field {
    first: u128,
    last: u128,
    count: u128,
    show: fn(u128) -> String,
}

impl Fields {
    fn new(flags: &Flags) -> Result<Self, FlagError> {
        flags.check()?;
        let mut fields = fields(flags);
        if fields.iter().all(|field| field.count == 1) {
            let most = u64::from(u16::MAX) + 1 - fields[3].first as u64;
            let flows = flags.flows.unwrap_or(1);
            if flows > most {
                let what = if flags.protocol == Protocol::Icmp { "identifiers" } else { "destination ports" };
                let first = fields[3].first as u16;
                return Err(FlagError::TooMany { flows, what, first, last: u16::MAX, most });
            }
            fields[3].count = flows.into();
            fields[3].last = fields[3].first + u128::from(flows) - 1;
        }
        let combinations = fields.iter().try_fold(1, |all: u128, field| all.checked_mul(field.count));
        let flows = match (flags.flows, combinations) {
            (Some(flows), Some(combinations)) if u128::from(flows) > combinations => {
                return Err(FlagError::TooFew { flows, combinations });
            }
            (Some(flows), _) => u128::from(flows),
            (None, Some(combinations)) => combinations,
            (None, None) => return Err(FlagError::TooLong),
        };
        Ok(Self { values: values(&fields, flows, flags.flow_length)? })
    }
}

fn fields(flags: &Flags) -> [Field; 4] {
    let address = |range: Option<AddressRange>, v4: [u8; 4], v6: u128| {
        let default: AddressRange = match flags.is_v6() {
            false => IpAddr::from(v4).into(),
            true => IpAddr::V6(v6.into()).into(),
        };
        let range = range.unwrap_or(default);
        let count = range.count();
        match range {
            AddressRange::V4 { first, last } => Field {
                first: first.to_bits().into(),
                last: last.to_bits().into(),
                count,
                show: |bits| Ipv4Addr::from_bits(bits as u32).to_string(),
            },
            AddressRange::V6 { first, last } => Field {
                first: first.to_bits(),
                last: last.to_bits(),
                count,
                show: |bits| Ipv6Addr::from_bits(bits).to_string(),
            },
        }
    };
    let port = |range: Option<PortRange>, default: u16| {
        let range = range.unwrap_or(PortRange { first: default, last: default });
        Field {
            first: range.first.into(),
            last: range.last.into(),
            count: u128::from(range.last.saturating_sub(range.first)) + 1,
            show: |port| port.to_string(),
        }
    };
    let last = if flags.protocol == Protocol::Icmp { FIRST_ICMP_ID } else { DESTINATION_PORT };
    [
        address(flags.source, [198, 18, 0, 1], V6_NETWORK | 1),
        address(flags.destination, [198, 18, 0, 2], V6_NETWORK | 2),
        port(flags.source_port, SOURCE_PORT),
        port(flags.destination_port, last),
    ]
}

const SOURCE_PORT: u16 = 1024;
const DESTINATION_PORT: u16 = 5000;
/// 2001:2::/48, set aside for benchmarks (RFC 5180 section 8).
const V6_NETWORK: u128 = 0x2001_0002 << 96;

/// The first `flows` combinations, each for `length` packets, like the wheels of an odometer.
fn values(fields: &[Field; 4], flows: u128, length: u64) -> Result<[String; 4], FlagError> {
    // How many combinations those have that are faster, and how many values of each field are used.
    let mut faster = 1_u128;
    let used = fields.each_ref().map(|field| {
        let count = field.count.min(flows.div_ceil(faster));
        let below = faster;
        faster = faster.saturating_mul(count);
        (below, count)
    });
    // Where the last wheel is left in the middle of a turn of the others, all begin again together.
    let packets = |flows: u128| {
        let packets = flows.checked_mul(length.into()).and_then(|packets| u64::try_from(packets).ok());
        packets.ok_or(FlagError::TooLong)
    };
    let again = if faster == flows { None } else { Some(packets(flows)?) };
    let mut texts = [const { String::new() }; 4];
    for ((text, field), (below, count)) in texts.iter_mut().zip(fields).zip(used) {
        let first = (field.show)(field.first);
        *text = match count {
            1 => first,
            _ => {
                let last = if count == field.count { field.last } else { field.first + (count - 1) };
                let last = (field.show)(last);
                match (packets(below)?, again) {
                    (1, None) => format!("dinc({first}, {last})"),
                    (hold, None) => format!("dinc({first}, {last}, 1, {hold})"),
                    (hold, Some(again)) => format!("dinc({first}, {last}, 1, {hold}, {again})"),
                }
            }
        };
    }
    Ok(texts)
}

/// A string of the language: as it stands if that is possible, else byte by byte.
fn quoted(bytes: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    match bytes.iter().all(plain) {
        true => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        false => {
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{hex}\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_one_udp_flow_in_64_bytes() {
        let text = "size(64): {\n  eth(da=02:00:00:00:01:02),\n  ipv4(ttl=64, df, sa=198.18.0.1, da=198.18.0.2),\n  \
                    udp(sp=1024, dp=5000)\n}\n";
        assert_eq!(Flags::default().program().unwrap(), text);
    }

    #[test]
    fn payloads_of_any_bytes_can_be_written() {
        assert_eq!(quoted(b"a b"), "\"a b\"");
        assert_eq!(quoted(b"a\"b\n"), "\"\\x61\\x22\\x62\\x0a\"");
        assert_eq!(quoted(&[0xff]), "\"\\xff\"");
    }
}
