//! What is sent: a program in the packet language, or the packets of a capture file.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ebpf::{Assembler, Reg};
use template::{
    Compiled, Device, Emitter, Include, Included, Includes, LowerError, LoweredLength, ParseOptions, Plan,
    Program,
};
use traffic::mark::{Mark, Marker};
use traffic::{Frames, Timeline};

use measure::record::Warning;
use measure::wire::FCS_BYTES;

use super::capture::CaptureFile;
use super::warning;
use crate::paths::topology::{IP_G0, IP6_G0, MAC_G0};
use crate::scenario::{Generate, Packets, Target};

/// Where programs of the system are included from, as trafgen's are.
const SYSTEM_INCLUDES: &str = "/etc/netsniff-ng";
/// The longest file that is read as a program, in bytes.
const PROGRAM_BYTES_MAX: u64 = 16 << 20;
/// The most packets that are made beforehand and sent again and again.
const CYCLE_MAX: u64 = 4096;
/// The most bytes of them.
const CYCLE_BYTES_MAX: usize = 4 << 20;

/// What a program is called that flags stand for.
pub(crate) const FLAGS: &str = "(flags)";

/// What is sent, ready to be handed to workers.
pub(crate) enum Source {
    /// A program, and the part of it that each thread sends; none for one that has no packet.
    Program { compiled: Compiled, emitters: Vec<Option<Emitter>> },
    /// A capture file.
    Capture(CaptureFile),
}

impl Source {
    /// Compiles the program, or opens the capture file.
    pub(crate) fn open(scenario: &Generate) -> Result<Self> {
        let packets = &scenario.packets;
        if let Some(path) = &packets.capture {
            return Ok(Self::Capture(CaptureFile::open(path, packets)?));
        }
        let program = packets.program.as_deref().context("the scenario names no program")?;
        let compiled = compile(packets, program, device(&scenario.target()))?;
        let threads = scenario.send.threads;
        let emitter = |worker| compiled.plan.emitter(worker, threads, packets.seed).ok();
        let emitters = (0..threads).map(emitter).collect();
        Ok(Self::Program { compiled, emitters })
    }

    /// Where the program is understood differently from trafgen, or probably not as meant.
    pub(crate) fn warnings(&self, scenario: &Generate) -> Vec<Warning> {
        let (compiled, emitters) = match self {
            Self::Program { compiled, emitters } => (compiled, emitters),
            Self::Capture(file) => return file.warnings(),
        };
        // Nobody wrote the program that flags stand for, so nobody expects what trafgen would do.
        let is_written = scenario.packets.name.as_deref() != Some(FLAGS);
        let found = compiled.warnings.iter().filter(|_| is_written);
        let mut all: Vec<Warning> = found.map(language_warning).collect();
        let idle = emitters.iter().filter(|emitter| emitter.is_none()).count();
        if idle > 0 {
            all.push(warning(
                "threads without packets",
                format!(
                    "{idle} of {} threads: every packet has a cpu() that leaves them out",
                    emitters.len()
                ),
                "the others send all packets",
            ));
        }
        if let Some(highest) =
            compiled.plan.highest_worker().filter(|&highest| highest as usize >= emitters.len())
        {
            all.push(warning(
                "packets that nobody sends",
                format!("a cpu() names {highest}, and there are {} threads, from 0", emitters.len()),
                "send with more --threads",
            ));
        }
        all
    }

    /// Length of the longest packet, without FCS.
    pub(crate) fn longest_l2_bytes(&self) -> usize {
        match self {
            Self::Program { compiled, .. } => compiled.plan.longest_l2_bytes(),
            Self::Capture(file) => file.longest_l2_bytes(),
        }
    }

    /// Length of the shortest packet of a program, without FCS; those of a capture file are made up with zeros.
    pub(crate) fn shortest_l2_bytes(&self) -> usize {
        match self {
            Self::Program { compiled: Compiled { plan, .. }, .. } => {
                (0..plan.packets()).filter_map(|packet| plan.l2_bytes(packet)).min().unwrap_or(0)
            }
            Self::Capture(_) => usize::MAX,
        }
    }

    /// The frame size, FCS included, where all packets have one.
    pub(crate) fn frame_bytes(&self) -> Option<u32> {
        let Self::Program { compiled: Compiled { plan, .. }, .. } = self else { return None };
        let first = plan.l2_bytes(0)?;
        let same = (1..plan.packets()).all(|packet| plan.l2_bytes(packet) == Some(first));
        same.then(|| first as u32 + FCS_BYTES)
    }

    /// Whether a worker has anything to send.
    pub(crate) fn has_packets(&self, worker: usize) -> bool {
        match self {
            Self::Program { emitters, .. } => emitters.get(worker).is_some_and(Option::is_some),
            Self::Capture(_) => worker == 0,
        }
    }

    /// A worker's part of a program.
    pub(crate) fn emitter(&self, worker: usize) -> Option<&Emitter> {
        match self {
            Self::Program { emitters, .. } => emitters.get(worker)?.as_ref(),
            Self::Capture(_) => None,
        }
    }

    /// The packets of a worker as a backend takes them: made beforehand where they repeat soon, else one by one; each with a
    /// `mark`, or not. Those of a capture file come with their times, where these are to decide (`timed`).
    pub(crate) fn frames(
        &self,
        worker: usize,
        timed: bool,
        mark: bool,
    ) -> Result<(Frames, Option<Timeline>)> {
        let plan = match self {
            Self::Program { compiled, .. } => &compiled.plan,
            Self::Capture(file) => return file.frames(timed),
        };
        let emitter = self.emitter(worker).context("this sender has no packet")?.clone();
        let longest = plan.longest_l2_bytes();
        if mark {
            return Ok((marked(longest, emitter, worker as u16)?, None));
        }
        let cycle =
            period(plan, &emitter, CYCLE_MAX).filter(|&count| count as usize * longest <= CYCLE_BYTES_MAX);
        let frames = match cycle {
            Some(count) => Frames::cycle((0..count).map(|index| emitter.to_vec(index)).collect())?,
            None => Frames::varied(longest, move |index, room| Some(emitter.emit(index, room)))?,
        };
        Ok((frames, None))
    }

    /// Hands packets over, of a program those of its first worker, each with its time in ns where it has one, until it
    /// is told to stop or there are no more.
    pub(crate) fn packets(&self, mut take: impl FnMut(&[u8], Option<u64>) -> Result<bool>) -> Result<()> {
        match self {
            Self::Program { compiled, emitters } => {
                let emitter = emitters
                    .iter()
                    .flatten()
                    .next()
                    .context("the program has no packet for a first thread")?;
                let mut room = vec![0; compiled.plan.longest_l2_bytes()];
                for index in 0.. {
                    let len = emitter.emit(index, &mut room);
                    if !take(&room[..len], None)? {
                        break;
                    }
                }
                Ok(())
            }
            Self::Capture(file) => file.packets(take),
        }
    }

    /// Hands over the first packets, of a program those of all workers in turn.
    pub(crate) fn first_packets(&self, count: u64, mut take: impl FnMut(&[u8])) -> Result<()> {
        let Self::Program { compiled, emitters } = self else {
            let mut left = count;
            return self.packets(|frame, _| {
                take(frame);
                left -= 1;
                Ok(left > 0)
            });
        };
        let emitters: Vec<&Emitter> = emitters.iter().flatten().collect();
        let mut room = vec![0; compiled.plan.longest_l2_bytes()];
        for number in 0..count {
            let workers = emitters.len().max(1) as u64;
            let Some(emitter) = emitters.get((number % workers) as usize) else { break };
            let len = emitter.emit(number / workers, &mut room);
            take(&room[..len]);
        }
        Ok(())
    }

    /// Why what is sent could not be read to its end.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Program { .. } => None,
            Self::Capture(file) => file.failure(),
        }
    }

    /// Packets that there are; none for a program, which has no end.
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Self::Program { .. } => None,
            Self::Capture(file) => Some(file.count()),
        }
    }

    /// The average length of packets, without FCS.
    pub(crate) fn mean_l2_bytes(&self) -> f64 {
        match self {
            Self::Program { compiled, emitters } => {
                emitters.iter().flatten().next().map_or(0.0, |emitter| mean_l2_bytes(&compiled.plan, emitter))
            }
            Self::Capture(file) => file.mean_l2_bytes(),
        }
    }

    /// Bytes of the first packets of a worker, without FCS.
    pub(crate) fn l2_bytes(&self, worker: usize, packets: u64) -> u64 {
        match self {
            Self::Program { compiled, emitters } => {
                let emitter = emitters.get(worker).and_then(Option::as_ref);
                emitter.map_or(0, |emitter| l2_bytes(&compiled.plan, emitter, packets))
            }
            Self::Capture(file) => file.l2_bytes(packets),
        }
    }
}

/// The addresses that a program does not name.
fn device(target: &Target) -> Device {
    match target {
        Target::Lab => Device { mac: Some(MAC_G0), ipv4: Some(IP_G0), ipv6: Some(IP6_G0) },
        Target::Device(name) => {
            Device { mac: lab::named_device(name).ok().and_then(|link| link.mac), ..Device::default() }
        }
        Target::Memory | Target::File(_) => Device::default(),
    }
}

/// Compiles a program.
pub(crate) fn compile(packets: &Packets, program: &str, device: Device) -> Result<Compiled> {
    let name = packets.name.clone().unwrap_or_else(|| "(program)".into());
    let options = ParseOptions {
        name,
        definitions: packets.define.clone(),
        includes: Some(&Files),
        device,
        seed: packets.seed,
    };
    // The message has the place, the line, and what was expected, in several lines.
    Program::parse(program, &options).map_err(|error| anyhow::Error::msg(error.to_string()))
}

/// Reads a program from a file, or from standard input for `-`.
pub(crate) fn read_program(name: &str) -> Result<String> {
    let what = || format!("read the program {name}");
    let mut bytes = Vec::new();
    if name == "-" {
        std::io::stdin().lock().take(PROGRAM_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(what)?;
    } else {
        bytes = read_file(Path::new(name)).map_err(anyhow::Error::msg).with_context(what)?;
    }
    ensure!(
        bytes.len() as u64 <= PROGRAM_BYTES_MAX,
        "read the program {name}: it has more than {} MiB; a capture file is sent with -i",
        PROGRAM_BYTES_MAX >> 20
    );
    String::from_utf8(bytes).with_context(|| {
        format!("read the program {name}: it is no text (UTF-8); a capture file is sent with -i {name}")
    })
}

/// A file of at most [`PROGRAM_BYTES_MAX`], or why not. Nothing else than a file is read: a device or a pipe might never end.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        return Err("it is a folder".into());
    }
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(PROGRAM_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Finds what programs include: in quotes beside the program that does so, else below [`SYSTEM_INCLUDES`].
struct Files;

impl Includes for Files {
    fn read(&self, include: &Include<'_>) -> Result<Included, String> {
        let folder = Path::new(include.from).parent().unwrap_or(Path::new(""));
        let places: &[PathBuf] = &[folder.join(include.name), Path::new(SYSTEM_INCLUDES).join(include.name)];
        let places = if include.quoted { places } else { &places[1..] };
        let mut reasons = Vec::new();
        for place in places {
            match read_file(place) {
                Ok(text) => return Ok(Included { name: place.display().to_string(), text }),
                Err(reason) => reasons.push(format!("{}: {reason}", place.display())),
            }
        }
        Err(reasons.join("; "))
    }
}

/// The average length of a worker's packets over a whole round, without FCS.
fn mean_l2_bytes(plan: &Plan, emitter: &Emitter) -> f64 {
    let round = emitter.round_packets();
    l2_bytes(plan, emitter, round) as f64 / round as f64
}

/// Bytes of the first `packets` packets of a worker, without FCS.
fn l2_bytes(plan: &Plan, emitter: &Emitter, packets: u64) -> u64 {
    let round = emitter.round_packets();
    let of = |index: u64| plan.l2_bytes(emitter.packet_of(index)).unwrap_or(0) as u64;
    let sum = |count: u64| -> u64 { (0..count).map(of).sum() };
    match packets / round {
        0 => sum(packets),
        rounds => rounds * sum(round) + sum(packets % round),
    }
}

/// The packets of a worker, each with its number and that of the worker.
fn marked(longest: usize, emitter: Emitter, stream: u16) -> Result<Frames> {
    for index in 0..emitter.round_packets().min(CYCLE_MAX) {
        Marker::locate(&emitter.to_vec(index))
            .with_context(|| format!("mark packet {} of the program", index + 1))?;
    }
    Ok(Frames::varied(longest, move |sequence, room| {
        let len = emitter.emit(sequence, room);
        if let Ok(marker) = Marker::locate(&room[..len]) {
            marker.write(&mut room[..len], Mark { stream, sequence });
        }
        Some(len)
    })?)
}

/// After how many packets all repeats, if after no more than `most`.
pub(crate) fn period(plan: &Plan, emitter: &Emitter, most: u64) -> Option<u64> {
    let mut periods = (0..plan.packets()).map(|packet| plan.period(packet));
    let period = periods.try_fold(1_u64, |all, one| {
        let one = one?;
        (all / common_divisor(all, one)).checked_mul(one).filter(|&period| period <= most)
    })?;
    period.checked_mul(emitter.round_packets()).filter(|&period| period <= most)
}

/// The greatest common divisor.
fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

/// A warning of the language as a record keeps it.
fn language_warning(found: &template::Warning) -> Warning {
    let place = &found.place;
    warning(
        &found.message,
        format!("{}:{}:{}", place.file, place.line, place.column),
        "docs/language.md says more",
    )
}

/// Whether a worker's packets can be written by a program in the kernel, and whether they have one length.
pub(super) fn lowering(emitter: &Emitter) -> Result<LoweredLength, LowerError> {
    let mut asm = Assembler::new();
    emitter.lower_with_length(&mut asm, Reg::R6, Reg::R8, [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R1])
}
