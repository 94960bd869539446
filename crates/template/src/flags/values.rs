//! The values of flags, read from text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use crate::language::error::nearest;
use crate::language::lexer::parse_mac;

/// Sizes that a frame can have, with the FCS.
const SIZES: std::ops::RangeInclusive<u32> = 64..=65_535;
/// Entries of a mix.
const MOST_ENTRIES: usize = 1024;
/// Mixes that have a name: sizes with the FCS, and weights. Both are in the help of trafgen (netsniff-ng, trafgen.c), where
/// the first is called Cisco's; the name `simple` is that of the common text-book mix of 7, 4 and 1.
const MIXES: [(&str, &[(u32, u32)]); 2] =
    [("simple", &[(64, 7), (594, 4), (1518, 1)]), ("tolly", &[(64, 55), (78, 5), (576, 17), (1518, 23)])];

/// A text is no value of a flag.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ValueError {
    /// What was wanted.
    pub what: &'static str,
    /// What was given.
    pub given: String,
    /// What is possible.
    pub expected: String,
    /// The known word that is most like it.
    pub nearest: Option<String>,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {}: {}", self.given, self.what, self.expected)?;
        match &self.nearest {
            Some(word) => write!(f, "; did you mean {word:?}?"),
            None => Ok(()),
        }
    }
}

impl ValueError {
    fn new(what: &'static str, given: &str, expected: impl Into<String>) -> Self {
        let given = given.chars().take(100).collect();
        Self { what, given, expected: expected.into(), nearest: None }
    }

    fn nearest<'a>(self, known: impl Iterator<Item = &'a str>) -> Self {
        Self { nearest: nearest(&self.given, known), ..self }
    }
}

/// What is on top of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// UDP.
    #[default]
    Udp,
    /// TCP segments of an open connection: ACK is set.
    Tcp,
    /// ICMP echo requests; ICMPv6 where the addresses are IPv6.
    Icmp,
}

impl FromStr for Protocol {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.to_ascii_lowercase().as_str() {
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            "icmp" => Ok(Self::Icmp),
            _ => Err(ValueError::new("protocol", text, "udp, tcp or icmp")
                .nearest(["udp", "tcp", "icmp"].into_iter())),
        }
    }
}

/// Frame sizes in bytes, with the 4 of the FCS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    /// One for all.
    One(u32),
    /// Each from the first to the last, in turn.
    Range {
        /// The smallest.
        first: u32,
        /// The largest.
        last: u32,
    },
    /// Sizes with the weights that they come with, whose shares are exact.
    Mix(Vec<(u32, u32)>),
}

impl FromStr for Sizes {
    type Err = ValueError;

    /// `64`, `64-1518`, `64:7,594:4,1518:1`, or the name of a mix: `simple` (that one) or `tolly`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let lower = text.to_ascii_lowercase();
        if let Some((_, mix)) = MIXES.iter().find(|(name, _)| *name == lower) {
            return Ok(Self::Mix(mix.to_vec()));
        }
        let (least, most) = (SIZES.start(), SIZES.end());
        let wrong = || {
            let expected = format!(
                "64, 64-1518, 64:7,594:4,1518:1 (bytes with the FCS, from {least} to {most}, and weights from 1 on), \
                 simple or tolly"
            );
            ValueError::new("frame size", text, expected).nearest(MIXES.iter().map(|(name, _)| *name))
        };
        let size = |text: &str| number::<u32>(text).filter(|size| SIZES.contains(size)).ok_or_else(wrong);
        if text.contains([':', ',']) {
            let entry = |entry: &str| {
                let (bytes, weight) = entry.split_once(':').ok_or_else(wrong)?;
                let weight = number::<u32>(weight).filter(|&weight| weight > 0).ok_or_else(wrong)?;
                Ok((size(bytes)?, weight))
            };
            let mix = text.split(',').take(MOST_ENTRIES + 1).map(entry).collect::<Result<Vec<_>, _>>()?;
            return if mix.len() > MOST_ENTRIES { Err(wrong()) } else { Ok(Self::Mix(mix)) };
        }
        match text.split_once('-') {
            None => size(text).map(Self::One),
            Some((first, last)) => match (size(first)?, size(last)?) {
                (first, last) if first <= last => Ok(Self::Range { first, last }),
                _ => Err(wrong()),
            },
        }
    }
}

/// Addresses from the first to the last, both included, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AddressRange {
    V4 { first: Ipv4Addr, last: Ipv4Addr },
    V6 { first: Ipv6Addr, last: Ipv6Addr },
}

impl AddressRange {
    /// How many there are; 2^128 is said as one less.
    pub fn count(&self) -> u128 {
        match self {
            Self::V4 { first, last } => u128::from(last.to_bits().saturating_sub(first.to_bits())) + 1,
            Self::V6 { first, last } => last.to_bits().saturating_sub(first.to_bits()).saturating_add(1),
        }
    }

    /// Whether they are of IPv6.
    pub fn is_v6(&self) -> bool {
        matches!(self, Self::V6 { .. })
    }
}

impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(one) => Self::V4 { first: one, last: one },
            IpAddr::V6(one) => Self::V6 { first: one, last: one },
        }
    }
}

impl FromStr for AddressRange {
    type Err = ValueError;

    /// `A`, `A-B`, or `A/N`: all addresses of the network, its first and last too.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || {
            let expected =
                "an IPv4 or IPv6 address A, A-B with the smaller one first, or A/N with N bits of network";
            ValueError::new("range of addresses", text, expected)
        };
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        if let Some((network, bits)) = text.split_once('/') {
            return network_of(address(network)?, number(bits).ok_or_else(wrong)?).ok_or_else(wrong);
        }
        let Some((first, last)) = text.split_once('-') else { return address(text).map(Self::from) };
        match (address(first)?, address(last)?) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => Ok(Self::V4 { first, last }),
            (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => Ok(Self::V6 { first, last }),
            _ => Err(wrong()),
        }
    }
}

fn network_of(address: IpAddr, bits: u32) -> Option<AddressRange> {
    match address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(bits).unwrap_or(0);
            let (first, last) = (address.to_bits() & !host, address.to_bits() | host);
            (bits <= 32).then_some(AddressRange::V4 { first: first.into(), last: last.into() })
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(bits).unwrap_or(0);
            let (first, last) = (address.to_bits() & !host, address.to_bits() | host);
            (bits <= 128).then_some(AddressRange::V6 { first: first.into(), last: last.into() })
        }
    }
}

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = ValueError;

    /// `P` or `P-Q`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong =
            || ValueError::new("range of ports", text, "P or P-Q with the smaller one first, 0 to 65535");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(wrong()),
        }
    }
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "six bytes in hexadecimal, such as 02:00:00:00:00:01";
        parse_mac(text).map(Self).ok_or_else(|| ValueError::new("MAC address", text, expected))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// 0 to 4095.
    pub id: u16,
    /// Priority, 0 to 7.
    pub pcp: u8,
}

impl FromStr for VlanTag {
    type Err = ValueError;

    /// `ID` or `ID:PRIORITY`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (id, pcp) = text.split_once(':').unwrap_or((text, "0"));
        match (number(id), number(pcp)) {
            (Some(id @ 0..=4095), Some(pcp @ 0..=7)) => Ok(Self { id, pcp }),
            _ => Err(ValueError::new("VLAN tag", text, "ID or ID:PRIORITY, 0 to 4095 and 0 to 7")),
        }
    }
}

/// `on` or `off`.
///
/// # Errors
/// Anything else.
pub fn parse_switch(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ValueError::new("switch", text, "on or off").nearest(["on", "off"].into_iter())),
    }
}

/// A decimal number of digits alone.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_a_range_or_a_mix() {
        let sizes = |text: &str| text.parse::<Sizes>();
        assert_eq!(sizes("64"), Ok(Sizes::One(64)));
        assert_eq!(sizes("64-1518"), Ok(Sizes::Range { first: 64, last: 1518 }));
        let simple = Sizes::Mix(vec![(64, 7), (594, 4), (1518, 1)]);
        assert_eq!(sizes("64:7,594:4,1518:1"), Ok(simple.clone()));
        assert_eq!(sizes("Simple"), Ok(simple));
        assert_eq!(sizes("tolly"), Ok(Sizes::Mix(vec![(64, 55), (78, 5), (576, 17), (1518, 23)])));
        for wrong in ["", "63", "65536", "1518-64", "64:0", "64:", "64,65", "64-", "+64", "64:7,", "-1"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
        let error = sizes("simpel").unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some("simple"));
        assert!(error.to_string().contains("did you mean \"simple\"?"), "{error}");
        assert!(sizes(&"64:1,".repeat(5000)).is_err());
    }

    #[test]
    fn addresses_are_a_numeric_range() {
        let count = |text: &str| text.parse::<AddressRange>().map(|range| range.count());
        assert_eq!(count("10.0.0.1"), Ok(1));
        assert_eq!(count("10.0.0.1-10.0.0.254"), Ok(254));
        assert_eq!(count("10.0.0.255-10.0.1.0"), Ok(2));
        assert_eq!(count("10.0.0.7/24"), Ok(256));
        assert_eq!(count("0.0.0.0/0"), Ok(1 << 32));
        assert_eq!(count("fd00::ffff-fd00::1:0"), Ok(2));
        assert_eq!(count("fd00::/64"), Ok(1 << 64));
        assert_eq!(count("::/0"), Ok(u128::MAX));
        assert_eq!(count("::1/128"), Ok(1));
        for wrong in
            ["", "10.0.0", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.0/33", "::/129", "::/-1", "a"]
        {
            assert!(count(wrong).is_err(), "{wrong}");
        }
        let network: AddressRange = "10.0.0.7/24".parse().unwrap();
        let whole = AddressRange::V4 { first: [10, 0, 0, 0].into(), last: [10, 0, 0, 255].into() };
        assert_eq!(network, whole);
    }

    #[test]
    fn other_values() {
        assert_eq!("9-16".parse(), Ok(PortRange { first: 9, last: 16 }));
        assert!(["", "65536", "9-8", "a"].iter().all(|text| text.parse::<PortRange>().is_err()));
        assert_eq!("5:3".parse(), Ok(VlanTag { id: 5, pcp: 3 }));
        assert!(["4096", "1:8", "", ":"].iter().all(|text| text.parse::<VlanTag>().is_err()));
        assert_eq!("2:0:0:0:0:1".parse::<Mac>().unwrap().to_string(), "02:00:00:00:00:01");
        assert_eq!("upd".parse::<Protocol>().unwrap_err().nearest.as_deref(), Some("udp"));
        assert_eq!((parse_switch("on"), parse_switch("OFF").ok()), (Ok(true), Some(false)));
        assert!(parse_switch("maybe").is_err());
    }
}
