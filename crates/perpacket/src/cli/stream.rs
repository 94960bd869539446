//! Arguments of `perpacket stream` and `perpacket rr`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{OutputArgs, parse_duration};
use crate::streams::Protocol;

#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// What is sent: tcp, sendfile, maerts (the other end sends), bidir, udp; each may say the bytes of a
    /// call or message, as udp@64 (default: sendfile@16384 tcp@16384 udp@65507 udp@64 udp@128 udp@1024)
    #[arg(value_name = "WORK")]
    pub(crate) work: Vec<String>,
    #[command(flatten)]
    pub(crate) bytes: BytesArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RrArgs {
    /// What is asked: tcp, udp (requests and responses), crr (a connection for each), cc (connections
    /// without any) [default: tcp udp crr]
    #[arg(value_name = "WORK")]
    pub(crate) work: Vec<String>,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// How bytes get in and out.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is sent")]
pub(crate) struct BytesArgs {
    /// Bytes of a call or message, of works that do not say it themselves
    #[arg(long, value_name = "BYTES")]
    pub(crate) send: Option<u32>,
    /// Bytes asked for by a call that receives [default: 131072; of datagrams 65536]
    #[arg(long, value_name = "BYTES")]
    pub(crate) recv: Option<u32>,
    /// How bytes get into a stream socket [default: copy]
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) giving: Option<GivingWord>,
    /// How bytes get out of it; discard: the kernel drops them, nothing is copied (MSG_TRUNC)
    #[arg(long, value_name = "HOW", value_enum, default_value = "copy")]
    pub(crate) taking: TakingWord,
    /// Datagrams that a call hands over as one buffer, which the kernel cuts (UDP_SEGMENT) [default: off]
    #[arg(long, value_name = "DATAGRAMS")]
    pub(crate) gso: Option<u16>,
    /// Datagrams may be read joined (UDP_GRO)
    #[arg(long)]
    pub(crate) gro: bool,
    /// Messages in one sendmmsg or recvmmsg [default: one at a time]
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<u16>,
    /// Bits of payload in a second of each flow, and who keeps to it: 1Gbit, 1Gbit:kernel
    /// (SO_MAX_PACING_RATE), 1Gbit:txtime (SO_TXTIME) or 1Gbit:spread (the sending thread, without bursts)
    /// [default: as fast as it goes; by kernel, of datagrams by spread]
    #[arg(long, value_name = "RATE[:HOW]", conflicts_with = "rate")]
    pub(crate) pacing: Option<String>,
}

/// Requests and responses.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is asked")]
pub(crate) struct ExchangeArgs {
    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    pub(crate) request: u32,
    /// Bytes of a response
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    pub(crate) response: u32,
    /// Requests of a flow that may wait for their response at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) outstanding: u32,
}

/// What both commands have.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub(crate) sockets: SocketArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// How results are printed: as tables, in netperf's columns (of works that netperf has), or as iperf3's
    /// JSON (of one run of one work)
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Netperf,
    Iperf3,
}

/// Options of the sockets of both ends.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sockets of both ends")]
pub(crate) struct SocketArgs {
    /// Connections, or pairs of sockets, at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) flows: u32,
    /// Send buffer to ask for (SO_SNDBUF, which the kernel doubles) [default: the kernel's]
    #[arg(long, value_name = "BYTES")]
    pub(crate) sndbuf: Option<u32>,
    /// Receive buffer to ask for (SO_RCVBUF, which the kernel doubles) [default: the kernel's]
    #[arg(long, value_name = "BYTES")]
    pub(crate) rcvbuf: Option<u32>,
    /// Send small segments at once (TCP_NODELAY)
    #[arg(long)]
    pub(crate) nodelay: bool,
    /// Send full segments only (TCP_CORK)
    #[arg(long)]
    pub(crate) cork: bool,
    /// Multipath TCP in place of TCP
    #[arg(long)]
    pub(crate) mptcp: bool,
    /// Congestion control, by its name in the kernel
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Largest segment (TCP_MAXSEG)
    #[arg(long, value_name = "BYTES")]
    pub(crate) mss: Option<u16>,
    /// Type of service, or traffic class
    #[arg(long, value_name = "N")]
    pub(crate) tos: Option<u8>,
    /// Priority for queueing disciplines (SO_PRIORITY)
    #[arg(long, value_name = "N")]
    pub(crate) priority: Option<u32>,
    /// µs that a call that finds nothing polls the device (SO_BUSY_POLL)
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) busy_poll: Option<u32>,
    /// Transactions, or messages, in a second of each flow, each due at its own time: latency counts from
    /// then [default: as fast as it goes]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,
}

/// Where the other end is.
#[derive(Debug, Args)]
#[command(next_help_heading = "The other end")]
pub(crate) struct HostArgs {
    /// Host on which a server listens (see perpacket serve): test traffic goes there, as fast as it goes, over
    /// whatever lies between [default: the other end is on this machine, and nothing leaves it]
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "unix")]
    pub(crate) host: Option<String>,
    /// Protocol by which it is asked: own (perpacket serve), netperf (netserver 2.7.0 or later), iperf3 (iperf3 -s)
    #[arg(long, value_name = "NAME", value_enum, default_value = "own", requires = "host")]
    pub(crate) protocol: Protocol,
    /// File with the key of a server that has one, 64 hexadecimal digits (own)
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) key: Option<PathBuf>,
    /// Who this is, for a server of iperf3 that wants to know; the password is in IPERF3_PASSWORD
    #[arg(long, value_name = "NAME", requires_all = ["host", "rsa_key"])]
    pub(crate) user: Option<String>,
    /// File with the public RSA key of that server, as PEM
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) rsa_key: Option<PathBuf>,
}

/// Where both ends are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where both ends run")]
pub(crate) struct PlaceArgs {
    /// Over IPv4 (the default)
    #[arg(short = '4', long, conflicts_with_all = ["ipv6", "unix"])]
    pub(crate) ipv4: bool,
    /// Over IPv6
    #[arg(short = '6', long, conflicts_with = "unix")]
    pub(crate) ipv6: bool,
    /// Over pairs of UNIX sockets
    #[arg(long)]
    pub(crate) unix: bool,
    /// CPU of this end and of the other one, as -T 0,1, or none [default: with one flow the last two
    /// allowed, with more, or with --host, none]
    #[arg(short = 'T', long = "pin", value_name = "LOCAL,REMOTE", conflicts_with = "cpus")]
    pub(crate) pin: Option<String>,
    /// CPUs of the threads of this end and of the other one, as 0-3/4-7
    #[arg(long, value_name = "LIST/LIST")]
    pub(crate) cpus: Option<String>,
    /// Threads of each end [default: one for each flow, but no more than CPUs]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
}

/// How long and how often.
#[derive(Debug, Args)]
#[command(next_help_heading = "How long and how often")]
pub(crate) struct RepeatArgs {
    /// Time of each run
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// Time before counting begins [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) omit: Option<Duration>,
    /// Say what was moved in each period of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) interval: Option<Duration>,
    /// Leave CPU time out
    #[arg(long)]
    pub(crate) no_cpu: bool,
    /// Runs of each work, all of which count
    #[arg(long, value_name = "N", conflicts_with_all = ["confidence", "iterations"])]
    pub(crate) runs: Option<u32>,
    /// Repeat until the interval of the means of throughput (or rate) and of both CPU shares, at LEVEL %, is
    /// at most WIDTH % of the mean from end to end, as netperf has it: -I 99,5
    #[arg(short = 'I', long, value_name = "LEVEL[,WIDTH]")]
    pub(crate) confidence: Option<String>,
    /// The most and the least runs for that [default with -I: 10,3]
    #[arg(short = 'i', long, value_name = "MAX[,MIN]")]
    pub(crate) iterations: Option<String>,
    /// Compare two values of an option, by its name without dashes (batch=1,32; over=ipv4,ipv6; on and off
    /// of a switch; default for its absence): their runs take turns, in random order [default runs: 5]
    #[arg(long, value_name = "KEY=A,B")]
    pub(crate) vary: Option<String>,
    /// Seed of that order [default: a new one, which is printed]
    #[arg(long, value_name = "N", requires = "vary")]
    pub(crate) seed: Option<u64>,
}

/// See [`stream::plan::Giving`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GivingWord {
    Copy,
    Sendfile,
    Splice,
    Zerocopy,
}

/// See [`stream::plan::Taking`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakingWord {
    Copy,
    Discard,
    Splice,
}
