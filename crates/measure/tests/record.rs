//! A record is read back exactly, survives being cut off, and refuses what it does not understand.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{self, Write};

use measure::calibrate::FixedCost;
use measure::ledger::{Count, Drop, Ledger};
use measure::marginal::{AbsoluteCost, OverFloor};
use measure::order::Seed;
use measure::paired::{CompareOptions, Comparison, PairSample, compare};
use measure::quantile::Interval;
use measure::record::*;
use measure::search::{Bound, Ending, Goal, GoalResult, SenderBound};
use measure::sequential::Looks;
use measure::slice::{Slice, SliceColumns, VoidReason};
use measure::verdict::{Criteria, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

fn head() -> Head {
    let environment = Environment {
        kernel_release: Some("6.18.44".to_owned()),
        cores: Some(2),
        load_average: Some([0.1, 2.35, 1e-3]),
        mitigations: Some(BTreeMap::from([("spectre_v2".to_owned(), "Vulnerable".to_owned())])),
        devices: Some(vec![Device {
            name: "veth0".to_owned(),
            receive_queues: Some(1),
            ..Device::default()
        }]),
        ..Environment::default()
    };
    let variant =
        |name: &str| Variant { name: name.to_owned(), path: "raw-drop".to_owned(), ..Variant::default() };
    Head {
        id: "20261130T120000-1".to_owned(),
        started: "2026-11-30T12:00:00+01:00".to_owned(),
        program: Program { name: "perpacket".to_owned(), version: "0.1.0".to_owned(), ..Program::default() },
        command: vec!["perpacket".to_owned(), "ab".to_owned(), "raw-drop".to_owned()],
        scenario: json!({"path": "raw-drop", "vary": {"rules": [0, 50]}}),
        environment,
        capabilities: vec![CapabilityProbe {
            name: "inject".to_owned(),
            available: true,
            ..Default::default()
        }],
        variants: vec![variant("A"), variant("B")],
        seed: Seed(u64::MAX),
        extra: Extra::new(),
    }
}

fn columns(from: u32, count: u32) -> SliceColumns {
    let mut columns = SliceColumns::new();
    for index in from..from + count {
        let slice = Slice {
            block: index / 4,
            pair: index / 2,
            variant: (index % 2) as u16,
            packets: 5_000,
            calls: 1,
            wall_ns: u64::MAX - u64::from(index),
            cpu_ns: 1_000_000,
            steal_ticks: (index % 3 == 0).then_some(0),
            involuntary_switches: Some(index),
            void: (index % 5 == 4).then_some(VoidReason::Drops),
        };
        columns.push_with(&slice, &[("cycles", (index > 2).then_some(0.1 + 0.2)), ("odd", Some(f64::NAN))]);
    }
    columns
}

fn ledger() -> Ledger {
    let count = |packets, seen_by: &str| Count { packets, seen_by: seen_by.to_owned() };
    let mut ledger = Ledger::new("raw-drop", Some(64), count(10_000, "inject program"));
    ledger.drops.push(Drop {
        reason: "rule".to_owned(),
        counter: "rule counter".to_owned(),
        packets: 10_000,
    });
    ledger
}

fn comparison() -> Comparison {
    let pairs: Vec<PairSample> = (0..40)
        .map(|i| PairSample { block: i / 10, a_ns: 200.0, b_ns: 201.0 + f64::from(i * 7 % 40) / 10.0 })
        .collect();
    compare(&pairs, &CompareOptions::default()).unwrap()
}

fn summary() -> Summary {
    let interval = Some(Interval { low: 0.1 + 0.2, high: 211.0 });
    let cost = AbsoluteCost {
        ns: 210.7,
        interval,
        confidence: 0.95,
        rounds: 40,
        samples: 400,
        round_low_ns: 209.0,
        round_high_ns: 214.5,
        fixed_ns_per_call: 86_000.0,
    };
    let row = CostRow {
        variant: 0,
        clock: Clock::ThreadCpu,
        cost,
        over_floor: Some(OverFloor { ns: 170.0, interval: None, rounds: 40 }),
        void_slices: 3,
        counters_per_packet: BTreeMap::from([("cycles".to_owned(), None)]),
        extra: Extra::new(),
    };
    let comparison = ComparisonRow {
        a: 0,
        b: 1,
        clock: Clock::Wall,
        comparison: comparison(),
        adjusted_p_value: None,
        criteria: Criteria { margin: Some(0.005), min_effect: 0.0 },
        verdict: Verdict::Inconclusive { pairs_needed: Some(10_000) },
        looks: Some(Looks::five(5_000).unwrap()),
        look: Some(5),
        warmup_pairs: 8,
        trend_left: Some(false),
        void_pairs: 1,
        extra: Extra::new(),
    };
    Summary {
        rows: vec![row],
        comparisons: vec![comparison],
        memory: vec![
            MemoryRow { variant: 0, in_use_bytes: 4096, pinned_bytes: Some(32_768), ..MemoryRow::default() },
            MemoryRow { variant: 1, in_use_bytes: 4096, resident_bytes: Some(8192), ..MemoryRow::default() },
        ],
        generated: Some(generated()),
        datapath: Some(datapath()),
        flows: Some(Flows::default()),
        search: vec![SearchRow {
            trials: 2,
            goals: vec![goal()],
            sender: Some(SenderBound { not_offered_pps: 2e6, offered_pps: None, achieved_pps: 1.5e6 }),
            ..SearchRow::default()
        }],
        streams: Some(Streams::default()),
        stopped: Some("time up".to_owned()),
        extra: Extra::new(),
    }
}

fn goal() -> SearchGoal {
    let lower =
        Bound { load_pps: 1e6, trials: 6, high_loss: 1, loss_ratio_least: 0.0, loss_ratio_most: 0.02 };
    let result = GoalResult {
        goal: Goal::pdr(),
        lower: Some(lower),
        upper: None,
        conditional_throughput_pps: Some(999_000.5),
        ending: Ending::BoundedBySender,
    };
    let upper_drops = vec![Drop { reason: "full".into(), counter: "socket".into(), packets: 3 }];
    SearchGoal { result, upper_drops, extra: Extra::new() }
}

fn trial() -> TrialPart {
    TrialPart {
        load_pps: 999_999.5,
        packets: 10,
        sent: 9,
        received: 6,
        wall_ns: 10_000,
        invalid: Some("the sender was late".into()),
        unaccounted: -1,
        ..TrialPart::default()
    }
}

fn datapath() -> Datapath {
    let thread =
        DatapathThread { role: "receive".into(), cpu: Some(1), polls: Some(3), ..DatapathThread::default() };
    let port = DatapathPort { direction: "rx".into(), device: "synthetic".into(), ..DatapathPort::default() };
    Datapath {
        wall_ns: 9_000,
        threads: vec![thread],
        ports: vec![port],
        queues: vec![DatapathQueue { kind: "UDP port".into(), limit: Some(7), ..DatapathQueue::default() }],
        events: vec![DatapathEvent { stage: "forward".into(), count: 2, ..DatapathEvent::default() }],
        faults: Some(DatapathFaults { dropped: 4, ..DatapathFaults::default() }),
        memory: DatapathMemory { table_bytes: Some(5), ..DatapathMemory::default() },
        extra: Extra::new(),
    }
}

fn generated() -> Generated {
    let worker = GeneratedBy { cpu: 1, packets: 10, l2_bytes: 600, wall_ns: 9_000, ..GeneratedBy::default() };
    Generated {
        packets: 10,
        l2_bytes: 600,
        wall_ns: 9_000,
        asked_pps: Some(1e6),
        grain: Some(1),
        gaps: Some(vec![(998, 4), (1_003, 5)]),
        workers: vec![worker],
        extra: Extra::new(),
    }
}

fn whole() -> Record {
    let mut record = Record::new(head());
    let fixed_cost = FixedCost { ns_per_call: 86_000.5, interval: None, confidence: 0.95, rounds: 5 };
    record.calibrations =
        vec![Calibration { variant: 1, clock: Clock::Program, fixed_cost, extra: Extra::new() }];
    record.slices = columns(0, 20);
    record.trials = vec![trial(), TrialPart { run: 1, invalid: None, ..trial() }];
    record.ledgers = vec![ledger().into()];
    record.warnings =
        vec![Warning { what: "steal".to_owned(), fact: "22 ticks".to_owned(), ..Default::default() }];
    record.summary = Some(summary());
    record.end = Some(End {
        outcome: Outcome::Inconclusive,
        finished: "2026-11-30T12:00:10+01:00".to_owned(),
        error: None,
        steal_ticks: Some(0),
        extra: Extra::new(),
    });
    record.interrupted = false;
    record
}

fn journal(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.write_journal(&mut bytes).unwrap();
    bytes
}

fn read_text(text: &str) -> Result<Record, RecordError> {
    read(text.as_bytes())
}

fn said(error: &RecordError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[test]
fn both_forms_come_back_exactly() {
    let record = whole();
    assert_eq!(read(&journal(&record)[..]).unwrap(), record);
    let document = record.document().unwrap();
    assert_eq!(read_text(&document).unwrap(), record);
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&document).unwrap()).unwrap();
    assert_eq!(read_text(&pretty).unwrap(), record);
    assert!(document.starts_with("{\"schema\":\"perpacket.record/1\",\"head\":{\"id\":"), "{document}");
}

#[test]
fn slices_appended_in_parts_are_one_table() {
    let mut bytes = Vec::new();
    let mut writer = RecordWriter::new(&mut bytes, &head()).unwrap();
    writer.slices(&columns(0, 7)).unwrap();
    writer.ledger(&ledger()).unwrap();
    writer.slices(&columns(7, 5)).unwrap();
    let record = read(&bytes[..]).unwrap();
    assert_eq!(record.slices, columns(0, 12));
    assert!(record.interrupted, "there is no end");
    assert_eq!(record.ledgers().collect::<Vec<_>>(), [&ledger()]);
}

#[test]
fn a_journal_cut_off_anywhere_keeps_what_was_whole() {
    let bytes = journal(&whole());
    let head_end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    for end in 0..bytes.len() {
        match read(&bytes[..end]) {
            Ok(record) => {
                assert!(end >= head_end, "cut at {end} of a head of {head_end}");
                assert_eq!(record.interrupted, end < bytes.len() - 1, "cut at {end} of {}", bytes.len());
                assert_eq!(record.head, head());
            }
            Err(RecordError::Empty) => assert!(end < head_end, "cut at {end}"),
            Err(error) => panic!("cut at {end}: {}", said(&error)),
        }
    }
}

#[test]
fn damage_in_the_middle_is_an_error_with_its_line() {
    let text = String::from_utf8(journal(&whole())).unwrap();
    let broken: Vec<&str> =
        text.lines().enumerate().map(|(index, line)| if index == 2 { "{\"part\":" } else { line }).collect();
    let error = said(&read_text(&broken.join("\n")).unwrap_err());
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn newer_and_other_files_are_refused() {
    let text = String::from_utf8(journal(&whole())).unwrap();
    let newer = text.replacen("perpacket.record/1", "perpacket.record/2", 1);
    assert!(matches!(read_text(&newer), Err(RecordError::NewerVersion { .. })));
    let error = said(&read_text(&newer).unwrap_err());
    assert!(error.contains("perpacket.record/2") && error.contains("newer perpacket"), "{error}");
    let document = whole().document().unwrap().replacen("record/1", "record/12", 1);
    assert!(matches!(read_text(&document), Err(RecordError::NewerVersion { .. })));

    for other in
        ["{}", "[1]", "17", "{\"schema\":\"perpacket.record/0\"}", "{\"schema\":\"x\",\"part\":\"head\"}"]
    {
        assert!(matches!(read_text(other), Err(RecordError::NotARecord { .. })), "{other}");
    }
    assert!(matches!(read_text("hello\nworld"), Err(RecordError::Syntax { line: 1, .. })));
    assert!(matches!(read_text(""), Err(RecordError::Empty)));
    assert!(matches!(read_text("\n\n"), Err(RecordError::Empty)));
}

#[test]
fn a_missing_field_is_named_with_its_part() {
    let text = String::from_utf8(journal(&whole())).unwrap();
    let without_seed = text.replacen(&format!(",\"seed\":{}", u64::MAX), "", 1);
    assert_eq!(
        said(&read_text(&without_seed).unwrap_err()),
        "read record, part head, line 1: missing field `seed`"
    );
    let without_pair = text.replacen("\"round_low_ns\":209.0,", "", 1);
    let error = said(&read_text(&without_pair).unwrap_err());
    assert!(error.contains("part summary, line 8: missing field `round_low_ns`"), "{error}");
    let unequal = text.replacen("\"calls\":[1,", "\"calls\":[", 1);
    let error = said(&read_text(&unequal).unwrap_err());
    assert!(error.contains("part slices, line 3: column calls has 19 entries"), "{error}");
    let document: Value = serde_json::from_str(&whole().document().unwrap()).unwrap();
    for part in ["head", "calibrations", "slices", "ledgers", "warnings", "summary", "end"] {
        let mut missing = document.clone();
        missing.as_object_mut().unwrap().remove(part);
        let error = said(&read_text(&missing.to_string()).unwrap_err());
        assert_eq!(error, format!("read record, part {part}, document: it is missing"));
    }
}

#[test]
fn optional_fields_may_be_null_or_absent() {
    let text = String::from_utf8(journal(&whole())).unwrap();
    assert!(text.contains("\"kernel_version\":null,"));
    let absent = text.replacen("\"kernel_version\":null,", "", 1);
    assert_eq!(read_text(&absent).unwrap(), whole());
}

#[test]
fn what_a_newer_program_added_is_kept_and_written_back() {
    let text = String::from_utf8(journal(&whole())).unwrap();
    let added = text
        .replacen("\"part\":\"head\"", "\"part\":\"head\",\"mood\":{\"deep\":[1,null]}", 1)
        .replacen("\"kernel_version\"", "\"phase_of_moon\":0.3,\"kernel_version\"", 1)
        .replacen("\"part\":\"ledger\"", "\"part\":\"ledger\",\"queue\":7", 1)
        .replacen("\"void_slices\"", "\"joules\":1e-9,\"void_slices\"", 1)
        .replacen("\"warmup_pairs\"", "\"reloads\":4,\"warmup_pairs\"", 1)
        .replacen("\"steal_ticks\":[", "\"temperature\":[41],\"steal_ticks\":[", 1)
        .replacen(
            "{\"part\":\"end\"",
            "{\"part\":\"profile\",\"stacks\":[1,2]}\n{\"part\":\"end\",\"host\":\"x\"",
            1,
        )
        .replace("\"outcome\":\"inconclusive\"", "\"outcome\":\"undecided\"");
    let record = read_text(&added).unwrap();
    assert_eq!(record.head.extra["mood"], json!({"deep": [1, null]}));
    assert_eq!(record.head.environment.extra["phase_of_moon"], json!(0.3));
    assert_eq!(record.ledgers[0].extra["queue"], json!(7));
    assert_eq!(record.summary.as_ref().unwrap().rows[0].extra["joules"], json!(1e-9));
    assert_eq!(record.summary.as_ref().unwrap().comparisons[0].extra["reloads"], json!(4));
    assert_eq!(record.unknown_parts, [json!({"part": "profile", "stacks": [1, 2]})]);
    let end = record.end.as_ref().unwrap();
    assert_eq!((&end.outcome, &end.extra["host"]), (&Outcome::Other("undecided".to_owned()), &json!("x")));

    assert_eq!(read(&journal(&record)[..]).unwrap(), record);
    assert_eq!(read_text(&record.document().unwrap()).unwrap(), record);
}

#[test]
fn infinite_numbers_are_refused_when_written() {
    let mut broken = summary();
    broken.rows[0].cost.ns = f64::INFINITY;
    let mut writer = RecordWriter::new(Vec::new(), &head()).unwrap();
    let error = said(&writer.summary(&broken).unwrap_err());
    assert!(error.contains("part summary"), "{error}");
    writer.summary(&summary()).unwrap();
}

/// A file system that fills up.
struct FullAfter(usize);

impl Write for FullAfter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Err(io::Error::from_raw_os_error(28)) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_written_behind_a_broken_line() {
    let mut writer = RecordWriter::new(FullAfter(8_000), &head()).unwrap();
    let failed = (0..1_000).find_map(|_| writer.slices(&columns(0, 10)).err()).unwrap();
    assert!(said(&failed).starts_with("write part slices of the record: No space left"), "{}", said(&failed));
    assert!(matches!(writer.ledger(&ledger()), Err(RecordError::Damaged { part: "ledger" })));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes[..]);
    }

    #[test]
    fn damaged_records_never_panic(place in any::<prop::sample::Index>(), byte in any::<u8>(), length in 0usize..4) {
        for mut bytes in [journal(&whole()), whole().document().unwrap().into_bytes()] {
            let start = place.index(bytes.len());
            let end = (start + length).min(bytes.len());
            bytes.splice(start..end, [byte]);
            let _ = read(&bytes[..]);
        }
    }

    #[test]
    fn numbers_and_texts_come_back(ns in -1e300f64..1e300, name in ".*", seed in any::<u64>(), share in prop::option::of(any::<f64>())) {
        let mut record = whole();
        record.head.variants[0].name = name;
        record.head.seed = Seed(seed);
        let row = &mut record.summary.as_mut().unwrap().rows[0];
        row.cost.ns = ns;
        row.counters_per_packet.insert("x".to_owned(), share.filter(|share| share.is_finite()));
        prop_assert_eq!(&read(&journal(&record)[..]).unwrap(), &record);
        prop_assert_eq!(&read_text(&record.document().unwrap()).unwrap(), &record);
    }
}
