//! Looking before sending: the packets field by field, and what the first ones are.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use template::{Audit, Problem};

use super::source::Source;
use crate::report::{self, Outcome, language_text, prints_text, write_stdout};
use crate::scenario::Generate;

/// Packets of a program or a capture file that are explained.
const EXPLAINED: usize = 8;
/// The most packets that are checked: they are made one by one, and the flows are kept.
const MOST_CHECKED: u64 = 10_000_000;

/// Prints what would be sent, and sends nothing.
pub(crate) fn look(
    scenario: &Generate,
    explain: bool,
    check: Option<u64>,
    json: Option<&Path>,
) -> Result<Outcome> {
    ensure!(json.is_none() || check.is_some(), "--json is for --check; --explain is for people");
    let source = Source::open(scenario)?;
    let mut text = String::new();
    if explain {
        text += &explained(scenario, &source)?;
    }
    let mut outcome = Outcome::Good;
    if let Some(count) = check {
        ensure!(
            (1..=MOST_CHECKED).contains(&count),
            "check {count} packets: 1 to {MOST_CHECKED} are possible"
        );
        let mut audit = Audit::new();
        source.first_packets(count, |frame| audit.add(frame))?;
        if audit.problems().any(|(problem, _)| !is_remark(problem)) {
            outcome = Outcome::No;
        }
        text += &report::audit_text(&audit);
        if let Some(file) = json {
            report::write_json(file, &report::AuditJson::of(&audit))?;
        }
    }
    if prints_text(json) {
        write_stdout(&text)?;
    }
    Ok(outcome)
}

/// Whether a receiver may take such a packet all the same, so that it can be meant.
fn is_remark(problem: Problem) -> bool {
    matches!(problem, Problem::Runt | Problem::GroupSource | Problem::TtlZero)
}

/// The program, what is to be said about it, and its packets.
fn explained(scenario: &Generate, source: &Source) -> Result<String> {
    let mut text = String::new();
    match source {
        Source::Program { compiled, .. } => {
            if let Some(program) = &scenario.packets.program {
                text += &format!("{}\n\n", program.trim_end());
            }
            for warning in &compiled.warnings {
                text += &language_text(warning);
            }
            let packets = compiled.plan.packets();
            for packet in 0..packets.min(EXPLAINED) {
                let l2_bytes = compiled.plan.l2_bytes(packet).unwrap_or(0);
                text += &format!("packet {} of {packets}, {} bytes with FCS\n", packet + 1, l2_bytes + 4);
                text += &compiled.plan.explain(packet).context("the program lost a packet")?;
            }
            if packets > EXPLAINED {
                text += &format!("… and {} more\n", packets - EXPLAINED);
            }
        }
        Source::Capture(_) => {
            let mut number = 0;
            source.first_packets(EXPLAINED as u64, |frame| {
                number += 1;
                text += &format!("packet {number}, {} bytes with FCS\n", frame.len() + 4);
                text += &template::explain(frame);
            })?;
        }
    }
    Ok(text)
}
