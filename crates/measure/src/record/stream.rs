//! What `stream` and `rr` moved, run by run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Extra;
use crate::confidence::{Decision, Mean};

/// Runs over sockets: all that both ends counted, and the means over the runs of each row. The ledgers of the record, of rows
/// that have one, stand in the order of these runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Streams {
    /// The runs in the order in which they were made.
    pub runs: Vec<StreamRun>,
    /// One for each variant of the head that was run.
    pub rows: Vec<StreamRow>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamRun {
    /// The row, an index into the head's variants.
    pub variant: u16,
    /// The repetition, from 0.
    pub repetition: u32,
    /// What the end that asked counted (`stream::outcome::Side`).
    pub client: Value,
    /// What the end that answered counted.
    pub server: Value,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The means of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamRow {
    /// The row, an index into the head's variants.
    pub variant: u16,
    /// Runs that were made.
    pub runs: u32,
    /// Whether the means are known as well as was asked for; none where nothing was asked.
    pub decision: Option<Decision>,
    /// Each quantity by its name, over all runs. One that no run has a value of is not there.
    pub means: BTreeMap<String, Mean>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}
