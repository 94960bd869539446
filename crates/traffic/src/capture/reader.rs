//! The reader of both kinds of files.

use std::io::{self, Read};

use super::pcap::{self, Pcap};
use super::pcapng::{self, Pcapng};
use super::window::Window;
use super::{CaptureError, Flaw};

/// Reads the frames of a capture, one after the other. It reads ahead itself: a plain file is fine.
///
/// Memory is bounded by the longest block that is held: 1 MiB, and as much again for the options of an interface.
/// Frames cost no allocation.
#[derive(Debug)]
pub struct CaptureReader<R> {
    pub(super) window: Window<R>,
    form: Form,
    keep_going: bool,
    ended: bool,
    skipped: Skipped,
    skipped_to: Option<u64>,
    out_of_order: u64,
    last_ns: Option<u64>,
}

#[derive(Debug)]
enum Form {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

/// What a capture says of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// When, in ns since 1970. None where the file does not say (simple packet blocks), or says a time that 64 bits
    /// do not hold: before 1970 or after 2554.
    pub ns: Option<u64>,
    /// Its length on the wire, never less than what is there. More than that where a snap length cut it.
    pub original_bytes: u32,
}

/// What was skipped in a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Stretches without a gap between them. Each may have held any number of packets.
    pub places: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Where the first begins, and what is wrong there.
    pub first: Option<(u64, Flaw)>,
}

/// What a record or block was.
pub(super) enum Step {
    Frame(Captured),
    Other,
    End,
}

/// Why a record or block is none.
pub(super) enum Fault {
    Read(io::Error),
    /// It is none, and where the next begins is not known. Nothing of it is consumed, but of a long block that
    /// was skipped.
    Lost(Flaw),
    /// It cannot be used, and was consumed.
    Unusable(Flaw),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads the header of a file, and thereby decides what it is.
    ///
    /// # Errors
    /// If it is no capture, or one that does not begin as it must; a pcap file also if it is not of Ethernet.
    pub fn open(reader: R) -> Result<Self, CaptureError> {
        let mut window = Window::new(reader);
        let form = begin(&mut window).map_err(|stop| match stop {
            Stop::Not(what) => CaptureError::NotACapture(what),
            Stop::Fault(Fault::Read(source)) => CaptureError::Read { offset: window.offset(), source },
            Stop::Fault(Fault::Lost(flaw) | Fault::Unusable(flaw)) => {
                CaptureError::Flawed { offset: 0, flaw }
            }
        })?;
        Ok(Self {
            window,
            form,
            keep_going: false,
            ended: false,
            skipped: Skipped::default(),
            skipped_to: None,
            out_of_order: 0,
            last_ns: None,
        })
    }

    /// Whether damage is skipped and counted, not an error. A file that cannot be read any further still is one.
    #[must_use]
    pub fn keep_going(mut self, yes: bool) -> Self {
        self.keep_going = yes;
        self
    }

    /// Puts the next frame into `frame`, without FCS, in place of what was there. None at the end of the file, and
    /// behind an error.
    ///
    /// # Errors
    /// What is wrong, and at which byte. The frames before are good.
    pub fn next_frame(&mut self, frame: &mut Vec<u8>) -> Result<Option<Captured>, CaptureError> {
        frame.clear();
        while !self.ended {
            let offset = self.window.offset();
            let step = match &mut self.form {
                Form::Pcap(pcap) => pcap.step(&mut self.window, frame),
                Form::Pcapng(pcapng) => pcapng.step(&mut self.window, frame),
            };
            match step {
                Ok(Step::Frame(captured)) => {
                    self.note_time(captured.ns);
                    return Ok(Some(captured));
                }
                Ok(Step::Other) => {}
                Ok(Step::End) => self.ended = true,
                Err(fault) => self.overcome(offset, fault)?,
            }
        }
        Ok(None)
    }

    /// What was skipped until now; nothing unless the reader keeps going.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Frames until now whose time is before that of the frame in front of them.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    fn note_time(&mut self, ns: Option<u64>) {
        if let Some(ns) = ns {
            self.out_of_order += u64::from(self.last_ns.is_some_and(|last| ns < last));
            self.last_ns = Some(ns);
        }
    }

    /// Finds the next record behind a fault, or ends.
    fn overcome(&mut self, offset: u64, fault: Fault) -> Result<(), CaptureError> {
        let (flaw, lost) = match fault {
            Fault::Read(source) => {
                self.ended = true;
                return Err(CaptureError::Read { offset: self.window.offset(), source });
            }
            Fault::Lost(flaw) => (flaw, true),
            Fault::Unusable(flaw) => (flaw, false),
        };
        if !self.keep_going {
            self.ended = true;
            return Err(CaptureError::Flawed { offset, flaw });
        }
        let found = match &mut self.form {
            _ if !lost => Ok(true),
            Form::Pcap(pcap) => pcap.find_next(&mut self.window),
            Form::Pcapng(pcapng) => pcapng.find_next(&mut self.window),
        };
        let end = self.window.offset();
        self.skipped.places += u64::from(self.skipped_to != Some(offset));
        self.skipped.bytes += end - offset;
        self.skipped.first.get_or_insert((offset, flaw));
        self.skipped_to = Some(end);
        self.ended = !matches!(found, Ok(true));
        found.map(|_| ()).map_err(|source| CaptureError::Read { offset: end, source })
    }
}

enum Stop {
    Not(String),
    Fault(Fault),
}

fn begin<R: Read>(window: &mut Window<R>) -> Result<Form, Stop> {
    let start = window.peek(4).map_err(|error| Stop::Fault(Fault::Read(error)))?;
    let Some(&magic) = start.first_chunk::<4>() else {
        return Err(Stop::Not(format!("it has {} bytes", start.len())));
    };
    let form = if pcap::MAGICS.contains(&magic) {
        Pcap::open(window).map(Form::Pcap)
    } else if magic == pcapng::MAGIC {
        Pcapng::open(window).map(Form::Pcapng)
    } else {
        return Err(Stop::Not(guess(magic)));
    };
    form.map_err(Stop::Fault)
}

/// What a file is that is no capture.
fn guess(magic: [u8; 4]) -> String {
    let compressed = |with, unpack| format!("it is compressed with {with}; unpack it first: {unpack}");
    match magic {
        [0x1f, 0x8b, ..] => compressed("gzip", "gzip -dc FILE"),
        [0x28, 0xb5, 0x2f, 0xfd] => compressed("Zstandard", "zstd -dc FILE"),
        [0xfd, b'7', b'z', b'X'] => compressed("xz", "xz -dc FILE"),
        [0x04, 0x22, 0x4d, 0x18] => compressed("LZ4", "lz4 -dc FILE"),
        [b'B', b'Z', b'h', _] => compressed("bzip2", "bzip2 -dc FILE"),
        [0x34, 0xcd, 0xb2, 0xa1] | [0xa1, 0xb2, 0xcd, 0x34] => {
            "it is of the variant of pcap with longer packet headers; `editcap -F pcap IN OUT` converts it"
                .to_owned()
        }
        [b's', b'n', b'o', b'o'] => "it is a snoop file; `editcap -F pcap IN OUT` converts it".to_owned(),
        [a, b, c, d] => format!("it begins with the bytes {a:02x} {b:02x} {c:02x} {d:02x}"),
    }
}
