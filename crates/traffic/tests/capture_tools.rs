//! Capture files as Wireshark's tools see them, where they are installed: what is written here they read, and what
//! they write is read here.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use traffic::capture::{CaptureFormat, CaptureReader, CaptureWriter, Captured};

const NS: u64 = 1_700_000_000_123_456_789;

#[test]
fn tshark_and_the_reader_agree_on_what_is_written() {
    let Some(folder) = Folder::new("tshark_and_the_reader_agree_on_what_is_written") else { return };
    for extension in ["pcap", "pcapng"] {
        let file = folder.write(extension);
        let seen: Vec<String> = read(&file).iter().map(|(captured, frame)| line(captured, frame)).collect();
        assert_eq!(seen.len(), 200);
        assert_eq!(tshark(&file), seen, "{extension}");
    }
}

#[test]
fn both_formats_are_the_same_capture_to_editcap() {
    let Some(folder) = Folder::new("both_formats_are_the_same_capture_to_editcap") else { return };
    let converted = folder.0.join("converted.pcap");
    editcap(&["-F", "nsecpcap"], &folder.write("pcapng"), &converted);
    let (ours, theirs) = (std::fs::read(folder.write("pcap")).unwrap(), std::fs::read(&converted).unwrap());
    // The file header says another snap length.
    assert!(ours[24..] == theirs[24..]);
    assert_eq!((&ours[..16], &ours[20..24]), (&theirs[..16], &theirs[20..24]));
}

#[test]
fn what_editcap_writes_is_read_as_tshark_reads_it() {
    let Some(folder) = Folder::new("what_editcap_writes_is_read_as_tshark_reads_it") else { return };
    let ours = folder.write("pcapng");
    for format in ["pcap", "nsecpcap", "pcapng", "modpcap"] {
        for cut in ["65535", "40"] {
            let file = folder.0.join(format!("{format}-{cut}"));
            editcap(&["-F", format, "-s", cut], &ours, &file);
            if format == "modpcap" {
                let error = CaptureReader::open(std::fs::File::open(&file).unwrap()).unwrap_err();
                assert!(error.to_string().contains("editcap"), "{error}");
                continue;
            }
            let frames = read(&file);
            let seen: Vec<String> = frames.iter().map(|(captured, frame)| line(captured, frame)).collect();
            assert_eq!(tshark(&file), seen, "{format}, cut at {cut}");
            let ours = read(&ours);
            for ((_, frame), (_, whole)) in frames.iter().zip(&ours) {
                assert_eq!(frame[..], whole[..frame.len()]);
            }
        }
    }
}

/// Time, length and captured length, as tshark prints them.
fn line(captured: &Captured, frame: &[u8]) -> String {
    let ns = captured.ns.unwrap();
    let (second, fraction) = (ns / 1_000_000_000, ns % 1_000_000_000);
    format!("{second}.{fraction:09}\t{}\t{}", captured.original_bytes, frame.len())
}

fn read(file: &Path) -> Vec<(Captured, Vec<u8>)> {
    let mut reader = CaptureReader::open(std::fs::File::open(file).unwrap()).unwrap();
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    while let Some(captured) = reader.next_frame(&mut frame).unwrap() {
        frames.push((captured, frame.clone()));
    }
    frames
}

fn tshark(file: &Path) -> Vec<String> {
    let fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.len", "-e", "frame.cap_len"];
    let output =
        Command::new("tshark").arg("-r").arg(file).args(fields).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn editcap(options: &[&str], from: &Path, to: &Path) {
    let output =
        Command::new("editcap").args(options).arg(from).arg(to).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A folder of a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    /// None, said aloud, where the tools are missing.
    fn new(test: &str) -> Option<Self> {
        if ["tshark", "editcap"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
            let note = format!("SKIPPED (needs tshark and editcap, Debian tshark): {test}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
            return None;
        }
        let folder = std::env::temp_dir().join(format!("traffic-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Some(Self(folder))
    }

    /// 200 frames of all remainders of four, some ns to some hours apart.
    fn write(&self, extension: &str) -> PathBuf {
        let path = self.0.join("ours").with_extension(extension);
        let format = CaptureFormat::of_name(&path).unwrap();
        let mut writer = CaptureWriter::new(format, std::fs::File::create(&path).unwrap()).unwrap();
        for number in 0..200_u64 {
            let l2_bytes = 14 + (number as usize * 7) % 1500;
            let frame: Vec<u8> = (0..l2_bytes).map(|at| (at as u64 * 31 + number) as u8).collect();
            writer.write(NS + number.pow(6), &frame).unwrap();
        }
        writer.finish().unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
