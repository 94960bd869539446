//! Every configuration of the corpus makes the packets beside it, which were computed apart from this crate.

#![allow(clippy::unwrap_used)]

mod common;

use common::{corpus, hex, parse};

#[test]
fn every_configuration_makes_its_packets() {
    let cases = corpus();
    assert!(cases.len() >= 60, "{} configurations", cases.len());
    for case in cases {
        let compiled = parse(&case.text).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let emitter = compiled.plan.emitter(0, 1, 1).unwrap();
        assert!(!case.packets.is_empty(), "{}", case.name);
        for (index, wanted) in case.packets.iter().enumerate() {
            let found = hex(&emitter.to_vec(index as u64));
            assert!(matches(wanted, &found), "{} packet {index}\nwanted {wanted}\nfound  {found}", case.name);
        }
    }
}

fn matches(wanted: &str, found: &str) -> bool {
    wanted.len() == found.len() && wanted.chars().zip(found.chars()).all(|(a, b)| a == '?' || a == b)
}

/// A buffer that held another packet must not show through, and what is behind the packet must stay.
#[test]
fn a_used_buffer_makes_no_difference() {
    for case in corpus() {
        let compiled = parse(&case.text).unwrap();
        let emitter = compiled.plan.emitter(0, 1, 1).unwrap();
        for index in 0..4 {
            let mut out = vec![0xee; compiled.plan.longest_l2_bytes() + 3];
            let len = emitter.emit(index, &mut out);
            assert_eq!(out[..len], emitter.to_vec(index), "{}", case.name);
            assert!(out[len..].iter().all(|&byte| byte == 0xee), "{}", case.name);
        }
    }
}
