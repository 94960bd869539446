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
use std::str::FromStr;

use anyhow::Result;
use lab::{Lab, Plan};
use serde::{Deserialize, Serialize};
use template::{Addresses, UdpFrame};
use traffic::BackendKind;

use crate::scenario::{Cell, nearest};

pub(crate) use ending::Ending;
pub(crate) use topology::{FAR, GEN, INGRESS, INGRESS_PEER, SYS, lay};

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
    /// Its name on the command line.
    pub(crate) name: &'static str,
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
const INTO_THE_DRIVER: &[BackendKind] = &[BackendKind::XdpLive, BackendKind::AfXdp, BY_DEVICE[0], BY_DEVICE[1]];

/// A path by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum PathName {
    Floor,
    XdpDrop,
    XdpTx,
    TcDrop,
    RawDrop,
    Forward,
    Forward6,
    Bridge,
    Udp,
    UdpNoport,
}

impl PathName {
    /// Every path, cheapest first.
    pub(crate) const ALL: [Self; 10] = [
        Self::Floor,
        Self::XdpDrop,
        Self::XdpTx,
        Self::TcDrop,
        Self::RawDrop,
        Self::Forward,
        Self::Forward6,
        Self::Bridge,
        Self::Udp,
        Self::UdpNoport,
    ];

    /// The path itself.
    pub(crate) fn path(self) -> &'static dyn Path {
        match self {
            Self::Floor => &floor::Floor,
            Self::XdpDrop => &xdp_drop::XdpDrop,
            Self::XdpTx => &xdp_tx::XdpTx,
            Self::TcDrop => &tc_drop::TcDrop,
            Self::RawDrop => &raw_drop::RawDrop,
            Self::Forward => &forward::Forward,
            Self::Forward6 => &forward::Forward6,
            Self::Bridge => &bridge::Bridge,
            Self::Udp => &udp::Udp,
            Self::UdpNoport => &udp_noport::UdpNoport,
        }
    }

    /// What the path is.
    pub(crate) fn about(self) -> &'static About {
        self.path().about()
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.about().name)
    }
}

impl FromStr for PathName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|path| path.about().name == text)
            .ok_or_else(|| nearest("path", text, Self::ALL.map(|path| path.about().name).into_iter()))
    }
}

impl TryFrom<String> for PathName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PathName> for String {
    fn from(path: PathName) -> Self {
        path.about().name.into()
    }
}
