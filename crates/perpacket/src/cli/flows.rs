//! Arguments of `perpacket flows`.

use std::path::PathBuf;

use clap::Args;

use super::{HostArgs, OutputArgs};
use crate::flows::FlowFactor;

#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) receivers: ReceiverArgs,
    #[command(flatten)]
    pub(crate) steering: SteeringArgs,
    #[command(flatten)]
    pub(crate) runs: RunsArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Draw the share received in each run, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What is sent. Each option but the first three may have two values, A,B: then both are measured, in turn.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "What is sent (of one option two values, A,B: then both are measured, in turn)"
)]
pub(crate) struct LoadArgs {
    /// Packets of a run
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1_000_000)]
    pub(crate) packets: u64,
    /// Leave number and time out of the packets; reordering and delays are not known then
    #[arg(long)]
    pub(crate) no_stamp: bool,
    /// Ports, the last ones, that nobody listens on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) closed_ports: u32,
    /// Rate of all flows together: 750kpps, 1Gbit (of the frames without FCS), or 1Gbit/wire [default: 750kpps]
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// Flows, which are sent in turn [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<String>,
    /// Destination ports; flows beyond them differ in the source address [default: one for each flow]
    #[arg(long, value_name = "N")]
    pub(crate) ports: Option<String>,
    /// Flood from so many source addresses (of 10.0.0.0/8): each packet has the next one [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) sources: Option<String>,
    /// Frame size in bytes, with the 4-byte FCS [default: 64]
    #[arg(long, value_name = "BYTES")]
    pub(crate) frame: Option<String>,
    /// How packets get in: inject (behind the receiving device), xdp-live, af-xdp, tx-ring, mmsg or udp
    /// (over a veth pair) [default: the best one that works and that no other option rules out]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
}

/// Who receives.
#[derive(Debug, Args)]
#[command(next_help_heading = "Who receives: a socket for each port, and pinned threads")]
pub(crate) struct ReceiverArgs {
    /// What receives: kernel, or datapath (the device in user space, by an AF_XDP socket; --rps names the CPUs of its own
    /// backlogs, --backlog their length)
    #[arg(long, value_name = "DUT", default_value = "kernel")]
    pub(crate) dut: String,
    /// Sockets on each port (SO_REUSEPORT) [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) sockets_per_port: Option<String>,
    /// Packets that a thread takes in a call (recvmmsg) [default: 64]
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<String>,
    /// Receive buffer to ask for (SO_RCVBUF, which the kernel doubles); a small injected frame takes about
    /// 5 KiB of it, one over a veth pair less than 1 [default: 16MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) rcvbuf: Option<String>,
    /// What a thread does when there is nothing: sleep (whoever delivers a packet wakes it up, which with
    /// inject is the sender), nap (it looks every 100 µs while there is little, and nobody wakes it), or
    /// spin (it asks again, and its CPU is never idle) [default: sleep]
    #[arg(long, value_name = "HOW")]
    pub(crate) wait: Option<String>,
    /// Which threads read: threads (one for each socket, waiting in the call), epoll (one for all sockets of
    /// a CPU) or auto (epoll where there are more sockets than CPUs for them) [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub(crate) reader: Option<String>,
    /// GRO on the receiving device and in the sockets (UDP_GRO); not with inject [default: off]
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) gro: Option<String>,
    /// µs that a receiver polls its device before it sleeps (SO_BUSY_POLL); not with inject [default: off]
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) busy_poll: Option<String>,
    /// Leave polling to the receivers while they do it (SO_PREFER_BUSY_POLL); not with inject [default: off]
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) prefer_busy_poll: Option<String>,
}

/// Which CPUs work on packets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Steering, put back at the end, on a signal and after a kill")]
pub(crate) struct SteeringArgs {
    /// Receive packet steering: off, or a CPU mask in hexadecimal of all receive queues (0x2), or one for
    /// each (0x1/0x2) [default: off]
    #[arg(long, value_name = "MASK")]
    pub(crate) rps: Option<String>,
    /// Receive flow steering: off, or entries of its table, a power of two. Sockets are connected then
    /// [default: off]
    #[arg(long, value_name = "N")]
    pub(crate) rfs: Option<String>,
    /// CPUs that send by the device's queues (XPS), as with --rps; not with inject [default: off]
    #[arg(long, value_name = "MASK")]
    pub(crate) xps: Option<String>,
    /// CPUs that refuse packets of a flow that fills the backlog they hand it to: off, or a mask
    /// [default: off]
    #[arg(long, value_name = "MASK")]
    pub(crate) flow_limit: Option<String>,
    /// Packets that a CPU's backlog takes (net.core.netdev_max_backlog), or host [default: host, as it is]
    #[arg(long, value_name = "PACKETS")]
    pub(crate) backlog: Option<String>,
    /// Poll the receiving device in a thread of the kernel; not with inject [default: off]
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) threaded: Option<String>,
}

/// How it is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it is measured")]
pub(crate) struct RunsArgs {
    /// Runs of each setting
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) runs: u32,
    /// What differs between two settings, and its two values: the same as two values of that option
    #[arg(long, value_name = "KEY=A,B")]
    pub(crate) vary: Option<String>,
    /// Seed of the order of runs [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl FlowsArgs {
    /// The options that are factors, as far as they were given.
    pub(crate) fn factors(&self) -> Vec<(FlowFactor, &str)> {
        let Self { load, receivers, steering, .. } = self;
        let all = [
            (FlowFactor::Rate, &load.rate),
            (FlowFactor::Flows, &load.flows),
            (FlowFactor::Ports, &load.ports),
            (FlowFactor::Sources, &load.sources),
            (FlowFactor::Frame, &load.frame),
            (FlowFactor::Backend, &load.backend),
            (FlowFactor::SocketsPerPort, &receivers.sockets_per_port),
            (FlowFactor::Batch, &receivers.batch),
            (FlowFactor::Rcvbuf, &receivers.rcvbuf),
            (FlowFactor::Wait, &receivers.wait),
            (FlowFactor::Reader, &receivers.reader),
            (FlowFactor::Gro, &receivers.gro),
            (FlowFactor::BusyPoll, &receivers.busy_poll),
            (FlowFactor::PreferBusyPoll, &receivers.prefer_busy_poll),
            (FlowFactor::Rps, &steering.rps),
            (FlowFactor::Rfs, &steering.rfs),
            (FlowFactor::Xps, &steering.xps),
            (FlowFactor::FlowLimit, &steering.flow_limit),
            (FlowFactor::Backlog, &steering.backlog),
            (FlowFactor::Threaded, &steering.threaded),
        ];
        all.into_iter().filter_map(|(factor, text)| Some((factor, text.as_deref()?))).collect()
    }
}
