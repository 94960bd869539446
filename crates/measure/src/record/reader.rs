//! Reading both forms, strictly where a mistake would go unnoticed and leniently where a run was cut off.

use std::io::BufRead;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Calibration, End, LedgerPart, Record, RecordError, SCHEMA, Summary, TrialPart, Warning};
use crate::slice::SliceColumns;

/// Reads a record, journal or document.
///
/// A journal whose last line is incomplete is a run that was killed: everything before it is kept and
/// [`Record::interrupted`] is set.
///
/// # Errors
/// [`RecordError`]: the bytes cannot be read, are no record, are of a newer version, or a part is damaged.
pub fn read(mut input: impl BufRead) -> Result<Record, RecordError> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes).map_err(RecordError::Read)?;
    match document(&bytes) {
        Some(fields) => {
            check_schema(&fields)?;
            read_document(fields)
        }
        None => read_journal(&bytes),
    }
}

/// The whole input as one object, if it is that and not a journal of a single line.
fn document(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) if !fields.contains_key("part") => Some(fields),
        _ => None,
    }
}

fn read_document(mut fields: Map<String, Value>) -> Result<Record, RecordError> {
    let mut record = Record::new(required(&mut fields, "head")?);
    record.calibrations = required(&mut fields, "calibrations")?;
    record.slices = required(&mut fields, "slices")?;
    record.ledgers = required(&mut fields, "ledgers")?;
    record.summary = required(&mut fields, "summary")?;
    record.warnings = required(&mut fields, "warnings")?;
    record.end = required(&mut fields, "end")?;
    record.interrupted = record.end.is_none();
    if fields.contains_key("trials") {
        record.trials = required(&mut fields, "trials")?;
    }
    if fields.contains_key("unknown_parts") {
        record.unknown_parts = required(&mut fields, "unknown_parts")?;
    }
    fields.remove("schema");
    record.extra = fields.into_iter().collect();
    Ok(record)
}

fn required<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Result<T, RecordError> {
    let fault =
        |why: String| RecordError::Part { part: name.to_owned(), place: ", document".to_owned(), why };
    let value = fields.remove(name).ok_or_else(|| fault("it is missing".to_owned()))?;
    T::deserialize(value).map_err(|error| fault(error.to_string()))
}

fn read_journal(bytes: &[u8]) -> Result<Record, RecordError> {
    let mut lines = Lines { rest: bytes, number: 0 };
    let Some(head) = lines.next_object()? else { return Err(RecordError::Empty) };
    check_schema(&head)?;
    let mut part = Part::new(head, lines.number)?;
    if part.name != "head" {
        return Err(RecordError::NotARecord { found: format!("the first part is {}", part.name) });
    }
    part.fields.remove("schema");
    let mut record = Record::new(part.read()?);
    while let Some(fields) = lines.next_object()? {
        Part::new(fields, lines.number)?.add_to(&mut record)?;
    }
    record.interrupted = record.end.is_none();
    Ok(record)
}

/// The lines of a journal.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl Lines<'_> {
    /// The object of the next line that is not blank. `None` at the end, and at a last line that breaks off.
    fn next_object(&mut self) -> Result<Option<Map<String, Value>>, RecordError> {
        while !self.rest.is_empty() {
            self.number += 1;
            let end = self.rest.iter().position(|&byte| byte == b'\n');
            let (line, rest) = match end {
                Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let cut_off = |error: &serde_json::Error| end.is_none() || (rest.is_empty() && error.is_eof());
            return match serde_json::from_slice(line) {
                Ok(Value::Object(fields)) => Ok(Some(fields)),
                Ok(other) => Err(RecordError::NotARecord {
                    found: format!("line {} is {}", self.number, kind(&other)),
                }),
                Err(error) if self.number > 1 && cut_off(&error) => Ok(None),
                Err(error) if rest.is_empty() && error.is_eof() => Err(RecordError::Empty),
                Err(source) => Err(RecordError::Syntax { line: self.number, source }),
            };
        }
        Ok(None)
    }
}

/// One line of a journal.
struct Part {
    name: String,
    line: usize,
    fields: Map<String, Value>,
}

impl Part {
    fn new(mut fields: Map<String, Value>, line: usize) -> Result<Part, RecordError> {
        match fields.remove("part") {
            Some(Value::String(name)) => Ok(Part { name, line, fields }),
            _ => Err(RecordError::NotARecord { found: format!("line {line} does not say which part it is") }),
        }
    }

    fn add_to(mut self, record: &mut Record) -> Result<(), RecordError> {
        if record.end.is_some() {
            return Err(self.fault("it stands behind the end".to_owned()));
        }
        match self.name.as_str() {
            "head" => return Err(self.fault("there is a second one".to_owned())),
            "slices" => {
                let columns: SliceColumns = self.read()?;
                record.slices.extend(&columns);
            }
            "calibration" => record.calibrations.push(self.read::<Calibration>()?),
            "trial" => record.trials.push(self.read::<TrialPart>()?),
            "ledger" => record.ledgers.push(self.read::<LedgerPart>()?),
            "warning" => record.warnings.push(self.read::<Warning>()?),
            "summary" => record.summary = Some(self.read::<Summary>()?),
            "end" => record.end = Some(self.read::<End>()?),
            _ => {
                self.fields.insert("part".to_owned(), Value::String(self.name));
                record.unknown_parts.push(Value::Object(self.fields));
            }
        }
        Ok(())
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T, RecordError> {
        let fields = Value::Object(std::mem::take(&mut self.fields));
        T::deserialize(fields).map_err(|error| self.fault(error.to_string()))
    }

    fn fault(&self, why: String) -> RecordError {
        RecordError::Part { part: self.name.clone(), place: format!(", line {}", self.line), why }
    }
}

/// Refuses what is no record and what a newer program wrote.
fn check_schema(fields: &Map<String, Value>) -> Result<(), RecordError> {
    let Some(Value::String(schema)) = fields.get("schema") else {
        return Err(RecordError::NotARecord { found: "it has no field schema".to_owned() });
    };
    if schema == SCHEMA {
        return Ok(());
    }
    let found = schema.clone();
    match schema.strip_prefix("perpacket.record/").map(str::parse::<u32>) {
        Some(Ok(version)) if version > 1 => Err(RecordError::NewerVersion { found }),
        _ => Err(RecordError::NotARecord { found: format!("its schema is {found:?}") }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
