//! Fragments that end on other threads than they began on.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
};

use pagefrag::{Align, Frag, Guard, Mutex, PollCache, SharedCache, SpinLock};
use support::Watched;

const FRAGS: u32 = if cfg!(miri) { 150 } else { 100_000 };
const QUEUED: usize = 64;

/// Numbered, and filled with what the number says.
type Sent = (u32, Frag);

#[test]
fn one_thread_allocates_and_the_other_frees() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut cache = PollCache::with_source(Arc::clone(&source));
    let (send, receive) = mpsc::sync_channel(QUEUED);
    thread::scope(|scope| {
        scope.spawn(|| receive.into_iter().for_each(|(number, frag)| check(number, &frag)));
        for number in 0..FRAGS {
            let frag = filled(number, cache.alloc(len(number), Align::CACHE_LINE).unwrap());
            // Some end here, so that both ways of ending race.
            match number % 5 {
                0 => cache.give_back(frag),
                1 => drop(frag),
                _ => send.send((number, frag)).unwrap(),
            }
        }
        drop(send);
    });
    let stats = cache.stats();
    assert_eq!(stats.pinned_bytes, stats.in_hand_bytes, "only the block in hand is left");
    assert_eq!(stats.failures, 0);
    drop(cache);
    assert_eq!((source.alive_bytes(), memory.blocks()), (0, 0));
}

#[test]
fn a_cache_moves_to_another_thread_and_its_fragments_stay() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let mut here = filled(1, cache.alloc(300, Align::BYTE).unwrap());
    let there = thread::spawn(move || {
        let frag = filled(2, cache.alloc(300, Align::BYTE).unwrap());
        drop(cache);
        frag
    });
    here[0] = 9;
    check(2, &there.join().unwrap());
    assert_eq!((here[0], memory.blocks()), (9, 1));
    drop(here);
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn four_threads_share_a_cache_guarded_by_a_spin_lock() {
    four_threads_pass_fragments_on::<SpinLock>();
}

#[test]
fn four_threads_share_a_cache_guarded_by_a_mutex() {
    four_threads_pass_fragments_on::<Mutex>();
}

/// In a circle: each allocates, sends to the next one, and ends what the one before has sent.
fn four_threads_pass_fragments_on<G: Guard>() {
    let memory = Watched::new();
    let source = memory.source().share();
    let cache = SharedCache::<G>::with_source(Arc::clone(&source));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::sync_channel(QUEUED)).unzip();
    thread::scope(|scope| {
        for (index, receive) in receivers.into_iter().enumerate() {
            let (cache, send) = (&cache, senders[(index + 1) % 4].clone());
            scope.spawn(move || pass_on(cache, index as u32, &send, &receive));
        }
        drop(senders);
    });
    let stats = cache.stats();
    assert_eq!((stats.failures, stats.pinned_bytes), (0, stats.in_hand_bytes));
    drop(cache);
    assert_eq!((source.alive_bytes(), memory.blocks()), (0, 0));
}

fn pass_on<G: Guard>(cache: &SharedCache<G>, thread: u32, send: &SyncSender<Sent>, receive: &Receiver<Sent>) {
    for round in 0..FRAGS / 4 {
        let number = round * 4 + thread;
        let frag = if round % 3 == 0 {
            let frag = cache.alloc_zeroed(len(number), Align::CACHE_LINE).unwrap();
            assert_eq!(*frag, vec![0; frag.len()]);
            frag
        } else {
            cache.alloc(len(number), Align::BYTE).unwrap()
        };
        send.send((number, filled(number, frag))).unwrap();
        let (number, frag) = receive.recv().unwrap();
        check(number, &frag);
    }
}

fn len(number: u32) -> usize {
    [64, 272, 1, 1514, 2048, 0][number as usize % 6]
}

fn filled(number: u32, mut frag: Frag) -> Frag {
    frag.fill(number as u8);
    frag
}

fn check(number: u32, frag: &Frag) {
    assert!(**frag == vec![number as u8; frag.len()], "fragment {number} was written by another");
}
