//! Tables like the Internet's, from a seed.
//!
//! Prefixes are drawn one after another. The length is drawn from the shares below. Of IPv4 one in two, of IPv6 565
//! in 1000, lies within a shorter prefix that was drawn before; the others are anywhere in unicast space (IPv4: first
//! byte 1 to 223 without 10 and 127; IPv6: the large blocks of the registries). For one that is there already another
//! is drawn. Next hops are drawn evenly, which is worse than the Internet, where neighbours often have the same: few
//! entries can be merged.
//!
//! The same arguments give the same routes, also in later versions.
//!
//! Sources. Lengths of IPv4 from /16 to /24: full view of RIPE RIS, September 2026, 1,150,000 prefixes
//! (bgp.internet-registry.net, second hand). Shorter ones are the 0.4 % that remain: /8 to /12 as a daily report of
//! APNIC's router has them (second hand too), /13 to /15 made up to fit. Lengths of IPv6: made up around the peaks at /48 and /32 so
//! that the mean, 42.9, and the share of prefixes within others, 56.5 %, are those of bgp.potaroo.net (AS131072,
//! November 2024, 219,984 prefixes). The half of IPv4: G. Huston, "Routing in 2016", IETF 98.

use std::collections::HashSet;

use super::{Address, NextHop, Prefix, Route, Routes};

/// How many routes are drawn at most: with more, short prefixes would run out.
pub const COUNT_MAX: usize = 4_000_000;

const TRIES: usize = 16;

/// Lengths of IPv4, and their share of a table.
pub const IPV4_SHARES: [(u8, u32); 17] = [
    (8, 16),
    (9, 14),
    (10, 39),
    (11, 97),
    (12, 299),
    (13, 600),
    (14, 1_200),
    (15, 2_100),
    (16, 13_979),
    (17, 8_682),
    (18, 14_046),
    (19, 26_750),
    (20, 48_463),
    (21, 57_238),
    (22, 118_339),
    (23, 121_088),
    (24, 734_899),
];

/// Lengths of IPv6, and their share of a table.
pub const IPV6_SHARES: [(u8, u32); 17] = [
    (20, 1),
    (24, 2),
    (28, 5),
    (29, 25),
    (30, 5),
    (32, 110),
    (33, 12),
    (34, 10),
    (36, 60),
    (38, 10),
    (40, 95),
    (42, 25),
    (44, 95),
    (45, 15),
    (46, 40),
    (47, 30),
    (48, 460),
];

/// Routes of IPv4 to next hops 0 to `next_hops` - 1 (at least one). At most [`COUNT_MAX`].
pub fn ipv4(count: usize, next_hops: u16, seed: u64) -> Routes<u32> {
    let unicast = |numbers: &mut Numbers| loop {
        let address = numbers.u64() as u32;
        if !matches!(address >> 24, 0 | 10 | 127 | 224..) {
            return address;
        }
    };
    draw(&mut Numbers::new(seed), count, next_hops, &Shape { shares: &IPV4_SHARES, within: 500 }, unicast)
}

/// Routes of IPv6 to next hops 0 to `next_hops` - 1 (at least one). At most [`COUNT_MAX`].
pub fn ipv6(count: usize, next_hops: u16, seed: u64) -> Routes<u128> {
    // IANA, "IPv6 Global Unicast Address Assignments": the highest 16 bits, and how long the block is.
    const BLOCKS: [(u128, u8); 7] =
        [(0x2001, 16), (0x2400, 12), (0x2600, 12), (0x2800, 12), (0x2a00, 12), (0x2a10, 12), (0x2c00, 12)];
    let unicast = |numbers: &mut Numbers| {
        let (block, length) = BLOCKS[numbers.below(BLOCKS.len() as u64) as usize];
        block << 112 | numbers.u128() >> length
    };
    draw(&mut Numbers::new(seed), count, next_hops, &Shape { shares: &IPV6_SHARES, within: 565 }, unicast)
}

/// An address in a prefix of the table, each prefix as likely as any other; a longer one in it may be what matches.
/// None if there are no routes.
pub fn covered<A: Address>(routes: &Routes<A>, numbers: &mut Numbers) -> Option<A> {
    let routes = routes.as_slice();
    let at = numbers.below(routes.len().max(1) as u64) as usize;
    routes.get(at).map(|route| within(&route.prefix, numbers))
}

struct Shape {
    shares: &'static [(u8, u32)],
    /// How many of 1000 lie in another prefix.
    within: u64,
}

impl Shape {
    fn length(&self, numbers: &mut Numbers) -> u8 {
        let total = self.shares.iter().map(|(_, share)| u64::from(*share)).sum();
        let mut at = numbers.below(total);
        for (length, share) in self.shares {
            match at.checked_sub(u64::from(*share)) {
                Some(behind) => at = behind,
                None => return *length,
            }
        }
        unreachable!("less than the sum")
    }
}

fn draw<A: Address>(
    numbers: &mut Numbers,
    count: usize,
    next_hops: u16,
    shape: &Shape,
    mut anywhere: impl FnMut(&mut Numbers) -> A,
) -> Routes<A> {
    let count = count.min(COUNT_MAX);
    let hops = u64::from(next_hops.clamp(1, NextHop::INDEX_MAX));
    let mut seen = HashSet::with_capacity(count);
    let mut routes: Vec<Route<A>> = Vec::with_capacity(count);
    while routes.len() < count {
        let length = shape.length(numbers);
        // So that lengths keep their shares, the length stays, but for one whose prefixes may all be there.
        for _ in 0..TRIES {
            let is_within = numbers.below(1000) < shape.within;
            let address = match if is_within { shorter(&routes, length, numbers) } else { None } {
                Some(prefix) => within(&prefix, numbers),
                None => anywhere(numbers),
            };
            let prefix = Prefix::of(address, length);
            if seen.insert(prefix) {
                let next_hop = NextHop::new(numbers.below(hops) as u16);
                routes.extend(next_hop.map(|next_hop| Route { prefix, next_hop }));
                break;
            }
        }
    }
    routes.into_iter().collect()
}

/// One of the prefixes that are shorter, if a few tries find one.
fn shorter<A: Address>(routes: &[Route<A>], length: u8, numbers: &mut Numbers) -> Option<Prefix<A>> {
    let end = routes.len() as u64;
    (0..if end == 0 { 0 } else { TRIES })
        .map(|_| routes[numbers.below(end) as usize].prefix)
        .find(|prefix| prefix.length() < length)
}

fn within<A: Address>(prefix: &Prefix<A>, numbers: &mut Numbers) -> A {
    let behind = numbers.u128().checked_shr(u32::from(prefix.length())).unwrap_or(0);
    A::from_highest(prefix.address().to_highest() | behind)
}

/// Numbers from a seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// The next one.
    #[inline]
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Two of them.
    #[inline]
    pub fn u128(&mut self) -> u128 {
        u128::from(self.u64()) << 64 | u128::from(self.u64())
    }

    /// Less than `end`; 0 if that is 0. By multiplication: the bias is under `end` / 2^64.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as the reference implementation gives them (Vigna, splitmix64.c; Rosetta
    /// Code).
    #[test]
    fn numbers_are_splitmix64() {
        let mut numbers = Numbers::new(1234567);
        let first = [numbers.u64(), numbers.u64(), numbers.u64()];
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn the_same_seed_gives_the_same_table() {
        assert_eq!(ipv4(1000, 16, 5), ipv4(1000, 16, 5));
        assert_ne!(ipv4(1000, 16, 5), ipv4(1000, 16, 6));
        let first = ipv6(1000, 16, 5).as_slice()[0];
        assert_eq!(ipv6(1000, 16, 5).as_slice()[0], first);
    }

    #[test]
    fn as_many_as_asked_for_and_of_these_next_hops() {
        for count in [0, 1, 10, 5000] {
            let routes = ipv4(count, 3, 1);
            assert_eq!(routes.len(), count);
            assert!(routes.as_slice().iter().all(|route| route.next_hop.index() < 3));
        }
        assert!(ipv6(10, 0, 1).as_slice().iter().all(|route| route.next_hop.index() == 0));
    }

    #[test]
    fn lengths_have_their_shares() {
        let routes = ipv4(50_000, 8, 2);
        let share = |length: u8| {
            routes.as_slice().iter().filter(|r| r.prefix.length() == length).count() as f64 / 50_000.0
        };
        assert!((share(24) - 0.64).abs() < 0.02, "{}", share(24));
        assert!((share(22) - 0.103).abs() < 0.01, "{}", share(22));
        let routes = ipv6(50_000, 8, 2);
        let mean = routes.as_slice().iter().map(|r| f64::from(r.prefix.length())).sum::<f64>() / 50_000.0;
        assert!((mean - 42.9).abs() < 0.3, "{mean}");
    }

    #[test]
    fn covered_addresses_are() {
        let routes = ipv6(100, 8, 3);
        let mut numbers = Numbers::new(1);
        for _ in 0..1000 {
            let address = covered(&routes, &mut numbers).unwrap();
            assert!(routes.as_slice().iter().any(|r| r.prefix.contains(address)));
        }
        assert_eq!(covered(&Routes::<u32>::new(), &mut numbers), None);
    }
}
