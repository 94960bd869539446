//! Data sockets of a plan: opened at both ends, and found to belong together by cookie and address.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linux::{connections, socket as tcp};

use super::channel::Channel;
use super::error::OwnError;
use super::wire::{Cookie, GREETING_BYTES, Message, PREFACE_BYTES, Ready};
use crate::engine::{End, Endpoint, Flow, Marks, Role, prepare};
use crate::plan::{Direction, Plan, Transport, Work};
use crate::serve::lobby::{Arrived, Lobby, Rules};

/// What each datagram of a bulk transfer begins with: cookie, number, time.
const MARK_BYTES: u32 = 32;
/// Connections that may wait to be accepted; the kernel takes no more than `net.core.somaxconn`.
const BACKLOG: u16 = 4096;
/// How often a UDP socket says again that it is there.
const GREET_EVERY: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(20);

/// Whether two hosts can do this over perpacket's own protocol.
pub(super) fn check(plan: &Plan) -> Result<(), OwnError> {
    let refuse = |why: &str| Err(OwnError::Plan(why.into()));
    match (plan.transport, plan.work) {
        (Transport::UnixStream | Transport::UnixDatagram, _) => {
            refuse("UNIX sockets have both ends on one host; leave the host out")
        }
        (Transport::Udp, Work::Connections { .. }) => {
            refuse("UDP has no connections to open; measure them over TCP, or transactions over UDP")
        }
        (Transport::Udp, Work::Bulk { .. }) if plan.send_bytes < MARK_BYTES => {
            let bytes = plan.send_bytes;
            refuse(&format!(
                "datagrams of {bytes} bytes have no room for cookie, number and time; send {MARK_BYTES} or more"
            ))
        }
        _ => Ok(()),
    }
}

/// How many data sockets each end has. The first [`Plan::flows`] of them go to the server, where there are two directions.
pub(super) fn count(plan: &Plan) -> usize {
    let ways = if matches!(plan.work, Work::Bulk { direction: Direction::Both, .. }) { 2 } else { 1 };
    plan.flows as usize * ways
}

/// What an end does with its flow of this number.
fn role(plan: &Plan, end: End, flow: usize) -> Role {
    let is_client = end == End::Client;
    match plan.work {
        Work::Bulk { direction, .. } => {
            let to_server = match direction {
                Direction::ToServer => true,
                Direction::ToClient => false,
                Direction::Both => flow < plan.flows as usize,
            };
            if to_server == is_client { Role::Send } else { Role::Receive }
        }
        Work::Transactions { .. } if is_client => Role::Request,
        Work::Transactions { .. } => Role::Respond,
        Work::Connections { .. } if is_client => Role::Connect,
        Work::Connections { .. } => Role::Accept,
    }
}

fn flow(plan: &Plan, end: End, number: usize, cookie: Cookie, endpoint: Endpoint) -> Flow {
    let marked = plan.transport == Transport::Udp && matches!(plan.work, Work::Bulk { .. });
    let marks = if marked { Marks::Own { cookie: cookie.0 } } else { Marks::None };
    Flow { endpoint, role: role(plan, end, number), marks }
}

/// Data sockets of a server before anybody has come.
#[derive(Debug)]
pub(super) enum Opened {
    Stream(TcpListener),
    Datagram(Vec<UdpSocket>),
}

/// Opens what the client at `peer` connects to, on the address at which its control connection came in.
pub(super) fn open(plan: &Plan, local: SocketAddr, peer: IpAddr) -> Result<(Opened, Vec<u16>), OwnError> {
    let at = with_port(local, 0);
    let options = &plan.options.server;
    let port = |address: std::io::Result<SocketAddr>| {
        address
            .map(|address| address.port())
            .map_err(|error| OwnError::io("ask for the port of a data socket", error))
    };
    if plan.transport == Transport::Udp {
        let mut sockets = Vec::with_capacity(count(plan));
        for _ in 0..count(plan) {
            let socket = connections::udp(at.ip())?;
            prepare::apply(options, &socket, plan.transport)?;
            connections::bind(&socket, at)?;
            sockets.push(connections::into_udp(socket));
        }
        let ports = sockets.iter().map(|socket| port(socket.local_addr())).collect::<Result<_, _>>()?;
        return Ok((Opened::Datagram(sockets), ports));
    }
    let socket = tcp::stream(at, plan.transport == Transport::Mptcp)?;
    prepare::apply(options, &socket, plan.transport)?;
    connections::bind(&socket, at)?;
    if matches!(plan.work, Work::Connections { .. }) {
        // Nothing else tells these connections from those of strangers: each of them is a measurement from its first packet.
        connections::hear_only(&socket, peer)?;
    }
    let listener = connections::listen(socket, BACKLOG)?;
    let port = port(listener.local_addr())?;
    Ok((Opened::Stream(listener), vec![port]))
}

/// Waits for every flow of the client at `peer`. Whatever else comes, and whoever has not the cookie, is dropped.
pub(super) fn gather(
    opened: Opened,
    plan: &Plan,
    cookie: Cookie,
    channel: &mut Channel,
    patience: Duration,
) -> Result<Vec<Flow>, OwnError> {
    let peer = channel.peer()?.ip();
    let endpoints = match opened {
        Opened::Stream(listener) if matches!(plan.work, Work::Connections { .. }) => {
            let clones = (0..count(plan)).map(|_| listener.try_clone().map(Endpoint::Listener));
            clones
                .collect::<Result<_, _>>()
                .map_err(|error| OwnError::io("duplicate the listening socket for each flow", error))?
        }
        Opened::Stream(listener) => gather_streams(listener, count(plan), cookie, peer, channel, patience)?,
        Opened::Datagram(sockets) => gather_datagrams(sockets, cookie, peer, channel, patience)?,
    };
    let flows = endpoints.into_iter().enumerate();
    Ok(flows.map(|(number, endpoint)| flow(plan, End::Server, number, cookie, endpoint)).collect())
}

fn gather_streams(
    listener: TcpListener,
    wanted: usize,
    cookie: Cookie,
    peer: IpAddr,
    channel: &mut Channel,
    patience: Duration,
) -> Result<Vec<Endpoint>, OwnError> {
    let rules = Rules { first_bytes: PREFACE_BYTES as u32, most: wanted + 64, patience };
    let mut lobby = Lobby::new(listener, rules)
        .map_err(|error| OwnError::io("prepare the listening socket for data connections", error))?;
    let mut flows: Vec<Option<TcpStream>> = (0..wanted).map(|_| None).collect();
    let (mut there, mut last) = (0, Instant::now());
    while there < wanted {
        for arrived in lobby.next(TICK, &|ip| same_host(ip, peer))? {
            let free = cookie.flow_of(&arrived.first).and_then(|flow| flows.get_mut(flow as usize));
            let Some(free @ None) = free else { continue };
            *free = after_preface(arrived);
            if free.is_some() {
                (there, last) = (there + 1, Instant::now());
            }
        }
        still_there(channel, there, wanted, last, patience)?;
    }
    Ok(flows.into_iter().flatten().map(Endpoint::Tcp).collect())
}

/// The connection behind its preface, which has been looked at and is read now.
fn after_preface(arrived: Arrived) -> Option<TcpStream> {
    use std::io::Read;
    let mut stream = arrived.stream;
    stream.read_exact(&mut [0; PREFACE_BYTES]).ok()?;
    Some(stream)
}

fn gather_datagrams(
    sockets: Vec<UdpSocket>,
    cookie: Cookie,
    peer: IpAddr,
    channel: &mut Channel,
    patience: Duration,
) -> Result<Vec<Endpoint>, OwnError> {
    let failed = |doing| move |error| OwnError::io(doing, error);
    let mut peers: Vec<Option<SocketAddr>> = vec![None; sockets.len()];
    let mut missing: Vec<usize> = (0..sockets.len()).collect();
    let mut last = Instant::now();
    for socket in &sockets {
        socket.set_nonblocking(true).map_err(failed("prepare a UDP socket"))?;
    }
    while !missing.is_empty() {
        let fds: Vec<_> = missing.iter().map(|&flow| sockets[flow].as_fd()).collect();
        let readable = connections::wait_readable(&fds, TICK)?;
        let ready: Vec<usize> =
            missing.iter().zip(readable).filter(|(_, is)| *is).map(|(&flow, _)| flow).collect();
        for number in ready {
            if let Some(from) = greeted(&sockets[number], cookie, number as u32, peer) {
                sockets[number].connect(from).map_err(failed("connect a UDP socket to the client"))?;
                peers[number] = Some(from);
                last = Instant::now();
            }
        }
        missing.retain(|&flow| peers[flow].is_none());
        still_there(channel, sockets.len() - missing.len(), sockets.len(), last, patience)?;
    }
    for socket in &sockets {
        socket.set_nonblocking(false).map_err(failed("prepare a UDP socket"))?;
    }
    Ok(sockets.into_iter().zip(peers).map(|(socket, peer)| Endpoint::Udp { socket, peer }).collect())
}

/// Who sent the greeting of this flow, where it came from the host that holds the control connection. What else waits, a
/// bounded number of datagrams, is dropped.
fn greeted(socket: &UdpSocket, cookie: Cookie, flow: u32, peer: IpAddr) -> Option<SocketAddr> {
    let mut datagram = [0; GREETING_BYTES + 1];
    for _ in 0..64 {
        let (length, from) = socket.recv_from(&mut datagram).ok()?;
        if same_host(from.ip(), peer) && cookie.is_greeting(flow, &datagram[..length]) {
            return Some(from);
        }
    }
    None
}

/// Whether the client is there while its flows are waited for, and not too slow.
fn still_there(
    channel: &mut Channel,
    there: usize,
    wanted: usize,
    last: Instant,
    patience: Duration,
) -> Result<(), OwnError> {
    match channel.receive(Duration::from_millis(1), "data connections")? {
        None | Some(Message::Alive) => {}
        Some(other) => {
            return Err(OwnError::Unexpected { got: other.name(), wanted: "data connections" });
        }
    }
    if there < wanted && last.elapsed() >= patience {
        return Err(OwnError::Missing { there, wanted, after: patience });
    }
    Ok(())
}

/// Opens the client's data sockets, and waits until the server has all of them.
pub(super) fn reach(
    plan: &Plan,
    ready: &Ready,
    bind: Option<IpAddr>,
    channel: &mut Channel,
    patience: Duration,
) -> Result<Vec<Flow>, OwnError> {
    let server = channel.peer()?;
    let datagram = plan.transport == Transport::Udp;
    let wanted = if datagram { count(plan) } else { 1 };
    if ready.ports.len() != wanted || ready.ports.contains(&0) {
        return Err(OwnError::Plan(format!(
            "the server named {} ports where {wanted} are needed",
            ready.ports.len()
        )));
    }
    let from = bind.map(|ip| SocketAddr::new(ip, 0));
    let endpoints = if datagram {
        greet(plan, ready, server, from, channel, patience)?
    } else if matches!(plan.work, Work::Connections { .. }) {
        let to = with_port(server, ready.ports[0]);
        connected(channel, patience)?;
        (0..count(plan)).map(|_| Endpoint::Connector { to, bind: from }).collect()
    } else {
        let to = with_port(server, ready.ports[0]);
        let streams =
            (0..count(plan)).map(|flow| stream(plan, to, from, ready.cookie, flow as u32, patience));
        let streams: Vec<Endpoint> = streams.collect::<Result<_, _>>()?;
        connected(channel, patience)?;
        streams
    };
    let flows = endpoints.into_iter().enumerate();
    Ok(flows.map(|(number, endpoint)| flow(plan, End::Client, number, ready.cookie, endpoint)).collect())
}

fn connected(channel: &mut Channel, patience: Duration) -> Result<(), OwnError> {
    match channel.expect(patience, "the server to find all data connections")? {
        Message::Connected => Ok(()),
        other => Err(OwnError::Unexpected { got: other.name(), wanted: "`connected`" }),
    }
}

fn stream(
    plan: &Plan,
    to: SocketAddr,
    from: Option<SocketAddr>,
    cookie: Cookie,
    flow: u32,
    patience: Duration,
) -> Result<Endpoint, OwnError> {
    use std::io::Write;
    let socket = tcp::stream(to, plan.transport == Transport::Mptcp)?;
    prepare::apply(&plan.options.client, &socket, plan.transport)?;
    let mut stream = tcp::connect_within(socket, to, from, patience)?;
    // A cork would hold it back until there is data.
    stream
        .write_all(&cookie.preface(flow))
        .map_err(|error| OwnError::io(format!("begin data connection {flow} to {to}"), error))?;
    Ok(Endpoint::Tcp(stream))
}

fn greet(
    plan: &Plan,
    ready: &Ready,
    server: SocketAddr,
    from: Option<SocketAddr>,
    channel: &mut Channel,
    patience: Duration,
) -> Result<Vec<Endpoint>, OwnError> {
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    let mut sockets = Vec::with_capacity(ready.ports.len());
    for &port in &ready.ports {
        let to = with_port(server, port);
        let socket = connections::udp(to.ip())?;
        prepare::apply(&plan.options.client, &socket, plan.transport)?;
        connections::bind(&socket, from.unwrap_or(SocketAddr::new(any, 0)))?;
        let socket = connections::into_udp(socket);
        socket.connect(to).map_err(|error| OwnError::io(format!("connect a UDP socket to {to}"), error))?;
        sockets.push((socket, to));
    }
    let began = Instant::now();
    // One greeting that is lost is no reason to give up: they are repeated until the server has all of them.
    loop {
        for (flow, (socket, _)) in sockets.iter().enumerate() {
            // ECONNREFUSED and the like tell of an earlier one; whether the server has them all, it says itself.
            let _ = socket.send(&ready.cookie.greeting(flow as u32));
        }
        match channel.receive(GREET_EVERY, "the server to get the first datagrams")? {
            Some(Message::Connected) => break,
            None | Some(Message::Alive) => {}
            Some(other) => return Err(OwnError::Unexpected { got: other.name(), wanted: "`connected`" }),
        }
        if began.elapsed() >= patience {
            let until = "the server to get the first datagrams";
            return Err(OwnError::Silent { after: patience, until });
        }
    }
    Ok(sockets.into_iter().map(|(socket, to)| Endpoint::Udp { socket, peer: Some(to) }).collect())
}

/// Whether two addresses are one, also where a socket for both families shows an IPv4 address as IPv6.
fn same_host(a: IpAddr, b: IpAddr) -> bool {
    a.to_canonical() == b.to_canonical()
}

/// The same address, scope of a link included, with another port.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}
