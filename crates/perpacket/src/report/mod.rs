//! From results to text: the only place that prints.

mod alloc;
mod arrivals;
mod audit;
mod costs;
mod datapath;
mod file;
mod flows;
mod numbers;
mod opening;
mod search;
mod sent;
mod serve;
mod stream;
mod stream_formats;
mod svg;
mod tables;

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

pub(crate) use self::stream::{interval_line, streams_opening, streams_text};
pub(crate) use alloc::{AllocResult, alloc_opening, alloc_svg, alloc_text};
pub(crate) use arrivals::{
    Amount, Arrivals, Ended, FlowRow, Lost, MarksPart, Part, SCHEMA, StreamRow, arrivals_text,
};
pub(crate) use audit::{AuditJson, audit_text};
pub(crate) use costs::{CellResult, cost_table, counters_text};
pub(crate) use datapath::{DatapathLive, datapath_opening, datapath_text};
pub(crate) use file::{OutputFile, each_its_own_file};
pub(crate) use flows::{flows_opening, flows_svg, flows_text};
pub(crate) use opening::{generator_opening, opening, warning_line};
pub(crate) use search::{search_opening, search_svg, search_text, trial_line};
pub(crate) use sent::{Live, language_text, sending_text, written_text};
pub(crate) use serve::{served_line, serving_opening};
pub(crate) use stream_formats::{iperf3_json, netperf_columns};
pub(crate) use tables::{comparison_table, ledger_text, subject};

/// How a command ended, and so the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 0: it did what was asked.
    Good,
    /// 1: the answer is no, for example packets that are not accounted for.
    No,
    /// 3: what was measured does not decide it.
    Inconclusive,
}

impl Outcome {
    /// The graver of two.
    pub(crate) fn worst(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Inconclusive, _) | (_, Self::Inconclusive) => Self::Inconclusive,
            (Self::Good, Self::Good) => Self::Good,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Good => Self::from(0),
            Outcome::No => Self::from(1),
            Outcome::Inconclusive => Self::from(3),
        }
    }
}

/// Prints the error chain once. The process then ends with 2.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    write_stderr(&format!("perpacket: {}\n", chain(error)));
    ExitCode::from(2)
}

/// What was being done, on what, and why it failed, in one line. A cause that the text before it already tells is left
/// out: errors of the kernel stand in the message of the call that got them, and are its cause too.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

/// Writes to standard output; a reader that has gone away is no error.
pub(crate) fn write_stdout(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("write to standard output"),
    }
}

/// Writes to standard error. Where that fails there is nobody left to tell.
pub(crate) fn write_stderr(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Whether standard output is for people to read: no JSON goes there.
pub(crate) fn prints_text(json: Option<&Path>) -> bool {
    json.is_none_or(|file| file.as_os_str() != "-")
}

/// Writes a value as JSON to a file, or to standard output for `-`.
pub(crate) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    OutputFile::open(file)?.write(&(serde_json::to_string(value)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_everything_once() {
        let refused = linux::SyscallError::new("open", "/dev/x", ErrorKind::PermissionDenied.into());
        let error = anyhow::Error::new(refused).context("look at x");
        assert_eq!(format!("{error:#}"), "look at x: open on /dev/x: permission denied: permission denied");
        assert_eq!(chain(&error), "look at x: open on /dev/x: permission denied");
        assert_eq!(chain(&anyhow::anyhow!("alone")), "alone");
    }

    #[test]
    fn the_graver_outcome_wins() {
        let all = [Outcome::Good, Outcome::Inconclusive, Outcome::No];
        for (index, &graver) in all.iter().enumerate() {
            for &other in &all[..=index] {
                assert_eq!((graver.worst(other), other.worst(graver)), (graver, graver));
            }
        }
    }
}
