//! Writing: a journal line by line, or a record as a document or a journal at once.

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Calibration, End, Extra, Head, LedgerPart, Record, RecordError, SCHEMA, Summary, TrialPart, Warning,
};
use crate::ledger::Ledger;
use crate::slice::SliceColumns;

/// Appends the parts of a record to a file as they become known. Every part is one line, and each call
/// hands one whole line to the file and flushes it.
#[derive(Debug)]
pub struct RecordWriter<W: Write> {
    output: W,
    damaged: bool,
}

impl<W: Write> RecordWriter<W> {
    /// Starts a record with its head.
    ///
    /// # Errors
    /// [`RecordError::Write`] when the file cannot be written.
    pub fn new(output: W, head: &Head) -> Result<RecordWriter<W>, RecordError> {
        let mut writer = RecordWriter { output, damaged: false };
        writer.part("head", head)?;
        Ok(writer)
    }

    /// Appends slices that were measured since the last call.
    ///
    /// # Errors
    /// [`RecordError::Write`]; after it every call fails, since nothing may follow a broken line.
    pub fn slices(&mut self, columns: &SliceColumns) -> Result<(), RecordError> {
        self.line("slices", columns)
    }

    /// Appends a fixed cost.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices), or [`RecordError::NotRepresentable`].
    pub fn calibration(&mut self, calibration: &Calibration) -> Result<(), RecordError> {
        self.part("calibration", calibration)
    }

    /// Appends a trial of a search.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices), or [`RecordError::NotRepresentable`] when a number is not finite.
    pub fn trial(&mut self, trial: &TrialPart) -> Result<(), RecordError> {
        self.part("trial", trial)
    }

    /// Appends a ledger.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices).
    pub fn ledger(&mut self, ledger: &Ledger) -> Result<(), RecordError> {
        self.part("ledger", &LedgerPart::from(ledger.clone()))
    }

    /// Appends a warning.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices).
    pub fn warning(&mut self, warning: &Warning) -> Result<(), RecordError> {
        self.part("warning", warning)
    }

    /// Appends a summary. Where there are several, the last one counts.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices), or [`RecordError::NotRepresentable`] when a number is not finite.
    pub fn summary(&mut self, summary: &Summary) -> Result<(), RecordError> {
        self.part("summary", summary)
    }

    /// Ends the record and gives the file back.
    ///
    /// # Errors
    /// As [`slices`](RecordWriter::slices).
    pub fn end(mut self, end: &End) -> Result<W, RecordError> {
        self.part("end", end)?;
        Ok(self.output)
    }

    fn part<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        part: &T,
    ) -> Result<(), RecordError> {
        check(name, part)?;
        self.line(name, part)
    }

    fn line<T: Serialize>(&mut self, part: &'static str, fields: &T) -> Result<(), RecordError> {
        self.text(part, text(part, &Line { schema: (part == "head").then_some(SCHEMA), part, fields })?)
    }

    fn text(&mut self, part: &'static str, text: String) -> Result<(), RecordError> {
        if self.damaged {
            return Err(RecordError::Damaged { part });
        }
        write_line(&mut self.output, text).map_err(|source| {
            self.damaged = true;
            RecordError::Write { part, source }
        })
    }
}

impl Record {
    /// The record as one JSON object, in one line.
    ///
    /// # Errors
    /// [`RecordError::NotRepresentable`] when a number is not finite.
    pub fn document(&self) -> Result<String, RecordError> {
        check("head", &self.head)?;
        check("calibrations", &self.calibrations)?;
        check("trials", &self.trials)?;
        check("ledgers", &self.ledgers)?;
        check("summary", &self.summary)?;
        check("end", &self.end)?;
        let document = Document {
            schema: SCHEMA,
            head: &self.head,
            calibrations: &self.calibrations,
            slices: &self.slices,
            trials: &self.trials,
            ledgers: &self.ledgers,
            warnings: &self.warnings,
            summary: &self.summary,
            end: &self.end,
            unknown_parts: &self.unknown_parts,
            extra: &self.extra,
        };
        text("document", &document)
    }

    /// Writes the record as a journal.
    ///
    /// # Errors
    /// As those of [`RecordWriter`].
    pub fn write_journal<W: Write>(&self, output: W) -> Result<(), RecordError> {
        let mut writer = RecordWriter::new(output, &self.head)?;
        for calibration in &self.calibrations {
            writer.calibration(calibration)?;
        }
        if !self.slices.is_empty() {
            writer.slices(&self.slices)?;
        }
        for trial in &self.trials {
            writer.trial(trial)?;
        }
        for ledger in &self.ledgers {
            writer.part("ledger", ledger)?;
        }
        for warning in &self.warnings {
            writer.warning(warning)?;
        }
        if let Some(summary) = &self.summary {
            writer.summary(summary)?;
        }
        for part in &self.unknown_parts {
            writer.text("unknown", part.to_string())?;
        }
        match &self.end {
            Some(end) => writer.end(end).map(drop),
            None => Ok(()),
        }
    }
}

/// A line of the journal.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<&'static str>,
    part: &'static str,
    #[serde(flatten)]
    fields: &'a T,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    head: &'a Head,
    calibrations: &'a [Calibration],
    slices: &'a SliceColumns,
    #[serde(skip_serializing_if = "<[TrialPart]>::is_empty")]
    trials: &'a [TrialPart],
    ledgers: &'a [LedgerPart],
    warnings: &'a [Warning],
    summary: &'a Option<Summary>,
    end: &'a Option<End>,
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    unknown_parts: &'a [Value],
    #[serde(flatten)]
    extra: &'a Extra,
}

fn write_line(output: &mut impl Write, mut text: String) -> std::io::Result<()> {
    text.push('\n');
    output.write_all(text.as_bytes())?;
    output.flush()
}

fn text<T: Serialize>(part: &'static str, value: &T) -> Result<String, RecordError> {
    serde_json::to_string(value)
        .map_err(|error| RecordError::NotRepresentable { part, why: error.to_string() })
}

/// Whether the value reads back: JSON has no infinity and no NaN, and serde_json turns both into null.
fn check<T: Serialize + DeserializeOwned>(part: &'static str, value: &T) -> Result<(), RecordError> {
    let text = text(part, value)?;
    match serde_json::from_str::<T>(&text) {
        Ok(_) => Ok(()),
        Err(error) => Err(RecordError::NotRepresentable { part, why: error.to_string() }),
    }
}
