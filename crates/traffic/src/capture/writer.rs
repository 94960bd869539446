//! The writers. Both write nanoseconds and little-endian numbers.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use thiserror::Error;

use super::FRAME_BYTES_MAX;

/// Gathered before it is written.
const BUFFER_BYTES: usize = 64 * 1024;
const ETHERNET: u16 = 1;

/// The kinds of capture files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureFormat {
    /// `.pcap`, with the magic number of nanoseconds.
    Pcap,
    /// `.pcapng`: one section, one interface, enhanced packet blocks.
    Pcapng,
}

/// A name that does not say what the file is to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} says no format: the name of a capture ends with .pcap or .pcapng")]
pub struct UnknownExtension(pub String);

impl CaptureFormat {
    /// By the name's extension, in capitals or not.
    pub fn of_name(name: impl AsRef<Path>) -> Result<Self, UnknownExtension> {
        let name = name.as_ref();
        let extension = name.extension().map(|extension| extension.to_ascii_lowercase());
        match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("pcap") => Ok(Self::Pcap),
            Some("pcapng") => Ok(Self::Pcapng),
            _ => Err(UnknownExtension(name.display().to_string())),
        }
    }
}

/// Which way a frame went, seen from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// Writes a capture of either kind. It gathers what it writes: `out` can be a plain file.
#[derive(Debug)]
pub enum CaptureWriter<W: Write> {
    /// A pcap file.
    Pcap(PcapWriter<W>),
    /// A pcapng file.
    Pcapng(PcapngWriter<W>),
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the header.
    pub fn new(format: CaptureFormat, out: W) -> io::Result<Self> {
        Ok(match format {
            CaptureFormat::Pcap => Self::Pcap(PcapWriter::new(out)?),
            CaptureFormat::Pcapng => Self::Pcapng(PcapngWriter::new(out)?),
        })
    }

    /// Writes a frame, without FCS, and its time in ns since 1970.
    ///
    /// # Errors
    /// As the writers of the two kinds.
    pub fn write(&mut self, ns: u64, frame: &[u8]) -> io::Result<()> {
        self.write_passing(ns, frame, None)
    }

    /// The same, with its direction where the format holds one: pcapng does, pcap does not.
    ///
    /// # Errors
    /// As the writers of the two kinds.
    pub fn write_passing(&mut self, ns: u64, frame: &[u8], direction: Option<Direction>) -> io::Result<()> {
        match self {
            Self::Pcap(writer) => writer.write(ns, frame),
            Self::Pcapng(writer) => writer.write_passing(ns, frame, direction),
        }
    }

    /// Writes what is left. Without this call, an error at the very end goes unnoticed.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Pcap(writer) => writer.finish(),
            Self::Pcapng(writer) => writer.finish(),
        }
    }
}

/// Writes a pcap file.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    out: BufWriter<W>,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the header.
    pub fn new(out: W) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
        let mut header = [0; 24];
        put(&mut header, 0, 0xa1b2_3c4d_u32.to_le_bytes());
        put(&mut header, 4, 2_u16.to_le_bytes());
        put(&mut header, 6, 4_u16.to_le_bytes());
        put(&mut header, 16, (FRAME_BYTES_MAX as u32).to_le_bytes());
        put(&mut header, 20, u32::from(ETHERNET).to_le_bytes());
        out.write_all(&header)?;
        Ok(Self { out })
    }

    /// Writes a frame, without FCS, and its time in ns since 1970.
    ///
    /// # Errors
    /// If it cannot be written, if the frame is longer than [`FRAME_BYTES_MAX`], or if the time is after 7 February
    /// 2106, when the format's seconds end.
    pub fn write(&mut self, ns: u64, frame: &[u8]) -> io::Result<()> {
        let l2_bytes = checked(frame)?;
        let second = u32::try_from(ns / 1_000_000_000)
            .map_err(|_| invalid("a pcap file holds no time after 2106; write .pcapng"))?;
        let mut header = [0; 16];
        put(&mut header, 0, second.to_le_bytes());
        put(&mut header, 4, ((ns % 1_000_000_000) as u32).to_le_bytes());
        put(&mut header, 8, l2_bytes.to_le_bytes());
        put(&mut header, 12, l2_bytes.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(frame)
    }

    /// Writes what is left. Without this call, an error at the very end goes unnoticed.
    pub fn finish(self) -> io::Result<W> {
        finish(self.out)
    }
}

/// Writes a pcapng file.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    out: BufWriter<W>,
}

/// A section of unknown length, and one interface.
const SECTION_BYTES: usize = 28;
const INTERFACE_BYTES: usize = 20 + OPTIONS.len();
/// The name `perpacket` (option 2), times in units of 10⁻⁹ s (option 9), and the end of the options.
const OPTIONS: [u8; 28] = *b"\x02\x00\x09\x00perpacket\0\0\0\x09\x00\x01\x00\x09\0\0\0\0\0\0\0";
/// Flags of a packet (option 2), whose value is set at byte 4, and the end of the options.
const FLAGS_AND_END: [u8; 12] = *b"\x02\0\x04\0\0\0\0\0\0\0\0\0";

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header and the interface.
    pub fn new(out: W) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
        let mut section = [0; SECTION_BYTES];
        put(&mut section, 0, 0x0a0d_0d0a_u32.to_le_bytes());
        put(&mut section, 4, (SECTION_BYTES as u32).to_le_bytes());
        put(&mut section, 8, 0x1a2b_3c4d_u32.to_le_bytes());
        put(&mut section, 12, 1_u16.to_le_bytes());
        put(&mut section, 16, u64::MAX.to_le_bytes());
        put(&mut section, 24, (SECTION_BYTES as u32).to_le_bytes());
        out.write_all(&section)?;
        let mut interface = [0; INTERFACE_BYTES];
        put(&mut interface, 0, 1_u32.to_le_bytes());
        put(&mut interface, 4, (INTERFACE_BYTES as u32).to_le_bytes());
        put(&mut interface, 8, ETHERNET.to_le_bytes());
        put(&mut interface, 12, (FRAME_BYTES_MAX as u32).to_le_bytes());
        put(&mut interface, 16, OPTIONS);
        put(&mut interface, INTERFACE_BYTES - 4, (INTERFACE_BYTES as u32).to_le_bytes());
        out.write_all(&interface)?;
        Ok(Self { out })
    }

    /// Writes a frame, without FCS, and its time in ns since 1970.
    ///
    /// # Errors
    /// If it cannot be written, or if the frame is longer than [`FRAME_BYTES_MAX`].
    pub fn write(&mut self, ns: u64, frame: &[u8]) -> io::Result<()> {
        self.write_passing(ns, frame, None)
    }

    /// The same, with its direction: option `epb_flags` of the block, bits 0 and 1 (draft-ietf-opsawg-pcapng, section 4.3.1), which
    /// Wireshark shows as `frame.packet_flags_direction`.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_passing(&mut self, ns: u64, frame: &[u8], direction: Option<Direction>) -> io::Result<()> {
        let l2_bytes = checked(frame)?;
        let padding = frame.len().next_multiple_of(4) - frame.len();
        let options = direction.map(|direction| {
            let mut options = FLAGS_AND_END;
            options[4] = match direction {
                Direction::In => 1,
                Direction::Out => 2,
            };
            options
        });
        let options = options.as_ref().map_or(&[][..], |options| options);
        let block_bytes = 32 + l2_bytes + (padding + options.len()) as u32;
        let mut header = [0; 28];
        put(&mut header, 0, 6_u32.to_le_bytes());
        put(&mut header, 4, block_bytes.to_le_bytes());
        put(&mut header, 12, ((ns >> 32) as u32).to_le_bytes());
        put(&mut header, 16, (ns as u32).to_le_bytes());
        put(&mut header, 20, l2_bytes.to_le_bytes());
        put(&mut header, 24, l2_bytes.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(frame)?;
        self.out.write_all(&[0; 3][..padding])?;
        self.out.write_all(options)?;
        self.out.write_all(&block_bytes.to_le_bytes())
    }

    /// Writes what is left. Without this call, an error at the very end goes unnoticed.
    pub fn finish(self) -> io::Result<W> {
        finish(self.out)
    }
}

fn finish<W: Write>(mut out: BufWriter<W>) -> io::Result<W> {
    out.flush()?;
    let mut out = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    out.flush()?;
    Ok(out)
}

fn put<const N: usize>(header: &mut [u8], at: usize, field: [u8; N]) {
    header[at..at + N].copy_from_slice(&field);
}

fn checked(frame: &[u8]) -> io::Result<u32> {
    if frame.len() <= FRAME_BYTES_MAX {
        Ok(frame.len() as u32)
    } else {
        Err(invalid("a frame of more than 65,535 bytes cannot be written to a capture"))
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Captured;
    use super::super::tests::{NS, frames};
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for name in ["a.pcap", "b.PCAPNG"] {
            let format = CaptureFormat::of_name(name).unwrap();
            let mut writer = CaptureWriter::new(format, Vec::new()).unwrap();
            let mut expected = Vec::new();
            for l2_bytes in (0..70).chain([1514, FRAME_BYTES_MAX]) {
                let frame: Vec<u8> = (0..l2_bytes).map(|at| at as u8).collect();
                let ns = NS + l2_bytes as u64;
                writer.write(ns, &frame).unwrap();
                expected.push((Captured { ns: Some(ns), original_bytes: l2_bytes as u32 }, frame));
            }
            let too_long = writer.write(NS, &[0; FRAME_BYTES_MAX + 1]).unwrap_err();
            assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
            let file = writer.finish().unwrap();
            assert_eq!(frames(&file), expected, "{name}");
        }
    }

    #[test]
    fn a_direction_is_an_option_of_the_block() {
        let mut writer = CaptureWriter::new(CaptureFormat::Pcapng, Vec::new()).unwrap();
        writer.write_passing(NS, &[1; 61], Some(Direction::In)).unwrap();
        writer.write_passing(NS, &[2; 60], Some(Direction::Out)).unwrap();
        let file = writer.finish().unwrap();
        let seen: Vec<usize> = frames(&file).iter().map(|(_, frame)| frame.len()).collect();
        assert_eq!(seen, [61, 60]);
        let flags = |value| [2, 0, 4, 0, value, 0, 0, 0, 0, 0, 0, 0];
        let at = |value| file.windows(12).position(|window| window == flags(value)).unwrap();
        // Behind the first frame and its padding; at the end, but for the length of the block.
        assert_eq!(at(1), SECTION_BYTES + INTERFACE_BYTES + 28 + 64);
        assert_eq!(at(2), file.len() - 16);
        let mut plain = CaptureWriter::new(CaptureFormat::Pcap, Vec::new()).unwrap();
        plain.write_passing(NS, &[1; 60], Some(Direction::In)).unwrap();
        assert_eq!(frames(&plain.finish().unwrap()).len(), 1);
    }

    #[test]
    fn times_that_a_format_cannot_hold_are_refused() {
        let mut pcap = PcapWriter::new(Vec::new()).unwrap();
        assert!(pcap.write(4_294_967_295_999_999_999, &[0; 60]).is_ok());
        assert!(pcap.write(4_294_967_296_000_000_000, &[0; 60]).unwrap_err().to_string().contains(".pcapng"));
        let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
        pcapng.write(u64::MAX, &[0; 60]).unwrap();
        assert_eq!(frames(&pcapng.finish().unwrap())[0].0.ns, Some(u64::MAX));
    }

    #[test]
    fn the_name_says_the_format() {
        assert_eq!(CaptureFormat::of_name("/tmp/x.y.pcap"), Ok(CaptureFormat::Pcap));
        for name in ["x", "pcap", "x.cap", "x.pcap.gz", ""] {
            let message = CaptureFormat::of_name(name).unwrap_err().to_string();
            assert!(message.contains(".pcapng"), "{message}");
        }
    }

    #[test]
    fn a_write_that_fails_at_the_end_is_an_error_of_finish() {
        #[derive(Debug)]
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for format in [CaptureFormat::Pcap, CaptureFormat::Pcapng] {
            let mut writer = CaptureWriter::new(format, Full).unwrap();
            writer.write(NS, &[0; 60]).unwrap();
            assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
