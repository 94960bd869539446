//! Tables for people.

use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use measure::ledger::Ledger;
use measure::record::CostRow;
use measure::verdict::Verdict;
use measure::wire;

use super::numbers::{bounds, ns, percent, thousands};
use crate::cell::{Cell, Factor};
use crate::pairs::Answer;
use crate::scenario::Compare;

/// Line rates that a cost is held against, in bit/s.
const LINES: [(&str, f64); 4] = [("10G", 10e9), ("25G", 25e9), ("40G", 40e9), ("100G", 100e9)];

/// What every cell costs, one row each.
pub(crate) fn cost_table(rows: &[CostRow], cells: &[Cell], ledgers: &[Ledger]) -> String {
    let mut table = plain(&[
        "path",
        "frame",
        "via",
        "ns/packet",
        "95 % interval",
        "rounds 10–90 %",
        "over floor",
        "Mpps",
    ]);
    let mut header: Vec<String> = header_of(&table);
    header.extend(LINES.iter().map(|(name, _)| (*name).to_owned()));
    header.push("unaccounted".into());
    table.set_header(header);
    for row in rows {
        let cell = &cells[usize::from(row.variant)];
        let cost = &row.cost;
        let half_width = cost.interval.map(|interval| interval.half_width());
        let mut line = vec![
            cell.path.to_string(),
            cell.frame_bytes.to_string(),
            cell.setting.backend.map_or(String::new(), |kind| kind.to_string()),
            ns(cost.ns, half_width),
            cost.interval.map_or("too few rounds".into(), |interval| bounds(&interval)),
            format!("{} – {}", ns(cost.round_low_ns, half_width), ns(cost.round_high_ns, half_width)),
            row.over_floor.map_or("–".into(), |over| ns(over.ns, over.interval.map(|i| i.half_width()))),
            format!("{:.2}", row.pps() / 1e6),
        ];
        line.extend(LINES.iter().map(|(_, bit_per_s)| {
            format!("{:.0} %", 100.0 * row.pps() / wire::line_rate_pps(*bit_per_s, cell.frame_bytes))
        }));
        line.push(ledgers.get(usize::from(row.variant)).map_or("–".into(), unaccounted));
        table.add_row(line);
    }
    align_right(&mut table, 3);
    format!("{table}\n")
}

/// Counters divided by packets, one line a cell; what this machine does not count is named.
pub(crate) fn counters_text(rows: &[CostRow], cells: &[Cell]) -> String {
    let mut text = String::from("counters per packet\n");
    for row in rows {
        let cell = &cells[usize::from(row.variant)];
        let known = row
            .counters_per_packet
            .iter()
            .filter_map(|(name, value)| Some(format!("{name} {:.4}", (*value)?)));
        text += &format!("  {} {}: {}\n", cell.path, cell.frame_bytes, known.collect::<Vec<_>>().join(", "));
    }
    let missing = |row: &CostRow| -> Vec<String> {
        row.counters_per_packet
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.clone())
            .collect()
    };
    if let Some(missing) = rows.first().map(missing).filter(|missing| !missing.is_empty()) {
        text += &format!("  not counted on this machine: {}\n", missing.join(", "));
    }
    text
}

/// A comparison: one row a path.
pub(crate) fn comparison_table(answers: &[(Cell, Answer)], compare: &Compare) -> String {
    let mut table = plain(&[
        "path",
        "frame",
        "A ns",
        "B ns",
        "B − A ns",
        "interval",
        "B vs A",
        "interval",
        "pairs",
        "verdict",
    ]);
    for (cell, answer) in answers {
        let mut line = vec![cell.path.to_string(), cell.frame_bytes.to_string()];
        match &answer.comparison {
            Some(c) => line.extend([
                ns(c.a_ns, Some(c.difference_interval.half_width())),
                ns(c.b_ns, Some(c.difference_interval.half_width())),
                format!("{:+.2}", c.difference_ns),
                format!("{:+.2} … {:+.2}", c.difference_interval.low, c.difference_interval.high),
                percent(c.effect()),
                format!("{} … {}", percent(c.ratio_interval.low - 1.0), percent(c.ratio_interval.high - 1.0)),
                thousands(c.pairs),
            ]),
            None => line.extend(["–"; 7].map(str::to_owned)),
        }
        line.push(verdict(&answer.verdict));
        table.add_row(line);
    }
    align_right(&mut table, 2);
    let mut text = format!("{}\n{table}\n", varied(compare));
    for (cell, answer) in answers {
        text += &format!("{}: {}", cell.path, answer.stopped);
        match &answer.comparison {
            Some(c) => {
                text += &format!(
                    "; intervals at {:.1} %, pair SD {:.2} %, {} block{}, inflation {:.2}",
                    c.confidence * 100.0,
                    c.pair_sd * 100.0,
                    c.blocks,
                    if c.blocks == 1 { "" } else { "s" },
                    c.inflation
                );
            }
            None => text += "; too few pairs for an interval: give it more --time",
        }
        if answer.void_pairs > 0 {
            let plural = if answer.void_pairs == 1 { "" } else { "s" };
            text += &format!(", {} pair{plural} void (packets missing)", thousands(answer.void_pairs));
        }
        if answer.trend_left {
            text += "; costs fell during the whole run: it was too short to warm up, or the machine changed";
        }
        text.push('\n');
    }
    text
}

/// A ledger as lines.
pub(crate) fn ledger_text(book: &Ledger) -> String {
    let frame = book.frame_bytes.map_or(String::new(), |bytes| format!(" at {bytes} bytes"));
    let mut text = format!("ledger of {}{frame}\n", book.path);
    let mut line =
        |packets: u64, what: &str| text.push_str(&format!("  {:>16}  {what}\n", thousands(packets)));
    line(book.sent.packets, &format!("sent ({})", book.sent.seen_by));
    for count in &book.received {
        line(count.packets, &format!("received ({})", count.seen_by));
    }
    for drop in &book.drops {
        line(drop.packets, &format!("dropped: {} ({})", drop.reason, drop.counter));
    }
    for count in &book.background {
        line(count.packets, &format!("background, not counted: {}", count.seen_by));
    }
    text.push_str(&format!("  {:>16}  unaccounted for\n", signed(book.unaccounted())));
    for note in &book.notes {
        text.push_str(&format!("  {note}\n"));
    }
    text
}

fn unaccounted(book: &Ledger) -> String {
    let sent = book.sent.packets as f64;
    let lost = book.dropped_packets();
    let lost = if lost > 0 { format!(" ({} dropped)", thousands(lost)) } else { String::new() };
    format!("{} of {:.1}M{lost}", signed(book.unaccounted()), sent / 1e6)
}

/// Packets that are missing; negative where more were counted than sent.
fn signed(packets: i64) -> String {
    let sign = if packets < 0 { "−" } else { "" };
    format!("{sign}{}", thousands(packets.unsigned_abs()))
}

fn varied(compare: &Compare) -> String {
    match compare.vary {
        Factor::Nothing => "A and B are the same (A/A)".into(),
        Factor::Command => format!("A: `{}`   B: `{}`", compare.a, compare.b),
        factor => format!("A: {0} = {1}   B: {0} = {2}", factor.name(), compare.a, compare.b),
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Faster => "faster".into(),
        Verdict::Slower => "slower".into(),
        Verdict::Same { margin } => format!("same within ±{:.2} %", margin * 100.0),
        Verdict::Inconclusive { pairs_needed: Some(pairs) } => {
            format!("inconclusive; about {} pairs would settle it", thousands(*pairs))
        }
        Verdict::Inconclusive { pairs_needed: None } => "inconclusive".into(),
    }
}

fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn header_of(table: &Table) -> Vec<String> {
    table.header().map(|row| row.cell_iter().map(TableCell::content).collect()).unwrap_or_default()
}

/// Aligns all columns from the given one on to the right.
fn align_right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
