//! What flows are sent into, and by what two settings can differ.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use lab::steering::{CpuMask, QueueMasks};
use serde::{Deserialize, Serialize};
use traffic::BackendKind;

use super::reading::{Reader, Wait};
use crate::cell::{FIRST_PORT, parse_backend, parse_switch, text};
use crate::scenario::AskedRate;
use crate::words::nearest;

/// The most source addresses: those of 10.0.0.0/8, without the first and the last.
pub(crate) const MAX_SOURCES: u32 = (1 << 24) - 2;
/// The most flows that are told apart: each has a window of its own.
pub(crate) const MAX_FLOWS: u32 = 4_096;
/// The most sockets, each of which has a thread.
const MAX_SOCKETS: u32 = 256;
/// Frame sizes that the lab's devices take, in bytes with the FCS.
const FRAME_BYTES: std::ops::RangeInclusive<u32> = 64..=1_518;
/// What asks for nothing where a mask is expected.
pub(crate) const OFF: &str = "off";
/// Rate where nothing else is asked for.
const RATE: &str = "750kpps";
/// Socket memory to ask for where nothing else is asked for, in bytes.
const RECEIVE_BUFFER_BYTES: u64 = 16 << 20;

/// One setting: load, receivers, steering.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FlowSetting {
    /// How packets get in; none means the best that this host has and that the setting allows.
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<BackendKind>,
    /// Rate of all flows together, as a person writes it.
    pub(crate) rate: String,
    /// Frame size with the FCS.
    pub(crate) frame: u32,
    /// Flows, which are sent in turn.
    pub(crate) flows: u32,
    /// Destination ports. Flows beyond them differ in the source address. None: one for each flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ports: Option<u32>,
    /// Source addresses of a flood: each packet has the next one. 1: there is none.
    pub(crate) sources: u32,
    /// Sockets on each port, each with a thread (SO_REUSEPORT).
    pub(crate) sockets_per_port: u32,
    /// Packets that a receiver takes in a call.
    pub(crate) batch: u32,
    /// Which threads read the sockets.
    pub(crate) reader: Reader,
    /// Receive buffer to ask for, in bytes (SO_RCVBUF, which the kernel doubles).
    pub(crate) rcvbuf: u64,
    /// What a receiver does when there is nothing.
    pub(crate) wait: Wait,
    /// GRO on the receiving device and in the sockets.
    pub(crate) gro: bool,
    /// How long a receiver polls its device before it sleeps, in µs (SO_BUSY_POLL); 0 is not at all.
    pub(crate) busy_poll: u32,
    /// Whether the device is polled by receivers alone while they do (SO_PREFER_BUSY_POLL).
    pub(crate) prefer_busy_poll: bool,
    /// CPUs that receive packet steering uses, as a mask; masks of several queues with `/` between them.
    pub(crate) rps: String,
    /// Entries of the table of receive flow steering; 0 is off.
    pub(crate) rfs: u32,
    /// CPUs that send by the device's queues, likewise (XPS).
    pub(crate) xps: String,
    /// CPUs whose backlog refuses packets of a flow that fills it, as a mask.
    pub(crate) flow_limit: String,
    /// Packets that a CPU's backlog takes; none leaves it as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backlog: Option<u32>,
    /// Whether the receiving device is polled by a thread of the kernel.
    pub(crate) threaded: bool,
}

impl Default for FlowSetting {
    fn default() -> Self {
        Self {
            backend: None,
            rate: RATE.into(),
            frame: 64,
            flows: 8,
            ports: None,
            sources: 1,
            sockets_per_port: 1,
            batch: 64,
            wait: Wait::default(),
            reader: Reader::default(),
            rcvbuf: RECEIVE_BUFFER_BYTES,
            gro: false,
            busy_poll: 0,
            prefer_busy_poll: false,
            rps: OFF.into(),
            rfs: 0,
            xps: OFF.into(),
            flow_limit: OFF.into(),
            backlog: None,
            threaded: false,
        }
    }
}

impl FlowSetting {
    /// Destination ports.
    pub(crate) fn port_count(&self) -> u32 {
        self.ports.unwrap_or(self.flows)
    }

    /// Source addresses: those of a flood, or so many that the flows of a port differ.
    pub(crate) fn source_count(&self) -> u32 {
        if self.is_flood() { self.sources } else { self.flows / self.port_count() }
    }

    /// Whether each packet has another source than the one before.
    pub(crate) fn is_flood(&self) -> bool {
        self.sources > 1
    }

    /// Flows that receivers tell apart: of a flood all that go to one port are one.
    pub(crate) fn streams(&self) -> u32 {
        if self.is_flood() { self.port_count() } else { self.flows }
    }

    /// Different pairs of source and port among so many packets.
    pub(crate) fn distinct_flows(&self, packets: u64) -> u64 {
        if !self.is_flood() {
            return u64::from(self.flows).min(packets);
        }
        let (ports, sources) = (u64::from(self.port_count()), u64::from(self.sources));
        (ports / gcd(ports, sources) * sources).min(packets)
    }

    /// Packets per second of all flows together.
    pub(crate) fn pps(&self) -> Result<f64> {
        let pps = AskedRate::parse(&self.rate)?.pps(f64::from(self.frame - 4));
        ensure!(
            (1.0..=1e8).contains(&pps),
            "rate {}: 1 to 100,000,000 packets per second are needed",
            self.rate
        );
        Ok(pps)
    }

    /// Whether packets must pass the receiving device's NAPI: nothing of this happens without.
    pub(crate) fn needs_napi(&self) -> bool {
        self.gro || self.threaded || self.busy_poll > 0 || self.prefer_busy_poll
    }

    /// The factors that packets do not meet which are injected behind the device, in words.
    pub(crate) fn bypassed_by_inject(&self) -> Option<String> {
        let named = [
            (self.gro, "gro = on", "enter behind NAPI and GRO"),
            (self.busy_poll > 0, "busy_poll above 0", "are in no device's queue that could be polled"),
            (self.prefer_busy_poll, "prefer_busy_poll = on", "are in no device's queue that could be polled"),
            (self.threaded, "threaded = on", "enter behind NAPI"),
            (self.xps != OFF, "xps", "are not sent by a device"),
        ];
        let (_, what, why) = named.into_iter().find(|(is_set, ..)| *is_set)?;
        Some(format!("{what} with inject: injected packets {why}, so it would change nothing"))
    }

    /// CPUs of receive packet steering, for each receive queue.
    pub(crate) fn rps_masks(&self) -> Result<QueueMasks> {
        self.rps.parse().with_context(|| format!("rps = {}", self.rps))
    }

    /// CPUs that send by each transmit queue.
    pub(crate) fn xps_masks(&self) -> Result<QueueMasks> {
        self.xps.parse().with_context(|| format!("xps = {}", self.xps))
    }

    /// CPUs under the flow limit.
    pub(crate) fn flow_limit_mask(&self) -> Result<CpuMask> {
        self.flow_limit.parse().with_context(|| format!("flow_limit = {}", self.flow_limit))
    }

    /// Refuses numbers that mean nothing.
    pub(crate) fn check(&self) -> Result<()> {
        let (flows, ports) = (self.flows, self.port_count());
        ensure!(
            FRAME_BYTES.contains(&self.frame),
            "frame = {}: the lab's devices take {} to {} bytes (with the 4-byte FCS)",
            self.frame,
            FRAME_BYTES.start(),
            FRAME_BYTES.end()
        );
        ensure!((1..=MAX_FLOWS).contains(&flows), "flows = {flows}: 1 to {MAX_FLOWS} are possible");
        ensure!(ports >= 1, "ports = 0: packets need one");
        ensure!(
            (1..=MAX_SOURCES).contains(&self.sources),
            "sources = {}: 1 to {MAX_SOURCES} are possible, the addresses of 10.0.0.0/8",
            self.sources
        );
        if self.is_flood() {
            ensure!(
                self.ports.is_none() || ports <= flows,
                "ports = {ports} of {flows} flows: a flow has one port"
            );
        } else {
            ensure!(
                ports <= flows && flows.is_multiple_of(ports),
                "flows = {flows} on ports = {ports}: every port needs the same number of flows; use --flows {}",
                flows.div_ceil(ports).max(1) * ports
            );
        }
        let of_port = if self.is_flood() { self.sources } else { flows / ports };
        ensure!(
            of_port >= self.sockets_per_port,
            "sockets_per_port = {} with {of_port} flow{} on each port: the kernel chooses the socket by the flow, so that some would get \
             nothing; use more flows on fewer ports, as --flows {} --ports {ports}",
            self.sockets_per_port,
            if of_port == 1 { "" } else { "s" },
            ports.saturating_mul(self.sockets_per_port)
        );
        let sockets = ports.saturating_mul(self.sockets_per_port);
        ensure!(
            (1..=MAX_SOCKETS).contains(&sockets),
            "{ports} ports with {} sockets each: 1 to {MAX_SOCKETS} sockets are possible, each with a thread; several flows can \
             go to one port: --ports 8",
            self.sockets_per_port
        );
        ensure!(
            self.reader != Reader::Epoll || self.busy_poll == 0,
            "reader = epoll with busy_poll = {}: a socket's own polling (SO_BUSY_POLL) is done in its receiving call, and a thread \
             that waits by epoll does not wait there; use --reader threads",
            self.busy_poll
        );
        ensure!(
            !self.prefer_busy_poll || self.busy_poll > 0,
            "prefer_busy_poll = on with busy_poll = 0: no socket polls then, and packets wait for a timer; add --busy-poll 50"
        );
        ensure!((1..=1_024).contains(&self.batch), "batch = {}: 1 to 1,024 packets a call", self.batch);
        ensure!(
            (1..=1 << 30).contains(&self.rcvbuf),
            "rcvbuf = {}: 1 byte to 1 GiB are possible",
            self.rcvbuf
        );
        ensure!(
            self.rfs == 0 || self.rfs.is_power_of_two() && self.rfs <= 1 << 24,
            "rfs = {}: 0, or a power of two up to 16,777,216, is needed",
            self.rfs
        );
        ensure!(
            self.busy_poll <= 1_000_000,
            "busy_poll = {} µs: at most a second, 1,000,000",
            self.busy_poll
        );
        ensure!(
            self.backlog.is_none_or(|packets| (1..=1_000_000).contains(&packets)),
            "backlog = {}: 1 to 1,000,000 packets",
            self.backlog.unwrap_or_default()
        );
        self.rps_masks()?;
        self.xps_masks()?;
        self.flow_limit_mask()?;
        self.pps()?;
        Ok(())
    }

    /// The same with another value of one factor.
    ///
    /// # Errors
    /// A value that the factor cannot have. What does not go together is refused by [`check`](Self::check).
    pub(crate) fn with(&self, factor: FlowFactor, value: &str) -> Result<Self> {
        let mut own = self.clone();
        let value = value.trim();
        match factor {
            FlowFactor::Backend => own.backend = Some(parse_backend(value)?),
            FlowFactor::Rate => own.rate = value.into(),
            FlowFactor::Frame => own.frame = number(factor, value)?,
            FlowFactor::Flows => own.flows = number(factor, value)?,
            FlowFactor::Ports => own.ports = Some(number(factor, value)?),
            FlowFactor::Sources => own.sources = number(factor, value)?,
            FlowFactor::SocketsPerPort => own.sockets_per_port = number(factor, value)?,
            FlowFactor::Batch => own.batch = number(factor, value)?,
            FlowFactor::Rcvbuf => own.rcvbuf = bytes(value)?,
            FlowFactor::Wait => own.wait = value.parse().map_err(anyhow::Error::msg)?,
            FlowFactor::Reader => own.reader = value.parse().map_err(anyhow::Error::msg)?,
            FlowFactor::Gro => own.gro = parse_switch(factor.name(), value)?,
            FlowFactor::BusyPoll => own.busy_poll = number_or_off(factor, value)?,
            FlowFactor::PreferBusyPoll => own.prefer_busy_poll = parse_switch(factor.name(), value)?,
            FlowFactor::Rps => own.rps = value.into(),
            FlowFactor::Rfs => own.rfs = number_or_off(factor, value)?,
            FlowFactor::Xps => own.xps = value.into(),
            FlowFactor::FlowLimit => own.flow_limit = value.into(),
            FlowFactor::Backlog => {
                own.backlog = if value == "host" { None } else { Some(number(factor, value)?) };
            }
            FlowFactor::Threaded => own.threaded = parse_switch(factor.name(), value)?,
        }
        Ok(own)
    }

    /// The value of a factor as it is written.
    pub(crate) fn value(&self, factor: FlowFactor) -> String {
        let switch = |on: bool| if on { "on" } else { OFF }.to_owned();
        let or_off = |number: u32| if number == 0 { OFF.to_owned() } else { number.to_string() };
        match factor {
            FlowFactor::Backend => self.backend.map_or("best".into(), |kind| kind.to_string()),
            FlowFactor::Rate => self.rate.clone(),
            FlowFactor::Frame => self.frame.to_string(),
            FlowFactor::Flows => self.flows.to_string(),
            FlowFactor::Ports => self.port_count().to_string(),
            FlowFactor::Sources => self.sources.to_string(),
            FlowFactor::SocketsPerPort => self.sockets_per_port.to_string(),
            FlowFactor::Batch => self.batch.to_string(),
            FlowFactor::Rcvbuf => self.rcvbuf.to_string(),
            FlowFactor::Wait => self.wait.to_string(),
            FlowFactor::Reader => self.reader.to_string(),
            FlowFactor::Gro => switch(self.gro),
            FlowFactor::BusyPoll => or_off(self.busy_poll),
            FlowFactor::PreferBusyPoll => switch(self.prefer_busy_poll),
            FlowFactor::Rps => self.rps.clone(),
            FlowFactor::Rfs => or_off(self.rfs),
            FlowFactor::Xps => self.xps.clone(),
            FlowFactor::FlowLimit => self.flow_limit.clone(),
            FlowFactor::Backlog => self.backlog.map_or("host".into(), |packets| packets.to_string()),
            FlowFactor::Threaded => switch(self.threaded),
        }
    }

    /// What differs from what is measured where nothing is asked for, by its key.
    pub(crate) fn changed(&self) -> Vec<(&'static str, String)> {
        let usual = Self::default();
        let all = FlowFactor::ALL.into_iter();
        let is_told_elsewhere = |factor| {
            matches!(
                factor,
                FlowFactor::Backend
                    | FlowFactor::Rate
                    | FlowFactor::Frame
                    | FlowFactor::Flows
                    | FlowFactor::Ports
                    | FlowFactor::Sources
            )
        };
        all.filter(|&(_, factor)| self.value(factor) != usual.value(factor) && !is_told_elsewhere(factor))
            .map(|(name, factor)| (name, self.value(factor)))
            .collect()
    }
}

/// What can differ between two settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub(crate) enum FlowFactor {
    Backend,
    Rate,
    Frame,
    Flows,
    Ports,
    Sources,
    SocketsPerPort,
    Batch,
    Rcvbuf,
    Wait,
    Reader,
    Gro,
    BusyPoll,
    PreferBusyPoll,
    Rps,
    Rfs,
    Xps,
    FlowLimit,
    Backlog,
    Threaded,
}

impl FlowFactor {
    /// Every factor, with the name of its option.
    pub(crate) const ALL: [(&'static str, Self); 20] = [
        ("backend", Self::Backend),
        ("rate", Self::Rate),
        ("frame", Self::Frame),
        ("flows", Self::Flows),
        ("ports", Self::Ports),
        ("sources", Self::Sources),
        ("sockets-per-port", Self::SocketsPerPort),
        ("batch", Self::Batch),
        ("rcvbuf", Self::Rcvbuf),
        ("wait", Self::Wait),
        ("reader", Self::Reader),
        ("gro", Self::Gro),
        ("busy-poll", Self::BusyPoll),
        ("prefer-busy-poll", Self::PreferBusyPoll),
        ("rps", Self::Rps),
        ("rfs", Self::Rfs),
        ("xps", Self::Xps),
        ("flow-limit", Self::FlowLimit),
        ("backlog", Self::Backlog),
        ("threaded", Self::Threaded),
    ];

    /// The name of its option.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, factor)| *factor == self).map_or("", |(name, _)| name)
    }

    /// The key and the two values of `KEY=A,B`.
    pub(crate) fn parse_vary(text: &str) -> Result<(Self, String, String)> {
        let (key, values) = text
            .split_once('=')
            .with_context(|| format!("--vary {text}: write KEY=A,B, for example rps=off,0x2"))?;
        let factor = Self::ALL.iter().find(|(name, _)| *name == key).map(|(_, factor)| *factor);
        let Some(factor) = factor else {
            bail!("--vary {key}: {}", nearest("factor", key, Self::ALL.iter().map(|(name, _)| *name)));
        };
        let (a, b) = two_values(values)?
            .with_context(|| format!("--vary {text}: two values are compared, separated by one comma"))?;
        Ok((factor, a, b))
    }
}

/// The two values of `A,B`; none where there is one.
pub(crate) fn two_values(text: &str) -> Result<Option<(String, String)>> {
    match text.split(',').map(str::trim).collect::<Vec<_>>()[..] {
        [_] => Ok(None),
        [a, b] if !a.is_empty() && !b.is_empty() => Ok(Some((a.into(), b.into()))),
        _ => bail!("{text}: one value, or two separated by one comma"),
    }
}

fn number<T: FromStr>(factor: FlowFactor, value: &str) -> Result<T>
where
    T::Err: Display,
{
    value.parse().map_err(|error| anyhow::anyhow!("{} = {value}: {error}", factor.name()))
}

fn number_or_off(factor: FlowFactor, value: &str) -> Result<u32> {
    if value == OFF { Ok(0) } else { number(factor, value) }
}

/// Bytes as a number, or with KiB, MiB or GiB behind it.
fn bytes(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        unit => bail!("rcvbuf = {text}: `{unit}` is no unit; write 212992, 208KiB, 16MiB or 1GiB"),
    };
    let number: u64 = digits.parse().with_context(|| format!("rcvbuf = {text}: a number is needed"))?;
    number.checked_mul(factor).with_context(|| format!("rcvbuf = {text}: too many bytes"))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The port of the n-th.
pub(crate) fn port(number: u32) -> u16 {
    FIRST_PORT + number as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(pairs: &[(&str, &str)]) -> Result<FlowSetting> {
        let set = |own: FlowSetting, (key, value): &(&str, &str)| {
            let (_, factor) = FlowFactor::ALL.into_iter().find(|(name, _)| name == key).unwrap();
            own.with(factor, value)
        };
        let setting = pairs.iter().try_fold(FlowSetting::default(), set)?;
        setting.check().map(|()| setting)
    }

    #[test]
    fn every_factor_has_a_name_and_keeps_its_value() {
        for (name, factor) in FlowFactor::ALL {
            assert_eq!(factor.name(), name);
            let own = FlowSetting { backend: Some(BackendKind::Mmsg), ..FlowSetting::default() };
            let value = own.value(factor);
            assert_eq!(own.with(factor, &value).unwrap().value(factor), value, "{name}");
        }
    }

    #[test]
    fn flows_beyond_the_ports_differ_in_the_source() {
        let plain = setting(&[]).unwrap();
        assert_eq!((plain.port_count(), plain.source_count(), plain.streams()), (8, 1, 8));
        let few = setting(&[("ports", "2")]).unwrap();
        assert_eq!((few.port_count(), few.source_count(), few.streams()), (2, 4, 8));
        let flood = setting(&[("sources", "1000000")]).unwrap();
        assert_eq!((flood.port_count(), flood.source_count(), flood.streams()), (8, 1_000_000, 8));
        assert_eq!(flood.distinct_flows(1_000_000), 1_000_000);
        assert_eq!(setting(&[("sources", "3")]).unwrap().distinct_flows(1_000_000), 24);
        assert_eq!(plain.distinct_flows(3), 3);
    }

    #[test]
    fn one_thread_reads_more_sockets_than_there_are_cpus() {
        let of = |pairs: &[(&str, &str)], cpus| {
            let own = setting(pairs).unwrap();
            own.reader.of(&own, cpus)
        };
        assert_eq!(of(&[], 1), Reader::Epoll);
        assert_eq!(of(&[], 8), Reader::Threads);
        assert_eq!(of(&[("flows", "16"), ("ports", "8"), ("sockets-per-port", "2")], 8), Reader::Epoll);
        assert_eq!(of(&[("reader", "threads")], 1), Reader::Threads);
        assert_eq!(of(&[("busy-poll", "50")], 1), Reader::Threads, "polling is done in the receiving call");
        assert!(setting(&[("busy-poll", "50"), ("reader", "epoll")]).is_err());
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for (key, value) in [
            ("flows", "0"),
            ("ports", "3"),
            ("ports", "9"),
            ("sources", "0"),
            ("sources", "16777215"),
            ("sockets-per-port", "0"),
            ("sockets-per-port", "33"),
            ("frame", "63"),
            ("frame", "1519"),
            ("rate", "0"),
            ("rate", "fast"),
            ("rps", "xyz"),
            ("rfs", "1000"),
            ("batch", "0"),
            ("rcvbuf", "1x"),
            ("rcvbuf", "0"),
            ("backlog", "0"),
            ("busy-poll", "1s"),
            ("reader", "fibres"),
        ] {
            assert!(setting(&[(key, value)]).is_err(), "{key}={value}");
        }
        assert_eq!(setting(&[("rcvbuf", "208KiB")]).unwrap().rcvbuf, 212_992);
    }

    #[test]
    fn what_injected_packets_do_not_meet_is_named() {
        for pair in [("gro", "on"), ("busy-poll", "50"), ("threaded", "on"), ("xps", "0x1")] {
            let named = setting(&[pair]).unwrap().bypassed_by_inject().unwrap();
            assert!(named.contains("with inject"), "{named}");
        }
        assert_eq!(setting(&[("rps", "0x2"), ("rfs", "4096")]).unwrap().bypassed_by_inject(), None);
    }

    #[test]
    fn two_values_make_a_comparison() {
        assert_eq!(two_values("0x2").unwrap(), None);
        assert_eq!(two_values("off,0x2").unwrap(), Some(("off".into(), "0x2".into())));
        assert!(two_values("1,2,3").is_err() && two_values("1,").is_err());
        let (factor, a, b) = FlowFactor::parse_vary("rps=off,0x2").unwrap();
        assert_eq!((factor, a.as_str(), b.as_str()), (FlowFactor::Rps, "off", "0x2"));
        let error = FlowFactor::parse_vary("rsp=off,0x2").unwrap_err().to_string();
        assert!(error.contains("known: backend"), "{error}");
    }
}
