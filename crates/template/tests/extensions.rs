//! What the language has that trafgen's has not: weights, sizes, and counters with a pace.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{packets, parse, sum};

fn firsts(text: &str, count: u64) -> Vec<u8> {
    packets(text, count).iter().map(|bytes| bytes[0]).collect()
}

#[test]
fn weights_are_exact_and_spread() {
    assert_eq!(firsts("weight(5): { 1 } { 2 } weight(1): { 3 }", 8), [1, 1, 2, 1, 3, 1, 1, 1]);
    let text = "weight(500): { 1 } { 2 } { 3 } weight(500): { 4 }";
    let emitter = parse(text).unwrap().plan.emitter(0, 1, 1).unwrap();
    assert_eq!(emitter.round_packets(), 1002);
    for round in 0..3 {
        let mut found = BTreeMap::new();
        for index in 0..1002 {
            *found.entry(emitter.to_vec(round * 1002 + index)[0]).or_insert(0) += 1;
        }
        assert_eq!(found, BTreeMap::from([(1, 500), (2, 1), (3, 1), (4, 500)]));
    }
}

#[test]
fn each_packet_of_a_weight_counts_for_itself() {
    let values: Vec<(u8, u8)> = packets("weight(2): { c8(1), dinc(0, 255) } { c8(2), dinc(0, 255) }", 9)
        .iter()
        .map(|bytes| (bytes[0], bytes[1]))
        .collect();
    assert_eq!(values, [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1), (1, 3), (1, 4), (2, 2), (1, 5)]);
}

/// Workers have their own order, and together they send every value once.
#[test]
fn workers_split_weighted_packets() {
    let compiled = parse("weight(3): { c8(1), dinc(0, 255) } cpu(1): weight(2): { 2, 0 }").unwrap();
    let values = |worker| -> Vec<u8> {
        let emitter = compiled.plan.emitter(worker, 2, 1).unwrap();
        let all = (0..20).map(|index| emitter.to_vec(index));
        all.filter(|bytes| bytes[0] == 1).map(|bytes| bytes[1]).collect()
    };
    assert_eq!(values(0)[..4], [0, 2, 4, 6]);
    assert_eq!(values(1)[..4], [1, 3, 5, 7]);
    assert_eq!(values(1).len(), 12);
}

#[test]
fn a_size_has_the_fcs_and_counts_as_payload() {
    let all = packets("size(64): cpu(0): weight(2): { ipv4(ttl=1), udp(sp=1, dp=dinc(2, 3)), \"ab\" }", 2);
    for bytes in all {
        assert_eq!((bytes.len(), &bytes[42..44]), (60, &b"ab"[..]));
        assert_eq!((&bytes[16..18], &bytes[38..40]), (&[0, 46][..], &[0, 26][..]));
        assert_eq!(sum(&[&bytes[26..34], &[0, 17, 0, 26], &bytes[34..]]), 0xffff);
        assert!(bytes[44..].iter().all(|&byte| byte == 0));
    }
}

/// Every size comes with every value, and the value changes from packet to packet.
#[test]
fn a_range_of_sizes_is_one_packet_of_each() {
    let found: Vec<(usize, u8)> = packets("size(10-12): { rnd(2), dinc(5, 7) }", 9)
        .iter()
        .map(|bytes| (bytes.len(), bytes[2]))
        .collect();
    assert_eq!(found, [(6, 5), (7, 6), (8, 7), (6, 6), (7, 7), (8, 5), (6, 7), (7, 5), (8, 6)]);
    let same = packets("size(10-12): { rnd(2), dinc(5, 7) }", 3);
    assert!(same.iter().all(|bytes| bytes[..2] == same[0][..2]), "rnd() is drawn once");
    assert_eq!(packets("size(64-1518): { udp() }", 1456).last().unwrap().len(), 60);
}

#[test]
fn a_value_may_be_held() {
    let ports =
        |text: &str, count| -> Vec<u8> { packets(text, count).iter().map(|bytes| bytes[37]).collect() };
    assert_eq!(ports("{ udp(dp=dinc(9, 11, 1, 2)) }", 8), [9, 9, 10, 10, 11, 11, 9, 9]);
    assert_eq!(ports("{ udp(dp=ddec(9, 11, 1, 2)) }", 8), [11, 11, 10, 10, 9, 9, 11, 11]);
    assert_eq!(ports("{ udp(dp=dinc(9, 11, 1, 2, 5)) }", 8), [9, 9, 10, 10, 11, 9, 9, 10]);
    assert_eq!(firsts("{ dinc(1, 3, 1, 2) }", 7), [1, 1, 2, 2, 3, 3, 1]);
    assert_eq!(firsts("{ ddec(1, 3, 1, 2, 3) }", 7), [3, 3, 2, 3, 3, 2, 3]);
    let wide = packets("{ ipv6(sa=dinc(fd00::1, fd00:0:0:1::1, 1, 2)) }", 4);
    assert_eq!((wide[1][37], wide[2][37], wide[3][37]), (1, 2, 2));
    let period = |text: &str| parse(text).unwrap().plan.period(0);
    assert_eq!(period("{ udp(sp=dinc(1, 6), dp=dinc(1, 4, 1, 6)) }"), Some(24));
    assert_eq!(period("{ udp(sp=dinc(1, 6), dp=dinc(1, 4, 1, 6, 7)) }"), Some(42));
}

#[test]
fn what_is_said_of_packets() {
    let plan = parse("weight(3): size(64-65): { 1 } { 2 }").unwrap().plan;
    let told: Vec<_> = (0..4).map(|packet| (plan.weight(packet), plan.l2_bytes(packet))).collect();
    assert_eq!(told, [(Some(3), Some(60)), (Some(3), Some(61)), (Some(1), Some(1)), (None, None)]);
    assert!(plan.explain(0).is_some());
    let range = parse("{ ipv4(sa=dinc(10.0.0.1, 10.0.0.9)), udp() }").unwrap().plan.explain(0).unwrap();
    assert!(range.contains("counter 10.0.0.1, 10.0.0.2, 10.0.0.3, ..., again after 9"), "{range}");
    let held = parse("{ udp(dp=dinc(9, 16, 1, 4)) }").unwrap().plan.explain(0).unwrap();
    assert!(held.contains("counter 9, 10, 11, ..., again after 32, each for 4 packets"), "{held}");
}
