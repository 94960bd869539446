//! What is on the wire, as bytes and as values. Nothing here touches a socket.
//!
//! docs/protocol.md says the same byte by byte.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::outcome::{Interval, Side};
use crate::plan::Plan;

/// What every control connection begins with, in both directions.
pub const MAGIC: [u8; 8] = *b"PERPACKT";
/// The version that is spoken here.
pub const VERSION: u16 = 1;
/// Bytes of a hello, in this version and in all that will be.
pub const HELLO_BYTES: usize = 12;
/// The largest frame that a server takes, and that a client takes before a run.
pub const SMALL_FRAME: usize = 256 << 10;
/// The largest frame that a client takes once a run has begun: results.
pub const LARGE_FRAME: usize = 64 << 20;
/// What a data connection begins with: cookie and flow number.
pub const PREFACE_BYTES: usize = 20;
/// What a UDP socket says first: cookie, flow number and [`GREETING`].
pub const GREETING_BYTES: usize = 24;
/// The last bytes of it.
pub const GREETING: [u8; 4] = *b"HELO";

/// Fields of a hello.
const HELLO_MAGIC: Range<usize> = 0..8;
const HELLO_VERSION: Range<usize> = 8..10;
const HELLO_CODE: usize = 10;
/// Fields of a preface and a greeting.
const COOKIE: Range<usize> = 0..16;
const FLOW: Range<usize> = 16..20;
const WORD: Range<usize> = 20..24;

/// The first bytes of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version it speaks.
    pub version: u16,
    /// A [`Way`] from the client, an [`Answer`] from the server.
    pub code: u8,
}

impl Hello {
    /// As bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[HELLO_MAGIC].copy_from_slice(&MAGIC);
        bytes[HELLO_VERSION].copy_from_slice(&self.version.to_be_bytes());
        bytes[HELLO_CODE] = self.code;
        bytes
    }

    /// From bytes; `None` where they are another protocol's.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.get(..HELLO_BYTES)?.try_into().ok()?;
        (bytes[HELLO_MAGIC] == MAGIC)
            .then(|| Self { version: u16::from_be_bytes([bytes[8], bytes[9]]), code: bytes[HELLO_CODE] })
    }
}

/// How the client wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// Frames in the clear.
    Plain = 1,
    /// `Noise_NNpsk0`, and frames inside of it.
    Keyed = 2,
}

/// What the server says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// Go on.
    Welcome = 0,
    /// Another version than the one in this hello is not spoken here.
    OtherVersion = 1,
    /// Only who has the key may ask.
    KeyNeeded = 2,
    /// There is no key here.
    NoKeyHere = 3,
    /// As many clients as may be are here.
    Busy = 4,
    /// A way that is not known here.
    UnknownWay = 5,
}

impl Answer {
    /// From its code.
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        use Answer::*;
        [Welcome, OtherVersion, KeyNeeded, NoKeyHere, Busy, UnknownWay]
            .into_iter()
            .find(|&answer| answer as u8 == code)
    }
}

/// What says that a connection or a datagram belongs to a run: 16 random bytes, 32 hexadecimal digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie(pub [u8; 16]);

impl Cookie {
    /// What a data connection of this flow begins with.
    #[must_use]
    pub fn preface(self, flow: u32) -> [u8; PREFACE_BYTES] {
        let mut bytes = [0; PREFACE_BYTES];
        bytes[COOKIE].copy_from_slice(&self.0);
        bytes[FLOW].copy_from_slice(&flow.to_be_bytes());
        bytes
    }

    /// The flow number of a preface with this cookie.
    #[must_use]
    pub fn flow_of(self, preface: &[u8]) -> Option<u32> {
        // All bytes are compared, however many agree: how long it takes tells nothing.
        let differ = preface.get(COOKIE)?.iter().zip(self.0).fold(0, |differ, (a, b)| differ | (a ^ b));
        let flow = preface.get(FLOW)?.try_into().ok()?;
        (differ == 0).then(|| u32::from_be_bytes(flow))
    }

    /// What the UDP socket of this flow says first.
    #[must_use]
    pub fn greeting(self, flow: u32) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..PREFACE_BYTES].copy_from_slice(&self.preface(flow));
        bytes[WORD].copy_from_slice(&GREETING);
        bytes
    }

    /// Whether a datagram is the greeting of this flow.
    #[must_use]
    pub fn is_greeting(self, flow: u32, datagram: &[u8]) -> bool {
        datagram.len() == GREETING_BYTES && self.flow_of(datagram) == Some(flow) && datagram[WORD] == GREETING
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(…)")
    }
}

impl Serialize for Cookie {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Cookie {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        match u128::from_str_radix(&text, 16) {
            Ok(number) if is_hex => Ok(Self(number.to_be_bytes())),
            _ => Err(D::Error::custom("a cookie is 32 hexadecimal digits")),
        }
    }
}

/// A message of the control connection, as JSON in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Client, first: what is to be done.
    Plan(Box<Asked>),
    /// Server: where it expects data connections.
    Ready(Ready),
    /// Server: every flow is there.
    Connected,
    /// Client: its threads are ready.
    Begin,
    /// Server: it has begun.
    Begun,
    /// Either end, when it has nothing else to say: it is still there.
    Alive,
    /// Server: a period that is over.
    Progress(Box<Interval>),
    /// Either end: those of its flows that end by themselves have ended.
    Ended {
        /// Messages that each flow has sent; null where it does not send.
        sent: Vec<Option<u64>>,
    },
    /// Server, last: what it counted.
    Results(Box<Side>),
    /// Either end, last: why it goes no further.
    Error {
        /// In words.
        message: String,
    },
}

impl Message {
    /// Which one it is, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plan(_) => "plan",
            Self::Ready(_) => "ready",
            Self::Connected => "connected",
            Self::Begin => "begin",
            Self::Begun => "begun",
            Self::Alive => "alive",
            Self::Progress(_) => "progress",
            Self::Ended { .. } => "ended",
            Self::Results(_) => "results",
            Self::Error { .. } => "error",
        }
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// What is to flow.
    pub plan: Plan,
    /// How long each period is of which the server tells; null: none.
    pub interval: Option<Duration>,
    /// Whether the server is to account for CPU time.
    pub cpu: bool,
}

/// Where a server expects data connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// What each of them is to begin with.
    pub cookie: Cookie,
    /// TCP: one port, of all flows. UDP: the port of each flow.
    pub ports: Vec<u16>,
    /// A client that is silent for this long has vanished.
    pub idle: Duration,
}

/// A message as a frame: its length (u32, big-endian), and its JSON.
///
/// # Errors
/// It would be longer than `most` bytes.
pub fn frame(message: &Message, most: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|error| WireError::Text(error.to_string()))?;
    let length = bytes.len() - 4;
    let announced = u32::try_from(length).ok().filter(|_| length <= most);
    let announced = announced.ok_or(WireError::Length { length: length as u64, most })?;
    bytes[..4].copy_from_slice(&announced.to_be_bytes());
    Ok(bytes)
}

/// Puts frames together from bytes as they come. It holds what came, never what a length announces.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, where all of it is there.
    ///
    /// # Errors
    /// Its length is 0 or above `most`, or it is no JSON of a message. Nothing that follows can be read then.
    pub fn next(&mut self, most: usize) -> Result<Option<Message>, WireError> {
        let Some(header) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header);
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > most {
            return Err(WireError::Length { length: u64::from(length), most });
        }
        let Some(text) = self.bytes.get(4..4 + bytes) else { return Ok(None) };
        let message = serde_json::from_slice(text).map_err(|error| WireError::Text(error.to_string()))?;
        self.bytes.drain(..4 + bytes);
        Ok(Some(message))
    }
}

/// Bytes that are no frame.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// Empty or too long.
    #[error("a frame of {length} bytes; one has 1 to {most}")]
    Length {
        /// What was announced, or is to be sent.
        length: u64,
        /// What there may be.
        most: usize,
    },
    /// No message.
    #[error("a frame that is no message: {0}")]
    Text(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::outcome::{Flow, Latency};

    fn side() -> Side {
        let latency = Latency {
            counts: vec![(1, u64::MAX)],
            sum_ns: u128::MAX,
            min_ns: Some(1),
            max_ns: Some(1),
            from_due: true,
            out_of_range: 0,
        };
        Side { flows: vec![Flow { latency: Some(latency), ..Flow::default() }], ..Side::default() }
    }

    #[test]
    fn a_hello_has_12_bytes_and_its_fields_where_the_document_says() {
        let bytes = Hello { version: 0x0102, code: Way::Keyed as u8 }.bytes();
        assert_eq!(bytes, *b"PERPACKT\x01\x02\x02\x00");
        assert_eq!(Hello::read(&bytes), Some(Hello { version: 0x0102, code: 2 }));
        assert_eq!(Hello::read(&bytes[..11]), None);
        assert_eq!(Hello::read(b"GET / HTTP/1.1"), None);
        assert_eq!(Answer::of(4), Some(Answer::Busy));
        assert_eq!(Answer::of(99), None);
    }

    #[test]
    fn a_preface_is_known_by_its_cookie_only() {
        let cookie = Cookie([7; 16]);
        let preface = cookie.preface(0x0102_0304);
        assert_eq!(preface[16..], [1, 2, 3, 4]);
        assert_eq!(cookie.flow_of(&preface), Some(0x0102_0304));
        assert_eq!(Cookie([8; 16]).flow_of(&preface), None);
        assert_eq!(cookie.flow_of(&preface[..19]), None);
        let greeting = cookie.greeting(5);
        assert!(cookie.is_greeting(5, &greeting) && !cookie.is_greeting(6, &greeting));
        assert!(!cookie.is_greeting(5, &[greeting.as_slice(), &[0]].concat()));
        assert!(!cookie.is_greeting(5, &cookie.preface(5)));
    }

    #[test]
    fn messages_come_back_as_they_were_in_whatever_pieces() {
        let ready =
            Ready { cookie: Cookie([0; 16]), ports: vec![1, 65535], idle: Duration::from_millis(10_500) };
        let messages = [
            Message::Ready(ready),
            Message::Alive,
            Message::Ended { sent: vec![None, Some(u64::MAX)] },
            Message::Results(Box::new(side())),
            Message::Error { message: "\u{1b}[2J \"quoted\"".into() },
        ];
        let bytes: Vec<u8> =
            messages.iter().flat_map(|message| frame(message, LARGE_FRAME).unwrap()).collect();
        for size in [1, 3, 5, bytes.len()] {
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(size) {
                frames.push(piece);
                while let Some(message) = frames.next(LARGE_FRAME).unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages);
        }
    }

    #[test]
    fn lengths_are_refused_before_anything_is_allocated() {
        for length in [0, SMALL_FRAME as u32 + 1, u32::MAX] {
            let mut frames = Frames::default();
            frames.push(&length.to_be_bytes());
            assert!(matches!(frames.next(SMALL_FRAME), Err(WireError::Length { .. })), "{length}");
        }
        let mut frames = Frames::default();
        frames.push(&(SMALL_FRAME as u32).to_be_bytes());
        assert_eq!(frames.next(SMALL_FRAME), Ok(None));
        assert!(frames.bytes.capacity() < 64);
        assert!(frame(&Message::Alive, 3).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next(SMALL_FRAME) {}
            let _ = Hello::read(&bytes);
            let _ = Cookie([0; 16]).flow_of(&bytes);
        }

        #[test]
        fn any_text_in_a_frame_is_a_message_or_an_error(text in "\\PC{0,80}|[\\[\\]{}\":a-z0-9,]{0,80}") {
            let mut frames = Frames::default();
            frames.push(&(text.len() as u32).to_be_bytes());
            frames.push(text.as_bytes());
            let _ = frames.next(SMALL_FRAME);
        }
    }
}
