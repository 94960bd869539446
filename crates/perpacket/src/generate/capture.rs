//! A capture file as what is sent: read once to know what is in it, and again while it is sent.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use measure::record::Warning;
use traffic::capture::{CaptureReader, Captured, Skipped};
use traffic::{Frames, Recorded, Timeline, recording};

use super::warning;
use crate::scenario::Packets;

/// Bytes that are read from a file at once.
const READ_BYTES: usize = 256 << 10;

/// A capture file that was read through.
pub(crate) struct CaptureFile {
    path: PathBuf,
    keep_going: bool,
    facts: Facts,
    /// Why it could not be read further while it was sent.
    failure: Arc<Mutex<Option<String>>>,
}

/// What is in it.
#[derive(Debug, Default)]
struct Facts {
    packets: u64,
    l2_bytes: u64,
    longest: usize,
    /// Packets of which the file has a part only.
    cut: u64,
    /// Packets without a time.
    timeless: u64,
    out_of_order: u64,
    skipped: Option<Skipped>,
}

impl CaptureFile {
    /// Reads the file through.
    ///
    /// # Errors
    /// Where it is no capture file, is damaged and nobody said to keep going, or has no packet.
    pub(crate) fn open(path: &Path, packets: &Packets) -> Result<Self> {
        let what = || format!("read the capture file {}", path.display());
        let metadata = std::fs::metadata(path).with_context(what)?;
        ensure!(
            metadata.is_file(),
            "read the capture file {}: it is no regular file, and is read twice: once to know what is in it",
            path.display()
        );
        let keep_going = packets.keep_going;
        let mut reader = open(path, keep_going)?;
        let (mut facts, mut frame) = (Facts::default(), Vec::new());
        while let Some(captured) = reader.next_frame(&mut frame).with_context(|| damaged(path, keep_going))? {
            facts.packets += 1;
            facts.l2_bytes += frame.len() as u64;
            facts.longest = facts.longest.max(frame.len());
            facts.cut += u64::from(frame.len() < captured.original_bytes as usize);
            facts.timeless += u64::from(captured.ns.is_none());
        }
        facts.out_of_order = reader.out_of_order();
        facts.skipped = Some(reader.skipped()).filter(|skipped| skipped.places > 0);
        ensure!(
            facts.packets > 0,
            "the capture file {} has no packet: there is nothing to send",
            path.display()
        );
        if packets.speed.is_some() && facts.timeless > 0 {
            bail!(
                "{} of the packets of {} have no time, so that no speed can be kept: use --rate",
                facts.timeless,
                path.display()
            );
        }
        Ok(Self { path: path.into(), keep_going, facts, failure: Arc::default() })
    }

    /// Packets in it.
    pub(crate) fn count(&self) -> u64 {
        self.facts.packets
    }

    /// Length of the longest packet, without FCS.
    pub(crate) fn longest_l2_bytes(&self) -> usize {
        self.facts.longest
    }

    /// The average length, without FCS.
    pub(crate) fn mean_l2_bytes(&self) -> f64 {
        self.facts.l2_bytes as f64 / self.facts.packets as f64
    }

    /// Bytes of the first packets, without FCS; all of them, where they cannot be read again.
    pub(crate) fn l2_bytes(&self, packets: u64) -> u64 {
        if packets >= self.facts.packets {
            return self.facts.l2_bytes;
        }
        let Ok(mut stream) = self.stream() else { return self.facts.l2_bytes };
        let mut room = vec![0; self.facts.longest];
        (0..packets).map_while(|_| stream.next(&mut room)).map(|(len, _)| len as u64).sum()
    }

    /// Why it could not be read to its end while it was sent.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a person should know before it is sent.
    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let name = self.path.display();
        let mut all = Vec::new();
        if self.facts.cut > 0 {
            all.push(warning(
                "packets are sent shorter than they were",
                format!(
                    "{} of {} packets of {name} were cut when they were captured",
                    self.facts.cut, self.facts.packets
                ),
                "capture with a greater snap length",
            ));
        }
        if self.facts.out_of_order > 0 {
            all.push(warning(
                "packets are not in the order of their times",
                format!(
                    "{} of {} packets of {name} are older than the one before",
                    self.facts.out_of_order, self.facts.packets
                ),
                "they are sent in the order of the file, without waiting; reordercap sorts a file",
            ));
        }
        if let Some(skipped) = &self.facts.skipped {
            let first = skipped
                .first
                .as_ref()
                .map_or(String::new(), |(at, flaw)| format!(", first at byte {at}: {flaw}"));
            all.push(warning(
                "the capture file is damaged",
                format!("{} bytes in {} places of {name} were skipped{first}", skipped.bytes, skipped.places),
                "what could be read is sent",
            ));
        }
        all
    }

    /// The packets for a backend; with their times where these decide when they are sent.
    pub(crate) fn frames(&self, timed: bool) -> Result<(Frames, Option<Timeline>)> {
        let mut stream = self.stream()?;
        if !timed || self.facts.timeless > 0 {
            let frames =
                Frames::varied(self.facts.longest, move |_, room| stream.next(room).map(|(len, _)| len))?;
            return Ok((frames, None));
        }
        let (frames, timeline) = recording(self.facts.longest, move |room| {
            let (l2_bytes, at_ns) = stream.next(room)?;
            Some(Recorded { l2_bytes, at_ns: at_ns.unwrap_or(0) })
        })?;
        Ok((frames, Some(timeline)))
    }

    /// Hands the packets over, each with its time in ns since the first, until it is told to stop or there are no more.
    pub(crate) fn packets(&self, mut take: impl FnMut(&[u8], Option<u64>) -> Result<bool>) -> Result<()> {
        let mut stream = self.stream()?;
        let mut room = vec![0; self.facts.longest];
        while let Some((len, at_ns)) = stream.next(&mut room) {
            if !take(&room[..len], at_ns)? {
                break;
            }
        }
        match self.failure() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    }

    fn stream(&self) -> Result<Stream> {
        Ok(Stream {
            reader: open(&self.path, self.keep_going)?,
            path: self.path.clone(),
            frame: Vec::new(),
            first_ns: None,
            failure: Arc::clone(&self.failure),
        })
    }
}

/// A capture file on its way out.
struct Stream {
    reader: CaptureReader<BufReader<File>>,
    path: PathBuf,
    frame: Vec<u8>,
    first_ns: Option<u64>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Stream {
    /// Writes the next packet, and says its length and its time since the first.
    fn next(&mut self, room: &mut [u8]) -> Option<(usize, Option<u64>)> {
        let captured: Captured = match self.reader.next_frame(&mut self.frame) {
            Ok(captured) => captured?,
            Err(error) => {
                let text = format!("read the capture file {} while it is sent: {error}", self.path.display());
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                return None;
            }
        };
        // It may have grown since it was read through.
        let len = self.frame.len().min(room.len());
        room[..len].copy_from_slice(&self.frame[..len]);
        let since = captured.ns.map(|ns| ns.saturating_sub(*self.first_ns.get_or_insert(ns)));
        Some((len, since))
    }
}

fn open(path: &Path, keep_going: bool) -> Result<CaptureReader<BufReader<File>>> {
    let what = || format!("read the capture file {}", path.display());
    let file = File::open(path).with_context(what)?;
    let reader = CaptureReader::open(BufReader::with_capacity(READ_BYTES, file)).with_context(what)?;
    Ok(reader.keep_going(keep_going))
}

fn damaged(path: &Path, keep_going: bool) -> String {
    let hint = if keep_going { "" } else { " (--keep-going sends what can be read)" };
    format!("read the capture file {}{hint}", path.display())
}
