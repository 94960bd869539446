//! Arguments: every flag once, in groups that the commands share.

pub(crate) mod datapath;
pub(crate) mod flows;
mod search;
pub(crate) mod serve;
pub(crate) mod stream;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use self::datapath::DatapathArgs;
use self::flows::FlowsArgs;
pub(crate) use self::search::SearchArgs;
use self::serve::ServeArgs;
use self::stream::{RrArgs, StreamArgs};
use crate::alloc::Threads;
use crate::cell::{NO_QDISC, PREFIXES, parse_flows};
use crate::device::{Alloc, Lock, RxMode};
use crate::scenario::TIME_S;

/// What does one packet cost on this path, and did my change make it cheaper?
#[derive(Debug, Parser)]
#[command(name = "perpacket", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure what one packet costs on kernel paths, in a lab made for the run (the main job), or in a
    /// device in user space
    Path(PathArgs),
    /// Compare two variants of a path in interleaved pairs: an interval and a verdict
    Ab(AbArgs),
    /// Send packets: from a program, flags or a capture file, over any backend, at the rate asked for
    Gen(Box<GenArgs>),
    /// The device under test in user space: receive, drop, forward, deliver, steer; between devices that
    /// need no kernel, or as a router between hosts
    Datapath(Box<DatapathArgs>),
    /// Send paced UDP flows into one socket and thread a port, and say what share arrives, with steering
    /// off and on, and where the rest went
    Flows(Box<FlowsArgs>),
    /// Compare what a packet buffer costs, from allocators of ours and of others
    Alloc(AllocArgs),
    /// Find the highest rate at which a path loses no packets, or no more than a share of them
    Search(Box<SearchArgs>),
    /// Send bytes over sockets: throughput, CPU and service demand of both ends, in a table as netperf's
    Stream(Box<StreamArgs>),
    /// Ask and answer over sockets: transactions in a second, their latency, and what they cost both ends
    Rr(Box<RrArgs>),
    /// Answer clients of perpacket, netperf and iperf3 on this host, several at once, within limits
    Serve(Box<ServeArgs>),
    /// Run a scenario file (TOML), as the commands that measure print it with -v
    Run(RunArgs),
    /// Count what arrives on a device or at a socket, by flow, queue and CPU; with --mark what was lost,
    /// came twice, out of order or changed
    Sink(SinkArgs),
    /// Line rate, time per packet, and differences of packet rates
    Wire(WireArgs),
    /// Say what this host can do, what makes its results noisy, and what to change
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PathArgs {
    /// Paths through the kernel: floor xdp-drop xdp-tx tc-drop raw-drop forward forward6 bridge udp
    /// udp-noport [default: xdp-drop raw-drop forward udp, with the floor]; through a device in user
    /// space: datapath:drop datapath:dummy datapath:forward datapath:udp
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    /// Frame sizes in bytes, with the 4-byte FCS
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [64, 272])]
    pub(crate) frame: Vec<u32>,
    #[command(flatten)]
    pub(crate) setting: SettingArgs,
    #[command(flatten)]
    pub(crate) slice: SliceArgs,
    /// Stop when every interval's half width is at most this share of its figure
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", value_parser = parse_percent)]
    pub(crate) precision: f64,
    /// Stop after this time at the latest
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AbArgs {
    /// Paths to compare on: those of `path`; or `flows`, which does what `perpacket flows --vary` does
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,
    /// What differs, and its two values. It is one of frame, flows, batch or threads; on kernel paths also
    /// rules, backend, gro, gso, rps, spin or qdisc; on datapath paths alloc, rx, lock, queues or prefixes.
    /// Without it A and B are the same, which shows the noise that is left (A/A)
    #[arg(long, value_name = "KEY=A,B", conflicts_with_all = ["a", "b"])]
    pub(crate) vary: Option<String>,
    /// Command that makes variant A, run inside the system under test before its slices. Both run in the
    /// same lab, each time the variant changes, so each must undo what the other did
    #[arg(long, value_name = "CMD", requires = "b")]
    pub(crate) a: Option<String>,
    /// Command that makes variant B
    #[arg(long, value_name = "CMD", requires = "a")]
    pub(crate) b: Option<String>,
    /// Frame sizes in bytes, with the 4-byte FCS; each is a comparison
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [64])]
    pub(crate) frame: Vec<u32>,
    #[command(flatten)]
    pub(crate) setting: SettingArgs,
    #[command(flatten)]
    pub(crate) slice: SliceArgs,
    /// Time for each path and frame size
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// Use the whole time, without the five looks that may end it early
    #[arg(long)]
    pub(crate) fixed: bool,
    /// A difference smaller than this counts as the same
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", value_parser = parse_percent)]
    pub(crate) margin: f64,
    /// Load every program and build every lab anew after this many pairs, in random order; it is always
    /// done for variants that are code or labs of their own
    #[arg(long, value_name = "PAIRS")]
    pub(crate) reload: Option<u32>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GenArgs {
    /// A program in the packet language (that of trafgen, docs/language.md): a file, `-` for standard
    /// input, or the text itself, in braces [default: what the flags describe]
    #[arg(value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// A capture file (pcap or pcapng) that is sent as it was recorded
    #[arg(short = 'i', long = "in", value_name = "FILE")]
    pub(crate) capture: Option<OsString>,
    /// Define a name for the program's preprocessor
    #[arg(short = 'D', long = "define", value_name = "NAME[=VALUE]")]
    pub(crate) define: Vec<String>,
    /// Where to: lab (a veth pair made for the run, whose other end counts), memory, FILE.pcap,
    /// FILE.pcapng, or a device
    #[arg(long, value_name = "TARGET", default_value = "lab")]
    pub(crate) to: String,
    /// Allow sending out of this device of the host; one with a default route is always refused
    #[arg(long, value_name = "DEV")]
    pub(crate) allow_device: Option<String>,
    /// Send nothing: print the program, and its packets field by field
    #[arg(long)]
    pub(crate) explain: bool,
    /// Send nothing: make the first N packets and report flows, sizes and wrong checksums or lengths
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "10000")]
    pub(crate) check: Option<u64>,
    #[command(flatten)]
    pub(crate) flags: FlagArgs,
    #[command(flatten)]
    pub(crate) send: SendArgs,
    /// Of a damaged capture file, send what can be read
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Send a capture file this many times as fast as it was recorded
    #[arg(long, value_name = "FACTOR")]
    pub(crate) speed: Option<f64>,
    /// Mark each packet, so that `sink --mark` finds loss, reordering, duplicates and corruption
    #[arg(long)]
    pub(crate) mark: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Packets without a program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets, where no program says it")]
pub(crate) struct FlagArgs {
    /// UDP datagrams (the default)
    #[arg(long, conflicts_with_all = ["tcp", "icmp"])]
    pub(crate) udp: bool,
    /// TCP segments
    #[arg(long, conflicts_with = "icmp")]
    pub(crate) tcp: bool,
    /// ICMP or ICMPv6 echo requests
    #[arg(long)]
    pub(crate) icmp: bool,
    /// Frame size in bytes with the 4-byte FCS, or a range that is walked through: 64, 64-1518
    #[arg(long, value_name = "BYTES[-BYTES]", conflicts_with = "imix")]
    pub(crate) frame: Option<String>,
    /// A mix of frame sizes: simple, tolly, or BYTES:WEIGHT,…
    #[arg(long, value_name = "MIX")]
    pub(crate) imix: Option<String>,
    /// Number of flows
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<u64>,
    /// Packets of a flow before the next one
    #[arg(long, value_name = "N")]
    pub(crate) flow_length: Option<u64>,
    /// Source addresses: one, or an inclusive range A-B
    #[arg(long, value_name = "ADDR[-ADDR]")]
    pub(crate) src: Option<String>,
    /// Destination addresses
    #[arg(long, value_name = "ADDR[-ADDR]")]
    pub(crate) dst: Option<String>,
    /// Source ports
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(crate) sport: Option<String>,
    /// Destination ports
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(crate) dport: Option<String>,
    /// Source Ethernet address
    #[arg(long, value_name = "MAC")]
    pub(crate) src_mac: Option<String>,
    /// Destination Ethernet address
    #[arg(long, value_name = "MAC")]
    pub(crate) dst_mac: Option<String>,
    /// VLAN tags, the outer one first, each a number or NUMBER:PRIORITY
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) vlan: Vec<String>,
    /// MPLS labels, the outermost first
    #[arg(long, value_name = "LABEL,…", value_delimiter = ',')]
    pub(crate) mpls: Vec<u32>,
    /// Time to live, or hop limit
    #[arg(long, value_name = "N")]
    pub(crate) ttl: Option<u8>,
    /// Type of service, or traffic class
    #[arg(long, value_name = "N")]
    pub(crate) tos: Option<u8>,
    /// UDP checksums (`on` or `off`)
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) checksum: Option<String>,
}

/// How packets are sent.
#[derive(Debug, Args)]
#[command(next_help_heading = "How they are sent")]
pub(crate) struct SendArgs {
    /// xdp-live, af-xdp, tx-ring, mmsg, inject (into a lab), udp (sockets: packets come from this host's
    /// addresses, by its routes), or pktgen (the kernel's, where it is loaded) [default: the best one that
    /// works]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// Threads that send, each on a CPU of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: u32,
    /// Their CPUs [default: the last ones allowed]
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Packets of all threads together
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<u64>,
    /// The longest time [default: 10s without a count; for a file 1000 packets]. At a rate, as many packets
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Rate of all threads together: 750kpps, 1Gbit (of the frames without FCS), or 1Gbit/wire
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// End with exit code 1 where the rate was not held to a thousandth
    #[arg(long)]
    pub(crate) strict: bool,
    /// Seed of random fields [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Leave /sys/kernel/rcu_expedited as it is
    #[arg(long)]
    pub(crate) no_expedite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AllocArgs {
    /// Allocators: loop (none: what measuring costs), poll poll-many poll-leave poll-drop poll-drop-all spin spin-many
    /// mutex (page-fragment caches), pool-fast pool-ring pool-slow pool-frag (page pool), free-list, system, mimalloc, jemalloc, bytes, bytes-split [default: all]
    #[arg(value_name = "ALLOCATOR")]
    pub(crate) allocators: Vec<String>,
    /// Sizes of buffers in bytes, at most a page
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [64, 128, 256, 512, 1024, 2048, 4096], conflicts_with = "pattern")]
    pub(crate) sizes: Vec<usize>,
    /// A mix of sizes instead: imix, uniform:64-2048, pareto:64-2048 (many small ones, few large ones), or
    /// BYTES:WEIGHT,…
    #[arg(long, value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// Who takes buffers and ends them: one thread; two threads at once, each its own; or one takes and
    /// another one ends (across)
    #[arg(long, value_name = "WHO,…", value_delimiter = ',', value_enum, default_values = ["one", "two", "across"])]
    pub(crate) threads: Vec<Threads>,
    /// Buffers of a burst: all are taken before the first one ends, as in a poll
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) live: usize,
    /// Share of the buffers that is held long
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) hold: Option<f64>,
    /// A held buffer ends when N more have been taken
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) hold_for: u64,
    /// How long is measured
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// CPUs of the measuring thread and of the second one [default: the last ones allowed]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Seed of the order, of the sizes and of what is held [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Draw the costs over the sizes, with their intervals, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Measure nothing: print the memory of one allocator under this load, as JSON
    #[arg(long, hide = true)]
    pub(crate) memory_only: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Scenario file; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(override_usage = "perpacket wire RATE FRAME…\n       perpacket wire diff BEFORE AFTER\n       \
                            perpacket wire diff < TWO-COLUMNS")]
pub(crate) struct WireArgs {
    /// RATE FRAME… (10G 64), or diff BEFORE AFTER in packets per second; diff alone reads pairs from
    /// standard input
    #[arg(value_name = "WORD", required = true)]
    pub(crate) words: Vec<String>,
    /// Write the result as JSON to FILE; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Put back settings of the host that a killed run left behind
    #[arg(long)]
    pub(crate) clean: bool,
    /// Say what a device of this host is, and whether test traffic may be sent to it
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// Write the result as JSON to FILE; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(override_usage = "perpacket sink DEV [OPTIONS]\n       perpacket sink --udp ADDR:PORT [OPTIONS]")]
pub(crate) struct SinkArgs {
    /// Device that frames arrive on
    #[arg(value_name = "DEV", required_unless_present = "udp", conflicts_with = "udp")]
    pub(crate) device: Option<String>,
    /// How to receive: packet-ring listens only. xdp counts in the kernel, af-xdp hands frames over; with
    /// both no frame goes on into the host, so they are refused on a device with a default route
    #[arg(long, value_name = "WAY", default_value = "packet-ring", conflicts_with = "udp")]
    pub(crate) by: String,
    /// Receive datagrams at this address instead
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) udp: Option<SocketAddr>,
    /// Receive from this queue only (af-xdp) [default: all]
    #[arg(long, value_name = "N", conflicts_with = "udp")]
    pub(crate) queue: Option<u32>,
    /// End after this time [default: with --count or Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) time: Option<Duration>,
    /// End when this many frames have arrived; those that came at the same time are counted too
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Check the marks that gen --mark writes. Ends with 1 when packets were lost, came twice or were
    /// changed, and with 3 when no marked one came
    #[arg(long)]
    pub(crate) mark: bool,
    /// Marked packets that were sent: those lost at the beginning and at the end are known then
    #[arg(long, value_name = "N", requires = "mark")]
    pub(crate) sent: Option<u64>,
    /// Flows to print, those with most frames first
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) flows: usize,
    /// Write the result as JSON to FILE; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print the result only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What a lab and its frames are made of.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is measured")]
pub(crate) struct SettingArgs {
    /// How frames get in: inject, xdp-live, af-xdp, tx-ring, mmsg or udp (sockets: what an application pays)
    /// [default: the best that the path takes and this host has]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// Flows, which differ in the destination port [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_flows)]
    pub(crate) flows: Option<u16>,
    /// Packet-filter rules that match nothing, before the path's own
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) rules: u32,
    /// Frames handed over at once; on datapath paths packets of a poll, 64 at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch: u32,
    /// GRO, and with it NAPI, on the receiving device (`on` or `off`); not with inject, which bypasses it
    #[arg(long, value_name = "ON|OFF", default_value = "off")]
    pub(crate) gro: String,
    /// Let sockets hand over up to 64 datagrams as one, which the kernel cuts (`on` or `off`); with the backend
    /// udp only
    #[arg(long, value_name = "ON|OFF", default_value = "off")]
    pub(crate) gso: String,
    /// Receive packet steering: CPU mask of the receiving device, in hexadecimal
    #[arg(long, value_name = "MASK", default_value = "0")]
    pub(crate) rps: String,
    /// Added work for each frame in the injecting program, in steps of very roughly 0.5 to 1 ns: calibrate
    /// it. Any number above 0 takes another program, with two locked exchanges (about 50 ns more)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) spin: u32,
    /// Queueing discipline of the sender's device, by its kind (noqueue, pfifo, pfifo_fast, fq, …), with
    /// default parameters; none bypasses it (udp cannot, and finds none on a veth). With mmsg, tx-ring and udp
    /// only: the other ways in never meet it
    #[arg(long, value_name = "KIND", default_value = NO_QDISC)]
    pub(crate) qdisc: String,
    /// Threads that send at once, each on a CPU of its own; the cost is the CPU time of all of them. On
    /// datapath paths threads that poll, each its own receiving queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: u32,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// What a device under test in user space is made of.
#[derive(Debug, Args)]
#[command(next_help_heading = "Datapath paths")]
pub(crate) struct DeviceArgs {
    /// Where the buffers come from that frames are copied into: poll (page fragments of this poll loop),
    /// poll-drop (the same, each ended by an atomic operation), any-context (behind a spin lock),
    /// any-context-mutex, page-pool, page-pool-frag or system
    #[arg(long, value_name = "ALLOC", default_value_t)]
    pub(crate) alloc: Alloc,
    /// How frames become packets: copy, copy-break or copy-break:BYTES (longer ones keep all but their headers in
    /// their page), page-pool (handed up in their page), or fragment (several share a page)
    #[arg(long, value_name = "HOW", default_value_t)]
    pub(crate) rx: RxMode,
    /// What keeps threads apart that send through one device: device (one lock), queue (one each), or
    /// none
    #[arg(long, value_name = "LOCK", default_value_t)]
    pub(crate) lock: Lock,
    /// Sending queues of the device [default: one for each thread]
    #[arg(long, value_name = "N")]
    pub(crate) queues: Option<u32>,
    /// Prefixes in the routing table of datapath:forward, up to 1000000
    #[arg(long, value_name = "N", default_value_t = PREFIXES)]
    pub(crate) prefixes: u32,
}

/// How slices are cut.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it is measured")]
pub(crate) struct SliceArgs {
    /// Packets in a slice [default: 5000 for path, 10000 for ab, 50000 where all paths are in user space]
    #[arg(long = "slice", value_name = "PACKETS")]
    pub(crate) packets: Option<u64>,
    /// Clock: thread (CPU time of the measuring thread), or machine (busy time of all CPUs, over slices
    /// of a second, for work that moves to other CPUs)
    #[arg(long, value_name = "CLOCK", default_value = "thread")]
    pub(crate) clock: String,
    /// Seed of every random order [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// What is asked of the host.
#[derive(Debug, Args)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// CPU that sends and measures [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub(crate) cpu: Option<usize>,
    /// Leave /sys/kernel/rcu_expedited as it is; each injecting call then waits for tens of milliseconds
    #[arg(long)]
    pub(crate) no_expedite: bool,
}

/// Where results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Write the record as one JSON document to FILE; `-` is standard output, and then nothing else is
    /// printed there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print the result only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the whole scenario, the lab and every ledger
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Do not keep a record of this run
    #[arg(long)]
    pub(crate) no_save: bool,
    /// Where records are kept [default: $XDG_DATA_HOME/perpacket/records]
    #[arg(long, value_name = "DIR", env = "PERPACKET_STORE", hide_env_values = true)]
    pub(crate) store: Option<OsString>,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is no percentage; write 0.5%"))?;
    if number.is_finite() && number > 0.0 && number < 100.0 {
        Ok(number / 100.0)
    } else {
        Err(format!("`{text}` must be above 0 and below 100 %"))
    }
}

/// The same, and 0.
fn parse_percent_or_none(text: &str) -> Result<f64, String> {
    let is_zero = text.trim_end_matches('%').trim().parse::<f64>().is_ok_and(|number| number == 0.0);
    if is_zero { Ok(0.0) } else { parse_percent(text) }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("`{unit}` is no unit of time; use ms, s, min or h")),
    };
    let seconds = digits.parse::<f64>().map_err(|_| format!("`{text}` is no time; write 10s"))? * factor;
    if !TIME_S.contains(&seconds) {
        return Err(format!("`{text}` is outside 50 ms to 24 h"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_and_percentages() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5min"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "s", "-1s", "0", "2d", "nan", "1e9h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_percent("0.5%"), Ok(0.005));
        assert_eq!((parse_percent_or_none("0%"), parse_percent_or_none("0")), (Ok(0.0), Ok(0.0)));
        assert!(parse_percent("0%").is_err() && parse_percent_or_none("-1%").is_err());
        for bad in ["", "%", "0", "-1%", "100%", "nan"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }
}
