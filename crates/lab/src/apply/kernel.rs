//! The running kernel as the host of a lab.

use std::io;
use std::os::fd::AsFd;

use linux::SyscallError;
use linux::ethtool::EthtoolSocket;
use linux::netns::Netns;
use linux::nft::{BaseChain, Batch, NftSocket};
use linux::route::{RouteSocket, VethEnd};
use linux::sysctl;

use super::{Device, Host, Spaces};
use crate::plan::{Offload, Port, Step, Table};

/// A namespace of a lab with the sockets to configure it.
#[derive(Debug)]
pub struct Space {
    netns: Netns,
    route: RouteSocket,
    /// Opened by the first table: not every kernel has netfilter.
    nft: Option<NftSocket>,
    ethtool: EthtoolSocket,
}

impl Space {
    pub(super) fn netns(&self) -> &Netns {
        &self.netns
    }
}

/// Builds on the running kernel. It moves the thread that uses it from namespace to namespace.
#[derive(Debug, Default)]
pub struct KernelHost {
    /// The role of the namespace that the thread is in.
    inside: Option<String>,
}

impl Host for KernelHost {
    type Space = Space;

    fn make(&mut self, role: &str) -> Result<Space, SyscallError> {
        let netns = Netns::unnamed()?;
        netns.enter()?;
        self.inside = Some(role.to_owned());
        Ok(Space { netns, route: RouteSocket::open()?, nft: None, ethtool: EthtoolSocket::open()? })
    }

    fn perform(&mut self, step: &Step, spaces: &mut Spaces<Space>) -> Result<Vec<Device>, SyscallError> {
        match step {
            Step::Namespace { .. } => Ok(Vec::new()),
            Step::Veth { a, b } => make_veth(a, b, spaces),
            Step::Bridge { role, device } => {
                let space = space(spaces, role)?;
                space.route.create_bridge(device)?;
                Ok(vec![describe(role, device, space)?])
            }
            Step::Setting { role, name, value } | Step::LateSetting { role, name, value } => {
                self.enter(role, spaces)?;
                sysctl::write(name, value).map(|()| Vec::new())
            }
            Step::Table { role, table } => {
                self.enter(role, spaces)?;
                make_table(table, space(spaces, role)?).map(|()| Vec::new())
            }
            other => configure(other, spaces).map(|()| Vec::new()),
        }
    }

    fn not_ready(
        &mut self,
        devices: &[Device],
        spaces: &mut Spaces<Space>,
    ) -> Result<Vec<Device>, SyscallError> {
        let mut waiting = Vec::new();
        for device in devices {
            let link = space(spaces, &device.role)?.route.link_by_name(&device.name)?;
            if !link.is_some_and(|link| link.is_operational()) {
                waiting.push(device.clone());
            }
        }
        Ok(waiting)
    }

    fn discard(&mut self, _: &str, space: Space) {
        drop(space);
    }
}

impl KernelHost {
    fn enter(&mut self, role: &str, spaces: &Spaces<Space>) -> Result<(), SyscallError> {
        if self.inside.as_deref() == Some(role) {
            return Ok(());
        }
        spaces.of(role).ok_or_else(|| missing("namespace", role))?.netns.enter()?;
        self.inside = Some(role.to_owned());
        Ok(())
    }
}

/// The steps that change one thing about what is there.
fn configure(step: &Step, spaces: &mut Spaces<Space>) -> Result<(), SyscallError> {
    let role = step.roles().next().unwrap_or_default();
    let Space { route, ethtool, .. } = space(spaces, role)?;
    match step {
        Step::NoMulticast { .. } => {
            let links = route.links()?;
            links.iter().filter(|link| !link.loopback).try_for_each(|link| route.set_silent(link.ifindex))
        }
        Step::Member { bridge, device, .. } => {
            let (port, master) = (index(route, device)?, index(route, bridge)?);
            route.set_master(port, master)
        }
        Step::Offload { device, offload: Offload::Gro, on, .. } => ethtool.set_gro(device, *on),
        Step::Offload { device, offload: Offload::Tso, on, .. } => ethtool.set_tso(device, *on),
        Step::Offload { device, offload: Offload::UdpSegmentation, on, .. } => {
            ethtool.set_feature(device, "tx-udp-segmentation", *on)
        }
        Step::Address { device, address, prefix_bits, .. } => {
            let index = index(route, device)?;
            route.add_address(index, *address, *prefix_bits)
        }
        Step::Up { device, .. } => {
            let index = index(route, device)?;
            route.set_up(index)
        }
        Step::Qdisc { device, kind, .. } => {
            let index = index(route, device)?;
            route.set_root_qdisc(index, kind)
        }
        Step::Neighbour { device, address, mac, .. } => {
            let index = index(route, device)?;
            route.add_neighbour(index, *address, *mac)
        }
        Step::Station { device, mac, .. } => {
            let index = index(route, device)?;
            route.add_fdb(index, *mac)
        }
        Step::Route { destination, via, device, .. } => {
            let index = index(route, device)?;
            route.add_route(*destination, *via, index)
        }
        Step::Namespace { .. }
        | Step::Setting { .. }
        | Step::LateSetting { .. }
        | Step::Veth { .. }
        | Step::Bridge { .. }
        | Step::Table { .. } => Ok(()),
    }
}

fn make_veth(a: &Port, b: &Port, spaces: &mut Spaces<Space>) -> Result<Vec<Device>, SyscallError> {
    let far = spaces.of(&b.role).ok_or_else(|| missing("namespace", &b.role))?;
    let far = far.netns.as_fd().try_clone_to_owned();
    let far = far.map_err(|error| SyscallError::new("duplicate descriptor", "network namespace", error))?;
    let near = end(a);
    let far = VethEnd { netns: Some(far.as_fd()), ..end(b) };
    space(spaces, &a.role)?.route.create_veth(&near, &far)?;
    [a, b].into_iter().map(|port| describe(&port.role, &port.device, space(spaces, &port.role)?)).collect()
}

fn end(port: &Port) -> VethEnd<'_> {
    VethEnd {
        mac: port.mac,
        mtu: port.mtu_bytes,
        tx_queues: port.queues,
        rx_queues: port.queues,
        ..VethEnd::new(&port.device)
    }
}

fn describe(role: &str, device: &str, space: &mut Space) -> Result<Device, SyscallError> {
    let link = space.route.link_by_name(device)?.ok_or_else(|| missing("device", device))?;
    Ok(Device {
        role: role.to_owned(),
        name: link.name,
        ifindex: link.ifindex,
        mac: link.mac.ok_or_else(|| missing("hardware address of", device))?,
        mtu_bytes: link.mtu,
        tx_queues: link.tx_queues,
        rx_queues: link.rx_queues,
    })
}

fn make_table(table: &Table, space: &mut Space) -> Result<(), SyscallError> {
    let (family, name) = (table.family, table.name.as_str());
    let mut batch = Batch::new();
    batch.add_table(family, name);
    for counter in &table.counters {
        batch.add_counter(family, name, counter);
    }
    for chain in &table.chains {
        match &chain.base {
            Some(base) => batch.add_base_chain(&BaseChain {
                family,
                table: name,
                name: &chain.name,
                hook: base.hook,
                priority: base.priority,
                device: base.device.as_deref(),
                policy: base.policy.clone(),
            }),
            None => batch.add_chain(family, name, &chain.name),
        };
    }
    // After all chains, since a rule may jump to any of them.
    for chain in &table.chains {
        for rule in &chain.rules {
            batch.add_rule(family, name, &chain.name, rule);
        }
    }
    let socket = match &mut space.nft {
        Some(socket) => socket,
        none => none.insert(NftSocket::open()?),
    };
    socket.commit(batch)
}

fn space<'a>(spaces: &'a mut Spaces<Space>, role: &str) -> Result<&'a mut Space, SyscallError> {
    spaces.of_mut(role).ok_or_else(|| missing("namespace", role))
}

fn index(route: &mut RouteSocket, device: &str) -> Result<u32, SyscallError> {
    route.link_by_name(device)?.map(|link| link.ifindex).ok_or_else(|| missing("device", device))
}

fn missing(what: &'static str, name: &str) -> SyscallError {
    SyscallError::new("find", format!("{what} {name}"), io::Error::from(io::ErrorKind::NotFound))
}
