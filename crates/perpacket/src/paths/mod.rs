//! The kernel paths: one file a path, behind one small trait.
//!
//! A path says what its lab needs beside the common topology ([`topology`]), what its frames look like, and, once
//! the lab stands, where its packets end and are counted. How frames get in is not its business, except that it
//! lists the ways that are valid for it.

mod bridge;
mod ending;
mod floor;
mod forward;
mod raw_drop;
mod tc_drop;
mod topology;
mod udp;
mod udp_noport;
mod xdp_drop;
mod xdp_tx;

use std::fmt;

use anyhow::Result;
use lab::{Lab, Plan};
use template::{Addresses, UdpFrame};
use traffic::BackendKind;

use crate::cell::{Cell, PathName};

pub(crate) use ending::Ending;
pub(crate) use topology::{FAR, GEN, INGRESS, INGRESS_PEER, SYS};

/// A path through the kernel.
pub(crate) trait Path: fmt::Debug + Sync {
    /// What it is, as data.
    fn about(&self) -> &'static About;

    /// Adds to the plan what this path needs beside the common topology.
    fn plan(&self, cell: &Cell, plan: &mut Plan);

    /// The Ethernet destination and the addresses that take a frame along this path.
    fn addresses(&self) -> ([u8; 6], Addresses);

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
            destination_port: topology::FIRST_PORT,
            flows: cell.setting.flows,
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
    /// Whether its packets pass the packet filter, so that rules cost something.
    pub(crate) filtered: bool,
    /// Whether it needs BPF programs of its own, whatever the way in.
    pub(crate) needs_bpf: bool,
}

/// The ways in by a device, best first.
const BY_DEVICE: [BackendKind; 3] = [BackendKind::Mmsg, BackendKind::TxRing, BackendKind::AfXdp];

/// Valid ingresses of paths that begin in the stack: anything that reaches `netif_receive_skb`.
const INTO_THE_STACK: &[BackendKind] =
    &[BackendKind::Inject, BY_DEVICE[0], BY_DEVICE[1], BY_DEVICE[2], BackendKind::XdpLive];

/// Valid ingresses of paths that end in the driver's XDP hook: a device must receive the frame.
const INTO_THE_DRIVER: &[BackendKind] =
    &[BackendKind::XdpLive, BackendKind::AfXdp, BY_DEVICE[0], BY_DEVICE[1]];

/// The whole plan of a cell's lab: the common topology, and what its path adds.
pub(crate) fn lay(cell: &Cell) -> Result<Plan> {
    let path = of(cell.path);
    let mut plan = topology::common(cell, matches!(path.addresses().1, Addresses::V6 { .. }))?;
    path.plan(cell, &mut plan);
    Ok(plan)
}

/// The path of this name.
pub(crate) fn of(name: PathName) -> &'static dyn Path {
    match name {
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
    }
}
