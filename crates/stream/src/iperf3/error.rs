//! What can go wrong between two ends that speak iperf3.

use std::io;

/// What was read is not what iperf3 sends, or could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A call on the control connection failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The first bytes are no cookie.
    #[error("the first 37 bytes are no cookie: is this a client of iperf3?")]
    Cookie,
    /// A byte that is no state.
    #[error("{0} is no state of iperf3")]
    State(i8),
    /// A state that has no place here.
    #[error("state {got:?} while waiting for {expected}")]
    Unexpected {
        /// What came.
        got: super::wire::State,
        /// What was waited for.
        expected: &'static str,
    },
    /// A length that is not taken.
    #[error("a message of {length} bytes is announced, between 1 and {limit} are taken")]
    Length {
        /// What was announced.
        length: u32,
        /// What is taken.
        limit: u32,
    },
    /// The connection ended within a message.
    #[error("the connection ended after {got} of {length} bytes of a message")]
    Truncated {
        /// What came.
        got: usize,
        /// What was announced.
        length: u32,
    },
    /// What is to be sent is longer than its length can say.
    #[error("a message of {0} bytes is longer than the protocol can say")]
    TooLong(usize),
    /// The text is no JSON.
    #[error("a message is no JSON: {0}")]
    Json(serde_json::Error),
    /// JSON without what has to be there.
    #[error("{0}")]
    Meaning(String),
}

impl WireError {
    pub(super) fn io(doing: &'static str, source: io::Error) -> Self {
        Self::Io { doing, source }
    }

    /// Whether the other end closed the connection, or has not said anything for as long as was waited.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// Why a server of iperf3 gives up: the number by which it tells its client (`i_errno`, iperf_api.h 3.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Refusal {
    /// Test duration too long.
    Duration = 5,
    /// Number of parallel streams too large.
    Streams = 6,
    /// Block size too large.
    BlockSize = 7,
    /// Socket buffer size too large.
    BufferSize = 8,
    /// MSS too large.
    Mss = 10,
    /// Bogus value for omit.
    Omit = 12,
    /// Burst too large.
    Burst = 15,
    /// SCTP is not spoken.
    NoSctp = 17,
    /// Block size of UDP.
    UdpBlockSize = 20,
    /// TOS.
    Tos = 21,
    /// More bits in a second are asked for than the server allows.
    TotalRate = 27,
    /// The client's duration is above what the server allows.
    ServerDuration = 37,
    /// An unknown message.
    Message = 110,
    /// Parameters could not be read.
    Parameters = 114,
    /// Results could not be read.
    Results = 117,
    /// Authorization failed.
    Authentication = 142,
    /// Nothing came for too long.
    Silence = 144,
    /// The test went on for longer than it should have.
    Expired = 160,
    /// Streams could not be made.
    CreateStream = 200,
    /// A stream could not be accepted.
    StreamAccept = 204,
}

/// What iperf3 means by one of its numbers, as far as a server sends it (iperf_error.c 3.21).
pub fn meaning(number: i32) -> &'static str {
    match number {
        5 => "test duration valid values are 0 to 86400 seconds",
        6 => "number of parallel streams too large (maximum = 128)",
        7 => "block size too large (maximum = 1048576 bytes)",
        8 => "socket buffer size too large (maximum = 536870912 bytes)",
        10 => "TCP MSS too large (maximum = 9216 bytes)",
        12 => "bogus value for --omit",
        15 => "invalid burst count (maximum = 1000)",
        17 => "no SCTP support available",
        20 => "block size invalid (minimum = 16 bytes, maximum = 65507 bytes)",
        21 => "bad TOS value (must be between 0 and 255 inclusive)",
        27 => "total required bandwidth is larger than server limit",
        30 => "idle timeout",
        37 => "client's requested duration exceeds the server's maximum permitted limit",
        109 => "control socket has closed unexpectedly",
        110 => "received an unknown control message",
        114 => "unable to receive parameters from client",
        117 => "unable to receive results",
        119 => "the client has terminated",
        120 => "the server has terminated",
        121 => "the server is busy running a test. try again later",
        134 | 142 => "test authorization failed",
        144 => "idle timeout for receiving data",
        160 => "server test duration expired",
        200 => "unable to create a new stream",
        204 => "unable to accept stream connection",
        208 => "stream has an invalid ID",
        _ => "an error that only iperf3 knows",
    }
}
