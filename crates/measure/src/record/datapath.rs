//! What a device under test did.

use serde::{Deserialize, Serialize};

use super::Extra;

/// What a device under test did with packets. Rates follow from packets and times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Datapath {
    /// From the start of the first thread to the end of the last one that receives, in ns.
    pub wall_ns: u64,
    /// Each thread: those that receive, those of backlogs, and receivers' threads.
    pub threads: Vec<DatapathThread>,
    /// Each device, by port and direction.
    pub ports: Vec<DatapathPort>,
    /// Queues of dummies, of receivers and of backlogs.
    pub queues: Vec<DatapathQueue>,
    /// What stages did beside deciding about packets.
    pub events: Vec<DatapathEvent>,
    /// What fault injection did; none where none was asked for.
    pub faults: Option<DatapathFaults>,
    /// What it took of memory.
    pub memory: DatapathMemory,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathThread {
    /// `receive`, `backlog` or `consumer`.
    pub role: String,
    /// The CPU that it ran on; none where it was not pinned.
    pub cpu: Option<u32>,
    /// Packets that it took in.
    pub packets: u64,
    /// From its start to its end, in ns.
    pub wall_ns: u64,
    /// Its CPU time, in ns.
    pub cpu_ns: u64,
    /// Polls; none for a consumer.
    pub polls: Option<u64>,
    /// Polls that used their whole budget.
    pub full_polls: Option<u64>,
    /// Times that it waited because there was nothing.
    pub waits: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One direction of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathPort {
    /// Its number.
    pub port: u32,
    /// `rx` or `tx`.
    pub direction: String,
    /// The device.
    pub device: String,
    /// Packets received from it, or sent to it.
    pub packets: u64,
    /// Their bytes without FCS; none where nobody counts them.
    pub l2_bytes: Option<u64>,
    /// Frames lost before they were received, as far as the device tells; none where it does not.
    pub missed: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathQueue {
    /// `dummy queue`, `UDP port` or `backlog of CPU`.
    pub kind: String,
    /// Its number, port or CPU.
    pub number: u32,
    /// Packets that went through it.
    pub packets: u64,
    /// Their bytes without FCS; none where nobody counts them.
    pub l2_bytes: Option<u64>,
    /// The most packets that wait in it; none where nothing waits.
    pub limit: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An event of a stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathEvent {
    /// The stage.
    pub stage: String,
    /// What happened.
    pub event: String,
    /// How often.
    pub count: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What fault injection did, in frames.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathFaults {
    /// Lost: none of the frames received.
    pub dropped: u64,
    /// Received with a byte changed.
    pub corrupted: u64,
    /// Received once more.
    pub duplicated: u64,
    /// Received after a later one.
    pub reordered: u64,
    /// Received later.
    pub delayed: u64,
    /// Not received, because the run was over.
    pub held: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What it took of memory, in bytes at the end of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathMemory {
    /// What packets and caches of the receiving side keep from other use; none where it cannot be told.
    pub pinned_bytes: Option<u64>,
    /// A queue of a dummy, padding included; none without one.
    pub dummy_queue_bytes: Option<u64>,
    /// The table of prefixes; none without one.
    pub table_bytes: Option<u64>,
    /// How much of it lies in huge pages; none where it cannot be told.
    pub table_huge_bytes: Option<u64>,
    /// Prefixes in it.
    pub table_prefixes: Option<u64>,
    /// The process's resident memory; none where it cannot be told.
    pub resident_bytes: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}
