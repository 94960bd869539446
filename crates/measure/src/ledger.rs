//! Where every packet ended.
//!
//! Sent = received + the sum of all drops by reason, to the packet. A figure of a run whose ledger does
//! not close is a figure about other packets than were sent.
//!
//! Only *disjoint terminal* counters may stand in a ledger: each packet ends in exactly one of them. Many
//! counters of the kernel are not disjoint, and adding them counts a loss twice:
//!
//! - a packet dropped because a socket's receive buffer is full raises `UdpRcvbufErrors` and `UdpInErrors`
//!   both (net/ipv4/udp.c, `__udp_queue_rcv_skb`, Linux 6.18; RFC 4113 knows the second only);
//! - a packet that RPS put on a full backlog raises `dropped` in `/proc/net/softnet_stat` and the device's
//!   `rx_dropped` (net/core/dev.c, `enqueue_to_backlog`, Linux 6.18).
//!
//! Packets that the run did not send (neighbour discovery, router solicitation) are kept out of the lab.
//!
//! A closed ledger is not delivery: packets that were dropped for a known reason are accounted for.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Packets seen by one counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// Which counter, or which part of the program, says so.
    pub seen_by: String,
}

/// Packets that ended somewhere on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Why, in words, or the kernel's drop reason.
    pub reason: String,
    /// The counter that says so.
    pub counter: String,
    /// How many.
    pub packets: u64,
}

/// Where the packets of one cell ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The path.
    pub path: String,
    /// Frame size, FCS included; `None` when the ledger covers several.
    pub frame_bytes: Option<u32>,
    /// Packets handed over, and who counted them.
    pub sent: Count,
    /// Packets that reached where the path ends; disjoint counters.
    pub received: Vec<Count>,
    /// Packets that ended earlier; disjoint counters.
    pub drops: Vec<Drop>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// Ledgers that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("add the ledger of path {other} to that of path {own}: they account for different packets")]
pub struct AbsorbError {
    /// The path of the ledger that was to grow.
    pub own: String,
    /// The path of the one that was to be added.
    pub other: String,
}

impl Ledger {
    /// A ledger in which nothing was received or dropped yet.
    pub fn new(path: &str, frame_bytes: Option<u32>, sent: Count) -> Ledger {
        Ledger {
            path: path.to_owned(),
            frame_bytes,
            sent,
            received: Vec::new(),
            drops: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Packets received, all counters together.
    pub fn received_packets(&self) -> u64 {
        self.received.iter().fold(0, |sum, count| sum.saturating_add(count.packets))
    }

    /// Packets dropped, all reasons together.
    pub fn dropped_packets(&self) -> u64 {
        self.drops.iter().fold(0, |sum, drop| sum.saturating_add(drop.packets))
    }

    /// Sent − received − dropped. Positive: packets are missing. Negative: a packet was counted twice, or
    /// packets that this run did not send were counted.
    pub fn unaccounted(&self) -> i64 {
        let ended = i128::from(self.received_packets()) + i128::from(self.dropped_packets());
        let open = i128::from(self.sent.packets) - ended;
        open.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Whether every packet is accounted for.
    pub fn closes(&self) -> bool {
        self.unaccounted() == 0
    }

    /// Adds the ledger of another round of the same path: counts of the same counter and drops of the same
    /// reason and counter are summed. The frame size becomes `None` when they differ.
    ///
    /// # Errors
    /// [`AbsorbError`] when the paths differ; nothing is changed then.
    pub fn absorb(&mut self, other: &Ledger) -> Result<(), AbsorbError> {
        if self.path != other.path {
            return Err(AbsorbError { own: self.path.clone(), other: other.path.clone() });
        }
        if self.frame_bytes != other.frame_bytes {
            self.frame_bytes = None;
        }
        if self.sent.seen_by != other.sent.seen_by && !self.sent.seen_by.contains(&other.sent.seen_by) {
            self.sent.seen_by = format!("{} + {}", self.sent.seen_by, other.sent.seen_by);
        }
        self.sent.packets = self.sent.packets.saturating_add(other.sent.packets);
        other.received.iter().for_each(|count| add_count(&mut self.received, count));
        other.drops.iter().for_each(|drop| add_drop(&mut self.drops, drop));
        for note in &other.notes {
            if !self.notes.contains(note) {
                self.notes.push(note.clone());
            }
        }
        Ok(())
    }
}

fn add_count(counts: &mut Vec<Count>, more: &Count) {
    match counts.iter_mut().find(|count| count.seen_by == more.seen_by) {
        Some(count) => count.packets = count.packets.saturating_add(more.packets),
        None => counts.push(more.clone()),
    }
}

fn add_drop(drops: &mut Vec<Drop>, more: &Drop) {
    match drops.iter_mut().find(|drop| drop.reason == more.reason && drop.counter == more.counter) {
        Some(drop) => drop.packets = drop.packets.saturating_add(more.packets),
        None => drops.push(more.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(packets: u64, seen_by: &str) -> Count {
        Count { packets, seen_by: seen_by.to_owned() }
    }

    fn udp(sent: u64, received: u64, dropped: u64) -> Ledger {
        let mut ledger = Ledger::new("udp", Some(64), count(sent, "inject program"));
        ledger.received.push(count(received, "socket reader"));
        ledger.drops.push(Drop {
            reason: "receive buffer full".to_owned(),
            counter: "RcvbufErrors".to_owned(),
            packets: dropped,
        });
        ledger
    }

    #[test]
    fn drops_close_the_ledger_and_still_are_no_delivery() {
        let ledger = udp(1_000, 950, 50);
        assert_eq!(ledger.unaccounted(), 0);
        assert!(ledger.closes());
        assert_eq!(ledger.received_packets(), 950);
    }

    #[test]
    fn what_is_missing_or_counted_twice_has_a_sign() {
        assert_eq!(udp(1_000, 950, 49).unaccounted(), 1);
        assert_eq!(udp(1_000, 950, 51).unaccounted(), -1);
        assert_eq!(udp(0, u64::MAX, u64::MAX).unaccounted(), i64::MIN);
    }

    #[test]
    fn rounds_add_up() {
        let mut total = udp(1_000, 1_000, 0);
        let mut other = udp(1_000, 900, 90);
        other.notes.push("backlog".to_owned());
        total.absorb(&other).unwrap();
        total.absorb(&other).unwrap();
        assert_eq!(
            (total.sent.packets, total.received_packets(), total.dropped_packets()),
            (3_000, 2_800, 180)
        );
        assert_eq!(total.unaccounted(), 20);
        assert_eq!((total.received.len(), total.drops.len(), total.notes.len()), (1, 1, 1));

        other.frame_bytes = Some(272);
        total.absorb(&other).unwrap();
        assert_eq!(total.frame_bytes, None);
        other.path = "forward".to_owned();
        assert!(total.absorb(&other).unwrap_err().to_string().contains("forward"));
    }
}
