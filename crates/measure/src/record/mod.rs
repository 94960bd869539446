//! `perpacket.record/1`: what one run leaves behind.
//!
//! A record must survive a crash, a full disk and five years of new versions. So it is written as a
//! *journal*, one JSON object a line, each line appended when its content is known and none rewritten: a
//! killed run loses at most its last line. The same content as one JSON object, the *document*, is for
//! programs that read whole files. [`read`] takes both. Fields and parts that this version does not know are
//! kept and written back; a newer version of the schema is refused. `docs/formats.md` lists every field.
//!
//! Rates are derived from times and never stored alone, so that the two can never disagree.

mod datapath;
mod environment;
mod flows;
mod parts;
mod reader;
mod search;
mod stream;
mod writer;

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

pub use datapath::{
    Datapath, DatapathEvent, DatapathFaults, DatapathMemory, DatapathPort, DatapathQueue, DatapathThread,
};
pub use environment::{Device, Emulator, Environment};
pub use flows::{CpuUse, FlowCount, FlowReceiver, FlowRun, FlowSender, Flows};
pub use parts::{
    Calibration, CapabilityProbe, Clock, ComparisonRow, CostRow, End, Generated, GeneratedBy, Head,
    LedgerPart, MemoryRow, Outcome, Program, Summary, Variant, Warning,
};
pub use reader::read;
pub use search::{SearchGoal, SearchRow, TrialPart};
pub use stream::{StreamRow, StreamRun, Streams};
pub use writer::RecordWriter;

use crate::ledger::Ledger;
use crate::slice::SliceColumns;

/// Name and version of the schema, as it stands in every record.
pub const SCHEMA: &str = "perpacket.record/1";

/// Fields that this version does not know, kept to be written back.
pub type Extra = BTreeMap<String, Value>;

/// A whole record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Identity, scenario, environment and variants.
    pub head: Head,
    /// Fixed costs that were subtracted.
    pub calibrations: Vec<Calibration>,
    /// All slices in the order of measurement; [`Slice::variant`](crate::slice::Slice::variant) indexes
    /// [`Head::variants`].
    pub slices: SliceColumns,
    /// Trials of searches, in the order in which they were made.
    pub trials: Vec<TrialPart>,
    /// Where the packets ended.
    pub ledgers: Vec<LedgerPart>,
    /// What was computed from the slices. `None` when the run did not get that far.
    pub summary: Option<Summary>,
    /// Warnings, in the order in which they came up.
    pub warnings: Vec<Warning>,
    /// How the run ended. `None` when it was cut off.
    pub end: Option<End>,
    /// Parts of kinds that this version does not know.
    pub unknown_parts: Vec<Value>,
    /// Fields of the document that this version does not know.
    pub extra: Extra,
    /// Whether the journal breaks off: its last line is incomplete or there is no `end`. Everything before
    /// is here.
    pub interrupted: bool,
}

impl Record {
    /// A record of which only the head is known.
    pub fn new(head: Head) -> Record {
        Record {
            head,
            calibrations: Vec::new(),
            slices: SliceColumns::new(),
            trials: Vec::new(),
            ledgers: Vec::new(),
            summary: None,
            warnings: Vec::new(),
            end: None,
            unknown_parts: Vec::new(),
            extra: Extra::new(),
            interrupted: true,
        }
    }

    /// The ledgers without the fields that this version does not know.
    pub fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        self.ledgers.iter().map(|part| &part.ledger)
    }
}

/// Why a record could not be read or written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Reading the bytes failed.
    #[error("read record")]
    Read(#[source] std::io::Error),
    /// Writing the bytes failed (a full disk, a closed pipe).
    #[error("write part {part} of the record")]
    Write {
        /// The part.
        part: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An earlier part could not be written whole, so that nothing may follow it.
    #[error("write part {part} of the record: an earlier part was not written whole")]
    Damaged {
        /// The part that was not written.
        part: &'static str,
    },
    /// A value cannot be represented: a number is not finite.
    #[error("write part {part} of the record: a number in it is not finite, or it does not read back: {why}")]
    NotRepresentable {
        /// The part.
        part: &'static str,
        /// What reading it back said.
        why: String,
    },
    /// The file is empty, or breaks off before the head is complete.
    #[error("read record: it ends before its head is complete, so nothing was measured yet")]
    Empty,
    /// It is something else.
    #[error("read record: this is no {SCHEMA}: {found}")]
    NotARecord {
        /// What was found instead.
        found: String,
    },
    /// It was written by a newer program.
    #[error("read record: its schema is {found}, this program knows {SCHEMA}; use a newer perpacket")]
    NewerVersion {
        /// Its schema.
        found: String,
    },
    /// A line is no JSON.
    #[error("read record, line {line}: not JSON")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A part lacks a field or has one of the wrong form.
    #[error("read record, part {part}{place}: {why}")]
    Part {
        /// The part.
        part: String,
        /// Where it stands, as ", line 3" in a journal; empty in a document.
        place: String,
        /// The field and what is wrong with it.
        why: String,
    },
}
