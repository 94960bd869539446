//! A few rules, the first that matches decides.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use pagefrag::PacketBuf;

use super::{Stage, parsed};
use crate::batch::{Batch, Verdict};
use crate::reason::Reason;
use crate::table::{Prefix, PrefixError};
use crate::wire::ethernet::{self, ether_type};
use crate::wire::{Addresses, Frame, Parsed, Ports, ipv4};

/// What happens to packets that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The next stage sees them.
    Accept,
    /// They end as [`Reason::Filter`].
    Drop,
}

/// What a packet must be for a rule to match it: all that is said.
///
/// A fragment without ports does not match a rule that has some, as in nftables; neither does a packet of the other
/// IP version match a rule with an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its source is in this network.
    pub source: Option<Network>,
    /// Its destination is in this network.
    pub destination: Option<Network>,
    /// It is of this protocol ([`protocol`](crate::wire::protocol)).
    pub protocol: Option<u8>,
    /// Its source port is one of these.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Its destination port is one of these.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// What happens then.
    pub action: Action,
}

/// A network of either IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4(Prefix<u32>),
    /// IPv6.
    V6(Prefix<u128>),
}

/// Goes through the rules for each packet, in their order: what it costs grows with their number. Frames that are not IP pass.
///
/// Reads no more than the rules need: nothing if the first one matches everything; of IPv4 only the addresses if no rule asks
/// for more, and then nothing is checked. Otherwise malformed packets end here.
#[derive(Debug)]
pub struct Filter {
    rules: Vec<Rule>,
    /// What happens where none matches.
    otherwise: Action,
    needs: Needs,
    /// By rule, and at the end those that none matched.
    matched: Vec<u64>,
}

/// How far a packet is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    Addresses,
    Transport,
}

/// What rules are compared with.
#[derive(Debug, Clone, Copy)]
struct Facts {
    addresses: Addresses,
    protocol: Option<u8>,
    ports: Option<Ports>,
}

impl Filter {
    /// With these rules.
    pub fn new(rules: Vec<Rule>, otherwise: Action) -> Self {
        let needs = rules.iter().map(Rule::needs).max().unwrap_or(Needs::Nothing);
        let first_decides = rules.first().is_none_or(|rule| rule.needs() == Needs::Nothing);
        let needs = if first_decides { Needs::Nothing } else { needs };
        Self { matched: vec![0; rules.len() + 1], rules, otherwise, needs }
    }

    /// How many packets each rule matched, in their order, and at the end those that none did.
    pub fn matched(&self) -> &[u64] {
        &self.matched
    }

    #[inline]
    fn verdict(&mut self, packet: &mut PacketBuf) -> Verdict {
        if self.needs == Needs::Addresses
            && let Some(addresses) = addresses(packet.data())
        {
            let facts = Facts { addresses, protocol: None, ports: None };
            return self.decide(|rule| rule.matches(&facts));
        }
        match parsed(packet) {
            Ok(Frame::Ip(Parsed { addresses, protocol, ports, .. })) => {
                let facts = Facts { addresses, protocol: Some(protocol), ports };
                self.decide(|rule| rule.matches(&facts))
            }
            Ok(_) => Verdict::Pass,
            Err(malformed) => Verdict::Drop(Reason::Malformed(malformed)),
        }
    }

    #[inline]
    fn decide(&mut self, matches: impl Fn(&Rule) -> bool) -> Verdict {
        let at = self.rules.iter().position(matches).unwrap_or(self.rules.len());
        self.matched[at] += 1;
        match self.rules.get(at).map_or(self.otherwise, |rule| rule.action) {
            Action::Accept => Verdict::Pass,
            Action::Drop => Verdict::Drop(Reason::Filter),
        }
    }
}

impl Stage for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn run(&mut self, batch: &mut Batch, _now_ns: u64) {
        for (_, packet, verdict) in batch.undecided() {
            *verdict = match self.needs {
                Needs::Nothing => self.decide(|_| true),
                _ => self.verdict(packet),
            };
        }
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let (none, any) = self.matched.split_last().map_or((0, 0), |(none, each)| (*none, each.iter().sum()));
        vec![("matched by a rule", any), ("matched by none", none)]
    }
}

impl Rule {
    /// Matches everything.
    pub fn any(action: Action) -> Self {
        let (source, destination, source_ports, destination_ports) = (None, None, None, None);
        Self { source, destination, protocol: None, source_ports, destination_ports, action }
    }

    fn needs(&self) -> Needs {
        if self.protocol.is_some() || self.source_ports.is_some() || self.destination_ports.is_some() {
            Needs::Transport
        } else if self.source.is_some() || self.destination.is_some() {
            Needs::Addresses
        } else {
            Needs::Nothing
        }
    }

    #[inline]
    fn matches(&self, facts: &Facts) -> bool {
        let has = |ports: &Option<RangeInclusive<u16>>, port: fn(Ports) -> u16| match ports {
            Some(ports) => facts.ports.is_some_and(|of| ports.contains(&port(of))),
            None => true,
        };
        self.protocol.is_none_or(|protocol| facts.protocol == Some(protocol))
            && self.source.is_none_or(|network| network.has_source(&facts.addresses))
            && self.destination.is_none_or(|network| network.has_destination(&facts.addresses))
            && has(&self.source_ports, |ports| ports.source)
            && has(&self.destination_ports, |ports| ports.destination)
    }
}

impl Network {
    /// The network of this address and so many bits; the other bits must be 0.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Result<Self, PrefixError> {
        Ok(match address {
            IpAddr::V4(address) => Self::V4(Prefix::new(address.to_bits(), prefix_bits)?),
            IpAddr::V6(address) => Self::V6(Prefix::new(address.to_bits(), prefix_bits)?),
        })
    }

    #[inline]
    fn has_source(&self, addresses: &Addresses) -> bool {
        match (self, addresses) {
            (Self::V4(network), Addresses::V4 { source, .. }) => network.contains(*source),
            (Self::V6(network), Addresses::V6 { source, .. }) => network.contains(*source),
            _ => false,
        }
    }

    #[inline]
    fn has_destination(&self, addresses: &Addresses) -> bool {
        match (self, addresses) {
            (Self::V4(network), Addresses::V4 { destination, .. }) => network.contains(*destination),
            (Self::V6(network), Addresses::V6 { destination, .. }) => network.contains(*destination),
            _ => false,
        }
    }
}

/// Of IPv4, where nothing else is needed.
#[inline]
fn addresses(head: &[u8]) -> Option<Addresses> {
    const BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
    let [_, _, _, _, _, _, _, _, _, _, _, _, high, low, first, .., s0, s1, s2, s3, d0, d1, d2, d3] =
        *head.first_chunk::<BYTES>()?;
    if u16::from_be_bytes([high, low]) != ether_type::IPV4 || first >> 4 != 4 {
        return None;
    }
    let (source, destination) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([d0, d1, d2, d3]));
    Some(Addresses::V4 { source, destination })
}
