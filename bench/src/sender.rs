//! What is compared: backends in this process, and whole programs.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use linux::bpf::{Map, Program, ProgramKind, ProgramSpec};
use linux::clock;
use linux::procfs::CpuTimes;
use template::CheckedFrame;
use traffic::programs::{CONTROL_WORDS, Control, Destination, Injector};
use traffic::{
    AfXdp, AfXdpSpec, Backend, BackendKind, Frames, Inject, InjectSpec, Mmsg, MmsgSpec, TxRingBackend,
    TxRingSpec,
};

use crate::arena::{Arena, Wire};

/// The name of the reference.
pub const REFERENCE: &str = "trafgen";
/// Frames that go through the program of `xdp-live` together.
const LIVE_BATCH: u32 = 64;
const SIGKILL: i32 = 9;

/// Something that sends.
pub enum Sender {
    /// In this process.
    Ours(Box<dyn Backend>),
    /// As a child process.
    Process(Process),
}

/// A program that sends as many packets as its last argument says, and ends.
#[derive(Debug, Clone)]
pub struct Process {
    /// The name in the table.
    pub name: &'static str,
    /// The program and its arguments, but for the last.
    pub command: Vec<String>,
    /// What it reads from standard input.
    pub stdin: String,
    /// How many times as many packets it sends as others do, so that its start weighs no more than theirs.
    pub factor: u64,
    /// Packets per second at least; far slower, and it is taken to hang.
    pub least_pps: f64,
}

/// What sending took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Frames that the sender says it sent.
    pub sent: u64,
    /// Frames counted at the receiver.
    pub received: u64,
    /// From before the first frame to after the last; for a process with its start and its end.
    pub wall_ns: u64,
    /// CPU time of the sender; for a process in steps of a tick.
    pub cpu_ns: u64,
}

impl Sender {
    /// Sends, and counts what arrived. None if it hung and was killed.
    ///
    /// # Errors
    /// A sender that fails.
    pub fn run(&mut self, arena: &Arena, packets: u64) -> Result<Option<Usage>> {
        let before = arena.received()?;
        let usage = self.send(packets).with_context(|| format!("send by {}", self.name()))?;
        let Some(mut usage) = usage else { return Ok(None) };
        usage.received = arena.received_of(before + packets)? - before;
        Ok(Some(usage))
    }

    /// perpacket's backends and trafgen. The calling thread is in the namespace that they send from.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn backends(wire: &Wire, frame: &CheckedFrame) -> Result<Vec<Self>> {
        let ifindex = wire.ifindex();
        let frames = || Frames::constant(frame.to_vec(0));
        let ours: [Box<dyn Backend>; 4] = [
            Box::new(xdp_live(wire, frame).context("open xdp-live")?),
            Box::new(AfXdp::new(&AfXdpSpec::new(ifindex), frames()?)?),
            Box::new(TxRingBackend::new(&TxRingSpec::new(ifindex), frames()?)?),
            Box::new(Mmsg::new(&MmsgSpec::new(ifindex), frames()?)?),
        ];
        let mut senders: Vec<Self> = ours.into_iter().map(Self::Ours).collect();
        // From standard input it uses one CPU.
        let reference = Process::trafgen(wire, "-", &[]);
        senders.push(Self::Process(Process { stdin: describe(&frame.to_vec(0)), ..reference }));
        Ok(senders)
    }

    /// The name in the table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ours(backend) => backend.kind().name(),
            Self::Process(process) => process.name,
        }
    }

    /// [`Process::factor`].
    pub fn factor(&self) -> u64 {
        match self {
            Self::Ours(_) => 1,
            Self::Process(process) => process.factor,
        }
    }

    /// Sends so many packets; nothing is open when it returns.
    fn send(&mut self, packets: u64) -> Result<Option<Usage>> {
        let wall = clock::monotonic_ns();
        let (sent, cpu_ns) = match self {
            Self::Ours(backend) => {
                let cpu = clock::thread_cpu_ns();
                let sent = backend.send(packets)? + backend.flush()?;
                (sent.confirmed, clock::thread_cpu_ns() - cpu)
            }
            Self::Process(process) => {
                let cpu = children_cpu_ns()?;
                if !process.run(packets)? {
                    return Ok(None);
                }
                (packets, children_cpu_ns()? - cpu)
            }
        };
        Ok(Some(Usage { sent, received: 0, wall_ns: clock::monotonic_ns() - wall, cpu_ns }))
    }
}

impl Process {
    /// trafgen with one worker, and a configuration from a file or `-`.
    pub fn trafgen(wire: &Wire, configuration: &str, more: &[&str]) -> Self {
        let fixed = [REFERENCE, "--dev", wire.device(), "--conf", configuration, "--no-sock-mem", "-Q"];
        Self::new(REFERENCE, &[&fixed[..], more, &["--num"]].concat())
    }

    /// `perpacket gen` with a configuration from a file, by a backend.
    pub fn perpacket(
        wire: &Wire,
        program: &str,
        configuration: &str,
        backend: &'static str,
        more: &[&str],
    ) -> Self {
        let device = wire.device();
        let to = ["--to", device, "--allow-device", device, "--backend", backend];
        // RCU is expedited already.
        let quiet = ["--no-save", "--quiet", "--no-expedite"];
        let fixed = [&[program, "gen", configuration][..], &to, &quiet].concat();
        Self::new(backend, &[&fixed[..], more, &["--count"]].concat())
    }

    fn new(name: &'static str, command: &[&str]) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { name, command, stdin: String::new(), factor: 1, least_pps: 100_000.0 }
    }

    /// Runs it; whether it ended by itself.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub fn run(&self, packets: u64) -> Result<bool> {
        let limit_s = 10.0 + packets as f64 / self.least_pps;
        // It kills the workers too, if it must: they are of one process group.
        let mut child = Command::new("timeout")
            .args(["--signal=KILL", &format!("{limit_s:.0}")])
            .args(&self.command)
            .arg(packets.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.command.join(" ")))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(self.stdin.as_bytes()).context("hand over the packet")?;
        }
        let done = child.wait_with_output().with_context(|| format!("wait for {}", self.name))?;
        if done.status.signal() == Some(SIGKILL) || done.status.code() == Some(128 + SIGKILL) {
            return Ok(false);
        }
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            bail!("{} ended with {}: {}", self.command.join(" "), done.status, said.trim());
        }
        Ok(true)
    }
}

/// The program and the way of `perpacket path xdp-drop`.
fn xdp_live(wire: &Wire, frame: &CheckedFrame) -> Result<Inject> {
    let map = Map::array(8 * CONTROL_WORDS, 1, true)?;
    let destination = Destination::Device(wire.ifindex());
    let injector = Injector {
        header_bytes: frame.header_bytes(),
        write_headers: &|asm, packet, flow, scratch| frame.lower(asm, packet, flow, scratch),
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
        frame: frame.to_vec(0),
        ingress_ifindex: wire.ifindex(),
        rx_queue: 0,
        batch: LIVE_BATCH,
    }))
}

/// A frame in trafgen's language.
fn describe(frame: &[u8]) -> String {
    let bytes: Vec<String> = frame.iter().map(|byte| format!("{byte:#04x}")).collect();
    format!("{{ {} }}\n", bytes.join(", "))
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
