//! Figures: of periods, of streams, of all streams together, and of the CPUs.

use serde_json::{Map, Value, json};

use super::super::report::process;
use super::Test;
use super::start::socket;
use crate::engine::End;
use crate::outcome::{Cpu, Datagrams, Flow, Interval, Side, Tcp};
use crate::plan::{Direction, Plan, Transport, Work};

/// What the end counted that makes the output.
pub(super) fn own<'a>(test: &Test<'a>) -> &'a Side {
    match test.end {
        End::Client => &test.exchanged.client,
        End::Server => &test.exchanged.server,
    }
}

fn other<'a>(test: &Test<'a>) -> &'a Side {
    match test.end {
        End::Client => &test.exchanged.server,
        End::Server => &test.exchanged.client,
    }
}

/// One direction of a test: streams that are sent by the same end have sums of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    /// Whether the end that makes the output sends.
    sender: bool,
    /// What is behind the names of its sums: iperf3 sets apart what the server sends in a test of both directions.
    suffix: &'static str,
}

/// The directions in the order in which iperf3 lists them: of a test of both, the client's first.
fn ways(end: End, plan: &Plan) -> Vec<Way> {
    let direction = match plan.work {
        Work::Bulk { direction, .. } => direction,
        _ => Direction::ToServer,
    };
    let way = |from_client: bool, suffix| Way { sender: from_client == (end == End::Client), suffix };
    match direction {
        Direction::ToServer => vec![way(true, "")],
        Direction::ToClient => vec![way(false, "")],
        Direction::Both => vec![way(true, ""), way(false, "_bidir_reverse")],
    }
}

/// The streams of one direction: of a test of both, the first half is the client's.
fn streams(end: End, plan: &Plan, way: Way, all: usize) -> std::ops::Range<usize> {
    let both = matches!(plan.work, Work::Bulk { direction: Direction::Both, .. });
    let from_client = way.sender == (end == End::Client);
    match (both, from_client) {
        (false, _) => 0..all,
        (true, true) => 0..all.div_ceil(2),
        (true, false) => all.div_ceil(2)..all,
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 * 100.0 / whole as f64 } else { 0.0 }
}

/// What every object of figures begins with.
fn figures(start: f64, end: f64, bytes: u64) -> Map<String, Value> {
    let seconds = end - start;
    let mut keys = Map::new();
    keys.insert("start".into(), json!(start));
    keys.insert("end".into(), json!(end));
    keys.insert("seconds".into(), json!(seconds));
    keys.insert("bytes".into(), json!(bytes));
    keys.insert("bits_per_second".into(), json!(rate(bytes, seconds)));
    keys
}

/// Datagrams of one stream or of several, with one denominator for what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Datagram {
    sent: u64,
    lost: u64,
    reordered: u64,
    jitter_ms: f64,
}

impl Datagram {
    /// `sent` is what the sender told; where it did not, it is what came and what is missing.
    fn of(received: Option<&Datagrams>, sent: Option<u64>) -> Self {
        let Some(counted) = received else {
            return Self { sent: sent.unwrap_or(0), ..Self::default() };
        };
        let lost = counted.lost + counted.tail_lost.unwrap_or(0);
        Self {
            sent: sent.unwrap_or(0).max(counted.received + lost),
            lost,
            reordered: counted.reordered,
            jitter_ms: counted.jitter_ns.map_or(0.0, |ns| ns as f64 / 1e6),
        }
    }

    fn sum(of: &[Self]) -> Self {
        let jitter: f64 = of.iter().map(|one| one.jitter_ms).sum();
        Self {
            sent: of.iter().map(|one| one.sent).sum(),
            lost: of.iter().map(|one| one.lost).sum(),
            reordered: of.iter().map(|one| one.reordered).sum(),
            jitter_ms: if of.is_empty() { 0.0 } else { jitter / of.len() as f64 },
        }
    }

    fn write(&self, keys: &mut Map<String, Value>) {
        keys.insert("jitter_ms".into(), json!(self.jitter_ms));
        keys.insert("lost_packets".into(), json!(self.lost));
        keys.insert("packets".into(), json!(self.sent));
        keys.insert("lost_percent".into(), json!(percent(self.lost, self.sent)));
    }

    /// What the sender's own sum has: it lost nothing.
    fn without_loss(&self) -> Self {
        Self { sent: self.sent, ..Self::default() }
    }
}

/// One period.
pub(super) fn interval(end: End, plan: &Plan, interval: &Interval) -> Value {
    let (from, to) = (seconds(interval.start_ns), seconds(interval.end_ns));
    let udp = plan.transport == Transport::Udp;
    let mut listed = Vec::new();
    let mut sums = Vec::new();
    for way in ways(end, plan) {
        let range = streams(end, plan, way, interval.flows.len());
        let flows = &interval.flows[range.clone()];
        for (flow, index) in flows.iter().zip(range) {
            let mut keys = Map::new();
            keys.insert("socket".into(), json!(socket(index)));
            keys.extend(figures(from, to, moved(flow, way.sender).0));
            if udp {
                period_of_udp(std::slice::from_ref(flow), way.sender, &mut keys);
            } else if way.sender {
                tcp(flow.tcp.as_ref(), &mut keys);
            }
            mark(interval.omitted, way.sender, &mut keys);
            listed.push(Value::Object(keys));
        }
        let mut sum = figures(from, to, flows.iter().map(|flow| moved(flow, way.sender).0).sum());
        if udp {
            period_of_udp(flows, way.sender, &mut sum);
        } else if way.sender {
            sum.insert("retransmits".into(), json!(flows.iter().map(retransmits).sum::<u64>()));
        }
        mark(interval.omitted, way.sender, &mut sum);
        sums.push((format!("sum{}", way.suffix), Value::Object(sum)));
    }
    let mut keys = Map::new();
    keys.insert("streams".into(), Value::Array(listed));
    keys.extend(sums);
    Value::Object(keys)
}

fn mark(omitted: bool, sender: bool, keys: &mut Map<String, Value>) {
    keys.insert("omitted".into(), json!(omitted));
    keys.insert("sender".into(), json!(sender));
}

fn period_of_udp(flows: &[Flow], sender: bool, keys: &mut Map<String, Value>) {
    if sender {
        keys.insert("packets".into(), json!(flows.iter().map(|flow| moved(flow, true).1).sum::<u64>()));
    } else {
        let each: Vec<_> = flows.iter().map(|flow| Datagram::of(flow.datagrams.as_ref(), None)).collect();
        Datagram::sum(&each).write(keys);
    }
}

/// Bytes and messages of a flow in one direction.
fn moved(flow: &Flow, sent: bool) -> (u64, u64) {
    let moved = if sent { flow.sent } else { flow.received };
    moved.map_or((0, 0), |moved| (moved.bytes, moved.messages))
}

fn retransmits(flow: &Flow) -> u64 {
    flow.tcp.as_ref().and_then(|tcp| tcp.retransmits).unwrap_or(0)
}

/// Congestion window in bytes, as iperf3 has it.
fn window(tcp: &Tcp) -> u64 {
    u64::from(tcp.cwnd_segments.unwrap_or(0)) * u64::from(tcp.mss_bytes.unwrap_or(0))
}

fn tcp(tcp: Option<&Tcp>, keys: &mut Map<String, Value>) {
    let tcp = tcp.cloned().unwrap_or_default();
    keys.insert("retransmits".into(), json!(tcp.retransmits.unwrap_or(0)));
    keys.insert("snd_cwnd".into(), json!(window(&tcp)));
    keys.insert("snd_wnd".into(), json!(tcp.peer_window_bytes.unwrap_or(0)));
    keys.insert("rtt".into(), json!(tcp.rtt_us.unwrap_or(0)));
    keys.insert("rttvar".into(), json!(tcp.rtt_variation_us.unwrap_or(0)));
    keys.insert("pmtu".into(), json!(tcp.path_mtu_bytes.unwrap_or(0)));
}

/// A stream from both sides.
struct Pair<'a> {
    sent: (u64, u64),
    sent_seconds: f64,
    received_bytes: u64,
    received_seconds: f64,
    datagrams: Datagram,
    sending: Option<&'a Flow>,
}

fn pair<'a>(test: &Test<'a>, way: Way, index: usize) -> Pair<'a> {
    let (own, other) = (own(test).flows.get(index), other(test).flows.get(index));
    let (sending, receiving) = if way.sender { (own, other) } else { (other, own) };
    let time = |flow: Option<&Flow>| flow.map(|flow| seconds(flow.wall_ns)).filter(|&seconds| seconds > 0.0);
    let (sent_seconds, received_seconds) = (time(sending), time(receiving));
    let known = sending.is_some_and(|flow| flow.sent.is_some());
    let mut sent = sending.map_or((0, 0), |flow| moved(flow, true));
    let received = receiving.map_or((0, 0), |flow| moved(flow, false));
    let told = known.then_some(sent.1).filter(|&messages| messages > 0);
    let datagrams = Datagram::of(receiving.and_then(|flow| flow.datagrams.as_ref()), told);
    if !known {
        // The other end has not told: as iperf3's server does, which prints before it is told.
        sent = received;
    }
    Pair {
        sent,
        sent_seconds: sent_seconds.or(received_seconds).unwrap_or(0.0),
        received_bytes: received.0,
        received_seconds: received_seconds.or(sent_seconds).unwrap_or(0.0),
        datagrams,
        sending,
    }
}

/// The object `end`.
pub(super) fn end(test: &Test<'_>) -> Value {
    let udp = test.plan.transport == Transport::Udp;
    let mut listed = Vec::new();
    let mut keys = Map::new();
    for way in ways(test.end, test.plan) {
        let range = streams(test.end, test.plan, way, own(test).flows.len());
        let pairs: Vec<_> = range.clone().map(|index| pair(test, way, index)).collect();
        listed.extend(pairs.iter().zip(range).map(|(pair, index)| {
            if udp { stream_of_udp(pair, index, way) } else { stream_of_tcp(test, pair, index, way) }
        }));
        sums(&pairs, way, udp, &mut keys);
    }
    let mut end = Map::new();
    end.insert("streams".into(), Value::Array(listed));
    end.extend(keys);
    end.insert("cpu_utilization_percent".into(), processes(own(test).cpu.as_ref(), other(test).cpu.as_ref()));
    end.insert(
        "cpu_utilization_of_hosts_percent".into(),
        json!({ "host": host(own(test).cpu.as_ref()), "remote": host(other(test).cpu.as_ref()) }),
    );
    if !udp {
        congestion(test, &mut end);
    }
    Value::Object(end)
}

fn stream_of_udp(pair: &Pair<'_>, index: usize, way: Way) -> Value {
    let mut keys = Map::new();
    keys.insert("socket".into(), json!(socket(index)));
    keys.extend(figures(0.0, pair.sent_seconds, pair.sent.0));
    pair.datagrams.write(&mut keys);
    keys.insert("out_of_order".into(), json!(pair.datagrams.reordered));
    keys.insert("sender".into(), json!(way.sender));
    json!({ "udp": keys })
}

fn stream_of_tcp(test: &Test<'_>, pair: &Pair<'_>, index: usize, way: Way) -> Value {
    let mut sender = Map::new();
    sender.insert("socket".into(), json!(socket(index)));
    sender.extend(figures(0.0, pair.sent_seconds, pair.sent.0));
    sender.insert("retransmits".into(), json!(pair.sending.map_or(0, retransmits)));
    let samples: Vec<&Tcp> = if way.sender { samples(own(test), index) } else { Vec::new() };
    let rtts: Vec<u64> = samples.iter().filter_map(|tcp| tcp.rtt_us).map(u64::from).collect();
    sender.insert("max_snd_cwnd".into(), json!(samples.iter().map(|tcp| window(tcp)).max().unwrap_or(0)));
    sender.insert(
        "max_snd_wnd".into(),
        json!(samples.iter().filter_map(|tcp| tcp.peer_window_bytes).max().unwrap_or(0)),
    );
    sender.insert("max_rtt".into(), json!(rtts.iter().max().unwrap_or(&0)));
    sender.insert("min_rtt".into(), json!(rtts.iter().min().unwrap_or(&0)));
    sender.insert(
        "mean_rtt".into(),
        json!(rtts.iter().sum::<u64>().checked_div(rtts.len() as u64).unwrap_or(0)),
    );
    sender.insert("sender".into(), json!(way.sender));
    let mut receiver = Map::new();
    receiver.insert("socket".into(), json!(socket(index)));
    receiver.extend(figures(0.0, pair.received_seconds, pair.received_bytes));
    receiver.insert("sender".into(), json!(way.sender));
    json!({ "sender": sender, "receiver": receiver })
}

/// What the kernel told of a connection: at the end of each period that counts, or, without periods, of the run.
fn samples(side: &Side, index: usize) -> Vec<&Tcp> {
    let periods: Vec<_> = side
        .intervals
        .iter()
        .filter(|interval| !interval.omitted)
        .filter_map(|interval| interval.flows.get(index)?.tcp.as_ref())
        .collect();
    let whole = side.flows.get(index).and_then(|flow| flow.tcp.as_ref());
    match (periods.is_empty(), whole) {
        (true, Some(whole)) if whole.series.is_empty() => vec![whole],
        (true, Some(whole)) => whole.series.iter().collect(),
        _ => periods,
    }
}

fn sums(pairs: &[Pair<'_>], way: Way, udp: bool, keys: &mut Map<String, Value>) {
    let longest = |of: fn(&Pair<'_>) -> f64| pairs.iter().map(of).fold(0.0, f64::max);
    let sent = pairs.iter().map(|pair| pair.sent.0).sum();
    let received = pairs.iter().map(|pair| pair.received_bytes).sum();
    let mut sum_sent = figures(0.0, longest(|pair| pair.sent_seconds), sent);
    let mut sum_received = figures(0.0, longest(|pair| pair.received_seconds), received);
    if udp {
        let datagrams = Datagram::sum(&pairs.iter().map(|pair| pair.datagrams).collect::<Vec<_>>());
        let mut sum = sum_sent.clone();
        datagrams.write(&mut sum);
        datagrams.without_loss().write(&mut sum_sent);
        datagrams.write(&mut sum_received);
        sum.insert("sender".into(), json!(way.sender));
        sum_sent.insert("sender".into(), json!(true));
        sum_received.insert("sender".into(), json!(false));
        keys.insert(format!("sum{}", way.suffix), Value::Object(sum));
    } else {
        let retransmits = pairs.iter().filter_map(|pair| pair.sending).map(retransmits).sum::<u64>();
        sum_sent.insert("retransmits".into(), json!(retransmits));
        sum_sent.insert("sender".into(), json!(way.sender));
        sum_received.insert("sender".into(), json!(way.sender));
    }
    keys.insert(format!("sum_sent{}", way.suffix), Value::Object(sum_sent));
    keys.insert(format!("sum_received{}", way.suffix), Value::Object(sum_received));
}

/// iperf3's figures: CPU time of the process, in percent of one CPU.
fn processes(host: Option<&Cpu>, remote: Option<&Cpu>) -> Value {
    let [host, remote] = [host, remote].map(|cpu| cpu.map_or([0.0; 3], process));
    json!({
        "host_total": host[0], "host_user": host[1], "host_system": host[2],
        "remote_total": remote[0], "remote_user": remote[1], "remote_system": remote[2],
    })
}

/// What iperf3 does not see: time of all CPUs of the host by kind, in percent of all of them; null where it is not known.
fn host(cpu: Option<&Cpu>) -> Value {
    let Some(cpu) = cpu.filter(|cpu| !cpu.cpus.is_empty()) else { return Value::Null };
    let sum = |of: fn(&crate::outcome::CpuKinds) -> u64| cpu.cpus.iter().map(of).sum::<u64>();
    let kinds = [
        ("user", sum(|cpu| cpu.user_ns)),
        ("system", sum(|cpu| cpu.system_ns)),
        ("irq", sum(|cpu| cpu.irq_ns)),
        ("softirq", sum(|cpu| cpu.softirq_ns)),
        ("steal", sum(|cpu| cpu.steal_ns)),
        ("idle", sum(|cpu| cpu.idle_ns)),
    ];
    let all = kinds.iter().map(|(_, ns)| ns).sum();
    kinds
        .iter()
        .map(|(name, ns)| ((*name).to_owned(), json!(percent(*ns, all))))
        .collect::<Map<_, _>>()
        .into()
}

fn congestion(test: &Test<'_>, end: &mut Map<String, Value>) {
    let used = |side: &Side| side.flows.iter().find_map(|flow| flow.tcp.as_ref()?.congestion.clone());
    let own_sends = ways(test.end, test.plan).first().is_some_and(|way| way.sender);
    let (sender, receiver) = if own_sends { (own(test), other(test)) } else { (other(test), own(test)) };
    for (key, side) in [("sender_tcp_congestion", sender), ("receiver_tcp_congestion", receiver)] {
        if let Some(name) = used(side) {
            end.insert(key.into(), json!(name));
        }
    }
}
