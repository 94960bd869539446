//! Tables for people.

use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use measure::crossover::{Arm, Change, Crossover};
use measure::ledger::Ledger;
use measure::verdict::Verdict;

use super::numbers::{ns, percent, signed, thousands};
use crate::cell::{Cell, Factor, PathName};
use crate::pairs::Answer;
use crate::scenario::Compare;

/// A comparison: one row a path and frame size, and what the rows say together.
pub(crate) fn comparison_table(
    answers: &[([Cell; 2], Answer)],
    crossovers: &[(PathName, Crossover)],
    compare: &Compare,
) -> String {
    let mut table = plain(&[
        "path",
        "frame",
        "via",
        "A ns",
        "B ns",
        "B − A ns",
        "interval",
        "B vs A",
        "interval",
        "pairs",
        "verdict",
    ]);
    for ([a, b], answer) in answers {
        let via = |cell: &Cell| cell.setting.backend.map_or(String::new(), |kind| kind.to_string());
        let mut line = vec![a.path.to_string(), both(a.frame_bytes, b.frame_bytes), both(via(a), via(b))];
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
    align_right(&mut table, 3);
    let mut text = format!("{}\n{table}\n", varied(compare));
    for (path, crossover) in crossovers {
        text += &format!("{path}: {}\n", crossover_line(crossover, compare));
    }
    for ([a, b], answer) in answers {
        text += &format!("{}: {}", subject([a, b], answers), answer.stopped);
        if let Some(c) = &answer.comparison {
            text += &format!(
                "; intervals at {:.1} %, pair SD {:.2} %, {} block{}, inflation {:.2}",
                c.confidence * 100.0,
                c.pair_sd * 100.0,
                c.blocks,
                if c.blocks == 1 { "" } else { "s" },
                c.inflation
            );
        }
        match answer.too_few_blocks {
            _ if answer.pairs == 0 => {}
            Some((blocks, needed)) => {
                text +=
                    &format!("; {blocks} of the {needed} blocks that a verdict needs: give it more --time");
            }
            None if answer.comparison.is_none() => {
                text += "; too few pairs, or blocks that differ, for an interval: give it more --time";
            }
            None => {}
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

/// What a row is about: its path, and its frame size where the path has several rows.
pub(crate) fn subject([a, b]: [&Cell; 2], answers: &[([Cell; 2], Answer)]) -> String {
    match answers.iter().filter(|([other, _], _)| other.path == a.path).count() {
        0 | 1 => a.path.to_string(),
        _ => format!("{} at {} bytes", a.path, both(a.frame_bytes, b.frame_bytes)),
    }
}

/// At which sizes the cheaper variant changes.
fn crossover_line(crossover: &Crossover, compare: &Compare) -> String {
    let name = |arm: &Arm| match arm {
        Arm::A => &compare.a,
        Arm::B => &compare.b,
    };
    match crossover {
        Crossover::At(changes) => {
            let change = |change: &Change| {
                format!(
                    "between {} and {} bytes, from where on {} is cheaper",
                    change.below,
                    change.above,
                    name(&change.cheaper_above)
                )
            };
            let all: Vec<String> = changes.iter().map(change).collect();
            format!("the cheaper one changes {}", all.join("; and "))
        }
        Crossover::Never { cheaper, decided, sizes } => format!(
            "no crossover: {} is cheaper at every size that is decided ({decided} of {sizes})",
            name(cheaper)
        ),
        Crossover::Undecided => "no crossover is known: at no size one is found to be cheaper".into(),
    }
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
    text.push_str(&format!("  {:>16}  unaccounted for\n", signed(book.unaccounted())));
    for note in &book.notes {
        text.push_str(&format!("  {note}\n"));
    }
    text
}

fn varied(compare: &Compare) -> String {
    match compare.vary {
        Factor::Nothing => "A and B are the same (A/A)".into(),
        Factor::Command => format!("A: `{}`   B: `{}`", compare.a, compare.b),
        factor => format!("A: {0} = {1}   B: {0} = {2}", factor.name(), compare.a, compare.b),
    }
}

/// A value, or both where they differ.
fn both<T: PartialEq + ToString>(a: T, b: T) -> String {
    if a == b { a.to_string() } else { format!("{} / {}", a.to_string(), b.to_string()) }
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

/// A table without lines.
pub(super) fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// The titles of a table's columns.
pub(super) fn header_of(table: &Table) -> Vec<String> {
    table.header().map(|row| row.cell_iter().map(TableCell::content).collect()).unwrap_or_default()
}

/// Aligns all columns from the given one on to the right.
pub(super) fn align_right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
