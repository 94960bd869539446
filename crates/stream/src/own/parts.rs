//! One side from the parts that separate calls of the engine have counted.

use std::collections::VecDeque;
use std::time::Duration;

use crate::outcome::{Interval, Side};

/// All parts as one side. CPU time is accounted for in the first part, for the whole host.
pub(super) fn join_sides(parts: Vec<Side>) -> Side {
    let mut merge = Merge::new(parts.len());
    let mut whole = Side::default();
    for (index, part) in parts.into_iter().enumerate() {
        whole.wall_ns = whole.wall_ns.max(part.wall_ns);
        whole.flows.extend(part.flows);
        whole.warnings.extend(part.warnings);
        whole.cpu = whole.cpu.or(part.cpu);
        let intervals = part.intervals.into_iter();
        let ready: Vec<Interval> = intervals.filter_map(|interval| merge.add(index, interval)).collect();
        whole.intervals.extend(ready);
    }
    whole
}

/// What each flow has sent, in order of flows; null where it does not send, or its part goes on. `sides` are the parts.
pub(super) fn only_parts(sides: &[Option<Side>]) -> Vec<Option<u64>> {
    let flows = sides.iter().flatten().flat_map(|side| &side.flows);
    flows.map(|flow| flow.sent.map(|sent| sent.messages)).collect()
}

/// What was sent after the last datagram that came, as the other end tells how many it sent: the flows that send at one end
/// are those that receive at the other, in the same order. Where something was omitted, the numbers do not tell.
pub(super) fn tail_losses(side: &mut Side, sent: &[Option<u64>], omit: Duration) {
    if !omit.is_zero() {
        return;
    }
    let sent: Vec<u64> = sent.iter().flatten().copied().collect();
    let receiving: Vec<_> = side.flows.iter_mut().filter_map(|flow| flow.datagrams.as_mut()).collect();
    if sent.len() != receiving.len() {
        return;
    }
    for (datagrams, sent) in receiving.into_iter().zip(sent) {
        datagrams.tail_lost = sent.checked_sub(datagrams.received.saturating_add(datagrams.lost));
    }
}

/// Puts periods together that parts tell one after the other.
#[derive(Debug)]
pub(super) struct Merge {
    parts: Vec<VecDeque<Interval>>,
}

impl Merge {
    pub(super) fn new(parts: usize) -> Self {
        Self { parts: (0..parts).map(|_| VecDeque::new()).collect() }
    }

    /// A period of one part; the whole one when every part has told of it.
    pub(super) fn add(&mut self, part: usize, interval: Interval) -> Option<Interval> {
        self.parts.get_mut(part)?.push_back(interval);
        if self.parts.iter().any(VecDeque::is_empty) {
            return None;
        }
        let mut all = self.parts.iter_mut().filter_map(VecDeque::pop_front);
        let mut whole = all.next()?;
        for other in all {
            whole.start_ns = whole.start_ns.min(other.start_ns);
            whole.end_ns = whole.end_ns.max(other.end_ns);
            whole.flows.extend(other.flows);
        }
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Cpu, Datagrams, Flow, Moved};

    fn sends(messages: u64) -> Flow {
        Flow { sent: Some(Moved { messages, ..Moved::default() }), ..Flow::default() }
    }

    fn receives(received: u64, lost: u64) -> Flow {
        let datagrams = Some(Datagrams { received, lost, ..Datagrams::default() });
        Flow { datagrams, ..Flow::default() }
    }

    fn period(start_ns: u64, end_ns: u64, flow: Flow) -> Interval {
        Interval { start_ns, end_ns, omitted: false, flows: vec![flow] }
    }

    #[test]
    fn parts_become_one_side_in_order_of_flows() {
        let first = Side {
            wall_ns: 10,
            flows: vec![sends(1)],
            cpu: Some(Cpu::default()),
            intervals: vec![period(0, 5, sends(1)), period(5, 10, sends(0))],
            warnings: vec!["a".into()],
        };
        let second = Side {
            wall_ns: 12,
            flows: vec![receives(3, 0)],
            intervals: vec![period(0, 6, receives(3, 0))],
            ..Side::default()
        };
        let whole = join_sides(vec![first, second]);
        assert_eq!((whole.wall_ns, whole.flows.len(), whole.intervals.len()), (12, 2, 1));
        assert_eq!(whole.intervals[0].flows, [sends(1), receives(3, 0)]);
        assert_eq!(whole.intervals[0].end_ns, 6);
        assert!(whole.cpu.is_some());
    }

    #[test]
    fn the_tail_is_known_where_the_sender_said_how_many() {
        let mut side = Side { flows: vec![sends(5), receives(90, 4), receives(7, 0)], ..Side::default() };
        let tails = |side: &Side| -> Vec<Option<u64>> {
            side.flows.iter().filter_map(|flow| flow.datagrams).map(|datagrams| datagrams.tail_lost).collect()
        };
        tail_losses(&mut side, &[Some(100), Some(7)], Duration::from_secs(1));
        assert_eq!(tails(&side), [None, None]);
        tail_losses(&mut side, &[Some(100)], Duration::ZERO);
        assert_eq!(tails(&side), [None, None]);
        tail_losses(&mut side, &[Some(100), None, Some(6)], Duration::ZERO);
        assert_eq!(tails(&side), [Some(6), None]);
    }
}
