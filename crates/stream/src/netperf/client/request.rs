//! A plan in netperf's words, or why it has none for it.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use super::Prepared;
use crate::netperf::wire::{kind, omni, tcp_stream, text_field};
use crate::plan::{Direction, Giving, Plan, SocketOptions, Taking, Transport, Until, Work};

/// What of a plan netperf's protocol has no words for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("netperf's protocol cannot say {what}; {instead}")]
pub struct Unsaid {
    /// What of the plan.
    pub what: String,
    /// What to do.
    pub instead: &'static str,
}

fn unsaid<T>(what: impl Into<String>, instead: &'static str) -> Result<T, Unsaid> {
    Err(Unsaid { what: what.into(), instead })
}

const OWN: &str = "leave it out, or use a server of perpacket's own protocol";

/// Whether the protocol has words for a plan.
pub(super) fn check(plan: &Plan) -> Result<(), Unsaid> {
    if !matches!(plan.transport, Transport::Tcp | Transport::Udp) {
        return unsaid(
            format!("{:?}", plan.transport),
            "use TCP or UDP, or a server of perpacket's own protocol",
        );
    }
    if plan.flows != 1 {
        return unsaid(format!("{} flows at once", plan.flows), "ask for one, or start several at once");
    }
    if !plan.omit.is_zero() {
        return unsaid("that a beginning is omitted", OWN);
    }
    if plan.threads.server.cpus.len() > 1 {
        return unsaid("more than one CPU of the server", "name one");
    }
    check_work(plan)?;
    check_end(plan)?;
    check_server_options(&plan.options.server, plan.work)
}

fn check_work(plan: &Plan) -> Result<(), Unsaid> {
    let udp = plan.transport == Transport::Udp;
    match plan.work {
        Work::Bulk { direction: Direction::Both, .. } => unsaid("both directions at once", OWN),
        Work::Bulk { direction: Direction::ToClient, .. } if udp => {
            unsaid("datagrams from the server without harm to others", OWN)
        }
        Work::Bulk { direction: Direction::ToClient, giving, .. } if giving != Giving::Copy => {
            unsaid(format!("that the server sends by {giving:?}"), OWN)
        }
        Work::Bulk { direction: Direction::ToServer, taking, .. } if taking != Taking::Copy => {
            unsaid(format!("that the server receives by {taking:?}"), OWN)
        }
        Work::Connections { .. } if udp => unsaid("connections over UDP", "use TCP"),
        _ if plan.pace.is_some() && ended_by_server(plan) => unsaid("a rate of the server", OWN),
        _ => Ok(()),
    }
}

fn check_end(plan: &Plan) -> Result<(), Unsaid> {
    let by_server = ended_by_server(plan);
    match plan.until {
        Until::Time(time) if by_server && (time.subsec_nanos() != 0 || time.is_zero()) => {
            unsaid(format!("{} s", time.as_secs_f64()), "the server sends for whole seconds")
        }
        Until::Time(time) if time > Duration::from_secs(i32::MAX as u64) => {
            unsaid(format!("{} s", time.as_secs_f64()), "ask for less")
        }
        Until::Time(_) => Ok(()),
        _ if plan.transport == Transport::Udp => {
            unsaid("an end after bytes or messages over UDP, of which the last may be lost", "give it a time")
        }
        Until::Units(_) if matches!(plan.work, Work::Bulk { .. }) && by_server => {
            unsaid("a number of messages that the server sends", "give it bytes or a time")
        }
        Until::Bytes(amount) | Until::Units(amount) if amount > i32::MAX as u64 => {
            unsaid(format!("an amount of {amount}"), "ask for less than 2^31, or give it a time")
        }
        _ => Ok(()),
    }
}

fn check_server_options(options: &SocketOptions, work: Work) -> Result<(), Unsaid> {
    let sendfile = matches!(work, Work::Bulk { giving: Giving::Sendfile, .. });
    for (asked, what) in [
        (options.cork, "TCP_CORK of the server"),
        (options.mss_bytes.is_some(), "TCP_MAXSEG of the server"),
        (options.busy_poll_us.is_some(), "SO_BUSY_POLL of the server"),
        (options.gso_segments.is_some(), "UDP_SEGMENT of the server"),
        (options.gro, "UDP_GRO of the server"),
        (options.batch.is_some(), "messages in one call of the server"),
        (sendfile && options.congestion.is_some(), "TCP_CONGESTION of the server for TCP_SENDFILE"),
        (sendfile && options.tos.is_some(), "IP_TOS of the server for TCP_SENDFILE"),
        (sendfile && options.priority.is_some(), "SO_PRIORITY of the server for TCP_SENDFILE"),
        (
            options.congestion.as_ref().is_some_and(|name| name.len() > 15),
            "a name of a congestion control of more than 15 bytes",
        ),
    ] {
        if asked {
            return unsaid(what, OWN);
        }
    }
    Ok(())
}

/// Whether the server ends a test by its own clock or count: where it sends.
fn ended_by_server(plan: &Plan) -> bool {
    matches!(plan.work, Work::Bulk { direction: Direction::ToClient, .. })
}

fn signed(bytes: Option<u32>) -> i32 {
    bytes.and_then(|bytes| i32::try_from(bytes).ok()).unwrap_or(-1)
}

/// −1 where it is left to the server.
fn size(bytes: u32) -> i32 {
    signed(Some(bytes).filter(|&bytes| bytes > 0))
}

fn cpu(plan: &Plan) -> i32 {
    plan.threads.server.cpus.first().and_then(|&cpu| i32::try_from(cpu).ok()).unwrap_or(-1)
}

fn family(host: SocketAddr) -> u32 {
    if host.is_ipv4() { omni::FAMILY_INET } else { omni::FAMILY_INET6 }
}

/// Buffers in turn, as netperf has it: one more than fit into the socket, at least two.
fn width(buffer: u32, message: u32) -> u32 {
    (buffer / message.max(1)).saturating_add(1).max(2)
}

/// The request of a test, but for TCP_SENDFILE.
pub(super) fn omni(plan: &Plan, prepared: &Prepared, cpu_asked: bool, host: SocketAddr) -> omni::Request {
    let server = &plan.options.server;
    let udp = plan.transport == Transport::Udp;
    let applied = &prepared.applied;
    let mut request = omni::Request {
        kind: kind::OMNI,
        cpu: cpu(plan),
        send_buf_size: signed(server.send_buffer_bytes),
        send_size: -1,
        send_alignment: 8,
        request_size: -1,
        recv_buf_size: signed(server.receive_buffer_bytes),
        receive_size: -1,
        recv_alignment: 8,
        response_size: -1,
        test_length: length(plan),
        // What netperf has where nobody asked for dirty buffers.
        send_dirty_count: u32::MAX,
        recv_dirty_count: u32::MAX,
        recv_clean_count: u32::MAX,
        data_port: prepared.asked_again.into(),
        ipfamily: family(host),
        socket_type: if udp { omni::SOCKET_DATAGRAM } else { omni::SOCKET_STREAM },
        protocol: if udp { omni::PROTOCOL_UDP } else { omni::PROTOCOL_TCP },
        netperf_port: prepared.udp.as_ref().map_or(0, |bound| bound.at.port().into()),
        socket_prio: signed(server.priority),
        socket_tos: server.tos.map_or(-1, i32::from),
        cong_control: text_field(server.congestion.as_deref().unwrap_or_default()),
        ..Default::default()
    };
    if server.no_delay {
        request.flags |= omni::NO_DELAY;
    }
    if cpu_asked {
        request.flags |= omni::MEASURE_CPU;
    }
    let bulk = matches!(plan.work, Work::Bulk { .. });
    if !(udp && bulk) {
        request.flags |= omni::ROUTING_ALLOWED;
    }
    match plan.work {
        Work::Bulk { direction: Direction::ToClient, .. } => {
            request.direction = omni::TRANSMIT;
            request.send_size = size(prepared.original.send_bytes);
            request.recv_width = width(applied.receive_buffer_bytes, plan.receive_bytes);
        }
        Work::Bulk { .. } => {
            request.direction = omni::RECEIVE;
            request.receive_size = size(prepared.original.receive_bytes);
            request.send_width = width(applied.send_buffer_bytes, plan.send_bytes);
        }
        Work::Transactions { request_bytes, response_bytes, .. } => {
            transactions(&mut request, request_bytes, response_bytes);
        }
        Work::Connections { exchange } => {
            request.flags |= omni::CONNECT_TEST;
            if let Some((request_bytes, response_bytes)) = exchange {
                transactions(&mut request, request_bytes, response_bytes);
            }
        }
    }
    request
}

fn transactions(request: &mut omni::Request, request_bytes: u32, response_bytes: u32) {
    request.direction = omni::TRANSMIT | omni::RECEIVE;
    (request.request_size, request.response_size) = (size(request_bytes), size(response_bytes));
    (request.send_width, request.recv_width) = (1, 1);
}

/// Seconds, rounded up; below 0 an amount; 0 where the server needs none because the client ends the test so that it can be heard.
fn length(plan: &Plan) -> i32 {
    let amount = |amount: u64| i32::try_from(amount).map_or(i32::MIN, |amount| -amount);
    match plan.until {
        Until::Time(time) => {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            i32::try_from(seconds).unwrap_or(i32::MAX)
        }
        Until::Bytes(bytes) if ended_by_server(plan) => amount(bytes),
        Until::Units(units) if matches!(plan.work, Work::Connections { .. }) => amount(units),
        _ => 0,
    }
}

/// The request of TCP_SENDFILE.
pub(super) fn stream(
    plan: &Plan,
    prepared: &Prepared,
    cpu_asked: bool,
    host: SocketAddr,
) -> tcp_stream::Request {
    let server = &plan.options.server;
    tcp_stream::Request {
        kind: kind::TCP_STREAM,
        cpu: cpu(plan),
        send_buf_size: signed(server.send_buffer_bytes),
        recv_buf_size: signed(server.receive_buffer_bytes),
        receive_size: signed(Some(prepared.original.receive_bytes)),
        recv_alignment: 8,
        no_delay: server.no_delay.into(),
        measure_cpu: cpu_asked.into(),
        // netserver ends a test of this kind by this clock and 4 s.
        test_length: match length(plan) {
            0 => i32::MAX - 4,
            seconds => seconds,
        },
        port: prepared.asked_again.into(),
        ipfamily: family(host),
        ..Default::default()
    }
}
