//! Devices opened: their queues for each thread, and what is known of them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datapath::device::{
    AfPacketRx, AfPacketTx, AfPacketTxSpec, AfXdp, AfXdpSpec, DeviceError, Dummy, PacketMemory, ToSink,
    Transmit, open_tap,
};
use datapath::wire::ethernet::MacAddress;
use linux::SyscallError;
use linux::ethtool::EthtoolSocket;
use linux::packet::SlotRingSpec;
use linux::route::{Link, RouteSocket};
use linux::tap::TapSpec;
use measure::record::Warning;

use super::pcap::{CaptureQueue, CaptureSink};
use super::template::Template;
use crate::device::wire::PORT_MAC;
use crate::device::{Destinations, DeviceWord, RxMode, RxQueue, Wire};
use crate::scenario::Datapath;

/// Bytes of an Ethernet header with a VLAN tag.
const LINK_BYTES: usize = 18;
/// MTU of devices that have none: what a jumbo frame carries.
const MTU_BYTES: usize = 9_198;
/// MTU of a TAP device as the kernel makes it.
const TAP_MTU_BYTES: usize = 1_500;

/// A device with its queues, those of the first thread first.
pub(super) struct Opened {
    pub(super) rx: Vec<RxQueue>,
    pub(super) tx: Vec<Box<dyn Transmit>>,
    pub(super) facts: Facts,
    pub(super) dummy: Option<Arc<Dummy>>,
    /// A file that is to be finished at the end.
    pub(super) sink: Option<CaptureSink>,
}

/// What is known of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Its Ethernet address, where it has one.
    pub(super) mac: Option<MacAddress>,
    pub(super) mtu_bytes: usize,
    /// The longest frame that it hands over, without FCS.
    pub(super) longest: usize,
}

impl Opened {
    fn new(facts: Facts) -> Self {
        Self { rx: Vec::new(), tx: Vec::new(), facts, dummy: None, sink: None }
    }
}

/// What devices are opened with.
pub(super) struct Ground<'a> {
    pub(super) scenario: &'a Datapath,
    /// Frames of synthetic devices.
    pub(super) frames: Option<FrameSource>,
    /// Memory that AF_XDP sockets have in common, so that packets pass between them without a copy; there where it is needed.
    memory: Option<PacketMemory>,
}

impl<'a> Ground<'a> {
    /// For the devices of a scenario, of which synthetic ones send to these `destinations`.
    pub(super) fn new(scenario: &'a Datapath, destinations: Destinations) -> Result<Self> {
        let frames = FrameSource::new(scenario, destinations)?;
        let sockets = scenario.devices.all().filter_map(|word| match word {
            DeviceWord::AfXdp { name, queue } => Some((name, *queue)),
            _ => None,
        });
        let mut pages = 0;
        for (name, queue) in sockets {
            let link = allowed_link(name)?;
            let threads = scenario.run.threads.max(scenario.senders());
            pages += xdp_spec(&link, queue, threads).pages();
        }
        let memory = (pages > 0).then(|| PacketMemory::new(pages)).transpose()?;
        Ok(Self { scenario, frames, memory })
    }
}

/// What a device is opened for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Threads that receive from it.
    pub(super) receivers: usize,
    /// Threads that send to it.
    pub(super) senders: usize,
}

/// The frames of a synthetic device.
pub(super) enum FrameSource {
    Wire(Wire),
    Template(Template),
}

impl FrameSource {
    /// As the scenario says; with made-up prefixes to these `destinations`.
    pub(super) fn new(scenario: &Datapath, destinations: Destinations) -> Result<Option<Self>> {
        let Some(frames) = &scenario.frames else { return Ok(None) };
        if let Some(program) = &frames.program {
            let run = &scenario.run;
            return Template::compile(program, frames.name.as_deref(), run.threads, run.seed)
                .map(|template| Some(Self::Template(template)));
        }
        let wire = Wire { frame_bytes: frames.frame_bytes, flows: frames.flows, destinations };
        Ok(Some(Self::Wire(wire)))
    }

    /// Where a program is understood differently from trafgen, or probably not as meant.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let Self::Template(template) = self else { return Vec::new() };
        let told = |found: &template::Warning| {
            let place = &found.place;
            let fact = format!("{}:{}:{}", place.file, place.line, place.column);
            super::warning(&found.message, fact, "docs/language.md says more")
        };
        template.warnings().iter().map(told).collect()
    }

    fn longest(&self) -> usize {
        match self {
            Self::Wire(wire) => wire.l2_bytes(),
            Self::Template(template) => template.longest_l2_bytes(),
        }
    }

    fn queue(&self, thread: usize, rx: RxMode) -> Result<RxQueue> {
        let queue = match self {
            Self::Wire(wire) => wire.queue()?,
            Self::Template(template) => template.queue(thread)?,
        };
        Ok(RxQueue::synthetic(queue, rx))
    }
}

/// Opens a device.
///
/// # Errors
/// Where it is not there, not allowed, or cannot do what it is opened for.
pub(super) fn open(word: &DeviceWord, ground: &Ground<'_>, wanted: Use) -> Result<Opened> {
    let scenario = ground.scenario;
    let opened = match word {
        DeviceWord::Synthetic => synthetic(ground.frames.as_ref(), scenario.receive.mode, wanted),
        DeviceWord::Dummy { queues } => dummy(*queues, scenario, wanted),
        DeviceWord::Pcap(path) => pcap(path, scenario, wanted),
        DeviceWord::AfPacket(name) => af_packet(name, scenario, wanted),
        DeviceWord::AfXdp { name, queue } => af_xdp(name, *queue, ground, wanted),
        DeviceWord::Tap(name) => tap(name, wanted),
    };
    opened.map_err(|error| match advice(word, &error) {
        Some(advice) => error.context(format!("open {word}: {advice}")),
        None => error.context(format!("open {word}")),
    })
}

/// What to do about the kernel's answer, where it alone does not tell.
fn advice(word: &DeviceWord, error: &anyhow::Error) -> Option<String> {
    /// Error numbers of Linux (include/uapi/asm-generic/errno-base.h).
    const EPERM: i32 = 1;
    const ENOENT: i32 = 2;
    const EACCES: i32 = 13;
    const EBUSY: i32 = 16;
    let kernel = error.chain().find_map(|cause| match cause.downcast_ref::<DeviceError>() {
        Some(DeviceError::Kernel(error)) => Some(error),
        Some(_) => None,
        None => cause.downcast_ref::<SyscallError>(),
    })?;
    match (word, kernel.errno()?) {
        (DeviceWord::Tap(_), EPERM | EACCES) => Some(
            "a TAP device is made with CAP_NET_ADMIN: run it as root, or in namespaces of its own (unshare --user \
             --map-root-user --net)"
                .to_owned(),
        ),
        (DeviceWord::Tap(_), ENOENT) => {
            Some("this kernel has no TAP devices: load the module tun (modprobe tun)".to_owned())
        }
        (DeviceWord::AfXdp { name, .. }, EBUSY) => Some(format!(
            "another program has the queue or the device's XDP hook: end it (`ip link show {name}` names the hook's program, \
             `ss --xdp -p` who has the sockets), or name another device or queue (af-xdp:{name}:QUEUE)"
        )),
        (DeviceWord::AfXdp { .. } | DeviceWord::AfPacket(_), EPERM | EACCES) => {
            Some("its sockets and programs need root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF".to_owned())
        }
        _ => None,
    }
}

fn synthetic(frames: Option<&FrameSource>, rx: RxMode, wanted: Use) -> Result<Opened> {
    let frames = frames.context("no frames are described")?;
    let mac = Some(MacAddress(PORT_MAC));
    let mut opened = Opened::new(Facts { mac, mtu_bytes: MTU_BYTES, longest: frames.longest() });
    opened.rx = (0..wanted.receivers).map(|thread| frames.queue(thread, rx)).collect::<Result<_>>()?;
    Ok(opened)
}

/// With a queue for each thread, unless a number is given: then threads share them in turn.
fn dummy(queues: Option<usize>, scenario: &Datapath, wanted: Use) -> Result<Opened> {
    let device =
        Dummy::new(queues.unwrap_or(wanted.senders), scenario.devices.lock.unwrap_or_default().into());
    let count = queues.unwrap_or(wanted.senders);
    let mut opened = Opened::new(Facts { mac: None, mtu_bytes: MTU_BYTES, longest: 0 });
    for thread in 0..wanted.senders {
        opened.tx.push(Box::new(device.queue(thread % count)?));
    }
    opened.dummy = Some(device);
    Ok(opened)
}

fn pcap(path: &std::path::Path, scenario: &Datapath, wanted: Use) -> Result<Opened> {
    let mut opened = Opened::new(Facts { mac: None, mtu_bytes: MTU_BYTES, longest: 0 });
    if wanted.receivers > 0 {
        opened.facts.longest = CaptureQueue::facts(path)?.longest;
        opened.rx.push(RxQueue::Lends(Box::new(CaptureQueue::open(path, scenario.devices.again)?)));
    } else {
        let sink = CaptureSink::create(path)?;
        for _ in 0..wanted.senders {
            opened.tx.push(Box::new(ToSink::new(sink.taker(None))));
        }
        opened.sink = Some(sink);
    }
    Ok(opened)
}

fn af_packet(name: &str, scenario: &Datapath, wanted: Use) -> Result<Opened> {
    let link = allowed_link(name)?;
    let mut opened = Opened::new(facts_of(&link));
    if wanted.receivers > 0 {
        let spec = SlotRingSpec {
            l2_bytes: opened.facts.longest,
            promiscuous: !scenario.network.macs.is_empty(),
            ..SlotRingSpec::default()
        };
        opened.rx.push(RxQueue::Lends(Box::new(AfPacketRx::open(link.ifindex, &spec)?)));
    }
    for _ in 0..wanted.senders {
        opened.tx.push(Box::new(AfPacketTx::open(link.ifindex, &AfPacketTxSpec::default())?));
    }
    Ok(opened)
}

/// A socket on each of the device's queues, or on the one that is named; those of the first threads.
fn af_xdp(name: &str, queue: Option<u32>, ground: &Ground<'_>, wanted: Use) -> Result<Opened> {
    let link = allowed_link(name)?;
    let memory = ground.memory.as_ref().context("there is no memory for it")?;
    let threads = wanted.receivers.max(wanted.senders);
    let queues = receive_queues(&link);
    match queue {
        Some(queue) => {
            ensure!(queue < queues, "{name} has the queues 0 to {}: there is no queue {queue}", queues - 1)
        }
        None => ensure!(
            threads == queues as usize,
            "{name} has {queues} receiving queues, and there are {threads} threads: use --threads {queues}, name one queue \
             (af-xdp:{name}:0), or give it as many queues (ethtool -L {name} rx {threads} tx {threads})"
        ),
    }
    let sends_only = wanted.receivers == 0;
    let device = AfXdp::open(memory, &AfXdpSpec { sends_only, ..xdp_spec(&link, queue, threads) })?;
    let mut opened = Opened::new(facts_of(&link));
    for (rx, tx) in device.queues {
        // A side that is not used goes; the socket stays with the other, the program with the receiving one.
        if opened.rx.len() < wanted.receivers {
            opened.rx.push(RxQueue::LandsIn(Box::new(rx), Box::new(memory.pool())));
        }
        if opened.tx.len() < wanted.senders {
            opened.tx.push(Box::new(tx));
        }
    }
    Ok(opened)
}

fn xdp_spec(link: &Link, queue: Option<u32>, threads: usize) -> AfXdpSpec {
    let queues = queue.map_or_else(|| (0..threads as u32).collect(), |queue| vec![queue]);
    AfXdpSpec { queues, open_checksums: true, ..AfXdpSpec::new(link.ifindex) }
}

/// Receive queues in use: a device may have been made for more.
fn receive_queues(link: &Link) -> u32 {
    let channels = EthtoolSocket::open().and_then(|socket| socket.channels(&link.name));
    let in_use = channels.ok().map(|channels| channels.rx + channels.combined).filter(|&queues| queues > 0);
    in_use.or(link.rx_queues).unwrap_or(1)
}

/// A TAP device, up from the start. Its other end is a device of this host, and so is its address.
fn tap(name: &str, wanted: Use) -> Result<Opened> {
    let mut socket = RouteSocket::open()?;
    ensure!(
        socket.link_by_name(name)?.is_none(),
        "a device of this name is there already; name another one, which is made for the run"
    );
    let (rx, tx) = open_tap(name, TapSpec { offloads: true, ..TapSpec::default() })?;
    let link = socket.link_by_name(rx.name())?.context("the device has gone")?;
    socket.set_up(link.ifindex)?;
    let facts = Facts { mac: None, mtu_bytes: TAP_MTU_BYTES, longest: TAP_MTU_BYTES + LINK_BYTES };
    let mut opened = Opened::new(facts);
    if wanted.receivers > 0 {
        opened.rx.push(RxQueue::Lends(Box::new(rx)));
    }
    if wanted.senders > 0 {
        opened.tx.push(Box::new(tx));
    }
    Ok(opened)
}

/// A device of this host that may be used: it has no default route, and is switched on.
fn allowed_link(name: &str) -> Result<Link> {
    let link = lab::named_device(name)?;
    ensure!(link.up, "{name} is down: set it up first (ip link set {name} up)");
    ensure!(link.mac.is_some(), "{name} has no Ethernet frames; name an Ethernet device");
    Ok(link)
}

fn facts_of(link: &Link) -> Facts {
    let mtu_bytes = link.mtu as usize;
    Facts { mac: link.mac.map(MacAddress), mtu_bytes, longest: mtu_bytes + LINK_BYTES }
}
