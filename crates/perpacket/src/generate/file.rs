//! Packets into a capture file, without a device.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use traffic::capture::{CaptureFormat, CaptureWriter};

use super::Job;
use crate::cli::OutputArgs;
use crate::report::{self, Outcome, prints_text, write_stdout};
use crate::scenario::Generate;
use crate::stop::Stop;

/// Time between two packets where no rate is asked for, in ns.
const INTERVAL_NS: f64 = 1000.0;
/// Packets between two looks at a signal.
const LOOK: u64 = 4096;

/// What was written.
#[derive(Debug, serde::Serialize)]
struct Written<'a> {
    file: &'a Path,
    packets: u64,
    l2_bytes: u64,
}

/// Writes the packets, with the times at which they would be sent, from 0 on: the same program and seed give the same file.
pub(super) fn write(scenario: &Generate, path: &Path, output: &OutputArgs) -> Result<Outcome> {
    ensure!(scenario.send.threads == 1, "a file is written by one thread: use --threads 1");
    if let Some(kind) = scenario.send.backend {
        bail!("{kind} into a file: no backend is needed to write one; leave --backend out");
    }
    if let Some(capture) = scenario.packets.capture.as_deref().filter(|capture| is_same_file(capture, path)) {
        bail!(
            "write the capture file {}: it is {} itself, which is read meanwhile; name another file",
            path.display(),
            capture.display()
        );
    }
    let stop = Stop::listen()?;
    let job = Job::prepare(scenario)?;
    for warning in job.source.warnings(scenario).iter().filter(|_| !output.quiet) {
        report::write_stderr(&report::warning_line(warning));
    }
    let interval_ns = job.pps.map_or(INTERVAL_NS, |pps| 1e9 / pps);
    let by_time = scenario.send.time_s.map(|seconds| (seconds * 1e9 / interval_ns).round() as u64);
    let count = job.count.into_iter().chain(by_time).min().unwrap_or(u64::MAX);
    let what = || format!("write the capture file {}", path.display());
    let file = File::create(path).with_context(what)?;
    let format = CaptureFormat::of_name(path)?;
    let mut writer = CaptureWriter::new(format, BufWriter::new(file)).with_context(what)?;
    let (mut packets, mut l2_bytes) = (0_u64, 0_u64);
    let recorded = job.pps.is_none();
    job.source.packets(|frame, ns| {
        if packets == count || (packets.is_multiple_of(LOOK) && stop.asked()) {
            return Ok(false);
        }
        let due = ns.filter(|_| recorded).unwrap_or((packets as f64 * interval_ns) as u64);
        writer.write(due, frame).with_context(what)?;
        packets += 1;
        l2_bytes += frame.len() as u64;
        Ok(true)
    })?;
    writer.finish().with_context(what)?;
    if let Some(json) = &output.json {
        report::write_json(json, &Written { file: path, packets, l2_bytes })?;
    }
    if prints_text(output.json.as_deref()) && !output.quiet {
        write_stdout(&report::written_text(path, packets, l2_bytes, stop.asked()))?;
    }
    Ok(Outcome::Good)
}

/// Whether two names are of one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}
