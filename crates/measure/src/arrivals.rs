//! What became of the packets of several flows, by what they say of themselves: their number, and when they were sent.
//!
//! A sender numbers its packets from 0 and sends its flows in turn, so that number `s` belongs to flow `s mod flows` and
//! is the number `s / flows` of that flow. [`Arrivals`] takes them as a receiver gets them and keeps for each flow a
//! [`Window`] and the [`Delays`]. Several senders number by themselves, each in a stream.
//!
//! Each receiver has an `Arrivals` of its own; their [`Outcome`]s are added at the end. Where the packets of one
//! flow come to several receivers, order and second copies are told within each receiver only: two copies that
//! come to two receivers count as two packets that arrived.
//!
//! ```
//! use measure::arrivals::{Arrivals, Packet, Shape};
//!
//! let mut arrivals = Arrivals::new(Shape::new(2, 1));
//! for sequence in [0, 1, 2, 5, 4, 4] {
//!     let packet = Packet { stream: 0, sequence, sent_ns: 1000 * sequence };
//!     arrivals.record(packet, 1000 * sequence + 250);
//! }
//! let outcome = arrivals.outcome();
//! let total = outcome.total();
//! assert_eq!((total.unique, total.duplicates, total.reordered), (5, 1, 0));
//! assert_eq!(outcome.lost(&[8]), Some(3)); // 3 of the second flow, 6 and 7
//! assert_eq!(total.delays.unwrap().quantile(0.5), Some(250));
//! ```

use std::collections::BTreeMap;

use crate::delay::Delays;
use crate::window::{Account, Arrival, NUMBERS, Window};

/// The least window of a flow, in numbers.
const WINDOW_MIN: u32 = 1 << 10;
/// Numbers that all windows remember together, unless the least window of each needs more: 4.3 MiB.
const NUMBERS_OF_ALL: u32 = 1 << 20;
/// Up to so many flows of all streams together have delays of their own.
const FLOWS_WITH_DELAYS: u32 = 1 << 8;

/// What is to be expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Flows of each sender, at least 1.
    pub flows: u16,
    /// Senders: their streams have the numbers below this.
    pub streams: u16,
    /// Numbers that the window of each flow remembers ([`Window::with_size`]).
    pub window: u32,
}

impl Shape {
    /// With windows of [`NUMBERS`], and smaller ones if there are more than 16 flows of all streams together, so that windows stay in
    /// the caches of a CPU; but at least 1,024 numbers each.
    pub fn new(flows: u16, streams: u16) -> Self {
        let all = u32::from(flows).saturating_mul(u32::from(streams)).max(1);
        Self { flows, streams, window: (NUMBERS_OF_ALL / all).clamp(WINDOW_MIN, NUMBERS) }
    }

    /// Whether there are too many flows for each to have delays of its own.
    fn shares_delays(&self) -> bool {
        u32::from(self.flows).saturating_mul(u32::from(self.streams)) > FLOWS_WITH_DELAYS
    }
}

/// What a packet says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Which sender's numbering it belongs to.
    pub stream: u16,
    /// Its number there.
    pub sequence: u64,
    /// When it was sent, in ns, on the clock on which it is received.
    pub sent_ns: u64,
}

/// The packets of several flows, as they come to one receiver.
#[derive(Debug)]
pub struct Arrivals {
    shape: Shape,
    /// Flows of each stream; none where nothing came.
    streams: Vec<Box<[Option<Box<Flow>>]>>,
    /// Where flows have none of their own.
    delays: Option<Delays>,
    foreign: u64,
}

#[derive(Debug)]
struct Flow {
    window: Window,
    delays: Option<Delays>,
}

impl Arrivals {
    /// Nothing has arrived. A flow takes memory when its first packet comes.
    pub fn new(shape: Shape) -> Self {
        let shape = Shape { flows: shape.flows.max(1), ..shape };
        let streams = (0..shape.streams).map(|_| Box::default()).collect();
        Self { shape, streams, delays: shape.shares_delays().then(Delays::new), foreign: 0 }
    }

    /// Takes a packet that was received at a time. None for one of a stream that is not expected.
    ///
    /// Delays are those of first copies, and of packets that are too old for the window.
    #[inline]
    pub fn record(&mut self, packet: Packet, received_ns: u64) -> Option<Arrival> {
        let flows = u64::from(self.shape.flows);
        // A division costs more than all the rest where numbers have 64 bits.
        let (number, flow) = match u32::try_from(packet.sequence) {
            _ if flows == 1 => (packet.sequence, 0),
            Ok(sequence) => (u64::from(sequence / flows as u32), (sequence % flows as u32) as usize),
            Err(_) => (packet.sequence / flows, (packet.sequence % flows) as usize),
        };
        let Some(stream) = self.streams.get_mut(usize::from(packet.stream)) else {
            self.foreign += 1;
            return None;
        };
        if stream.is_empty() {
            *stream = (0..self.shape.flows).map(|_| None).collect();
        }
        let flow = stream[flow].get_or_insert_with(|| Flow::open(&self.shape));
        let arrival = flow.window.record(number);
        if arrival != Arrival::Duplicate {
            if let Some(delays) = flow.delays.as_mut().or(self.delays.as_mut()) {
                delays.record_between(packet.sent_ns, received_ns);
            }
        }
        Some(arrival)
    }
    /// What has become of them.
    pub fn outcome(self) -> Outcome {
        let mut flows = BTreeMap::new();
        for (stream, of_stream) in (0..).zip(self.streams) {
            for (number, flow) in (0..).zip(of_stream) {
                if let Some(flow) = flow {
                    flows.insert((stream, number), flow.outcome());
                }
            }
        }
        Outcome { shape: self.shape, flows, delays: self.delays, foreign: self.foreign }
    }
}

impl Flow {
    #[cold]
    fn open(shape: &Shape) -> Box<Self> {
        let delays = (!shape.shares_delays()).then(Delays::new);
        Box::new(Self { window: Window::with_size(shape.window), delays })
    }

    fn outcome(self) -> FlowOutcome {
        let Account { range, unique, duplicates, reordered, extent_max, too_old, .. } = self.window.account();
        let highest = range.map(|(_, highest)| highest);
        FlowOutcome { unique, duplicates, reordered, extent_max, too_old, highest, delays: self.delays }
    }
}

/// What became of the packets of several flows.
#[derive(Debug, Clone)]
pub struct Outcome {
    shape: Shape,
    flows: BTreeMap<(u16, u16), FlowOutcome>,
    /// Where flows have none of their own.
    delays: Option<Delays>,
    /// Packets of streams that were not expected: they are in no other number.
    pub foreign: u64,
}

/// What became of the packets of one flow, or of all.
#[derive(Debug, Clone, Default)]
pub struct FlowOutcome {
    /// First copies.
    pub unique: u64,
    /// Further copies.
    pub duplicates: u64,
    /// First copies below the highest number at that time (RFC 4737 section 3.3).
    pub reordered: u64,
    /// The greatest extent of a reordered packet. None where none was.
    pub extent_max: Option<u64>,
    /// Packets older than the window: further copies, or first ones that count as lost.
    pub too_old: u64,
    /// The highest number within the flow. None where nothing came, and for several flows together.
    pub highest: Option<u64>,
    /// One-way delays of first copies and of packets that are too old. None of a single flow where there are more than 256 of all streams
    /// together: then only the total has them.
    pub delays: Option<Delays>,
}

impl Outcome {
    /// Adds what came to another receiver of the same run.
    ///
    /// # Panics
    /// If the other has flows or streams of another number.
    pub fn add(&mut self, other: &Self) {
        let shapes = [self.shape, other.shape].map(|shape| (shape.flows, shape.streams));
        assert_eq!(shapes[0], shapes[1], "receivers of two runs");
        for (&key, flow) in &other.flows {
            self.flows.entry(key).or_default().add(flow);
        }
        add_delays(&mut self.delays, other.delays.as_ref());
        self.foreign += other.foreign;
    }

    /// The flows of which something came, by stream and number of the flow, in this order.
    pub fn flows(&self) -> impl Iterator<Item = ((u16, u16), &FlowOutcome)> {
        self.flows.iter().map(|(&key, flow)| (key, flow))
    }

    /// All flows together.
    pub fn total(&self) -> FlowOutcome {
        let mut total = FlowOutcome { delays: self.delays.clone(), ..FlowOutcome::default() };
        self.flows.values().for_each(|flow| total.add(flow));
        FlowOutcome { highest: None, ..total }
    }

    /// Packets that did not come when each stream's sender has sent so many; flows of which nothing came are among them.
    /// None when something came that cannot have been sent, or more than was sent.
    pub fn lost(&self, sent: &[u64]) -> Option<u64> {
        let mut lost = sent.iter().copied().try_fold(0, u64::checked_add)?;
        for (&(stream, number), flow) in &self.flows {
            let sent = sent_of_flow(*sent.get(usize::from(stream))?, self.shape.flows, number);
            flow.lost_of(sent)?;
            lost -= flow.unique;
        }
        Some(lost)
    }
}

impl FlowOutcome {
    /// Packets, all copies.
    pub fn packets(&self) -> u64 {
        self.unique + self.duplicates + self.too_old
    }

    /// Packets of this flow that did not come when so many were sent in it ([`sent_of_flow`]). None when a number came that
    /// cannot have been sent, or more than was sent.
    pub fn lost_of(&self, sent: u64) -> Option<u64> {
        match self.highest {
            Some(highest) if highest >= sent => None,
            _ => sent.checked_sub(self.unique),
        }
    }

    fn add(&mut self, other: &Self) {
        self.unique += other.unique;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.extent_max = self.extent_max.max(other.extent_max);
        self.too_old += other.too_old;
        self.highest = self.highest.max(other.highest);
        add_delays(&mut self.delays, other.delays.as_ref());
    }
}

fn add_delays(sum: &mut Option<Delays>, other: Option<&Delays>) {
    match (sum, other) {
        (_, None) => {}
        (Some(sum), Some(other)) => sum.add(other),
        (none, Some(other)) => *none = Some(other.clone()),
    }
}

/// How many of `sent` packets belong to one of `flows` flows that take turns.
pub fn sent_of_flow(sent: u64, flows: u16, flow: u16) -> u64 {
    sent / u64::from(flows) + u64::from(sent % u64::from(flows) > u64::from(flow))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(stream: u16, sequence: u64) -> Packet {
        Packet { stream, sequence, sent_ns: sequence }
    }

    #[test]
    fn flows_are_told_by_the_number() {
        for flows in [1, 2, 3, 8, 1000] {
            let sent: u64 = 10_007;
            let mut arrivals = Arrivals::new(Shape::new(flows, 2));
            for sequence in (0..sent).filter(|sequence| sequence % 10 != 3) {
                assert_eq!(arrivals.record(packet(1, sequence), sequence + 50), Some(Arrival::InOrder));
            }
            let outcome = arrivals.outcome();
            let missing = (0..sent).filter(|sequence| sequence % 10 == 3);
            for ((stream, flow), of_flow) in outcome.flows() {
                let sent = sent_of_flow(sent, flows, flow);
                let missing =
                    missing.clone().filter(|sequence| sequence % u64::from(flows) == u64::from(flow));
                assert_eq!((stream, of_flow.lost_of(sent)), (1, Some(missing.count() as u64)));
            }
            assert_eq!(outcome.lost(&[0, sent]), Some(missing.count() as u64));
            assert_eq!(outcome.lost(&[5, sent]), Some(1006), "nothing came of the first stream");
            assert_eq!(outcome.lost(&[0, sent - 1]), None, "a number that was not sent");
            assert_eq!(outcome.lost(&[sent]), None, "a stream that was not sent");
            let total = outcome.total();
            assert_eq!((total.unique, total.reordered, total.highest), (sent - 1001, 0, None));
            assert_eq!(total.delays.unwrap().range(), Some((50, 50)));
        }
    }

    #[test]
    fn numbers_of_more_than_32_bits_belong_to_their_flow() {
        let mut arrivals = Arrivals::new(Shape::new(7, 1));
        let first = u64::from(u32::MAX) - 20;
        for sequence in first..first + 40 {
            assert_eq!(arrivals.record(packet(0, sequence), 0), Some(Arrival::InOrder));
        }
        let outcome = arrivals.outcome();
        assert_eq!(outcome.flows().count(), 7);
        let lost = outcome.flows().map(|((_, flow), of_flow)| {
            assert!((5..=6).contains(&of_flow.unique));
            of_flow.lost_of(sent_of_flow(first + 40, 7, flow)).unwrap()
        });
        assert_eq!(lost.sum::<u64>(), first);
        assert_eq!(outcome.total().delays.unwrap().negative(), 40);
    }

    #[test]
    fn what_is_not_expected_is_counted_apart() {
        let mut arrivals = Arrivals::new(Shape::new(2, 1));
        assert_eq!(arrivals.record(packet(1, 0), 0), None);
        assert_eq!(arrivals.record(packet(u16::MAX, u64::MAX), 0), None);
        let outcome = arrivals.outcome();
        assert_eq!((outcome.foreign, outcome.total().packets(), outcome.lost(&[4])), (2, 0, Some(4)));
        assert!(outcome.total().delays.is_none());
    }

    #[test]
    fn many_flows_share_their_delays_and_their_memory() {
        assert_eq!(Shape::new(8, 1).window, NUMBERS);
        assert_eq!(Shape::new(16, 2).window, 1 << 15);
        assert_eq!(Shape::new(u16::MAX, u16::MAX).window, WINDOW_MIN);
        let mut arrivals = Arrivals::new(Shape::new(1000, 2));
        (0..5000).for_each(|sequence| _ = arrivals.record(packet(0, sequence), sequence + 10));
        let mut outcome = arrivals.outcome();
        assert!(outcome.flows().all(|(_, flow)| flow.delays.is_none() && flow.unique == 5));
        outcome.add(&outcome.clone());
        assert_eq!(outcome.total().delays.unwrap().count(), 10_000);
    }

    #[test]
    fn a_second_copy_has_no_delay() {
        let mut arrivals = Arrivals::new(Shape::new(1, 1));
        let arrived = [0, 2, 1, 1].map(|sequence| arrivals.record(packet(0, sequence), 100).unwrap());
        let expected =
            [Arrival::InOrder, Arrival::InOrder, Arrival::Reordered { extent: 1 }, Arrival::Duplicate];
        assert_eq!(arrived, expected);
        let total = arrivals.outcome().total();
        assert_eq!((total.packets(), total.reordered, total.extent_max), (4, 1, Some(1)));
        assert_eq!(total.delays.unwrap().count(), 3);
    }

    proptest! {
        /// Each packet is lost, or comes once or twice, to the receiver of its flow, or to any.
        #[test]
        fn every_packet_is_accounted_for(
            flows in 1..6_u16, by_flow: bool, fates in prop::collection::vec((0..3_usize, 0..2_u16, 0..4_usize), 1..200),
        ) {
            let shape = Shape { window: 1024, ..Shape::new(flows, 2) };
            let mut receivers: Vec<Arrivals> = (0..6).map(|_| Arrivals::new(shape)).collect();
            let (mut sent, mut came, mut copies) = ([0; 2], 0, 0);
            for (times, stream, receiver) in fates {
                let sequence = sent[usize::from(stream)];
                sent[usize::from(stream)] += 1;
                let receiver = if by_flow { (sequence % u64::from(flows)) as usize } else { receiver };
                for _ in 0..times {
                    receivers[receiver].record(packet(stream, sequence), sequence + 1);
                }
                came += u64::from(times > 0);
                copies += times as u64;
            }
            let mut sum = Arrivals::new(shape).outcome();
            receivers.into_iter().for_each(|receiver| sum.add(&receiver.outcome()));
            let total = sum.total();
            prop_assert_eq!((total.unique, total.packets(), total.reordered), (came, copies, 0));
            prop_assert_eq!(sum.lost(&sent), Some(sent[0] + sent[1] - came));
            prop_assert_eq!(total.delays.map_or(0, |delays| delays.count()), came);
        }
    }
}
