//! What can be wrong in a capture file.

use std::io;

use thiserror::Error;

use super::{FRAME_BYTES_MAX, LinkType};

/// Why a capture cannot be read, or not further. The frames before are good.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file could not be read.
    #[error("read the capture at byte {offset}: {source}")]
    Read {
        /// Where in the file.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// It is something else.
    #[error("this is neither a pcap nor a pcapng file: {0}")]
    NotACapture(String),
    /// Something in it is wrong, or is not taken.
    #[error("at byte {offset} of the capture: {flaw}")]
    Flawed {
        /// Where in the file the packet, block or header begins.
        offset: u64,
        /// What is wrong.
        flaw: Flaw,
    },
}

/// What is wrong at a place of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Flaw {
    /// The end is missing.
    #[error(
        "the file ends inside {what}: {wanted} bytes are announced and {there} are there. It is incomplete: copy or \
         record it again, or keep going with the packets before"
    )]
    CutShort {
        /// What the file ends in.
        what: &'static str,
        /// How long it is.
        wanted: u64,
        /// How much of it is in the file.
        there: u64,
    },
    /// No packet is as long.
    #[error(
        "a packet of {bytes} bytes, where {most} is the most: a damaged length. Keep going to look for the next packet"
    )]
    PacketLength {
        /// What the packet's header says.
        bytes: u32,
        /// The most that it can be.
        most: u32,
    },
    /// No block of this type is as long.
    #[error(
        "a block of type {kind:#x} with an impossible length of {bytes} bytes. Keep going to look for the next block"
    )]
    BlockLength {
        /// Its type.
        kind: u32,
        /// What its start says.
        bytes: u32,
    },
    /// The two lengths of a block differ.
    #[error(
        "a block of type {kind:#x} has {bytes} bytes by its start and {behind} by its end. Keep going to look for the \
         next block"
    )]
    Trailer {
        /// Its type.
        kind: u32,
        /// Its length by its start.
        bytes: u32,
        /// Its length by its end.
        behind: u32,
    },
    /// The byte order of a section cannot be told.
    #[error(
        "a section header without its byte-order mark (found {0:#010x}). Keep going to look for the next block"
    )]
    ByteOrder(u32),
    /// A version of the format that is not known.
    #[error("version {major}.{minor} of the format is not known. `editcap IN OUT` may convert it")]
    Version {
        /// Before the dot.
        major: u16,
        /// Behind the dot.
        minor: u16,
    },
    /// The options of an interface cannot be read, and its times depend on them.
    #[error("the options of an interface are damaged. Keep going to skip its packets")]
    Options,
    /// More interfaces than any capture has.
    #[error("more than {0} interfaces in one section. Keep going to skip the packets of the others")]
    Interfaces(usize),
    /// A packet of an interface that is not described.
    #[error(
        "a packet of interface {interface}, which the file does not describe or not readably (it describes {known}). \
         Keep going to skip it"
    )]
    UnknownInterface {
        /// The number in the packet's block.
        interface: u32,
        /// How many are known.
        known: usize,
    },
    /// Not Ethernet.
    #[error("packets of link type {0}, and only Ethernet (1) can be sent. {hint}", hint = .0.hint())]
    LinkType(LinkType),
    /// A good packet that nothing can send.
    #[error(
        "a frame of {0} bytes; the longest that can be sent has {FRAME_BYTES_MAX}. Record with segmentation and \
         receive offloads off (`ethtool -K DEVICE tso off gso off gro off`), or keep going without it"
    )]
    FrameLength(u32),
}
