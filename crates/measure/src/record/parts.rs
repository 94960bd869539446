//! The parts of a record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Datapath, Environment, Extra, Flows, SearchRow, Streams};
use crate::calibrate::FixedCost;
use crate::ledger::Ledger;
use crate::marginal::{AbsoluteCost, OverFloor};
use crate::order::Seed;
use crate::paired::Comparison;
use crate::sequential::Looks;
use crate::verdict::{Criteria, Verdict};
use crate::wire;

/// What is known before the first slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Identifies the run; unique, and sorts by time.
    pub id: String,
    /// When it started: RFC 3339 with its offset.
    pub started: String,
    /// What wrote the record.
    pub program: Program,
    /// The command as typed.
    pub command: Vec<String>,
    /// The resolved scenario: fed back, it repeats the run.
    pub scenario: Value,
    /// The machine.
    pub environment: Environment,
    /// What was tried before the run and found to work or not.
    pub capabilities: Vec<CapabilityProbe>,
    /// What was measured against each other, or side by side; slices name them by index.
    pub variants: Vec<Variant>,
    /// Seed of the order of slices.
    pub seed: Seed,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The program that wrote the record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Revision of its source, where known.
    pub revision: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An ability of the host, probed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CapabilityProbe {
    /// What: `inject`, `af-xdp zero-copy`, `hardware counters` ...
    pub name: String,
    /// Whether it works.
    pub available: bool,
    /// What is lacking (a capability, a kernel option, the error), or how it works.
    pub detail: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One thing measured: a path at a frame size with its settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Unique within the record.
    pub name: String,
    /// The path.
    pub path: String,
    /// Frame size, FCS included; `None` for a mix.
    pub frame_bytes: Option<u32>,
    /// Where packets come in, `inject` or a device.
    pub ingress: Option<String>,
    /// What hands frames over.
    pub backend: Option<String>,
    /// What its lab and frames are made of, as text: `rules` → `50`.
    pub settings: BTreeMap<String, String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Which clock a figure comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// CPU time of the sending thread (`CLOCK_THREAD_CPUTIME_ID`).
    ThreadCpu,
    /// Wall time.
    Wall,
    /// Busy time of all CPUs: where work moves to another one.
    AllCpus,
    /// Time between two points inside the injecting BPF program.
    Program,
    /// Virtual time of an emulator that counts instructions.
    Instructions,
    /// A clock of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// A fixed cost per call that was measured to be subtracted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The variant it was measured on.
    pub variant: u16,
    /// Its clock.
    pub clock: Clock,
    /// The cost.
    #[serde(flatten)]
    pub fixed_cost: FixedCost,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A ledger as it stands in a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerPart {
    /// The ledger.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl From<Ledger> for LedgerPart {
    fn from(ledger: Ledger) -> LedgerPart {
        LedgerPart { ledger, extra: Extra::new() }
    }
}

/// What was computed from the slices: as printed, in full precision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Costs, one row a variant.
    pub rows: Vec<CostRow>,
    /// Comparisons of variants.
    pub comparisons: Vec<ComparisonRow>,
    /// What allocators keep for the buffers in use; none for other commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryRow>,
    /// What a generator sent; none for other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Generated>,
    /// What a device under test did; none for other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datapath: Option<Datapath>,
    /// What became of paced flows; none for other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Flows>,
    /// What was moved over sockets; none for other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// What searches for a rate found; none for other commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<SearchRow>,
    /// Why measuring stopped: precision reached, time up, look ...
    pub stopped: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Memory in the middle of an allocator's work, in a process of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    /// The variant, whose allocator and load it was.
    pub variant: u16,
    /// Bytes of the buffers that were alive.
    pub in_use_bytes: u64,
    /// By how much the resident memory of the process had grown (`Rss` of `/proc/self/smaps_rollup`).
    pub resident_bytes: Option<u64>,
    /// What the allocator kept by its own account; `None` where it has none.
    pub pinned_bytes: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a generator sent, and how evenly. Rates follow from packets, bytes and time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Generated {
    /// Packets that the backend says were confirmed, of all workers.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub l2_bytes: u64,
    /// From the start of the first worker to the end of the last one, in ns.
    pub wall_ns: u64,
    /// The rate that was asked for, as packets per second.
    pub asked_pps: Option<f64>,
    /// Packets that were handed over at once; none without a rate.
    pub grain: Option<u32>,
    /// Gaps between packets of one worker, in ns, to within a thousandth, each with its number; none without a rate.
    pub gaps: Option<Vec<(u64, u64)>>,
    /// Each worker.
    pub workers: Vec<GeneratedBy>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What one worker sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratedBy {
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Packets confirmed.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub l2_bytes: u64,
    /// From its first packet to the end of its last call, in ns.
    pub wall_ns: u64,
    /// CPU time of its thread, in ns.
    pub cpu_ns: u64,
    /// System calls that sent.
    pub calls: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What one packet of a variant costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostRow {
    /// The variant.
    pub variant: u16,
    /// The clock quoted.
    pub clock: Clock,
    /// The cost.
    #[serde(flatten)]
    pub cost: AbsoluteCost,
    /// The cost over the floor, where the floor was measured in the same rounds.
    pub over_floor: Option<OverFloor>,
    /// Slices left out, each for a reason in the column `void`.
    pub void_slices: u64,
    /// Counters divided by packets; `None` where this machine has not got them.
    pub counters_per_packet: BTreeMap<String, Option<f64>>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl CostRow {
    /// Packets per second that one CPU handles at this cost. Derived, never stored.
    pub fn pps(&self) -> f64 {
        wire::pps(self.cost.ns)
    }
}

/// One variant against another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparisonRow {
    /// Variant A.
    pub a: u16,
    /// Variant B.
    pub b: u16,
    /// The clock quoted.
    pub clock: Clock,
    /// The numbers.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// p-value after Holm's adjustment over the family, where there is more than one comparison.
    pub adjusted_p_value: Option<f64>,
    /// What the verdict had to show.
    pub criteria: Criteria,
    /// The verdict.
    pub verdict: Verdict,
    /// The stop rule.
    pub looks: Option<Looks>,
    /// The look at which it stopped, from 1.
    pub look: Option<u32>,
    /// Leading pairs dropped by the warm-up rule.
    pub warmup_pairs: u64,
    /// Whether a falling trend was left after that.
    pub trend_left: Option<bool>,
    /// Pairs left out because one of their slices is void.
    pub void_pairs: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Something that makes the result less sure than it looks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// What is wrong, in one sentence.
    pub what: String,
    /// The fact behind it, with its numbers.
    pub fact: String,
    /// What to do about it.
    pub next_step: String,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The outcome, as the exit code tells it.
    pub outcome: Outcome,
    /// When: RFC 3339.
    pub finished: String,
    /// The error, where it could not be done.
    pub error: Option<String>,
    /// Steal ticks (USER_HZ) of all CPUs during the run.
    pub steal_ticks: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Done, and the answer is yes.
    Good,
    /// Done, and the answer is no: packets unaccounted for, a regression.
    No,
    /// It could not be done.
    Failed,
    /// Done, and not settled.
    Inconclusive,
    /// Stopped by a signal; what was measured until then is here.
    Interrupted,
    /// An outcome of a newer version.
    #[serde(untagged)]
    Other(String),
}
