use std::time::Instant;

use pagefrag::{PagePool, PoolConfig};
use proptest::prelude::*;

use super::*;
use crate::device::{Frames, Synthetic};

const FRAMES: u64 = 200;

/// Frames with their number in front, and ones behind.
fn wire(count: u64) -> Box<Synthetic> {
    let mut number = 0_u64;
    let make = move |frame: &mut [u8]| {
        frame.fill(1);
        frame[..8].copy_from_slice(&number.to_be_bytes());
        number += 1;
    };
    let frames = Frames::Made { l2_bytes: 60, make: Box::new(make) };
    Box::new(Synthetic::new(frames, 16).unwrap().with_count(count))
}

/// Everything that comes, in calls of this budget; the account is checked after each.
fn all(spec: FaultSpec, budget: usize) -> (Vec<Vec<u8>>, RxTotals) {
    let mut queue = FaultyLend::new(wire(FRAMES), spec).unwrap();
    let mut frames = Vec::new();
    while !queue.ended() {
        let before = frames.len();
        let lent = queue.lend(budget, &mut |frame| frames.push(frame.to_vec())).unwrap();
        assert!(lent <= budget && frames.len() == before + lent);
        check(&queue.totals(), queue.queue.totals().received, frames.len());
        queue.wait(Duration::from_millis(1)).unwrap();
    }
    (frames, queue.totals())
}

fn all_landed(spec: FaultSpec) -> (Vec<Vec<u8>>, RxTotals) {
    let mut pool = PagePool::new(PoolConfig::default());
    let mut queue = FaultyLand::new(wire(FRAMES), spec).unwrap();
    let mut frames = Vec::new();
    while queue.queue.totals().received < FRAMES || !queue.later.is_empty() {
        while queue.room() > 0 {
            queue.post(pool.alloc().unwrap()).unwrap();
        }
        if let Some(landed) = queue.landed().unwrap() {
            frames.push(landed.page[landed.offset..landed.offset + landed.l2_bytes].to_vec());
        }
        check(&queue.totals(), queue.queue.totals().received, frames.len());
    }
    (frames, queue.totals())
}

fn check(totals: &RxTotals, came: u64, handed: usize) {
    let Injected { dropped, duplicated, held, .. } = totals.injected;
    assert_eq!(totals.received, handed as u64);
    assert_eq!(handed as u64, came - dropped + duplicated - held);
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    frames.iter().map(|frame| u64::from_be_bytes(*frame.first_chunk().unwrap())).collect()
}

fn spec(set: impl FnOnce(&mut FaultSpec)) -> FaultSpec {
    let mut spec = FaultSpec { seed: 7, ..FaultSpec::default() };
    set(&mut spec);
    spec
}

#[test]
fn without_faults_everything_comes_as_it_is() {
    for (frames, totals) in [all(spec(|_| ()), 64), all_landed(spec(|_| ()))] {
        assert_eq!(numbers(&frames), (0..FRAMES).collect::<Vec<_>>());
        assert_eq!(totals.injected, Injected::default());
    }
}

#[test]
fn dropped_frames_do_not_come() {
    let half = spec(|spec| spec.drop_ppm = MILLION / 2);
    for (frames, totals) in [all(half, 64), all_landed(half)] {
        assert!((50..150).contains(&totals.injected.dropped), "{totals:?}");
        assert!(numbers(&frames).is_sorted_by(|a, b| a < b));
    }
    assert_eq!(all(half, 64).0, all_landed(half).0, "the same seed, the same faults");
    assert_ne!(all(half, 64).0, all(FaultSpec { seed: 8, ..half }, 64).0);
}

#[test]
fn a_corrupted_frame_has_one_other_byte() {
    let always = spec(|spec| spec.corrupt_ppm = MILLION);
    for (frames, totals) in [all(always, 64), all_landed(always)] {
        assert_eq!(totals.injected.corrupted, FRAMES);
        for (number, frame) in frames.iter().enumerate() {
            let mut sent = [1; 60];
            sent[..8].copy_from_slice(&(number as u64).to_be_bytes());
            assert_eq!(sent.iter().zip(frame).filter(|(a, b)| a != b).count(), 1);
        }
    }
}

#[test]
fn a_duplicated_frame_comes_twice_in_a_row() {
    for budget in [1, 2, 7, 64] {
        let (frames, totals) = all(spec(|spec| spec.duplicate_ppm = MILLION), budget);
        assert_eq!(totals.injected.duplicated, FRAMES);
        assert_eq!(numbers(&frames), (0..2 * FRAMES).map(|n| n / 2).collect::<Vec<_>>());
    }
    let error = FaultyLand::new(wire(1), spec(|spec| spec.duplicate_ppm = 1)).err().unwrap();
    assert!(error.to_string().contains("duplicate"));
}

#[test]
fn a_reordered_frame_comes_after_the_next_one() {
    let always = spec(|spec| spec.reorder_ppm = MILLION);
    for (frames, totals) in [all(always, 64), all(always, 1), all_landed(always)] {
        assert_eq!(totals.injected.reordered, FRAMES / 2);
        assert_eq!(numbers(&frames), (0..FRAMES).map(|n| n ^ 1).collect::<Vec<_>>());
    }
}

#[test]
fn a_delayed_frame_is_held_until_it_is_due() {
    let mut queue = FaultyLend::new(
        wire(1),
        spec(|spec| (spec.delay_ppm, spec.delay) = (MILLION, Duration::from_millis(20))),
    )
    .unwrap();
    let start = Instant::now();
    assert_eq!(queue.lend(64, &mut |_| ()).unwrap(), 0);
    assert_eq!(queue.totals().injected, Injected { delayed: 1, held: 1, ..Injected::default() });
    assert!(!queue.ended());
    while queue.lend(64, &mut |_| ()).unwrap() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "it never came");
    }
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(queue.ended() && queue.totals().injected.held == 0);
    let later = spec(|spec| (spec.delay_ppm, spec.delay) = (MILLION / 2, Duration::from_micros(50)));
    let (frames, totals) = all_landed(later);
    assert_eq!((frames.len() as u64, totals.injected.held), (FRAMES, 0));
}

#[test]
fn no_more_is_held_than_may_be() {
    const MANY: u64 = HELD_MAX as u64 + 1000;
    let never = spec(|spec| (spec.delay_ppm, spec.delay) = (MILLION, Duration::from_secs(3600)));
    let mut queue = FaultyLend::new(wire(MANY), never).unwrap();
    for _ in 0..MANY {
        queue.lend(64, &mut |_| ()).unwrap();
    }
    assert_eq!(
        (queue.totals().injected.held, queue.queue.totals().received),
        (HELD_MAX as u64, HELD_MAX as u64)
    );
    let mut pool = PagePool::new(PoolConfig::default());
    let mut queue = FaultyLand::new(wire(MANY), never).unwrap();
    for _ in 0..MANY {
        while queue.room() > 0 {
            queue.post(pool.alloc().unwrap()).unwrap();
        }
        assert!(queue.landed().unwrap().is_none());
    }
    assert_eq!(
        (queue.totals().injected.held, queue.queue.totals().received),
        (HELD_MAX as u64, HELD_MAX as u64)
    );
}

#[test]
fn a_probability_above_one_is_refused() {
    let error = FaultyLend::new(wire(1), spec(|spec| spec.delay_ppm = MILLION + 1)).err().unwrap();
    assert!(error.to_string().contains("delay"), "{error}");
}

proptest! {
    /// Whatever is mixed, every frame is accounted for (in `all`), and each comes as often as it should.
    #[test]
    fn the_account_closes(
        ppm in proptest::array::uniform5(prop_oneof![Just(0), 0..=MILLION]),
        seed: u64,
        budget in 1..80_usize,
    ) {
        let [drop_ppm, corrupt_ppm, duplicate_ppm, reorder_ppm, delay_ppm] = ppm;
        let delay = Duration::from_nanos(seed % 3_000);
        let spec =
            FaultSpec { drop_ppm, corrupt_ppm, duplicate_ppm, reorder_ppm, delay_ppm, delay, seed };
        let (frames, totals) = all(spec, budget);
        let Injected { dropped, duplicated, held, .. } = totals.injected;
        prop_assert_eq!((held, frames.len() as u64), (0, FRAMES - dropped + duplicated));
        let in_pages = FaultSpec { duplicate_ppm: 0, ..spec };
        let (frames, totals) = all_landed(in_pages);
        prop_assert_eq!(frames.len() as u64, FRAMES - totals.injected.dropped);
    }
}
