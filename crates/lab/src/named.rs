//! Devices that a user names. Test traffic may leave a lab only by one of these, and never by a device that
//! carries a default route: what is sent there reaches others.

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
        "{name} carries a default route: test traffic there would reach other hosts, and is always refused; name a device of its own"
    )]
    DefaultRoute {
        /// The device.
        name: String,
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

/// The device of this name in the calling thread's namespace, if test traffic may be sent to it.
///
/// # Errors
/// [`NamedDeviceError`]; a device with a default route (IPv4 or IPv6, in any table) is refused whatever else holds.
pub fn named_device(name: &str) -> Result<Link, NamedDeviceError> {
    let failed = |source| NamedDeviceError::Kernel { name: name.to_owned(), source };
    let mut socket = RouteSocket::open().map_err(failed)?;
    let links = socket.links().map_err(failed)?;
    let Some(link) = links.iter().find(|link| link.name == name) else {
        let known = links.into_iter().map(|link| link.name).collect();
        return Err(NamedDeviceError::Missing { name: name.to_owned(), known });
    };
    if socket.default_route_ifindexes().map_err(failed)?.contains(&link.ifindex) {
        return Err(NamedDeviceError::DefaultRoute { name: name.to_owned() });
    }
    Ok(link.clone())
}
