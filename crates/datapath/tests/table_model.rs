//! Tables against a list of routes by length.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use datapath::table::{
    Address, Advise, BuildError, Dir24, NextHop, Poptrie, Prefix, PrefixError, Route, Routes,
};
use proptest::prelude::*;

use lpm::{Model, internet_v4, mixed};

#[path = "support/lpm.rs"]
mod lpm;

fn hop(index: u16) -> NextHop {
    NextHop::new(index).unwrap()
}

/// All kinds of tables for these routes, single and burst.
fn check<A: Address>(routes: &Routes<A>, addresses: &[A]) {
    let model = Model::new(routes);
    let wanted: Vec<_> = addresses.iter().map(|address| model.lookup(*address)).collect();
    let poptrie = Poptrie::build(routes).unwrap();
    let single: Vec<_> = addresses.iter().map(|address| poptrie.lookup(*address)).collect();
    assert_eq!(single, wanted, "poptrie of {routes:?} for {addresses:?}");
    let mut burst = vec![Some(hop(7)); addresses.len()];
    poptrie.lookup_burst(addresses, &mut burst);
    assert_eq!(burst, wanted, "poptrie, burst, of {routes:?} for {addresses:?}");
}

fn check_v4(routes: &Routes<u32>, addresses: &[u32]) {
    check(routes, addresses);
    let model = Model::new(routes);
    let table = Dir24::build(routes).unwrap();
    let mut burst = vec![Some(hop(7)); addresses.len()];
    table.lookup_burst(addresses, &mut burst);
    for (address, found) in addresses.iter().zip(burst) {
        let wanted = model.lookup(*address);
        assert_eq!((table.lookup(*address), found), (wanted, wanted), "{address:08x} in {routes:?}");
    }
}

/// First and last address of each prefix, and the neighbours on both sides.
fn ends<A: Address>(routes: &Routes<A>) -> Vec<A> {
    let one = 1u128 << (128 - u32::from(A::BITS));
    let of = |route: &Route<A>| {
        let first = route.prefix.address().to_highest();
        let last = first | u128::MAX.checked_shr(u32::from(route.prefix.length())).unwrap_or(0);
        [first, first.wrapping_sub(one), last, last.wrapping_add(one)].map(A::from_highest)
    };
    routes.as_slice().iter().flat_map(of).collect()
}

/// Prefixes that like to lie in each other: few different bits, all lengths.
fn routes<A: Address>(seeds: &[(u128, u8, u16)]) -> Routes<A> {
    let route = |(bits, length, index): &(u128, u8, u16)| Route {
        prefix: Prefix::of(A::from_highest(*bits), length % (A::BITS + 1)),
        next_hop: hop(index % 32_000),
    };
    seeds.iter().map(route).collect()
}

fn seeds() -> impl Strategy<Value = Vec<(u128, u8, u16)>> {
    let bits = prop_oneof![
        any::<u128>(),
        Just(0),
        Just(u128::MAX),
        (0u32..128).prop_map(|bit| 1 << bit),
        (0u32..128).prop_map(|bit| 0x2001_0db8_0000_0000_0000_0000_0000_0000 | 1 << bit),
    ];
    let length = prop_oneof![any::<u8>(), Just(0), Just(24), Just(32), Just(128), Just(18), Just(20)];
    proptest::collection::vec((bits, length, any::<u16>()), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_routes_of_ipv4(seeds in seeds(), mut addresses in proptest::collection::vec(any::<u32>(), 0..40)) {
        let routes = routes(&seeds);
        addresses.extend(ends(&routes));
        check_v4(&routes, &addresses);
    }

    #[test]
    fn any_routes_of_ipv6(seeds in seeds(), mut addresses in proptest::collection::vec(any::<u128>(), 0..40)) {
        let routes = routes(&seeds);
        addresses.extend(ends(&routes));
        check(&routes, &addresses);
    }

    /// The list behaves as a map, and what was removed is not found.
    #[test]
    fn inserted_and_removed(
        seeds in seeds(),
        steps in proptest::collection::vec((any::<bool>(), any::<proptest::sample::Index>(), any::<u16>()), 1..30),
    ) {
        let pool = routes::<u128>(&seeds);
        prop_assume!(!pool.is_empty());
        let mut list = Routes::new();
        let mut map = std::collections::BTreeMap::new();
        for (is_insert, which, index) in steps {
            let prefix = which.get(pool.as_slice()).prefix;
            if is_insert {
                let next_hop = hop(index % 32_000);
                prop_assert_eq!(list.insert(Route { prefix, next_hop }), map.insert(prefix, next_hop));
            } else {
                prop_assert_eq!(list.remove(&prefix), map.remove(&prefix));
            }
            prop_assert_eq!(list.get(&prefix), map.get(&prefix).copied());
        }
        let listed: Vec<_> = list.as_slice().iter().map(|r| (r.prefix, r.next_hop)).collect();
        prop_assert_eq!(listed, map.into_iter().collect::<Vec<_>>());
        check(&list, &ends(&pool));
    }
}

#[test]
fn every_length_alone_and_all_of_them_together() {
    for bits in [0, u128::MAX, 0xc0a8_0102_0304_0506_0708_090a_0b0c_0d0e] {
        let all: Vec<_> = (0..=128).map(|length| (bits, length, u16::from(length))).collect();
        for one in &all {
            let routes = routes::<u128>(std::slice::from_ref(one));
            check(&routes, &ends(&routes));
        }
        let routes_v6 = routes::<u128>(&all);
        check(&routes_v6, &ends(&routes_v6));
        let routes_v4 = routes::<u32>(&all[..33]);
        check_v4(&routes_v4, &ends(&routes_v4));
    }
}

#[test]
fn no_route_at_all_and_only_the_default() {
    let mut routes = Routes::<u32>::new();
    check_v4(&routes, &[0, 1, u32::MAX]);
    routes.insert(Route { prefix: Prefix::new(0, 0).unwrap(), next_hop: hop(0) });
    check_v4(&routes, &[0, 1, u32::MAX]);
    assert_eq!(Dir24::build(&routes).unwrap().lookup(77), Some(hop(0)));
}

/// A million prefixes with the lengths of the Internet (`table::synthetic`): 100,000 addresses.
#[test]
fn a_full_table_against_the_model() {
    let case = internet_v4(1_000_000, 100_000);
    let model = Model::new(&case.routes);
    let dir24 = Dir24::build(&case.routes).unwrap();
    let poptrie = Poptrie::build(&case.routes).unwrap();
    for address in &case.addresses {
        let wanted = model.lookup(*address);
        assert_eq!((dir24.lookup(*address), poptrie.lookup(*address)), (wanted, wanted), "{address:08x}");
    }
    assert!(dir24.memory_bytes() >= 32 << 20 && dir24.memory_bytes() < 33 << 20);
    assert!(poptrie.memory_bytes() < 16 << 20, "{}", poptrie.memory_bytes());
}

#[test]
fn bursts_of_every_length_and_slices_that_differ_in_it() {
    let case = mixed::<u32>(300, 100, 1);
    let (dir24, poptrie) = (Dir24::build(&case.routes).unwrap(), Poptrie::build(&case.routes).unwrap());
    let filler = Some(hop(31_999));
    for (addresses, room) in (0..100).flat_map(|n| [(n, n), (n, 100), (100, n)]) {
        let mut found = [vec![filler; room], vec![filler; room]];
        dir24.lookup_burst(&case.addresses[..addresses], &mut found[0]);
        poptrie.lookup_burst(&case.addresses[..addresses], &mut found[1]);
        for found in found {
            for (at, found) in found.iter().enumerate() {
                let wanted = if at < addresses { dir24.lookup(case.addresses[at]) } else { filler };
                assert_eq!(*found, wanted, "place {at} of {addresses} in {room}");
            }
        }
    }
}

#[test]
fn wrong_prefixes_are_told_what_to_be() {
    let error = Prefix::new(0x0a00_0001u32, 33).unwrap_err();
    assert!(matches!(error, PrefixError::Length { bits: 32, .. }), "{error}");
    let error = Prefix::new(0x0a00_0001u32, 24).unwrap_err();
    assert_eq!(
        error.to_string(),
        "prefix 10.0.0.1/24: bits behind the first 24 are set; did you mean 10.0.0.0/24, or 10.0.0.1/32?"
    );
    assert!(Prefix::new(1u128, 127).is_err() && Prefix::new(1u128, 128).is_ok());
    assert!(Prefix::new(1u128, 129).is_err() && Prefix::new(0u128, 0).is_ok());
}

#[test]
fn limits_are_errors() {
    let far = |index| -> Routes<u32> {
        [Route { prefix: Prefix::new(0, 0).unwrap(), next_hop: hop(index) }].into_iter().collect()
    };
    assert!(Dir24::build(&far(Dir24::NEXT_HOP_MAX)).unwrap().lookup(9) == Some(hop(32_766)));
    let error = Dir24::build(&far(32_767)).unwrap_err();
    assert_eq!(error, BuildError::TooManyNextHops { routes: 1, index: 32_767, limit: 32_766 });
    let most = NextHop::INDEX_MAX;
    assert_eq!(Poptrie::build(&far(most)).unwrap().lookup(9), Some(hop(most)));
    assert_eq!(NextHop::new(u16::MAX), None);

    let hosts = |count: usize| -> Routes<u32> {
        let host = |at: usize| Route { prefix: Prefix::of((at as u32) << 8, 32), next_hop: hop(1) };
        (0..count).map(host).collect()
    };
    let table = Dir24::build(&hosts(Dir24::GROUPS_MAX)).unwrap();
    assert_eq!(table.lookup(((Dir24::GROUPS_MAX - 1) as u32) << 8), Some(hop(1)));
    let error = Dir24::build(&hosts(Dir24::GROUPS_MAX + 1)).unwrap_err();
    assert!(error.to_string().contains("take a poptrie"), "{error}");
    check(&hosts(Dir24::GROUPS_MAX + 1), &[0, 1, 255, 256, 257]);
}

/// Of routes with the same prefix the last one counts.
#[test]
fn a_later_route_replaces_an_earlier_one() {
    let prefix = Prefix::new(0x0a00_0000u32, 8).unwrap();
    let routes: Routes<u32> = (0..5).map(|index| Route { prefix, next_hop: hop(index) }).collect();
    assert_eq!((routes.len(), routes.get(&prefix)), (1, Some(hop(4))));
}

#[test]
fn memory_is_shown_before_it_is_written() {
    #[derive(Default)]
    struct Seen(usize);
    impl Advise for Seen {
        fn advise<T>(&mut self, memory: &mut [T]) {
            self.0 += size_of_val(memory);
        }
    }
    let case = mixed::<u32>(1000, 1, 1);
    let mut seen = Seen::default();
    let poptrie = Poptrie::build_in(&case.routes, &mut seen).unwrap();
    assert!(seen.0 >= poptrie.memory_bytes());
    let mut seen = Seen::default();
    Dir24::build_in(&case.routes, &mut seen).unwrap();
    assert_eq!(seen.0, 32 << 20, "groups are small");
}
