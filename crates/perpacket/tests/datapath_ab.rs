//! Paths through a device in user space, measured and compared: without any privilege, and every packet accounted for.
//!
//! Nothing here says how long something took, or which variant is cheaper.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{Scratch, measured, perpacket, refused, skipped};

const PATHS: [&str; 4] = ["datapath:drop", "datapath:dummy", "datapath:forward", "datapath:udp"];

#[test]
fn every_path_is_measured_and_accounted_for() {
    let sizes = ["--frame", "64,272,9018", "--flows", "3", "--time", "1s", "--slice", "1000"];
    let record = measured(&[&["path"], &PATHS[..], &sizes].concat());
    assert_eq!((record.ledgers.len(), record.head.variants.len()), (12, 12));
    for (index, variant) in record.head.variants.iter().enumerate() {
        assert_eq!(variant.path, PATHS[index / 3]);
        assert_eq!(variant.frame_bytes, Some([64, 272, 9_018][index % 3]));
        assert_eq!(variant.backend.as_deref(), Some("memory"));
        assert_eq!(variant.ingress.as_deref(), Some("synthetic device"));
        assert_eq!(variant.settings["rx"], "copy-break:256");
        assert!(!variant.settings.contains_key("rules"), "{:?}", variant.settings);
        let end = ["early-drop", "dummy device", "dummy device", "receiver"][index / 3];
        assert_eq!(record.ledgers[index].ledger.received[0].seen_by, end);
    }
    assert_eq!(record.summary.unwrap().rows.iter().map(|row| row.void_slices).sum::<u64>(), 0);
}

#[test]
fn every_allocator_and_every_way_to_receive_loses_nothing() {
    let allocators =
        ["poll", "poll-drop", "any-context", "any-context-mutex", "page-pool", "page-pool-frag", "system"];
    let run = |path, alloc, rx| {
        let setting =
            ["--alloc", alloc, "--rx", rx, "--frame", "64,1518", "--time", "50ms", "--slice", "500"];
        let record = measured(&[&["path", path], &setting[..]].concat());
        assert_eq!(record.summary.unwrap().rows.len(), 2, "{path} {alloc} {rx}");
    };
    for alloc in allocators {
        for rx in ["copy", "copy-break", "copy-break:100"] {
            run("datapath:drop", alloc, rx);
        }
        run("datapath:forward", alloc, "copy-break");
    }
    for rx in ["page-pool", "fragment"] {
        for path in PATHS {
            run(path, "poll", rx);
        }
    }
}

#[test]
fn a_comparison_of_allocators_has_a_row_for_each_size() {
    let args = ["ab", "datapath:drop", "--vary", "alloc=any-context,poll", "--frame", "64,272"];
    let record = measured(&[&args[..], &["--time", "500ms", "--slice", "1000", "--fixed"]].concat());
    let names: Vec<&str> = record.head.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(
        names,
        ["datapath:drop/64 A", "datapath:drop/64 B", "datapath:drop/272 A", "datapath:drop/272 B"]
    );
    let allocators: Vec<&str> =
        record.head.variants.iter().map(|variant| variant.settings["alloc"].as_str()).collect();
    assert_eq!(allocators, ["any-context", "poll", "any-context", "poll"]);
    // Both devices were made anew for each block.
    let blocks: BTreeSet<u32> = record.slices.iter().map(|slice| slice.block).collect();
    assert!(blocks.len() > 6, "{blocks:?}");
    assert_eq!(record.ledgers.len(), 4);
    let measured: BTreeSet<u16> = record.slices.iter().map(|slice| slice.variant).collect();
    assert_eq!(measured, (0..4).collect());
}

#[test]
fn over_frame_sizes_the_crossover_is_told_or_that_there_is_none() {
    let args =
        ["ab", "datapath:drop", "--vary", "rx=copy,page-pool", "--time", "300ms", "--slice", "1000", "-q"];
    let with = |frames| perpacket(&[&args[..], &["--frame", frames]].concat());
    let done = with("64,512,9000");
    assert!(matches!(done.code, Some(0 | 3)), "{done:?}");
    assert!(done.stdout.contains("crossover") || done.stdout.contains("the cheaper one changes"), "{done:?}");
    assert!(done.stdout.contains("user space leaves out: mapping pages for DMA"), "{done:?}");
    assert!(done.stdout.contains("datapath:drop at 9000 bytes: "), "{done:?}");
    let done = with("64,9000");
    assert!(!done.stdout.contains("crossover"), "two sizes do not tell: {done:?}");
}

#[test]
fn threads_share_a_device_under_a_lock() {
    if linux::cpu::allowed().unwrap().len() < 2 {
        return skipped("threads_share_a_device_under_a_lock", "two CPUs");
    }
    let time = ["--threads", "2", "--time", "500ms", "--slice", "1001"];
    let record = measured(&[&["ab", "datapath:dummy", "--vary", "lock=device,queue"], &time[..]].concat());
    let settings = &record.head.variants[0].settings;
    assert_eq!((settings["lock"].as_str(), settings["queues"].as_str()), ("device", "2"));
    assert_eq!(settings["cpus"].split(',').count(), 2);
    let paths = ["path", "datapath:dummy", "datapath:forward", "datapath:udp", "--frame", "64"];
    for more in [&["--queues", "1"][..], &["--lock", "none"], &["--queues", "3"]] {
        let paths =
            if more == ["--lock", "none"] || more[0] == "--queues" { &paths[..3] } else { &paths[..] };
        measured(&[paths, &time, more].concat());
    }
    measured(&[&paths[..], &time].concat());
}

#[test]
fn a_recorded_scenario_repeats_the_run() {
    let scratch = Scratch::new();
    let file = scratch.file("scenario.toml");
    for args in [
        &["path", "datapath:forward", "--frame", "64,9000", "--time", "200ms", "--prefixes", "1000"][..],
        &[
            "ab",
            "datapath:dummy",
            "--vary",
            "queues=1,2",
            "--time",
            "200ms",
            "--rx",
            "copy-break:100",
            "--fixed",
        ],
        &["ab", "datapath:udp", "datapath:drop", "--time", "200ms", "--rx", "fragment", "--batch", "8"],
    ] {
        let first = measured(args);
        fs::write(&file, toml::to_string(&first.head.scenario).unwrap()).unwrap();
        let second = measured(&["run", &file]);
        assert_eq!(second.head.scenario, first.head.scenario);
        assert_eq!((second.head.seed, &second.head.variants), (first.head.seed, &first.head.variants));
    }
    let text = fs::read_to_string(&file).unwrap().replace("prefixes", "prefixse");
    fs::write(&file, text).unwrap();
    assert!(refused(&["run", &file]).contains("`prefixes` is near"));
}

#[test]
fn a_table_of_a_million_prefixes_is_routed_by() {
    let args = ["path", "datapath:forward", "--frame", "64", "--time", "200ms", "--slice", "1000"];
    let record = measured(&[&args[..], &["--prefixes", "1000000"]].concat());
    assert_eq!(record.head.variants[0].settings["prefixes"], "1000000");
}
