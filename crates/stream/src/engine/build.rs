//! What a flow is to do, from its role, its socket and the plan; and what is refused.

use std::os::fd::{AsFd, BorrowedFd};

use linux::{SyscallError, socket};

use super::accept::Acceptor;
use super::connect::Connector;
use super::datagram_receive::{DatagramReceiver, receive_batch};
use super::datagram_send::{DatagramSender, send_batch};
use super::marks::Arrivals;
use super::request_datagram::DatagramRequester;
use super::request_stream::StreamRequester;
use super::respond::{DatagramResponder, StreamResponder};
use super::stream_receive::StreamReceiver;
use super::stream_send::StreamSender;
use super::task::{Buffers, Common, Exchange, Lap, Task, found};
use super::{Account, Endpoint, EngineError, Flow, Role};
use crate::latency::Recorder;
use crate::plan::{Giving, Pace, Plan, Taking, Work};

/// Flows of a thread above which they record latencies together: each histogram may take 270 KB.
const RECORDERS_MOST: usize = 256;
/// The most memory for messages of transactions, where a stream takes them in parts.
const MESSAGES_MOST: usize = 1 << 20;
/// The longest datagram there is.
const DATAGRAM_MOST: usize = 1 << 16;

/// A socket that exists, by how it behaves.
#[derive(Clone, Copy)]
struct Socket<'a> {
    fd: BorrowedFd<'a>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    UnixStream,
    /// Whether it has one peer.
    Udp {
        connected: bool,
    },
    UnixDatagram,
}

/// What the flows of a thread lend each other.
pub(super) fn buffers(common: &Common<'_>, flows: &[&Flow]) -> Result<Buffers, EngineError> {
    let plan = common.plan;
    let whole = |request: u32, response: u32, times: u32| {
        let message = request.max(response) as usize;
        message.saturating_mul(times as usize).clamp(DATAGRAM_MOST, MESSAGES_MOST)
    };
    let (send, receive) = match plan.work {
        Work::Bulk { .. } => (plan.send_bytes as usize, plan.receive_bytes as usize),
        Work::Transactions { request_bytes, response_bytes, outstanding } => {
            let bytes = whole(request_bytes, response_bytes, outstanding);
            (bytes, bytes)
        }
        Work::Connections { exchange } => {
            let (request, response) = exchange.unwrap_or((1, 1));
            (whole(request, response, 1), whole(request, response, 1))
        }
    };
    let mut buffers = Buffers::new(plan, send, receive)?;
    if let Work::Bulk { taking, .. } = plan.work {
        let is_udp = |flow: &&&Flow| matches!(flow.endpoint, Endpoint::Udp { .. });
        let is_datagram = |flow: &&&Flow| is_udp(flow) || matches!(flow.endpoint, Endpoint::UnixDatagram(_));
        let of = |role: Role| flows.iter().filter(move |flow| flow.role == role).find(is_datagram);
        if let Some(flow) = of(Role::Send) {
            buffers.send_batch = send_batch(common, is_udp(&flow))?;
        }
        if let Some(flow) = of(Role::Receive) {
            buffers.receive_batch = Some(receive_batch(common, taking, is_udp(&flow))?);
        }
    }
    if flows.len() > RECORDERS_MOST {
        buffers.latency = Some(Recorder::new(from_due(plan)));
    }
    Ok(buffers)
}

fn from_due(plan: &Plan) -> bool {
    matches!(plan.pace, Some(Pace::Schedule { .. }))
}

/// The task of a flow.
pub(super) fn task<'a>(
    flow: &'a Flow,
    account: &Account,
    common: &Common<'_>,
    buffers: &Buffers,
) -> Result<Box<dyn Task + 'a>, EngineError> {
    let plan = common.plan;
    let lap = || Lap::new(buffers.latency.is_none().then(|| Recorder::new(from_due(plan))));
    let exchange = match plan.work {
        Work::Connections { exchange } => {
            exchange.map(|(request, response)| (request.max(1) as usize, response.max(1) as usize))
        }
        _ => None,
    };
    match (&flow.endpoint, flow.role, plan.work) {
        (Endpoint::Listener(listener), Role::Accept, Work::Connections { .. }) => {
            Ok(Box::new(Acceptor::new(listener.as_fd(), exchange)))
        }
        (&Endpoint::Connector { to, bind }, Role::Connect, Work::Connections { .. }) => {
            Ok(Box::new(Connector::new(to, bind, exchange, common, lap())))
        }
        (_, role, Work::Bulk { giving, taking, .. }) => bulk(flow, role, giving, taking, common, account),
        (_, role, Work::Transactions { .. }) => transactions(flow, role, common, lap()),
        (_, role, Work::Connections { .. }) => Err(mismatch(role, "this socket and a plan of connections")),
    }
}

fn mismatch(role: Role, with: &'static str) -> EngineError {
    let (role, why) = match role {
        Role::Send => ("send", "bulk over a connected socket would do"),
        Role::Receive => ("receive", "bulk over a connected socket would do"),
        Role::Request => ("request", "transactions over a connected socket would do"),
        Role::Respond => ("respond", "transactions over a socket would do"),
        Role::Connect => ("connect", "connections and an address would do"),
        Role::Accept => ("accept", "connections and a listener would do"),
    };
    EngineError::Mismatch { role, with, why }
}

fn opened(flow: &Flow) -> Result<Socket<'_>, EngineError> {
    let (fd, kind) = match &flow.endpoint {
        Endpoint::Tcp(socket) => (socket.as_fd(), Kind::Tcp),
        Endpoint::UnixStream(socket) => (socket.as_fd(), Kind::UnixStream),
        Endpoint::UnixDatagram(socket) => (socket.as_fd(), Kind::UnixDatagram),
        Endpoint::Udp { socket, peer } => {
            if let Some(peer) = peer {
                let connected = socket::connect(socket, *peer);
                connected
                    .map_err(|error| SyscallError::new("connect UDP socket", peer.to_string(), error))?;
            }
            (socket.as_fd(), Kind::Udp { connected: socket.peer_addr().is_ok() })
        }
        Endpoint::Listener(_) => return Err(mismatch(flow.role, "a listener")),
        Endpoint::Connector { .. } => return Err(mismatch(flow.role, "an address to connect to")),
    };
    Ok(Socket { fd, kind })
}

fn bulk<'a>(
    flow: &'a Flow,
    role: Role,
    giving: Giving,
    taking: Taking,
    common: &Common<'_>,
    account: &Account,
) -> Result<Box<dyn Task + 'a>, EngineError> {
    let Socket { fd, kind } = opened(flow)?;
    let plan = common.plan;
    let udp = matches!(kind, Kind::Udp { .. });
    match (role, kind) {
        (Role::Send, Kind::Tcp | Kind::UnixStream) => {
            check_giving(giving, kind)?;
            if plan.send_bytes == 0 {
                return Err(EngineError::Size { bytes: 0, why: "a call that sends needs at least one byte" });
            }
            pace(fd, kind, plan)?;
            Ok(Box::new(StreamSender::new(fd, plan, giving)?))
        }
        (Role::Receive, Kind::Tcp | Kind::UnixStream) => {
            check_taking(taking, kind)?;
            if plan.receive_bytes == 0 {
                return Err(EngineError::Size {
                    bytes: 0,
                    why: "a call that receives needs room for one byte",
                });
            }
            Ok(Box::new(StreamReceiver::new(fd, taking)))
        }
        (Role::Send, Kind::Udp { connected: false }) => Err(EngineError::Mismatch {
            role: "send",
            with: "a UDP socket that has no peer",
            why: "give it one",
        }),
        (Role::Send, _) => {
            check_giving(giving, kind)?;
            pace(fd, kind, plan)?;
            Ok(Box::new(DatagramSender::new(fd, flow.marks, common, udp)?))
        }
        (Role::Receive, _) => {
            check_taking(taking, kind)?;
            found(account).arrivals = Arrivals::new(flow.marks);
            Ok(Box::new(DatagramReceiver::new(fd, flow.marks, taking, common, udp)?))
        }
        (role, _) => Err(mismatch(role, "a plan of bulk")),
    }
}

fn transactions<'a>(
    flow: &'a Flow,
    role: Role,
    common: &Common<'_>,
    lap: Lap,
) -> Result<Box<dyn Task + 'a>, EngineError> {
    let Socket { fd, kind } = opened(flow)?;
    let Work::Transactions { request_bytes, response_bytes, outstanding } = common.plan.work else {
        return Err(mismatch(role, "a plan without transactions"));
    };
    let exchange = Exchange {
        request_bytes: request_bytes as usize,
        response_bytes: response_bytes as usize,
        outstanding: outstanding.max(1) as usize,
    };
    let datagram = matches!(kind, Kind::Udp { .. } | Kind::UnixDatagram);
    for bytes in [exchange.request_bytes, exchange.response_bytes] {
        if bytes == 0 {
            return Err(EngineError::Size { bytes: 0, why: "request and response have at least one byte" });
        }
        if datagram && bytes > linux::udp::GSO_BYTES_MAX {
            let why = "a datagram has at most 65,507 bytes of payload";
            return Err(EngineError::Size { bytes: bytes as u64, why });
        }
    }
    match (role, kind) {
        (Role::Request, Kind::Udp { connected: false }) => Err(EngineError::Mismatch {
            role: "request",
            with: "a UDP socket that has no peer",
            why: "give it one",
        }),
        (Role::Request, _) => {
            pace(fd, kind, common.plan)?;
            if datagram {
                return Ok(Box::new(DatagramRequester::new(fd, exchange, flow.marks, common, lap)));
            }
            Ok(Box::new(StreamRequester::new(fd, exchange, common, lap)))
        }
        (Role::Respond, Kind::Udp { connected }) => {
            Ok(Box::new(DatagramResponder::new(fd, exchange, flow.marks, connected)))
        }
        (Role::Respond, Kind::UnixDatagram) => {
            Ok(Box::new(DatagramResponder::new(fd, exchange, flow.marks, true)))
        }
        (Role::Respond, _) => Ok(Box::new(StreamResponder::new(fd, exchange))),
        (role, _) => Err(mismatch(role, "a plan of transactions")),
    }
}

/// What the kernel keeps of a pace, and what it cannot.
fn pace(fd: BorrowedFd<'_>, kind: Kind, plan: &Plan) -> Result<(), EngineError> {
    match (plan.pace, kind) {
        (Some(Pace::Kernel { bits_per_second }), Kind::Tcp | Kind::Udp { .. }) => {
            Ok(socket::set_max_pacing(&fd, (bits_per_second / 8).max(1))?)
        }
        (Some(Pace::Kernel { .. }), _) => Err(EngineError::Unsupported {
            what: "SO_MAX_PACING_RATE",
            over: "a UNIX socket",
            instead: "let the sending thread keep the rate (spread)",
        }),
        (Some(Pace::DepartureTimes { .. }), Kind::Tcp | Kind::UnixStream | Kind::UnixDatagram) => {
            Err(EngineError::Unsupported {
                what: "SO_TXTIME",
                over: "anything but UDP",
                instead: "pace in the kernel (TCP), or by the sending thread (spread)",
            })
        }
        _ => Ok(()),
    }
}

fn check_giving(giving: Giving, kind: Kind) -> Result<(), EngineError> {
    let refuse = |what, over| {
        let instead = "copy (send, sendmmsg) instead";
        Err(EngineError::Unsupported { what, over, instead })
    };
    match (giving, kind) {
        (Giving::Copy, _) | (_, Kind::Tcp) => Ok(()),
        (Giving::ZeroCopy, Kind::UnixStream) => refuse("MSG_ZEROCOPY", "a UNIX socket"),
        (Giving::Sendfile | Giving::Splice, Kind::UnixStream) => Ok(()),
        (Giving::ZeroCopy, _) => refuse("MSG_ZEROCOPY", "datagrams in this program"),
        (Giving::Sendfile, _) => refuse("sendfile", "datagrams"),
        (Giving::Splice, _) => refuse("splice", "datagrams"),
    }
}

fn check_taking(taking: Taking, kind: Kind) -> Result<(), EngineError> {
    let refuse = |what, over| {
        let instead = "copy (recv, recvmmsg) instead";
        Err(EngineError::Unsupported { what, over, instead })
    };
    match (taking, kind) {
        (Taking::Copy, _) | (_, Kind::Tcp) => Ok(()),
        // It copies them there (net/unix/af_unix.c, unix_stream_read_generic, 6.18).
        (Taking::Discard, Kind::UnixStream) => refuse("MSG_TRUNC", "a UNIX stream socket"),
        (Taking::Discard, _) | (Taking::Splice, Kind::UnixStream) => Ok(()),
        (Taking::Splice, _) => refuse("splice", "datagrams"),
    }
}
