//! `perpacket sink`: what arrives on a device or at a socket, and what marks tell about it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use lab::NamedDeviceError;
use linux::bpf::XdpMode;
use linux::ethtool::EthtoolSocket;
use linux::packet::RxRingSpec;
use linux::route::{Link, RouteSocket};
use traffic::Flow;
use traffic::receive::{
    AfXdpReceiver, AfXdpReceiverSpec, Count, Marks, PacketRing, Receiver, ReceiverKind, Tally, Udp, Xdp,
};

use crate::cli::SinkArgs;
use crate::report::{
    self, Amount, Arrivals, Ended, FlowRow, Lost, MarksPart, Outcome, OutputFile, Part, SCHEMA, StreamRow,
    arrivals_text,
};
use crate::stop::{Deadline, Stop};

/// How long one wait for frames lasts at most: a signal is noticed after it at the latest.
const WAIT: Duration = Duration::from_millis(100);

/// Receives until the end, and prints what came.
pub(crate) fn run(args: &SinkArgs) -> Result<Outcome> {
    let place = Place::resolve(args)?;
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let stop = Stop::listen()?;
    let mut opened = place.open(args)?;
    if !args.quiet {
        report::write_stderr(&opening(&opened, args));
    }
    let started = Timestamp::now();
    let mut session = Session::new(args);
    let ended = session.receive(&mut *opened.receiver, args, &stop);
    let finished = session.finish(&mut *opened.receiver);
    let why = *ended.as_ref().unwrap_or(&Ended::Error);
    let arrivals = session.arrivals(&opened, args, started, why);
    if let Some(file) = json {
        file.write(&(serde_json::to_string(&arrivals)? + "\n"))?;
    }
    if report::prints_text(args.json.as_deref()) {
        report::write_stdout(&arrivals_text(&arrivals, args.flows))?;
    }
    // What came until then has been printed.
    ended.context("receive")?;
    finished.context("end receiving")?;
    Ok(arrivals.marks.as_ref().map_or(Outcome::Good, verdict))
}

/// Reordered packets alone are no fault; no marked frame at all decides nothing.
fn verdict(marks: &MarksPart) -> Outcome {
    let faults = marks.duplicates + marks.corrupted + marks.too_old;
    match marks.lost {
        None => Outcome::No,
        Some(lost) if lost + faults > 0 => Outcome::No,
        _ if marks.received == 0 && marks.sent != Some(0) || marks.unfollowed > 0 => Outcome::Inconclusive,
        _ => Outcome::Good,
    }
}

/// Where to receive.
enum Place {
    Device(Link, ReceiverKind),
    Address(std::net::SocketAddr),
}

/// A receiver, and its name for people.
struct Opened {
    receiver: Box<dyn Receiver>,
    device: Option<String>,
    address: Option<String>,
    xdp_mode: Option<XdpMode>,
}

impl Place {
    fn resolve(args: &SinkArgs) -> Result<Self> {
        if let Some(address) = args.udp {
            return Ok(Self::Address(address));
        }
        let name = args.device.as_deref().context("a device or --udp ADDR:PORT is needed")?;
        let kind: ReceiverKind = args.by.parse().context("--by")?;
        ensure!(
            kind != ReceiverKind::Udp,
            "--by udp: a socket has an address, not a device; use --udp ADDR:PORT"
        );
        ensure!(
            kind.sees_bytes() || !args.mark,
            "--by {kind} --mark: it counts in the kernel and does not see marks; use --by packet-ring or --by af-xdp"
        );
        ensure!(
            args.queue.is_none() || kind == ReceiverKind::AfXdp,
            "--queue with --by {kind}: it receives from all queues; use --by af-xdp"
        );
        let link = device(name, kind)?;
        ensure!(
            link.mac.is_some() || link.loopback,
            "device {name}: it has no Ethernet frames; name an Ethernet device"
        );
        ensure!(
            link.up,
            "device {name} is down: nothing arrives there; set it up first (ip link set {name} up)"
        );
        Ok(Self::Device(link, kind))
    }

    fn open(self, args: &SinkArgs) -> Result<Opened> {
        let (link, kind) = match self {
            Self::Device(link, kind) => (link, kind),
            Self::Address(address) => {
                let socket = Udp::bind(address)?;
                let address = Some(socket.address().to_string());
                return Ok(Opened { receiver: Box::new(socket), device: None, address, xdp_mode: None });
            }
        };
        let queues = receive_queues(&link);
        let (receiver, xdp_mode): (Box<dyn Receiver>, _) = match kind {
            ReceiverKind::Xdp => {
                let receiver = Xdp::attach(link.ifindex, queues)?;
                let mode = receiver.mode();
                (Box::new(receiver), Some(mode))
            }
            ReceiverKind::AfXdp => {
                if let Some(queue) = args.queue.filter(|&queue| queue >= queues) {
                    bail!("--queue {queue}: {} has the queues 0 to {}", link.name, queues - 1);
                }
                let queues = args.queue.map_or((0..queues).collect(), |queue| vec![queue]);
                // With an Ethernet header and a VLAN tag.
                let spec = AfXdpReceiverSpec::new(link.ifindex, queues, link.mtu.saturating_add(18));
                let receiver = AfXdpReceiver::open(&spec)?;
                let mode = receiver.mode();
                (Box::new(receiver), Some(mode))
            }
            ReceiverKind::PacketRing | ReceiverKind::Udp => {
                (Box::new(PacketRing::open(link.ifindex, &RxRingSpec::default())?), None)
            }
        };
        Ok(Opened { receiver, device: Some(link.name), address: None, xdp_mode })
    }
}

/// The device of this name. One with a default route may be listened to, and never be taken away from the host.
fn device(name: &str, kind: ReceiverKind) -> Result<Link> {
    match lab::named_device(name) {
        Err(NamedDeviceError::DefaultRoute { .. }) if kind.takes_frames_away() => bail!(
            "{name} carries a default route, and --by {kind} would take all its frames away from this host, which is \
             always refused; listen with --by packet-ring, or name a device of its own"
        ),
        Err(NamedDeviceError::DefaultRoute { .. }) => {
            let link = RouteSocket::open().and_then(|mut socket| socket.link_by_name(name))?;
            link.with_context(|| format!("device {name} has gone"))
        }
        other => Ok(other?),
    }
}

/// Receive queues in use: a device may have been made for more.
fn receive_queues(link: &Link) -> u32 {
    let channels = EthtoolSocket::open().and_then(|socket| socket.channels(&link.name));
    let in_use = channels.ok().map(|channels| channels.rx + channels.combined).filter(|&queues| queues > 0);
    in_use.or(link.rx_queues).unwrap_or(1)
}

fn opening(opened: &Opened, args: &SinkArgs) -> String {
    let place = opened.device.as_ref().or(opened.address.as_ref()).map_or("", String::as_str);
    let mut line = format!("sink: {place} by {}", opened.receiver.kind());
    if args.mark {
        line += ", marks";
    }
    if let Some(time) = args.time {
        line += &format!(", for {:.1} s", time.as_secs_f64());
    }
    if let Some(count) = args.count {
        line += &format!(", up to {count} frames");
    }
    if args.time.is_none() && args.count.is_none() {
        line += ", until Ctrl-C";
    }
    line + "\n"
}

/// One run of a sink.
struct Session {
    tally: Tally,
    start: Instant,
    listened: Duration,
    /// The first and the last look that found frames.
    active: Option<(Instant, Instant)>,
    losses: Vec<Lost>,
    live: Live,
}

impl Session {
    fn new(args: &SinkArgs) -> Self {
        Self {
            tally: Tally::new(args.mark),
            start: Instant::now(),
            listened: Duration::ZERO,
            active: None,
            losses: Vec::new(),
            live: Live::new(args.quiet),
        }
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, args: &SinkArgs, stop: &Stop) -> Result<Ended> {
        let deadline = args.time.map(Deadline::after);
        loop {
            if stop.asked() {
                return Ok(Ended::Signal);
            }
            if args.count.is_some_and(|count| self.tally.total().frames >= count) {
                return Ok(Ended::Count);
            }
            let left = match (args.time, deadline) {
                (Some(_), Some(deadline)) if deadline.passed() => return Ok(Ended::Time),
                (Some(time), Some(deadline)) => time.saturating_sub(deadline.elapsed()),
                _ => WAIT,
            };
            if receiver.poll(left.min(WAIT), &mut self.tally)? > 0 {
                let now = Instant::now();
                self.active = Some((self.active.map_or(now, |(first, _)| first), now));
            }
            if self.live.is_due() {
                let dropped = receiver.losses()?.iter().map(|loss| loss.frames).sum();
                let payload_only = receiver.kind().counts_payload();
                self.live.show(self.tally.total(), dropped, payload_only);
            }
        }
    }

    /// Takes what is still on its way, and what was lost at the receiver.
    fn finish(&mut self, receiver: &mut dyn Receiver) -> Result<()> {
        self.live.bar.finish_and_clear();
        self.listened = self.start.elapsed();
        let finished = receiver.finish(&mut self.tally);
        let lost = |loss: traffic::receive::Loss| Lost {
            reason: loss.reason,
            counter: loss.counter,
            frames: loss.frames,
        };
        self.losses = receiver.losses()?.into_iter().map(lost).collect();
        Ok(finished?)
    }

    fn arrivals(&self, opened: &Opened, args: &SinkArgs, started: Timestamp, ended: Ended) -> Arrivals {
        let kind = opened.receiver.kind();
        let amount = |count: Count| amount(count, kind);
        let part = |(&index, &count): (&u32, &Count)| Part { index, amount: amount(count) };
        let mut flows: Vec<(Flow, Count)> = self.tally.flows().collect();
        flows.sort_by_key(|&(flow, count)| (std::cmp::Reverse(count.frames), flow));
        Arrivals {
            schema: SCHEMA,
            program: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION"),
            started: started.to_string(),
            receiver: kind.name(),
            device: opened.device.clone(),
            address: opened.address.clone(),
            xdp_mode: opened.xdp_mode.map(|mode| match mode {
                XdpMode::Native => "native",
                XdpMode::Generic => "generic",
            }),
            ended,
            listened_s: self.listened.as_secs_f64(),
            active_s: self.active.map(|(first, last)| (last - first).as_secs_f64()),
            total: amount(self.tally.total()),
            losses: self.losses.iter().map(|lost| Lost { ..*lost }).collect(),
            flows: flows.into_iter().map(|(flow, count)| flow_row(flow, amount(count))).collect(),
            other_flows: amount(self.tally.other_flows()),
            queues: self.tally.queues().map(|queues| queues.iter().map(part).collect()),
            cpus: self.tally.cpus().map(|cpus| cpus.iter().map(part).collect()),
            marks: self.tally.marks().map(|marks| marks_part(marks, args.sent, self.tally.knows_order())),
        }
    }
}

fn amount(count: Count, kind: ReceiverKind) -> Amount {
    let payload_only = kind.counts_payload();
    Amount {
        frames: count.frames,
        l2_bytes: (!payload_only).then_some(count.bytes),
        payload_bytes: payload_only.then_some(count.bytes),
    }
}

fn flow_row(flow: Flow, amount: Amount) -> FlowRow {
    let name = flow.to_string();
    match flow {
        Flow::Ip { protocol, source, destination, ports } => FlowRow {
            name,
            protocol: Some(protocol),
            source: Some(source.to_string()),
            destination: Some(destination.to_string()),
            source_port: ports.map(|(from, _)| from),
            destination_port: ports.map(|(_, to)| to),
            ether_type: None,
            amount,
        },
        Flow::Other { ether_type } => FlowRow {
            name,
            protocol: None,
            source: None,
            destination: None,
            source_port: None,
            destination_port: None,
            ether_type: Some(ether_type),
            amount,
        },
    }
}

fn marks_part(marks: &Marks, sent: Option<u64>, knows_order: bool) -> MarksPart {
    let streams: Vec<StreamRow> = marks
        .streams()
        .map(|(stream, account)| StreamRow {
            stream,
            first: account.range.map(|(first, _)| first),
            last: account.range.map(|(_, last)| last),
            received: account.unique,
            lost: account.lost,
            duplicates: account.duplicates,
            reordered: knows_order.then_some(account.reordered),
            extent_max: account.extent_max.filter(|_| knows_order),
            too_old: account.too_old,
        })
        .collect();
    let sum = |value: fn(&StreamRow) -> u64| streams.iter().map(value).fold(0, u64::saturating_add);
    let received = sum(|stream| stream.received);
    MarksPart {
        sent,
        received,
        lost: match sent {
            Some(sent) => sent.checked_sub(received),
            None => Some(sum(|stream| stream.lost)),
        },
        duplicates: sum(|stream| stream.duplicates),
        too_old: sum(|stream| stream.too_old),
        corrupted: marks.corrupted(),
        unmarked: marks.unmarked(),
        unfollowed: marks.unfollowed(),
        streams,
    }
}

/// A line on a terminal, renewed each second.
struct Live {
    bar: ProgressBar,
    shown: Instant,
    before: Count,
}

impl Live {
    const EVERY: Duration = Duration::from_secs(1);

    /// Nothing is drawn where standard error is no terminal.
    fn new(quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self { bar, shown: Instant::now(), before: Count::default() }
    }

    fn is_due(&self) -> bool {
        !self.bar.is_hidden() && self.shown.elapsed() >= Self::EVERY
    }

    fn show(&mut self, total: Count, dropped: u64, payload_only: bool) {
        let seconds = self.shown.elapsed().as_secs_f64();
        let per_second = |now: u64, before: u64| (now - before) as f64 / seconds;
        let what = if payload_only { "of payload" } else { "at L2 without FCS" };
        self.bar.set_message(format!(
            "{:.0} pps, {:.3} Gbit/s {what}, {} frames in all, {dropped} dropped here",
            per_second(total.frames, self.before.frames),
            per_second(total.bytes, self.before.bytes) * 8e-9,
            total.frames,
        ));
        self.bar.tick();
        (self.shown, self.before) = (Instant::now(), total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(received: u64, sent: Option<u64>) -> MarksPart {
        MarksPart {
            streams: Vec::new(),
            sent,
            received,
            lost: sent.map_or(Some(0), |sent| sent.checked_sub(received)),
            duplicates: 0,
            too_old: 0,
            corrupted: 0,
            unmarked: 5,
            unfollowed: 0,
        }
    }

    #[test]
    fn the_exit_code_says_whether_all_arrived_once_and_whole() {
        assert_eq!(verdict(&marks(10, None)), Outcome::Good);
        assert_eq!(verdict(&marks(10, Some(10))), Outcome::Good);
        assert_eq!(verdict(&marks(0, Some(0))), Outcome::Good);
        assert_eq!(verdict(&marks(10, Some(11))), Outcome::No);
        assert_eq!(verdict(&marks(10, Some(9))), Outcome::No);
        assert_eq!(verdict(&marks(0, None)), Outcome::Inconclusive);
        assert_eq!(verdict(&MarksPart { corrupted: 1, ..marks(10, None) }), Outcome::No);
        assert_eq!(verdict(&MarksPart { duplicates: 1, ..marks(10, None) }), Outcome::No);
        assert_eq!(verdict(&MarksPart { unfollowed: 1, ..marks(10, None) }), Outcome::Inconclusive);
    }
}
