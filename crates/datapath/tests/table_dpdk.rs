//! The same is found as in the tables of DPDK.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use datapath::table::{Address, Dir24, NextHop, Poptrie};

use lpm::{Case, digest, internet_v4, internet_v6, mixed};

#[path = "support/lpm.rs"]
mod lpm;

#[test]
fn ipv4_as_rte_lpm() {
    let case = mixed::<u32>(10_000, 12_000, 44);
    let wanted = answers(include_str!("data/lpm-v4.txt"));
    let table = Dir24::build(&case.routes).unwrap();
    compare(&case, &wanted, |address| table.lookup(address));
    let table = Poptrie::build(&case.routes).unwrap();
    compare(&case, &wanted, |address| table.lookup(address));
}

#[test]
fn ipv6_as_rte_lpm6() {
    let case = mixed::<u128>(10_000, 12_000, 66);
    let table = Poptrie::build(&case.routes).unwrap();
    compare(&case, &answers(include_str!("data/lpm-v6.txt")), |address| table.lookup(address));
}

/// The digest is what DPDK 22.11.11 found with the same routes, added in the order of prefixes, and the same addresses.
#[test]
fn a_full_table_of_ipv4_as_rte_lpm() {
    let case = internet_v4(1_000_000, 500_000);
    let mut found = vec![None; case.addresses.len()];
    Dir24::build(&case.routes).unwrap().lookup_burst(&case.addresses, &mut found);
    assert_eq!(digest(found.iter().copied()), 0x631f_bc6c_4da5_2c79);
    found.fill(None);
    Poptrie::build(&case.routes).unwrap().lookup_burst(&case.addresses, &mut found);
    assert_eq!(digest(found.into_iter()), 0x631f_bc6c_4da5_2c79);
}

/// As above.
#[test]
fn a_full_table_of_ipv6_as_rte_lpm6() {
    let case = internet_v6(220_000, 500_000);
    let mut found = vec![None; case.addresses.len()];
    Poptrie::build(&case.routes).unwrap().lookup_burst(&case.addresses, &mut found);
    assert_eq!(digest(found.into_iter()), 0xbc9f_74b5_c3c5_26ed);
}

fn answers(text: &str) -> Vec<Option<NextHop>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|word| match word {
            "-" => None,
            number => Some(NextHop::new(number.parse().unwrap()).unwrap()),
        })
        .collect()
}

fn compare<A: Address>(case: &Case<A>, wanted: &[Option<NextHop>], lookup: impl Fn(A) -> Option<NextHop>) {
    assert_eq!(wanted.len(), case.addresses.len());
    for (address, wanted) in case.addresses.iter().zip(wanted) {
        assert_eq!(lookup(*address), *wanted, "{}", address.display());
    }
    let found = wanted.iter().flatten().count();
    assert!(found > wanted.len() / 2 && found < wanted.len(), "both kinds of answers are tested");
}
