//! What a device under test is told about its network, as a person writes it: routes, addresses, neighbours, filter rules
//! and faults.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use datapath::wire::ethernet::MacAddress;
use serde::{Deserialize, Serialize};

use crate::words::nearest;

/// Faults are given in millionths.
const MILLION: u32 = 1_000_000;

/// Makes a type that has a text stand as that text in a scenario.
macro_rules! stands_as_text {
    ($($name:ident),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse().map_err(|error: anyhow::Error| error.to_string())
            }
        }
    )*};
}

stands_as_text!(RouteWord, AddressWord, NeighbourWord, MacWord, RuleWord, FaultWord);

/// Addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

impl Prefix {
    /// What the address is, where it cannot be that of one host: of all networks, of a group, or of the network itself and of all
    /// in it (IPv4, but for links of two and single hosts: RFC 3021).
    fn not_a_host(self) -> Option<&'static str> {
        let IpAddr::V4(address) = self.address else {
            return (self.address.is_multicast().then_some("the address of a group"))
                .or(self.address.is_unspecified().then_some("no address"));
        };
        if address.is_multicast() {
            return Some("the address of a group");
        }
        if address.is_unspecified() {
            return Some("no address");
        }
        let hosts = u32::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0);
        match address.to_bits() & hosts {
            _ if self.bits >= 31 => None,
            0 => Some("the address of the network itself"),
            host if host == hosts => Some("the broadcast address of its network"),
            _ => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address
            .parse()
            .ok()
            .with_context(|| format!("`{text}` is no prefix: write 10.0.0.0/8 or 2001:db8::/32"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|&bits: &u8| bits <= most),
            None => Some(most),
        };
        let bits = bits.with_context(|| format!("`{text}`: a prefix has 0 to {most} bits"))?;
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// `PREFIX=PORT` or `PREFIX=PORT,via ADDRESS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct RouteWord {
    pub(crate) prefix: Prefix,
    pub(crate) port: u8,
    /// The next hop; none where the destination itself is on the link.
    pub(crate) via: Option<IpAddr>,
}

impl FromStr for RouteWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("`{text}` is no route: write PREFIX=PORT or PREFIX=PORT,via ADDRESS");
        let (prefix, rest) = text.split_once('=').with_context(form)?;
        let (port, via) = rest.split_once(',').map_or((rest, None), |(port, via)| (port, Some(via)));
        let via =
            via.map(|via| via.trim().strip_prefix("via ").and_then(|address| address.trim().parse().ok()));
        let route = Self {
            prefix: prefix.parse()?,
            port: port_number(port)?,
            via: via.map(|address: Option<IpAddr>| address.with_context(form)).transpose()?,
        };
        ensure!(
            route.via.is_none_or(|via| via.is_ipv4() == route.prefix.address.is_ipv4()),
            "the route `{text}`: prefix and next hop are of two versions of IP"
        );
        Ok(route)
    }
}

impl fmt::Display for RouteWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.prefix, self.port)?;
        self.via.map_or(Ok(()), |via| write!(f, ",via {via}"))
    }
}

/// `PORT=ADDRESS/LENGTH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct AddressWord {
    pub(crate) port: u8,
    pub(crate) prefix: Prefix,
}

impl FromStr for AddressWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("`{text}` is no address of a port: write 0=10.0.0.1/24");
        let (port, prefix) = text.split_once('=').with_context(form)?;
        ensure!(prefix.contains('/'), "{}", form());
        let prefix: Prefix = prefix.parse()?;
        let why = prefix.not_a_host();
        ensure!(
            why.is_none(),
            "`{text}`: {} is {}, which no port can have; write the address of one host in it",
            prefix.address,
            why.unwrap_or_default()
        );
        Ok(Self { port: port_number(port)?, prefix })
    }
}

impl fmt::Display for AddressWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.port, self.prefix)
    }
}

/// `PORT=ADDRESS=MAC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct NeighbourWord {
    pub(crate) port: u8,
    pub(crate) address: IpAddr,
    pub(crate) mac: MacAddress,
}

impl FromStr for NeighbourWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("`{text}` is no neighbour: write 0=10.0.0.2=02:00:00:00:00:02");
        let (port, rest) = text.split_once('=').with_context(form)?;
        let (address, mac) = rest.split_once('=').with_context(form)?;
        Ok(Self {
            port: port_number(port)?,
            address: address.parse().ok().with_context(form)?,
            mac: parse_mac(mac).with_context(form)?,
        })
    }
}

impl fmt::Display for NeighbourWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}={}", self.port, self.address, self.mac)
    }
}

/// `PORT=MAC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct MacWord {
    pub(crate) port: u8,
    pub(crate) mac: MacAddress,
}

impl FromStr for MacWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("`{text}` is no Ethernet address of a port: write 0=02:00:00:00:00:01");
        let (port, mac) = text.split_once('=').with_context(form)?;
        let mac = parse_mac(mac).with_context(form)?;
        ensure!(
            !mac.is_multicast() && mac != MacAddress::ZERO,
            "{mac} is the address of a group or of nobody: a port has one of its own, as 02:00:00:00:00:01"
        );
        Ok(Self { port: port_number(port)?, mac })
    }
}

impl fmt::Display for MacWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.port, self.mac)
    }
}

fn port_number(text: &str) -> Result<u8> {
    text.trim().parse().ok().with_context(|| {
        format!(
            "`{text}` is no port of the device under test: they are numbered from 0 in the order of --port"
        )
    })
}

/// Six bytes in hexadecimal with colons.
pub(crate) fn parse_mac(text: &str) -> Option<MacAddress> {
    let mut bytes = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddress(bytes))
}

/// What the filter drops: `src=PREFIX,dst=PREFIX,proto=udp,port=53`; all that is named must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct RuleWord {
    pub(crate) source: Option<Prefix>,
    pub(crate) destination: Option<Prefix>,
    pub(crate) protocol: Option<u8>,
    /// Destination ports.
    pub(crate) ports: Option<(u16, u16)>,
}

impl RuleWord {
    const KEYS: [&'static str; 4] = ["src", "dst", "proto", "port"];
    /// Protocols with names (IANA).
    const PROTOCOLS: [(&'static str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];
}

impl FromStr for RuleWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut rule = Self::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').with_context(|| {
                format!("`{part}` is no part of a rule: write src=10.0.0.0/8,proto=udp,port=53")
            })?;
            let (key, value) = (key.trim(), value.trim());
            let twice = match key {
                "src" => rule.source.replace(value.parse()?).is_some(),
                "dst" => rule.destination.replace(value.parse()?).is_some(),
                "proto" => rule.protocol.replace(protocol(value)?).is_some(),
                "port" => rule.ports.replace(ports(value)?.into_inner()).is_some(),
                other => bail!("{}", nearest("part of a rule", other, Self::KEYS.into_iter())),
            };
            ensure!(!twice, "the rule `{text}` names {key} twice: use --drop again for another rule");
        }
        let versions =
            [rule.source, rule.destination].map(|prefix| prefix.map(|prefix| prefix.address.is_ipv4()));
        ensure!(
            !matches!(versions, [Some(one), Some(other)] if one != other),
            "the rule `{text}`: source and destination are of two versions of IP"
        );
        Ok(rule)
    }
}

impl fmt::Display for RuleWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = |(first, last): (u16, u16)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        let parts = [
            self.source.map(|prefix| format!("src={prefix}")),
            self.destination.map(|prefix| format!("dst={prefix}")),
            self.protocol.map(|protocol| {
                let named = Self::PROTOCOLS.iter().find(|(_, number)| *number == protocol);
                named.map_or(format!("proto={protocol}"), |(name, _)| format!("proto={name}"))
            }),
            self.ports.map(|range| format!("port={}", ports(range))),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

fn protocol(text: &str) -> Result<u8> {
    if let Some((_, number)) = RuleWord::PROTOCOLS.iter().find(|(name, _)| *name == text) {
        return Ok(*number);
    }
    text.parse().ok().with_context(|| format!("proto={text}: udp, tcp, icmp, icmpv6 or a number up to 255"))
}

/// `5000` or `5000-5007`.
pub(crate) fn ports(text: &str) -> Result<RangeInclusive<u16>> {
    let form = || format!("`{text}` are no ports: write 5000 or 5000-5007");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u16>().ok().with_context(form);
    let (first, last) = (number(first)?, number(last)?);
    ensure!(first <= last, "ports {first}-{last}: the first is above the last");
    Ok(first..=last)
}

/// What goes wrong on purpose before frames are received, each in millionths of the frames: `drop=1000ppm,corrupt=0.1%`; for a
/// delay also how long it is: `delay=1000ppm@5ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct FaultWord {
    pub(crate) drop_ppm: u32,
    pub(crate) corrupt_ppm: u32,
    pub(crate) reorder_ppm: u32,
    pub(crate) duplicate_ppm: u32,
    pub(crate) delay_ppm: u32,
    /// How much later a delayed frame comes, in microseconds.
    pub(crate) delay_us: u32,
}

/// A delay where nothing is said: long enough for many frames to overtake.
const DELAY_US: u32 = 1_000;

impl Default for FaultWord {
    fn default() -> Self {
        Self {
            drop_ppm: 0,
            corrupt_ppm: 0,
            reorder_ppm: 0,
            duplicate_ppm: 0,
            delay_ppm: 0,
            delay_us: DELAY_US,
        }
    }
}

impl FaultWord {
    const KEYS: [&'static str; 5] = ["drop", "corrupt", "reorder", "duplicate", "delay"];

    fn of(&self, key: &str) -> u32 {
        match key {
            "drop" => self.drop_ppm,
            "corrupt" => self.corrupt_ppm,
            "reorder" => self.reorder_ppm,
            "duplicate" => self.duplicate_ppm,
            _ => self.delay_ppm,
        }
    }

    fn field(&mut self, key: &str) -> Result<&mut u32> {
        Ok(match key {
            "drop" => &mut self.drop_ppm,
            "corrupt" => &mut self.corrupt_ppm,
            "reorder" => &mut self.reorder_ppm,
            "duplicate" => &mut self.duplicate_ppm,
            "delay" => &mut self.delay_ppm,
            other => bail!("{}", nearest("fault", other, Self::KEYS.into_iter())),
        })
    }
}

impl FromStr for FaultWord {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut fault = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (key, share) =
                part.split_once('=').with_context(|| format!("`{part}` is no fault: write drop=1000ppm"))?;
            let (share, delay) =
                share.split_once('@').map_or((share, None), |(share, delay)| (share, Some(delay)));
            let key = key.trim();
            ensure!(!seen.contains(&key), "`{text}`: {key} is given twice");
            seen.push(key);
            *fault.field(key)? = millionths(share.trim())?;
            if let Some(delay) = delay {
                ensure!(key == "delay", "`{part}`: only a delay has a length");
                fault.delay_us = microseconds(delay.trim())?;
            }
        }
        Ok(fault)
    }
}

impl fmt::Display for FaultWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Self::KEYS.iter().filter(|key| self.of(key) > 0);
        let length = match self.delay_us {
            us if us == DELAY_US => String::new(),
            us if us.is_multiple_of(1000) => format!("@{}ms", us / 1000),
            us => format!("@{us}us"),
        };
        let part = |key: &&str| {
            let length = if *key == "delay" { length.as_str() } else { "" };
            format!("{key}={}ppm{length}", self.of(key))
        };
        let parts: Vec<String> = set.map(part).collect();
        f.write_str(&if parts.is_empty() { "drop=0ppm".into() } else { parts.join(",") })
    }
}

/// `500us` or `5ms`, at most ten seconds.
fn microseconds(text: &str) -> Result<u32> {
    const MOST_US: u32 = 10_000_000;
    let number = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(us), _) => us.trim().parse().ok(),
        (None, Some(ms)) => ms.trim().parse::<u32>().ok().and_then(|ms| ms.checked_mul(1000)),
        (None, None) => None,
    };
    let length = number.filter(|us| (1..=MOST_US).contains(us));
    length.with_context(|| format!("`{text}` is no delay: write 500us or 5ms, and at most 10000ms"))
}

/// `1000ppm` or `0.1%`.
fn millionths(text: &str) -> Result<u32> {
    let number = match (text.strip_suffix("ppm"), text.strip_suffix('%')) {
        (Some(ppm), _) => ppm.trim().parse().ok(),
        (None, Some(percent)) => percent.trim().parse::<f64>().ok().map(|percent| percent * 1e4),
        (None, None) => None,
    };
    let whole = number.filter(|number| (0.0..=f64::from(MILLION)).contains(number));
    whole.map(|number| number.round() as u32).with_context(|| {
        format!("`{text}` is no share of the frames: write 1000ppm or 0.1%, and no more than all of them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: FromStr<Err = anyhow::Error> + fmt::Display>(text: &str) {
        assert_eq!(text.parse::<T>().unwrap().to_string(), text);
    }

    fn error<T: FromStr<Err = anyhow::Error>>(text: &str) -> String {
        match text.parse::<T>() {
            Ok(_) => panic!("{text} was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        round_trip::<RouteWord>("10.1.0.0/16=1");
        round_trip::<RouteWord>("::/0=0,via 2001:db8::1");
        round_trip::<AddressWord>("0=10.0.0.1/24");
        round_trip::<AddressWord>("0=10.0.0.0/31");
        round_trip::<AddressWord>("0=10.0.0.255/32");
        round_trip::<AddressWord>("0=2001:db8::/64");
        round_trip::<NeighbourWord>("1=2001:db8::2=02:00:00:00:00:02");
        round_trip::<MacWord>("0=02:00:00:00:00:01");
        round_trip::<RuleWord>("src=10.0.0.0/8,dst=10.1.0.0/16,proto=udp,port=5000-5007");
        round_trip::<RuleWord>("proto=47");
        round_trip::<FaultWord>("drop=1000ppm,corrupt=2ppm,delay=3ppm");
        round_trip::<FaultWord>("delay=3ppm@500us");
        assert_eq!("drop=0.1%".parse::<FaultWord>().unwrap().drop_ppm, 1000);
        assert_eq!("10.0.0.1".parse::<Prefix>().unwrap().bits, 32);
    }

    #[test]
    fn what_means_nothing_is_said() {
        for (error, why) in [
            (error::<RouteWord>("10.0.0.0/8"), "write PREFIX=PORT"),
            (error::<RouteWord>("10.0.0.0/33=0"), "0 to 32 bits"),
            (error::<RouteWord>("10.0.0.0/8=x"), "no port of the device under test"),
            (error::<RouteWord>("10.0.0.0/8=0,via"), "via ADDRESS"),
            (error::<RouteWord>("10.0.0.0/8=0,via ::1"), "two versions"),
            (error::<AddressWord>("0=10.0.0.1"), "write 0=10.0.0.1/24"),
            (error::<AddressWord>("0=198.18.0.0/24"), "the network itself"),
            (error::<AddressWord>("0=198.18.0.255/24"), "broadcast address"),
            (error::<AddressWord>("0=0.0.0.0/0"), "no address"),
            (error::<AddressWord>("0=224.0.0.1/24"), "a group"),
            (error::<AddressWord>("0=ff02::1/64"), "a group"),
            (error::<NeighbourWord>("0=10.0.0.1=02:0"), "is no neighbour"),
            (error::<MacWord>("0=01:00:00:00:00:01"), "of a group"),
            (error::<MacWord>("0=02:00:00:00:00:01:02"), "no Ethernet address"),
            (error::<RuleWord>("sport=1"), "`port` is near"),
            (error::<RuleWord>("port=9,port=10"), "twice"),
            (error::<RuleWord>("port=10-9"), "above the last"),
            (error::<RuleWord>("src=10.0.0.0/8,dst=::/0"), "two versions"),
            (error::<RuleWord>("proto=sctp"), "a number up to 255"),
            (error::<FaultWord>("drop=1"), "1000ppm or 0.1%"),
            (error::<FaultWord>("drop=101%"), "no more than all"),
            (error::<FaultWord>("dorp=1%"), "`drop` is near"),
            (error::<FaultWord>("delay=1%@5s"), "500us or 5ms"),
            (error::<FaultWord>("drop=1%@5ms"), "only a delay"),
        ] {
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
