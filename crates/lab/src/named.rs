//! Devices that a user names. Test traffic may leave a lab only by one of these, and never by a device that
//! carries a default route, or that shares a wire with one: what is sent there reaches others.

use std::collections::BTreeSet;

use linux::SyscallError;
use linux::route::{Link, RouteSocket};
use thiserror::Error;

/// Why a device is not sent to.
#[derive(Debug, Error)]
pub enum NamedDeviceError {
    /// It is not in the calling thread's namespace.
    #[error("no device is called `{name}` here (there are {})", known.join(", "))]
    Missing {
        /// The name asked for.
        name: String,
        /// The devices that there are.
        known: Vec<String>,
    },
    /// It leads to everybody.
    #[error(
        "{name} {}carries a default route: test traffic there would reach other hosts, and is always refused; name a device of its own",
        through(name, carrier)
    )]
    DefaultRoute {
        /// The device.
        name: String,
        /// The device that has the route: itself, or one that it shares a wire with.
        carrier: String,
    },
    /// The kernel could not be asked.
    #[error("ask the kernel about {name}")]
    Kernel {
        /// The device.
        name: String,
        /// Why.
        #[source]
        source: SyscallError,
    },
}

fn through(name: &str, carrier: &str) -> String {
    if name == carrier { String::new() } else { format!("belongs together with {carrier}, which ") }
}

/// The device of this name in the calling thread's namespace, if test traffic may be sent to it.
///
/// # Errors
/// [`NamedDeviceError`]; a device with a default route (IPv4 or IPv6, in any table) is refused whatever else holds, and
/// so is one that belongs together with such a device: a port and its bridge or bond, a VLAN or macvlan and the device
/// below it. What is below in another namespace is not seen.
pub fn named_device(name: &str) -> Result<Link, NamedDeviceError> {
    let failed = |source| NamedDeviceError::Kernel { name: name.to_owned(), source };
    let mut socket = RouteSocket::open().map_err(failed)?;
    let links = socket.links().map_err(failed)?;
    let Some(link) = links.iter().find(|link| link.name == name) else {
        let known = links.into_iter().map(|link| link.name).collect();
        return Err(NamedDeviceError::Missing { name: name.to_owned(), known });
    };
    let carriers = socket.default_route_ifindexes().map_err(failed)?;
    let mut together = together_with(link, &links);
    together.sort_by_key(|other| other.ifindex != link.ifindex); // itself is named first
    if let Some(carrier) = together.into_iter().find(|other| carriers.contains(&other.ifindex)) {
        return Err(NamedDeviceError::DefaultRoute { name: name.to_owned(), carrier: carrier.name.clone() });
    }
    Ok(link.clone())
}

/// All devices that share a wire with `link`, itself included: it leads to them, or they to it.
fn together_with<'a>(link: &Link, links: &'a [Link]) -> Vec<&'a Link> {
    let mut found = BTreeSet::new();
    let mut open = vec![link.ifindex];
    while let Some(ifindex) = open.pop() {
        if !found.insert(ifindex) {
            continue;
        }
        for known in links {
            let leads_to = leads_to(known, links);
            if known.ifindex == ifindex {
                open.extend(leads_to.into_iter().flatten());
            } else if leads_to.contains(&Some(ifindex)) {
                open.push(known.ifindex);
            }
        }
    }
    links.iter().filter(|known| found.contains(&known.ifindex)).collect()
}

/// The device that `link` is a port of, and the one that it stands on. The other end of a pair is not below it, and
/// members of a VRF have a table of routes in common, and no wire.
fn leads_to(link: &Link, links: &[Link]) -> [Option<u32>; 2] {
    let is_vrf = |ifindex: &u32| {
        links.iter().any(|known| known.ifindex == *ifindex && known.kind.as_deref() == Some("vrf"))
    };
    let is_pair = matches!(link.kind.as_deref(), Some("veth" | "netkit" | "vxcan"));
    let lower = link.peer_ifindex.filter(|_| !is_pair && !link.peer_in_other_netns);
    [link.master_ifindex.filter(|master| !is_vrf(master)), lower]
}
