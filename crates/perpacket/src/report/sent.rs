//! What a generator sent, for people.

use std::path::Path;

use measure::gaps::{Figures, Gaps};
use measure::ledger::Ledger;
use measure::record::Generated;

use super::numbers::{signed, thousands};
use super::tables::ledger_text;
use crate::generate::Sending;

/// The line that shows how a run goes, once a second.
pub(crate) struct Live {
    asked_pps: Option<f64>,
    mean_l2_bytes: f64,
    /// When the last line was made, and what was confirmed by then.
    last: (f64, u64),
}

impl Live {
    /// For packets of this length without FCS on average.
    pub(crate) fn new(asked_pps: Option<f64>, mean_l2_bytes: f64) -> Self {
        Self { asked_pps, mean_l2_bytes, last: (0.0, 0) }
    }

    /// The next line, if a second has passed since the last.
    pub(crate) fn line(
        &mut self,
        seconds: f64,
        confirmed: u64,
        drops: impl FnOnce() -> Option<u64>,
    ) -> Option<String> {
        let passed = seconds - self.last.0;
        if passed < 1.0 {
            return None;
        }
        let pps = (confirmed - self.last.1) as f64 / passed;
        self.last = (seconds, confirmed);
        let mut line = format!(
            "{seconds:.0} s  {} pps  {}",
            thousands(pps.round() as u64),
            bits(pps * self.mean_l2_bytes * 8.0)
        );
        if let Some(drops) = drops() {
            line += &format!("  drops {}", thousands(drops));
        }
        if let Some(asked) = self.asked_pps {
            line += &format!("  rate {:+.2} %", (pps / asked - 1.0) * 100.0);
        }
        Some(line)
    }
}

/// The totals: what was sent and who says so, the rate, the gaps, and what every packet became.
pub(crate) fn sending_text(sending: &Sending, verbose: bool) -> String {
    let g = &sending.generated;
    let mut text = format!("{}\n{}\n", totals(g, sending), rate(g, sending));
    if let Some((gaps, figures)) = sending.gaps.as_ref().and_then(|gaps| Some((gaps, gaps.figures()?))) {
        text += &gap_line(&figures, g);
        if verbose {
            text += &histogram(gaps);
        }
    }
    if g.workers.len() > 1 {
        for worker in &g.workers {
            text += &format!(
                "  CPU {}: {} packets, {} pps, {:.0} ns CPU time a packet\n",
                worker.cpu,
                thousands(worker.packets),
                thousands(per_second(worker.packets, worker.wall_ns)),
                worker.cpu_ns as f64 / worker.packets.max(1) as f64
            );
        }
    }
    if let Some(book) = &sending.ledger {
        for count in &book.received {
            text += &format!("{} by {}\n", thousands(count.packets), count.seen_by);
        }
        for note in &book.notes {
            text += &format!("{note}\n");
        }
        if verbose || !book.closes() || book.dropped_packets() > 0 {
            text += &ledger_text(book);
        }
    }
    if let Some(hint) = &sending.hint {
        text += &format!("{hint}\n");
    }
    if let Some(difference) = sending.disagreement {
        text += &format!("the counter of the device differs from what was sent by {}\n", signed(difference));
    }
    for failure in &sending.failures {
        text += &format!("ended early: {failure}\n");
    }
    text
}

/// What is said about a program: the sentence, and the place.
pub(crate) fn language_text(warning: &template::Warning) -> String {
    format!("warning: {warning}\n")
}

/// What was written to a capture file.
pub(crate) fn written_text(path: &Path, packets: u64, l2_bytes: u64, interrupted: bool) -> String {
    format!(
        "wrote {} packets, {} bytes (without FCS), to {}{}\n",
        thousands(packets),
        thousands(l2_bytes),
        path.display(),
        if interrupted { "; stopped by a signal" } else { "" }
    )
}

fn totals(g: &Generated, sending: &Sending) -> String {
    // What cannot be found again was made, but whether it left is not known.
    let is_confirmed = sending.ledger.as_ref().is_none_or(Ledger::closes);
    let mut line = format!(
        "{} {} packets, {} bytes (without FCS), in {:.3} s",
        if is_confirmed { "sent" } else { "handed over" },
        thousands(g.packets),
        thousands(g.l2_bytes),
        g.wall_ns as f64 / 1e9
    );
    if let Some(book) = &sending.ledger {
        line += &format!(" ({})", book.sent.seen_by);
    }
    match sending.wanted {
        Some(wanted) if wanted != g.packets => {
            let missing = signed(wanted as i64 - g.packets as i64);
            let why = if sending.interrupted { "stopped by a signal" } else { "not sent" };
            line + &format!("; {missing} of {} {why}", thousands(wanted))
        }
        _ => line,
    }
}

fn rate(g: &Generated, sending: &Sending) -> String {
    let pps = per_second(g.packets, g.wall_ns);
    let l2 = g.l2_bytes as f64 * 8e9 / g.wall_ns.max(1) as f64;
    let overhead = f64::from(measure::wire::FCS_BYTES + measure::wire::WIRE_OVERHEAD_BYTES);
    let wire = l2 + overhead * 8e9 * g.packets as f64 / g.wall_ns.max(1) as f64;
    let cpu: u64 = g.workers.iter().map(|worker| worker.cpu_ns).sum();
    let mut line = format!(
        "{} pps, {} of frames, {} on the wire; {:.1} ns CPU time a packet",
        thousands(pps),
        bits(l2),
        bits(wire),
        cpu as f64 / g.packets.max(1) as f64
    );
    if let (Some(asked), Some(error)) = (g.asked_pps, sending.rate_error()) {
        let held = if sending.rate_held() { "held" } else { "NOT HELD" };
        let asked = if asked < 10.0 { format!("{asked}") } else { thousands(asked.round() as u64) };
        line += &format!("\nasked {asked} pps: {held} ({:+.3} %)", error * 100.0);
    }
    line
}

fn gap_line(gaps: &Figures, g: &Generated) -> String {
    let asked = g.asked_pps.map_or("as recorded".into(), |pps| {
        format!("asked {}", thousands((1e9 / pps * g.workers.len() as f64).round() as u64))
    });
    let grain = match g.grain {
        Some(1) | None => "one packet at a time".to_owned(),
        Some(grain) => format!("up to {grain} packets at a time (gaps within are 0)"),
    };
    format!(
        "gaps of a thread, ns: {asked}, median {}, p1 {}, p99 {}, p99.9 {}, shortest {}, longest {}; {grain}\n",
        thousands(gaps.median_ns),
        thousands(gaps.p1_ns),
        thousands(gaps.p99_ns),
        thousands(gaps.p999_ns),
        thousands(gaps.shortest_ns),
        thousands(gaps.longest_ns),
    )
}

/// The gaps by powers of two.
fn histogram(gaps: &Gaps) -> String {
    let mut text = String::new();
    let all = gaps.count() as f64;
    let (shortest, longest) = gaps.range().unwrap_or((0, 0));
    let mut low = if shortest == 0 { 0 } else { 1_u64 << shortest.ilog2() };
    while low <= longest {
        let high = if low == 0 { 0 } else { low * 2 - 1 };
        let count = gaps.between(low, high);
        if count > 0 {
            let share = count as f64 / all;
            let bar = "#".repeat((share * 50.0).ceil() as usize);
            text += &format!(
                "  {:>13} – {:>13} ns {:>8.4} % {bar}\n",
                thousands(low),
                thousands(high),
                share * 100.0
            );
        }
        low = high + 1;
    }
    text
}

pub(super) fn per_second(packets: u64, wall_ns: u64) -> u64 {
    (packets as f64 * 1e9 / wall_ns.max(1) as f64).round() as u64
}

/// Bits per second with three digits and a prefix.
pub(super) fn bits(bit_per_s: f64) -> String {
    let (value, unit) = match bit_per_s {
        b if b >= 1e9 => (b / 1e9, "Gbit/s"),
        b if b >= 1e6 => (b / 1e6, "Mbit/s"),
        b if b >= 1e3 => (b / 1e3, "kbit/s"),
        b => (b, "bit/s"),
    };
    format!("{value:.2} {unit}")
}
