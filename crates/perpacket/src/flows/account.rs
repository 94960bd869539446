//! Where every packet of a run ended, and what the CPUs did meanwhile.
//!
//! One loss stands in several counters. What a CPU's backlog refuses is in the device's `rx_dropped`, in the `dropped` of
//! that CPU's `softnet_stat`, and, where it was the flow limit that refused it, in its `flow_limited` as well
//! (net/core/dev.c, `enqueue_to_backlog` and `skb_flow_limit`, 6.18). The device's counter belongs to the lab and says how
//! many; the others belong to the host and say why.

use std::collections::BTreeMap;

use lab::counters::{Key, Place};
use linux::procfs::CpuTimes;
use measure::ledger::{Count, Drop, Ledger};
use measure::record::CpuUse;

use crate::ledger::{self, Grown};
use crate::paths::{INGRESS, SYS};

/// What stands in a ledger for each way to lose a packet on the way into the stack.
const FLOW_LIMIT: &str = "flow limit: the flow filled the backlog of its CPU";
const BACKLOG: &str = "backlog of a CPU full";
const DEVICE: &str = "the device could not take it";
const FILTER: &str = "refused by a filter before the socket";

/// What UDP counts whatever the cause, but for a port without a socket.
const IN_ERRORS: &str = "Udp.InErrors";
/// Counters of one cause each within `Udp.InErrors` (net/ipv4/udp.c, 6.18).
const WITHIN_IN_ERRORS: [&str; 3] = ["Udp.RcvbufErrors", "Udp.MemErrors", "Udp.InCsumErrors"];

/// The ledger of a run: packets sent, packets read by receivers, and what counters of the lab say about the rest.
/// `refused` were refused and sent again: the host's counters have them too, those in `grown` of the lab's devices no more.
pub(super) fn ledger(frame_bytes: u32, sent: Count, received: u64, grown: &Grown, refused: u64) -> Ledger {
    let mut book = Ledger::new("flows", Some(frame_bytes), sent);
    book.received.push(Count { packets: received, seen_by: "read from the sockets".into() });
    if book.closes() {
        return book;
    }
    let grown: Grown = grown.iter().map(|(role, counters)| (*role, on_their_way(role, counters))).collect();
    ledger::add_counters(&mut book, &grown, &[]);
    for (_, counters) in grown.iter().filter(|(role, _)| *role == SYS) {
        split_refused(&mut book, counters, refused);
        add_filtered(&mut book, counters);
    }
    book
}

/// The counters of what is on its way from the sender to the sockets: what comes back to the sender, such as the answers of a
/// port without a socket, ends in others.
fn on_their_way(role: &str, counters: &BTreeMap<Key, i64>) -> BTreeMap<Key, i64> {
    let is_ours = |key: &Key| match (&key.place, key.name.as_str()) {
        (Place::Link(_), "rx_dropped") => role == SYS,
        (Place::Link(_), "tx_dropped") | (Place::Qdisc(_), _) => role != SYS,
        (Place::Protocol, name) => role == SYS && !name.starts_with("Ip.Out"),
        _ => role == SYS,
    };
    counters.iter().filter(|(key, _)| is_ours(key)).map(|(key, by)| (key.clone(), *by)).collect()
}

/// Says why the receiving device could not hand packets on: each of the host's counters as far as the device's goes.
fn split_refused(book: &mut Ledger, counters: &BTreeMap<Key, i64>, refused: u64) {
    let counter = format!("{SYS} {}", Key::new(Place::Link(INGRESS.into()), "rx_dropped"));
    let Some(at) = book.drops.iter().position(|drop| drop.counter == counter) else { return };
    let all = book.drops[at].packets;
    let (dropped, limited) = (of_host(counters, "dropped"), of_host(counters, "flow_limited"));
    let by_limit = limited.min(all);
    let by_backlog = dropped.saturating_sub(limited).min(all - by_limit);
    let named = |name: &str| format!("{counter}; softnet_stat: {name}");
    let split = [
        (FLOW_LIMIT, named("flow_limit_count"), by_limit),
        (BACKLOG, named("dropped"), by_backlog),
        (DEVICE, counter.clone(), all - by_limit - by_backlog),
    ];
    let split = split.into_iter().filter(|(.., packets)| *packets > 0);
    let split = split.map(|(reason, counter, packets)| Drop { reason: reason.into(), counter, packets });
    book.drops.splice(at..=at, split);
    let of_others = dropped.saturating_sub(all + refused);
    if of_others > 0 && limited > 0 {
        book.notes.push(format!(
            "backlogs of this host lost {of_others} packets of others meanwhile (softnet_stat), so that it is not sure which of ours \
             the flow limit took"
        ));
    }
}

/// By how much a counter of all CPUs' receive paths grew.
fn of_host(counters: &BTreeMap<Key, i64>, name: &str) -> u64 {
    let own = counters.iter().filter(|(key, _)| matches!(key.place, Place::Softnet(_)) && key.name == name);
    own.map(|(_, &by)| u64::try_from(by).unwrap_or(0)).sum()
}

/// Adds what UDP counts as an error without a counter of its own: what a filter or a policy refused.
fn add_filtered(book: &mut Ledger, counters: &BTreeMap<Key, i64>) {
    let of = |name: &str| counters.get(&Key::new(Place::Protocol, name)).copied().unwrap_or(0);
    let known: i64 = WITHIN_IN_ERRORS.into_iter().map(of).sum();
    let packets = u64::try_from(of(IN_ERRORS) - known).unwrap_or(0);
    if packets > 0 && book.unaccounted() > 0 {
        book.drops.push(Drop { reason: FILTER.into(), counter: format!("{SYS} {IN_ERRORS}"), packets });
    }
}

/// What each CPU did between two readings of `/proc/stat`.
pub(super) fn cpu_use(before: &[CpuTimes], after: &[CpuTimes]) -> Vec<CpuUse> {
    let tick_ns = 1_000_000_000 / CpuTimes::ticks_per_second().max(1);
    let of = |after: &CpuTimes| {
        let cpu = after.cpu?;
        let before = before.iter().find(|times| times.cpu == after.cpu)?;
        let ns = |part: fn(&CpuTimes) -> u64| part(after).saturating_sub(part(before)) * tick_ns;
        Some(CpuUse {
            cpu,
            user_ns: ns(|times| times.user + times.nice),
            system_ns: ns(|times| times.system),
            irq_ns: ns(|times| times.irq),
            softirq_ns: ns(|times| times.softirq),
            idle_ns: ns(|times| times.idle + times.iowait),
            steal_ns: after.steal.zip(before.steal).map(|(now, then)| now.saturating_sub(then) * tick_ns),
            ..CpuUse::default()
        })
    };
    after.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use linux::procfs::cpu_times;

    use super::*;

    fn counted(received: u64, counters: &[(Place, &str, i64)]) -> Ledger {
        let sent = Count { packets: 1_000, seen_by: "sending program".into() };
        let counters =
            counters.iter().map(|(place, name, by)| (Key::new(place.clone(), *name), *by)).collect();
        ledger(64, sent, received, &vec![(SYS, counters)], 0)
    }

    fn drops(book: &Ledger) -> Vec<(&str, u64)> {
        book.drops.iter().map(|drop| (drop.reason.as_str(), drop.packets)).collect()
    }

    fn in0() -> Place {
        Place::Link(INGRESS.into())
    }

    #[test]
    fn what_a_backlog_refused_is_counted_once_and_by_its_reason() {
        let book = counted(
            700,
            &[
                (in0(), "rx_dropped", 300),
                (Place::Softnet(0), "dropped", 250),
                (Place::Softnet(0), "flow_limited", 100),
                (Place::Softnet(1), "dropped", 30),
            ],
        );
        assert_eq!(drops(&book), [(FLOW_LIMIT, 100), (BACKLOG, 180), (DEVICE, 20)]);
        assert!(book.closes() && book.notes.is_empty(), "{book:?}");
    }

    #[test]
    fn losses_of_others_are_none_of_ours() {
        let book = counted(
            900,
            &[
                (in0(), "rx_dropped", 100),
                (Place::Softnet(0), "dropped", 5_000),
                (Place::Softnet(1), "flow_limited", 40),
            ],
        );
        assert_eq!(drops(&book), [(FLOW_LIMIT, 40), (BACKLOG, 60)]);
        assert!(book.closes() && book.notes[0].contains("4900 packets of others"), "{book:?}");
        let book = counted(1_000, &[(Place::Softnet(0), "dropped", 5_000)]);
        assert!(book.closes() && book.drops.is_empty());
    }

    #[test]
    fn errors_of_udp_are_told_apart() {
        let protocol = |name, by| (Place::Protocol, name, by);
        let book = counted(
            800,
            &[
                protocol("Udp.InErrors", 150),
                protocol("Udp.RcvbufErrors", 90),
                protocol("Udp.MemErrors", 10),
                protocol("Udp.InCsumErrors", 20),
                protocol("Udp.NoPorts", 50),
            ],
        );
        let found = drops(&book);
        assert_eq!(found.iter().map(|(_, packets)| packets).sum::<u64>(), 200, "{book:?}");
        assert!(
            found.contains(&(FILTER, 30)) && found.contains(&("socket receive buffer full", 90)),
            "{book:?}"
        );
        assert!(found.contains(&("no socket on that port", 50)) && found.contains(&("bad UDP checksum", 20)));
    }

    #[test]
    fn what_comes_back_is_no_loss_of_ours() {
        let sent = Count { packets: 1_000, seen_by: "sending program".into() };
        let key = |place, name: &str| Key::new(place, name);
        let gen_side = [
            (key(Place::Protocol, "Ip.InAddrErrors"), 70),
            (key(Place::Link("g0".into()), "rx_dropped"), 5),
            (key(Place::Link("g0".into()), "tx_dropped"), 40),
        ];
        let sys_side = [
            (key(Place::Link("in0".into()), "tx_dropped"), 8),
            (key(Place::Protocol, "Udp.NoPorts"), 60),
            (key(Place::Protocol, "Ip.OutNoRoutes"), 9),
        ];
        let grown: Grown =
            vec![("gen", gen_side.into_iter().collect()), (SYS, sys_side.into_iter().collect())];
        let book = ledger(64, sent, 900, &grown, 0);
        assert_eq!(drops(&book), [("the device could not send it", 40), ("no socket on that port", 60)]);
        assert!(book.closes());
    }

    #[test]
    fn what_nobody_counted_stays_open() {
        let book = counted(990, &[]);
        assert_eq!(book.unaccounted(), 10);
    }

    #[test]
    fn times_of_a_cpu_are_differences() {
        let before = cpu_times("cpu  1 2 3 4 5 6 7 8\ncpu0 10 1 5 100 1 0 3 2\ncpu1 0 0 0 0 0 0 0 0\n");
        let after = cpu_times("cpu  1 2 3 4 5 6 7 8\ncpu0 14 2 8 150 2 1 13 2\ncpu2 0 0 0 9 0 0 0 0\n");
        let [own] = &cpu_use(&before, &after)[..] else { panic!("CPU 0 is in both") };
        let tick = 1_000_000_000 / CpuTimes::ticks_per_second();
        assert_eq!((own.cpu, own.user_ns, own.system_ns), (0, 5 * tick, 3 * tick));
        assert_eq!((own.softirq_ns, own.idle_ns, own.steal_ns), (10 * tick, 51 * tick, Some(0)));
        assert_eq!(own.busy_ns(), 19 * tick);
    }
}
