//! What is known of a test before anything flows.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::super::plan::UDP_LENGTH;
use super::super::wire::stream_id;
use crate::plan::{Direction, Pace, Plan, Transport, Until, Work};

/// What stands in the output and is neither plan nor count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The client: what it was told to connect to. The server: none.
    pub connecting_to: Option<(String, u16)>,
    /// The server: from where the control connection came.
    pub accepted_from: Option<SocketAddr>,
    /// The cookie of the test.
    pub cookie: String,
    /// When it began, ms since 1970.
    pub unix_ms: u64,
    /// Both addresses of each stream, in the order of their ids.
    pub connected: Vec<Connected>,
    /// MSS of the control connection, bytes.
    pub mss_bytes: Option<u32>,
    /// What the kernel made of the send buffer of the first stream, bytes.
    pub send_buffer_bytes: Option<u32>,
    /// And of the receive buffer.
    pub receive_buffer_bytes: Option<u32>,
    /// Name and version of the program.
    pub version: String,
    /// The host and its kernel.
    pub system: String,
    /// How often periods were asked for, s.
    pub interval_seconds: Option<u64>,
    /// `--title`.
    pub title: Option<String>,
    /// `--extra-data`.
    pub extra_data: Option<String>,
}

/// The addresses of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Of this end.
    pub local: SocketAddr,
    /// Of the other end.
    pub remote: SocketAddr,
}

impl Facts {
    /// What `uname -a` says, as far as the kernel tells it in `/proc/sys/kernel`.
    pub fn of_this_host() -> String {
        ["ostype", "hostname", "osrelease", "version"]
            .iter()
            .filter_map(|name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok())
            .map(|text| text.trim().to_owned())
            .chain([std::env::consts::ARCH.to_owned()])
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The wall clock in ms since 1970.
    pub fn now_ms() -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The object `start`.
pub(super) fn object(plan: &Plan, facts: &Facts) -> Value {
    let mut start = Map::new();
    start.insert("connected".into(), facts.connected.iter().enumerate().map(connected).collect());
    start.insert("version".into(), json!(facts.version));
    start.insert("system_info".into(), json!(facts.system));
    start.insert("timestamp".into(), timestamp(facts.unix_ms));
    if let Some((host, port)) = &facts.connecting_to {
        start.insert("connecting_to".into(), json!({ "host": host, "port": port }));
    }
    if let Some(from) = facts.accepted_from {
        start.insert(
            "accepted_connection".into(),
            json!({ "host": from.ip().to_canonical().to_string(), "port": from.port() }),
        );
    }
    start.insert("cookie".into(), json!(facts.cookie));
    let options = &plan.options.client;
    if plan.transport != Transport::Udp {
        match (options.mss_bytes, facts.mss_bytes) {
            (Some(asked), _) => start.insert("tcp_mss".into(), json!(asked)),
            (None, Some(mss)) => start.insert("tcp_mss_default".into(), json!(mss)),
            (None, None) => None,
        };
    }
    start.insert("target_bitrate".into(), json!(target(plan)));
    start.insert("fq_rate".into(), json!(fq_rate(plan)));
    start.insert(
        "sock_bufsize".into(),
        json!(options.send_buffer_bytes.or(options.receive_buffer_bytes).unwrap_or(0)),
    );
    start.insert("sndbuf_actual".into(), json!(facts.send_buffer_bytes));
    start.insert("rcvbuf_actual".into(), json!(facts.receive_buffer_bytes));
    start.insert("test_start".into(), test_start(plan, facts));
    Value::Object(start)
}

fn connected((index, pair): (usize, &Connected)) -> Value {
    json!({
        "socket": socket(index),
        "local_host": pair.local.ip().to_canonical().to_string(),
        "local_port": pair.local.port(),
        "remote_host": pair.remote.ip().to_canonical().to_string(),
        "remote_port": pair.remote.port(),
    })
}

/// The number by which a stream is named in the output. iperf3 prints the descriptor, which is 5 for the first; here it
/// follows from the stream's id, so that both ends name it alike.
pub(super) fn socket(index: usize) -> u64 {
    stream_id(index) + 4
}

fn timestamp(unix_ms: u64) -> Value {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap_or(i64::MAX));
    let time = at
        .ok()
        .and_then(|at| jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok());
    json!({ "time": time, "timesecs": unix_ms / 1000, "timemillisecs": unix_ms })
}

fn target(plan: &Plan) -> u64 {
    match plan.pace {
        Some(Pace::Spread { bits_per_second } | Pace::DepartureTimes { bits_per_second }) => bits_per_second,
        _ => 0,
    }
}

fn fq_rate(plan: &Plan) -> u64 {
    match plan.pace {
        Some(Pace::Kernel { bits_per_second }) => bits_per_second,
        _ => 0,
    }
}

fn test_start(plan: &Plan, facts: &Facts) -> Value {
    let direction = match plan.work {
        Work::Bulk { direction, .. } => Some(direction),
        _ => None,
    };
    let (seconds, bytes, blocks) = match plan.until {
        Until::Time(time) => (whole_or_exact(time.as_secs_f64()), 0, 0),
        Until::Bytes(bytes) => (json!(0), bytes, 0),
        Until::Units(blocks) => (json!(0), 0, blocks),
    };
    let udp = plan.transport == Transport::Udp;
    json!({
        "protocol": if udp { "UDP" } else { "TCP" },
        "num_streams": plan.flows,
        "blksize": if udp && plan.send_bytes == 0 { UDP_LENGTH } else { plan.send_bytes },
        "omit": plan.omit.as_secs(),
        "duration": seconds,
        "bytes": bytes,
        "blocks": blocks,
        "reverse": u8::from(direction == Some(Direction::ToClient)),
        "tos": plan.options.client.tos.unwrap_or(0),
        "target_bitrate": target(plan),
        "bidir": u8::from(direction == Some(Direction::Both)),
        "fqrate": fq_rate(plan),
        "interval": facts.interval_seconds.unwrap_or(0),
        "gso": u8::from(plan.options.client.gso_segments.is_some()),
        "gro": u8::from(plan.options.client.gro),
    })
}

/// iperf3 knows whole seconds only: they are written as such.
fn whole_or_exact(seconds: f64) -> Value {
    if seconds.fract() == 0.0 { json!(seconds as u64) } else { json!(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_as_iperf3_writes_it() {
        let value = timestamp(1_796_141_428_250);
        assert_eq!(value["time"], "Tue, 01 Dec 2026 16:10:28 GMT");
        assert_eq!(
            (&value["timesecs"], &value["timemillisecs"]),
            (&json!(1_796_141_428), &json!(1_796_141_428_250_u64))
        );
    }
}
