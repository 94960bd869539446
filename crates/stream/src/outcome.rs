//! What one end of a run counted.
//!
//! Each end has a clock of its own and counts what it did itself: nothing here was told by the other end. What an end cannot
//! know is `None`, never 0.

use serde::{Deserialize, Serialize};

/// What one end counted, without what was omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// From the first call of a flow of this end until the last, in its own clock.
    pub wall_ns: u64,
    /// Each flow, in the order in which they were opened.
    pub flows: Vec<Flow>,
    /// What the CPUs of this host did from begin to end.
    pub cpu: Option<Cpu>,
    /// Periods that were asked for, without a gap.
    pub intervals: Vec<Interval>,
    /// What went wrong without ending the run, in words.
    pub warnings: Vec<String>,
}

/// What both ends of a run counted, each for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchanged {
    /// This end, which asked.
    pub client: Side,
    /// The other end, as it told. What its protocol has no words for is `None`.
    pub server: Side,
}

/// One flow as one end sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// The wall time of this flow: from its first call until its last.
    pub wall_ns: u64,
    /// What this end gave to the kernel.
    pub sent: Option<Moved>,
    /// What this end got from the kernel.
    pub received: Option<Moved>,
    /// Transactions that were completed, or connections that were opened and closed.
    pub transactions: Option<u64>,
    /// How long each of them took.
    pub latency: Option<Latency>,
    /// UDP: what became of the datagrams of the other end, as the numbers in them tell.
    pub datagrams: Option<Datagrams>,
    /// TCP: what the kernel tells of the connection at its end.
    pub tcp: Option<Tcp>,
    /// Datagrams with numbers: how many the sender had numbered up to the last that was sent, at the end that sends, or to the
    /// highest that came, at the other; with what was omitted.
    #[serde(default)]
    pub numbered: Option<u64>,
}

/// What went through one flow in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes of payload.
    pub bytes: u64,
    /// Messages: datagrams of UDP, calls of a stream.
    pub messages: u64,
    /// Calls that the kernel refused for lack of room, and that were not made up for (UDP).
    pub refused: u64,
}

/// Latencies as a histogram of three significant digits, with counts of 64 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Values in ns and how often each came, ascending; what lies between two of them is the resolution.
    pub counts: Vec<(u64, u64)>,
    /// The sum of all, to the ns, for the mean.
    pub sum_ns: u128,
    /// Whether they count from when a transaction was due, rather than from when it began.
    pub from_due: bool,
    /// The shortest, ns, exactly.
    #[serde(default)]
    pub min_ns: Option<u64>,
    /// The longest, ns, exactly.
    #[serde(default)]
    pub max_ns: Option<u64>,
    /// Of 0 ns, or longer than an hour: counted as 1 ns and an hour.
    #[serde(default)]
    pub out_of_range: u64,
}

/// What the numbers in received datagrams tell. Exact: every number is remembered as long as it can matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Different datagrams that came, in time or late.
    pub received: u64,
    /// Came once more.
    pub duplicate: u64,
    /// Came after one with a higher number, late or not.
    pub reordered: u64,
    /// Came after they were counted as lost in an interval that has ended.
    pub late: u64,
    /// Never came, and a later one did.
    pub lost: u64,
    /// Sent after the last that came: known only where the sender said how many it sent.
    pub tail_lost: Option<u64>,
    /// Variation of transit time (RFC 1889 appendix A.8), ns.
    pub jitter_ns: Option<u64>,
    /// Came after more others than are remembered: copies, or first ones that stay counted as lost.
    #[serde(default)]
    pub too_old: u64,
}

/// `TCP_INFO` of one connection (struct tcp_info, include/uapi/linux/tcp.h, 6.18).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Segments sent again, in all.
    pub retransmits: Option<u64>,
    /// Smoothed round-trip time, µs.
    pub rtt_us: Option<u32>,
    /// Its variation, µs.
    pub rtt_variation_us: Option<u32>,
    /// The least that was seen, µs.
    pub min_rtt_us: Option<u32>,
    /// Congestion window, segments.
    pub cwnd_segments: Option<u32>,
    /// Sending maximum segment size, bytes.
    pub mss_bytes: Option<u32>,
    /// Path MTU, bytes.
    pub path_mtu_bytes: Option<u32>,
    /// The peer's window, bytes.
    pub peer_window_bytes: Option<u32>,
    /// Delivery rate, bytes in a second.
    pub delivery_bytes_per_second: Option<u64>,
    /// Time with something to send, µs.
    pub busy_us: Option<u64>,
    /// Of it, held up by the peer's window, µs.
    pub window_limited_us: Option<u64>,
    /// Of it, held up by the send buffer, µs.
    pub buffer_limited_us: Option<u64>,
    /// The congestion control that was in force.
    pub congestion: Option<String>,
    /// The same at the end of each interval.
    pub series: Vec<Tcp>,
}

/// What the CPUs of the host did during a run, from `/proc/stat`: whole ticks, 4 or 10 ms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// From the snapshot before until the one after.
    pub wall_ns: u64,
    /// Each CPU.
    pub cpus: Vec<CpuKinds>,
    /// User and system time of this process (getrusage), ns.
    pub process_user_ns: u64,
    /// See there.
    pub process_system_ns: u64,
    /// CPU time of each thread that moved bytes, ns.
    pub threads_ns: Vec<u64>,
}

/// Time of one CPU by kind, ns. Guest time is in user already and is not counted again; idle and iowait are not work; steal is
/// what a hypervisor gave to others, neither work nor idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuKinds {
    /// Which.
    pub cpu: usize,
    /// User time, niced or not, guests included.
    pub user_ns: u64,
    /// Kernel time for processes.
    pub system_ns: u64,
    /// Hard interrupts.
    pub irq_ns: u64,
    /// Soft interrupts.
    pub softirq_ns: u64,
    /// Stolen.
    pub steal_ns: u64,
    /// Idle, waiting for disks included.
    pub idle_ns: u64,
}

/// One period of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// When it began, ns after the begin of the run (of counting, where something was omitted).
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Whether it lies in what is omitted.
    pub omitted: bool,
    /// What each flow did in it: the same fields, for the period.
    pub flows: Vec<Flow>,
}
