//! What buffers cost, for people: a table for each way to use threads, what they cost against the poll cache, what guarding
//! adds, memory, and where everything ended.

use anyhow::Result;
use comfy_table::Table;
use measure::ledger::Ledger;
use measure::record::{ComparisonRow, Head};

use super::numbers::{ns, thousands};
use super::opening::machine;
use super::svg::{Panel, Plot, Point, Scale, Series};
use super::tables::{align_right, ledger_text, plain};
use crate::alloc::{Allocator, Baseline, Cell, Figures, Memory, Sizes, Threads, bases, usual};
use crate::scenario::Allocate;

/// Everything that is reported of a run.
pub(crate) struct AllocResult {
    pub(crate) scenario: Allocate,
    pub(crate) cells: Vec<Cell>,
    pub(crate) figures: Figures,
    /// By the index of a cell.
    pub(crate) memory: Vec<(usize, Memory)>,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) stopped: String,
    /// What could not be measured.
    pub(crate) notes: Vec<String>,
}

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn alloc_opening(
    scenario: &Allocate,
    head: &Head,
    cpus: &[usize],
    verbose: bool,
) -> Result<String> {
    let numbers: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let on = format!("CPU{} {}", if cpus.len() == 1 { "" } else { "s" }, numbers.join(", "));
    let s = scenario;
    let names: Vec<&str> = s.allocators.iter().map(|allocator| allocator.name()).collect();
    let sizes = match &s.pattern {
        Some(pattern) => pattern.clone(),
        None => s.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let threads: Vec<&str> = s.threads.iter().map(|threads| threads.name()).collect();
    let mut line = format!(
        "alloc {}, buffers of {sizes} bytes, threads {}, bursts of {}",
        names.join(" "),
        threads.join(" "),
        s.live
    );
    if s.hold > 0.0 {
        line += &format!(", {} % held for {} buffers", s.hold * 100.0, thousands(s.hold_for));
    }
    line += &format!(", {} s, seed {}\n", s.measurement.time_s, s.measurement.seed);
    let mut text = format!("{}{line}", machine(head, &on));
    if verbose {
        text += &format!("\n{}\n", s.to_toml()?);
    }
    Ok(text)
}

/// The whole result.
pub(crate) fn alloc_text(result: &AllocResult, verbose: bool) -> String {
    let mut text = baselines(result);
    for &threads in &result.scenario.threads {
        if result.has(threads) {
            text += &costs(result, threads);
        }
    }
    text += &guarding(result);
    text += &memory(result);
    text += &format!("\n{}\n", result.stopped);
    for note in &result.notes {
        text += &format!("{note}\n");
    }
    text + &accounts(&result.ledgers, verbose)
}

impl AllocResult {
    fn loads(&self) -> Vec<Sizes> {
        self.scenario.loads().unwrap_or_default()
    }

    fn has(&self, threads: Threads) -> bool {
        self.cells.iter().any(|cell| matches!(cell, Cell::Allocator { threads: own, .. } if *own == threads))
    }

    fn place(&self, wanted: &Cell) -> Option<usize> {
        self.cells.iter().position(|cell| cell == wanted)
    }

    /// The cost with half of its interval's width, as text.
    fn cost(&self, cell: &Cell) -> Option<String> {
        let cost = self.figures.row(self.place(cell)?)?.cost;
        let half_width = cost.interval.map(|interval| interval.half_width());
        let known = half_width.map_or("?".into(), |half_width| ns(half_width, Some(half_width)));
        Some(format!("{} ±{known}", ns(cost.ns, half_width)))
    }

    fn comparison(&self, base: &Cell, cell: &Cell) -> Option<&ComparisonRow> {
        self.figures.against(self.place(base)?, self.place(cell)?)
    }
}

/// What this machine takes for steps that allocators are made of.
fn baselines(result: &AllocResult) -> String {
    let one = |baseline: Baseline| {
        let cost = result.cost(&Cell::Baseline(baseline)).unwrap_or_else(|| "–".into());
        format!("{} {cost}", baseline.about())
    };
    format!("this machine, ns: {}\n", Baseline::ALL.map(one).join(", "))
}

/// The costs on some threads, and their ratios to that of the poll cache.
fn costs(result: &AllocResult, threads: Threads) -> String {
    let loads = result.loads();
    let base = usual(threads);
    let who = match threads {
        Threads::One => "one thread takes and ends",
        Threads::Two => "two threads at once, each takes and ends its own (CPU time of a thread)",
        Threads::Across => {
            "one thread takes, another one ends (time of the one that takes and waits for the other)"
        }
    };
    let mut header = vec!["ns per buffer".to_owned()];
    header.extend(loads.iter().map(ToString::to_string));
    let mut table = titled(&header);
    header[0] = format!("times {}", base.about());
    let mut ratios = titled(&header);
    for &allocator in &result.scenario.allocators {
        let about = allocator.about().to_owned();
        if let Some(why) = allocator.lacking() {
            table.add_row([vec![about], vec!["–".into(); loads.len()], vec![why.into()]].concat());
            continue;
        }
        let like = |allocator, sizes: &Sizes| Cell::Allocator { allocator, sizes: sizes.clone(), threads };
        let cost = |sizes: &Sizes| result.cost(&like(allocator, sizes)).unwrap_or_else(|| "–".into());
        let refused = |sizes: &Sizes| allocator.refuses(threads, sizes, result.scenario.hold);
        let why = loads.first().and_then(refused).unwrap_or_default();
        let mut line = vec![about.clone()];
        line.extend(loads.iter().map(cost));
        line.extend((!why.is_empty()).then(|| why.to_owned()));
        table.add_row(line);
        if allocator == base || !why.is_empty() {
            continue;
        }
        let ratio = |sizes: &Sizes| {
            let comparison = result.comparison(&like(base, sizes), &like(allocator, sizes));
            comparison.map_or("–".into(), times)
        };
        let mut line = vec![about];
        line.extend(loads.iter().map(ratio));
        ratios.add_row(line);
    }
    align_right(&mut table, 1);
    align_right(&mut ratios, 1);
    let mut text = format!("\n{who}\n{table}\n");
    if result.scenario.allocators.contains(&base) {
        text += &format!("{ratios}\n");
    }
    text
}

/// A ratio and its interval.
fn times(row: &ComparisonRow) -> String {
    let (ratio, interval) = (row.comparison.ratio, row.comparison.ratio_interval);
    let places = if interval.half_width() < 0.5 { 2 } else { 1 };
    format!("{ratio:.places$} [{:.places$} {:.places$}]", interval.low, interval.high)
}

/// What the guards of the any-context cache add to buffers that end alike.
fn guarding(result: &AllocResult) -> String {
    let loads = result.loads();
    let mut header = vec!["ns that guarding adds".to_owned(), "threads".to_owned()];
    header.extend(loads.iter().map(ToString::to_string));
    let mut table = titled(&header);
    let guarded = [Allocator::Spin, Allocator::SpinMany, Allocator::Mutex];
    for &threads in &result.scenario.threads {
        for allocator in guarded {
            let added = |sizes: &Sizes| {
                let cell = Cell::Allocator { allocator, sizes: sizes.clone(), threads };
                let c = &result.comparison(&bases(&cell).pop()?, &cell)?.comparison;
                let (low, high) = (c.difference_interval.low, c.difference_interval.high);
                Some(format!("{:+.2} [{low:+.2} {high:+.2}]", c.difference_ns))
            };
            let cells: Vec<Option<String>> = loads.iter().map(added).collect();
            if cells.iter().any(Option::is_some) {
                let mut line = vec![allocator.about().to_owned(), threads.name().to_owned()];
                line.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into())));
                table.add_row(line);
            }
        }
    }
    if table.is_empty() {
        return String::new();
    }
    align_right(&mut table, 2);
    format!("\nany-context cache over the poll cache whose buffers end alike (95 % interval)\n{table}\n")
}

/// Memory for the buffers that are alive, in a process of its own for each.
fn memory(result: &AllocResult) -> String {
    if result.memory.is_empty() {
        return String::new();
    }
    let loads = result.loads();
    let mut header = vec!["resident KiB (pinned by own account)".to_owned()];
    header.extend(loads.iter().map(ToString::to_string));
    let mut table = titled(&header);
    let of = |allocator: Allocator, sizes: &Sizes| {
        let cell = Cell::Allocator { allocator, sizes: sizes.clone(), threads: Threads::One };
        let place = result.place(&cell)?;
        result.memory.iter().find(|(index, _)| *index == place).map(|(_, memory)| *memory)
    };
    let in_use = |sizes: &Sizes| {
        let any = result.scenario.allocators.iter().find_map(|&allocator| of(allocator, sizes));
        any.map_or("–".into(), |memory| kib(memory.in_use_bytes))
    };
    let mut line = vec!["in use".to_owned()];
    line.extend(loads.iter().map(in_use));
    table.add_row(line);
    for &allocator in &result.scenario.allocators {
        let cells: Vec<Option<Memory>> = loads.iter().map(|sizes| of(allocator, sizes)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let cell = |memory: &Option<Memory>| {
            let Some(memory) = memory else { return "–".into() };
            let resident = memory.resident_bytes.map_or("?".into(), kib);
            memory.pinned_bytes.map_or(resident.clone(), |pinned| format!("{resident} ({})", kib(pinned)))
        };
        let mut line = vec![allocator.about().to_owned()];
        line.extend(cells.iter().map(cell));
        table.add_row(line);
    }
    align_right(&mut table, 1);
    format!("\nmemory in the middle of the work of one thread\n{table}\n")
}

/// Kibibytes, as people read them.
fn kib(bytes: u64) -> String {
    thousands(bytes.div_ceil(1024))
}

/// Where everything ended: in a line, and what is not in order in full.
fn accounts(ledgers: &[Ledger], verbose: bool) -> String {
    let sum = |what: &str| {
        let of = |book: &&Ledger| book.path.starts_with(what);
        ledgers.iter().filter(of).map(|book| book.sent.packets).sum::<u64>()
    };
    let open: Vec<&Ledger> = ledgers.iter().filter(|book| !book.closes()).collect();
    let verdict = if open.is_empty() { "all accounted for" } else { "NOT all accounted for" };
    let mut text = format!(
        "{} buffers taken and ended, {} pages taken and given back: {verdict}\n",
        thousands(sum("buffers")),
        thousands(sum("pages"))
    );
    for book in ledgers.iter().filter(|book| verbose || !book.closes()) {
        text += &ledger_text(book);
    }
    text
}

/// A table with these titles.
fn titled(header: &[String]) -> Table {
    plain(&header.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The costs over the sizes, one panel for each way to use threads.
pub(crate) fn alloc_svg(result: &AllocResult) -> String {
    let loads = result.loads();
    let series = |threads: Threads| {
        let of = move |&allocator: &Allocator| {
            let point = |(number, sizes): (usize, &Sizes)| {
                let cell = Cell::Allocator { allocator, sizes: sizes.clone(), threads };
                let cost = result.figures.row(result.place(&cell)?)?.cost;
                Some(Point {
                    place: number,
                    value: cost.ns,
                    low: cost.interval.map_or(cost.ns, |interval| interval.low),
                    high: cost.interval.map_or(cost.ns, |interval| interval.high),
                })
            };
            let points = result.loads().iter().enumerate().filter_map(point).collect();
            Series { name: allocator.about().into(), points }
        };
        let all: Vec<Series> = result.scenario.allocators.iter().map(of).collect();
        all.into_iter().filter(|series| !series.points.is_empty()).collect::<Vec<_>>()
    };
    let panel =
        |&threads: &Threads| Panel { title: format!("threads: {}", threads.name()), series: series(threads) };
    let panels = result.scenario.threads.iter().filter(|&&threads| result.has(threads)).map(panel).collect();
    let places = loads.iter().map(ToString::to_string).collect();
    let title = "ns per buffer, 95 % intervals".into();
    Plot { title, across: "bytes".into(), places, panels, scale: Scale::Logarithmic }.svg()
}
