//! Which way packets go out, and the workers that send them that way.

use anyhow::{Context, Result, bail, ensure};
use ebpf::Assembler;
use measure::record::Warning;
use template::{LowerError, LoweredLength};
use traffic::programs::{Destination, GeneratorProgram};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Generator, LiveGenerator, LiveSpec, Memory, Mmsg,
    MmsgSpec, Pace, Paced, Pktgen, PktgenSpec, Timing, TxRingBackend, TxRingSpec, UdpSockets, UdpSpec,
};

use super::pktgen;
use super::place::Place;
use super::source::{self, Source};
use super::workers::Worker;
use super::{Job, warning};
use crate::host::Abilities;
use crate::scenario::Target;

/// Seconds of packets between two reports of a worker that keeps a rate. In the kernel each report costs a call.
const CHUNK_S: f64 = 0.25;
const CHUNK_IN_KERNEL_S: f64 = 1.0;
/// Packets between two reports of one that keeps none.
const CHUNK: u64 = 1 << 20;

/// A way out, settled.
pub(super) struct Way {
    pub(super) kind: BackendKind,
    /// Why it is not the one that was asked for.
    pub(super) fallback: Option<Warning>,
}

impl Way {
    /// Who says that a packet was sent.
    pub(super) fn seen_by(&self) -> &'static str {
        match self.kind {
            BackendKind::Inject | BackendKind::XdpLive => "sending program",
            BackendKind::AfXdp => "completion ring",
            BackendKind::TxRing => "completed ring slots",
            BackendKind::Mmsg | BackendKind::Udp => "accepted by sendmmsg",
            BackendKind::Pktgen => "pktgen, accepted by the driver",
            _ => "sender",
        }
    }
}

/// The way that was asked for, or the best one that packets, target and host allow.
///
/// # Errors
/// Where the way that was asked for cannot work, or none can; with the reasons.
pub(super) fn choose(job: &Job<'_>, abilities: &Abilities) -> Result<Way> {
    let target = job.scenario.target();
    let asked = job.scenario.send.backend;
    if target == Target::Memory {
        ensure!(
            asked.is_none_or(|kind| kind == BackendKind::Memory),
            "{} to memory: no kernel is asked there; use --to lab",
            asked.map_or("", BackendKind::name)
        );
        return Ok(Way { kind: BackendKind::Memory, fallback: None });
    }
    // Out of a device of the host, the plainest way first: it asks least of the driver.
    let order: &[BackendKind] = match target {
        Target::Lab => &[BackendKind::XdpLive, BackendKind::TxRing, BackendKind::Mmsg],
        _ => &[BackendKind::TxRing, BackendKind::Mmsg],
    };
    if let Some(kind) = asked {
        if let Some(lacking) = abilities.lacking(kind) {
            bail!("{kind} is not available here: {lacking}");
        }
        ensure!(
            kind != BackendKind::Memory,
            "{kind} does not send packets out of a device: use xdp-live, af-xdp, tx-ring, mmsg, udp or pktgen"
        );
        let Some(reason) = obstacle(job, kind) else { return Ok(Way { kind, fallback: None }) };
        let kind = best(job, abilities, order)?;
        let fact = format!("{}: {reason}", asked.map_or("", BackendKind::name));
        let fallback = warning("packets go another way than was asked for", fact, "they are sent by ");
        let fallback = Warning { next_step: format!("they are sent by {kind}"), ..fallback };
        return Ok(Way { kind, fallback: Some(fallback) });
    }
    Ok(Way { kind: best(job, abilities, order)?, fallback: None })
}

/// The first way that works.
fn best(job: &Job<'_>, abilities: &Abilities, order: &[BackendKind]) -> Result<BackendKind> {
    let against = |kind: BackendKind| abilities.lacking(kind).or_else(|| obstacle(job, kind));
    if let Some(kind) = order.iter().copied().find(|&kind| against(kind).is_none()) {
        return Ok(kind);
    }
    let reasons: Vec<String> =
        order.iter().filter_map(|&kind| Some(format!("{kind}: {}", against(kind)?))).collect();
    bail!("no way out is available here ({})", reasons.join("; "))
}

/// Why these packets cannot go this way; none where they can.
fn obstacle(job: &Job<'_>, kind: BackendKind) -> Option<String> {
    if kind == BackendKind::Pktgen {
        return pktgen::told(job).err();
    }
    if !matches!(kind, BackendKind::Inject | BackendKind::XdpLive) {
        return None;
    }
    if job.scenario.packets.mark {
        return Some("marks are written by the sender, and here the kernel writes the packets".into());
    }
    let Source::Program { emitters, .. } = &job.source else {
        return Some("the packets of a capture file cannot be written by a program in the kernel".into());
    };
    let longest = job.source.longest_l2_bytes();
    if !(14..=linux::bpf::LIVE_FRAME_BYTES_MAX).contains(&longest) {
        return Some(format!(
            "packets of {longest} bytes; 14 to {} are possible",
            linux::bpf::LIVE_FRAME_BYTES_MAX
        ));
    }
    emitters
        .iter()
        .flatten()
        .find_map(|emitter| source::lowering(emitter).err().map(|error| error.to_string()))
}

/// Opens the way once for each thread that has packets. Paces begin at 0: they are moved when all threads are there.
pub(super) fn open_workers(job: &Job<'_>, way: &Way, place: Option<&Place>) -> Result<Vec<Worker>> {
    let busy: Vec<usize> = (0..job.cpus.len()).filter(|&worker| job.source.has_packets(worker)).collect();
    let mut workers = Vec::new();
    for (turn, &worker) in busy.iter().enumerate() {
        let count = job.share(turn, busy.len());
        if count == Some(0) {
            continue;
        }
        let pace = job.pace().map(|pace| pace.share(turn as u32, busy.len() as u32));
        let generator = open(job, way.kind, place, worker, pace)
            .with_context(|| format!("make sender {worker} ready to send by {}", way.kind))?;
        let in_kernel = matches!(way.kind, BackendKind::Inject | BackendKind::XdpLive);
        let seconds = if in_kernel { CHUNK_IN_KERNEL_S } else { CHUNK_S };
        let chunk = pace.map_or(CHUNK, |pace| (seconds * 1e9 / pace.interval_ns).ceil().max(1.0) as u64);
        workers.push(Worker { number: worker, cpu: job.cpus[worker], generator, count, chunk, pace });
    }
    Ok(workers)
}

/// Opens the way for one worker.
fn open(
    job: &Job<'_>,
    kind: BackendKind,
    place: Option<&Place>,
    worker: usize,
    pace: Option<Pace>,
) -> Result<Box<dyn Generator>> {
    if let (BackendKind::Inject | BackendKind::XdpLive, Some(place)) = (kind, place) {
        return open_live(job, kind, place, worker, pace);
    }
    if let (BackendKind::Pktgen, Some(place)) = (kind, place) {
        return open_pktgen(job, place, worker, pace);
    }
    let (frames, timeline) = job.source.frames(worker, job.pps.is_none(), job.scenario.packets.mark)?;
    let timing = match (pace, timeline) {
        (Some(pace), _) => Timing::Fixed(pace),
        (None, Some(timeline)) => {
            Timing::Recorded { timeline, start_ns: 0, speed: job.scenario.packets.speed.unwrap_or(1.0) }
        }
        (None, None) => Timing::Unpaced,
    };
    let backend: Box<dyn Backend> = match place {
        None => Box::new(Memory::new(frames, 0)),
        Some(place) => {
            if let Some(queues) =
                place.queues.filter(|&queues| kind == BackendKind::AfXdp && worker as u32 >= queues)
            {
                bail!(
                    "{} has {queues} transmit queues, and each thread of af-xdp takes one: use fewer --threads",
                    place.name
                );
            }
            let ifindex = place.ifindex;
            place.run(|| open_device(kind, ifindex, worker as u32, frames))??
        }
    };
    Ok(Box::new(Paced::new(backend, timing)))
}

/// A program in the kernel that writes the packets of one worker.
fn open_live(
    job: &Job<'_>,
    kind: BackendKind,
    place: &Place,
    worker: usize,
    pace: Option<Pace>,
) -> Result<Box<dyn Generator>> {
    let emitter = job
        .source
        .emitter(worker)
        .context("a program in the kernel needs a program in the packet language")?;
    let destination = match kind {
        BackendKind::Inject => Destination::Stack,
        _ => Destination::Device(place.ifindex),
    };
    let write = |asm: &mut Assembler, packet, index, scratch| {
        if let LoweredLength::InRegister(length) = emitter.lower_with_length(asm, packet, index, scratch)? {
            asm.mov(GeneratorProgram::<LowerError>::LENGTH, length);
        }
        Ok::<(), LowerError>(())
    };
    let generator = LiveGenerator::new(&LiveSpec {
        kind,
        destination,
        ingress_ifindex: place.ifindex,
        rx_queue: 0,
        frame: emitter.longest(),
        header_bytes: emitter.lowered_bytes(),
        write_packet: &write,
        shortens: matches!(source::lowering(emitter)?, LoweredLength::InRegister(_)),
        pace,
        batch: None,
    })?;
    Ok(Box::new(generator))
}

/// The kernel's generator.
fn open_pktgen(
    job: &Job<'_>,
    place: &Place,
    worker: usize,
    pace: Option<Pace>,
) -> Result<Box<dyn Generator>> {
    let spec = PktgenSpec {
        device: place.name.clone(),
        cpu: job.cpus[worker],
        packets: pktgen::told(job).map_err(anyhow::Error::msg)?.packets,
        count: job.count,
        delay_ns: pace.map(|pace| pktgen::delay_ns(pace.interval_ns)),
    };
    Ok(Box::new(place.run(|| Pktgen::new(&spec))??))
}

/// Opens a backend that sends out of a device of the calling thread's namespace, in its queue `queue` where it is bound to
/// one.
fn open_device(kind: BackendKind, ifindex: u32, queue: u32, frames: Frames) -> Result<Box<dyn Backend>> {
    Ok(match kind {
        BackendKind::Mmsg => Box::new(Mmsg::new(&MmsgSpec::new(ifindex), frames)?),
        BackendKind::TxRing => Box::new(TxRingBackend::new(&TxRingSpec::new(ifindex), frames)?),
        BackendKind::AfXdp => Box::new(AfXdp::new(&AfXdpSpec { queue, ..AfXdpSpec::new(ifindex) }, frames)?),
        // The routes say which device: the ledger tells where they say another one.
        BackendKind::Udp => Box::new(UdpSockets::new(&UdpSpec::default(), frames)?),
        other => bail!("{other} does not send out of a device"),
    })
}
