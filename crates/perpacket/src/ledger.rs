//! Explains what is missing in a ledger, from counters in which a packet ends at most once.
//!
//! The kernel counts one loss in several places. Listed here are only places that are disjoint for the paths of
//! this program: a packet lost to a full backlog is in the device's `rx_dropped` (and again in `softnet_stat`, which
//! belongs to the whole host, and in the `tx_dropped` of the veth end that sent it); one lost in IP or UDP is in exactly
//! one of the named MIB counters; one that a queueing discipline dropped is in that one's `drops` and in no counter of the
//! device. A counter that a path raises with every packet tells of no loss there
//! ([`About::on_the_way`](crate::paths::About)).

use std::collections::BTreeMap;

use lab::counters::{Key, Place};
use measure::ledger::{Drop, Ledger};

use traffic::BackendKind;

use crate::cell::{Cell, PathName};
use crate::paths::{self, XDP_DROPS};

/// MIB counters of a namespace in which a packet ends, and what they mean. `UdpInErrors` is absent: it contains the
/// three UDP counters below (net/ipv4/udp.c, 6.18).
const MIB: [(&str, &str); 20] = [
    ("Ip.InHdrErrors", "bad IP header, or TTL used up"),
    ("Ip.InAddrErrors", "address not for this host"),
    ("Ip.InUnknownProtos", "no such protocol"),
    ("Ip.InDiscards", "discarded on the way in"),
    ("Ip.OutDiscards", "discarded on the way out"),
    ("Ip.OutNoRoutes", "no route"),
    ("IpExt.InNoRoutes", "no route for a packet to forward"),
    ("IpExt.InTruncatedPkts", "shorter than its header says"),
    ("TcpExt.IPReversePathFilter", "refused by the reverse path filter"),
    ("Udp.RcvbufErrors", "socket receive buffer full"),
    ("Udp.MemErrors", "no memory left for UDP (net.ipv4.udp_mem)"),
    ("Udp.InCsumErrors", "bad UDP checksum"),
    ("Udp.NoPorts", "no socket on that port"),
    ("Udp6RcvbufErrors", "socket receive buffer full"),
    ("Udp6MemErrors", "no memory left for UDP (net.ipv4.udp_mem)"),
    ("Udp6InCsumErrors", "bad UDP checksum"),
    ("Udp6NoPorts", "no socket on that port"),
    ("Ip6InHdrErrors", "bad IPv6 header, or hop limit used up"),
    ("Ip6InNoRoutes", "no IPv6 route"),
    ("Ip6InDiscards", "discarded on the way in (IPv6)"),
];

/// Counters of packets that a sender was refused, and told so: they are not among those sent. A socket that asks for it
/// (IP_RECVERR) gets an error for what the queueing discipline or the device dropped (net/ipv4/udp.c, udp_send_skb; counted in
/// net/ipv4/ip_output.c, ip_send_skb, 6.18).
const REFUSED: [(&str, &str); 1] = [(paths::GEN, "Ip.OutDiscards")];

/// Name of the socket's own drop counter in a ledger.
const SOCKET: &str = "socket";

/// By how much counters grew, namespace by namespace, each with its role.
pub(crate) type Grown = Vec<(&'static str, BTreeMap<Key, i64>)>;

/// What a sender learns of its device, and how the other end of the veth pair takes packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WayIn {
    /// Whether the sender is told of each packet that its device refused, and sends it again: it is not among those sent. A veth
    /// answers NET_XMIT_DROP (drivers/net/veth.c, veth_xmit), which a packet socket without a queueing discipline has as ENOBUFS or
    /// as a slot that it got back (net/packet/af_packet.c, packet_xmit and tpacket_snd), and a UDP socket with IP_RECVERR as ENOBUFS
    /// (net/ipv4/udp.c, udp_send_skb; all 6.18).
    pub(crate) is_told: bool,
    /// Whether the receiving device is polled (NAPI): what its backlog refuses then, nobody tells the sender.
    pub(crate) is_polled: bool,
}

impl WayIn {
    /// By this backend, past a queueing discipline.
    pub(crate) fn by(kind: BackendKind, is_polled: bool) -> Self {
        let is_told = matches!(kind, BackendKind::Mmsg | BackendKind::TxRing | BackendKind::Udp);
        Self { is_told, is_polled }
    }

    /// That of a cell whose backend is resolved. A queueing discipline takes a packet and says so before the device refuses it; of
    /// datagrams that are cut on the way out, the sender learns only what became of the last (net/core/dev.c, dev_hard_start_xmit,
    /// 6.18).
    pub(crate) fn of(cell: &Cell, kind: BackendKind) -> Self {
        let setting = &cell.setting;
        let has_program = matches!(cell.path, PathName::XdpDrop | PathName::XdpTx) || cell.path.is_datapath();
        let way = Self::by(kind, setting.gro || has_program);
        Self { is_told: way.is_told && !setting.has_qdisc() && !setting.gso, ..way }
    }
}

/// Takes out of the counters what the sender's device refused and was sent again, which is no loss. How often that was; none where
/// the sender does not learn of it.
pub(crate) fn take_refusals(grown: &mut Grown, way: WayIn) -> Option<u64> {
    if !way.is_told {
        return None;
    }
    let refused =
        counter(grown, paths::GEN, paths::INGRESS_PEER, "tx_dropped").map_or(0, std::mem::take).max(0);
    // Not polled, the backlog is asked within the sender's call: what it refuses both ends count.
    if let Some(dropped) = counter(grown, paths::SYS, paths::INGRESS, "rx_dropped").filter(|_| !way.is_polled)
    {
        *dropped -= refused.min(*dropped).max(0);
    }
    u64::try_from(refused).ok()
}

fn counter<'a>(grown: &'a mut Grown, role: &str, device: &str, name: &str) -> Option<&'a mut i64> {
    let (_, counters) = grown.iter_mut().find(|(known, _)| *known == role)?;
    counters.get_mut(&Key::new(Place::Link(device.into()), name))
}

/// Adds drops that the path's own end reported.
pub(crate) fn add_known(book: &mut Ledger, drops: Vec<(&'static str, u64)>) {
    for (reason, packets) in drops {
        add(book, reason.into(), SOCKET.into(), packets);
    }
}

/// Adds what the counters of a lab say was dropped, as long as packets are missing. Those in `on_the_way` are passed over.
pub(crate) fn add_counters(book: &mut Ledger, grown: &Grown, on_the_way: &[(&str, &str)]) {
    let socket_known = book.drops.iter().any(|drop| drop.counter == SOCKET);
    for (role, counters) in grown {
        for (key, &by) in counters {
            let name = short_name(key);
            let passed = on_the_way.contains(&(*role, name)) || REFUSED.contains(&(*role, name));
            let reason = match (&key.place, name) {
                _ if passed => None,
                (Place::Protocol, "Udp.RcvbufErrors") if socket_known => None,
                (Place::Protocol, name) => {
                    MIB.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
                }
                (Place::Link(_), "rx_dropped") => Some("the device could not take it (full backlog or ring)"),
                (Place::Link(_), "tx_dropped") => Some("the device could not send it"),
                (Place::Driver(_), XDP_DROPS) => Some("an XDP program dropped it"),
                (Place::Qdisc(_), "drops") => Some("the queueing discipline dropped it"),
                (Place::Qdisc(_), "queued") => Some("it still waits in the queueing discipline"),
                _ => None,
            };
            let packets = u64::try_from(by).unwrap_or(0).saturating_sub(counted_by_peer(key, grown));
            let packets = match (&key.place, name) {
                (Place::Qdisc(_), "drops") => packets.min(taken_and_not_let_out(&key.place, counters, book)),
                _ => packets,
            };
            if let Some(reason) = reason {
                add(book, reason.into(), format!("{role} {key}"), packets);
            }
        }
    }
    note_the_hosts_backlog(book, grown);
}

/// The counter's name; of a driver's counter without the queue that it is about (`rx_queue_0_xdp_drops`).
fn short_name(key: &Key) -> &str {
    let Place::Driver(_) = key.place else { return &key.name };
    let of_queue = key.name.strip_prefix("rx_queue_").and_then(|rest| rest.split_once('_'));
    of_queue.map_or(&key.name, |(_, name)| name)
}

/// Packets of a `tx_dropped` that the other end of the veth pair may have counted as well, in its `rx_dropped`: a sender
/// counts what the receiver's backlog refused (drivers/net/veth.c, veth_xmit; net/core/dev.c, enqueue_to_backlog, 6.18).
fn counted_by_peer(key: &Key, grown: &Grown) -> u64 {
    let (Place::Link(device), "tx_dropped") = (&key.place, key.name.as_str()) else { return 0 };
    let Some(peer) = paths::peer(device) else { return 0 };
    let refused = Key::new(Place::Link(peer.into()), "rx_dropped");
    let by = grown.iter().find_map(|(_, counters)| counters.get(&refused));
    by.map_or(0, |&by| u64::try_from(by).unwrap_or(0))
}

/// Packets that a queueing discipline took and that neither left it nor wait in it. Its `drops` contain those that it
/// refused to take as well (net/sched/sch_fifo.c, pfifo_enqueue, 6.18), which are not among the packets sent.
fn taken_and_not_let_out(place: &Place, counters: &BTreeMap<Key, i64>, book: &Ledger) -> u64 {
    let of = |name: &str| {
        let by = counters.get(&Key::new(place.clone(), name)).copied().unwrap_or(0);
        u64::try_from(by).unwrap_or(0)
    };
    book.sent.packets.saturating_sub(of("packets")).saturating_sub(of("queued"))
}

/// Says that backlogs of the host lost packets, where some are still missing: whose they were is not known.
fn note_the_hosts_backlog(book: &mut Ledger, grown: &Grown) {
    let Some((_, counters)) = grown.first().filter(|_| book.unaccounted() > 0) else { return };
    for (key, by) in counters {
        if let (Place::Softnet(cpu), "dropped") = (&key.place, key.name.as_str()) {
            book.notes.push(format!(
                "the backlog of CPU {cpu} lost {by} packets meanwhile, of this run or of others (softnet_stat)"
            ));
        }
    }
}

/// Adds drops while packets are missing. More than are missing are added whole, which leaves the ledger open, and said.
fn add(book: &mut Ledger, reason: String, counter: String, packets: u64) {
    let missing = book.unaccounted();
    if packets == 0 || missing <= 0 {
        return;
    }
    if packets > missing.unsigned_abs() {
        book.notes.push(format!(
            "{counter} says {packets} where {missing} were missing: it counted packets of others, or a loss twice"
        ));
    }
    book.drops.push(Drop { reason, counter, packets });
}

#[cfg(test)]
mod tests {
    use measure::ledger::Count;

    use super::*;
    use crate::cell::PathName;

    fn missing(packets: u64) -> Ledger {
        Ledger::new("udp", Some(64), Count { packets, seen_by: "injecting program".into() })
    }

    fn grown(role: &'static str, counters: &[(Place, &str, i64)]) -> Grown {
        vec![(role, counters.iter().map(|(place, name, by)| (Key::new(place.clone(), *name), *by)).collect())]
    }

    fn link(device: &str) -> Place {
        Place::Link(device.into())
    }

    fn counters(book: &Ledger) -> Vec<&str> {
        book.drops.iter().map(|drop| drop.counter.as_str()).collect()
    }

    #[test]
    fn only_counters_in_which_a_packet_ends_are_added() {
        let mut book = missing(100);
        let grown = grown(
            "sys",
            &[
                (Place::Protocol, "Udp.InErrors", 40),
                (Place::Protocol, "Udp.RcvbufErrors", 40),
                (Place::Protocol, "Ip.InReceives", 100),
                (Place::Softnet(0), "dropped", 30),
                (link("in0"), "rx_dropped", 30),
                (link("in0"), "rx_packets", 100),
                (link("in0"), "tx_dropped", -5),
            ],
        );
        add_counters(&mut book, &grown, &[]);
        assert_eq!(counters(&book), ["sys Udp.RcvbufErrors", "sys link in0: rx_dropped"]);
        assert_eq!(book.unaccounted(), 30);
        assert_eq!(book.notes.len(), 1);
        assert!(book.notes[0].contains("CPU 0 lost 30"), "{:?}", book.notes);
    }

    #[test]
    fn the_sockets_own_count_stands_for_that_of_the_namespace() {
        let mut book = missing(100);
        add_known(&mut book, vec![("socket receive buffer full (SO_MEMINFO)", 40), ("nothing", 0)]);
        let both = [(Place::Protocol, "Udp.RcvbufErrors", 40), (Place::Protocol, "Udp.NoPorts", 60)];
        add_counters(&mut book, &grown("sys", &both), &[]);
        assert_eq!(book.drops.iter().map(|drop| drop.packets).collect::<Vec<_>>(), [40, 60]);
        assert!(book.closes() && book.notes.is_empty());
    }

    #[test]
    fn what_the_device_refused_and_was_sent_again_is_no_loss() {
        let both = || {
            let counters = |place: Place, name: &str, by: i64| BTreeMap::from([(Key::new(place, name), by)]);
            vec![
                (paths::GEN, counters(link(paths::INGRESS_PEER), "tx_dropped", 181)),
                (paths::SYS, counters(link(paths::INGRESS), "rx_dropped", 200)),
            ]
        };
        let left = |grown: &Grown| {
            let mut book = missing(500);
            add_counters(&mut book, grown, &[]);
            book.drops.iter().map(|drop| drop.packets).sum::<u64>()
        };
        let way = WayIn { is_told: true, is_polled: true };
        let (mut polled, mut not_polled, mut untold) = (both(), both(), both());
        assert_eq!((take_refusals(&mut polled, way), left(&polled)), (Some(181), 200));
        let way = WayIn { is_polled: false, ..way };
        assert_eq!((take_refusals(&mut not_polled, way), left(&not_polled)), (Some(181), 19));
        let way = WayIn { is_told: false, ..way };
        assert_eq!((take_refusals(&mut untold, way), left(&untold)), (None, 200));
        assert_eq!(take_refusals(&mut vec![], WayIn { is_told: true, is_polled: false }), Some(0));
    }

    #[test]
    fn who_is_told_of_refusals() {
        let told = |kind, setting| {
            let cell = Cell { path: PathName::Udp, frame_bytes: 64, setting };
            WayIn::of(&cell, kind).is_told
        };
        let usual = crate::cell::Setting::default();
        for kind in [BackendKind::Mmsg, BackendKind::TxRing, BackendKind::Udp] {
            assert!(told(kind, usual.clone()));
            assert!(!told(kind, crate::cell::Setting { qdisc: "pfifo".into(), ..usual.clone() }));
        }
        assert!(!told(BackendKind::Udp, crate::cell::Setting { gso: true, ..usual.clone() }));
        for kind in [BackendKind::Inject, BackendKind::XdpLive, BackendKind::AfXdp] {
            assert!(!told(kind, usual.clone()));
        }
    }

    #[test]
    fn a_ledger_that_closes_is_left_alone() {
        let mut book = missing(0);
        add_counters(&mut book, &grown("far", &[(Place::Protocol, "Ip.InDiscards", 3)]), &[]);
        assert!(book.drops.is_empty());
    }

    #[test]
    fn what_every_packet_of_a_path_raises_is_no_loss_there() {
        let counters_of = |path: PathName, role: &'static str, counted: &[(Place, &str, i64)]| {
            let mut book = missing(12);
            add_counters(&mut book, &grown(role, counted), paths::about(path).on_the_way);
            book.drops.iter().map(|drop| drop.packets).collect::<Vec<_>>()
        };
        let no_ports = [(Place::Protocol, "Udp.NoPorts", 5_000), (Place::Protocol, "Ip.InDiscards", 12)];
        assert_eq!(counters_of(PathName::UdpNoport, "sys", &no_ports), [12]);
        let xdp = [(Place::Driver("in0".into()), "rx_queue_1_xdp_drops", 12)];
        assert!(counters_of(PathName::XdpDrop, "sys", &xdp).is_empty());
        assert_eq!(counters_of(PathName::RawDrop, "sys", &xdp), [12]);
    }

    #[test]
    fn what_a_queueing_discipline_refused_is_no_loss_and_what_it_dropped_is() {
        let counted = |packets, drops, queued| {
            let place = || Place::Qdisc("g0".into());
            let mut book = missing(100);
            let counters =
                [(place(), "packets", packets), (place(), "drops", drops), (place(), "queued", queued)];
            add_counters(&mut book, &grown("gen", &counters), &[]);
            (book.drops.iter().map(|drop| drop.packets).collect::<Vec<_>>(), book.unaccounted())
        };
        assert_eq!(counted(0, 100, 0), (vec![100], 0));
        assert_eq!(counted(100, 40, 0), (vec![], 100), "40 were refused, and are not among the 100 sent");
        assert_eq!(counted(70, 50, 10), (vec![20, 10], 70), "the 70 are lost elsewhere");
    }

    #[test]
    fn more_than_is_missing_is_said_and_leaves_the_ledger_open() {
        let mut book = missing(12);
        add_counters(&mut book, &grown("sys", &[(Place::Protocol, "Udp.NoPorts", 5_000)]), &[]);
        assert_eq!(book.unaccounted(), 12 - 5_000);
        assert!(book.notes[0].contains("says 5000 where 12 were missing"), "{:?}", book.notes);
    }

    #[test]
    fn both_ends_of_a_pair_count_a_loss_once() {
        let mut book = missing(100);
        let mut grown = grown("gen", &[(link("g0"), "tx_dropped", 70)]);
        grown.extend(self::grown("sys", &[(link("in0"), "rx_dropped", 60)]));
        add_counters(&mut book, &grown, &[]);
        assert_eq!(book.drops.iter().map(|drop| drop.packets).collect::<Vec<_>>(), [10, 60]);
    }
}
