//! Capture files: read and written as a stream, in memory that does not grow with the file.
//!
//! [`CaptureReader`] reads pcap (micro- and nanoseconds) and pcapng, each in either byte order, and tells them apart by
//! their content. [`CaptureWriter`] writes both, with nanoseconds. Only Ethernet is taken. Frames are as they stand in the
//! file: a frame check sequence that a capture holds stays on.
//!
//! A damaged file ends with an error that names the byte and what is wrong there; all frames before it are good. With
//! [`CaptureReader::keep_going`] the reader looks for the next packet instead, and counts what it had to skip.
//!
//! | module | holds |
//! |---|---|
//! | `reader` | the reader of both kinds |
//! | `pcap`, `pcapng` | records and blocks, and where the next may begin in a damaged file |
//! | `window` | a bounded part of the file in memory |
//! | `flaw` | what can be wrong in a file |
//! | `link_type` | names of link types |
//! | `writer` | the writers |
//!
//! ```
//! use traffic::capture::{CaptureFormat, CaptureReader, CaptureWriter};
//!
//! let format = CaptureFormat::of_name("flows.pcapng")?;
//! let mut writer = CaptureWriter::new(format, Vec::new())?;
//! writer.write(1_700_000_000_123_456_789, &[0; 60])?;
//! let file = writer.finish()?;
//!
//! let mut reader = CaptureReader::open(&file[..])?;
//! let mut frame = Vec::new();
//! while let Some(captured) = reader.next_frame(&mut frame)? {
//!     assert_eq!((captured.ns, frame.len()), (Some(1_700_000_000_123_456_789), 60));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod flaw;
mod link_type;
mod pcap;
mod pcapng;
mod reader;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use flaw::{CaptureError, Flaw};
pub use link_type::LinkType;
pub use reader::{CaptureReader, Captured, Skipped};
pub use writer::{CaptureFormat, CaptureWriter, Direction, PcapWriter, PcapngWriter, UnknownExtension};

/// Longest frame that is read or written, without FCS: no backend sends a longer one.
pub const FRAME_BYTES_MAX: usize = 65_535;

/// Most bytes of a frame that a file may hold. Captures are taken with this snap length, so a longer one is a damaged
/// length; one between this and [`FRAME_BYTES_MAX`] is whole, and cannot be sent.
const CAPTURED_BYTES_MAX: u32 = 262_144;

/// The numbers in a file, in its byte order. What is read must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn u16_at(self, bytes: &[u8], at: usize) -> u16 {
        let number = [bytes[at], bytes[at + 1]];
        match self {
            Self::Little => u16::from_le_bytes(number),
            Self::Big => u16::from_be_bytes(number),
        }
    }

    fn u32_at(self, bytes: &[u8], at: usize) -> u32 {
        let number = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self {
            Self::Little => u32::from_le_bytes(number),
            Self::Big => u32::from_be_bytes(number),
        }
    }
}
