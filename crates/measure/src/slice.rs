//! What one slice measured, and many slices as columns.
//!
//! A slice is 1 to 5 ms of back-to-back packets of one variant. Columns are used in records because
//! a run has tens of thousands of slices: names are then written once, and a reader can take the one
//! column that it needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a slice must not be used. The reason must be known without looking at the slice's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VoidReason {
    /// Packets were lost on a path that means delivery.
    Drops,
    /// The slice ended before all its packets were sent.
    Incomplete,
}

/// One slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The replicate it belongs to: grows when programs are reloaded or the lab is rebuilt.
    pub block: u32,
    /// The pair or round within the run; slices of one pair are adjacent in time.
    pub pair: u32,
    /// Index into the record's variants.
    pub variant: u16,
    /// Packets sent in the slice.
    pub packets: u64,
    /// Calls of the way in that sent them. The kernel may have been called more often.
    pub calls: u32,
    /// Wall time in ns.
    pub wall_ns: u64,
    /// CPU time in ns, of the clock that the path declares (the sending thread's, or all CPUs').
    pub cpu_ns: u64,
    /// Steal ticks (USER_HZ, usually 10 ms each) of all CPUs, over this slice and those before it that have none;
    /// `None` also where it was not read.
    pub steal_ticks: Option<u32>,
    /// Involuntary context switches of the sending thread, where known.
    pub involuntary_switches: Option<u32>,
    /// Why the slice is void, if it is.
    pub void: Option<VoidReason>,
}

/// Slices as columns. Every column has one entry a slice, in the order of measurement; a slice's
/// place in the columns is its order.
///
/// The fields are private so that columns of unequal length cannot be made, neither by
/// [`push`](SliceColumns::push) nor by reading: a file with unequal columns is refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ColumnFields")]
pub struct SliceColumns {
    block: Vec<u32>,
    pair: Vec<u32>,
    variant: Vec<u16>,
    packets: Vec<u64>,
    calls: Vec<u32>,
    wall_ns: Vec<u64>,
    cpu_ns: Vec<u64>,
    steal_ticks: Vec<Option<u32>>,
    involuntary_switches: Vec<Option<u32>>,
    void: Vec<Option<VoidReason>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counters: BTreeMap<String, Vec<Option<f64>>>,
    #[serde(flatten)]
    extra: BTreeMap<String, serde_json::Value>,
}

impl SliceColumns {
    /// No slices yet.
    pub fn new() -> SliceColumns {
        SliceColumns::default()
    }

    /// How many slices.
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Adds a slice without counters.
    pub fn push(&mut self, slice: &Slice) {
        self.push_with(slice, &[]);
    }

    /// Adds a slice with the counters read over it (perf events and the like; totals of the slice,
    /// not per packet). A counter that some slices lack is `None` there, and so is a value that is not
    /// finite.
    pub fn push_with(&mut self, slice: &Slice, counters: &[(&str, Option<f64>)]) {
        let before = self.len();
        self.push_fields(slice);
        for &(name, value) in counters {
            let column = self.counters.entry(name.to_owned()).or_default();
            column.resize(before, None);
            column.push(value.filter(|value| value.is_finite()));
        }
        self.pad_counters();
    }

    /// Adds all slices of `other` behind the own ones. Unknown columns of `other` (see
    /// [`extra`](SliceColumns::extra)) are added when they are lists of its length, else dropped.
    pub fn extend(&mut self, other: &SliceColumns) {
        let before = self.len();
        for slice in other.iter() {
            self.push_fields(&slice);
        }
        for (name, values) in &other.counters {
            let column = self.counters.entry(name.clone()).or_default();
            column.resize(before, None);
            column.extend_from_slice(values);
        }
        self.pad_counters();
        self.extend_extra(other, before);
    }

    /// Slice number `index`, in the order of measurement.
    pub fn slice(&self, index: usize) -> Option<Slice> {
        (index < self.len()).then(|| Slice {
            block: self.block[index],
            pair: self.pair[index],
            variant: self.variant[index],
            packets: self.packets[index],
            calls: self.calls[index],
            wall_ns: self.wall_ns[index],
            cpu_ns: self.cpu_ns[index],
            steal_ticks: self.steal_ticks[index],
            involuntary_switches: self.involuntary_switches[index],
            void: self.void[index],
        })
    }

    /// All slices, in the order of measurement.
    pub fn iter(&self) -> impl Iterator<Item = Slice> + '_ {
        (0..self.len()).filter_map(|index| self.slice(index))
    }

    /// The names of the counters.
    pub fn counter_names(&self) -> impl Iterator<Item = &str> {
        self.counters.keys().map(String::as_str)
    }

    /// The column of counter `name`: one entry a slice, `None` where it was not read.
    pub fn counter(&self, name: &str) -> Option<&[Option<f64>]> {
        self.counters.get(name).map(Vec::as_slice)
    }

    /// Columns that this version does not know, as they were read.
    pub fn extra(&self) -> &BTreeMap<String, serde_json::Value> {
        &self.extra
    }

    fn push_fields(&mut self, slice: &Slice) {
        self.block.push(slice.block);
        self.pair.push(slice.pair);
        self.variant.push(slice.variant);
        self.packets.push(slice.packets);
        self.calls.push(slice.calls);
        self.wall_ns.push(slice.wall_ns);
        self.cpu_ns.push(slice.cpu_ns);
        self.steal_ticks.push(slice.steal_ticks);
        self.involuntary_switches.push(slice.involuntary_switches);
        self.void.push(slice.void);
    }

    fn pad_counters(&mut self) {
        let len = self.len();
        for column in self.counters.values_mut() {
            column.resize(len, None);
        }
    }

    fn extend_extra(&mut self, other: &SliceColumns, before: usize) {
        let null = || serde_json::Value::Null;
        for (name, values) in &other.extra {
            let serde_json::Value::Array(values) = values else { continue };
            if values.len() != other.len() {
                continue;
            }
            let column =
                self.extra.entry(name.clone()).or_insert_with(|| serde_json::Value::Array(Vec::new()));
            if let serde_json::Value::Array(column) = column {
                column.resize_with(before, null);
                column.extend(values.iter().cloned());
            }
        }
        let len = self.len();
        for column in self.extra.values_mut() {
            if let serde_json::Value::Array(column) = column {
                column.resize_with(len, null);
            }
        }
    }
}

/// Columns of unequal length.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("column {column} has {found} entries where column block has {expected}")]
pub struct ColumnLengthError {
    /// The column that differs.
    pub column: String,
    /// Its entries.
    pub found: usize,
    /// Entries of column `block`.
    pub expected: usize,
}

/// The columns as read, not yet checked.
#[derive(Deserialize)]
struct ColumnFields {
    block: Vec<u32>,
    pair: Vec<u32>,
    variant: Vec<u16>,
    packets: Vec<u64>,
    calls: Vec<u32>,
    wall_ns: Vec<u64>,
    cpu_ns: Vec<u64>,
    steal_ticks: Vec<Option<u32>>,
    involuntary_switches: Vec<Option<u32>>,
    void: Vec<Option<VoidReason>>,
    #[serde(default)]
    counters: BTreeMap<String, Vec<Option<f64>>>,
    #[serde(flatten)]
    extra: BTreeMap<String, serde_json::Value>,
}

impl TryFrom<ColumnFields> for SliceColumns {
    type Error = ColumnLengthError;

    fn try_from(fields: ColumnFields) -> Result<SliceColumns, ColumnLengthError> {
        let expected = fields.block.len();
        let fixed = [
            ("pair", fields.pair.len()),
            ("variant", fields.variant.len()),
            ("packets", fields.packets.len()),
            ("calls", fields.calls.len()),
            ("wall_ns", fields.wall_ns.len()),
            ("cpu_ns", fields.cpu_ns.len()),
            ("steal_ticks", fields.steal_ticks.len()),
            ("involuntary_switches", fields.involuntary_switches.len()),
            ("void", fields.void.len()),
        ];
        let named = fields.counters.iter().map(|(name, values)| (name.as_str(), values.len()));
        for (column, found) in fixed.into_iter().chain(named) {
            if found != expected {
                return Err(ColumnLengthError { column: column.to_owned(), found, expected });
            }
        }
        Ok(SliceColumns {
            block: fields.block,
            pair: fields.pair,
            variant: fields.variant,
            packets: fields.packets,
            calls: fields.calls,
            wall_ns: fields.wall_ns,
            cpu_ns: fields.cpu_ns,
            steal_ticks: fields.steal_ticks,
            involuntary_switches: fields.involuntary_switches,
            void: fields.void,
            counters: fields.counters,
            extra: fields.extra,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(pair: u32) -> Slice {
        Slice {
            block: 0,
            pair,
            variant: (pair % 2) as u16,
            packets: 5_000,
            calls: 1,
            wall_ns: 1_000_000,
            cpu_ns: 990_000,
            steal_ticks: None,
            involuntary_switches: Some(0),
            void: (pair == 2).then_some(VoidReason::Drops),
        }
    }

    #[test]
    fn slices_come_back_in_order() {
        let mut columns = SliceColumns::new();
        (0..4).for_each(|pair| columns.push(&slice(pair)));
        assert_eq!(columns.len(), 4);
        assert_eq!(columns.iter().collect::<Vec<_>>(), (0..4).map(slice).collect::<Vec<_>>());
        assert_eq!(columns.slice(4), None);
    }

    #[test]
    fn a_counter_that_appears_late_is_missing_before() {
        let mut columns = SliceColumns::new();
        columns.push(&slice(0));
        columns.push_with(&slice(1), &[("instructions", Some(12.0))]);
        columns.push(&slice(2));
        assert_eq!(columns.counter("instructions"), Some(&[None, Some(12.0), None][..]));

        let mut other = SliceColumns::new();
        other.push_with(&slice(3), &[("cycles", Some(1.0))]);
        columns.extend(&other);
        assert_eq!(columns.len(), 4);
        assert_eq!(columns.counter("cycles"), Some(&[None, None, None, Some(1.0)][..]));
        assert_eq!(columns.counter("instructions").map(<[_]>::len), Some(4));
    }

    #[test]
    fn columns_are_read_back_and_unequal_ones_refused() {
        let mut columns = SliceColumns::new();
        columns.push_with(&slice(2), &[("cycles", None)]);
        let text = serde_json::to_string(&columns).unwrap();
        assert_eq!(serde_json::from_str::<SliceColumns>(&text).unwrap(), columns);

        let broken = text.replace("\"pair\":[2]", "\"pair\":[2,3]");
        let error = serde_json::from_str::<SliceColumns>(&broken).unwrap_err().to_string();
        assert!(error.contains("column pair has 2 entries where column block has 1"), "{error}");

        let missing = text.replace("\"pair\":[2],", "");
        assert!(serde_json::from_str::<SliceColumns>(&missing).unwrap_err().to_string().contains("pair"));
    }

    #[test]
    fn unknown_columns_are_kept_and_extended() {
        let mut columns = SliceColumns::new();
        columns.push(&slice(0));
        let text = serde_json::to_string(&columns).unwrap().replacen('{', "{\"temperature\":[41],", 1);
        let newer: SliceColumns = serde_json::from_str(&text).unwrap();
        columns.extend(&newer);
        assert_eq!(columns.extra()["temperature"], serde_json::json!([null, 41]));
        assert_eq!(columns.len(), 2);
    }
}
