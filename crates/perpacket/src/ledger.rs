//! Explains what is missing in a ledger, from counters in which a packet ends at most once.
//!
//! The kernel counts one loss in several places. Listed here are only places that are disjoint for the paths of
//! this program: a packet lost to a full backlog is in the device's `rx_dropped` (and again in `softnet_stat`, which
//! belongs to the whole host and is left out); one lost in IP or UDP is in exactly one of the named MIB counters.

use std::collections::BTreeMap;

use lab::counters::{Key, Place, Snapshot, diff};
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

/// Adds what a namespace's counters say was dropped between two snapshots, as long as packets are missing.
pub(crate) fn add_counters(book: &mut Ledger, role: &str, before: &Snapshot, after: &Snapshot) {
    add_grown(book, role, diff(before, after));
}

fn add_grown(book: &mut Ledger, role: &str, grown: BTreeMap<Key, i64>) {
    let socket_known = book.drops.iter().any(|drop| drop.counter == SOCKET);
    for (key, grown) in grown {
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

#[cfg(test)]
mod tests {
    use measure::ledger::Count;

    use super::*;

    fn missing(packets: u64) -> Ledger {
        Ledger::new("udp", Some(64), Count { packets, seen_by: "injecting program".into() })
    }

    fn grown(counters: &[(Place, &str, i64)]) -> BTreeMap<Key, i64> {
        counters.iter().map(|(place, name, by)| (Key::new(place.clone(), *name), *by)).collect()
    }

    #[test]
    fn only_counters_in_which_a_packet_ends_are_added() {
        let mut book = missing(100);
        let counters = [
            (Place::Protocol, "Udp.InErrors", 40),
            (Place::Protocol, "Udp.RcvbufErrors", 40),
            (Place::Protocol, "Ip.InReceives", 100),
            (Place::Softnet(0), "dropped", 30),
            (Place::Link("in0".into()), "rx_dropped", 30),
            (Place::Link("in0".into()), "rx_packets", 100),
            (Place::Link("in0".into()), "tx_dropped", -5),
        ];
        add_grown(&mut book, "sys", grown(&counters));
        let counters: Vec<&str> = book.drops.iter().map(|drop| drop.counter.as_str()).collect();
        assert_eq!(counters, ["sys Udp.RcvbufErrors", "sys link in0: rx_dropped"]);
        assert_eq!(book.unaccounted(), 30);
    }

    #[test]
    fn the_sockets_own_count_stands_for_that_of_the_namespace() {
        let mut book = missing(100);
        add_known(&mut book, vec![("socket receive buffer full (SO_MEMINFO)", 40), ("nothing", 0)]);
        add_grown(
            &mut book,
            "sys",
            grown(&[(Place::Protocol, "Udp.RcvbufErrors", 40), (Place::Protocol, "Udp.NoPorts", 60)]),
        );
        assert_eq!(book.drops.iter().map(|drop| drop.packets).collect::<Vec<_>>(), [40, 60]);
        assert!(book.closes());
    }

    #[test]
    fn a_ledger_that_closes_is_left_alone() {
        let mut book = missing(0);
        add_grown(&mut book, "far", grown(&[(Place::Protocol, "Ip.InDiscards", 3)]));
        assert!(book.drops.is_empty());
    }
}
