//! `perpacket alloc`: short runs, of which everything but the figures is checked.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{assert_whole, command, perpacket, refused};
use measure::record::{self, Record};

/// A run's record: its exit code is 0, or 3 where there was too little time for an interval.
fn compared(args: &[&str]) -> Record {
    let done = perpacket(&[&["alloc"], args, &["--quiet", "--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{args:?}: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    record
}

fn names(record: &Record) -> Vec<&str> {
    record.head.variants.iter().map(|variant| variant.name.as_str()).collect()
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

fn two_cpus() -> bool {
    linux::cpu::allowed().unwrap().len() > 1
}

#[test]
fn every_allocator_has_its_rows_and_every_page_is_accounted_for() {
    let record = compared(&["--sizes", "64,4096", "--time", "1s", "--seed", "7"]);
    let names = names(&record);
    let one = [
        "loop",
        "poll",
        "poll-many",
        "poll-leave",
        "poll-drop",
        "poll-drop-all",
        "spin",
        "spin-many",
        "mutex",
        "pool-fast",
        "pool-ring",
        "pool-slow",
        "pool-frag",
        "free-list",
        "system",
        "mimalloc",
        "bytes",
        "bytes-split",
    ];
    for name in one {
        for size in ["64", "4096"] {
            assert!(names.contains(&format!("{name}/{size}/one").as_str()), "{name}: {names:?}");
        }
    }
    for baseline in ["empty-loop", "atomic-increment", "spin-lock", "mutex-lock"] {
        assert!(names.contains(&baseline), "{baseline}: {names:?}");
    }
    for (name, across) in [("poll", false), ("poll-drop", true), ("pool-ring", true), ("pool-fast", false)] {
        let there = names.contains(&format!("{name}/64/across").as_str());
        assert_eq!(there, across && two_cpus(), "{name}");
    }
    let jemalloc = record.head.capabilities.iter().find(|probe| probe.name == "allocator jemalloc");
    assert_eq!(jemalloc.is_none(), names.contains(&"jemalloc/64/one"), "it has rows, or a reason");

    let summary = record.summary.as_ref().unwrap();
    assert_eq!(summary.rows.len(), names.len(), "a row for each");
    let ledger = |path: &str| record.ledgers().find(|book| book.path == path).cloned();
    for path in
        ["buffers of system", "buffers of poll", "pages of poll-drop", "pages of spin", "pages of pool-slow"]
    {
        let book = ledger(path).unwrap_or_else(|| panic!("no ledger: {path}"));
        assert!(book.closes() && book.sent.packets > 0, "{book:?}");
    }
    assert!(record.ledgers().all(|book| book.closes()));
    assert_eq!(ledger("pages of system"), None, "no account is not an empty one");

    // What the slices took is in the ledgers; those that were thrown away are there too.
    let of = |name: &str| names.iter().position(|variant| *variant == name).unwrap();
    let in_slices = |index: usize| {
        let own = record.slices.iter().filter(|slice| usize::from(slice.variant) == index);
        own.map(|slice| slice.packets).sum::<u64>()
    };
    let both = in_slices(of("free-list/64/one")) + in_slices(of("free-list/4096/one"));
    assert!(both > 0 && ledger("buffers of free-list").unwrap().sent.packets >= both);

    for row in &summary.memory {
        let name = names[usize::from(row.variant)];
        let expected = if name.contains("/64/") { 64 * 64 } else { 64 * 4096 };
        assert_eq!(row.in_use_bytes, expected, "{name}");
        assert!(row.pinned_bytes.is_none_or(|pinned| pinned >= row.in_use_bytes), "{name}: {row:?}");
    }
    let pinned = |name: &str| {
        let row = summary.memory.iter().find(|row| usize::from(row.variant) == of(name)).unwrap();
        row.pinned_bytes
    };
    assert_eq!((pinned("poll/64/one"), pinned("system/64/one")), (Some(32768), None));
}

#[test]
fn buffers_that_are_held_long_pin_their_blocks() {
    let record = compared(&[
        "poll",
        "system",
        "--pattern",
        "imix",
        "--hold",
        "1%",
        "--hold-for",
        "20000",
        "--threads",
        "one",
        "--time",
        "200ms",
    ]);
    let names = names(&record);
    let memory = &record.summary.as_ref().unwrap().memory;
    let of = |name: &str| memory.iter().find(|row| names[usize::from(row.variant)] == name).unwrap();
    let (poll, system) = (of("poll/imix/one"), of("system/imix/one"));
    assert_eq!(poll.in_use_bytes, system.in_use_bytes, "the same load");
    // About 200 are held, of 335 bytes on average, almost each in another block of 97.
    assert!(poll.pinned_bytes.unwrap() > 10 * poll.in_use_bytes, "{poll:?}");
    assert!(record.ledgers().all(|book| book.closes() && book.sent.packets > 0));
}

#[test]
fn a_scenario_repeats_the_run() {
    let args =
        ["alloc", "poll", "system", "--sizes", "256", "--threads", "one", "--live", "16", "--seed", "5"];
    let done = perpacket(&[&args[..], &["--time", "100ms", "-v"]].concat());
    let (_, rest) = done.stderr.split_once("\nschema = ").unwrap();
    let (scenario, _) = rest.split_once("\n\n").map_or((rest, ""), |(head, tail)| {
        let (table, after) = tail.split_once("\n\n").unwrap_or((tail, ""));
        (rest.get(..head.len() + 2 + table.len()).unwrap(), after)
    });
    let file = temporary("alloc.toml");
    fs::write(&file, format!("schema = {scenario}\n")).unwrap();
    let again = perpacket(&["run", file.to_str().unwrap(), "--quiet", "--json", "-"]);
    assert!(matches!(again.code, Some(0 | 3)), "{again:?}");
    let record = record::read(again.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    assert_eq!(names(&record)[4..], ["poll/256/one", "system/256/one"]);
    assert_eq!((record.head.seed.0, &record.head.scenario["live"]), (5, &serde_json::json!(16)));
    fs::remove_file(file).unwrap();
}

#[test]
fn tables_name_every_allocator_and_the_plot_draws_it() {
    let (svg, store) = (temporary("alloc.svg"), temporary("alloc-store"));
    let output = command(&["alloc", "--sizes", "64,2048", "--threads", "one", "--time", "1s", "--svg"])
        .args([svg.as_os_str(), "--store".as_ref(), store.as_os_str()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{text}");
    for about in
        ["the loop alone", "poll cache, given back", "mimalloc", "jemalloc", "free list", "page pool"]
    {
        assert!(text.lines().any(|line| line.trim_start().starts_with(about)), "{about}: {text}");
    }
    assert_eq!(text.contains("not built in: --features jemalloc"), !cfg!(feature = "jemalloc"), "{text}");
    assert!(text.contains("all accounted for") && text.contains("ns that guarding adds"), "{text}");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("system allocator"));
    let saved: Vec<_> = fs::read_dir(&store).unwrap().collect();
    assert_eq!(saved.len(), 1);
    let journal = fs::read(saved[0].as_ref().unwrap().path()).unwrap();
    assert_whole(&record::read(&journal[..]).unwrap());
    fs::remove_file(svg).unwrap();
    fs::remove_dir_all(store).unwrap();
}

#[test]
fn bad_input_is_named_with_what_to_do() {
    for (args, expected) in [
        (&["sysetm"][..], "`system` is near"),
        (&["--sizes", "4097"], "size 4097"),
        (&["--sizes", "0"], "1 to 4096"),
        (&["--pattern", "imax"], "use imix"),
        (&["--live", "0"], "live 0"),
        (&["--cpus", "0,0"], "another one"),
        (&["--cpus", "99999"], "CPU 99999"),
        (&["free-list", "--threads", "across"], "has one owner"),
        (&["spin-many", "--pattern", "imix"], "a burst of one size"),
        (&["--svg", "/nonexistent/x.svg"], "open /nonexistent/x.svg"),
    ] {
        let message = refused(&[&["alloc"], args].concat());
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}
