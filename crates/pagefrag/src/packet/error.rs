//! Why an operation on a packet was refused. By hand, as `core` alone has no derive for it.

use core::fmt;

/// An operation on a packet was refused. The packet is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketError {
    /// Less than that is free before the data.
    Headroom {
        /// What was asked for.
        bytes: usize,
        /// What there is.
        room: usize,
    },
    /// Less than that is free behind the data, or something is attached.
    Tailroom {
        /// What was asked for.
        bytes: usize,
        /// What there is.
        room: usize,
    },
    /// The head has fewer bytes than were to be taken off.
    Short {
        /// What was asked for.
        bytes: usize,
        /// What the head has.
        len: usize,
    },
    /// Another packet has the same bytes, or they are somebody else's: they cannot be written.
    Shared,
    /// Headroom is reserved before there is data.
    NotEmpty {
        /// What the packet has.
        len: usize,
    },
    /// No memory for a copy.
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Headroom { bytes, room } => write!(
                f,
                "push {bytes} bytes in front of a packet: it has {room} bytes of headroom; reserve more when it is made"
            ),
            PacketError::Tailroom { bytes, room } => write!(
                f,
                "{bytes} bytes behind the data of a packet: it has {room} bytes of tail room; take a larger buffer, or \
                 attach them"
            ),
            PacketError::Short { bytes, len } => write!(
                f,
                "pull {bytes} bytes off a packet: its head has {len}; make it linear first, or drop it as too short"
            ),
            PacketError::Shared => {
                write!(f, "write to a packet: others have the same bytes; copy them with make_mut first")
            }
            PacketError::NotEmpty { len } => {
                write!(
                    f,
                    "reserve headroom of a packet: it has {len} bytes already; reserve before data is put"
                )
            }
            PacketError::OutOfMemory { bytes } => {
                write!(f, "copy a packet into {bytes} bytes: no memory; drop it and try again with the next")
            }
        }
    }
}

impl core::error::Error for PacketError {}
