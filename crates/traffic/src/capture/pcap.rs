//! The older form: a header, and then records.

use std::io::{self, Read};

use pcap_parser::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

use super::reader::{Captured, Fault, Step};
use super::window::Window;
use super::{ByteOrder, CAPTURED_BYTES_MAX, FRAME_BYTES_MAX, Flaw, LinkType};

/// Micro- and nanoseconds in either byte order.
pub(super) const MAGICS: [[u8; 4]; 4] =
    [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4], [0x4d, 0x3c, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d]];

const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;

/// A record that is searched for holds an Ethernet header at least.
const FOUND_BYTES_MIN: u32 = 14;
/// And is within a day of its neighbours.
const FOUND_WITHIN_S: u32 = 24 * 60 * 60;

#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    ns_per_unit: u64,
    last_s: Option<u32>,
}

impl Pcap {
    pub(super) fn open<R: Read>(window: &mut Window<R>) -> Result<Self, Fault> {
        let bytes = window.peek(FILE_HEADER_BYTES)?;
        let cut = Flaw::CutShort {
            what: "the file header",
            wanted: FILE_HEADER_BYTES as u64,
            there: bytes.len() as u64,
        };
        let (_, header) = parse_pcap_header(bytes).map_err(|_| Fault::Lost(cut))?;
        let (major, minor) = (header.version_major, header.version_minor);
        // Before 2.3, the two lengths of a packet stood the other way round.
        if major != 2 || minor < 3 {
            return Err(Fault::Lost(Flaw::Version { major, minor }));
        }
        // The upper half says whether frames end with an FCS.
        let link_type = LinkType(header.network.0 as u16);
        if link_type != LinkType::ETHERNET {
            return Err(Fault::Lost(Flaw::LinkType(link_type)));
        }
        window.consume(FILE_HEADER_BYTES);
        Ok(Self {
            order: if header.is_bigendian() { ByteOrder::Big } else { ByteOrder::Little },
            ns_per_unit: if header.is_nanosecond_precision() { 1 } else { 1000 },
            last_s: None,
        })
    }

    /// The next record.
    pub(super) fn step<R: Read>(
        &mut self,
        window: &mut Window<R>,
        frame: &mut Vec<u8>,
    ) -> Result<Step, Fault> {
        let what = "a packet";
        let bytes = window.peek(RECORD_HEADER_BYTES)?;
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        let wanted = RECORD_HEADER_BYTES as u64;
        if bytes.len() < RECORD_HEADER_BYTES {
            return Err(Fault::Lost(Flaw::CutShort { what, wanted, there: bytes.len() as u64 }));
        }
        let captured = self.order.u32_at(bytes, 8);
        if captured > CAPTURED_BYTES_MAX {
            return Err(Fault::Lost(Flaw::PacketLength { bytes: captured, most: CAPTURED_BYTES_MAX }));
        }
        let total = RECORD_HEADER_BYTES + captured as usize;
        let bytes = window.peek(total)?;
        let cut = Flaw::CutShort { what, wanted: total as u64, there: bytes.len() as u64 };
        let parsed = match self.order {
            ByteOrder::Little => parse_pcap_frame(bytes),
            ByteOrder::Big => parse_pcap_frame_be(bytes),
        };
        let (_, record) = parsed.map_err(|_| Fault::Lost(cut))?;
        let usable = record.data.len() <= FRAME_BYTES_MAX;
        if usable {
            frame.extend_from_slice(record.data);
        }
        let ns = u64::from(record.ts_sec) * 1_000_000_000 + u64::from(record.ts_usec) * self.ns_per_unit;
        let original_bytes = record.origlen.max(captured);
        self.last_s = Some(record.ts_sec);
        window.consume(total);
        if !usable {
            return Err(Fault::Unusable(Flaw::FrameLength(captured)));
        }
        Ok(Step::Frame(Captured { ns: Some(ns), original_bytes }))
    }

    /// Goes on to the next place that is a record beyond doubt: one that could be, and behind which the file ends or
    /// another one follows. False if there is none.
    pub(super) fn find_next<R: Read>(&mut self, window: &mut Window<R>) -> io::Result<bool> {
        loop {
            window.consume(1);
            let bytes = window.peek(RECORD_HEADER_BYTES)?;
            if bytes.len() < RECORD_HEADER_BYTES {
                window.consume(RECORD_HEADER_BYTES);
                return Ok(false);
            }
            let Some((total, second)) = self.could_be(bytes, self.last_s) else { continue };
            let bytes = window.peek(total + RECORD_HEADER_BYTES)?;
            let Some(behind) = bytes.get(total..) else { continue };
            // A record at the very end has no neighbour behind it, so it needs one before.
            let last = behind.is_empty() && self.last_s.is_some();
            if last || behind.len() >= RECORD_HEADER_BYTES && self.could_be(behind, Some(second)).is_some() {
                return Ok(true);
            }
        }
    }

    /// Length and second of the record whose header this could be.
    fn could_be(&self, header: &[u8], near_s: Option<u32>) -> Option<(usize, u32)> {
        let field = |at| self.order.u32_at(header, at);
        let (second, fraction, captured, original) = (field(0), field(4), field(8), field(12));
        let good = (FOUND_BYTES_MIN..=FRAME_BYTES_MAX as u32).contains(&captured)
            && (captured..=CAPTURED_BYTES_MAX).contains(&original)
            && u64::from(fraction) * self.ns_per_unit < 1_000_000_000
            && near_s.is_none_or(|near| near.abs_diff(second) <= FOUND_WITHIN_S);
        good.then_some((RECORD_HEADER_BYTES + captured as usize, second))
    }
}
