//! What the pairs say, on pairs that were made up.

use measure::marginal::Work;
use measure::verdict::Verdict;
use traffic::BackendKind;

use super::*;
use crate::cell::{PathName, Setting};

const PACKETS: u64 = 5_000;
const FIXED_NS: f64 = 200_000.0;

fn scenario(vary: &str) -> Scenario {
    let text = format!(
        r#"
        schema = "perpacket.scenario/1"
        job = "ab"
        paths = ["raw-drop"]
        frames = [64]
        [measurement]
        packets = {PACKETS}
        clock = "thread"
        time_s = 10.0
        seed = 1
        [compare]
        vary = "{vary}"
        margin = 0.005
        early_stop = true
        "#
    );
    Scenario::from_toml(&text).unwrap()
}

fn cell(kind: BackendKind, batch: u32) -> Cell {
    let setting = Setting { backend: Some(kind), batch, ..Setting::default() };
    Cell { path: PathName::RawDrop, frame_bytes: 64, setting }
}

/// A call of so many packets at so many ns each, off by up to a percent of that. The error depends on the number only.
fn work(packets: u64, ns: f64, number: u32) -> Work {
    let mixed = u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let error = (mixed >> 40) as f64 / f64::from(1 << 23) - 1.0;
    Work { packets, calls: 1, ns: FIXED_NS + packets as f64 * ns * (1.0 + error / 100.0) }
}

/// 200 pairs of A at 100 ns and B at `b_ns`, and the calibration of both.
fn filled(scenario: &Scenario, cells: [Cell; 2], b_ns: f64) -> Evidence {
    let mut evidence = Pairs::new(scenario, scenario.compare.as_ref().unwrap(), cells, 0, 1).evidence;
    evidence.blocks_needed = 1;
    for number in 0..200 {
        let works = [work(PACKETS, 100.0, number), work(PACKETS, b_ns, number + 1_000)];
        evidence.pairs.push(Pair { block: 0, works });
    }
    for round in 0..20 {
        for (arm, ns) in [100.0, b_ns].into_iter().enumerate() {
            let (long, short) = (work(PACKETS, ns, round), work(PACKETS / 10, ns, round + 2_000));
            evidence.calibrations[arm].push(MarginalSample { round, long, short });
        }
    }
    evidence
}

#[test]
fn the_cost_of_a_call_is_not_divided_in() {
    let scenario = scenario("rules");
    let cells = || [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 64)];
    let mut pairs = filled(&scenario, cells(), 110.0);
    let answer = pairs.answer(None, None);
    let found = answer.comparison.unwrap();
    assert_eq!(answer.verdict, Verdict::Slower);
    assert!((found.a_ns - 100.0).abs() < 1.0 && (found.b_ns - 110.0).abs() < 1.0, "{found:?}");
    assert!((found.ratio - 1.1).abs() < 0.005 && found.ratio_interval.contains(found.ratio), "{found:?}");

    pairs.calibrations = [Vec::new(), Vec::new()];
    let raw = pairs.answer(None, None).comparison.unwrap();
    assert!((raw.a_ns - 140.0).abs() < 1.0, "200 µs over 5,000 packets are 40 ns: {raw:?}");
}

#[test]
fn two_of_the_same_are_the_same() {
    let scenario = scenario("nothing");
    let cells = [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 64)];
    let answer = filled(&scenario, cells, 100.0).answer(None, None);
    assert_eq!(answer.verdict, Verdict::Same { margin: 0.005 }, "{:?}", answer.comparison);
}

#[test]
fn what_is_not_known_about_the_calls_widens_the_interval_unless_it_cancels() {
    let scenario = scenario("batch");
    let width = |batch, threads| {
        let mut cells = [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, batch)];
        cells[1].setting.threads = threads;
        let found = filled(&scenario, cells, 110.0).answer(None, None).comparison.unwrap();
        [found.difference_interval.half_width(), found.ratio_interval.half_width()]
    };
    let cancels = width(64, 1);
    for stays in [width(16, 1), width(64, 2)] {
        assert!(stays[0] > cancels[0] && stays[1] > cancels[1], "{stays:?} {cancels:?}");
    }
}

#[test]
fn few_pairs_give_no_answer() {
    let scenario = scenario("rules");
    let cells = [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 64)];
    let mut pairs = filled(&scenario, cells, 110.0);
    pairs.pairs.truncate(2);
    pairs.void_pairs = 3;
    let answer = pairs.answer(None, None);
    assert_eq!((answer.comparison, answer.void_pairs), (None, 3));
    assert_eq!(answer.verdict, Verdict::Inconclusive { pairs_needed: None });
}

#[test]
fn what_differs_by_code_is_made_anew() {
    let makeup = |vary: &str, kinds: [BackendKind; 2], reload_pairs| {
        let mut compare = scenario(vary).compare.unwrap();
        compare.reload_pairs = reload_pairs;
        Makeup::of(&compare, &kinds.map(|kind| cell(kind, 64)))
    };
    let inject = [BackendKind::Inject; 2];
    assert_eq!(makeup("nothing", inject, None), Makeup::Shared);
    assert_eq!(makeup("command", inject, None), Makeup::Shared);
    assert_eq!(makeup("spin", inject, None), Makeup::Refreshed);
    assert_eq!(makeup("spin", inject, Some(100)), Makeup::Reloaded);
    assert_eq!(makeup("command", inject, Some(100)), Makeup::Rebuilt);
    assert_eq!(makeup("rules", inject, None), Makeup::Rebuilt);
    assert_eq!(makeup("nothing", [BackendKind::Mmsg; 2], None), Makeup::Shared);
    assert_eq!(makeup("flows", [BackendKind::Mmsg; 2], None), Makeup::Rebuilt);
    assert_eq!(makeup("qdisc", [BackendKind::Mmsg; 2], None), Makeup::Rebuilt);
    assert_eq!(makeup("threads", inject, None), Makeup::Rebuilt);
    let in_user_space = || Cell { path: PathName::DatapathDrop, ..cell(BackendKind::Memory, 64) };
    for vary in ["nothing", "flows", "alloc"] {
        let compare = scenario(vary).compare.unwrap();
        assert_eq!(Makeup::of(&compare, &[in_user_space(), in_user_space()]), Makeup::Rebuilt, "{vary}");
    }
    assert_eq!(makeup("backend", [BackendKind::Inject, BackendKind::AfXdp], None), Makeup::Rebuilt);
}

#[test]
fn an_unknown_fixed_cost_that_does_not_cancel_gives_no_answer() {
    let scenario = scenario("batch");
    let cells = [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 16)];
    let mut evidence = filled(&scenario, cells, 110.0);
    evidence.calibrations[1].truncate(2);
    assert_eq!(evidence.answer(None, None).comparison, None);
}

#[test]
fn a_look_decides_only_what_holds_in_the_family() {
    let scenario = scenario("rules");
    let cells = || [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 64)];
    let mut evidence = filled(&scenario, cells(), 110.0);
    let mut answer = evidence.answer(None, None);
    assert!(evidence.is_decided(&answer));
    let found = answer.comparison.as_mut().unwrap();
    found.p_value = (1.0 - found.confidence) * 0.9;
    assert!(evidence.is_decided(&answer));
    evidence.family = 2;
    assert!(!evidence.is_decided(&answer));
}

#[test]
fn one_layout_is_no_verdict_where_layouts_are_made_anew() {
    let scenario = scenario("rules");
    let cells = || [cell(BackendKind::Inject, 64), cell(BackendKind::Inject, 64)];
    let of = Pairs::new(&scenario, scenario.compare.as_ref().unwrap(), cells(), 0, 1);
    let mut evidence = filled(&scenario, cells(), 110.0);
    evidence.blocks_needed = of.evidence.blocks_needed;
    let answer = evidence.answer(None, None);
    assert_eq!(answer.verdict, Verdict::Inconclusive { pairs_needed: None });
    assert_eq!((answer.too_few_blocks, answer.judged()), (Some((1, 6)), None));
    for (number, pair) in evidence.pairs.iter_mut().enumerate() {
        pair.block = number as u32 / 30;
    }
    assert_eq!(evidence.answer(None, None).verdict, Verdict::Slower);
}
