//! What went over sockets, for people.

use std::fmt::Write as _;

use anyhow::Result;
use measure::confidence::{Decision, Mean};
use measure::record::Head;
use stream::latency::{Figures, PERCENTILES};
use stream::outcome::{Datagrams, Flow, Interval, Moved, Side};

use super::numbers::thousands;
use super::opening::machine;
use super::tables::{align_right, ledger_text, plain};
use crate::scenario::Streams;
use crate::streams::{KindOf, Quantity, Row, RowResult, StreamsResult, Way};

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn streams_opening(scenario: &Streams, head: &Head, verbose: bool) -> Result<String> {
    let mut text = format!("{}{}\n", machine(head, &cpus_line(scenario)), in_a_line(scenario));
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

/// Whose CPU is which.
fn cpus_line(scenario: &Streams) -> String {
    let list = |cpus: &[usize]| match cpus {
        [] => "any CPU".to_owned(),
        [cpu] => format!("CPU {cpu}"),
        cpus => format!("CPUs {}", cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    let setting = &scenario.setting;
    format!("local end on {}, remote end on {}", list(&setting.local_cpus), list(&setting.remote_cpus))
}

fn in_a_line(scenario: &Streams) -> String {
    let (m, setting) = (&scenario.measurement, &scenario.setting);
    let mut line = format!("{} over {}, {} s a run", scenario.job, setting.between(), m.time_s);
    if m.omit_s > 0.0 {
        line += &format!(" after {} s that do not count", m.omit_s);
    }
    line += &match &m.confidence {
        None if m.runs == 1 => String::new(),
        None => format!(", {} runs", m.runs),
        Some(wanted) => format!(
            ", {} to {} runs until means are known to ±{} % at {} %",
            wanted.min_runs(),
            wanted.max_runs(),
            50.0 * wanted.width(),
            100.0 * wanted.level()
        ),
    };
    if setting.flows > 1 {
        line += &format!(", {} flows", thousands(setting.flows.into()));
    }
    if let Some(compare) = &scenario.compare {
        line += &format!(", {} {} against {}, seed {}", compare.vary, compare.b, compare.a, m.seed);
    }
    line
}

/// A period of a run, as the end that asked sees it.
pub(crate) fn interval_line(row: Row, interval: &Interval) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let length_s = seconds(interval.end_ns.saturating_sub(interval.start_ns));
    let mut line = format!("{row} {:.2} – {:.2} s:", seconds(interval.start_ns), seconds(interval.end_ns));
    let flows = &interval.flows;
    for (what, of) in
        [("sent", (|flow| flow.sent) as fn(&Flow) -> Option<Moved>), ("received", |flow| flow.received)]
    {
        let bytes: Option<u64> =
            flows.iter().filter_map(of).map(|moved| moved.bytes).reduce(u64::saturating_add);
        if let Some(bytes) = bytes.filter(|_| length_s > 0.0 && !row.work.is_rr()) {
            let _ = write!(line, " {what} {:.2} 10^6 bit/s", bytes as f64 * 8.0 / 1e6 / length_s);
        }
    }
    let transactions = flows.iter().filter_map(|flow| flow.transactions).reduce(u64::saturating_add);
    if let Some(transactions) = transactions.filter(|_| length_s > 0.0 && row.work.is_rr()) {
        let _ = write!(line, " {:.1} transactions/s", transactions as f64 / length_s);
    }
    line + if interval.omitted { " (does not count)\n" } else { "\n" }
}

/// The table, what became of datagrams, CPU time by kind, connections, and what should be known about it.
pub(crate) fn streams_text(result: &StreamsResult<'_>, verbose: bool) -> String {
    let mut text = if result.scenario.is_rr() { rr_table(result) } else { stream_table(result) };
    text += &datagram_table(result);
    if result.scenario.measurement.cpu {
        text += &cpu_table(result);
    }
    if !result.scenario.is_rr() {
        text += &tcp_lines(result);
    }
    text += &comparison_table(result);
    text += &remarks(result);
    for (row, book) in &result.ledgers {
        if verbose || !book.closes() {
            text += &format!("{}: {}", result.rows[*row].name, ledger_text(book));
        }
    }
    text
}

fn stream_table(result: &StreamsResult<'_>) -> String {
    let mut table = plain(&[
        "work",
        "bytes",
        "sent 10^6 bit/s",
        "received",
        "CPU % send",
        "receive",
        "µs/KB send",
        "receive",
        "runs",
    ]);
    for row in &result.rows {
        let ways = row.ways();
        for way in &ways {
            let from_client = way.from_client;
            let figure = |quantity, digits| figure(row, quantity, digits);
            table.add_row(vec![
                way_name(row, way, ways.len()),
                row.row.bytes().to_string(),
                figure(Quantity::Sent { from_client }, 2),
                figure(Quantity::Received { from_client }, 2),
                figure(Quantity::CpuPercent { client: from_client }, 2),
                figure(Quantity::CpuPercent { client: !from_client }, 2),
                figure(Quantity::Demand { client: from_client }, 3),
                figure(Quantity::Demand { client: !from_client }, 3),
                row.runs.len().to_string(),
            ]);
        }
    }
    align_right(&mut table, 1);
    format!("{table}\n")
}

fn way_name(row: &RowResult, way: &Way, ways: usize) -> String {
    let name = short_name(row);
    match (ways, way.from_client) {
        (1, _) => name,
        (_, true) => format!("{name}, there"),
        (_, false) => format!("{name}, back"),
    }
}

/// The work without its bytes, which have a column of their own, and what is special about the setting.
fn short_name(row: &RowResult) -> String {
    let setting = row.name.split_once(' ').map_or(String::new(), |(_, setting)| format!(" {setting}"));
    format!("{}{setting}", row.row.work.name())
}

fn rr_table(result: &StreamsResult<'_>) -> String {
    let mut header = vec!["work".to_owned(), "rate 1/s".into(), "µs each".into(), "least".into()];
    header.extend(PERCENTILES.iter().map(|&thousandths| format!("p{}", f64::from(thousandths) / 1000.0)));
    header.extend(["longest", "CPU % local", "remote", "µs/Tran local", "remote", "runs"].map(str::to_owned));
    let mut table = plain(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for row in &result.rows {
        let found = row.latency().as_ref().and_then(Figures::of);
        let us = |of: fn(&Figures) -> u64| found.as_ref().map_or(dash(), |found| microseconds(of(found)));
        let mut cells = vec![
            row.name.clone(),
            figure(row, Quantity::Rate, 2),
            found
                .as_ref()
                .map_or_else(|| figure(row, Quantity::Spacing, 1), |found| microseconds(found.mean_ns)),
            us(|found| found.min_ns),
        ];
        for index in 0..PERCENTILES.len() {
            let ns = found.as_ref().map(|found| found.percentiles_ns[index]);
            cells.push(ns.map_or(dash(), microseconds));
        }
        cells.push(us(|found| found.max_ns));
        cells.push(figure(row, Quantity::CpuPercent { client: true }, 2));
        cells.push(figure(row, Quantity::CpuPercent { client: false }, 2));
        cells.push(figure(row, Quantity::Demand { client: true }, 3));
        cells.push(figure(row, Quantity::Demand { client: false }, 3));
        cells.push(row.runs.len().to_string());
        table.add_row(cells);
    }
    align_right(&mut table, 1);
    let from = if result.scenario.setting.rate.is_some() {
        "latency in µs, from when each transaction was due"
    } else {
        "latency in µs, from when each transaction began"
    };
    format!("{table}\n{from}\n")
}

/// What became of datagrams, of all runs together.
fn datagram_table(result: &StreamsResult<'_>) -> String {
    let mut table = plain(&[
        "datagrams",
        "bytes",
        "sent",
        "refused",
        "received",
        "lost",
        "at the tail",
        "duplicate",
        "reordered",
        "late",
        "jitter µs",
    ]);
    let mut any = false;
    for row in result.rows.iter().filter(|row| row.row.work.is_udp() && !row.row.work.is_rr()) {
        for way in row.ways() {
            any = true;
            let found = way.datagrams;
            let count =
                |of: fn(&Datagrams) -> u64| found.as_ref().map_or(dash(), |found| thousands(of(found)));
            let tail = found.and_then(|found| found.tail_lost);
            let jitter = found.and_then(|found| found.jitter_ns);
            table.add_row(vec![
                short_name(row),
                row.row.bytes().to_string(),
                way.sent.map_or(dash(), |sent| thousands(sent.messages)),
                way.sent.map_or(dash(), |sent| thousands(sent.refused)),
                way.received.map_or(dash(), |received| thousands(received.messages)),
                count(|found| found.lost),
                tail.map_or(dash(), thousands),
                count(|found| found.duplicate),
                count(|found| found.reordered),
                count(|found| found.late),
                jitter.map_or(dash(), |ns| format!("{:.1}", ns as f64 / 1000.0)),
            ]);
        }
    }
    align_right(&mut table, 1);
    if any { format!("\n{table}\n") } else { String::new() }
}

/// What the CPUs of each end did, ms in a run.
fn cpu_table(result: &StreamsResult<'_>) -> String {
    let mut header = vec!["CPU ms a run".to_owned(), "end".into()];
    header.extend(KindOf::ALL.map(|kind| kind.name().to_owned()));
    let mut table = plain(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for row in &result.rows {
        for client in [true, false] {
            let mut cells = vec![row.name.clone(), if client { "local" } else { "remote" }.into()];
            cells.extend(KindOf::ALL.map(|kind| figure(row, Quantity::Time { client, kind }, 0)));
            table.add_row(cells);
        }
    }
    align_right(&mut table, 2);
    format!("\n{table}\n")
}

/// What the kernel told of connections at the end of the last run of each row.
fn tcp_lines(result: &StreamsResult<'_>) -> String {
    let mut text = String::new();
    for row in &result.rows {
        let Some(sender) = [&row.last.client, &row.last.server].into_iter().find(|side| sends(side)) else {
            continue;
        };
        let known: Vec<_> = sender.flows.iter().filter_map(|flow| flow.tcp.as_ref()).collect();
        let Some(first) = known.first() else { continue };
        let again: Option<u64> = known.iter().map(|tcp| tcp.retransmits).sum();
        let mut parts: Vec<String> = Vec::new();
        parts.extend(again.map(|again| format!("{} segments sent again", thousands(again))));
        parts.extend(first.rtt_us.map(|us| format!("round trip {us} µs")));
        parts.extend(first.cwnd_segments.map(|cwnd| format!("window {cwnd} segments")));
        parts.extend(first.mss_bytes.map(|mss| format!("of {mss} bytes")));
        parts.extend(first.congestion.clone());
        let whose = if known.len() > 1 { " (of the first flow)" } else { "" };
        let _ = writeln!(text, "{}: {}{whose}", row.name, parts.join(", "));
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn sends(side: &Side) -> bool {
    side.flows.iter().any(|flow| flow.sent.is_some_and(|sent| sent.bytes > 0))
}

/// The second of two settings against the first, of each row.
fn comparison_table(result: &StreamsResult<'_>) -> String {
    let Some(compare) = &result.scenario.compare else { return String::new() };
    let quantities: &[(&str, Quantity)] = if result.scenario.is_rr() {
        &[
            ("rate", Quantity::Rate),
            ("µs/Tran local", Quantity::Demand { client: true }),
            ("µs/Tran remote", Quantity::Demand { client: false }),
        ]
    } else {
        &[
            ("sent", Quantity::Sent { from_client: true }),
            ("received", Quantity::Received { from_client: true }),
            ("sent back", Quantity::Sent { from_client: false }),
            ("received back", Quantity::Received { from_client: false }),
            ("µs/KB local", Quantity::Demand { client: true }),
            ("µs/KB remote", Quantity::Demand { client: false }),
        ]
    };
    let mut table = plain(&["work", "of", "ratio", "interval", "pairs"]);
    for pair in result.rows.chunks_exact(2) {
        let [a, b] = pair else { continue };
        for (name, quantity) in quantities {
            let Some(found) = a.ratio(b, *quantity) else { continue };
            table.add_row(vec![
                a.row.to_string(),
                (*name).to_owned(),
                format!("{:.4}", found.ratio),
                format!("{:.4} … {:.4}", found.low, found.high),
                found.pairs.to_string(),
            ]);
        }
    }
    align_right(&mut table, 2);
    let level = result.rows.first().map_or(0.0, |row| 100.0 * row.level());
    format!(
        "\n{} {} as a multiple of {}, geometric means of pairs of runs at {level} %:\n{table}\n",
        compare.vary, compare.b, compare.a
    )
}

/// Whose CPU is which, and what was not known well enough.
fn remarks(result: &StreamsResult<'_>) -> String {
    let setting = &result.scenario.setting;
    let (local, remote) = (&setting.local_cpus, &setting.remote_cpus);
    let names = |cpus: &[usize]| cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = String::from("\n");
    text += &match (local.is_empty(), remote.is_empty()) {
        _ if setting.remote.is_some() => host_remark(result),
        (true, true) => "Both ends are on this machine and not pinned: CPU figures of each are those of the whole machine \
                         (-T says which CPU is whose).\n"
            .to_owned(),
        _ if local.iter().any(|cpu| remote.contains(cpu)) => format!(
            "Both ends share CPUs (local {}, remote {}): what those did stands in the figures of both.\n",
            names(local),
            names(remote)
        ),
        _ => {
            let of = |cpus: &[usize]| if cpus.is_empty() { "the whole machine".into() } else { format!("CPU {}", names(cpus)) };
            format!(
                "Both ends are on this machine: local is {}, remote is {}; CPU % is a share of all CPUs. Over a veth pair what \
                 a frame costs until it is in the other end's socket is mostly paid on the sender's CPU.\n",
                of(local),
                of(remote)
            )
        }
    };
    for row in &result.rows {
        if row.decision() == Some(Decision::NotAchieved) {
            text += &format!(
                "{}: the confidence asked for was not achieved within {} runs: ",
                row.name,
                row.runs.len()
            );
            let judged = [
                ("received there", Quantity::Received { from_client: true }),
                ("received back", Quantity::Received { from_client: false }),
                ("rate", Quantity::Rate),
                ("CPU local", Quantity::CpuPercent { client: true }),
                ("CPU remote", Quantity::CpuPercent { client: false }),
            ];
            let widths = judged
                .into_iter()
                .filter_map(|(name, quantity)| Some(format!("{name} {}", half_width(&row.mean(quantity)?))));
            text += &widths.collect::<Vec<_>>().join(", ");
            text.push('\n');
        }
    }
    if result.interrupted {
        text += "Stopped by a signal: the last run is short.\n";
    }
    text
}

/// Who the other end is, and what its figures are.
fn host_remark(result: &StreamsResult<'_>) -> String {
    let Some(remote) = &result.scenario.setting.remote else { return String::new() };
    let addresses: Vec<String> = result.answering.iter().map(|(_, address)| address.to_string()).collect();
    format!(
        "The other end is {}, by {}; CPU figures of each end are those of all CPUs of its host; – is what the other end \
         did not tell.\n",
        addresses.join(" and "),
        remote.protocol.words()
    )
}

fn half_width(mean: &Mean) -> String {
    mean.width.map_or("not known".into(), |width| format!("±{:.2} %", 50.0 * width))
}

fn figure(row: &RowResult, quantity: Quantity, digits: usize) -> String {
    row.mean(quantity).map_or(dash(), |mean| format!("{:.digits$}", mean.mean))
}

fn microseconds(ns: u64) -> String {
    let us = ns as f64 / 1000.0;
    if us < 1000.0 { format!("{us:.1}") } else { thousands(us.round() as u64) }
}

fn dash() -> String {
    "–".into()
}
