//! Capture files as devices, and as a witness of what a device receives and sends.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use datapath::device::{DeviceError, Lend, RxTotals, Sink};
use traffic::capture::{CaptureError, CaptureFormat, CaptureReader, CaptureWriter, Direction};

/// Bytes that are read from a file at once.
const READ_BYTES: usize = 256 << 10;

/// A capture file that is received from.
pub(crate) struct CaptureQueue {
    path: PathBuf,
    reader: CaptureReader<BufReader<File>>,
    /// Whether it begins again at its end.
    again: bool,
    frame: Vec<u8>,
    received: u64,
    ended: bool,
}

impl CaptureQueue {
    /// Opens the file.
    ///
    /// # Errors
    /// Where it is no regular file or no capture of Ethernet.
    pub(crate) fn open(path: &Path, again: bool) -> Result<Self> {
        let what = || format!("read the capture file {}", path.display());
        let metadata = std::fs::metadata(path).with_context(what)?;
        ensure!(metadata.is_file(), "read the capture file {}: it is no regular file", path.display());
        let reader = open(path)?;
        Ok(Self { path: path.into(), reader, again, frame: Vec::new(), received: 0, ended: false })
    }

    /// Length of the longest frame in the file without FCS, and how many there are: it is read through for that.
    ///
    /// # Errors
    /// Where it is damaged, or has no frame.
    pub(crate) fn facts(path: &Path) -> Result<CaptureFacts> {
        let mut reader = open(path)?;
        let (mut facts, mut frame) = (CaptureFacts::default(), Vec::new());
        let whole = || {
            format!(
                "read the capture file {0}: it is received from only if all of it can be read; `tcpdump -r {0} -w WHOLE.pcap` keeps \
                 the packets before the damage",
                path.display()
            )
        };
        while reader.next_frame(&mut frame).with_context(whole)?.is_some() {
            facts.frames += 1;
            facts.longest = facts.longest.max(frame.len());
        }
        ensure!(
            facts.frames > 0,
            "the capture file {} has no frame: there is nothing to receive",
            path.display()
        );
        Ok(facts)
    }

    fn next(&mut self) -> Result<bool, DeviceError> {
        if self.ended {
            return Ok(false);
        }
        if self.read()? {
            return Ok(true);
        }
        self.ended = !self.again;
        if self.again {
            self.reader = reopen(&self.path)?;
            // A file that has become empty ends it.
            self.ended = !self.read()?;
        }
        Ok(!self.ended)
    }

    fn read(&mut self) -> Result<bool, DeviceError> {
        let captured =
            self.reader.next_frame(&mut self.frame).map_err(|error| damaged(&self.path, &error))?;
        Ok(captured.is_some())
    }
}

/// What is in a capture file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CaptureFacts {
    pub(crate) frames: u64,
    pub(crate) longest: usize,
}

impl Lend for CaptureQueue {
    fn lend(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DeviceError> {
        let mut frames = 0;
        while frames < budget && self.next()? {
            each(&self.frame);
            frames += 1;
            // One by one: what comes before damage has been received.
            self.received += 1;
        }
        Ok(frames)
    }

    fn wait(&mut self, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ended(&self) -> bool {
        self.ended
    }

    fn totals(&mut self) -> RxTotals {
        RxTotals { received: self.received, missed: Some(0), ..RxTotals::default() }
    }
}

fn open(path: &Path) -> Result<CaptureReader<BufReader<File>>> {
    let what = || format!("read the capture file {}", path.display());
    let file = File::open(path).with_context(what)?;
    CaptureReader::open(BufReader::with_capacity(READ_BYTES, file)).with_context(what)
}

fn reopen(path: &Path) -> Result<CaptureReader<BufReader<File>>, DeviceError> {
    open(path).map_err(|error| DeviceError::Setup(format!("{error:#}")))
}

fn damaged(path: &Path, error: &CaptureError) -> DeviceError {
    DeviceError::Setup(format!("read the capture file {}: {error}", path.display()))
}

/// A capture file that is written, by any number of threads.
#[derive(Clone)]
pub(crate) struct CaptureSink {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    path: PathBuf,
    writer: Option<CaptureWriter<File>>,
    /// The first failure: nothing is written after it.
    failure: Option<String>,
}

impl CaptureSink {
    /// Makes the file, in place of what was there.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let what = || format!("write the capture file {}", path.display());
        let format = CaptureFormat::of_name(path)?;
        let file = File::create(path).with_context(what)?;
        let writer = Some(CaptureWriter::new(format, file).with_context(what)?);
        let shared = Shared { path: path.into(), writer, failure: None };
        Ok(Self { shared: Arc::new(Mutex::new(shared)) })
    }

    /// What takes a frame for it, with the time of now, and its direction if it is a witness of both.
    pub(crate) fn taker(&self, direction: Option<Direction>) -> Sink {
        let shared = Arc::clone(&self.shared);
        Box::new(move |frame| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).write(now_ns(), frame, direction)
        })
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// Where the file, or something before, could not be written.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let what = format!("write the capture file {}", shared.path.display());
        if let Some(failure) = &shared.failure {
            anyhow::bail!("{failure}");
        }
        match shared.writer.take() {
            Some(writer) => writer.finish().map(|_| ()).context(what),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn write(&mut self, ns: u64, frame: &[u8], direction: Option<Direction>) -> Result<(), DeviceError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        // A part of a frame may stand there already: what came behind it could not be read.
        if let Some(failure) = &self.failure {
            return Err(DeviceError::Setup(failure.clone()));
        }
        writer.write_passing(ns, frame, direction).map_err(|source| {
            self.failure = Some(format!("write the capture file {}: {source}", self.path.display()));
            DeviceError::File {
                doing: "write the capture file",
                path: self.path.display().to_string(),
                source,
            }
        })
    }
}

/// Nanoseconds since 1970; 0 where the clock stands before that.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
