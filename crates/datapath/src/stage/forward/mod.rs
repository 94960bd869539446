//! A router: IPv4 and IPv6, longest prefix first, with the neighbours and the errors that make it one.
//!
//! # The way of a packet
//!
//! In passes over the whole batch, so that what one packet waits for from memory is waited for together with the others':
//!
//! 1. *Parse* all: frames for others, malformed ones and what is no IP packet for another host are settled here.
//! 2. *Look up* all: the table gives a place in the list of next hops.
//! 3. *Send* all: link addresses are rewritten, the time to live is one less, the checksum of IPv4 goes along. A next hop that
//!    nothing can be sent to (our own address, a host of a link that has to be looked up, a neighbour that is asked for,
//!    a packet too long for its link) has an MTU of 0, so that the usual case has one comparison for all of them.
//!
//! # What it does not do
//!
//! It does not fragment: a packet that is too long for the next link is answered with the MTU and dropped, whether it may
//! be fragmented or not. It sends no redirects, and leaves IPv4 options and hop-by-hop options of IPv6 alone. It answers
//! ARP, neighbour discovery, echo requests, and UDP to its own addresses with port unreachable; other protocols to them end
//! as [`Reason::NoSocket`]. Errors and answers leave by the port, and to the link address, that the packet came from: no route
//! to its source is needed.
//!
//! # Several workers
//!
//! Tables are shared and never change. Each worker has its own neighbours, held packets and limit of errors, and tells
//! the others what it learnt, since an answer may come to a worker that did not ask ([`Forward::group`]).

mod answer;
mod config;
mod events;
mod limit;
mod local;
mod neighbour;
mod routes;

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use pagefrag::PacketBuf;

use super::Stage;
use crate::batch::{BUDGET, Batch, Verdict};
use crate::reason::Reason;
use crate::table::NextHop;
use crate::wire::checksum::update_ttl_decrement;
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::icmp::error::Problem;
use crate::wire::{self, Addresses, Frame, Malformed, Parsed, ipv4, ipv6};

pub use config::{ConfigError, ForwardConfig, Port, Route, StaticNeighbour, Towards};
pub use limit::IcmpLimit;
pub use neighbour::{ASK_AGAIN_NS, BELIEVED_NS, HELD_ALL, HELD_EACH, LEARNT_MAX, REQUESTS};
pub use routes::TableFacts;

use config::Hop;
use events::{Event, Events};
use limit::TokenBucket;
use neighbour::{Held, Neighbours, News, Rewrite, Side, ToDo};
use routes::Routes;

/// News that wait for a worker which does not look. What does not fit is asked for again.
const NEWS_WAITING: usize = 256;

/// The router of one worker.
#[derive(Debug)]
pub struct Forward {
    ports: Arc<[Port]>,
    routes: Arc<Routes>,
    hops: Arc<[Hop]>,
    neighbours: Neighbours,
    to_do: ToDo,
    v4: Lane<u32>,
    v6: Lane<u128>,
    limit: TokenBucket,
    events: Events,
    made: u64,
    news: Arc<ArrayQueue<News>>,
    others: Vec<Arc<ArrayQueue<News>>>,
}

/// Packets of one IP version on their way through the passes: beside each other what each pass needs.
#[derive(Debug)]
struct Lane<A> {
    slots: Vec<Slot>,
    destinations: Vec<A>,
    /// Places in the list of next hops.
    found: Vec<Option<NextHop>>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// In the batch.
    index: u32,
    l3_bytes: u32,
    ttl: u8,
}

/// Where a packet came in, and when.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    ingress: u8,
    now_ns: u64,
}

impl Forward {
    /// The only one.
    ///
    /// # Errors
    /// What is wrong with the configuration, and what would be right.
    pub fn new(config: &ForwardConfig) -> Result<Self, ConfigError> {
        let mut group = Self::group(config, 1)?;
        group.pop().ok_or(ConfigError::PortCount(0))
    }

    /// One for each of so many workers (at least 1), which share tables and news of neighbours.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn group(config: &ForwardConfig, workers: usize) -> Result<Vec<Self>, ConfigError> {
        Ok(Router::new(config)?.workers(workers))
    }
}

/// What the workers of a router share and never change: its ports and tables. Made once where making it takes long.
#[derive(Debug, Clone)]
pub struct Router {
    ports: Arc<[Port]>,
    routes: Arc<Routes>,
    hops: Arc<[Hop]>,
    known: Arc<[(u8, IpAddr, MacAddress)]>,
    icmp: IcmpLimit,
}

impl Router {
    /// The tables of this configuration.
    ///
    /// # Errors
    /// As [`Forward::new`].
    pub fn new(config: &ForwardConfig) -> Result<Self, ConfigError> {
        let plan = config.plan()?;
        let routes = Arc::new(Routes::new(&plan.prefixes)?);
        Ok(Self {
            ports: config.ports.clone().into(),
            routes,
            hops: plan.hops.into(),
            known: plan.neighbours.into(),
            icmp: config.icmp,
        })
    }

    /// What its tables take.
    pub fn tables(&self) -> TableFacts {
        self.routes.facts()
    }

    /// So many workers (at least 1) with these tables, which tell each other what they learn, and have learnt nothing yet.
    pub fn workers(&self, workers: usize) -> Vec<Forward> {
        let queues: Vec<_> = (0..workers.max(1)).map(|_| Arc::new(ArrayQueue::new(NEWS_WAITING))).collect();
        let member = |own: usize| Forward {
            ports: Arc::clone(&self.ports),
            routes: Arc::clone(&self.routes),
            hops: Arc::clone(&self.hops),
            neighbours: neighbours(&self.ports, &self.hops, &self.known),
            to_do: ToDo::default(),
            v4: Lane::new(),
            v6: Lane::new(),
            limit: TokenBucket::new(self.icmp),
            events: Events::default(),
            made: 0,
            news: Arc::clone(&queues[own]),
            others: queues
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != own)
                .map(|(_, of)| Arc::clone(of))
                .collect(),
        };
        (0..queues.len()).map(member).collect()
    }
}

/// Each next hop at its place, and behind them neighbours that are known but that no route names.
fn neighbours(ports: &[Port], hops: &[Hop], known: &[(u8, IpAddr, MacAddress)]) -> Neighbours {
    let side =
        |port: &Port| Side { mac: port.mac, mtu_bytes: u16::try_from(port.mtu_bytes).unwrap_or(u16::MAX) };
    let mut all = Neighbours::new(ports.iter().map(side).collect());
    for hop in hops {
        match *hop {
            Hop::Neighbour { port, address } => {
                let of = known.iter().find(|(at, of, _)| (*at, *of) == (port, address));
                all.add_named(port, address, of.map(|(_, _, mac)| *mac))
            }
            _ => all.add_nobody(),
        };
    }
    for &(port, address, mac) in known {
        if all.find(port, address).is_none() {
            all.add_named(port, address, Some(mac));
        }
    }
    all
}

impl Stage for Forward {
    fn name(&self) -> &'static str {
        "forward"
    }

    fn run(&mut self, batch: &mut Batch, now_ns: u64) {
        let arrival = Arrival { ingress: batch.ingress(), now_ns };
        if !self.news.is_empty() {
            self.hear(now_ns);
        }
        if self.neighbours.is_due(now_ns) {
            let failed = self.neighbours.tick(now_ns, &mut self.to_do);
            self.events.count_many(Event::Failed, failed as u64);
        }
        self.parse_all(batch, arrival);
        if !self.v4.slots.is_empty() {
            let Lane { destinations, found, .. } = &mut self.v4;
            self.routes.look_up_v4(destinations, found);
            self.send_v4(batch, arrival);
        }
        if !self.v6.slots.is_empty() {
            let Lane { destinations, found, .. } = &mut self.v6;
            self.routes.look_up_v6(destinations, found);
            self.send_v6(batch, arrival);
        }
        if !self.to_do.is_empty() {
            self.catch_up(batch, now_ns);
        }
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.events.named()
    }

    fn made(&self) -> u64 {
        self.made
    }

    fn held(&self) -> u64 {
        self.neighbours.held() as u64
    }

    fn release(&mut self, batch: &mut Batch) {
        self.neighbours.release(&mut self.to_do);
        for held in self.to_do.fails.drain(..) {
            batch.push_decided(held.packet, Verdict::Drop(Reason::NoNeighbour));
        }
    }
}

// The three passes.
impl Forward {
    fn parse_all(&mut self, batch: &mut Batch, arrival: Arrival) {
        self.v4.clear();
        self.v6.clear();
        let Some(mac) = self.ports.get(usize::from(arrival.ingress)).map(|port| port.mac) else {
            return batch.decide_rest(Verdict::Drop(Reason::NotForUs));
        };
        for (index, packet, verdict) in batch.undecided() {
            match wire::parse_head(packet.data(), packet.len()) {
                Ok(Frame::Ip(parsed)) if parsed.link_destination == mac && is_ordinary(&parsed) => {
                    self.enlist(index, &parsed);
                }
                _ => *verdict = self.parse_other(index, packet, arrival),
            }
        }
    }

    #[inline]
    fn enlist(&mut self, index: usize, parsed: &Parsed) {
        let slot = Slot { index: index as u32, l3_bytes: parsed.l3_bytes as u32, ttl: parsed.ttl };
        match parsed.addresses {
            Addresses::V4 { destination, .. } => self.v4.push(slot, destination),
            Addresses::V6 { destination, .. } => self.v6.push(slot, destination),
        }
    }

    fn send_v4(&mut self, batch: &mut Batch, arrival: Arrival) {
        for at in 0..self.v4.slots.len() {
            let (slot, place) = (self.v4.slots[at], self.v4.found[at]);
            let rewrite = place.map_or_else(Rewrite::default, |place| self.neighbours.get(place.index()));
            let verdict = if slot.ttl > 1 && slot.l3_bytes <= u32::from(rewrite.mtu_bytes) {
                sent(batch.packet_mut(slot.index as usize), &rewrite, rewrite_v4)
            } else {
                let destination = IpAddr::V4(self.v4.destinations[at].into());
                self.send_other(batch.packet_mut(slot.index as usize), slot, place, destination, arrival)
            };
            batch.decide(slot.index as usize, verdict);
        }
    }

    fn send_v6(&mut self, batch: &mut Batch, arrival: Arrival) {
        for at in 0..self.v6.slots.len() {
            let (slot, place) = (self.v6.slots[at], self.v6.found[at]);
            let rewrite = place.map_or_else(Rewrite::default, |place| self.neighbours.get(place.index()));
            let verdict = if slot.ttl > 1 && slot.l3_bytes <= u32::from(rewrite.mtu_bytes) {
                sent(batch.packet_mut(slot.index as usize), &rewrite, rewrite_v6)
            } else {
                let destination = IpAddr::V6(self.v6.destinations[at].into());
                self.send_other(batch.packet_mut(slot.index as usize), slot, place, destination, arrival)
            };
            batch.decide(slot.index as usize, verdict);
        }
    }
}

// What is not the usual case.
impl Forward {
    /// A frame that is not simply to be forwarded, or not at all. `Pass` if it is to be looked up after all.
    #[cold]
    fn parse_other(&mut self, index: usize, packet: &mut PacketBuf, arrival: Arrival) -> Verdict {
        let mac = self.ports[usize::from(arrival.ingress)].mac;
        if packet.head_len() < ethernet::HEADER_BYTES && packet.linearize().is_err() {
            return Verdict::Drop(Reason::NoBuffer);
        }
        let Some(link) = ethernet::Header::read(packet.data()) else {
            return Verdict::Drop(Reason::Malformed(Malformed::EthernetShort));
        };
        if link.destination != mac && !link.destination.is_multicast() {
            return Verdict::Drop(Reason::NotForUs);
        }
        // Headers may go on behind the first piece, and what is for us is read whole.
        if packet.linearize().is_err() {
            return Verdict::Drop(Reason::NoBuffer);
        }
        let parsed = match wire::parse(packet.data()) {
            Ok(Frame::Ip(parsed)) => parsed,
            Ok(Frame::Arp(arp)) => return self.arp(packet, &arp, arrival),
            Ok(Frame::PassedBy(_)) => return Verdict::Drop(Reason::Unsupported),
            Err(malformed) => return Verdict::Drop(Reason::Malformed(malformed)),
        };
        if parsed.is_to_group() {
            return self.for_group(packet, &parsed, arrival);
        }
        // RFC 1812 section 5.3.4: not even if it is for a host that could be reached.
        if link.destination.is_multicast() || parsed.has_invalid_source() {
            return Verdict::Drop(Reason::NotForwarded);
        }
        if self.is_own(parsed.addresses.destination()) {
            return self.local(packet, &parsed, arrival);
        }
        if !is_ordinary(&parsed) {
            return Verdict::Drop(Reason::NotForwarded);
        }
        self.enlist(index, &parsed);
        Verdict::Pass
    }

    /// A packet that cannot be sent to the next hop at this place just so.
    fn send_other(
        &mut self,
        packet: &mut PacketBuf,
        slot: Slot,
        place: Option<NextHop>,
        destination: IpAddr,
        arrival: Arrival,
    ) -> Verdict {
        let hop = place.and_then(|place| self.hops.get(place.index()));
        let Some(&hop) = hop else {
            return self.answer(packet, Problem::NoRoute, Reason::NoRoute, arrival);
        };
        let port = match hop {
            Hop::Local => return self.local_unparsed(packet, arrival),
            Hop::Broadcast => return Verdict::Drop(Reason::NotForwarded),
            Hop::Neighbour { port, .. } | Hop::Link(port) => port,
        };
        if slot.ttl <= 1 {
            return self.answer(packet, Problem::HopLimit, Reason::TtlExpired, arrival);
        }
        let mtu_bytes = self.ports[usize::from(port)].mtu_bytes as u32;
        if slot.l3_bytes > mtu_bytes {
            return self.answer(packet, Problem::TooBig { mtu_bytes }, Reason::TooBig, arrival);
        }
        let place = match hop {
            Hop::Link(port) => self.neighbours.find_or_add(port, destination),
            _ => place.map(|place| place.index() as u32),
        };
        let Some(place) = place else {
            self.events.count(Event::Full);
            return Verdict::Drop(Reason::NoNeighbour);
        };
        let rewrite = self.neighbours.get(place as usize);
        if rewrite.mtu_bytes > 0 {
            return sent(packet, &rewrite, if destination.is_ipv4() { rewrite_v4 } else { rewrite_v6 });
        }
        let packet_in_place = std::mem::replace(packet, PacketBuf::new(Vec::new(), 0));
        let held = Held { packet: packet_in_place, ingress: arrival.ingress };
        match self.neighbours.hold(place, held, arrival.now_ns, &mut self.to_do) {
            Ok(()) => Verdict::Held,
            Err(refused) => {
                *packet = refused.packet;
                Verdict::Drop(Reason::NoNeighbour)
            }
        }
    }

    /// Takes in what other workers learnt.
    #[cold]
    fn hear(&mut self, now_ns: u64) {
        while let Some(news) = self.news.pop() {
            self.neighbours.learn(&news, now_ns, &mut self.to_do);
        }
    }

    /// Sends what waited, asks, and ends what has failed.
    #[cold]
    fn catch_up(&mut self, batch: &mut Batch, now_ns: u64) {
        let mut to_do = std::mem::take(&mut self.to_do);
        for ask in to_do.asks.drain(..) {
            if let Some(question) = self.question(&ask) {
                self.made += 1;
                batch.push_decided(question, Verdict::Transmit(ask.port));
            }
        }
        // Before what came later for the same hosts.
        let sends = to_do.sends.len();
        for (mut held, place) in to_do.sends.drain(..) {
            let verdict = self.send_held(&mut held.packet, place);
            batch.push_decided(held.packet, verdict);
        }
        batch.move_first(sends);
        for mut held in to_do.fails.drain(..) {
            let arrival = Arrival { ingress: held.ingress, now_ns };
            let verdict = self.answer(&mut held.packet, Problem::NoNeighbour, Reason::NoNeighbour, arrival);
            batch.push_decided(held.packet, verdict);
        }
        for held in to_do.overflows.drain(..) {
            self.events.count(Event::HeldOverflow);
            batch.push_decided(held.packet, Verdict::Drop(Reason::NoNeighbour));
        }
        // Its lists keep their memory.
        self.to_do = to_do;
    }

    fn send_held(&self, packet: &mut PacketBuf, place: u32) -> Verdict {
        let rewrite = self.neighbours.get(place as usize);
        let is_v4 = ethernet::Header::read(packet.data())
            .is_some_and(|link| link.ether_type == ethernet::ether_type::IPV4);
        sent(packet, &rewrite, if is_v4 { rewrite_v4 } else { rewrite_v6 })
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.ports.iter().flat_map(|port| &port.addresses).any(|own| own.address == address)
    }
}

/// Between hosts that may talk to each other across a router: RFC 1812 sections 5.3.7 and 4.2.2.11, RFC 3927 section 7,
/// RFC 4291 sections 2.5.2 to 2.5.6.
#[inline]
fn is_ordinary(packet: &Parsed) -> bool {
    match packet.addresses {
        Addresses::V4 { source, destination } => is_ordinary_v4(source) && is_ordinary_v4(destination),
        Addresses::V6 { source, destination } => is_ordinary_v6(source) && is_ordinary_v6(destination),
    }
}

#[inline]
fn is_ordinary_v4(address: u32) -> bool {
    const LINK_LOCAL: u32 = 0xa9fe;
    !ipv4::is_invalid_source(address) && address >> 16 != LINK_LOCAL
}

#[inline]
fn is_ordinary_v6(address: u128) -> bool {
    !ipv6::is_invalid_source(address) && !ipv6::is_link_local(address)
}

/// Rewrites a packet that may be sent.
#[inline]
fn sent(packet: &mut PacketBuf, rewrite: &Rewrite, headers: impl Fn(&mut [u8], &Rewrite)) -> Verdict {
    match packet.make_mut() {
        Ok(frame) => {
            headers(frame, rewrite);
            Verdict::Transmit(rewrite.port)
        }
        Err(_) => Verdict::Drop(Reason::NoBuffer),
    }
}

const V4_BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
const V6_BYTES: usize = ethernet::HEADER_BYTES + ipv6::HEADER_BYTES;

/// The headers were parsed, and the time to live is more than 1.
#[inline]
fn rewrite_v4(frame: &mut [u8], rewrite: &Rewrite) {
    use ipv4::fields::{CHECKSUM, TTL};
    const L3: usize = ethernet::HEADER_BYTES;
    let Some(headers) = frame.first_chunk_mut::<V4_BYTES>() else { return };
    headers[..rewrite.link.len()].copy_from_slice(&rewrite.link);
    headers[L3 + TTL] = headers[L3 + TTL].saturating_sub(1);
    let checksum = u16::from_be_bytes([headers[L3 + CHECKSUM.start], headers[L3 + CHECKSUM.start + 1]]);
    let checksum = update_ttl_decrement(checksum).to_be_bytes();
    headers[L3 + CHECKSUM.start..L3 + CHECKSUM.end].copy_from_slice(&checksum);
}

/// As [`rewrite_v4`].
#[inline]
fn rewrite_v6(frame: &mut [u8], rewrite: &Rewrite) {
    const HOP_LIMIT: usize = ethernet::HEADER_BYTES + ipv6::fields::HOP_LIMIT;
    let Some(headers) = frame.first_chunk_mut::<V6_BYTES>() else { return };
    headers[..rewrite.link.len()].copy_from_slice(&rewrite.link);
    headers[HOP_LIMIT] = headers[HOP_LIMIT].saturating_sub(1);
}

impl<A> Lane<A> {
    fn new() -> Self {
        let room = 2 * BUDGET;
        Self {
            slots: Vec::with_capacity(room),
            destinations: Vec::with_capacity(room),
            found: Vec::with_capacity(room),
        }
    }

    #[inline]
    fn push(&mut self, slot: Slot, destination: A) {
        self.slots.push(slot);
        self.destinations.push(destination);
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.destinations.clear();
        self.found.clear();
    }
}
