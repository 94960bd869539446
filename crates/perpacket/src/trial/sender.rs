//! The sender of a trial: one thread, on a CPU and in a namespace of its own, that sends one kind of frame at a rate.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ebpf::{AluOp, Assembler, Reg};
use linux::clock::monotonic_ns;
use linux::netns::Netns;
use measure::gaps::Gaps;
use template::CheckedFrame;
use traffic::programs::Destination;
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Generator, LiveGenerator, LiveSpec, Memory, Mmsg,
    MmsgSpec, Pace, Paced, Timing, TxRingBackend, TxRingSpec, UdpSockets, UdpSpec,
};

use super::Load;
use super::imix::Imix;
use crate::cell::Setting;
use crate::generate::workers::{self, Done, Worker};
use crate::stop::Stop;

/// Time between two looks whether a signal came, in packets of this much time. In the kernel each costs a call.
const CHUNK: Duration = Duration::from_secs(1);

/// The most frames that are written beforehand: what a socket would send from a cache.
const MOST_PREPARED: u64 = 256;
/// The same where sizes are mixed, which come again after twelve.
const MOST_MIXED: u64 = 1_024;

/// Which packet of a frame is sent when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Packet s is frame number s: each flow visits its sources in order.
    Flows,
    /// Packet s goes to port s modulo ports and has source s modulo sources, so that each has another source than the one
    /// before. It is frame number s × ports + s modulo ports, which is also what its stamp says: [`Turn::packet`].
    Sources,
}

impl Turn {
    /// The number of the frame that packet `packet` is, with so many ports.
    pub(crate) fn frame(self, packet: u64, ports: u16) -> u64 {
        match self {
            Self::Flows => packet,
            Self::Sources => packet * u64::from(ports) + packet % u64::from(ports),
        }
    }

    /// The packet that frame number `frame` is.
    pub(crate) fn packet(self, frame: u64, ports: u16) -> u64 {
        match self {
            Self::Flows => frame,
            Self::Sources => frame / u64::from(ports),
        }
    }
}

/// Who sends a trial's packets, from where and how. Each trial opens a new generator, whose pace is its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    /// The way, settled: one that the host has.
    pub(crate) kind: BackendKind,
    /// What is sent: frame number `s` is `frame.write(s, …)`.
    pub(crate) frame: &'a CheckedFrame,
    /// Where sizes are mixed: the same frame in all of them. `frame` is the longest then.
    pub(crate) imix: Option<&'a Imix>,
    /// In which order.
    pub(crate) turn: Turn,
    /// The namespace of the device; none for that of the process.
    pub(crate) netns: Option<&'a Netns>,
    /// The device: that packets are sent out of; with `inject` the one that is to have received them. Not looked at for `memory`.
    pub(crate) ifindex: u32,
    /// The CPU that it runs on.
    pub(crate) cpu: usize,
    /// Frames that a program in the kernel hands on together, a power of two up to 256; none: as few as hold the rate where frames
    /// cost little. Others decide by themselves.
    pub(crate) batch: Option<u32>,
    /// How a device's queueing discipline is met, and whether sockets leave the cutting to the kernel.
    pub(crate) handover: Handover,
}

/// How frames are handed over to a device, where a way in leaves that open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handover {
    /// Past the queueing discipline; of packet sockets.
    pub(crate) qdisc_bypass: bool,
    /// Many datagrams as one (UDP_SEGMENT); of UDP sockets.
    pub(crate) gso: bool,
}

impl Handover {
    /// As a cell has it.
    pub(crate) fn of(setting: &Setting) -> Self {
        Self { qdisc_bypass: !setting.has_qdisc(), gso: setting.gso }
    }
}

impl Default for Handover {
    fn default() -> Self {
        Self::of(&Setting::default())
    }
}

/// What a sender did.
#[derive(Debug)]
pub(crate) struct Offered {
    /// Packets that the backend confirmed.
    pub(crate) packets: u64,
    /// From the first packet until the one after the last would have been due, in ns.
    pub(crate) wall_ns: u64,
    /// CPU time of the sending thread, in ns; of injected packets all that is done for them in the same context.
    pub(crate) cpu_ns: u64,
    /// Gaps between packets.
    pub(crate) gaps: Option<Gaps>,
    /// Packets that were handed over at once, at most.
    pub(crate) grain: Option<u32>,
}

impl Sender<'_> {
    /// Sends the load, beginning when all is ready; fewer packets soon after a signal, or where the kernel makes no progress.
    /// `watch` is called with the number of packets that are confirmed, some fifty times a second.
    ///
    /// # Errors
    /// Where the way cannot be opened, or the kernel refuses a packet.
    pub(crate) fn send(&self, load: &Load, stop: &Stop, mut watch: impl FnMut(u64)) -> Result<Offered> {
        ensure!(load.pps > 0.0 && load.pps.is_finite(), "send at {} pps: a rate above 0 is needed", load.pps);
        let pace = Pace { start_ns: 0, interval_ns: load.interval_ns() };
        let generator =
            self.open(pace).with_context(|| format!("make the sender ready to send by {}", self.kind))?;
        let worker = Worker {
            number: 0,
            cpu: self.cpu,
            generator,
            count: Some(load.packets),
            chunk: (CHUNK.as_secs_f64() * load.pps).ceil().max(1.0) as u64,
            pace: Some(pace),
        };
        let stop = stop.begun_in(workers::LEAD);
        let mut done = workers::run(vec![worker], self.netns, |confirmed| {
            watch(confirmed);
            stop.asked()
        })?;
        let done = done.pop().context("the sender's thread left nothing")?;
        self.offered(load, done)
    }

    fn offered(&self, load: &Load, done: Done) -> Result<Offered> {
        let packets = done.sent.confirmed;
        if let Some(error) = done.error {
            return Err(error.context(format!("send by {}, after {packets} packets", self.kind)));
        }
        let wall_ns = wall_ns(load, self.kind, done.sent.offered, done.grain, done.from_to_ns);
        let wall_ns = wall_ns.unwrap_or(done.wall_ns);
        Ok(Offered { packets, wall_ns, cpu_ns: done.cpu_ns, gaps: done.gaps, grain: done.grain })
    }

    /// The generator, with a pace that begins later.
    fn open(&self, pace: Pace) -> Result<Box<dyn Generator>> {
        if matches!(self.kind, BackendKind::Inject | BackendKind::XdpLive) {
            return self.open_live(pace);
        }
        let frames = frames(self.frame, self.imix, self.turn)?;
        let open = || open_device(self.kind, self.ifindex, self.handover, frames);
        let backend = match self.netns {
            Some(netns) => netns.run(open)??,
            None => open()?,
        };
        Ok(Box::new(Paced::new(backend, Timing::Fixed(pace))))
    }

    /// A program in the kernel that writes the frames.
    fn open_live(&self, pace: Pace) -> Result<Box<dyn Generator>> {
        let frame = self.frame;
        let destination = match self.kind {
            BackendKind::Inject => Destination::Stack,
            _ => Destination::Device(self.ifindex),
        };
        let write = |asm: &mut Assembler, packet: Reg, index: Reg, scratch: [Reg; 5]| {
            match self.imix {
                None => write_in_turn(frame, self.turn, asm, packet, index, scratch),
                Some(imix) => imix.lower(asm, index, scratch[0], |frame, asm| {
                    write_in_turn(frame, self.turn, asm, packet, index, scratch);
                }),
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let generator = LiveGenerator::new(&LiveSpec {
            kind: self.kind,
            destination,
            ingress_ifindex: self.ifindex,
            rx_queue: 0,
            frame: frame.to_vec(0),
            header_bytes: frame.header_bytes(),
            write_packet: &write,
            shortens: self.imix.is_some(),
            pace: Some(pace),
            batch: self.batch,
        })?;
        Ok(Box::new(generator))
    }
}

/// From when the first packet was due until the one after the last would have been: what the schedule says, and more where
/// the last ones left late. None where the sender does not know when that was.
fn wall_ns(
    load: &Load,
    kind: BackendKind,
    packets: u64,
    grain: Option<u32>,
    from_to_ns: Option<(u64, u64)>,
) -> Option<u64> {
    let (from_ns, to_ns) = from_to_ns?;
    let last_index = packets.checked_sub(1)?;
    // In the kernel a batch leaves when its first packet is due, else when its last one is.
    let behind = match (kind, grain) {
        (BackendKind::Inject | BackendKind::XdpLive, Some(grain)) => last_index % u64::from(grain.max(1)) + 1,
        _ => 1,
    };
    let scheduled_ns = packets as f64 * load.interval_ns();
    let late_ns = to_ns.saturating_sub(from_ns) as f64 + behind as f64 * load.interval_ns();
    Some(scheduled_ns.max(late_ns).round() as u64)
}

/// The instructions that write packet number `index`, which is kept as all of them keep it.
fn write_in_turn(
    frame: &CheckedFrame,
    turn: Turn,
    asm: &mut Assembler,
    packet: Reg,
    index: Reg,
    scratch: [Reg; 5],
) {
    let ports = i32::from(frame.flows());
    if turn == Turn::Flows || ports == 1 {
        return frame.lower_packet(asm, packet, index, scratch);
    }
    asm.mov(scratch[0], index);
    asm.alu_imm(AluOp::Mod, scratch[0], ports);
    asm.alu_imm(AluOp::Mul, index, ports);
    asm.alu(AluOp::Add, index, scratch[0]);
    frame.lower_packet(asm, packet, index, scratch);
    asm.alu_imm(AluOp::Div, index, ports);
}

/// The frames as a backend takes them: written beforehand where they come again soon.
fn frames(frame: &CheckedFrame, imix: Option<&Imix>, turn: Turn) -> Result<Frames> {
    let ports = frame.flows();
    if let Some(imix) = imix {
        let whole = frame.period().map(|period| period * Imix::period());
        if let Some(period) = whole.filter(|&period| turn == Turn::Flows && period <= MOST_MIXED) {
            return Ok(Frames::cycle((0..period).map(|number| imix.to_vec(number, number)).collect())?);
        }
        let imix = imix.clone();
        return Ok(Frames::varied(frame.l2_bytes(), move |packet, out| {
            Some(imix.write(packet, turn.frame(packet, ports), out, monotonic_ns))
        })?);
    }
    let period = frame.period().filter(|&period| period <= MOST_PREPARED);
    if let Some(period) = period.filter(|_| turn == Turn::Flows || ports == 1) {
        return Ok(Frames::cycle((0..period).map(|number| frame.to_vec(number)).collect())?);
    }
    let frame = frame.clone();
    Ok(Frames::generated(frame.l2_bytes(), move |packet, out| {
        frame.write(turn.frame(packet, ports), out, monotonic_ns);
    })?)
}

/// Opens a backend that sends out of a device of the calling thread's namespace, or into memory.
fn open_device(
    kind: BackendKind,
    ifindex: u32,
    handover: Handover,
    frames: Frames,
) -> Result<Box<dyn Backend>> {
    let Handover { qdisc_bypass, gso } = handover;
    Ok(match kind {
        BackendKind::Mmsg => {
            Box::new(Mmsg::new(&MmsgSpec { qdisc_bypass, ..MmsgSpec::new(ifindex) }, frames)?)
        }
        BackendKind::TxRing => {
            Box::new(TxRingBackend::new(&TxRingSpec { qdisc_bypass, ..TxRingSpec::new(ifindex) }, frames)?)
        }
        BackendKind::AfXdp => Box::new(AfXdp::new(&AfXdpSpec::new(ifindex), frames)?),
        BackendKind::Udp => Box::new(UdpSockets::new(&UdpSpec { gso, ..UdpSpec::new(ifindex) }, frames)?),
        BackendKind::Memory => Box::new(Memory::new(frames, 0)),
        other => {
            bail!("{other} cannot send these packets: use inject, xdp-live, af-xdp, tx-ring, mmsg or udp")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use template::{Addresses, UdpFrame};

    use super::*;

    const LOAD: Load = Load { pps: 1e6, packets: 100 };

    #[test]
    fn the_time_of_a_load_is_that_of_its_schedule_or_longer() {
        let wall = |kind, packets, grain, to_ns| wall_ns(&LOAD, kind, packets, Some(grain), Some((0, to_ns)));
        assert_eq!(wall(BackendKind::Mmsg, 100, 1, 99_000), Some(100_000));
        assert_eq!(wall(BackendKind::Mmsg, 100, 1, 109_000), Some(110_000), "the last one was late");
        assert_eq!(wall(BackendKind::Inject, 100, 4, 96_000), Some(100_000));
        assert_eq!(wall(BackendKind::Inject, 98, 4, 96_000), Some(98_000), "the last batch has two packets");
        assert_eq!(wall(BackendKind::Inject, 98, 4, 97_000), Some(99_000));
        assert_eq!(wall(BackendKind::Inject, 0, 4, 0), None);
    }

    #[test]
    fn frames_are_handed_over_as_the_setting_has_it() {
        assert_eq!(Handover::default(), Handover { qdisc_bypass: true, gso: false });
        let other = Setting { qdisc: "pfifo".into(), gso: true, ..Setting::default() };
        assert_eq!(Handover::of(&other), Handover { qdisc_bypass: false, gso: true });
    }

    #[test]
    fn a_frame_says_which_packet_it_is() {
        for ports in [1, 3, 8] {
            for packet in [0, 1, 7, 8, 999_999] {
                for turn in [Turn::Flows, Turn::Sources] {
                    assert_eq!(turn.packet(turn.frame(packet, ports), ports), packet);
                }
                let frame = Turn::Sources.frame(packet, ports);
                assert_eq!(
                    (frame % u64::from(ports), frame / u64::from(ports)),
                    (packet % u64::from(ports), packet)
                );
            }
        }
    }

    #[test]
    fn a_sender_sends_what_it_is_asked_for() {
        let written = UdpFrame {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            addresses: Addresses::V4 {
                source: Ipv4Addr::new(198, 18, 0, 1),
                destination: Ipv4Addr::new(198, 18, 0, 2),
            },
            source_port: 1024,
            destination_port: 5000,
            flows: 3,
            sources: 1,
            stamp: false,
            frame_bytes: 64,
        };
        let frame = written.clone().check().unwrap();
        let longest = UdpFrame { frame_bytes: 1_518, ..written.clone() }.check().unwrap();
        let cpu = linux::cpu::allowed().unwrap()[0];
        let sender = Sender {
            kind: BackendKind::Memory,
            frame: &frame,
            imix: None,
            turn: Turn::Sources,
            netns: None,
            ifindex: 0,
            cpu,
            batch: None,
            handover: Handover::default(),
        };
        let imix = Imix::of(&written).unwrap();
        let mixed = Sender { imix: Some(&imix), ..Sender { frame: &longest, ..sender } };
        for turn in [Turn::Sources, Turn::Flows] {
            let offered = Sender { turn, ..mixed }.send(&LOAD, &Stop::listen().unwrap(), |_| ()).unwrap();
            assert_eq!(offered.packets, LOAD.packets);
        }
        let offered = sender.send(&LOAD, &Stop::listen().unwrap(), |_| ()).unwrap();
        assert_eq!(offered.packets, LOAD.packets);
        assert!(offered.wall_ns >= 100_000);
        assert_eq!(offered.gaps.map(|gaps| gaps.count()), Some(LOAD.packets - 1));
        let never = Load { pps: 0.0, packets: 1 };
        assert!(sender.send(&never, &Stop::listen().unwrap(), |_| ()).is_err());
    }
}
