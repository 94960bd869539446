//! The capture reader with any file: what it gives is possible, the same however the file comes in, and is read back
//! after it was written.

#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use traffic::capture::{CaptureFormat, CaptureReader, CaptureWriter, Captured, FRAME_BYTES_MAX};

fuzz_target!(|file: &[u8]| {
    let strict = read(file, false, usize::MAX);
    let lenient = read(file, true, usize::MAX);
    assert!(lenient.starts_with(&strict), "keeping going changes what comes before the damage");
    assert_eq!(strict, read(file, false, 7));
    assert_eq!(lenient, read(file, true, 1000));
    for format in [CaptureFormat::Pcap, CaptureFormat::Pcapng] {
        written_and_read_back(&lenient, format);
    }
});

type Frames = Vec<(Captured, Vec<u8>)>;

/// What is in a file of which each call gives `at_once` bytes at most.
fn read(file: &[u8], keep_going: bool, at_once: usize) -> Frames {
    let Ok(reader) = CaptureReader::open(Pieces { file, at_once }) else { return Vec::new() };
    let mut reader = reader.keep_going(keep_going);
    let (mut frames, mut frame) = (Frames::new(), Vec::new());
    let mut bytes = 0;
    let complete = loop {
        match reader.next_frame(&mut frame) {
            Ok(Some(captured)) => {
                assert!(frame.len() <= FRAME_BYTES_MAX && captured.original_bytes as usize >= frame.len());
                bytes += frame.len();
                frames.push((captured, frame.clone()));
            }
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    assert_eq!(reader.next_frame(&mut frame).unwrap(), None);
    assert!(complete || !keep_going, "damage is an error although it is to be skipped");
    let skipped = reader.skipped();
    assert!(bytes as u64 + skipped.bytes <= file.len() as u64, "more bytes than the file has");
    assert_eq!(skipped.places > 0, skipped.first.is_some());
    assert!(keep_going || skipped.places == 0);
    frames
}

fn written_and_read_back(frames: &Frames, format: CaptureFormat) {
    let mut writer = CaptureWriter::new(format, Vec::new()).unwrap();
    let mut expected = Frames::new();
    for (captured, frame) in frames {
        let ns = captured.ns.unwrap_or_default();
        if writer.write(ns, frame).is_ok() {
            expected.push((Captured { ns: Some(ns), original_bytes: frame.len() as u32 }, frame.clone()));
        }
    }
    assert_eq!(read(&writer.finish().unwrap(), false, usize::MAX), expected);
}

struct Pieces<'a> {
    file: &'a [u8],
    at_once: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let most = out.len().min(self.at_once);
        self.file.read(&mut out[..most])
    }
}
