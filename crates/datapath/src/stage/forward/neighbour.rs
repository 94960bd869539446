//! Link addresses of neighbours: known, asked for, or learnt; and packets that wait for one.
//!
//! As RFC 4861 section 7.3 and net/core/neighbour.c (6.18), with fewer states. There is no clock here: who has this says what
//! time it is, sends what is to be asked, and decides what becomes of packets.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use pagefrag::PacketBuf;

use crate::wire::ethernet::MacAddress;

/// How long a link address is believed, in nanoseconds; then it is asked for again.
pub const BELIEVED_NS: u64 = 60_000_000_000;
/// Between two requests, in nanoseconds (RFC 4861 section 10, RETRANS_TIMER).
pub const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Requests until a neighbour counts as gone (RFC 4861 section 10, MAX_MULTICAST_SOLICIT).
pub const REQUESTS: u8 = 3;
/// Packets that wait for one neighbour; a further one takes the place of the oldest.
pub const HELD_EACH: usize = 8;
/// Packets that wait for all of them.
pub const HELD_ALL: usize = 256;
/// Neighbours that are remembered beside those that routes name (gc_thresh3, net/ipv4/arp.c, 6.18).
pub const LEARNT_MAX: usize = 1024;

/// What sending to a neighbour takes, in a quarter of a cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(16))]
pub(super) struct Rewrite {
    /// Destination and source of the link header.
    pub(super) link: [u8; 12],
    /// The longest IP packet; 0 if nothing can be sent, so that one comparison is enough.
    pub(super) mtu_bytes: u16,
    pub(super) port: u8,
}

/// The side of a link that is ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub(super) mac: MacAddress,
    pub(super) mtu_bytes: u16,
}

/// A packet that waits, as it came.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) packet: PacketBuf,
    pub(super) ingress: u8,
}

/// A question to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) port: u8,
    pub(super) address: IpAddr,
    /// Whom; everyone if it is not known.
    pub(super) whom: Option<MacAddress>,
}

/// What has to be done after something has happened. The lists are emptied by who does it.
#[derive(Debug, Default)]
pub(super) struct ToDo {
    pub(super) asks: Vec<Ask>,
    /// To be sent to the neighbour at this place, in this order.
    pub(super) sends: Vec<(Held, u32)>,
    /// Whose neighbour does not answer.
    pub(super) fails: Vec<Held>,
    /// Those that gave way.
    pub(super) overflows: Vec<Held>,
}

impl ToDo {
    pub(super) fn is_empty(&self) -> bool {
        self.asks.is_empty() && self.sends.is_empty() && self.fails.is_empty() && self.overflows.is_empty()
    }
}

/// What a message told about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct News {
    pub(super) port: u8,
    pub(super) address: IpAddr,
    pub(super) mac: MacAddress,
    /// It asked for us, so packets for it will come: it is worth remembering even if it was not missed.
    pub(super) remember: bool,
    /// What is known already is to be replaced.
    pub(super) replaces: bool,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learnt {
    Nothing,
    New,
    Same,
    Changed,
    Full,
}

#[derive(Debug)]
struct Entry {
    port: u8,
    address: IpAddr,
    state: State,
    held: VecDeque<Held>,
    /// A route names it: it keeps its place when it does not answer.
    is_named: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Known from the start.
    Static,
    /// Nobody has wanted it yet, or it did not answer.
    Unknown,
    /// So many requests were sent.
    Asked {
        times: u8,
        again_ns: u64,
    },
    Known {
        until_ns: u64,
    },
    /// Known, but asked again whether it is still so.
    Doubted {
        times: u8,
        again_ns: u64,
    },
}

/// The neighbours of one worker.
#[derive(Debug)]
pub(super) struct Neighbours {
    sides: Vec<Side>,
    rewrites: Vec<Rewrite>,
    /// Beside `rewrites`. None: the place is free, or stands for something that is no neighbour.
    entries: Vec<Option<Entry>>,
    places: HashMap<(u8, IpAddr), u32>,
    /// The one found last: the next packet is often for the same. Its hash, which nobody outside can foresee, costs as much as the
    /// rest of the look-up.
    last: Option<((u8, IpAddr), u32)>,
    free: Vec<u32>,
    learnt: usize,
    held: usize,
    due_ns: u64,
}

impl Neighbours {
    pub(super) fn new(sides: Vec<Side>) -> Self {
        Self {
            sides,
            rewrites: Vec::new(),
            entries: Vec::new(),
            places: HashMap::new(),
            last: None,
            free: Vec::new(),
            learnt: 0,
            held: 0,
            due_ns: u64::MAX,
        }
    }

    /// Adds a place that no packet can be sent to directly.
    pub(super) fn add_nobody(&mut self) -> u32 {
        self.add(None, Rewrite::default())
    }

    /// Adds a neighbour that routes name, or that is known from the start.
    pub(super) fn add_named(&mut self, port: u8, address: IpAddr, mac: Option<MacAddress>) -> u32 {
        let (state, rewrite) = match mac {
            Some(mac) => (State::Static, self.rewrite(port, mac)),
            None => (State::Unknown, Rewrite::default()),
        };
        let place =
            self.add(Some(Entry { port, address, state, held: VecDeque::new(), is_named: true }), rewrite);
        self.places.insert((port, address), place);
        place
    }

    /// What sending takes. Of a place that there is not, nothing can be sent to.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Rewrite {
        self.rewrites.get(place).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn find(&self, port: u8, address: IpAddr) -> Option<u32> {
        self.places.get(&(port, address)).copied()
    }

    /// As `find`; makes a place for one that was never heard of, if there is room.
    pub(super) fn find_or_add(&mut self, port: u8, address: IpAddr) -> Option<u32> {
        if let Some((last, place)) = self.last
            && last == (port, address)
        {
            return Some(place);
        }
        if let Some(place) = self.find(port, address) {
            self.last = Some(((port, address), place));
            return Some(place);
        }
        if self.learnt == LEARNT_MAX {
            return None;
        }
        self.learnt += 1;
        let entry = Entry { port, address, state: State::Unknown, held: VecDeque::new(), is_named: false };
        let place = self.add(Some(entry), Rewrite::default());
        self.places.insert((port, address), place);
        Some(place)
    }

    /// Keeps a packet until the neighbour at this place is known, and asks for it if that was not done. The packet comes
    /// back if too many wait.
    pub(super) fn hold(&mut self, place: u32, held: Held, now_ns: u64, to_do: &mut ToDo) -> Result<(), Held> {
        let Some(Some(entry)) = self.entries.get_mut(place as usize) else { return Err(held) };
        if entry.state == State::Unknown {
            let again_ns = now_ns.saturating_add(ASK_AGAIN_NS);
            entry.state = State::Asked { times: 1, again_ns };
            self.due_ns = self.due_ns.min(again_ns);
            to_do.asks.push(Ask { port: entry.port, address: entry.address, whom: None });
        }
        if entry.held.len() == HELD_EACH {
            to_do.overflows.extend(entry.held.pop_front());
            self.held -= 1;
        }
        if self.held == HELD_ALL {
            return Err(held);
        }
        entry.held.push_back(held);
        self.held += 1;
        Ok(())
    }

    /// Takes in what a message told.
    pub(super) fn learn(&mut self, news: &News, now_ns: u64, to_do: &mut ToDo) -> Learnt {
        let place = match self.find(news.port, news.address) {
            Some(place) => place,
            None if !news.remember => return Learnt::Nothing,
            None => match self.find_or_add(news.port, news.address) {
                Some(place) => place,
                None => return Learnt::Full,
            },
        };
        let rewrite = self.rewrite(news.port, news.mac);
        let Some(Some(entry)) = self.entries.get_mut(place as usize) else { return Learnt::Nothing };
        let known = &mut self.rewrites[place as usize];
        let learnt = match entry.state {
            State::Static => return Learnt::Nothing,
            State::Unknown | State::Asked { .. } => Learnt::New,
            State::Known { .. } | State::Doubted { .. } if known.link == rewrite.link => Learnt::Same,
            _ if !news.replaces => return Learnt::Nothing,
            _ => Learnt::Changed,
        };
        *known = rewrite;
        let until_ns = now_ns.saturating_add(BELIEVED_NS);
        entry.state = State::Known { until_ns };
        self.due_ns = self.due_ns.min(until_ns);
        self.held -= entry.held.len();
        to_do.sends.extend(entry.held.drain(..).map(|held| (held, place)));
        learnt
    }

    /// Whether something may have to be done at this time.
    #[inline]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Asks again, and gives up.
    pub(super) fn tick(&mut self, now_ns: u64, to_do: &mut ToDo) -> usize {
        let mut failed = 0;
        self.due_ns = u64::MAX;
        for place in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[place] else { continue };
            let again_ns = now_ns.saturating_add(ASK_AGAIN_NS);
            let (port, address) = (entry.port, entry.address);
            match entry.state {
                State::Static | State::Unknown => continue,
                State::Asked { again_ns: due, .. } | State::Doubted { again_ns: due, .. } if now_ns < due => {
                    self.due_ns = self.due_ns.min(due);
                }
                State::Known { until_ns } if now_ns < until_ns => self.due_ns = self.due_ns.min(until_ns),
                State::Asked { times, .. } if times < REQUESTS => {
                    entry.state = State::Asked { times: times + 1, again_ns };
                    to_do.asks.push(Ask { port, address, whom: None });
                    self.due_ns = self.due_ns.min(again_ns);
                }
                State::Known { .. } => {
                    entry.state = State::Doubted { times: 1, again_ns };
                    self.ask_whom(place, to_do);
                    self.due_ns = self.due_ns.min(again_ns);
                }
                State::Doubted { times, .. } if times < REQUESTS => {
                    entry.state = State::Doubted { times: times + 1, again_ns };
                    self.ask_whom(place, to_do);
                    self.due_ns = self.due_ns.min(again_ns);
                }
                State::Asked { .. } | State::Doubted { .. } => {
                    failed += 1;
                    self.forget(place, to_do);
                }
            }
        }
        failed
    }

    /// Packets that wait.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Gives up all packets that wait.
    pub(super) fn release(&mut self, to_do: &mut ToDo) {
        for entry in self.entries.iter_mut().flatten() {
            to_do.fails.extend(entry.held.drain(..));
        }
        self.held = 0;
    }

    /// Asks only the one that it was: everyone need not be bothered (RFC 1122 section 2.3.2.1 (2), RFC 4861 section 7.3.3).
    fn ask_whom(&self, place: usize, to_do: &mut ToDo) {
        let Some(Some(entry)) = self.entries.get(place) else { return };
        let [a, b, c, d, e, f, ..] = self.rewrites[place].link;
        let whom = Some(MacAddress([a, b, c, d, e, f]));
        to_do.asks.push(Ask { port: entry.port, address: entry.address, whom });
    }

    fn forget(&mut self, place: usize, to_do: &mut ToDo) {
        self.rewrites[place] = Rewrite::default();
        let Some(entry) = &mut self.entries[place] else { return };
        self.held -= entry.held.len();
        to_do.fails.extend(entry.held.drain(..));
        entry.state = State::Unknown;
        if !entry.is_named {
            self.places.remove(&(entry.port, entry.address));
            self.last = None;
            self.entries[place] = None;
            self.free.push(place as u32);
            self.learnt -= 1;
        }
    }

    fn add(&mut self, entry: Option<Entry>, rewrite: Rewrite) -> u32 {
        if let Some(place) = self.free.pop() {
            self.entries[place as usize] = entry;
            self.rewrites[place as usize] = rewrite;
            return place;
        }
        self.entries.push(entry);
        self.rewrites.push(rewrite);
        (self.entries.len() - 1) as u32
    }

    fn rewrite(&self, port: u8, mac: MacAddress) -> Rewrite {
        let Some(side) = self.sides.get(usize::from(port)) else { return Rewrite::default() };
        let mut link = [0; 12];
        link[..6].copy_from_slice(&mac.0);
        link[6..].copy_from_slice(&side.mac.0);
        Rewrite { link, mtu_bytes: side.mtu_bytes, port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 9, 9]);
    const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 9, 8]);
    const SECOND: u64 = 1_000_000_000;

    fn neighbours() -> Neighbours {
        Neighbours::new(vec![Side { mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu_bytes: 1500 }])
    }

    fn address(host: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + host).into())
    }

    fn packet(mark: u8) -> Held {
        let mut packet = crate::stage::new_packet(1);
        packet.put(1).unwrap()[0] = mark;
        Held { packet, ingress: 0 }
    }

    fn marks<'a>(held: impl IntoIterator<Item = &'a Held>) -> Vec<u8> {
        held.into_iter().map(|held| held.packet.data()[0]).collect()
    }

    fn news(host: u32, mac: MacAddress) -> News {
        News { port: 0, address: address(host), mac, remember: false, replaces: true }
    }

    #[test]
    fn three_requests_a_second_apart_and_then_it_has_failed() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let place = all.find_or_add(0, address(1)).unwrap();
        all.hold(place, packet(1), 0, &mut to_do).unwrap();
        all.hold(place, packet(2), 0, &mut to_do).unwrap();
        let mut asked = vec![to_do.asks.len()];
        for half_seconds in 1..=5 {
            let now_ns = half_seconds * SECOND / 2;
            if all.is_due(now_ns) {
                assert_eq!(all.tick(now_ns, &mut to_do), 0);
            }
            asked.push(to_do.asks.len());
        }
        assert_eq!(asked, [1, 1, 2, 2, 3, 3]);
        assert!(to_do.asks.iter().all(|ask| *ask == Ask { port: 0, address: address(1), whom: None }));
        assert_eq!(all.tick(3 * SECOND, &mut to_do), 1);
        assert_eq!((marks(&to_do.fails), all.held()), (vec![1, 2], 0));
        assert_eq!(all.find(0, address(1)), None);
        assert!(!all.is_due(u64::MAX - 1));
    }

    #[test]
    fn an_answer_sends_what_waits_in_its_order() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let place = all.find_or_add(0, address(1)).unwrap();
        for mark in 0..3 {
            all.hold(place, packet(mark), 0, &mut to_do).unwrap();
        }
        assert_eq!(all.get(place as usize).mtu_bytes, 0);
        assert_eq!(all.learn(&news(2, MAC), 5, &mut to_do), Learnt::Nothing);
        assert_eq!(all.learn(&news(1, MAC), 5, &mut to_do), Learnt::New);
        assert_eq!(marks(to_do.sends.iter().map(|(held, _)| held)), [0, 1, 2]);
        assert_eq!(all.held(), 0);
        let rewrite = all.get(place as usize);
        assert_eq!((rewrite.link, rewrite.mtu_bytes), ([2, 0, 0, 0, 9, 9, 2, 0, 0, 0, 0, 1], 1500));
    }

    #[test]
    fn what_is_known_is_asked_again_after_a_minute_and_used_meanwhile() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let place = all.add_named(0, address(1), None);
        all.learn(&news(1, MAC), 0, &mut to_do);
        assert!(!all.is_due(BELIEVED_NS - 1));
        assert!(all.is_due(BELIEVED_NS));
        all.tick(BELIEVED_NS, &mut to_do);
        assert_eq!(to_do.asks, [Ask { port: 0, address: address(1), whom: Some(MAC) }]);
        assert_eq!(all.get(place as usize).mtu_bytes, 1500);
        assert_eq!(all.learn(&news(1, MAC), BELIEVED_NS + 1, &mut to_do), Learnt::Same);
        all.tick(2 * BELIEVED_NS, &mut to_do);
        assert_eq!(to_do.asks.len(), 1, "it is believed for another minute");
        // Not answered this time.
        for second in 0..4 {
            all.tick(2 * BELIEVED_NS + 1 + second * SECOND, &mut to_do);
        }
        assert_eq!(to_do.asks.len(), 1 + 3);
        assert_eq!(all.get(place as usize).mtu_bytes, 0);
        assert_eq!(all.find(0, address(1)), Some(place), "a route names it");
    }

    #[test]
    fn one_that_changes_its_address_says_so_or_is_not_believed() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let remembered = News { remember: true, ..news(1, MAC) };
        assert_eq!(all.learn(&remembered, 0, &mut to_do), Learnt::New);
        assert_eq!(all.learn(&News { replaces: false, ..news(1, OTHER) }, 0, &mut to_do), Learnt::Nothing);
        assert_eq!(all.learn(&news(1, OTHER), 0, &mut to_do), Learnt::Changed);
        all.add_named(0, address(7), Some(MAC));
        assert_eq!(all.learn(&news(7, OTHER), 0, &mut to_do), Learnt::Nothing, "static");
    }

    #[test]
    fn few_wait_for_each_and_not_many_in_all() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let place = all.find_or_add(0, address(0)).unwrap();
        for mark in 0..10 {
            all.hold(place, packet(mark), 0, &mut to_do).unwrap();
        }
        assert_eq!((marks(&to_do.overflows), all.held()), (vec![0, 1], HELD_EACH));
        let mut refused = 0;
        for host in 1..40 {
            let place = all.find_or_add(0, address(host)).unwrap();
            refused += (0..HELD_EACH as u8)
                .filter(|mark| all.hold(place, packet(*mark), 0, &mut to_do).is_err())
                .count();
        }
        assert_eq!((all.held(), refused), (HELD_ALL, 40 * HELD_EACH - HELD_ALL));
        all.release(&mut to_do);
        assert_eq!((all.held(), to_do.fails.len()), (0, HELD_ALL));
    }

    #[test]
    fn the_one_found_last_is_not_found_after_it_was_forgotten() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        let place = all.find_or_add(0, address(1)).unwrap();
        all.hold(place, packet(0), 0, &mut to_do).unwrap();
        assert_eq!(all.find_or_add(0, address(1)), Some(place));
        assert_eq!(all.find_or_add(0, address(1)), Some(place));
        (1..=3).for_each(|second| _ = all.tick(second * SECOND, &mut to_do));
        assert_eq!(all.find_or_add(0, address(2)), Some(place), "the place is used again");
        assert_ne!(all.find_or_add(0, address(1)), Some(place));
        assert_eq!(all.find_or_add(0, address(2)), Some(place));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for_and_places_are_used_again() {
        let (mut all, mut to_do) = (neighbours(), ToDo::default());
        for host in 0..LEARNT_MAX as u32 {
            let place = all.find_or_add(0, address(host)).unwrap();
            all.hold(place, packet(0), 0, &mut to_do).ok();
        }
        assert_eq!(all.find_or_add(0, address(5000)), None);
        let remembered = News { remember: true, ..news(5000, MAC) };
        assert_eq!(all.learn(&remembered, 0, &mut to_do), Learnt::Full);
        for second in 1..=3 {
            all.tick(second * SECOND, &mut to_do);
        }
        assert_eq!(all.learnt, 0);
        for host in 5000..5000 + LEARNT_MAX as u32 {
            assert!(all.find_or_add(0, address(host)).unwrap() < LEARNT_MAX as u32);
        }
    }
}
