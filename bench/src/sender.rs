//! What is compared: four backends in this process, and trafgen.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use linux::bpf::{Map, Program, ProgramKind, ProgramSpec};
use linux::clock;
use linux::procfs::CpuTimes;
use traffic::programs::{CONTROL_WORDS, Control, Destination, Injector};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, TxRingBackend,
    TxRingSpec,
};

use crate::arena::Arena;

/// The name of the reference.
pub(crate) const REFERENCE: &str = "trafgen";
/// Frames that go through the program of `xdp-live` together.
const LIVE_BATCH: u32 = 64;
/// A worker of trafgen that crashes leaves its parent waiting for ever.
const TIMEOUT_S: &str = "60";

/// Something that sends.
pub(crate) enum Sender {
    /// In this process.
    Ours(Box<dyn Backend>),
    /// As a child process, whose only packet is described in a text.
    Trafgen {
        /// The device.
        device: &'static str,
        /// The packet in trafgen's language.
        packet: String,
    },
}

/// What sending took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    /// Frames that the sender says it sent.
    pub(crate) sent: u64,
    /// Frames counted at the receiver.
    pub(crate) received: u64,
    /// From before the first frame to after the last; for trafgen with start and end of the process.
    pub(crate) wall_ns: u64,
    /// CPU time of the sender; for trafgen in steps of a tick.
    pub(crate) cpu_ns: u64,
}

impl Sender {
    /// Sends, and counts what arrived.
    pub(crate) fn run(&mut self, arena: &mut Arena, packets: u64) -> Result<Usage> {
        let before = arena.received()?;
        let mut usage = self.send(packets).with_context(|| format!("send by {}", self.name()))?;
        usage.received = arena.received_of(before + packets)? - before;
        Ok(usage)
    }

    /// All of them. The calling thread is in the namespace that they send from.
    pub(crate) fn all(arena: &Arena) -> Result<Vec<Self>> {
        let ifindex = arena.ifindex();
        let frames = || Frames::constant(arena.frame.to_vec(0));
        let ours: [Box<dyn Backend>; 4] = [
            Box::new(xdp_live(arena).context("open xdp-live")?),
            Box::new(AfXdp::new(&AfXdpSpec::new(ifindex), frames()?)?),
            Box::new(TxRingBackend::new(&TxRingSpec::new(ifindex), frames()?)?),
            Box::new(Mmsg::new(&MmsgSpec::new(ifindex), frames()?)?),
        ];
        let mut senders: Vec<Self> = ours.into_iter().map(Self::Ours).collect();
        senders.push(Self::Trafgen { device: arena.device(), packet: describe(&arena.frame.to_vec(0)) });
        Ok(senders)
    }

    /// The name in the table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours(backend) => backend.kind().name(),
            Self::Trafgen { .. } => REFERENCE,
        }
    }

    /// Sends so many packets; nothing is open when it returns.
    pub(crate) fn send(&mut self, packets: u64) -> Result<Usage> {
        let wall = clock::monotonic_ns();
        let (sent, cpu_ns) = match self {
            Self::Ours(backend) => {
                let cpu = clock::thread_cpu_ns();
                let sent = backend.send(packets)? + backend.flush()?;
                (sent.confirmed, clock::thread_cpu_ns() - cpu)
            }
            Self::Trafgen { device, packet } => {
                let cpu = children_cpu_ns()?;
                trafgen(device, packet, packets)?;
                (packets, children_cpu_ns()? - cpu)
            }
        };
        Ok(Usage { sent, received: 0, wall_ns: clock::monotonic_ns() - wall, cpu_ns })
    }
}

/// The program and the way of `perpacket path xdp-drop`.
fn xdp_live(arena: &Arena) -> Result<Inject> {
    let map = Map::array(8 * CONTROL_WORDS, 1, true)?;
    let destination = Destination::Device(arena.ifindex());
    let injector = Injector {
        header_bytes: arena.frame.header_bytes(),
        write_headers: &|asm, packet, flow, scratch| arena.frame.lower(asm, packet, flow, scratch),
        destination,
        spin: false,
        padding: None,
        control_fd: map.fd(),
    };
    let insns = injector.assemble()?;
    let program = Program::load(&ProgramSpec::new(ProgramKind::Xdp, "bench_send", &insns))?;
    let control = map.mmap_array()?;
    control.store(Control::Flows as usize, 1);
    Ok(Inject::new(InjectSpec {
        kind: BackendKind::XdpLive,
        program,
        control,
        frame: arena.frame.to_vec(0),
        ingress_ifindex: arena.ifindex(),
        rx_queue: 0,
        batch: LIVE_BATCH,
    }))
}

/// A frame in trafgen's language.
fn describe(frame: &[u8]) -> String {
    let bytes: Vec<String> = frame.iter().map(|byte| format!("{byte:#04x}")).collect();
    format!("{{ {} }}\n", bytes.join(", "))
}

/// Runs trafgen, which reads the packet from standard input and uses one CPU then.
fn trafgen(device: &str, packet: &str, packets: u64) -> Result<()> {
    let count = packets.to_string();
    let mut child = Command::new("timeout")
        .args([TIMEOUT_S, REFERENCE, "--dev", device, "--conf", "-", "--num", &count, "--no-sock-mem", "-Q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start trafgen (Debian's package netsniff-ng)")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(packet.as_bytes()).context("hand over the packet")?;
    }
    let done = child.wait_with_output().context("wait for trafgen")?;
    if !done.status.success() {
        bail!("trafgen ended with {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// CPU time of all children that have ended, in ns, in steps of a tick (fields 16 and 17, proc_pid_stat(5)).
fn children_cpu_ns() -> Result<u64> {
    const STAT: &str = "/proc/self/stat";
    let stat = fs::read_to_string(STAT).with_context(|| format!("read {STAT}"))?;
    let ticks =
        children_ticks(&stat).with_context(|| format!("read the CPU time of children from {STAT}"))?;
    Ok(ticks * (1_000_000_000 / CpuTimes::ticks_per_second()))
}

fn children_ticks(stat: &str) -> Option<u64> {
    // The name, field 2, may contain blanks; field 3 follows the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(16 - 3).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_described_byte_by_byte() {
        assert_eq!(describe(&[0x02, 0x00, 0xff]), "{ 0x02, 0x00, 0xff }\n");
    }

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        let stat = "7 (a b) c) R 1 7 7 0 -1 4194304 100 200 0 0 11 12 13 14 20 0 1 0 99 1 1 1";
        assert_eq!(children_ticks(stat), Some(27));
        assert_eq!(children_ticks("7 (a) R 1"), None);
    }
}
