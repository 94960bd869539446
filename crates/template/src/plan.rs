//! A compiled program, and the packets that it makes.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::checksum;
use crate::counter::{Counter, Divisor, HeldCounter, SmallCounter, gcd};
use crate::proto::Id;
use crate::random::{Random, Streams};
use crate::schedule::Schedule;
use crate::step::Step;

/// A program ready to be sent: for each packet the bytes that stay, the fields that vary, and the checksums that
/// follow them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) packets: Arc<[Packet]>,
}

#[derive(Debug)]
pub(crate) struct Packet {
    /// First and last worker that sends it; none for all.
    pub(crate) workers: Option<(u32, u32)>,
    /// How often it comes, compared with others.
    pub(crate) weight: u32,
    /// Number that its counters begin with: packets of a range of sizes begin one further each.
    pub(crate) first: u64,
    /// The frame without FCS. What varies is 0.
    pub(crate) bytes: Vec<u8>,
    pub(crate) varying: Vec<Varying>,
    /// How that is written.
    pub(crate) steps: Vec<Step>,
    /// In the order in which they must be computed.
    pub(crate) checksums: Vec<Checksum>,
    /// The headers, where they begin, and their length.
    pub(crate) layers: Vec<(Id, usize, usize)>,
}

/// Bytes that change from packet to packet.
#[derive(Debug, Clone)]
pub(crate) struct Varying {
    /// The bytes that it is stored in.
    pub(crate) at: Range<usize>,
    /// Bits of these bytes that are its, for fields of at most 4 bytes; 0 for all.
    pub(crate) mask: u32,
    pub(crate) source: Source,
}

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Counter(Box<Counter>),
    /// A counter in its fast form.
    Small(SmallCounter),
    /// A counter with a pace of its own.
    Held(Box<HeldCounter>),
    /// A number from the first to the second, inclusive.
    Range(u64, u64),
    /// The same with numbers of more than 64 bits.
    WideRange(Box<(u128, u128)>),
    /// All bytes.
    Bytes,
}

impl Source {
    /// A counter in a field of `bytes` bytes.
    pub(crate) fn counter(counter: Counter, bytes: usize) -> Self {
        match counter.small() {
            Some(small) if bytes <= 8 => Self::Small(small),
            _ => Self::Counter(Box::new(counter)),
        }
    }
}

/// A checksum that depends on what varies.
#[derive(Debug, Clone)]
pub(crate) struct Checksum {
    pub(crate) at: usize,
    /// 0 becomes 0xFFFF.
    pub(crate) udp: bool,
    /// The sum of all that does not vary, in the host's order.
    pub(crate) partial: u32,
    /// Pairs of bytes still to be added, by the first; each is at an even distance from the start of what is covered.
    pub(crate) pairs: Vec<u32>,
    /// The same for long ranges, and for one odd byte.
    pub(crate) ranges: Vec<Range<usize>>,
}

/// A plan cannot be sent that way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WorkerError {
    /// The worker's number is not below the number of workers.
    #[error("there is no worker {worker} among {workers}: they are numbered from 0")]
    NoSuchWorker {
        /// What was asked for.
        worker: u32,
        /// What was asked for.
        workers: u32,
    },
    /// Every packet is for another worker.
    #[error("the program has no packet for worker {worker}: each has a cpu() that leaves it out")]
    NothingToSend {
        /// What was asked for.
        worker: u32,
    },
}

impl Plan {
    /// Number of packets in the program.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Length without FCS of packet number `packet` of the program, which does not vary.
    pub fn l2_bytes(&self, packet: usize) -> Option<usize> {
        self.packets.get(packet).map(|packet| packet.bytes.len())
    }

    /// Length without FCS of the longest packet: the buffer that [`Emitter::emit`] needs.
    pub fn longest_l2_bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.bytes.len()).max().unwrap_or(0)
    }

    /// How often packet number `packet` of the program comes, compared with others; 1 if nothing is said.
    pub fn weight(&self, packet: usize) -> Option<u32> {
        self.packets.get(packet).map(|packet| packet.weight)
    }

    /// Whether anything changes from one round of the program to the next.
    pub fn varies(&self) -> bool {
        self.packets.iter().any(|packet| !packet.varying.is_empty())
    }

    /// The highest worker that a `cpu()` names: with fewer workers, packets may never be sent.
    pub fn highest_worker(&self) -> Option<u32> {
        self.packets.iter().filter_map(|packet| packet.workers.map(|(_, last)| last)).max()
    }

    /// After how many of its kind packet number `packet` of the program comes again: how many different ones there
    /// are, if the counters are all that tells them apart. None if it has random fields, or repeats later than
    /// after 2^64, or if there is no such packet.
    pub fn period(&self, packet: usize) -> Option<u64> {
        let varying = &self.packets.get(packet)?.varying;
        varying.iter().try_fold(1_u64, |all, varying| {
            let own = match &varying.source {
                Source::Small(counter) => counter.period()?,
                Source::Counter(counter) => counter.period()?,
                Source::Held(counter) => counter.period()?,
                Source::Range(..) | Source::WideRange(..) | Source::Bytes => return None,
            };
            let common = gcd(all.into(), own.into()) as u64;
            all.checked_mul(own / common)
        })
    }

    /// What worker number `worker` of `workers` sends, with its random numbers from `seed`.
    ///
    /// A packet that several workers send is split among them: each takes its own part of the counters' values, so
    /// that together they send what one would. Without `cpu()` all packets are for all workers.
    pub fn emitter(&self, worker: u32, workers: u32, seed: u64) -> Result<Emitter, WorkerError> {
        if worker >= workers {
            return Err(WorkerError::NoSuchWorker { worker, workers });
        }
        let shares: Vec<Share> =
            (0..self.packets.len()).filter_map(|index| self.share(index, worker, workers)).collect();
        if shares.is_empty() {
            return Err(WorkerError::NothingToSend { worker });
        }
        Ok(Emitter::new(self.packets.clone(), shares, Streams::new(seed, worker)))
    }

    /// The first packet that is made of packet number `packet` of the program, by worker 0 of 1.
    pub(crate) fn first(&self, packet: usize) -> Vec<u8> {
        let share = Share { packet, stride: 1, offset: self.packets[packet].first };
        Emitter::new(self.packets.clone(), vec![share], Streams::new(0, 0)).to_vec(0)
    }

    fn share(&self, index: usize, worker: u32, workers: u32) -> Option<Share> {
        let (first, last) = self.packets[index].workers.unwrap_or((0, u32::MAX));
        let last = last.min(workers - 1);
        (first..=last).contains(&worker).then(|| Share {
            packet: index,
            stride: u64::from(last - first) + 1,
            offset: u64::from(worker - first).wrapping_add(self.packets[index].first),
        })
    }
}

/// A worker's part of a packet: numbers `offset`, `offset + stride`, ...
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) packet: usize,
    pub(crate) stride: u64,
    pub(crate) offset: u64,
}

/// Makes the packets of one worker. Packet `i` depends on nothing but the plan, the worker, the seed and `i`.
#[derive(Debug, Clone)]
pub struct Emitter {
    pub(crate) packets: Arc<[Packet]>,
    pub(crate) shares: Arc<[Share]>,
    /// Their order; none if they go in turn.
    pub(crate) schedule: Option<Arc<Schedule>>,
    /// Packets after which the order begins again.
    pub(crate) round: Divisor,
    pub(crate) streams: Streams,
}

impl Emitter {
    fn new(packets: Arc<[Packet]>, shares: Vec<Share>, streams: Streams) -> Self {
        let weights: Vec<u32> = shares.iter().map(|share| packets[share.packet].weight).collect();
        let schedule = Schedule::new(&weights).map(Arc::new);
        let round = schedule.as_ref().map_or(shares.len(), |schedule| schedule.slots.len());
        let round = Divisor::new(round.max(1) as u64);
        Self { packets, shares: shares.into(), schedule, round, streams }
    }

    /// Packets after which every packet of the program has come as often as its weight says: after each such round,
    /// shares are exact.
    pub fn round_packets(&self) -> u64 {
        self.round.number()
    }

    /// Writes this worker's packet number `index` to the start of `out` and returns its length, without FCS.
    ///
    /// Nothing is allocated. The rest of `out` is left as it is.
    ///
    /// # Panics
    /// If `out` is shorter than the packet; [`Plan::longest_l2_bytes`] is enough for all.
    pub fn emit(&self, index: u64, out: &mut [u8]) -> usize {
        let (share, round) = self.share(index);
        let packet = &self.packets[share.packet];
        let out = &mut out[..packet.bytes.len()];
        copy(&packet.bytes, out);
        if packet.varying.is_empty() {
            return out.len();
        }
        let k = round.wrapping_mul(share.stride).wrapping_add(share.offset);
        let mut random = self.streams.of_packet(index);
        for step in &packet.steps {
            step.write(&packet.varying, k, &mut random, out);
        }
        for checksum in &packet.checksums {
            checksum.write(out);
        }
        out.len()
    }

    /// Packet number `index` as a vector.
    pub fn to_vec(&self, index: u64) -> Vec<u8> {
        let (share, _) = self.share(index);
        let mut out = vec![0; self.packets[share.packet].bytes.len()];
        self.emit(index, &mut out);
        out
    }

    /// Which packet of the program packet number `index` is.
    pub fn packet_of(&self, index: u64) -> usize {
        self.share(index).0.packet
    }

    /// Which packet is number `index`, and its number among its kind.
    #[inline]
    fn share(&self, index: u64) -> (Share, u64) {
        match *self.shares {
            [share] => (share, index),
            _ => self.share_in_turn(index),
        }
    }

    fn share_in_turn(&self, index: u64) -> (Share, u64) {
        let (round, slot) = self.round.divide(index);
        match &self.schedule {
            None => (self.shares[slot as usize], round),
            Some(schedule) => {
                let slot = schedule.slots[slot as usize];
                let member = slot.member as usize;
                let before = round.wrapping_mul(u64::from(schedule.weights[member]));
                (self.shares[member], before.wrapping_add(u64::from(slot.rank)))
            }
        }
    }
}

impl Varying {
    /// Not inlined, so that it takes no registers from [`Step::write`].
    #[inline(never)]
    pub(crate) fn write(&self, k: u64, random: &mut Random, out: &mut [u8]) {
        let place = &mut out[self.at.clone()];
        let small = match &self.source {
            Source::Bytes if self.mask == 0 => return random.fill(place),
            Source::Counter(counter) if place.len() > 8 => return store_wide(place, counter.at(k)),
            Source::Held(counter) if place.len() > 8 => return store_wide(place, counter.at(k)),
            Source::WideRange(range) => {
                let (first, last) = **range;
                let bytes = first.wrapping_add(random.up_to_wide(last - first)).to_be_bytes();
                let len = place.len().min(16);
                return place[..len].copy_from_slice(&bytes[16 - len..]);
            }
            Source::Small(counter) => counter.at(k),
            Source::Counter(counter) => counter.at(k) as u64,
            Source::Held(counter) => counter.at(k) as u64,
            Source::Range(first, last) => first + random.up_to(last - first),
            Source::Bytes => random.next(),
        };
        store(place, self.mask, small);
    }
}

/// A short frame is copied as two halves of fixed size that may overlap, without a call.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    const HALF: usize = 32;
    match (from.first_chunk::<HALF>(), from.last_chunk::<HALF>()) {
        (Some(first), Some(last)) if from.len() <= 2 * HALF && from.len() == to.len() => {
            let second = from.len() - HALF;
            to[..HALF].copy_from_slice(first);
            to[second..].copy_from_slice(last);
        }
        _ => to.copy_from_slice(from),
    }
}

/// Stores a number of more than 8 bytes.
fn store_wide(place: &mut [u8], number: u128) {
    place.copy_from_slice(&number.to_be_bytes()[16 - place.len()..]);
}

/// Stores a number of at most 8 bytes in the bits of `mask`.
fn store(place: &mut [u8], mask: u32, number: u64) {
    let number = match mask {
        0 => number,
        mask => {
            let old = place.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
            u64::from(old & !mask | (number << mask.trailing_zeros()) as u32 & mask)
        }
    };
    match place {
        [a] => *a = number as u8,
        [a, b] => [*a, *b] = (number as u16).to_be_bytes(),
        [a, b, c, d] => [*a, *b, *c, *d] = (number as u32).to_be_bytes(),
        other => {
            let bytes = number.to_be_bytes();
            let len = other.len().min(8);
            let start = other.len() - len;
            other[start..].copy_from_slice(&bytes[8 - len..]);
        }
    }
}

impl Checksum {
    fn write(&self, out: &mut [u8]) {
        // A packet has fewer than 2^16 pairs, so that their sum has 32 bits.
        let mut sum = self.partial;
        for &at in &self.pairs {
            let pair = &out[at as usize..at as usize + 2];
            sum += u32::from(u16::from_ne_bytes([pair[0], pair[1]]));
        }
        if !self.ranges.is_empty() {
            sum = self.add_ranges(sum, out);
        }
        let value = if self.udp { checksum::finish_udp(sum) } else { checksum::finish(sum) };
        out[self.at..self.at + 2].copy_from_slice(&value.to_ne_bytes());
    }

    #[inline(never)]
    fn add_ranges(&self, sum: u32, out: &[u8]) -> u32 {
        let add = |sum, range: &Range<usize>| checksum::add_unfolded(sum, &out[range.clone()]);
        checksum::fold(self.ranges.iter().fold(u64::from(sum), add))
    }
}
