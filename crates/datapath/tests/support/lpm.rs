//! Routes and addresses that tables are tested with, and a model of a table.
//!
//! Uses nothing but the table module, so that the same file gives the routes to other implementations.

#![allow(dead_code, reason = "each test file has its own copy")]

use std::collections::HashMap;

use datapath::table::{
    Address, NextHop, Prefix, Route, Routes,
    synthetic::{self, Numbers},
};

/// What to look up in what.
pub(crate) struct Case<A: Address> {
    pub(crate) routes: Routes<A>,
    pub(crate) addresses: Vec<A>,
}

/// Prefixes of all lengths from 2 to the longest, half of them within another, none in the first and the last quarter
/// of all addresses; and addresses anywhere, and at and beside the ends of prefixes.
pub(crate) fn mixed<A: Address>(routes: usize, addresses: usize, seed: u64) -> Case<A> {
    let mut numbers = Numbers::new(seed);
    let mut list: Vec<Route<A>> = Vec::new();
    for _ in 0..routes {
        let length = 2 + numbers.below(u64::from(A::BITS) - 1) as u8;
        let mut bits = numbers.u128();
        bits ^= !(bits ^ bits >> 1) & 1 << 126;
        if numbers.below(2) == 1 && !list.is_empty() {
            let outer = list[numbers.below(list.len() as u64) as usize].prefix;
            bits = replace_behind(outer.address().to_highest(), outer.length(), bits);
        }
        let next_hop = NextHop::new(numbers.below(30_000) as u16).expect("small");
        list.push(Route { prefix: Prefix::of(A::from_highest(bits), length), next_hop });
    }
    let addresses = (0..addresses)
        .map(|_| {
            let random = numbers.u128();
            let prefix = list[numbers.below(list.len() as u64) as usize].prefix;
            let (first, length) = (prefix.address().to_highest(), prefix.length());
            let one = 1u128 << (128 - u32::from(A::BITS));
            A::from_highest(match numbers.below(6) {
                0 => random,
                1 => first,
                2 => first.wrapping_sub(one),
                3 => replace_behind(first, length, u128::MAX),
                4 => replace_behind(first, length, u128::MAX).wrapping_add(one),
                _ => replace_behind(first, length, random),
            })
        })
        .collect();
    Case { routes: list.into_iter().collect(), addresses }
}

/// A full table of IPv4 and addresses, half of them anywhere.
pub(crate) fn internet_v4(routes: usize, addresses: usize) -> Case<u32> {
    let routes = synthetic::ipv4(routes, 1000, 4);
    let mut numbers = Numbers::new(40);
    let addresses = (0..addresses)
        .map(|at| match at % 2 {
            0 => numbers.u64() as u32,
            _ => synthetic::covered(&routes, &mut numbers).expect("there are routes"),
        })
        .collect();
    Case { routes, addresses }
}

/// A full table of IPv6 and addresses in its prefixes.
pub(crate) fn internet_v6(routes: usize, addresses: usize) -> Case<u128> {
    let routes = synthetic::ipv6(routes, 1000, 6);
    let mut numbers = Numbers::new(60);
    let addresses = (0..addresses)
        .map(|_| synthetic::covered(&routes, &mut numbers).expect("there are routes"))
        .collect();
    Case { routes, addresses }
}

fn replace_behind(bits: u128, length: u8, by: u128) -> u128 {
    let behind = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
    bits & !behind | by & behind
}

/// A digest of what was found: FNV-1a with 64 bits over two bytes of each, the lower first: 0 for none, else the next
/// hop + 1.
pub(crate) fn digest(found: impl Iterator<Item = Option<NextHop>>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for found in found {
        let number = found.map_or(0, |hop| hop.index() + 1) as u16;
        for byte in number.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Routes by length: the longest that there is for the address is looked for, length by length.
pub(crate) struct Model<A>(Vec<(u8, HashMap<A, NextHop>)>);

impl<A: Address> Model<A> {
    pub(crate) fn new(routes: &Routes<A>) -> Self {
        let mut by_length: Vec<(u8, HashMap<A, NextHop>)> =
            (0..=A::BITS).rev().map(|length| (length, HashMap::new())).collect();
        for route in routes.as_slice() {
            let at = usize::from(A::BITS - route.prefix.length());
            by_length[at].1.insert(route.prefix.address(), route.next_hop);
        }
        by_length.retain(|(_, routes)| !routes.is_empty());
        Self(by_length)
    }

    pub(crate) fn lookup(&self, address: A) -> Option<NextHop> {
        self.0.iter().find_map(|(length, routes)| routes.get(&address.masked(*length)).copied())
    }
}
