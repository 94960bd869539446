//! What became of paced UDP flows, run by run.

use serde::{Deserialize, Serialize};

use super::Extra;
use crate::share::ShareDifference;

/// Runs of paced flows into sockets: every single value. Shares and rates follow from packets and times. The ledgers of the
/// record stand in the order of these runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// The runs in the order in which they were made.
    pub runs: Vec<FlowRun>,
    /// The second setting against the first; none where there is one setting, or too few runs.
    pub difference: Option<ShareDifference>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One run: so many packets at a rate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowRun {
    /// The setting, an index into the head's variants.
    pub variant: u16,
    /// The repetition, from 0: its runs were made one after the other.
    pub repetition: u32,
    /// The rate that was asked for, in packets per second.
    pub asked_pps: f64,
    /// Packets that were asked for.
    pub packets: u64,
    /// Packets that the backend says were sent.
    pub sent: u64,
    /// From the first packet until the one after the last would have been due, in ns.
    pub wall_ns: u64,
    /// Whether all packets were sent, at the rate asked for to a thousandth.
    pub is_offered: bool,
    /// How often the sender's device refused a packet, which was then sent again: the path held the sender back. None where the
    /// sender does not learn of it.
    pub refused: Option<u64>,
    /// Packets that the receivers read.
    pub received: u64,
    /// Each flow that receivers tell apart.
    pub flows: Vec<FlowCount>,
    /// Each socket and its thread.
    pub receivers: Vec<FlowReceiver>,
    /// Each CPU of the machine, and what it did meanwhile, whoever made it do that.
    pub cpus: Vec<CpuUse>,
    /// The sender.
    pub sender: FlowSender,
    /// Packets that came after a later one of their flow at the same socket (RFC 4737); none without stamps.
    pub reordered: Option<u64>,
    /// From before a packet was sent until its receiver had it from the kernel, in ns, each with the number of packets;
    /// none without stamps.
    pub delays: Option<Vec<(u64, u64)>>,
    /// Packets without a stamp, where stamps were sent.
    pub unstamped: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowCount {
    /// Its number: packet s belongs to flow s modulo the number of flows.
    pub flow: u32,
    /// Its destination port.
    pub port: u16,
    /// Packets sent, as the order of sending has it.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets that came after a later one of it at the same socket; none without stamps.
    pub reordered: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A socket, and the thread that reads it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowReceiver {
    /// The port.
    pub port: u16,
    /// Its number among the sockets of this port.
    pub socket: u32,
    /// The CPU of the thread.
    pub cpu: u32,
    /// Packets that it read.
    pub packets: u64,
    /// Packets that the socket had no room for, or refused (`sk_drops`); none where they are not counted for each.
    pub drops: Option<u64>,
    /// CPU time of the thread, in ns; its part in proportion to the packets where a thread reads several sockets. None where it
    /// does something else beside.
    pub cpu_ns: Option<u64>,
    /// Calls that brought at least one packet.
    pub calls: u64,
    /// Receive buffer as the kernel counts it, in bytes; none of a queue in user space.
    pub buffer_bytes: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The sending thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowSender {
    /// Its CPU.
    pub cpu: u32,
    /// Its CPU time, in ns; of injected packets with all that is done for them in its context.
    pub cpu_ns: u64,
    /// Packets that were handed over at once, at most.
    pub grain: Option<u32>,
    /// Gaps between packets, in ns, to within a thousandth, each with its number.
    pub gaps: Option<Vec<(u64, u64)>>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a CPU did during a run, in steps of a tick (10 ms mostly).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The CPU.
    pub cpu: u32,
    /// In programs, in ns.
    pub user_ns: u64,
    /// In the kernel for them, in ns.
    pub system_ns: u64,
    /// In interrupts, in ns.
    pub irq_ns: u64,
    /// In softirqs, in ns.
    pub softirq_ns: u64,
    /// Idle, in ns.
    pub idle_ns: u64,
    /// Taken by the hypervisor; none where the kernel does not say.
    pub steal_ns: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl FlowRun {
    /// Packets per second that were sent; none where nothing was.
    pub fn achieved_pps(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.sent as f64 * 1e9 / self.wall_ns as f64)
    }

    /// The share of the packets sent that was received; none where nothing was sent.
    pub fn share(&self) -> Option<f64> {
        (self.sent > 0).then(|| self.received as f64 / self.sent as f64)
    }

    /// Busy time of all CPUs for each packet sent, in ns: of everything that the machine did meanwhile.
    pub fn busy_ns_per_packet(&self) -> Option<f64> {
        let busy: u64 = self.cpus.iter().map(CpuUse::busy_ns).sum();
        (self.sent > 0 && !self.cpus.is_empty()).then(|| busy as f64 / self.sent as f64)
    }
}

impl CpuUse {
    /// Time in which it did something for this machine.
    pub fn busy_ns(&self) -> u64 {
        self.user_ns + self.system_ns + self.irq_ns + self.softirq_ns
    }
}
