//! The common lab: a sender, the system under test, and a next hop, joined by two veth pairs.
//!
//! ```text
//!   gen                      sys                         far
//!   g0 198.18.0.1 ───── in0 198.18.0.2
//!                       out0 198.18.1.1 ───── f0 198.18.1.2 … 198.18.2.0/24
//! ```
//!
//! Addresses are those set aside for benchmarks (RFC 2544 appendix C.2.2, RFC 5180 section 8). Neighbours are
//! permanent, so that nothing is asked for on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use lab::plan::{Chain, Offload, Table};
use lab::{Plan, Port};
use linux::nft::{self, Family, Hook, Match, Rule, Verdict};
use template::Addresses;

use crate::cell::Cell;

/// Role of the namespace that sends.
pub(crate) const GEN: &str = "gen";
/// Role of the namespace of the system under test.
pub(crate) const SYS: &str = "sys";
/// Role of the namespace behind it.
pub(crate) const FAR: &str = "far";
/// The sender's device.
pub(crate) const INGRESS_PEER: &str = "g0";
/// The receiving device of the system under test.
pub(crate) const INGRESS: &str = "in0";
/// Its other device.
pub(crate) const EGRESS: &str = "out0";
/// The next hop's device.
pub(crate) const EGRESS_PEER: &str = "f0";

/// The other end of a device's pair.
pub(crate) fn peer(device: &str) -> Option<&'static str> {
    let pairs = [(INGRESS_PEER, INGRESS), (EGRESS, EGRESS_PEER)];
    pairs.into_iter().find_map(|(one, other)| match device {
        _ if device == one => Some(other),
        _ if device == other => Some(one),
        _ => None,
    })
}

pub(crate) const MAC_G0: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub(crate) const MAC_IN0: [u8; 6] = [2, 0, 0, 0, 1, 2];
const MAC_OUT0: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub(crate) const MAC_F0: [u8; 6] = [2, 0, 0, 0, 2, 2];

pub(crate) const IP_G0: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The address of the system under test.
pub(crate) const IP_IN0: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(crate) const IP_OUT0: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
pub(crate) const IP_F0: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
pub(crate) const IP_BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 1);

pub(crate) const IP6_G0: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
pub(crate) const IP6_IN0: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2);
const IP6_OUT0: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1);
const IP6_F0: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 2);
const IP6_BEYOND: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 1);

/// Name of every packet-filter table that a path makes.
pub(crate) const TABLE: &str = "perpacket";
/// Name of the counter in it.
pub(crate) const COUNTER: &str = "arrived";
/// NF_IP_PRI_RAW (include/uapi/linux/netfilter_ipv4.h, 6.18).
const PRIORITY_RAW: i32 = -300;

/// The common topology of a cell.
pub(crate) fn common(cell: &Cell, with_ipv6: bool) -> Result<Plan> {
    let mut plan = Plan::new();
    for role in [GEN, SYS, FAR] {
        if with_ipv6 {
            plan.namespace_with_ipv6(role)
        } else {
            plan.namespace(role)
        };
    }
    if cell.setting.rps_mask()? != 0 {
        plan.rps_mask(SYS, cell.setting.rps.trim_start_matches("0x"));
    }
    let port = |role, device, mac| {
        let port = Port::new(role, device).mac(mac);
        match cell.setting.veth_queues() {
            Some(queues) => port.queues(queues),
            None => port,
        }
    };
    plan.veth(port(GEN, INGRESS_PEER, MAC_G0), port(SYS, INGRESS, MAC_IN0));
    plan.veth(Port::new(SYS, EGRESS).mac(MAC_OUT0), Port::new(FAR, EGRESS_PEER).mac(MAC_F0));
    plan.address(GEN, INGRESS_PEER, IP_G0.into(), 24);
    plan.address(SYS, INGRESS, IP_IN0.into(), 24);
    plan.neighbour(GEN, INGRESS_PEER, IP_IN0.into(), MAC_IN0);
    plan.neighbour(SYS, INGRESS, IP_G0.into(), MAC_G0);
    if cell.setting.gro {
        // A veth takes a packet into NAPI and GRO only if its sender does no segmentation (veth_xmit, 6.18).
        plan.offload(GEN, INGRESS_PEER, Offload::Tso, false);
        plan.offload(SYS, INGRESS, Offload::Gro, true);
    }
    if cell.setting.gso {
        // Else what was handed over as one would stay one up to the end of the path, and be counted as one.
        plan.offload(GEN, INGRESS_PEER, Offload::UdpSegmentation, false);
    }
    if cell.setting.has_qdisc() {
        plan.qdisc(GEN, INGRESS_PEER, &cell.setting.qdisc);
    }
    Ok(plan)
}

/// From the sender to an address of the system under test.
pub(crate) fn to_this_host() -> Addresses {
    Addresses::V4 { source: IP_G0, destination: IP_IN0 }
}

/// From the sender to an address that is routed to the next hop.
pub(crate) fn beyond_the_next_hop() -> Addresses {
    Addresses::V4 { source: IP_G0, destination: IP_BEYOND }
}

/// The same over IPv6.
pub(crate) fn beyond_the_next_hop6() -> Addresses {
    Addresses::V6 { source: IP6_G0, destination: IP6_BEYOND }
}

/// What the sender's namespace needs so that sockets there send beyond its own network: a route over the system under test, or,
/// where that only switches, straight to the neighbour that has `destination_mac`. Nothing for IPv6, whose frames on these paths
/// are no UDP.
pub(crate) fn sockets(plan: &mut Plan, destination_mac: [u8; 6], addresses: Addresses) {
    let Addresses::V4 { source, destination } = addresses else { return };
    let beyond = network(destination.into());
    if beyond == network(source.into()) {
        return; // the common topology has the neighbour
    }
    let switched = destination_mac != MAC_IN0;
    if switched {
        plan.neighbour(GEN, INGRESS_PEER, destination.into(), destination_mac);
    }
    plan.route(GEN, (beyond, 24), (!switched).then_some(IP_IN0.into()), INGRESS_PEER);
}

/// What the sender's namespace needs so that sockets there send from its addresses to any other: the other end is the way to
/// all of them.
pub(crate) fn sockets_to_anywhere(plan: &mut Plan) {
    let ends: [(IpAddr, IpAddr, u8, IpAddr); 2] = [
        (IP_G0.into(), IP_IN0.into(), 24, Ipv4Addr::UNSPECIFIED.into()),
        (IP6_G0.into(), IP6_IN0.into(), 64, Ipv6Addr::UNSPECIFIED.into()),
    ];
    for (own, other, prefix_bits, anywhere) in ends {
        plan.address(GEN, INGRESS_PEER, own, prefix_bits);
        plan.neighbour(GEN, INGRESS_PEER, other, MAC_IN0);
        plan.route(GEN, (anywhere, 0), Some(other), INGRESS_PEER);
    }
}

/// IPv4 forwarding to the next hop.
pub(crate) fn forwarding(plan: &mut Plan) {
    plan.forwarding(SYS);
    plan.address(SYS, EGRESS, IP_OUT0.into(), 24);
    plan.address(FAR, EGRESS_PEER, IP_F0.into(), 24);
    plan.neighbour(SYS, EGRESS, IP_F0.into(), MAC_F0);
    plan.route(SYS, (network(IP_BEYOND.into()), 24), Some(IP_F0.into()), EGRESS);
}

/// Addresses for both devices of a system under test whose kernel takes no part: a device in user space does.
pub(crate) fn around_a_device(plan: &mut Plan) {
    plan.address(SYS, EGRESS, IP_OUT0.into(), 24);
    plan.address(FAR, EGRESS_PEER, IP_F0.into(), 24);
}

/// IPv6 forwarding to the next hop.
pub(crate) fn forwarding6(plan: &mut Plan) {
    plan.forwarding6(SYS);
    plan.address(SYS, INGRESS, IP6_IN0.into(), 64);
    plan.neighbour(SYS, INGRESS, IP6_G0.into(), MAC_G0);
    plan.address(SYS, EGRESS, IP6_OUT0.into(), 64);
    plan.neighbour(SYS, EGRESS, IP6_F0.into(), MAC_F0);
    plan.route(SYS, (network(IP6_BEYOND.into()), 64), Some(IP6_F0.into()), EGRESS);
}

/// A bridge over both devices of the system under test, which knows the far station.
pub(crate) fn bridge(plan: &mut Plan) {
    plan.bridge(SYS, "br0", &[INGRESS, EGRESS]);
    plan.station(SYS, EGRESS, MAC_F0);
}

/// No limits on the ICMP answers of the system under test: a type that is not in the mask is under neither the limit
/// for one peer nor that for all (net/ipv4/icmp.c, icmpv4_global_allow, 6.18).
pub(crate) fn unlimited_icmp(plan: &mut Plan) {
    plan.setting(SYS, "net.ipv4.icmp_ratemask", "0");
}

/// The rule that ends the path `raw-drop`, behind `fillers` rules that match nothing.
pub(crate) fn raw_drop_rules(plan: &mut Plan, fillers: u32) {
    let chain = Chain::at("prerouting", Hook::Prerouting, PRIORITY_RAW)
        .rules(nft::filler_rules(fillers as usize))
        .rule(Rule::count_and_drop().counting_into(COUNTER));
    plan.table(SYS, Table::new(Family::Ip, TABLE).counter(COUNTER).chain(chain));
}

/// Rules that match nothing, before routing. No table at all where there are none.
pub(crate) fn filler_rules(plan: &mut Plan, family: Family, fillers: u32) {
    if fillers > 0 {
        let rules: Vec<Rule> = match family {
            Family::Ip6 => (0..fillers).map(filler_rule6).collect(),
            _ => nft::filler_rules(fillers as usize).collect(),
        };
        let chain = Chain::at("prerouting", Hook::Prerouting, PRIORITY_RAW).rules(rules);
        plan.table(SYS, Table::new(family, TABLE).chain(chain));
    }
}

/// A rule for another source than the sender's, from the upper end of the benchmark network downwards.
fn filler_rule6(index: u32) -> Rule {
    let address = Ipv6Addr::from_bits((IP6_G0.to_bits() | 0xffff_ffff) - u128::from(index));
    Rule { matches: vec![Match::Source(address.into())], count: None, verdict: Some(Verdict::Drop) }
}

/// Counts and drops all that a device receives, before any protocol sees it.
pub(crate) fn count_and_drop(plan: &mut Plan, role: &str, device: &str) {
    let chain = Chain::at_device("ingress", device).rule(Rule::count_and_drop().counting_into(COUNTER));
    plan.table(role, Table::new(Family::Netdev, TABLE).counter(COUNTER).chain(chain));
}

/// The network of one of the addresses above: IPv4 has 24 bits of it, IPv6 64.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !0xff).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}
