//! Explains what is missing in a ledger, from counters in which a packet ends at most once.
//!
//! The kernel counts one loss in several places. Listed here are only places that are disjoint for the paths of
//! this program: a packet lost to a full backlog is in the device's `rx_dropped` (and again in `softnet_stat`, which
//! belongs to the whole host and is left out); one lost in IP or UDP is in exactly one of the named MIB counters.

use lab::counters::{Place, Snapshot, diff};
use measure::ledger::{Drop, Ledger};

/// MIB counters of a namespace in which a packet ends, and what they mean. `UdpInErrors` is absent: it contains the
/// two UDP counters below (net/ipv4/udp.c, 6.18).
const MIB: [(&str, &str); 14] = [
    ("Ip.InHdrErrors", "bad IP header, or TTL used up"),
    ("Ip.InAddrErrors", "address not for this host"),
    ("Ip.InUnknownProtos", "no such protocol"),
    ("Ip.InDiscards", "discarded on the way in"),
    ("Ip.OutDiscards", "discarded on the way out"),
    ("Ip.OutNoRoutes", "no route"),
    ("IpExt.InNoRoutes", "no route for a packet to forward"),
    ("IpExt.InTruncatedPkts", "shorter than its header says"),
    ("Udp.RcvbufErrors", "socket receive buffer full"),
    ("Udp.InCsumErrors", "bad UDP checksum"),
    ("Udp.NoPorts", "no socket on that port"),
    ("Ip6InHdrErrors", "bad IPv6 header, or hop limit used up"),
    ("Ip6InNoRoutes", "no IPv6 route"),
    ("Ip6InDiscards", "discarded on the way in (IPv6)"),
];

/// Name of the socket's own drop counter in a ledger.
const SOCKET: &str = "socket";

/// Adds drops that the path's own end reported.
pub(crate) fn add_known(book: &mut Ledger, drops: Vec<(&'static str, u64)>) {
    for (reason, packets) in drops {
        add(book, reason.into(), SOCKET.into(), packets);
    }
}

/// Adds what the namespaces' counters say was dropped between two snapshots, as long as packets are missing.
pub(crate) fn add_counters(book: &mut Ledger, role: &str, before: &Snapshot, after: &Snapshot) {
    let socket_known = book.drops.iter().any(|drop| drop.counter == SOCKET);
    for (key, grown) in diff(before, after) {
        let reason = match (&key.place, key.name.as_str()) {
            (Place::Protocol, "Udp.RcvbufErrors") if socket_known => continue,
            (Place::Protocol, name) => {
                MIB.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
            }
            (Place::Link(_), "rx_dropped") => Some("the device could not take it (full backlog or ring)"),
            (Place::Link(_), "tx_dropped") => Some("the device could not send it"),
            _ => None,
        };
        if let (Some(reason), Ok(packets)) = (reason, u64::try_from(grown)) {
            add(book, reason.into(), format!("{role} {key}"), packets);
        }
    }
}

fn add(book: &mut Ledger, reason: String, counter: String, packets: u64) {
    if packets > 0 && book.unaccounted() > 0 {
        book.drops.push(Drop { reason, counter, packets });
    }
}
