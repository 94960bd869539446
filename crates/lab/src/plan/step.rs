//! One step of a plan: what it does, in which phase, what it makes and what it needs.

use std::net::IpAddr;

use super::{Port, Table};

/// An offload that can be switched on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Generic receive offload. On a veth it switches the receive side to NAPI, as an XDP program does.
    Gro,
    /// TCP segmentation offload.
    Tso,
    /// UDP segmentation offload (`tx-udp-segmentation`). On a veth, many datagrams then reach the other end as one packet.
    UdpSegmentation,
}

/// One thing to be done. Displays as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what the builder methods of `Plan` take, and explained there")]
pub enum Step {
    /// Make a namespace.
    Namespace { role: String },
    /// Write a setting before there are devices.
    Setting { role: String, name: String, value: String },
    /// Make a veth pair.
    Veth { a: Port, b: Port },
    /// Make a bridge.
    Bridge { role: String, device: String },
    /// Keep all devices of a namespace from joining multicast groups, and so from reporting these.
    NoMulticast { role: String },
    /// Make a device a port of a bridge.
    Member { role: String, bridge: String, device: String },
    /// Switch an offload.
    Offload { role: String, device: String, offload: Offload, on: bool },
    /// Give a device an address.
    Address { role: String, device: String, address: IpAddr, prefix_bits: u8 },
    /// Switch a device on.
    Up { role: String, device: String },
    /// Write a setting once there are devices.
    LateSetting { role: String, name: String, value: String },
    /// Install a queueing discipline for all that a device sends.
    Qdisc { role: String, device: String, kind: String },
    /// Add a neighbour.
    Neighbour { role: String, device: String, address: IpAddr, mac: [u8; 6] },
    /// Tell a bridge where a station is.
    Station { role: String, device: String, mac: [u8; 6] },
    /// Add a route.
    Route { role: String, destination: (IpAddr, u8), via: Option<IpAddr>, device: String },
    /// Make a packet-filter table with all that is in it.
    Table { role: String, table: Table },
}

impl Step {
    /// Steps of a lower phase come first.
    pub(super) fn phase(&self) -> u8 {
        match self {
            Self::Namespace { .. } => 0,
            Self::Setting { .. } => 1,
            Self::Veth { .. } | Self::Bridge { .. } => 2,
            Self::NoMulticast { .. } => 3,
            Self::Member { .. } => 4,
            Self::Offload { .. } => 5,
            Self::Address { .. } => 6,
            Self::LateSetting { .. } => 7,
            Self::Up { .. } => 8,
            Self::Qdisc { .. } => 9,
            Self::Neighbour { .. } => 10,
            Self::Station { .. } => 11,
            Self::Route { .. } => 12,
            Self::Table { .. } => 13,
        }
    }

    /// The roles of the namespaces that the step works in.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Veth { a, b } => (&a.role, Some(&b.role)),
            Self::Namespace { role }
            | Self::Setting { role, .. }
            | Self::Bridge { role, .. }
            | Self::NoMulticast { role }
            | Self::Member { role, .. }
            | Self::Offload { role, .. }
            | Self::Address { role, .. }
            | Self::Up { role, .. }
            | Self::Qdisc { role, .. }
            | Self::LateSetting { role, .. }
            | Self::Neighbour { role, .. }
            | Self::Station { role, .. }
            | Self::Route { role, .. }
            | Self::Table { role, .. } => (role, None),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    /// The devices (role, name) that the step makes.
    pub fn makes(&self) -> impl Iterator<Item = (&str, &str)> {
        let (first, second) = match self {
            Self::Veth { a, b } => (Some((&a.role, &a.device)), Some((&b.role, &b.device))),
            Self::Bridge { role, device } => (Some((role, device)), None),
            _ => (None, None),
        };
        first.into_iter().chain(second).map(|(role, device)| (role.as_str(), device.as_str()))
    }

    /// The devices (role, name) that must be there before.
    pub fn needs(&self) -> impl Iterator<Item = (&str, &str)> {
        let needed: Vec<(&str, &str)> = match self {
            Self::Member { role, bridge, device } => vec![(role, bridge), (role, device)],
            Self::Offload { role, device, .. }
            | Self::Address { role, device, .. }
            | Self::Up { role, device }
            | Self::Qdisc { role, device, .. }
            | Self::Neighbour { role, device, .. }
            | Self::Station { role, device, .. }
            | Self::Route { role, device, .. } => vec![(role, device)],
            Self::Table { role, table } => {
                let devices = table.chains.iter().filter_map(|chain| chain.base.as_ref()?.device.as_deref());
                devices.map(|device| (role.as_str(), device)).collect()
            }
            _ => Vec::new(),
        };
        needed.into_iter()
    }
}
