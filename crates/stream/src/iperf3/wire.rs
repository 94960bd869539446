//! What goes over the wire but for the meaning of its JSON: cookie, states, frames, hello and datagram header.
//!
//! Read from iperf3 3.12 and 3.21 (src/iperf_api.h, iperf_api.c, iperf_udp.c, iperf_util.c).

use std::fmt;
use std::io::{self, Read, Write};

use serde_json::Value;

use super::error::WireError;

/// Bytes of a cookie: 36 characters and a NUL.
pub const COOKIE_BYTES: usize = 37;
/// What a server takes as parameters at most (`MAX_PARAMS_JSON_STRING`, iperf_api.h 3.21).
pub const PARAMETERS_BYTES_MAX: u32 = 8 * 1024;
/// What this implementation takes as results at most: 256 streams and the whole output of a server that reported every
/// 0.1 s for an hour stay below it. iperf3 itself has no bound.
pub const RESULTS_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// The characters of a cookie (`make_cookie`, iperf_util.c).
const COOKIE_CHARACTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// What tells one test of a server from another: the first thing on each of its TCP connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie([u8; COOKIE_BYTES]);

impl Cookie {
    /// A new one, from the kernel's random numbers: who cannot read it cannot join a test.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; COOKIE_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        for byte in &mut bytes {
            *byte = COOKIE_CHARACTERS[usize::from(*byte % 32)];
        }
        bytes[COOKIE_BYTES - 1] = 0;
        Ok(Self(bytes))
    }

    /// One that came over a connection. Only printable ASCII that ends with a NUL is a cookie; other implementations use
    /// other characters than iperf3 does.
    pub fn parse(bytes: [u8; COOKIE_BYTES]) -> Result<Self, WireError> {
        let (last, characters) = (bytes[COOKIE_BYTES - 1], &bytes[..COOKIE_BYTES - 1]);
        if last == 0 && characters.iter().all(u8::is_ascii_graphic) {
            Ok(Self(bytes))
        } else {
            Err(WireError::Cookie)
        }
    }

    /// As it goes over the wire.
    pub fn as_bytes(&self) -> &[u8; COOKIE_BYTES] {
        &self.0
    }

    /// Without the NUL.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0[..COOKIE_BYTES - 1]).unwrap_or_default() // ASCII by construction
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cookie({})", self.as_str())
    }
}

/// The byte by which each end tells the other where a test is (iperf_api.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum State {
    /// The server counts from here.
    TestStart = 1,
    /// Data may flow.
    TestRunning = 2,
    /// The client has ended the test.
    TestEnd = 4,
    /// The server wants the parameters.
    ParamExchange = 9,
    /// The server wants the streams.
    CreateStreams = 10,
    /// The server ends, without results.
    ServerTerminate = 11,
    /// The client ends, without results.
    ClientTerminate = 12,
    /// The server wants the client's results, and sends its own after them.
    ExchangeResults = 13,
    /// The server has sent its results.
    DisplayResults = 14,
    /// Nothing has begun.
    IperfStart = 15,
    /// The client has all that it wanted.
    IperfDone = 16,
    /// The server is busy, or refuses.
    AccessDenied = -1,
    /// The server failed: two numbers of 32 bits follow, iperf3's own and `errno`.
    ServerError = -2,
}

impl State {
    const ALL: [Self; 13] = [
        Self::TestStart,
        Self::TestRunning,
        Self::TestEnd,
        Self::ParamExchange,
        Self::CreateStreams,
        Self::ServerTerminate,
        Self::ClientTerminate,
        Self::ExchangeResults,
        Self::DisplayResults,
        Self::IperfStart,
        Self::IperfDone,
        Self::AccessDenied,
        Self::ServerError,
    ];

    /// The byte on the wire.
    pub fn byte(self) -> u8 {
        (self as i8).cast_unsigned()
    }

    /// What a byte means.
    pub fn parse(byte: u8) -> Result<Self, WireError> {
        Self::ALL.into_iter().find(|state| state.byte() == byte).ok_or(WireError::State(byte.cast_signed()))
    }
}

/// Reads one state.
pub fn read_state(from: &mut impl Read) -> Result<State, WireError> {
    let mut byte = [0];
    from.read_exact(&mut byte).map_err(|source| WireError::io("read a state", source))?;
    State::parse(byte[0])
}

/// Writes one state.
pub fn write_state(to: &mut impl Write, state: State) -> Result<(), WireError> {
    to.write_all(&[state.byte()]).map_err(|source| WireError::io("write a state", source))
}

/// Tells a client why the server gives up: state, iperf3's number, and the kernel's.
pub fn write_error(to: &mut impl Write, number: i32, errno: i32) -> Result<(), WireError> {
    let mut message = [0; 9];
    message[0] = State::ServerError.byte();
    message[1..5].copy_from_slice(&number.to_be_bytes());
    message[5..9].copy_from_slice(&errno.to_be_bytes());
    to.write_all(&message).map_err(|source| WireError::io("write an error", source))
}

/// Reads the two numbers that follow [`State::ServerError`].
pub fn read_error(from: &mut impl Read) -> Result<(i32, i32), WireError> {
    let mut numbers = [0; 8];
    from.read_exact(&mut numbers)
        .map_err(|source| WireError::io("read what the server's error was", source))?;
    let [a, b, c, d, e, f, g, h] = numbers;
    Ok((i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h])))
}

/// Reads one frame of JSON: a length of 32 bits, and so many bytes. A length above `limit` is refused before anything is
/// allocated, and memory grows only as bytes arrive.
pub fn read_json(from: &mut impl Read, limit: u32) -> Result<Value, WireError> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(|source| WireError::io("read the length of a message", source))?;
    let length = u32::from_be_bytes(length);
    if length == 0 || length > limit {
        return Err(WireError::Length { length, limit });
    }
    let mut text = Vec::new();
    from.take(u64::from(length))
        .read_to_end(&mut text)
        .map_err(|source| WireError::io("read a message", source))?;
    if text.len() < length as usize {
        return Err(WireError::Truncated { got: text.len(), length });
    }
    // Some implementations count the NUL of their string.
    let text = text.strip_suffix(&[0]).unwrap_or(&text);
    serde_json::from_slice(text).map_err(WireError::Json)
}

/// Writes one frame of JSON.
pub fn write_json(to: &mut impl Write, value: &Value) -> Result<(), WireError> {
    let text = serde_json::to_vec(value).map_err(WireError::Json)?;
    let length = u32::try_from(text.len()).map_err(|_| WireError::TooLong(text.len()))?;
    let mut frame = Vec::with_capacity(4 + text.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&text);
    to.write_all(&frame).map_err(|source| WireError::io("write a message", source))
}

/// What a client sends from each of its UDP sockets first: the integer 0x36373839 of a little-endian host.
pub const HELLO: [u8; 4] = *b"9876";
/// What a server answers to it.
pub const REPLY: [u8; 4] = *b"6789";
/// What clients before 3.9 say: 123456789.
pub const HELLO_LEGACY: [u8; 4] = 123_456_789_u32.to_le_bytes();
/// What servers before 3.9 answer: 987654321.
pub const REPLY_LEGACY: [u8; 4] = 987_654_321_u32.to_le_bytes();

/// Whether a datagram is a hello: the old or the new one, of a client of either byte order. iperf3's server takes anything.
pub fn is_hello(datagram: &[u8]) -> bool {
    is_either(datagram, HELLO, HELLO_LEGACY)
}

/// Whether a datagram is a server's reply to a hello.
pub fn is_reply(datagram: &[u8]) -> bool {
    is_either(datagram, REPLY, REPLY_LEGACY)
}

/// What is answered to a hello: the old reply to the old one, in the client's byte order.
pub fn reply_to(hello: &[u8]) -> [u8; 4] {
    let reversed = |mut bytes: [u8; 4]| {
        bytes.reverse();
        bytes
    };
    if hello == HELLO_LEGACY {
        REPLY_LEGACY
    } else if hello == reversed(HELLO_LEGACY) {
        reversed(REPLY_LEGACY)
    } else if hello == reversed(HELLO) {
        reversed(REPLY)
    } else {
        REPLY
    }
}

fn is_either(datagram: &[u8], new: [u8; 4], old: [u8; 4]) -> bool {
    [new, old].iter().any(|known| datagram == known || datagram.iter().rev().eq(known.iter()))
}

/// The least that a datagram of iperf3 has (`MIN_UDP_BLOCKSIZE`).
pub const HEADER_BYTES: usize = 16;

/// What each datagram of data begins with: the sender's clock, and the number of the datagram, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Seconds of the sender's clock.
    pub seconds: u32,
    /// And microseconds.
    pub microseconds: u32,
    /// Its number; only the low 32 bits of it where `wide` is not agreed upon.
    pub number: u64,
}

impl Header {
    /// Reads the fields of a datagram; none if it is too short for them.
    pub fn parse(datagram: &[u8], wide: bool) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(datagram.get(at..at + 4)?.try_into().ok()?));
        let number = if wide {
            u64::from_be_bytes(datagram.get(8..16)?.try_into().ok()?)
        } else {
            u64::from(word(8)?)
        };
        Some(Self { seconds: word(0)?, microseconds: word(4)?, number })
    }

    /// Writes them: the first 12 bytes, or 16 where numbers are wide.
    pub fn write(&self, datagram: &mut [u8; HEADER_BYTES], wide: bool) {
        datagram[0..4].copy_from_slice(&self.seconds.to_be_bytes());
        datagram[4..8].copy_from_slice(&self.microseconds.to_be_bytes());
        if wide {
            datagram[8..16].copy_from_slice(&self.number.to_be_bytes());
        } else {
            // The low half: what iperf3 does with numbers above 2^32.
            datagram[8..12].copy_from_slice(&self.number.to_be_bytes()[4..]);
        }
    }
}

/// The number that a stream has in results: 1, 3, 4, 5 and so on (`iperf_add_stream` keeps the gap for old versions).
pub fn stream_id(index: usize) -> u64 {
    if index == 0 { 1 } else { index as u64 + 2 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cookie_is_36_characters_and_a_nul() {
        let cookie = Cookie::random().unwrap();
        assert_eq!(cookie.as_str().len(), 36);
        assert!(cookie.as_str().bytes().all(|byte| COOKIE_CHARACTERS.contains(&byte)));
        assert_eq!(cookie.as_bytes()[36], 0);
        assert_eq!(Cookie::parse(*cookie.as_bytes()).unwrap(), cookie);
        assert_ne!(Cookie::random().unwrap(), cookie);
    }

    #[test]
    fn what_ends_without_a_nul_is_no_cookie() {
        assert!(Cookie::parse([b'a'; COOKIE_BYTES]).is_err());
        assert!(Cookie::parse([0; COOKIE_BYTES]).is_err());
    }

    #[test]
    fn states_have_the_bytes_of_iperf3() {
        assert_eq!(State::AccessDenied.byte(), 0xff);
        assert_eq!(State::ServerError.byte(), 0xfe);
        assert_eq!(State::parse(13).unwrap(), State::ExchangeResults);
        for unused in [0, 3, 5, 6, 7, 8, 17, 0x80] {
            assert!(State::parse(unused).is_err());
        }
    }

    #[test]
    fn a_giant_length_is_refused_before_anything_is_read() {
        let mut only_length: &[u8] = &[0xff, 0xff, 0xff, 0xff];
        assert!(matches!(
            read_json(&mut only_length, PARAMETERS_BYTES_MAX),
            Err(WireError::Length { length: u32::MAX, limit: PARAMETERS_BYTES_MAX })
        ));
        assert!(matches!(read_json(&mut &[0_u8; 4][..], 10), Err(WireError::Length { length: 0, .. })));
    }

    #[test]
    fn a_frame_that_ends_early_says_how_much_came() {
        let mut frame: &[u8] = &[0, 0, 0, 5, b'{', b'}'];
        assert!(matches!(read_json(&mut frame, 100), Err(WireError::Truncated { got: 2, length: 5 })));
    }

    #[test]
    fn nested_without_end_is_an_error_and_no_overflow() {
        let text = "[".repeat(8000);
        let mut frame = (text.len() as u32).to_be_bytes().to_vec();
        frame.extend(text.bytes());
        assert!(matches!(read_json(&mut &frame[..], PARAMETERS_BYTES_MAX), Err(WireError::Json(_))));
    }

    #[test]
    fn hellos_are_answered_in_their_own_words() {
        assert!(is_hello(b"9876") && is_hello(b"6789") && is_hello(&HELLO_LEGACY));
        assert!(!is_hello(b"98765") && !is_hello(b"abcd") && !is_hello(b""));
        assert_eq!(reply_to(b"9876"), *b"6789");
        assert_eq!(reply_to(&HELLO_LEGACY), [0xb1, 0x68, 0xde, 0x3a]);
        assert!(is_reply(&[0xb1, 0x68, 0xde, 0x3a]) && is_reply(b"6789"));
    }

    #[test]
    fn ids_have_the_gap_of_iperf3() {
        assert_eq!((0..4).map(stream_id).collect::<Vec<_>>(), [1, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn a_header_comes_back(seconds: u32, microseconds: u32, number: u64) {
            let header = Header { seconds, microseconds, number };
            let mut bytes = [0; HEADER_BYTES];
            header.write(&mut bytes, true);
            prop_assert_eq!(Header::parse(&bytes, true), Some(header));
            header.write(&mut bytes, false);
            prop_assert_eq!(Header::parse(&bytes, false), Some(Header { number: number & 0xffff_ffff, ..header }));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_json(&mut &bytes[..], PARAMETERS_BYTES_MAX);
            let _ = read_state(&mut &bytes[..]);
            let _ = read_error(&mut &bytes[..]);
            let _ = (Header::parse(&bytes, false), Header::parse(&bytes, true));
            let _ = (is_hello(&bytes), is_reply(&bytes));
            if let Some(bytes) = bytes.first_chunk::<COOKIE_BYTES>() {
                let _ = Cookie::parse(*bytes);
            }
        }

        #[test]
        fn a_message_comes_back_and_any_part_of_it_is_an_error(text in ".{0,60}", cut in 0_usize..70) {
            let value = serde_json::json!({ "text": text });
            let mut frame = Vec::new();
            write_json(&mut frame, &value).unwrap();
            prop_assert_eq!(read_json(&mut &frame[..], 1000).unwrap(), value);
            if cut < frame.len() {
                prop_assert!(read_json(&mut &frame[..cut], 1000).is_err());
            }
        }
    }
}
