//! From results to text: the only place that prints.

mod numbers;
mod opening;
mod tables;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

pub(crate) use opening::{opening, warning_line};
pub(crate) use tables::{comparison_table, cost_table, ledger_text};

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
    write_stderr(&format!("perpacket: {error:#}\n"));
    ExitCode::from(2)
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

/// Writes a value as JSON to a file, or to standard output for `-`.
pub(crate) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    write_text(file, &(serde_json::to_string(value)? + "\n"))
}

/// Writes text to a file, or to standard output for `-`.
pub(crate) fn write_text(file: &Path, text: &str) -> Result<()> {
    if file.as_os_str() == "-" {
        return write_stdout(text);
    }
    let mut out = File::create(file).with_context(|| format!("create {}", file.display()))?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).with_context(|| format!("write {}", file.display()))
}
