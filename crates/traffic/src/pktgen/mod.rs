//! The kernel's own packet generator (net/core/pktgen.c, 6.1 to 6.12).
//!
//! It makes its own packets, of which only what [`PktgenPackets`] has can be chosen, and keeps its own time, from a thread of
//! the kernel for each CPU. Confirmed is what the driver took. Attempts that it refused are made again, and are no packets;
//! where a device drops what it refuses, its counter of drops grows all the same.
//!
//! All that is told to it goes through files below `/proc/net/pktgen`. Every network namespace has files and threads of its
//! own, and `start` and `stop` mean all threads of the namespace of whoever writes them. So there is one of these generators
//! in a namespace at a time, and none beside devices that others have given to pktgen there: they would be started too.
//!
//! `start` returns when all threads have ended, and may do so before they have begun, since a thread looks for orders ten
//! times a second and is not waited for longer than 125 ms; a `stop` before that is forgotten. Both are seen by the result,
//! and `stop` is written until it is.
//!
//! A late packet does not delay the following ones: those are sent one after the other until all that was missed is caught
//! up, faster than at twice the rate.

mod settings;
mod status;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linux::SyscallError;
use measure::gaps::Gaps;
use thiserror::Error;

use crate::backend::{BackendKind, STALL, SendError, Sent};
use crate::generator::{Generator, Spent};

use settings::{Setting, settings};
use status::{End, Status};

pub use settings::{PktgenAddresses, PktgenPackets, PktgenTags};

/// The files of the calling thread's namespace.
const FOLDER: &str = "/proc/thread-self/net/pktgen";
const CONTROL: &str = "pgctrl";
/// How often the counters are read.
const LOOK: Duration = Duration::from_millis(20);
/// How long a thread may take to see an order, and to have ended after it, besides a delay of its own.
const ORDER: Duration = Duration::from_secs(2);
/// How long after an end that nobody here asked for a signal may still be on its way to the flag.
const SIGNAL: Duration = Duration::from_millis(200);
/// The most packets of a run: pktgen reads ten digits.
const COUNT_MAX: u64 = 9_999_999_999;
/// The longest delay: that long it may take to stop.
const DELAY_NS_MAX: u64 = 1_000_000_000;
/// The longest name of a device with its number, and of a device (`pktgen_dev_get_by_name`).
const NAME_BYTES_MAX: usize = 31;

/// How a [`Pktgen`] is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PktgenSpec {
    /// The device that is sent out of, switched on, in the calling thread's network namespace.
    pub device: String,
    /// The CPU whose thread sends.
    pub cpu: usize,
    /// What is sent.
    pub packets: PktgenPackets,
    /// Packets in all, at most [`Self::COUNT_MAX`]; none: until it is stopped.
    pub count: Option<u64>,
    /// From one packet to the next in ns, at most [`Self::DELAY_NS_MAX`]; none: as fast as possible. There are no fractions: at
    /// 14.88 million packets a second a rate is only met to 0.3 %, at 1 million to 0.05 %.
    pub delay_ns: Option<u64>,
}

impl PktgenSpec {
    /// The most packets that can be counted.
    pub const COUNT_MAX: u64 = COUNT_MAX;
    /// The longest time between two packets.
    pub const DELAY_NS_MAX: u64 = DELAY_NS_MAX;
}

/// Why there is no generator.
#[derive(Debug, Error)]
pub enum PktgenError {
    /// The kernel has no pktgen, or refused a file.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
    /// Others use it.
    #[error(
        "pktgen has devices of others in this network namespace ({}), which would be started too: take them away with `rem_device_all`",
        .0.join(", ")
    )]
    Busy(Vec<String>),
    /// Something that pktgen cannot do.
    #[error("pktgen cannot send {0}")]
    Unable(String),
    /// It did not understand.
    #[error("pktgen was told `{line}` and answered `{answer}`")]
    Refused {
        /// What was written.
        line: String,
        /// What the result was then.
        answer: String,
    },
    /// A file has another form than is known.
    #[error("{path} has an unknown form, perhaps that of a newer kernel")]
    Form {
        /// Which one.
        path: String,
    },
}

/// Sends with the kernel's generator, from one thread of the kernel.
///
/// To be made, used and dropped in threads of the same network namespace.
#[derive(Debug)]
pub struct Pktgen {
    /// Opened twice: an open file takes one write at a time, and that of `start` lasts as long as the run.
    start: ProcFile,
    stop: ProcFile,
    thread: ProcFile,
    device: ProcFile,
    count: Option<u64>,
    delay_ns: u64,
    paced: bool,
    /// Whether the order to begin was given.
    begun: bool,
    /// The thread that gave it, until the kernel lets go of it.
    starter: Option<JoinHandle<io::Result<()>>>,
    /// Whether `stop` was written.
    stopping: bool,
    /// What was reported.
    sent: u64,
    end: Option<End>,
}

/// Whether this host and this process have pktgen, without doing anything.
///
/// # Errors
/// ENOENT without pktgen, EACCES or EPERM without privilege.
pub(crate) fn probe() -> Result<(), SyscallError> {
    // What is no order is refused, but only to those that may give some.
    match ProcFile::open(CONTROL)?.write("") {
        Err(error) if error.errno() != Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

impl Pktgen {
    /// Gives the device to the CPU's thread and says what it is to send. Nothing is sent yet.
    ///
    /// # Errors
    /// Without pktgen or privilege (CAP_NET_ADMIN outside of all user namespaces), a device that is not there or not switched
    /// on, pktgen in use, and what it cannot do.
    pub fn new(spec: &PktgenSpec) -> Result<Self, PktgenError> {
        let unable = |what: String| Err(PktgenError::Unable(what));
        let name = format!("{}@{}", spec.device, spec.cpu);
        if spec.device.contains('@') || name.len() > NAME_BYTES_MAX {
            return unable(format!("out of a device named `{}`", spec.device));
        }
        if spec.count.is_some_and(|count| count == 0 || count > COUNT_MAX) {
            return unable(format!("any other number of packets than 1 to {COUNT_MAX}"));
        }
        if spec.delay_ns.is_some_and(|ns| ns == 0 || ns > DELAY_NS_MAX) {
            return unable(format!(
                "a packet every {:?} ns: 1 to {DELAY_NS_MAX} are possible",
                spec.delay_ns
            ));
        }
        let least = spec.packets.l2_bytes_min();
        if spec.packets.l2_bytes < least {
            return unable(format!("such packets in less than {least} bytes"));
        }
        let [start, stop] = [ProcFile::open(CONTROL)?, ProcFile::open(CONTROL)?];
        let others = given_devices()?;
        if !others.is_empty() {
            return Err(PktgenError::Busy(others));
        }
        let thread = ProcFile::open(&format!("kpktgend_{}", spec.cpu))?;
        thread.write(&format!("add_device {name}"))?;
        let added = Added(&thread);
        let device = ProcFile::open(&name)?;
        for setting in settings(&spec.packets, spec.count, spec.delay_ns) {
            device.set(&setting)?;
        }
        std::mem::forget(added);
        Ok(Self {
            start,
            stop,
            thread,
            device,
            count: spec.count,
            delay_ns: spec.delay_ns.unwrap_or(0),
            paced: spec.delay_ns.is_some(),
            begun: false,
            starter: None,
            stopping: false,
            sent: 0,
            end: None,
        })
    }

    /// Packets that the driver refused at first; known when the run is over.
    pub fn errors(&self) -> Option<u64> {
        self.end.map(|end| end.errors)
    }

    /// Lets the kernel begin, from a thread that waits for the end.
    fn begin(&mut self) -> Result<(), SendError> {
        if self.begun {
            return Ok(());
        }
        let control = self.start.clone();
        let start = move || control.write("start").map_err(|error| error.source);
        let thread = thread::Builder::new().name("pktgen start".into()).spawn(start);
        let thread = thread.map_err(|error| self.failed(SyscallError::new("start a thread", "", error)))?;
        self.starter = Some(thread);
        self.begun = true;
        Ok(())
    }

    /// What the kernel says now. Sees to it that an order to begin that was refused is told.
    fn look(&mut self) -> Result<Status, SendError> {
        if self.starter.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(starter) = self.starter.take()
            && let Ok(Err(error)) = starter.join()
        {
            return Err(self.failed(SyscallError::new("write `start`", &*self.start.path, error)));
        }
        let status = self.device.status().map_err(|error| match error {
            PktgenError::Syscall(source) => self.failed(source),
            other => self.failed(SyscallError::new("read", &*self.device.path, io::Error::other(other))),
        })?;
        self.end = status.end;
        Ok(status)
    }

    /// Counts what was not reported before, up to so many packets in all.
    fn report(&mut self, sent: u64) -> Sent {
        let more = sent.saturating_sub(self.sent);
        self.sent += more;
        Sent { offered: more, confirmed: more, calls: 0 }
    }

    fn failed(&self, source: SyscallError) -> SendError {
        SendError::Syscall { backend: BackendKind::Pktgen, sent: Sent::default(), source }
    }

    /// Waits for the end, which is brought about where it does not come by itself.
    fn finish(&mut self) -> Result<Status, SendError> {
        let since = Instant::now();
        let most = ORDER + Duration::from_nanos(self.delay_ns);
        loop {
            let status = self.look()?;
            if status.end.is_some() {
                return Ok(status);
            }
            if since.elapsed() > most {
                let outstanding = self.count.unwrap_or(0).saturating_sub(status.sent);
                let sent = self.report(status.sent);
                let waited = since.elapsed();
                return Err(SendError::Stalled { backend: BackendKind::Pktgen, sent, outstanding, waited });
            }
            if self.count != Some(status.sent) {
                self.stopping = true;
                self.stop.write("stop").map_err(|error| self.failed(error))?;
            }
            thread::sleep(LOOK);
        }
    }

    /// Why a run ended before all was sent, where nobody here asked for it.
    fn ended_early(&self, status: &Status, stop: &AtomicBool) -> Option<SyscallError> {
        if self.stopping || self.count.is_some_and(|count| status.sent >= count) {
            return None;
        }
        let since = Instant::now();
        while since.elapsed() < SIGNAL {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            thread::sleep(LOOK);
        }
        let source = io::Error::from_raw_os_error(libc::ENETDOWN);
        Some(
            SyscallError::new("send by pktgen", &*self.device.path, source)
                .with_detail("it ended early: the device lost its carrier, or someone wrote `stop`"),
        )
    }
}

impl Generator for Pktgen {
    fn kind(&self) -> BackendKind {
        BackendKind::Pktgen
    }

    /// The kernel begins when it is told to, some tenths of a second after the first call of [`Self::send`].
    fn start_at(&mut self, _start_ns: u64) {}

    /// Begins, and returns when so many more were sent; the kernel goes on meanwhile. Once it has ended, nothing begins again.
    fn send(&mut self, packets: u64, stop: &AtomicBool) -> Result<Sent, SendError> {
        self.begin()?;
        let goal = self.sent.saturating_add(packets);
        let most = STALL + ORDER + Duration::from_nanos(self.delay_ns);
        let (mut seen, mut since) = (self.sent, Instant::now());
        loop {
            let status = self.look()?;
            if status.sent >= goal || stop.load(Ordering::Relaxed) {
                return Ok(self.report(status.sent.min(goal)));
            }
            if status.end.is_some() {
                let early = self.ended_early(&status, stop);
                let sent = self.report(status.sent);
                return early.map_or(Ok(sent), |source| Err(self.failed(source).having_sent(sent)));
            }
            if status.sent != seen {
                (seen, since) = (status.sent, Instant::now());
            } else if since.elapsed() > most {
                let outstanding = self.count.unwrap_or(goal).saturating_sub(seen);
                let (sent, waited) = (self.report(seen), since.elapsed());
                return Err(SendError::Stalled { backend: BackendKind::Pktgen, sent, outstanding, waited });
            }
            thread::sleep(LOOK);
        }
    }

    /// Lets a run end that has a count and has sent it, and ends any other one.
    fn flush(&mut self) -> Result<Sent, SendError> {
        if !self.begun {
            return Ok(Sent::default());
        }
        let status = self.finish()?;
        Ok(self.report(status.sent))
    }

    fn grain(&self) -> Option<u32> {
        self.paced.then_some(1)
    }

    /// It does not tell them.
    fn gaps(&mut self) -> Option<Gaps> {
        None
    }

    fn spent(&self) -> Option<Spent> {
        let end = self.end?;
        // With a pace, to when the next one would have been due.
        let wall_ns = end.elapsed_us * 1000 + self.delay_ns;
        Some(Spent { wall_ns, cpu_ns: end.busy_us * 1000 })
    }
}

impl Drop for Pktgen {
    fn drop(&mut self) {
        // What fails here cannot be told any more; with the network namespace all of it goes away.
        if self.begun && self.end.is_none() {
            drop(self.finish());
        }
        drop(Added(&self.thread));
        if let Some(starter) = self.starter.take() {
            drop(starter.join());
        }
    }
}

/// A thread with a device that is taken away again.
struct Added<'a>(&'a ProcFile);

impl Drop for Added<'_> {
    fn drop(&mut self) {
        drop(self.0.write("rem_device_all"));
    }
}

/// The devices that any thread of this namespace has.
fn given_devices() -> Result<Vec<String>, PktgenError> {
    let read_dir = |error| SyscallError::new("read", FOLDER, error);
    let mut all = Vec::new();
    for entry in fs::read_dir(FOLDER).map_err(read_dir)? {
        let name = entry.map_err(read_dir)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("kpktgend_")) else { continue };
        let file = ProcFile::open(name)?;
        let text = file.read()?;
        all.extend(status::devices(&text).ok_or(PktgenError::Form { path: (*file.path).into() })?);
    }
    Ok(all)
}

/// A file of pktgen, held open: it stays that of its namespace.
#[derive(Debug, Clone)]
struct ProcFile {
    file: Arc<File>,
    path: Arc<str>,
}

impl ProcFile {
    fn open(name: &str) -> Result<Self, SyscallError> {
        let path = PathBuf::from(FOLDER).join(name).display().to_string();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| SyscallError::new("open", &path, error))?;
        Ok(Self { file: Arc::new(file), path: path.into() })
    }

    /// Writes one line in one call. The end of the line is needed: the kernel reads numbers until something else comes,
    /// beyond what was written.
    fn write(&self, line: &str) -> Result<(), SyscallError> {
        (&*self.file)
            .write(format!("{line}\n").as_bytes())
            .map(|_| ())
            .map_err(|error| SyscallError::new("write", format!("{} (`{line}`)", self.path), error))
    }

    fn read(&self) -> Result<String, SyscallError> {
        let mut buffer = vec![0; 8192];
        let mut length = 0;
        while length < buffer.len() {
            match self.file.read_at(&mut buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(bytes) => length += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SyscallError::new("read", &*self.path, error)),
            }
        }
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// What a device's file says.
    fn status(&self) -> Result<Status, PktgenError> {
        Status::parse(&self.read()?).ok_or_else(|| PktgenError::Form { path: (*self.path).into() })
    }

    /// Writes a setting, and sees that it was understood.
    fn set(&self, setting: &Setting) -> Result<(), PktgenError> {
        self.write(&setting.line)?;
        let answer = self.status()?.result;
        if setting.is_answered_by(&answer) {
            return Ok(());
        }
        Err(PktgenError::Refused { line: setting.line.clone(), answer })
    }
}
