//! The sockets of both ends of a local run, connected to each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;
use linux::socket;
use stream::engine::{Endpoint, Flow, Marks, Role, prepare};
use stream::plan::{Direction, Plan, SocketOptions, Transport, Work};

use crate::session::fresh_seed;

/// Bytes that marks take at the begin of a datagram ([`Marks::Own`]).
pub(super) const MARK_BYTES: u32 = 32;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Where one end opens its sockets, at any port.
pub(super) struct Home<'a> {
    pub(super) netns: &'a Netns,
    pub(super) address: SocketAddr,
}

/// The flows of both ends.
pub(super) type Both = (Vec<Flow>, Vec<Flow>);

/// What both ends of a flow do.
#[derive(Clone, Copy)]
struct Roles {
    client: Role,
    server: Role,
}

/// Opens the sockets of a plan between two namespaces.
///
/// # Errors
/// The call that failed.
pub(super) fn open(plan: &Plan, client: &Home<'_>, server: &Home<'_>) -> Result<Both> {
    if let Work::Connections { .. } = plan.work {
        return connectors(plan, client, server);
    }
    let roles = roles(plan);
    match plan.transport {
        Transport::Udp => udp(plan, &roles, client, server),
        _ => tcp(plan, &roles, client, server),
    }
}

/// Pairs of UNIX sockets.
///
/// # Errors
/// The call that failed.
pub(super) fn unix_pairs(plan: &Plan) -> Result<Both> {
    let marks = marks(plan);
    let pairs = roles(plan).into_iter().map(|roles| {
        let (near, far) = if plan.transport == Transport::UnixDatagram {
            let (near, far) = UnixDatagram::pair().context("socketpair of datagrams")?;
            prepare::apply(&plan.options.client, &near, plan.transport)?;
            prepare::apply(&plan.options.server, &far, plan.transport)?;
            (Endpoint::UnixDatagram(near), Endpoint::UnixDatagram(far))
        } else {
            let (near, far) = UnixStream::pair().context("socketpair of streams")?;
            prepare::apply(&plan.options.client, &near, plan.transport)?;
            prepare::apply(&plan.options.server, &far, plan.transport)?;
            (Endpoint::UnixStream(near), Endpoint::UnixStream(far))
        };
        Ok(pair(near, far, roles, marks))
    });
    Ok(pairs.collect::<Result<Vec<_>>>()?.into_iter().unzip())
}

/// What is done with each flow, in order.
fn roles(plan: &Plan) -> Vec<Roles> {
    let all = |client, server| vec![Roles { client, server }; plan.flows as usize];
    match plan.work {
        Work::Bulk { direction: Direction::ToServer, .. } => all(Role::Send, Role::Receive),
        Work::Bulk { direction: Direction::ToClient, .. } => all(Role::Receive, Role::Send),
        Work::Bulk { direction: Direction::Both, .. } => {
            [all(Role::Send, Role::Receive), all(Role::Receive, Role::Send)].concat()
        }
        Work::Transactions { .. } => all(Role::Request, Role::Respond),
        Work::Connections { .. } => all(Role::Connect, Role::Accept),
    }
}

/// Datagrams that have room for it say which they are.
fn marks(plan: &Plan) -> Marks {
    let datagrams = matches!(plan.transport, Transport::Udp | Transport::UnixDatagram);
    match plan.work {
        Work::Bulk { .. } if datagrams && plan.send_bytes >= MARK_BYTES => {
            let mut cookie = [0; 16];
            cookie[..8].copy_from_slice(&fresh_seed().to_be_bytes());
            cookie[8..].copy_from_slice(&fresh_seed().to_be_bytes());
            Marks::Own { cookie }
        }
        _ => Marks::None,
    }
}

fn pair(near: Endpoint, far: Endpoint, roles: Roles, marks: Marks) -> (Flow, Flow) {
    let flow = |endpoint, role| Flow { endpoint, role, marks };
    (flow(near, roles.client), flow(far, roles.server))
}

/// `SO_SNDBUF` and `SO_RCVBUF` of a data socket with these options, in the namespace of this thread.
///
/// # Errors
/// The call that failed.
pub(super) fn buffers(plan: &Plan, options: &SocketOptions, ipv6: bool) -> Result<(u32, u32)> {
    let any: IpAddr = if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let applied = if plan.transport == Transport::Udp {
        let socket = UdpSocket::bind((any, 0)).context("open a UDP socket")?;
        prepare::apply(options, &socket, plan.transport)?
    } else {
        let socket = socket::stream(SocketAddr::new(any, 0), plan.transport == Transport::Mptcp)?;
        prepare::apply(options, &socket, plan.transport)?
    };
    Ok((applied.send_buffer_bytes, applied.receive_buffer_bytes))
}

fn listener(plan: &Plan, server: &Home<'_>) -> Result<TcpListener> {
    let open = || -> Result<TcpListener> {
        let socket = tcp_socket(plan, &plan.options.server, server.address)?;
        Ok(socket::listen_at(socket, server.address)?)
    };
    server.netns.run(open)?
}

fn tcp_socket(plan: &Plan, options: &SocketOptions, address: SocketAddr) -> Result<OwnedFd> {
    let socket = socket::stream(address, plan.transport == Transport::Mptcp)?;
    prepare::apply(options, &socket, plan.transport)?;
    Ok(socket)
}

fn tcp(plan: &Plan, roles: &[Roles], client: &Home<'_>, server: &Home<'_>) -> Result<Both> {
    let listener = listener(plan, server)?;
    let to = listener.local_addr().context("read the address of the listener")?;
    // A socket belongs to the namespace in which it was made, wherever it is used.
    let sockets: Vec<OwnedFd> = client.netns.run(|| {
        let open = |_| tcp_socket(plan, &plan.options.client, client.address);
        roles.iter().map(open).collect::<Result<_>>()
    })??;
    let connect = |(socket, &roles)| {
        let near = socket::connect_within(socket, to, None, CONNECT)?;
        let (far, _) = listener.accept().with_context(|| format!("accept at {to}"))?;
        Ok(pair(Endpoint::Tcp(near), Endpoint::Tcp(far), roles, Marks::None))
    };
    let pairs: Result<Vec<_>> = sockets.into_iter().zip(roles).map(connect).collect();
    Ok(pairs?.into_iter().unzip())
}

fn udp(plan: &Plan, roles: &[Roles], client: &Home<'_>, server: &Home<'_>) -> Result<Both> {
    let open = |home: &Home<'_>, options: &SocketOptions| -> Result<Vec<(UdpSocket, SocketAddr)>> {
        let one = |_| {
            let socket =
                UdpSocket::bind(home.address).with_context(|| format!("bind to {}", home.address))?;
            prepare::apply(options, &socket, plan.transport)?;
            let at = socket.local_addr().context("read the address of a socket")?;
            Ok((socket, at))
        };
        home.netns.run(|| roles.iter().map(one).collect::<Result<_>>())?
    };
    let (near, far) = (open(client, &plan.options.client)?, open(server, &plan.options.server)?);
    let marks = marks(plan);
    let connect = |(((near, near_at), (far, far_at)), &roles): ((_, _), &Roles)| {
        let (near, far): (UdpSocket, UdpSocket) = (near, far);
        near.connect(far_at).with_context(|| format!("connect to {far_at}"))?;
        far.connect(near_at).with_context(|| format!("connect to {near_at}"))?;
        let near = Endpoint::Udp { socket: near, peer: Some(far_at) };
        let far = Endpoint::Udp { socket: far, peer: Some(near_at) };
        Ok(pair(near, far, roles, marks))
    };
    let pairs: Result<Vec<_>> = near.into_iter().zip(far).zip(roles).map(connect).collect();
    Ok(pairs?.into_iter().unzip())
}

/// One listener, which as many flows accept from as connect to it.
fn connectors(plan: &Plan, client: &Home<'_>, server: &Home<'_>) -> Result<Both> {
    let listener = listener(plan, server)?;
    let to = listener.local_addr().context("read the address of the listener")?;
    let bind = Some(SocketAddr::new(client.address.ip(), 0));
    let pairs = roles(plan).into_iter().map(|roles| {
        let listener = listener.try_clone().context("share the listener")?;
        Ok(pair(Endpoint::Connector { to, bind }, Endpoint::Listener(listener), roles, Marks::None))
    });
    Ok(pairs.collect::<Result<Vec<_>>>()?.into_iter().unzip())
}
