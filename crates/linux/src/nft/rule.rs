//! Rules as data, and their form as the kernel's list of expressions.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Family, OBJECT_COUNTER, attr};
use crate::route::netlink::Request;

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_JUMP: i32 = -3;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Source address, IPv4 or IPv6.
    Source(IpAddr),
    /// Destination address, IPv4 or IPv6.
    Destination(IpAddr),
    /// A UDP packet to this port.
    UdpDestinationPort(u16),
    /// A frame of this EtherType (families netdev and bridge).
    EtherType(u16),
}

/// How a rule counts the packets that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    /// In a counter of its own.
    Own,
    /// In a named counter of its table, which may be shared among rules.
    Named(String),
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the next chain or on its way.
    Accept,
    /// It ends here.
    Drop,
    /// The rules of another chain of the table are next.
    Jump(String),
}

impl Verdict {
    /// The number for a chain's policy.
    pub(super) fn as_policy(&self) -> Option<i32> {
        match self {
            Self::Accept => Some(NF_ACCEPT),
            Self::Drop => Some(NF_DROP),
            Self::Jump(_) => None,
        }
    }
}

/// A rule: all conditions met, count, then the verdict. Displays as `nft` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The conditions, in the order in which they are tried.
    pub matches: Vec<Match>,
    /// How the packets that met them are counted.
    pub count: Option<Count>,
    /// What happens to these packets. `None`: the next rule is tried.
    pub verdict: Option<Verdict>,
}

impl Rule {
    /// `counter drop`: every packet counted and dropped.
    pub fn count_and_drop() -> Self {
        Self { matches: Vec::new(), count: Some(Count::Own), verdict: Some(Verdict::Drop) }
    }

    /// `counter accept`: every packet counted and let through.
    pub fn count_and_accept() -> Self {
        Self { verdict: Some(Verdict::Accept), ..Self::count_and_drop() }
    }

    /// The rule with one more condition.
    #[must_use]
    pub fn matching(mut self, condition: Match) -> Self {
        self.matches.push(condition);
        self
    }

    /// The rule counting into the table's counter of this name.
    #[must_use]
    pub fn counting_into(mut self, counter: impl Into<String>) -> Self {
        self.count = Some(Count::Named(counter.into()));
        self
    }

    /// Whether the rule can be written in a table of this family; why not, otherwise.
    pub(super) fn fits(&self, family: Family) -> Result<(), &'static str> {
        for condition in &self.matches {
            match (condition, family) {
                (Match::Source(IpAddr::V4(_)) | Match::Destination(IpAddr::V4(_)), Family::Ip6) => {
                    return Err("an IPv4 address never occurs in a table of family ip6");
                }
                (Match::Source(IpAddr::V6(_)) | Match::Destination(IpAddr::V6(_)), Family::Ip) => {
                    return Err("an IPv6 address never occurs in a table of family ip");
                }
                (Match::EtherType(_), Family::Ip | Family::Ip6 | Family::Inet) => {
                    return Err("an EtherType can be asked for in families netdev and bridge only");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the rule's expressions to the list of a message.
    pub(super) fn encode(&self, family: Family, list: &mut Request) {
        for condition in &self.matches {
            condition.encode(family, list);
        }
        match &self.count {
            None => {}
            Some(Count::Own) => expression(list, "counter", |_| {}),
            Some(Count::Named(name)) => expression(list, "objref", |data| {
                data.put(1, &OBJECT_COUNTER.to_be_bytes()).put_text(2, name);
            }),
        }
        if let Some(verdict) = &self.verdict {
            encode_verdict(verdict, list);
        }
    }
}

/// Rules that never match what a generator with small numbers in its addresses sends, and that would drop it
/// if they did: each compares the source with another address of 198.18.0.0/15 (RFC 2544), from its upper end
/// (198.19.255.254) downwards. `count` is at most 65,000, to stay in the upper half; more are not made.
pub fn filler_rules(count: usize) -> impl Iterator<Item = Rule> {
    let top = u32::from(Ipv4Addr::new(198, 19, 255, 254));
    (0..count.min(65_000) as u32).map(move |index| Rule {
        matches: vec![Match::Source(IpAddr::V4(Ipv4Addr::from(top - index)))],
        count: None,
        verdict: Some(Verdict::Drop),
    })
}

impl Match {
    fn encode(&self, family: Family, list: &mut Request) {
        match self {
            Self::Source(IpAddr::V4(address)) => ipv4(family, 12, *address, list),
            Self::Destination(IpAddr::V4(address)) => ipv4(family, 16, *address, list),
            Self::Source(IpAddr::V6(address)) => ipv6(family, 8, *address, list),
            Self::Destination(IpAddr::V6(address)) => ipv6(family, 24, *address, list),
            Self::UdpDestinationPort(port) => {
                meta(libc::NFT_META_L4PROTO, list);
                compare(&[PROTOCOL_UDP], list);
                payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, list);
                compare(&port.to_be_bytes(), list);
            }
            Self::EtherType(ethertype) => {
                meta(libc::NFT_META_PROTOCOL, list);
                compare(&ethertype.to_be_bytes(), list);
            }
        }
    }
}

fn ipv4(family: Family, offset: u32, address: Ipv4Addr, list: &mut Request) {
    protocol(family, ETHERTYPE_IPV4, libc::NFPROTO_IPV4 as u8, list);
    payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, 4, list);
    compare(&address.octets(), list);
}

fn ipv6(family: Family, offset: u32, address: Ipv6Addr, list: &mut Request) {
    protocol(family, ETHERTYPE_IPV6, libc::NFPROTO_IPV6 as u8, list);
    payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, 16, list);
    compare(&address.octets(), list);
}

/// Makes sure that the packet is of the protocol whose header is looked at, in families that see more than
/// one.
fn protocol(family: Family, ethertype: u16, nfproto: u8, list: &mut Request) {
    match family {
        Family::Ip | Family::Ip6 => {}
        Family::Inet => {
            meta(libc::NFT_META_NFPROTO, list);
            compare(&[nfproto], list);
        }
        Family::Netdev | Family::Bridge => {
            meta(libc::NFT_META_PROTOCOL, list);
            compare(&ethertype.to_be_bytes(), list);
        }
    }
}

/// Loads a fact about the packet into the register.
fn meta(key: libc::c_int, list: &mut Request) {
    expression(list, "meta", |data| {
        data.put(1, &REGISTER_1.to_be_bytes()).put(2, &(key as u32).to_be_bytes());
    });
}

/// Loads bytes of a header into the register.
fn payload(base: libc::c_int, offset: u32, length: u32, list: &mut Request) {
    expression(list, "payload", |data| {
        data.put(1, &REGISTER_1.to_be_bytes()).put(2, &(base as u32).to_be_bytes());
        data.put(3, &offset.to_be_bytes()).put(4, &length.to_be_bytes());
    });
}

/// Ends the rule unless the register holds these bytes.
fn compare(bytes: &[u8], list: &mut Request) {
    expression(list, "cmp", |data| {
        data.put(1, &REGISTER_1.to_be_bytes()).put(2, &(libc::NFT_CMP_EQ as u32).to_be_bytes());
        data.nest(3, |value| {
            value.put(1, bytes);
        });
    });
}

fn encode_verdict(verdict: &Verdict, list: &mut Request) {
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
    };
    expression(list, "immediate", |data| {
        data.put(1, &REGISTER_VERDICT.to_be_bytes());
        data.nest(2, |value| {
            value.nest(2, |verdict| {
                verdict.put(1, &code.to_be_bytes());
                if let Some(chain) = chain {
                    verdict.put_text(2, chain);
                }
            });
        });
    });
}

/// Adds one element to a list of expressions.
fn expression(list: &mut Request, name: &str, fill: impl FnOnce(&mut Request)) {
    const LIST_ELEMENT: u16 = 1;
    list.nest(LIST_ELEMENT, |element| {
        element.put_text(attr::EXPRESSION_NAME, name).nest(attr::EXPRESSION_DATA, fill);
    });
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = |address: &IpAddr| if address.is_ipv4() { "ip" } else { "ip6" };
        match self {
            Self::Source(address) => write!(f, "{} saddr {address}", ip(address)),
            Self::Destination(address) => write!(f, "{} daddr {address}", ip(address)),
            Self::UdpDestinationPort(port) => write!(f, "udp dport {port}"),
            Self::EtherType(ethertype) => write!(f, "meta protocol {ethertype:#06x}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.matches.iter().map(ToString::to_string).collect();
        words.extend(self.count.as_ref().map(|count| match count {
            Count::Own => "counter".to_owned(),
            Count::Named(name) => format!("counter name {name}"),
        }));
        words.extend(self.verdict.as_ref().map(|verdict| match verdict {
            Verdict::Accept => "accept".to_owned(),
            Verdict::Drop => "drop".to_owned(),
            Verdict::Jump(chain) => format!("jump {chain}"),
        }));
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rules_read_as_nft_writes_them() {
        let rule = Rule::count_and_drop()
            .matching(Match::Destination(IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1))))
            .matching(Match::UdpDestinationPort(9))
            .counting_into("arrived");
        assert_eq!(rule.to_string(), "ip daddr 198.18.0.1 udp dport 9 counter name arrived drop");
        assert_eq!(Rule::count_and_accept().to_string(), "counter accept");
    }

    #[test]
    fn a_condition_that_can_never_hold_is_refused() {
        let v4 = Rule::default().matching(Match::Source(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(
            v4.fits(Family::Ip6).is_err() && v4.fits(Family::Netdev).is_ok() && v4.fits(Family::Ip).is_ok()
        );
        let v6 = Rule::default().matching(Match::Source(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        assert!(v6.fits(Family::Ip).is_err() && v6.fits(Family::Inet).is_ok());
        assert!(Rule::default().matching(Match::EtherType(0x88cc)).fits(Family::Inet).is_err());
    }

    #[test]
    fn fillers_all_differ_and_stay_in_the_upper_half() {
        let rules: Vec<Rule> = filler_rules(100_000).collect();
        let addresses: HashSet<IpAddr> = rules
            .iter()
            .map(|rule| match rule.matches[..] {
                [Match::Source(address)] => address,
                _ => panic!("{rule}"),
            })
            .collect();
        assert_eq!((rules.len(), addresses.len()), (65_000, 65_000));
        assert!(addresses.contains(&IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254))));
        assert!(addresses.iter().all(|address| address.to_string().starts_with("198.19.")));
    }
}
