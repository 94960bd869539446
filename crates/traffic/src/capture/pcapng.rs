//! The newer form: blocks, in sections.
//!
//! The lengths of blocks are checked here, before anything is parsed. Packet blocks are read here too: the parser
//! allocates for the options of each, reads on forever where a packet is longer than its block, and does not know the
//! obsolete packet block. Times are computed here: its resolutions lack the powers of two, and its offsets are always
//! little-endian (pcap-parser 0.17.0, `src/pcapng/time.rs`).

use std::io::{self, Read};

use pcap_parser::{
    InterfaceDescriptionBlock, OptionCode, parse_interfacedescriptionblock_be,
    parse_interfacedescriptionblock_le, parse_sectionheaderblock,
};

use super::reader::{Captured, Fault, Step};
use super::window::Window;
use super::{ByteOrder, CAPTURED_BYTES_MAX, FRAME_BYTES_MAX, Flaw, LinkType};

/// The type of a section header, which is the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Behind the type and the length of a section header.
const BYTE_ORDER_MARK: u32 = 0x1a2b_3c4d;

/// Type, length, and the length again at the end.
const FRAME_OF_BLOCK_BYTES: u32 = 12;
/// Before the data of an enhanced or an old packet block.
const PACKET_DATA_AT: usize = 28;
/// Before the data of a simple packet block.
const SIMPLE_DATA_AT: usize = 12;

/// Section headers and interfaces, whose options are held for a moment.
const HEADER_BLOCK_BYTES_MAX: u32 = 128 * 1024;
/// A packet with its options. As much is held, twice at most.
const PACKET_BLOCK_BYTES_MAX: u32 = 2 * CAPTURED_BYTES_MAX;
/// Blocks that are not looked at: of secrets or names. More than the packet blocks are not held.
const OTHER_BLOCK_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// More than any capture has.
const INTERFACES_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    /// Of the section, by number. None: not readable.
    interfaces: Vec<Option<Interface>>,
    /// Something was skipped in this section, and it may have been an interface.
    skipped: bool,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link_type: LinkType,
    /// 0 is none.
    snap_bytes: u32,
    resolution: Resolution,
    offset_s: i64,
}

/// From the ticks of an interface to ns.
#[derive(Debug, Clone, Copy)]
enum Resolution {
    /// So many ns.
    Times(u64),
    /// So many to a ns; 0 is more than 64 bits hold.
    Over(u64),
    /// 2 to this power to a second.
    Binary(u32),
}

impl Pcapng {
    pub(super) fn open<R: Read>(window: &mut Window<R>) -> Result<Self, Fault> {
        let mut pcapng = Self { order: ByteOrder::Little, interfaces: Vec::new(), skipped: false };
        pcapng.step(window, &mut Vec::new())?;
        Ok(pcapng)
    }

    /// The next block.
    pub(super) fn step<R: Read>(
        &mut self,
        window: &mut Window<R>,
        frame: &mut Vec<u8>,
    ) -> Result<Step, Fault> {
        let bytes = window.peek(FRAME_OF_BLOCK_BYTES as usize)?;
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        if bytes.len() < FRAME_OF_BLOCK_BYTES as usize {
            return Err(Fault::Lost(cut_short(FRAME_OF_BLOCK_BYTES, bytes.len() as u64)));
        }
        let start = self.start_of(bytes).map_err(Fault::Lost)?;
        if start.bytes > PACKET_BLOCK_BYTES_MAX {
            return skip_long(window, start);
        }
        let block = window.peek(start.bytes as usize)?;
        let there = block.len() as u64;
        let block = block.get(..start.bytes as usize).ok_or(Fault::Lost(cut_short(start.bytes, there)))?;
        check_end(start, &block[block.len() - 4..]).map_err(Fault::Lost)?;
        let step = self.block(start, block, frame);
        window.consume(start.bytes as usize);
        step.map_err(Fault::Unusable)
    }

    /// Goes on to the next place that is a block beyond doubt: a known type, a length that its end repeats. False if
    /// there is none.
    pub(super) fn find_next<R: Read>(&mut self, window: &mut Window<R>) -> io::Result<bool> {
        self.skipped = true;
        loop {
            window.consume(1);
            let bytes = window.peek(FRAME_OF_BLOCK_BYTES as usize)?;
            if bytes.len() < FRAME_OF_BLOCK_BYTES as usize {
                window.consume(FRAME_OF_BLOCK_BYTES as usize);
                return Ok(false);
            }
            let Ok(start) = self.start_of(bytes) else { continue };
            if !matches!(start.kind, 1..=6 | SECTION_HEADER) || start.bytes > PACKET_BLOCK_BYTES_MAX {
                continue;
            }
            let end = start.bytes as usize;
            if window.peek(end)?.get(end - 4..end).is_some_and(|behind| check_end(start, behind).is_ok()) {
                return Ok(true);
            }
        }
    }

    /// Type, length and byte order of the block that begins with these 12 bytes.
    fn start_of(&self, bytes: &[u8]) -> Result<Start, Flaw> {
        let order = if bytes.starts_with(&MAGIC) { byte_order(bytes)? } else { self.order };
        let start = Start { order, kind: order.u32_at(bytes, 0), bytes: order.u32_at(bytes, 4) };
        let possible = match start.kind {
            SECTION_HEADER => 28..=HEADER_BLOCK_BYTES_MAX,
            INTERFACE => 20..=HEADER_BLOCK_BYTES_MAX,
            OLD_PACKET | ENHANCED_PACKET => 32..=PACKET_BLOCK_BYTES_MAX,
            SIMPLE_PACKET => 16..=PACKET_BLOCK_BYTES_MAX,
            _ => FRAME_OF_BLOCK_BYTES..=OTHER_BLOCK_BYTES_MAX,
        };
        if possible.contains(&start.bytes) && start.bytes.is_multiple_of(4) {
            Ok(start)
        } else {
            Err(Flaw::BlockLength { kind: start.kind, bytes: start.bytes })
        }
    }

    /// Reads a whole block.
    fn block(&mut self, start: Start, block: &[u8], frame: &mut Vec<u8>) -> Result<Step, Flaw> {
        match start.kind {
            SECTION_HEADER => self.section(start, block).map(|()| Step::Other),
            INTERFACE => self.interface(block).map(|()| Step::Other),
            OLD_PACKET | ENHANCED_PACKET => self.packet(start.kind, block, frame).map(Step::Frame),
            SIMPLE_PACKET => self.simple_packet(block, frame).map(Step::Frame),
            _ => Ok(Step::Other),
        }
    }

    fn section(&mut self, start: Start, block: &[u8]) -> Result<(), Flaw> {
        self.order = start.order;
        self.interfaces.clear();
        // If it is not understood, nor are the interfaces in it.
        self.skipped = true;
        let (_, header) = parse_sectionheaderblock(block).map_err(|_| Flaw::Options)?;
        if header.major_version != 1 {
            return Err(Flaw::Version { major: header.major_version, minor: header.minor_version });
        }
        self.skipped = false;
        Ok(())
    }

    fn interface(&mut self, block: &[u8]) -> Result<(), Flaw> {
        if self.skipped {
            // An interface, or a section, may be among what was skipped: from here on no number is certain.
            self.interfaces.clear();
            return Ok(());
        }
        if self.interfaces.len() >= INTERFACES_MAX {
            return Err(Flaw::Interfaces(INTERFACES_MAX));
        }
        let parsed = match self.order {
            ByteOrder::Little => parse_interfacedescriptionblock_le(block),
            ByteOrder::Big => parse_interfacedescriptionblock_be(block),
        };
        let interface = parsed.ok().and_then(|(_, described)| Interface::new(&described, self.order));
        self.interfaces.push(interface);
        interface.map(|_| ()).ok_or(Flaw::Options)
    }

    fn packet(&mut self, kind: u32, block: &[u8], frame: &mut Vec<u8>) -> Result<Captured, Flaw> {
        let field = |at| self.order.u32_at(block, at);
        // The obsolete block has a count of drops in the other half.
        let number = if kind == OLD_PACKET { self.order.u16_at(block, 8).into() } else { field(8) };
        let interface = self.ethernet(number)?;
        let ticks = u64::from(field(12)) << 32 | u64::from(field(16));
        let (captured, original) = (field(20), field(24));
        take(&block[PACKET_DATA_AT..block.len() - 4], captured, frame)?;
        Ok(Captured { ns: interface.ns(ticks), original_bytes: original.max(captured) })
    }

    fn simple_packet(&mut self, block: &[u8], frame: &mut Vec<u8>) -> Result<Captured, Flaw> {
        let interface = self.ethernet(0)?;
        let original = self.order.u32_at(block, 8);
        let captured = if interface.snap_bytes == 0 { original } else { original.min(interface.snap_bytes) };
        take(&block[SIMPLE_DATA_AT..block.len() - 4], captured, frame)?;
        Ok(Captured { ns: None, original_bytes: original })
    }

    fn ethernet(&self, number: u32) -> Result<Interface, Flaw> {
        let known = self.interfaces.len();
        let found = usize::try_from(number).ok().and_then(|number| self.interfaces.get(number).copied());
        let interface = found.flatten().ok_or(Flaw::UnknownInterface { interface: number, known })?;
        if interface.link_type == LinkType::ETHERNET {
            Ok(interface)
        } else {
            Err(Flaw::LinkType(interface.link_type))
        }
    }
}

/// What a block begins with.
#[derive(Debug, Clone, Copy)]
struct Start {
    order: ByteOrder,
    kind: u32,
    bytes: u32,
}

fn byte_order(section_header: &[u8]) -> Result<ByteOrder, Flaw> {
    let mark = ByteOrder::Big.u32_at(section_header, 8);
    match mark {
        BYTE_ORDER_MARK => Ok(ByteOrder::Big),
        _ if mark.swap_bytes() == BYTE_ORDER_MARK => Ok(ByteOrder::Little),
        _ => Err(Flaw::ByteOrder(mark)),
    }
}

/// The last four bytes of a block repeat its length.
fn check_end(start: Start, end: &[u8]) -> Result<(), Flaw> {
    let behind = start.order.u32_at(end, 0);
    if behind == start.bytes {
        Ok(())
    } else {
        Err(Flaw::Trailer { kind: start.kind, bytes: start.bytes, behind })
    }
}

/// A block that is too long to be held.
fn skip_long<R: Read>(window: &mut Window<R>, start: Start) -> Result<Step, Fault> {
    let before = u64::from(start.bytes - 4);
    let there = window.skip(before)?;
    let end = window.peek(4)?;
    if there < before || end.len() < 4 {
        return Err(Fault::Lost(cut_short(start.bytes, there + end.len() as u64)));
    }
    check_end(start, end).map_err(Fault::Lost)?;
    window.consume(4);
    Ok(Step::Other)
}

fn cut_short(wanted: u32, there: u64) -> Flaw {
    Flaw::CutShort { what: "a block", wanted: wanted.into(), there }
}

/// The packet at the start of `data`, which goes on with padding and options.
fn take(data: &[u8], captured: u32, frame: &mut Vec<u8>) -> Result<(), Flaw> {
    let packet = usize::try_from(captured).ok().and_then(|captured| data.get(..captured));
    let packet = packet.ok_or(Flaw::PacketLength { bytes: captured, most: data.len() as u32 })?;
    if packet.len() > FRAME_BYTES_MAX {
        return Err(Flaw::FrameLength(captured));
    }
    frame.extend_from_slice(packet);
    Ok(())
}

impl Interface {
    /// None if options are damaged: those that matter might be among what is lost.
    fn new(described: &InterfaceDescriptionBlock<'_>, order: ByteOrder) -> Option<Self> {
        let mut interface = Self {
            link_type: LinkType(described.linktype.0 as u16),
            snap_bytes: described.snaplen,
            resolution: Resolution::new(6),
            offset_s: 0,
        };
        let mut option_bytes = described.block_len1 as usize - 20;
        for option in &described.options {
            option_bytes = option_bytes.checked_sub(4 + option.value.len())?;
            let value = option.as_bytes().ok()?;
            match option.code {
                OptionCode::EndOfOpt => return Some(interface),
                OptionCode::IfTsresol => interface.resolution = Resolution::new(*value.first()?),
                OptionCode::IfTsoffset => {
                    let value = value.try_into().ok()?;
                    interface.offset_s = match order {
                        ByteOrder::Little => i64::from_le_bytes(value),
                        ByteOrder::Big => i64::from_be_bytes(value),
                    };
                }
                _ => {}
            }
        }
        // The parser stops at an option that is none, without a word.
        (option_bytes == 0).then_some(interface)
    }

    fn ns(&self, ticks: u64) -> Option<u64> {
        let ns = match self.resolution {
            Resolution::Times(ns) => i128::from(ticks) * i128::from(ns),
            Resolution::Over(ticks_per_ns) => ticks.checked_div(ticks_per_ns).unwrap_or(0).into(),
            Resolution::Binary(power) => (i128::from(ticks) * 1_000_000_000) >> power,
        };
        u64::try_from(ns + i128::from(self.offset_s) * 1_000_000_000).ok()
    }
}

impl Resolution {
    /// As in the option `if_tsresol`.
    fn new(code: u8) -> Self {
        match code {
            0..=9 => Self::Times(10_u64.pow(9 - u32::from(code))),
            10..=127 => Self::Over(10_u64.checked_pow(u32::from(code) - 9).unwrap_or(0)),
            128..=255 => Self::Binary(u32::from(code) - 128),
        }
    }
}
