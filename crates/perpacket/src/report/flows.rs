//! What became of paced flows, for people.

use anyhow::Result;
use measure::record::{FlowRun, Head};
use measure::share::{MedianOf, ShareVerdict, VERDICT_CONFIDENCE};

use super::numbers::thousands;
use super::opening::machine;
use super::search::refused_line;
use super::svg::{Panel, Plot, Point, Scale, Series};
use super::tables::{align_right, ledger_text, plain};
use crate::flows::{Blueprint, Figures, FlowsResult, longest_gap_ns, paused};
use crate::scenario::Flows;

/// Flows whose shares are shown without being asked for.
const FEW_FLOWS: usize = 16;
/// Runs whose shares are shown without being asked for.
const FEW_RUNS: usize = 20;

/// A line on the machine and one on the scenario; the whole scenario with `verbose`.
pub(crate) fn flows_opening(
    scenario: &Flows,
    head: &Head,
    blueprints: &[Blueprint],
    verbose: bool,
) -> Result<String> {
    let blueprint = &blueprints[0];
    let receivers: Vec<String> = blueprint.receiver_cpus.iter().map(ToString::to_string).collect();
    let on = format!("sender on CPU {}, receivers on {}", blueprint.sender_cpu, receivers.join(", "));
    let mut text = format!("{}{}\n", machine(head, &on), in_a_line(scenario, blueprints));
    if verbose {
        text += &format!("\n{}\n", scenario.to_toml()?);
    }
    Ok(text)
}

fn in_a_line(scenario: &Flows, blueprints: &[Blueprint]) -> String {
    let setting = &scenario.setting;
    let runs = scenario.measurement.runs;
    let mut line = format!(
        "flows by {}, frames of {} bytes, {} packets a run, {runs} run{}",
        both(blueprints.iter().map(|b| b.setting.backend.map_or(String::new(), |kind| kind.to_string()))),
        both(blueprints.iter().map(|b| b.setting.frame.to_string())),
        thousands(scenario.load.packets),
        if runs == 1 { "" } else { "s" }
    );
    if let Some(compare) = &scenario.compare {
        line += &format!(" of each, {} {} against {}", compare.vary.name(), compare.a, compare.b);
    }
    let varies = scenario.compare.as_ref().map(|compare| compare.vary.name());
    for (name, value) in setting.changed().into_iter().filter(|(name, _)| Some(*name) != varies) {
        line += &format!(", {name} {value}");
    }
    line + &format!(", seed {}", scenario.measurement.seed)
}

/// The load, the settings side by side, flows, CPUs, what each run received, the difference, and ledgers that do not close.
pub(crate) fn flows_text(result: &FlowsResult, verbose: bool) -> String {
    let figures = result.figures();
    let mut text = load_lines(result);
    text += &settings_table(&figures);
    text += &missing_lines(&figures);
    if verbose || is_short(result) {
        text += &flows_table(result, &figures);
    }
    text += &cpu_table(result, &figures);
    if verbose {
        text += &receivers_table(result);
    }
    if verbose || figures.iter().all(|own| own.shares.len() <= FEW_RUNS) {
        text += &runs_lines(result, &figures);
    }
    text += &remarks(result, &figures);
    text += &difference_line(result, &figures);
    for (run, book) in result.flows.runs.iter().zip(&result.ledgers) {
        if verbose || !book.closes() {
            text += &format!("run {}: {}", run.repetition + 1, ledger_text(book));
        }
    }
    text
}

/// What the question is about, always: rate, ports and flows.
fn load_lines(result: &FlowsResult) -> String {
    let packets = result.scenario.load.packets;
    let mut lines: Vec<String> = Vec::new();
    for blueprint in &result.blueprints {
        let setting = &blueprint.setting;
        // Of few packets not every source is met.
        let sources = match u64::from(setting.source_count()).min(packets) {
            1 => String::new(),
            sources => format!(" from {} source addresses", thousands(sources)),
        };
        let flows = setting.distinct_flows(packets);
        let line = format!(
            "{} pps, {} port{}, {} flow{}{sources}",
            thousands(setting.pps().unwrap_or_default().round() as u64),
            setting.port_count(),
            if setting.port_count() == 1 { "" } else { "s" },
            thousands(flows),
            if flows == 1 { "" } else { "s" },
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

fn settings_table(figures: &[Figures]) -> String {
    let mut table = plain(&[
        "setting",
        "achieved pps",
        "longest gap µs",
        "received",
        "interval",
        "delay p50 µs",
        "p99",
        "longest",
        "reordered",
        "busy ns/packet",
        "of it sender",
    ]);
    for own in figures {
        let delay = |index: usize| own.delay_ns.map_or(dash(), |ns| microseconds(ns[index]));
        table.add_row(vec![
            own.name.clone(),
            achieved(own),
            own.longest_gap_ns.map_or(dash(), microseconds),
            own.share.map_or(dash(), |share| percent(share.median)),
            own.share.as_ref().map_or(dash(), interval),
            delay(0),
            delay(1),
            delay(2),
            own.reordered.map_or(dash(), thousands),
            own.busy_ns.map_or(dash(), |ns| format!("{ns:.0}")),
            own.sender_ns.map_or(dash(), |ns| format!("{ns:.0}")),
        ]);
    }
    align_right(&mut table, 1);
    format!("{table}\n")
}

/// The rate of all runs, or its range.
fn achieved(own: &Figures) -> String {
    let Some((least, most)) = own.achieved_pps else { return dash() };
    let [least, most] = [least, most].map(|pps| thousands(pps.round() as u64));
    let range = if least == most { least } else { format!("{least} – {most}") };
    if own.offered == own.runs { range } else { format!("{range} NOT HELD") }
}

/// Where packets ended that were not received, for each setting.
fn missing_lines(figures: &[Figures]) -> String {
    let mut text = String::new();
    for own in figures.iter().filter(|own| own.runs > 0) {
        let missing = own.sent - own.received.min(own.sent);
        text += &format!("{}: {} of {} packets missing", own.name, thousands(missing), thousands(own.sent));
        let parts: Vec<String> =
            own.missing.iter().map(|(reason, packets)| format!("{} {reason}", thousands(*packets))).collect();
        if !parts.is_empty() {
            text += &format!(": {}", parts.join("; "));
        }
        if own.unaccounted != 0 {
            text += &format!("; {} NOT ACCOUNTED FOR", own.unaccounted);
        }
        text.push('\n');
        if let Some(refused) = own.refused.filter(|&refused| refused > 0) {
            text += &refused_line(&own.name, refused);
        }
    }
    text
}

fn is_short(result: &FlowsResult) -> bool {
    result.flows.runs.iter().all(|run| run.flows.len() <= FEW_FLOWS)
}

/// The share of each flow that was received, of all runs together.
fn flows_table(result: &FlowsResult, figures: &[Figures]) -> String {
    let count = result.flows.runs.iter().map(|run| run.flows.len()).max().unwrap_or(0);
    let mut header = vec!["flow".to_owned(), "port".into()];
    for own in figures {
        header.push(format!("received, {}", own.name));
        header.push("reordered".into());
    }
    let mut table = plain(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for flow in 0..count {
        let mut row = vec![flow.to_string(), String::new()];
        for variant in 0..figures.len() {
            let own = || result.of_whole(variant).filter_map(|(run, _)| run.flows.get(flow));
            let (sent, received) =
                own().fold((0, 0), |(sent, received), flow| (sent + flow.sent, received + flow.received));
            row[1] = own().map(|flow| flow.port.to_string()).next().unwrap_or(row[1].clone());
            row.push(if sent == 0 { dash() } else { percent(received as f64 / sent as f64) });
            row.push(own().map(|flow| flow.reordered).sum::<Option<u64>>().map_or(dash(), thousands));
        }
        table.add_row(row);
    }
    align_right(&mut table, 0);
    format!("\n{table}\n")
}

/// What each CPU did during the runs, and what was received on it.
fn cpu_table(result: &FlowsResult, figures: &[Figures]) -> String {
    let mut table =
        plain(&["CPU", "setting", "received here", "softirq", "system", "user", "irq", "idle", "steal"]);
    let cpus = result.flows.runs.iter().flat_map(|run| &run.cpus).map(|cpu| cpu.cpu).max();
    for cpu in 0..=cpus.unwrap_or(0) {
        for (variant, own) in figures.iter().enumerate() {
            if let Some(row) = cpu_row(result, variant, cpu) {
                let (number, name) = (cpu.to_string(), own.name.clone());
                table.add_row([vec![number, name], row].concat());
            }
        }
    }
    align_right(&mut table, 2);
    format!("\n{table}\n")
}

fn cpu_row(result: &FlowsResult, variant: usize, cpu: u32) -> Option<Vec<String>> {
    let runs = || result.of_whole(variant).map(|(run, _)| run);
    let uses: Vec<_> = runs().flat_map(|run| &run.cpus).filter(|own| own.cpu == cpu).collect();
    if uses.is_empty() {
        return None;
    }
    let sum = |part: fn(&measure::record::CpuUse) -> u64| uses.iter().map(|own| part(own)).sum::<u64>();
    let all = sum(|own| own.busy_ns() + own.idle_ns + own.steal_ns.unwrap_or(0)).max(1);
    let share = |ns: u64| format!("{:.0} %", 100.0 * ns as f64 / all as f64);
    let here: u64 = runs().flat_map(|run| &run.receivers).filter(|r| r.cpu == cpu).map(|r| r.packets).sum();
    let steal = uses.iter().map(|own| own.steal_ns).sum::<Option<u64>>();
    Some(vec![
        thousands(here),
        share(sum(|own| own.softirq_ns)),
        share(sum(|own| own.system_ns)),
        share(sum(|own| own.user_ns)),
        share(sum(|own| own.irq_ns)),
        share(sum(|own| own.idle_ns)),
        steal.map_or(dash(), share),
    ])
}

/// Every socket of the last run of each setting.
fn receivers_table(result: &FlowsResult) -> String {
    let mut table = plain(&[
        "setting",
        "run",
        "port",
        "socket",
        "CPU",
        "received",
        "dropped",
        "packets/call",
        "CPU ns/packet",
        "buffer",
    ]);
    for variant in 0..result.blueprints.len() {
        let Some((run, _)) = result.of(variant).last() else { continue };
        for own in &run.receivers {
            let per = |amount: u64, count: u64| {
                if count == 0 { dash() } else { format!("{:.1}", amount as f64 / count as f64) }
            };
            table.add_row(vec![
                result.scenario.name(variant),
                (run.repetition + 1).to_string(),
                own.port.to_string(),
                own.socket.to_string(),
                own.cpu.to_string(),
                thousands(own.packets),
                own.drops.map_or(dash(), thousands),
                per(own.packets, own.calls),
                own.cpu_ns.map_or(dash(), |ns| per(ns, own.packets)),
                own.buffer_bytes.map_or(dash(), thousands),
            ]);
        }
    }
    align_right(&mut table, 1);
    format!("\n{table}\n")
}

/// The share received in every single run.
fn runs_lines(result: &FlowsResult, figures: &[Figures]) -> String {
    let mut text = String::from("\nruns, received:\n");
    for (variant, own) in figures.iter().enumerate() {
        let one = |run: &FlowRun| {
            if run.sent != run.packets {
                // It counts for nothing above.
                return format!("cut short after {} packets", thousands(run.sent));
            }
            let share = run.share().map_or(dash(), percent);
            let held = if run.is_offered { "" } else { " (rate not held)" };
            let gap = longest_gap_ns(run).filter(|_| paused(run));
            let gap = gap.map_or(String::new(), |ns| format!(" (a gap of {} µs)", microseconds(ns)));
            share + held + &gap
        };
        let shares: Vec<String> = result.of(variant).map(|(run, _)| one(run)).collect();
        text += &format!("  {}: {}\n", own.name, shares.join(", "));
    }
    text
}

/// What a reader must know beside the figures.
fn remarks(result: &FlowsResult, figures: &[Figures]) -> String {
    let mut text = String::new();
    for own in figures.iter().filter(|own| own.offered < own.runs) {
        text += &format!(
            "{}: the rate was not held to a thousandth in {} of {} runs: {} pps were asked for\n",
            own.name,
            own.runs - own.offered,
            own.runs,
            thousands(own.asked_pps.round() as u64)
        );
    }
    let unstamped: u64 = result.flows.runs.iter().filter_map(|run| run.unstamped).sum();
    if unstamped > 0 {
        text += &format!("{} packets came without number and time\n", thousands(unstamped));
    }
    let short = result.flows.runs.iter().flat_map(|run| {
        let asked = 2 * result.blueprints[usize::from(run.variant)].setting.rcvbuf;
        run.receivers.iter().filter_map(|own| own.buffer_bytes).filter(move |&got| got < asked)
    });
    if let Some(least) = short.min() {
        text += &format!(
            "receive buffers have {} bytes, less than was asked for: net.core.rmem_max limits what others than root get\n",
            thousands(least)
        );
    }
    if result.interrupted {
        text += "stopped by a signal\n";
    }
    text
}

fn difference_line(result: &FlowsResult, figures: &[Figures]) -> String {
    let [a, b] = figures else { return String::new() };
    let Some(found) = &result.flows.difference else {
        return format!("{} against {}: no pair of whole runs\n", b.name, a.name);
    };
    let points = |share: f64| format!("{:+.3}", 100.0 * share);
    let verdict = match found.verdict {
        ShareVerdict::MoreReceived => "more received",
        ShareVerdict::FewerReceived => "fewer received",
        ShareVerdict::NoDifference => "no difference",
        ShareVerdict::Inconclusive if found.difference.confidence < VERDICT_CONFIDENCE => {
            "inconclusive, so few pairs cannot decide it: use --runs 5 or more"
        }
        ShareVerdict::Inconclusive => "inconclusive",
    };
    format!(
        "{} against {}: {} points of share received, {} … {} at {} (median of {} pairs): {verdict}\n",
        b.name,
        a.name,
        points(found.difference.median),
        points(found.difference.interval.low),
        points(found.difference.interval.high),
        level(found.difference.confidence),
        found.pairs
    )
}

/// The share received over the runs, a line for each setting.
pub(crate) fn flows_svg(result: &FlowsResult) -> String {
    let figures = result.figures();
    let series = figures.iter().map(|own| Series {
        name: own.name.clone(),
        points: own
            .shares
            .iter()
            .enumerate()
            .filter_map(|(place, share)| {
                let value = 100.0 * (*share)?;
                Some(Point { place, value, low: value, high: value })
            })
            .collect(),
    });
    let series: Vec<Series> = series.collect();
    let least = series.iter().flat_map(|own| &own.points).map(|point| point.value).fold(100.0, f64::min);
    // The narrowest of these that has all points.
    let low = [99.0, 90.0, 50.0, 0.0].into_iter().find(|&low| least >= low).unwrap_or(0.0);
    let runs = figures.iter().map(|own| own.shares.len()).max().unwrap_or(0);
    Plot {
        title: format!("share received, %; {}", load_lines(result).lines().collect::<Vec<_>>().join(" / ")),
        across: "run".into(),
        places: (1..=runs).map(|run| run.to_string()).collect(),
        panels: vec![Panel { title: String::new(), series }],
        scale: Scale::Linear { low, high: 100.0, steps: 10 },
    }
    .svg()
}

fn dash() -> String {
    "–".into()
}

fn percent(share: f64) -> String {
    format!("{:.3} %", 100.0 * share)
}

fn interval(of: &MedianOf) -> String {
    if of.confidence == 0.0 {
        return dash();
    }
    format!("{:.3} … {:.3} at {}", 100.0 * of.interval.low, 100.0 * of.interval.high, level(of.confidence))
}

fn level(confidence: f64) -> String {
    format!("{:.2} %", 100.0 * confidence)
}

fn microseconds(ns: u64) -> String {
    let us = ns as f64 / 1_000.0;
    if us < 100.0 { format!("{us:.1}") } else { thousands(us.round() as u64) }
}

/// A word, or all where they differ.
fn both(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    words.dedup();
    words.join(" and ")
}
