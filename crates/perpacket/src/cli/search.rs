//! Arguments of `search`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{HostArgs, OutputArgs, SettingArgs, parse_duration, parse_percent, parse_percent_or_none};
use crate::flows::FlowFactor;

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Paths: those of `path` that can lose packets (udp forward forward6 bridge raw-drop tc-drop xdp-drop
    /// xdp-tx udp-noport), a device in user space between veth pairs (datapath:drop datapath:forward
    /// datapath:udp), flows, or devices (what is between two devices of this host)
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,
    /// Frame sizes in bytes, with the 4-byte FCS; imix (7 of 64, 4 of 594, 1 of 1518); sweep is 64, 128, 256,
    /// 512, 1024, 1280, 1518 and imix
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64")]
    pub(crate) frame: Vec<String>,
    #[command(flatten)]
    pub(crate) goal: GoalArgs,
    #[command(flatten)]
    pub(crate) setting: SettingArgs,
    /// How a device in user space is joined to the lab: af-xdp, or af-packet
    #[arg(long, value_name = "KIND", default_value = "af-xdp", help_heading = "Datapath paths")]
    pub(crate) ports: String,
    #[command(flatten)]
    pub(crate) flows: FlowsArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Draw the rates over the frame sizes as SVG
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What the path `flows` has beside what all paths have.
#[derive(Debug, Args)]
#[command(next_help_heading = "The path flows, as in the command of that name")]
pub(crate) struct FlowsArgs {
    /// Destination ports [default: one for each flow]
    #[arg(long, value_name = "N")]
    pub(crate) flow_ports: Option<String>,
    /// Sockets on each port [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) sockets_per_port: Option<String>,
    /// Which threads read: threads, epoll or auto [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub(crate) reader: Option<String>,
    /// What a thread does when there is nothing: sleep, nap or spin [default: sleep]
    #[arg(long, value_name = "HOW")]
    pub(crate) wait: Option<String>,
    /// Receive buffer to ask for [default: room for about 1,000 injected frames]
    #[arg(long, value_name = "BYTES")]
    pub(crate) rcvbuf: Option<String>,
    /// Receive flow steering: off, or entries of its table; borrowed of the host [default: off]
    #[arg(long, value_name = "N")]
    pub(crate) rfs: Option<String>,
    /// Packets that a CPU's backlog takes, or host; borrowed of the host [default: host, as it is]
    #[arg(long, value_name = "PACKETS")]
    pub(crate) backlog: Option<String>,
}

impl FlowsArgs {
    /// Those that were given, by the name of their factor; with the number of flows, which all paths have, where it was given: what is
    /// usual is another number here.
    pub(crate) fn given(&self, flows: Option<u16>) -> BTreeMap<String, String> {
        let flows = flows.map(|flows| flows.to_string());
        let all = [
            (FlowFactor::Flows, &flows),
            (FlowFactor::Ports, &self.flow_ports),
            (FlowFactor::SocketsPerPort, &self.sockets_per_port),
            (FlowFactor::Reader, &self.reader),
            (FlowFactor::Wait, &self.wait),
            (FlowFactor::Rcvbuf, &self.rcvbuf),
            (FlowFactor::Rfs, &self.rfs),
            (FlowFactor::Backlog, &self.backlog),
        ];
        let given = all.into_iter().filter_map(|(factor, text)| Some((factor.name().into(), text.clone()?)));
        given.collect()
    }
}

/// What the path `devices` is.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "The path devices: frames leave by one and are counted where they come in by the other"
)]
pub(crate) struct DevicesArgs {
    /// Device that frames leave by; never one with a default route
    #[arg(long, value_name = "DEVICE", requires = "from")]
    pub(crate) to: Option<String>,
    /// Device that they come in by, where an XDP program takes them, and nothing else; likewise
    #[arg(long, value_name = "DEVICE", requires = "to")]
    pub(crate) from: Option<String>,
    /// Allow test traffic on this device; name both
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub(crate) allow_device: Vec<String>,
    /// MAC address that frames are sent to: of a router under test [default: that of --from]
    #[arg(long, value_name = "MAC", requires = "to")]
    pub(crate) dst_mac: Option<String>,
    /// IPv4 address that they are sent to; they come from 198.18.0.1 [default: 198.19.0.1]
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    pub(crate) dst_ip: Option<Ipv4Addr>,
}

/// What is searched for, and how long.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is searched for")]
pub(crate) struct GoalArgs {
    /// Goals, all in one search: ndr (no loss), pdr (0.5 %), rfc2544 and tst009 (with trials of 60 s), a
    /// share of loss (0.1%), or NAME:LOSS:EXCEED (mine:0.1%:50%)
    #[arg(long, value_name = "GOAL,…", value_delimiter = ',', default_values = ["ndr", "pdr"])]
    pub(crate) goal: Vec<String>,
    /// Length of a trial [default: 500ms; of rfc2544 and tst009 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) trial: Option<Duration>,
    /// Time of trials at one load that decides about it [default: 11 trials; of rfc2544 one, of tst009 two]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) sum: Option<Duration>,
    /// Share of this time in which more may be lost than the goal allows [default: 50%; of rfc2544 0%]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent_or_none)]
    pub(crate) exceed: Option<f64>,
    /// How close the bounds must come, as a share of the rate [default: 1%, or the
    /// loss that is allowed]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) width: Option<f64>,
    /// The lowest rate that is tried
    #[arg(long, value_name = "RATE", default_value = "10kpps")]
    pub(crate) min: String,
    /// The highest rate that is tried
    #[arg(long, value_name = "RATE", default_value = "20Mpps")]
    pub(crate) max: String,
    /// Time limit of each search: of one path at one frame size, once
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_duration)]
    pub(crate) time: Duration,
    /// How often each search is made; the spread is printed beside the result
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) runs: u32,
}
