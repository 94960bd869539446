//! The paths: those through the kernel, one file each behind one small trait, and those through the device in user space.
//!
//! A path says what its lab needs beside the common topology ([`topology`]), what its frames look like, and, once
//! the lab stands, where its packets end and are counted. How frames get in is not its business, except that it
//! lists the ways that are valid for it.

mod bridge;
mod datapath;
pub(crate) mod ending;
mod floor;
mod forward;
mod raw_drop;
mod tc_drop;
pub(crate) mod topology;
mod udp;
mod udp_noport;
mod xdp_drop;
mod xdp_tx;

use std::fmt;

use anyhow::{Result, bail};
use lab::{Lab, Plan};
use template::{Addresses, UdpFrame};
use traffic::BackendKind;

use crate::cell::{Cell, FIRST_PORT, PathName};
use crate::scenario::Clock;

pub(crate) use ending::Ending;
pub(crate) use topology::{FAR, GEN, INGRESS, INGRESS_PEER, SYS, peer};

/// A path through the kernel.
pub(crate) trait Path: fmt::Debug + Sync {
    /// What it is, as data.
    fn about(&self) -> &'static About;

    /// Adds to the plan what this path needs beside the common topology; nothing where it does not say.
    fn plan(&self, _cell: &Cell, _plan: &mut Plan) {}

    /// The Ethernet destination and the addresses that take a frame along this path; to the system under test itself
    /// where it does not say.
    fn addresses(&self) -> ([u8; 6], Addresses) {
        (topology::MAC_IN0, topology::to_this_host())
    }

    /// Attaches what ends and counts the packets. Called when the lab stands.
    fn open(&self, lab: &Lab, cell: &Cell) -> Result<Ending>;

    /// The frame of this path at the cell's size.
    fn frame(&self, cell: &Cell) -> UdpFrame {
        let (destination_mac, addresses) = self.addresses();
        UdpFrame {
            source_mac: topology::MAC_G0,
            destination_mac,
            addresses,
            source_port: 1024,
            destination_port: FIRST_PORT,
            flows: cell.setting.flows,
            sources: 1,
            stamp: false,
            frame_bytes: cell.frame_bytes,
        }
    }
}

/// A path described as data.
#[derive(Debug)]
pub(crate) struct About {
    /// Where its packets go and end.
    pub(crate) summary: &'static str,
    /// The ways in that are valid for it, best first.
    pub(crate) ingresses: &'static [BackendKind],
    /// How far its packets get.
    pub(crate) ends: Ends,
    /// Counters that every packet of this path raises on its way, by the role of their namespace: none of them tells of a
    /// loss here, although it does on other paths.
    pub(crate) on_the_way: &'static [(&'static str, &'static str)],
    /// Whether its packets, or the answers to them, leave over a veth pair and are received once more at its other end: in
    /// a softirq of the sending CPU.
    pub(crate) crosses: bool,
    /// The least clock that sees its whole cost, as long as no setting moves work to another CPU. `machine` always does.
    pub(crate) clock: Clock,
    /// Whether its packets pass the packet filter, so that rules cost something.
    pub(crate) filtered: bool,
    /// Whether it needs BPF programs of its own, whatever the way in.
    pub(crate) needs_bpf: bool,
}

/// How far packets get before they end, and so what they never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Nowhere: the program that makes them ends them.
    Injector,
    /// In an XDP program of the driver: no GRO, no steering, no packet filter.
    Driver,
    /// In the stack, or behind it.
    Stack,
    /// In the device under test in user space: nothing of the kernel is met.
    Device,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways: Vec<String> = self.ingresses.iter().map(ToString::to_string).collect();
        let clock = match self.clock {
            Clock::Thread => "thread or machine",
            Clock::Machine => "machine",
        };
        write!(f, "{}; by {}; clock {clock}", self.summary, ways.join(", "))
    }
}

impl About {
    /// Whether a part of this path's work is done in softirqs when packets get in by `kind`: all that a veth receives. With
    /// CONFIG_IRQ_TIME_ACCOUNTING that part is in no thread's time.
    pub(crate) fn works_in_softirq(&self, kind: BackendKind) -> bool {
        let received = kind != BackendKind::Inject && matches!(self.ends, Ends::Driver | Ends::Stack);
        self.crosses || received
    }
}

/// What an XDP program dropped, as veth's driver counts it for each queue (drivers/net/veth.c, 6.18), without the queue.
pub(crate) const XDP_DROPS: &str = "xdp_drops";

/// The ways in by a device, best first.
const BY_DEVICE: [BackendKind; 3] = [BackendKind::Mmsg, BackendKind::TxRing, BackendKind::AfXdp];

/// Valid ingresses of paths that begin in the stack: anything that reaches `netif_receive_skb`. Sockets come last: they cost
/// most, and most of that is the sender's stack.
const INTO_THE_STACK: &[BackendKind] =
    &[BackendKind::Inject, BY_DEVICE[0], BY_DEVICE[1], BY_DEVICE[2], BackendKind::XdpLive, BackendKind::Udp];

/// The same for frames that are no UDP.
const INTO_THE_STACK_RAW: &[BackendKind] = INTO_THE_STACK.split_at(INTO_THE_STACK.len() - 1).0;

/// Valid ingresses of paths that end in the driver's XDP hook: a device must receive the frame.
const INTO_THE_DRIVER: &[BackendKind] =
    &[BackendKind::XdpLive, BackendKind::AfXdp, BY_DEVICE[0], BY_DEVICE[1]];

/// The whole plan of a cell's lab: the common topology, and what its path adds.
pub(crate) fn lay(cell: &Cell) -> Result<Plan> {
    let path = of(cell.path)?;
    let mut plan = topology::common(cell, matches!(path.addresses().1, Addresses::V6 { .. }))?;
    path.plan(cell, &mut plan);
    if cell.setting.backend == Some(BackendKind::Udp) {
        let (destination_mac, addresses) = path.addresses();
        topology::sockets(&mut plan, destination_mac, addresses);
    }
    Ok(plan)
}

/// Where packets of a cell come into the system under test, and how its device takes them: a veth into its driver's NAPI
/// where it has GRO or an XDP program, else by `netif_rx` (drivers/net/veth.c, 6.18). None where they end before.
pub(crate) fn ingress(cell: &Cell) -> Option<String> {
    let ends = about(cell.path).ends;
    match cell.setting.backend? {
        _ if ends == Ends::Device => Some("synthetic device".into()),
        _ if ends == Ends::Injector => None,
        BackendKind::Inject => Some(format!("netif_receive_skb_list of {INGRESS}")),
        _ if cell.setting.gro || ends == Ends::Driver => {
            Some(format!("veth {INGRESS_PEER} to {INGRESS}, napi"))
        }
        _ => Some(format!("veth {INGRESS_PEER} to {INGRESS}, netif_rx")),
    }
}

/// The kernel's path of this name.
///
/// # Errors
/// Where it is none of the kernel's.
pub(crate) fn of(name: PathName) -> Result<&'static dyn Path> {
    Ok(match name {
        PathName::Floor => &floor::Floor,
        PathName::XdpDrop => &xdp_drop::XdpDrop,
        PathName::XdpTx => &xdp_tx::XdpTx,
        PathName::TcDrop => &tc_drop::TcDrop,
        PathName::RawDrop => &raw_drop::RawDrop,
        PathName::Forward => &forward::Forward,
        PathName::Forward6 => &forward::Forward6,
        PathName::Bridge => &bridge::Bridge,
        PathName::Udp => &udp::Udp,
        PathName::UdpNoport => &udp_noport::UdpNoport,
        PathName::DatapathDrop
        | PathName::DatapathDummy
        | PathName::DatapathForward
        | PathName::DatapathUdp => bail!("{name} is a path in user space: it has no lab"),
    })
}

/// What is known about the path of this name.
pub(crate) fn about(name: PathName) -> &'static About {
    of(name).map_or_else(|_| datapath::about(name), Path::about)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Setting;

    #[test]
    fn where_packets_come_in_follows_from_the_way_in_and_the_receiving_end() {
        let of = |path, backend, gro| {
            ingress(&Cell {
                path,
                frame_bytes: 64,
                setting: Setting { backend: Some(backend), gro, ..Setting::default() },
            })
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of(PathName::Floor, BackendKind::Inject, false), None);
        assert_eq!(of(PathName::RawDrop, BackendKind::Inject, false), text("netif_receive_skb_list of in0"));
        assert_eq!(of(PathName::RawDrop, BackendKind::Mmsg, false), text("veth g0 to in0, netif_rx"));
        assert_eq!(of(PathName::RawDrop, BackendKind::Mmsg, true), text("veth g0 to in0, napi"));
        assert_eq!(of(PathName::XdpDrop, BackendKind::AfXdp, false), text("veth g0 to in0, napi"));
    }

    #[test]
    fn what_a_veth_receives_is_worked_on_in_softirqs() {
        let in_softirq = |path, kind| super::about(path).works_in_softirq(kind);
        for path in [PathName::Floor, PathName::TcDrop, PathName::RawDrop, PathName::Udp] {
            assert!(!in_softirq(path, BackendKind::Inject), "{path}");
        }
        for path in [PathName::Forward, PathName::Forward6, PathName::Bridge, PathName::UdpNoport] {
            assert!(in_softirq(path, BackendKind::Inject), "{path}");
        }
        let received = |path: &PathName| *path != PathName::Floor && !path.is_datapath();
        for path in PathName::ALL.into_iter().filter(received) {
            assert!(in_softirq(path, BackendKind::Mmsg), "{path}");
        }
    }
}
