//! Packet-filter rules over NETLINK_NETFILTER: tables, chains, rules and their counters, without the program
//! `nft`.
//!
//! Changes go to the kernel as one transaction: all of a [`Batch`] happens, or nothing. Counters are read
//! without being reset. A dump of a chain costs more the more rules it has; where one figure is wanted around
//! every slice, a rule counts into a named counter ([`Count::Named`]), and that is read alone.
//!
//! Message layouts: include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h, 6.18. All numbers inside of
//! attributes are big endian there.

mod rule;

use std::io;

use crate::SyscallError;
use crate::route::netlink::{Channel, Refusal, Request, Until, attribute, attributes, text_of};

pub use rule::{Count, Match, Rule, Verdict, filler_rules};

const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
const NEW_OBJECT: u16 = SUBSYSTEM | 18;
const GET_OBJECT: u16 = SUBSYSTEM | 19;

const OBJECT_COUNTER: u32 = 1;
/// `struct nfgenmsg`: family, version, resource.
const HEADER_BYTES: usize = 4;
/// Priority of the hook at which the tables named "raw" of iptables stand
/// (include/uapi/linux/netfilter_ipv4.h).
pub const PRIORITY_RAW: i32 = -300;
/// Priority of ordinary filtering.
pub const PRIORITY_FILTER: i32 = 0;

/// What packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    Ip = 2,
    /// IPv6.
    Ip6 = 10,
    /// IPv4 and IPv6.
    Inet = 1,
    /// Everything that a device receives.
    Netdev = 5,
    /// What a bridge forwards.
    Bridge = 7,
}

impl Family {
    /// The name as `nft` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
        }
    }
}

/// The point on a packet's way at which a chain is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// As soon as the protocol has the packet.
    Prerouting,
    /// Before delivery to this host.
    Input,
    /// Between two devices.
    Forward,
    /// Sent by this host.
    Output,
    /// Before a device gets it.
    Postrouting,
    /// As soon as the device has handed it over, before any protocol (families netdev and inet).
    Ingress,
}

impl Hook {
    /// The name as `nft` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Ingress => "ingress",
        }
    }

    /// The number of the hook in a family (`NF_INET_*`, `NF_BR_*`, `NF_NETDEV_*`).
    fn number(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Ingress, Family::Netdev) => 0,
            (Self::Ingress, _) => 5,
            (other, _) => other as u32,
        }
    }
}

/// A chain that the kernel calls at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain<'a> {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Where it is called.
    pub hook: Hook,
    /// Chains of one hook are called in ascending order of this.
    pub priority: i32,
    /// The device, for [`Hook::Ingress`].
    pub device: Option<&'a str>,
    /// What happens to a packet that reaches the chain's end: [`Verdict::Accept`] or [`Verdict::Drop`].
    pub policy: Verdict,
}

/// What a counter counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the network header on (in family netdev and bridge as well).
    pub bytes: u64,
}

/// The counter of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCounter {
    /// The kernel's number of the rule in its table.
    pub handle: u64,
    /// What it counted.
    pub counted: Counted,
}

/// Changes that are to happen together.
#[derive(Debug, Default)]
pub struct Batch {
    /// Each message, and what to call it in an error.
    messages: Vec<(Request, String)>,
    /// The first thing that could not even be written down.
    mistake: Option<String>,
}

impl Batch {
    /// No changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a table. Refused with EEXIST if there is one of that name.
    pub fn add_table(&mut self, family: Family, table: &str) -> &mut Self {
        let create = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut request = message(NEW_TABLE, create, family);
        request.put_text(attr::TABLE_NAME, table);
        self.push(request, format!("table {} {table}", family.name()))
    }

    /// Deletes a table with all that is in it.
    pub fn delete_table(&mut self, family: Family, table: &str) -> &mut Self {
        let mut request = message(DELETE_TABLE, 0, family);
        request.put_text(attr::TABLE_NAME, table);
        self.push(request, format!("table {} {table}", family.name()))
    }

    /// Makes a chain that the kernel calls.
    pub fn add_base_chain(&mut self, chain: &BaseChain<'_>) -> &mut Self {
        let Some(policy) = chain.policy.as_policy() else {
            return self.reject(format!("policy of chain {} is neither accept nor drop", chain.name));
        };
        let mut request = chain_message(chain.family, chain.table, chain.name);
        request.nest(attr::CHAIN_HOOK, |hook| {
            hook.put(attr::HOOK_NUMBER, &chain.hook.number(chain.family).to_be_bytes());
            hook.put(attr::HOOK_PRIORITY, &chain.priority.to_be_bytes());
            if let Some(device) = chain.device {
                hook.put_text(attr::HOOK_DEVICE, device);
            }
        });
        request.put_text(attr::CHAIN_TYPE, "filter").put(attr::CHAIN_POLICY, &policy.to_be_bytes());
        self.push(request, format!("chain {} {} {}", chain.family.name(), chain.table, chain.name))
    }

    /// Makes a chain that only other chains call ([`Verdict::Jump`]).
    pub fn add_chain(&mut self, family: Family, table: &str, chain: &str) -> &mut Self {
        let request = chain_message(family, table, chain);
        self.push(request, format!("chain {} {table} {chain}", family.name()))
    }

    /// Makes a named counter, for rules with [`Count::Named`].
    pub fn add_counter(&mut self, family: Family, table: &str, counter: &str) -> &mut Self {
        let mut request = message(NEW_OBJECT, libc::NLM_F_CREATE | libc::NLM_F_EXCL, family);
        name_counter(&mut request, table, counter);
        request.nest(attr::OBJECT_DATA, |_| {});
        self.push(request, format!("counter {} {table} {counter}", family.name()))
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, family: Family, table: &str, chain: &str, rule: &Rule) -> &mut Self {
        let name = format!("rule \"{rule}\" in {} {table} {chain}", family.name());
        if let Err(mistake) = rule.fits(family) {
            return self.reject(format!("{name}: {mistake}"));
        }
        let mut request = message(NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND, family);
        request.put_text(attr::RULE_TABLE, table).put_text(attr::RULE_CHAIN, chain);
        request.nest(attr::RULE_EXPRESSIONS, |list| rule.encode(family, list));
        self.push(request, name)
    }

    fn push(&mut self, request: Request, name: String) -> &mut Self {
        self.messages.push((request, name));
        self
    }

    fn reject(&mut self, mistake: String) -> &mut Self {
        self.mistake.get_or_insert(mistake);
        self
    }
}

/// A NETLINK_NETFILTER socket. It belongs to the network namespace of the thread that opened it, and stays
/// there whatever thread uses it.
#[derive(Debug)]
pub struct NftSocket {
    channel: Channel,
}

impl NftSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// EPROTONOSUPPORT where the kernel has no netfilter netlink (CONFIG_NETFILTER_NETLINK).
    pub fn open() -> Result<Self, SyscallError> {
        Ok(Self {
            channel: Channel::open(libc::NETLINK_NETFILTER as isize, "open netfilter netlink socket")?,
        })
    }

    /// Makes all changes of a batch, or none.
    ///
    /// # Errors
    /// The first change that the kernel refused, with its explanation: EEXIST, ENOENT (a table, chain, device
    /// or counter that is not there, or an expression that this kernel lacks), EPERM, EOPNOTSUPP. EINVAL
    /// without a call to the kernel for what cannot be written down, such as an IPv4 address in an IPv6
    /// table.
    pub fn commit(&mut self, batch: Batch) -> Result<(), SyscallError> {
        const CALL: &str = "change packet filter";
        if let Some(mistake) = batch.mistake {
            return Err(SyscallError::new(CALL, mistake, io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let Some(last) = batch.messages.len().checked_sub(1) else { return Ok(()) };
        let first_number = self.channel.reserve(batch.messages.len() as u32 + 2);
        let number_of = |index: usize| first_number.wrapping_add(1 + index as u32);
        let (mut bytes, mut names) = (Vec::new(), Vec::new());
        bytes.extend_from_slice(frame(BATCH_BEGIN, first_number).bytes());
        for (index, (mut request, name)) in batch.messages.into_iter().enumerate() {
            request.set_sequence(number_of(index));
            if index == last {
                request.add_flags(libc::NLM_F_ACK);
            }
            bytes.extend_from_slice(request.bytes());
            names.push(name);
        }
        bytes.extend_from_slice(frame(BATCH_END, number_of(last + 1)).bytes());
        match self.channel.send_batch(&bytes) {
            Ok(acknowledged) if acknowledged.contains(&number_of(last)) => Ok(()),
            Ok(_) => Err(SyscallError::new(CALL, "", io::Error::other("the kernel did not answer"))),
            Err(refusal) => {
                let index =
                    refusal.sequence.map(|number| number.wrapping_sub(first_number.wrapping_add(1)) as usize);
                let name = index.and_then(|index| names.get(index)).cloned().unwrap_or_default();
                Err(refusal.about(CALL, name))
            }
        }
    }

    /// Deletes a table with all that is in it.
    ///
    /// # Errors
    /// ENOENT, EPERM.
    pub fn delete_table(&mut self, family: Family, table: &str) -> Result<(), SyscallError> {
        let mut batch = Batch::new();
        batch.delete_table(family, table);
        self.commit(batch)
    }

    /// The counters of all rules of a chain that have one of their own, in the order of the rules.
    ///
    /// # Errors
    /// ENOENT, EINTR where rules changed meanwhile.
    pub fn counters(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<RuleCounter>, SyscallError> {
        let mut request = message(GET_RULE, libc::NLM_F_DUMP, family);
        request.put_text(attr::RULE_TABLE, table).put_text(attr::RULE_CHAIN, chain);
        let mut found = Vec::new();
        let done = self.channel.ask(request.bytes(), Until::Done, |kind, payload| {
            found.extend((kind == NEW_RULE).then(|| rule_counter(payload)).flatten());
        });
        let about = |refusal: Refusal| {
            refusal.about("read rule counters", format!("chain {} {table} {chain}", family.name()))
        };
        done.map(|()| found).map_err(about)
    }

    /// What a named counter counted.
    ///
    /// # Errors
    /// ENOENT where there is no such table or counter.
    pub fn named_counter(
        &mut self,
        family: Family,
        table: &str,
        counter: &str,
    ) -> Result<Counted, SyscallError> {
        let about = |refusal: Refusal| {
            refusal.about("read counter", format!("{counter} in table {} {table}", family.name()))
        };
        let mut request = message(GET_OBJECT, 0, family);
        name_counter(&mut request, table, counter);
        let mut found = None;
        self.channel
            .ask(request.bytes(), Until::FirstAnswer, |kind, payload| {
                if kind == NEW_OBJECT {
                    found = payload
                        .get(HEADER_BYTES..)
                        .and_then(|list| counted(attribute(list, attr::OBJECT_DATA)?));
                }
            })
            .map_err(about)?;
        found.ok_or_else(|| about(io::Error::from(io::ErrorKind::InvalidData).into()))
    }
}

/// Types of attributes, by the message that they belong to (include/uapi/linux/netfilter/nf_tables.h, 6.18).
mod attr {
    pub(super) const TABLE_NAME: u16 = 1;
    pub(super) const CHAIN_TABLE: u16 = 1;
    pub(super) const CHAIN_NAME: u16 = 3;
    pub(super) const CHAIN_HOOK: u16 = 4;
    pub(super) const CHAIN_POLICY: u16 = 5;
    pub(super) const CHAIN_TYPE: u16 = 7;
    pub(super) const HOOK_NUMBER: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;
    pub(super) const HOOK_DEVICE: u16 = 3;
    pub(super) const RULE_TABLE: u16 = 1;
    pub(super) const RULE_CHAIN: u16 = 2;
    pub(super) const RULE_HANDLE: u16 = 3;
    pub(super) const RULE_EXPRESSIONS: u16 = 4;
    pub(super) const OBJECT_TABLE: u16 = 1;
    pub(super) const OBJECT_NAME: u16 = 2;
    pub(super) const OBJECT_TYPE: u16 = 3;
    pub(super) const OBJECT_DATA: u16 = 4;
    pub(super) const EXPRESSION_NAME: u16 = 1;
    pub(super) const EXPRESSION_DATA: u16 = 2;
    pub(super) const COUNTER_BYTES: u16 = 1;
    pub(super) const COUNTER_PACKETS: u16 = 2;
}

fn message(kind: u16, flags: i32, family: Family) -> Request {
    Request::new(kind, flags, &[family as u8, 0, 0, 0])
}

/// The first or last message of a batch; its resource is the subsystem that the batch is for.
fn frame(kind: u16, sequence: u32) -> Request {
    let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    let mut request = Request::new(kind, 0, &[0, 0, high, low]);
    request.set_sequence(sequence);
    request
}

fn chain_message(family: Family, table: &str, chain: &str) -> Request {
    let mut request = message(NEW_CHAIN, libc::NLM_F_CREATE | libc::NLM_F_EXCL, family);
    request.put_text(attr::CHAIN_TABLE, table).put_text(attr::CHAIN_NAME, chain);
    request
}

fn name_counter(request: &mut Request, table: &str, counter: &str) {
    request.put_text(attr::OBJECT_TABLE, table).put_text(attr::OBJECT_NAME, counter);
    request.put(attr::OBJECT_TYPE, &OBJECT_COUNTER.to_be_bytes());
}

/// Handle and counter of a rule message; `None` for a rule without a counter of its own.
fn rule_counter(payload: &[u8]) -> Option<RuleCounter> {
    let list = payload.get(HEADER_BYTES..)?;
    let handle = attribute(list, attr::RULE_HANDLE).and_then(be64)?;
    let expressions = attribute(list, attr::RULE_EXPRESSIONS)?;
    let counted = attributes(expressions).find_map(|(_, expression)| {
        let name = attribute(expression, attr::EXPRESSION_NAME).map(text_of)?;
        (name == "counter").then(|| counted(attribute(expression, attr::EXPRESSION_DATA)?)).flatten()
    })?;
    Some(RuleCounter { handle, counted })
}

fn counted(data: &[u8]) -> Option<Counted> {
    Some(Counted {
        packets: attribute(data, attr::COUNTER_PACKETS).and_then(be64)?,
        bytes: attribute(data, attr::COUNTER_BYTES).and_then(be64)?,
    })
}

fn be64(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rule_message_gives_its_counter() {
        let mut request = message(NEW_RULE, 0, Family::Ip);
        request.put(attr::RULE_HANDLE, &4_u64.to_be_bytes());
        request.nest(attr::RULE_EXPRESSIONS, |list| {
            list.nest(1, |expression| {
                expression.put_text(attr::EXPRESSION_NAME, "counter");
                expression.nest(attr::EXPRESSION_DATA, |data| {
                    data.put(attr::COUNTER_BYTES, &640_u64.to_be_bytes());
                    data.put(attr::COUNTER_PACKETS, &10_u64.to_be_bytes());
                });
            });
        });
        let payload = request.bytes()[crate::route::netlink::HEADER_BYTES..].to_vec();
        let counted = Counted { packets: 10, bytes: 640 };
        assert_eq!(rule_counter(&payload), Some(RuleCounter { handle: 4, counted }));
    }

    #[test]
    fn hooks_have_the_kernels_numbers() {
        assert_eq!(Hook::Prerouting.number(Family::Ip), 0);
        assert_eq!(Hook::Postrouting.number(Family::Bridge), 4);
        assert_eq!(Hook::Ingress.number(Family::Netdev), 0);
        assert_eq!(Hook::Ingress.number(Family::Inet), 5);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_rule_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = rule_counter(&bytes);
            let _ = counted(&bytes);
        }
    }
}
