//! Workers share a program: together they send what one would.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;

use common::parse;
use template::WorkerError;

#[test]
fn workers_split_the_flows_among_them() {
    let compiled = parse("{ udp(sp=dinc(1, 60000), dp=9) }").unwrap();
    let alone = compiled.plan.emitter(0, 1, 1).unwrap();
    let wanted: Vec<Vec<u8>> = (0..3000).map(|index| alone.to_vec(index)).collect();
    let workers = 3;
    let mut found = vec![Vec::new(); wanted.len()];
    for worker in 0..workers {
        let emitter = compiled.plan.emitter(worker, workers, 1).unwrap();
        for index in 0..1000 {
            found[(index * workers + worker) as usize] = emitter.to_vec(index.into());
        }
    }
    assert_eq!(found, wanted);
}

#[test]
fn a_worker_that_is_faster_repeats_no_flow_of_another() {
    let compiled = parse("cpu(0-1): { c8(1), dinc(0, 255) } cpu(1): { 2 }").unwrap();
    let values = |worker| -> HashSet<u8> {
        let emitter = compiled.plan.emitter(worker, 2, 1).unwrap();
        (0..200)
            .map(|index| emitter.to_vec(index))
            .filter(|bytes| bytes[0] == 1)
            .map(|bytes| bytes[1])
            .collect()
    };
    let (first, second) = (values(0), values(1));
    assert!(first.is_disjoint(&second) && !second.is_empty());
}

/// Threads may each have an emitter, or share one.
#[test]
fn emitters_may_be_sent_to_threads() {
    fn is_shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let compiled = parse("{ 1 }").unwrap();
    is_shared(&compiled.plan);
    is_shared(&compiled.plan.emitter(0, 1, 1).unwrap());
}

#[test]
fn cpu_picks_the_workers() {
    let compiled = parse("cpu(0): { 0xaa } cpu(1:2): { 0xbb } cpu(9): { 0xcc }").unwrap();
    let first = |worker| compiled.plan.emitter(worker, 4, 1).map(|emitter| emitter.to_vec(0));
    assert_eq!(first(0), Ok(vec![0xaa]));
    assert_eq!([first(1), first(2)], [Ok(vec![0xbb]), Ok(vec![0xbb])]);
    assert_eq!(first(3), Err(WorkerError::NothingToSend { worker: 3 }));
    assert_eq!(first(4), Err(WorkerError::NoSuchWorker { worker: 4, workers: 4 }));
    assert_eq!(
        compiled.plan.emitter(0, 0, 1).err(),
        Some(WorkerError::NoSuchWorker { worker: 0, workers: 0 })
    );
}

#[test]
fn a_plan_tells_its_workers_and_how_many_packets_differ() {
    let plan = |text: &str| parse(text).unwrap().plan;
    assert_eq!(plan("cpu(3-1): { 1 } { 2 }").highest_worker(), Some(3));
    assert_eq!(plan("{ 1 }").highest_worker(), None);
    assert_eq!(plan("{ udp(sp=dinc(1, 6), dp=dinc(1, 4)) }").period(0), Some(12));
    assert_eq!(plan("{ udp(sp=dinc(5, 10, 4)) }").period(0), Some(2));
    assert_eq!(plan("{ 1 }").period(0), Some(1));
    assert_eq!(plan("{ drnd() }").period(0), None);
    assert_eq!(plan("{ 1 }").period(1), None);
    assert_eq!(plan("{ ipv6(sa=dinc()) }").period(0), None);
}

#[test]
fn random_bytes_depend_on_seed_worker_and_index_alone() {
    let compiled = parse("{ drnd(16) }").unwrap();
    let packet = |worker, seed, index| compiled.plan.emitter(worker, 2, seed).unwrap().to_vec(index);
    assert_eq!(packet(0, 1, 5), packet(0, 1, 5));
    let others = [packet(0, 1, 5), packet(1, 1, 5), packet(0, 2, 5), packet(0, 1, 6)];
    assert_eq!(others.iter().collect::<HashSet<_>>().len(), 4);
}

#[test]
fn random_fields_reach_all_their_values() {
    let compiled =
        parse("{ eth(type=1), vlan(pcp=drnd(), id=drnd(7, 9)), drnd() } { ipv4(sa=drnd()) }").unwrap();
    let emitter = compiled.plan.emitter(0, 1, 1).unwrap();
    let all: Vec<Vec<u8>> = (0..8000).map(|index| emitter.to_vec(index)).collect();
    let tags = all.iter().step_by(2);
    assert_eq!(tags.clone().map(|bytes| bytes[14] >> 5).collect::<HashSet<_>>().len(), 8);
    assert_eq!(tags.clone().map(|bytes| bytes[15]).collect::<HashSet<_>>(), HashSet::from([7, 8, 9]));
    assert_eq!(tags.map(|bytes| bytes[18]).collect::<HashSet<_>>().len(), 256);
    let firsts: HashSet<u8> = all.iter().skip(1).step_by(2).map(|bytes| bytes[26]).collect();
    assert_eq!(firsts.len(), 256); // the top bit too
}

#[test]
fn rnd_is_drawn_once_and_depends_on_the_seed() {
    let draw = |seed| {
        let options = template::ParseOptions { seed, ..Default::default() };
        let compiled = template::Program::parse("{ rnd(8) }", &options).unwrap();
        let emitter = compiled.plan.emitter(0, 1, 9).unwrap();
        assert_eq!(emitter.to_vec(0), emitter.to_vec(1));
        emitter.to_vec(0)
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
