//! What every cell of a run costs, and what is to be said about its packets.

use measure::ledger::Ledger;
use measure::record::CostRow;
use measure::wire;

use super::numbers::{bounds, ns, signed, thousands};
use super::tables::{align_right, header_of, plain};
use crate::cell::Cell;

/// Line rates that a cost is held against, in bit/s.
const LINES: [(&str, f64); 4] = [("10G", 10e9), ("25G", 25e9), ("40G", 40e9), ("100G", 100e9)];

/// What is known about one cell.
pub(crate) struct CellResult<'a> {
    pub(crate) cell: &'a Cell,
    /// Slices, those that are void among them.
    pub(crate) slices: u64,
    pub(crate) void_slices: u64,
    /// What it costs; none where no slice tells it.
    pub(crate) row: Option<&'a CostRow>,
    pub(crate) ledger: &'a Ledger,
}

/// One row for each cell, those without a figure included, and a line for each that lost packets.
pub(crate) fn cost_table(results: &[CellResult<'_>]) -> String {
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
    for result in results {
        let cell = result.cell;
        let mut line = vec![
            cell.path.to_string(),
            cell.frame_bytes.to_string(),
            cell.setting.backend.map_or(String::new(), |kind| kind.to_string()),
        ];
        match result.row {
            Some(row) => line.extend(figures(row, cell.frame_bytes)),
            None => line.extend(vec!["–".to_owned(); 5 + LINES.len()]),
        }
        line.push(unaccounted(result.ledger));
        table.add_row(line);
    }
    align_right(&mut table, 3);
    let notes: String = results.iter().filter_map(void_line).collect();
    format!("{table}\n{notes}")
}

/// The cost, how sure it is, and what it means as a rate.
fn figures(row: &CostRow, frame_bytes: u32) -> Vec<String> {
    let cost = &row.cost;
    let half_width = cost.interval.map(|interval| interval.half_width());
    // A figure that its noise hides is no rate.
    let pps = Some(row.pps()).filter(|_| cost.ns > 0.0);
    let mut line = vec![
        if cost.ns > 0.0 { ns(cost.ns, half_width) } else { "below its noise".into() },
        cost.interval.map_or("too few rounds".into(), |interval| bounds(&interval)),
        format!("{} – {}", ns(cost.round_low_ns, half_width), ns(cost.round_high_ns, half_width)),
        row.over_floor.map_or("–".into(), |over| ns(over.ns, over.interval.map(|i| i.half_width()))),
        pps.map_or("–".into(), |pps| format!("{:.2}", pps / 1e6)),
    ];
    let share =
        |pps: f64, bit_per_s| format!("{:.0} %", 100.0 * pps / wire::line_rate_pps(bit_per_s, frame_bytes));
    line.extend(LINES.iter().map(|(_, rate)| pps.map_or("–".into(), |pps| share(pps, *rate))));
    line
}

/// How many slices of a cell are in no figure, and where their packets ended; none where all count.
fn void_line(result: &CellResult<'_>) -> Option<String> {
    let CellResult { cell, slices, void_slices, row, ledger } = result;
    if *void_slices == 0 {
        return None;
    }
    let how_many = match row {
        None if void_slices == slices => format!("all {} slices void", thousands(*slices)),
        None => format!("no figure: {} of {} slices void", thousands(*void_slices), thousands(*slices)),
        Some(_) => {
            format!("{} of {} slices void, in no figure", thousands(*void_slices), thousands(*slices))
        }
    };
    let ends: Vec<String> = ledger
        .drops
        .iter()
        .map(|drop| format!("{} dropped: {}", thousands(drop.packets), drop.reason))
        .collect();
    let ends = if ends.is_empty() { String::new() } else { format!(" ({})", ends.join("; ")) };
    Some(format!("{} at {} bytes: {how_many}{ends}\n", cell.path, cell.frame_bytes))
}

/// Packets that are missing, of how many.
fn unaccounted(book: &Ledger) -> String {
    let sent = thousands(book.sent.packets);
    let lost = book.dropped_packets();
    let lost = if lost > 0 { format!(" ({} dropped)", thousands(lost)) } else { String::new() };
    format!("{} of {sent}{lost}", signed(book.unaccounted()))
}

/// Counters divided by packets, one line a cell; what this machine does not count is named.
pub(crate) fn counters_text(results: &[CellResult<'_>]) -> String {
    let mut text = String::from("counters per packet\n");
    for (cell, row) in results.iter().filter_map(|result| Some((result.cell, result.row?))) {
        let known = row
            .counters_per_packet
            .iter()
            .filter_map(|(name, value)| Some(format!("{name} {:.4}", rounded((*value)?))));
        text += &format!("  {} {}: {}\n", cell.path, cell.frame_bytes, known.collect::<Vec<_>>().join(", "));
    }
    let missing = |row: &CostRow| -> Vec<String> {
        row.counters_per_packet
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.clone())
            .collect()
    };
    let first = results.iter().find_map(|result| result.row);
    if let Some(missing) = first.map(missing).filter(|missing| !missing.is_empty()) {
        text += &format!("  not counted on this machine: {}\n", missing.join(", "));
    }
    text
}

/// To the four decimals that are printed, without the sign of a rounded zero.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4 + 0.0
}

#[cfg(test)]
mod tests {
    use measure::ledger::{Count, Drop};
    use measure::marginal::AbsoluteCost;
    use measure::record::{Clock, Extra};

    use super::*;
    use crate::cell::{PathName, Setting};

    fn row() -> CostRow {
        let cost = AbsoluteCost {
            ns: 200.0,
            interval: None,
            confidence: 0.95,
            rounds: 1,
            samples: 6,
            round_low_ns: 199.0,
            round_high_ns: 201.0,
            fixed_ns_per_call: 90_000.0,
        };
        CostRow {
            variant: 0,
            clock: Clock::ThreadCpu,
            cost,
            over_floor: None,
            void_slices: 0,
            counters_per_packet: [("cycles".to_owned(), None), ("migrations".to_owned(), Some(-1e-9))].into(),
            extra: Extra::new(),
        }
    }

    #[test]
    fn a_cell_that_lost_everything_keeps_its_row_and_says_why() {
        let cell = Cell { path: PathName::Forward, frame_bytes: 64, setting: Setting::default() };
        let sent = Count { packets: 60_000, seen_by: "injecting program".into() };
        let mut ledger = Ledger::new("forward", Some(64), sent);
        ledger.drops.push(Drop { reason: "no route".into(), counter: "x".into(), packets: 60_000 });
        let result =
            |row, void_slices| CellResult { cell: &cell, slices: 12, void_slices, row, ledger: &ledger };
        let row = row();
        let results = [result(None, 12), result(Some(&row), 3), result(Some(&row), 0)];
        let text = cost_table(&results);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 6, "a header, three rows, two lines on void slices: {text}");
        assert!(lines[1].starts_with("forward") && lines[1].contains("–"), "{text}");
        assert_eq!(lines[4], "forward at 64 bytes: all 12 slices void (60,000 dropped: no route)");
        assert!(lines[5].contains("3 of 12 slices void, in no figure"), "{text}");
        let counters = counters_text(&results);
        assert!(counters.contains("forward 64: migrations 0.0000"), "{counters}");
        assert!(counters.contains("not counted on this machine: cycles"), "{counters}");
    }
}
