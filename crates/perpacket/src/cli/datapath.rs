//! Arguments of `perpacket datapath`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputArgs, parse_duration};
use crate::cell::parse_flows;

#[derive(Debug, Args)]
pub(crate) struct DatapathArgs {
    /// What is done with packets: drop (before a byte is looked at), forward (routed, both versions of
    /// IP), udp (to queues by their port), steer (to CPUs by their flow)
    #[arg(value_name = "STAGE", default_value = "forward")]
    pub(crate) stage: String,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) frames: FrameArgs,
    #[command(flatten)]
    pub(crate) receive: ReceiveArgs,
    #[command(flatten)]
    pub(crate) run: RunningArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) queues: QueueArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Where packets come from and go to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Devices (synthetic, dummy[:QUEUES], pcap:FILE, af-packet:INTERFACE, \
                               af-xdp:INTERFACE[:QUEUE], tap:NAME)")]
pub(crate) struct DeviceArgs {
    /// Receive from it [default: synthetic, frames from a template, where there is no --port]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) rx: Option<String>,
    /// Send to it [default with forward: dummy, which counts packets and forgets them]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) tx: Option<String>,
    /// Receive from it and send to it, as a port of a router; once for each port, which are numbered from 0
    #[arg(long, value_name = "DEVICE")]
    pub(crate) port: Vec<String>,
    /// Allow the use of this device of the host, once for each; one with a default route is always refused
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) allow_device: Vec<String>,
    /// Begin a capture file again at its end
    #[arg(long = "loop")]
    pub(crate) again: bool,
    /// Lock of a dummy: of the device, of each queue, or none (then each thread needs a queue)
    /// [default: queue]
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<String>,
    /// What goes wrong on purpose at the receiving queues, as shares of the frames: drop, corrupt,
    /// reorder, duplicate, delay
    #[arg(long, value_name = "drop=1000ppm,…")]
    pub(crate) fault: Option<String>,
    /// Write all frames received and sent to a capture file (.pcapng tells which were sent, .pcap does not)
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
}

/// The frames of a synthetic device.
#[derive(Debug, Args)]
#[command(next_help_heading = "Frames of synthetic")]
pub(crate) struct FrameArgs {
    /// A program in the packet language (docs/language.md): a file, `-` for standard input, or the text
    /// itself, in braces [default: UDP frames as below]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["frame", "flows"])]
    pub(crate) template: Option<OsString>,
    /// Frame size in bytes, with the 4-byte FCS [default: 64]
    #[arg(long, value_name = "BYTES")]
    pub(crate) frame: Option<u32>,
    /// Flows, which differ in the destination port [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_flows)]
    pub(crate) flows: Option<u16>,
}

/// How frames get into packets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Receiving")]
pub(crate) struct ReceiveArgs {
    /// copy, copy-break or copy-break:BYTES (longer ones stay in their page, but for the headers), page-pool
    /// (all stay in it), fragment (several share one) [default: copy; from af-xdp copy-break:256]
    #[arg(long, value_name = "MODE")]
    pub(crate) receive: Option<String>,
    /// What is copied goes to memory of: poll, poll-drop, any-context, any-context-mutex, page-pool,
    /// page-pool-frag, system [default: poll]
    #[arg(long, value_name = "ALLOCATOR")]
    pub(crate) alloc: Option<String>,
    /// The most packets of a poll
    #[arg(long, value_name = "N", default_value_t = datapath::BUDGET)]
    pub(crate) budget: usize,
    /// Look for packets without a pause; otherwise a thread sleeps while a device of the kernel has none
    #[arg(long)]
    pub(crate) busy: bool,
}

/// Threads, and what ends the run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Threads and end")]
pub(crate) struct RunningArgs {
    /// Threads that receive, each with queues and a CPU of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Their CPUs, with steer those that packets are steered to [default: the last ones allowed]
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// End after so many frames of all threads together
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End after this time [default: 2s for synthetic without a count; others run until a signal comes or
    /// the file ends]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Seed of random fields, faults and prefixes [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// The network around it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network (forward, udp)")]
pub(crate) struct NetworkArgs {
    /// Addresses of a port: 0=10.0.0.1/24, 1=2001:db8::1/64
    #[arg(long, value_name = "PORT=ADDR/LEN")]
    pub(crate) address: Vec<String>,
    /// Routes beside those of the ports' addresses: 0.0.0.0/0=1,via 10.0.1.2
    #[arg(long, value_name = "PREFIX=PORT[,via ADDR]")]
    pub(crate) route: Vec<String>,
    /// Neighbours that need not be asked for: 1=10.0.1.2=02:00:00:00:00:02
    #[arg(long, value_name = "PORT=ADDR=MAC")]
    pub(crate) neighbour: Vec<String>,
    /// Ethernet address of a port [default: that of its device]
    #[arg(long, value_name = "PORT=MAC")]
    pub(crate) mac: Vec<String>,
    /// Prefixes made up for the table, with lengths as in the Internet; synthetic frames go to them in a
    /// random order
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) prefixes: u32,
    /// Drop packets for which all of this holds: src=PREFIX, dst=PREFIX, proto=udp, port=53-60. Once for
    /// each rule; with any stage
    #[arg(long, value_name = "src=…,port=…")]
    pub(crate) drop: Vec<String>,
}

/// Queues behind udp and steer.
#[derive(Debug, Args)]
#[command(next_help_heading = "Queues (udp, steer)")]
pub(crate) struct QueueArgs {
    /// udp: ports, each with a queue and a thread that reads it [default: 5000]
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(crate) ports: Option<String>,
    /// udp: the most packets that wait in a queue [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) queue_limit: Option<usize>,
    /// steer: the most packets that wait for a CPU [default: 1000, as net.core.netdev_max_backlog]
    #[arg(long, value_name = "N")]
    pub(crate) backlog: Option<usize>,
    /// steer: drop packets of a flow that has more than half of a backlog that is half full
    #[arg(long)]
    pub(crate) flow_limit: bool,
}
