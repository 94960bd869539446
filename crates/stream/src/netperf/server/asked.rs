//! What a request means, or why it is refused.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::engine::Role;
use crate::limits::{LimitError, Limits};
use crate::netperf::control::Connection;
use crate::netperf::wire::{omni, tcp_stream, text};
use crate::plan::{
    Direction, Ends, Giving, Pace, Plan, SocketOptions, Taking, Threads, Transport, Until, Work,
};

// Numbers of errno, Linux (include/uapi/asm-generic/errno*.h): netperf prints their meaning on its own system.
const EPERM: u32 = 1;
pub(super) const EIO: u32 = 5;
const ENOMEM: u32 = 12;
const EACCES: u32 = 13;
const EINVAL: u32 = 22;
const ETIME: u32 = 62;
const EPROTONOSUPPORT: u32 = 93;
const EOPNOTSUPP: u32 = 95;
const EAFNOSUPPORT: u32 = 97;

/// The largest payload of a datagram that netperf chooses by itself (nettest_omni.c, `UDP_LENGTH_MAX`).
pub(super) const DATAGRAM_BYTES: u32 = 0xffff - 28;

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) errno: u32,
    pub(super) why: String,
}

fn refused<T>(errno: u32, why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { errno, why: why.into() })
}

/// A test, as this end is to run it.
#[derive(Debug)]
pub(super) struct Asked {
    /// Sizes that the client leaves to the server are 0 until its socket is there.
    pub(super) plan: Plan,
    pub(super) role: Role,
    /// The address that the data socket is bound to; the port is chosen by [`place`].
    pub(super) at: SocketAddr,
    /// Where data comes from and goes to. The port is that of datagrams.
    pub(super) peer: SocketAddr,
    /// How long the client means to go on; `None`: until it ends.
    pub(super) length: Option<Duration>,
    /// Transactions after which this end is done.
    pub(super) units: Option<u64>,
    pub(super) cpu: bool,
}

impl Asked {
    pub(super) fn datagrams(&self) -> bool {
        self.plan.transport == Transport::Udp
    }
}

/// A request of the general engine.
pub(super) fn of_omni(
    request: &omni::Request,
    connection: &Connection,
    limits: &Limits,
) -> Result<Asked, Refused> {
    let transport = match (request.protocol, request.socket_type) {
        (omni::PROTOCOL_TCP, omni::SOCKET_STREAM) => Transport::Tcp,
        (omni::PROTOCOL_UDP, omni::SOCKET_DATAGRAM) => Transport::Udp,
        (protocol, kind) => {
            return refused(
                EPROTONOSUPPORT,
                format!("protocol {protocol} over sockets of type {kind}; there is TCP and UDP"),
            );
        }
    };
    let (work, role) = work_of(request, transport)?;
    let at = address(request, connection)?;
    let peer = peer(request, connection, transport)?;
    if request.fill_file[0] != 0 {
        return refused(EACCES, "it asked to fill buffers from a file of this host");
    }
    let length = u64::try_from(request.test_length).ok();
    let amount = u64::from(request.test_length.unsigned_abs());
    let until = match (length, role) {
        (Some(0), _) => Until::Time(limits.duration),
        (Some(seconds), _) => Until::Time(Duration::from_secs(seconds)),
        (None, Role::Send | Role::Receive) => Until::Bytes(amount),
        (None, _) => Until::Units(amount),
    };
    let congestion = text(&request.cong_control);
    let options = SocketOptions {
        send_buffer_bytes: size(request.send_buf_size),
        receive_buffer_bytes: size(request.recv_buf_size),
        no_delay: request.flags & omni::NO_DELAY != 0,
        congestion: (!congestion.is_empty()).then_some(congestion),
        priority: u32::try_from(request.socket_prio).ok(),
        tos: u8::try_from(request.socket_tos).ok(),
        ..SocketOptions::default()
    };
    let plan = plan(transport, work, until, options, request.cpu);
    let plan = Plan {
        send_bytes: size(request.send_size).unwrap_or(0),
        receive_bytes: size(request.receive_size).unwrap_or(0),
        ..plan
    };
    let asked = Asked {
        plan,
        role,
        at,
        peer,
        length: length.filter(|&seconds| seconds > 0).map(Duration::from_secs),
        units: (length.is_none() && role != Role::Send && role != Role::Receive).then_some(amount),
        cpu: request.flags & omni::MEASURE_CPU != 0,
    };
    within(asked, limits)
}

/// A request of TCP_SENDFILE.
pub(super) fn of_tcp_stream(
    request: &tcp_stream::Request,
    connection: &Connection,
    limits: &Limits,
) -> Result<Asked, Refused> {
    let local = same_family(request.ipfamily, connection)?;
    let options = SocketOptions {
        send_buffer_bytes: size(request.send_buf_size),
        receive_buffer_bytes: size(request.recv_buf_size),
        no_delay: request.no_delay > 0,
        ..SocketOptions::default()
    };
    let work = Work::Bulk { direction: Direction::ToServer, giving: Giving::Sendfile, taking: Taking::Copy };
    // A length may be seconds or bytes here, and nothing says which: the client ends it.
    let plan = plan(Transport::Tcp, work, Until::Time(limits.duration), options, request.cpu);
    let asked = Asked {
        plan: Plan { receive_bytes: size(request.receive_size).unwrap_or(0), ..plan },
        role: Role::Receive,
        at: local,
        peer: canonical(connection.peer),
        length: None,
        units: None,
        cpu: request.measure_cpu > 0,
    };
    within(asked, limits)
}

/// A size in bytes, where the client names one.
fn size(asked: i32) -> Option<u32> {
    u32::try_from(asked).ok().filter(|&bytes| bytes > 0)
}

fn work_of(request: &omni::Request, transport: Transport) -> Result<(Work, Role), Refused> {
    const BOTH: u32 = omni::TRANSMIT | omni::RECEIVE;
    let connections = request.flags & omni::CONNECT_TEST != 0;
    let bulk = |direction| Work::Bulk { direction, giving: Giving::Copy, taking: Taking::Copy };
    let sizes = || match (size(request.request_size), size(request.response_size)) {
        (Some(request), Some(response)) => Ok((request, response)),
        _ => refused(EINVAL, "it asked for transactions without a size of request and response"),
    };
    match (transport, connections, request.direction) {
        (Transport::Tcp, false, omni::RECEIVE) => Ok((bulk(Direction::ToServer), Role::Receive)),
        (Transport::Tcp, false, omni::TRANSMIT) => Ok((bulk(Direction::ToClient), Role::Send)),
        (Transport::Udp, false, omni::RECEIVE) => Ok((bulk(Direction::ToServer), Role::Receive)),
        (Transport::Udp, false, omni::TRANSMIT) => refused(
            EOPNOTSUPP,
            "it asked this host to be the first to send datagrams, which could go to somebody who does not want them",
        ),
        (_, false, BOTH) => {
            let (request_bytes, response_bytes) = sizes()?;
            Ok((Work::Transactions { request_bytes, response_bytes, outstanding: 1 }, Role::Respond))
        }
        (Transport::Tcp, true, BOTH) => Ok((Work::Connections { exchange: Some(sizes()?) }, Role::Accept)),
        (Transport::Tcp, true, 0) => Ok((Work::Connections { exchange: None }, Role::Accept)),
        (_, _, direction) => refused(
            EOPNOTSUPP,
            format!("direction {direction} with flags {:#x} over {transport:?}", request.flags),
        ),
    }
}

fn plan(transport: Transport, work: Work, until: Until, options: SocketOptions, cpu: i32) -> Plan {
    // Like netserver, which takes no notice when it cannot be bound to a CPU.
    let allowed = linux::cpu::allowed().unwrap_or_default();
    let cpus = usize::try_from(cpu).ok().filter(|cpu| allowed.contains(cpu)).into_iter().collect();
    Plan {
        transport,
        work,
        flows: 1,
        until,
        omit: Duration::ZERO,
        send_bytes: 0,
        receive_bytes: 0,
        pace: None,
        options: Ends { server: options, client: SocketOptions::default() },
        threads: Ends { server: Threads { count: Some(1), cpus }, client: Threads::default() },
    }
}

/// Holds a plan against the limits. Where there is a rate, what this end sends is kept to it.
pub(super) fn within(mut asked: Asked, limits: &Limits) -> Result<Asked, Refused> {
    if asked.role == Role::Send
        && let Some(bits_per_second) = limits.bits_per_second
    {
        asked.plan.pace = Some(Pace::Spread { bits_per_second });
    }
    match limits.check(&asked.plan) {
        Ok(()) => Ok(asked),
        Err(error) => {
            let errno = match error {
                LimitError::Duration { .. } => ETIME,
                LimitError::Memory { .. } => ENOMEM,
                _ => EPERM,
            };
            refused(errno, error.to_string())
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        // What a link-local address needs beside it stays.
        (SocketAddr::V6(_), IpAddr::V6(_)) => address,
        (_, ip) => SocketAddr::new(ip, address.port()),
    }
}

fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    let mut address = address;
    address.set_port(port);
    if let SocketAddr::V6(v6) = address {
        return SocketAddrV6::new(*v6.ip(), port, 0, v6.scope_id()).into();
    }
    address
}

/// The address at which the control connection came in, if data are to use the same family.
fn same_family(family: u32, connection: &Connection) -> Result<SocketAddr, Refused> {
    let local = canonical(connection.local);
    match (family, local) {
        (0, _) | (omni::FAMILY_INET, SocketAddr::V4(_)) | (omni::FAMILY_INET6, SocketAddr::V6(_)) => {
            Ok(with_port(local, 0))
        }
        _ => refused(
            EAFNOSUPPORT,
            format!("data of family {family} under a control connection to {}", local.ip()),
        ),
    }
}

fn address(request: &omni::Request, connection: &Connection) -> Result<SocketAddr, Refused> {
    let local = same_family(request.ipfamily, connection)?;
    Ok(match omni::address(request.ipfamily, &request.netserver_ip) {
        Some(ip) if ip != local.ip() && !ip.is_unspecified() => SocketAddr::new(ip, 0),
        _ => local,
    })
}

fn peer(
    request: &omni::Request,
    connection: &Connection,
    transport: Transport,
) -> Result<SocketAddr, Refused> {
    let peer = canonical(connection.peer);
    if transport != Transport::Udp {
        return Ok(peer);
    }
    let named = omni::address(request.ipfamily, &request.netperf_ip);
    if let Some(ip) = named.map(|ip| ip.to_canonical()).filter(|&ip| ip != peer.ip()) {
        return refused(
            EACCES,
            format!("it asked for datagrams to and from {ip}, which is not its own address"),
        );
    }
    match u16::try_from(request.netperf_port) {
        Ok(port) if port > 0 => Ok(with_port(peer, port)),
        _ => refused(EINVAL, format!("it said that its datagrams come from port {}", request.netperf_port)),
    }
}

/// Where the data socket is bound.
pub(super) fn place(port: u32, at: SocketAddr) -> Result<SocketAddr, Refused> {
    match u16::try_from(port) {
        Ok(port) if port == 0 || port >= 1024 => Ok(with_port(at, port)),
        _ => refused(EACCES, format!("it asked for data port {port}; there are 1024 to 65535")),
    }
}
