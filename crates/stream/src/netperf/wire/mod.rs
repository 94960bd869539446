//! The messages of netperf's control connection, as plain data.
//!
//! A message is 656 bytes and nothing else: no magic, no version, no length (netlib.h of netperf 2.7.1, `struct
//! netperf_request_struct`). Word 0 says what it is. Numbers are big-endian; a `float` is IEEE-754 like that, a 64-bit count is
//! two words, the high one first. Text stands as it is, ended by 0.
//!
//! [`Message`] is the bytes; each of the value types ([`omni::Request`] and so on) is what they say, with the byte range of each
//! field in the module beside it. Reading and writing are inverse to each other for any 656 bytes, since every type keeps what
//! stands behind its last field: netserver builds all its messages in one buffer and leaves there what was in it.

pub mod omni;
pub mod tcp_stream;

use std::ops::Range;

/// Bytes of every message.
pub const MESSAGE_BYTES: usize = 656;

/// Where the text or the numbers of a test begin, behind word 0 and word 1.
pub const BODY: Range<usize> = 8..MESSAGE_BYTES;

/// What a message is: its word 0.
pub mod kind {
    /// More words on standard error, please.
    pub const DEBUG_ON: u32 = 1;
    /// Fewer.
    pub const DEBUG_OFF: u32 = 2;
    /// The answer to both.
    pub const DEBUG_OK: u32 = 3;
    /// How fast the CPUs count, and how many there are; the answer has the same number.
    pub const CPU_CALIBRATE: u32 = 5;
    /// A pass phrase, in the clear; there is no answer.
    pub const PASSPHRASE: u32 = 6;
    /// Take a stream over TCP and count (this is how TCP_SENDFILE asks).
    pub const TCP_STREAM: u32 = 10;
    /// Its answer.
    pub const TCP_STREAM_RESPONSE: u32 = 11;
    /// Its results. netserver writes 11 with the bytes the other way round.
    pub const TCP_STREAM_RESULTS: u32 = 12;
    /// Any of the tests that netperf has moved to its general engine: the six classics among them.
    pub const OMNI: u32 = 97;
    /// Its answer.
    pub const OMNI_RESPONSE: u32 = 98;
    /// Its results. netserver writes 98 with the bytes the other way round.
    pub const OMNI_RESULTS: u32 = 99;
    /// What the system is; netserver answers that it does not tell.
    pub const SYSINFO: u32 = 600;
}

/// `serv_errno` for a request of a kind that is not known (netserver.c, `process_requests`).
pub const UNKNOWN_TEST: u32 = 998;

/// How CPU time was measured: what netserver says for `/proc/stat` (netlib.h, `PROC_STAT`).
pub const CPU_METHOD_PROC_STAT: u32 = 8;

/// The letters by which netperf names the methods in its columns, by number (netlib.c, `format_cpu_method`).
#[must_use]
pub fn cpu_method_letter(method: u32) -> char {
    const LETTERS: &[u8] = b"UIPTLRNKSCEMO";
    usize::try_from(method).ok().and_then(|at| LETTERS.get(at)).map_or('?', |&letter| char::from(letter))
}

/// One message, as it stands in the connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Message(pub [u8; MESSAGE_BYTES]);

impl Message {
    /// One that has a kind and zeros.
    #[must_use]
    pub fn new(kind: u32) -> Self {
        let mut message = Self([0; MESSAGE_BYTES]);
        kind.write(&mut message.0[word(0)]);
        message
    }

    /// Word 0.
    #[must_use]
    pub fn kind(&self) -> u32 {
        u32::read(&self.0[word(0)])
    }

    /// Word 1 of what a server says: 0, or why it refused, an errno of its system.
    #[must_use]
    pub fn errno(&self) -> u32 {
        u32::read(&self.0[word(1)])
    }

    /// The same message with another word 1.
    #[must_use]
    pub fn with_errno(mut self, errno: u32) -> Self {
        errno.write(&mut self.0[word(1)]);
        self
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message {{ kind: {}, word 1: {} }}", self.kind(), self.errno())
    }
}

/// The word 0 of results as netserver sends it on a little-endian machine: that of the response, which stands in the same
/// buffer in network order and is turned round once more (netlib.c, `send_response_n`; netperf does not look at it). This is what
/// tools have seen since 2007, so it is what we send.
#[must_use]
pub fn results_kind_as_sent(response: u32) -> u32 {
    response.swap_bytes()
}

const fn word(number: usize) -> Range<usize> {
    4 * number..4 * number + 4
}

/// The word with that number behind word 0 and word 1.
const fn body_word(number: usize) -> Range<usize> {
    word(2 + number)
}

/// What can stand in a range of bytes of the range's length.
trait Field {
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, bytes: &mut [u8]);
}

impl<const N: usize> Field for [u8; N] {
    fn read(bytes: &[u8]) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(bytes);
        value
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

macro_rules! number_fields {
    ($($number:ty),*) => { $(
        impl Field for $number {
            fn read(bytes: &[u8]) -> Self {
                Self::from_be_bytes(Field::read(bytes))
            }

            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_be_bytes());
            }
        }
    )* };
}

number_fields!(u32, i32, u64, f32, f64);

/// A value type, the module with the byte ranges of its fields, and the two functions between it and a [`Message`].
macro_rules! message_type {
    (
        $(#[$about:meta])* $name:ident, $fields:ident {
            $( $(#[doc = $doc:expr])* $field:ident, $range_name:ident: $type:ty = $range:expr; )*
        }
    ) => {
        #[doc = concat!("Where the fields of a [`", stringify!($name), "`] stand in its message.")]
        pub mod $fields {
            use std::ops::Range;
            #[allow(unused_imports, reason = "not every message has all of it; words are told of the others")]
            use super::*;
            #[allow(unused_imports, reason = "not every message has words of both kinds")]
            use crate::netperf::wire::{body_word, word};
            $( $(#[doc = $doc])* pub const $range_name: Range<usize> = $range; )*
            /// All of them, in order.
            pub const ALL: &[(&str, Range<usize>)] = &[$((stringify!($field), $range_name)),*];
        }

        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $( $(#[doc = $doc])* pub $field: $type, )* }

        impl $name {
            /// What a message says, if it is one of this type.
            #[must_use]
            pub fn decode(message: &Message) -> Self {
                Self { $( $field: <$type as Field>::read(&message.0[$fields::$range_name]), )* }
            }

            /// The message that says it.
            #[must_use]
            pub fn encode(&self) -> Message {
                let mut message = Message([0; MESSAGE_BYTES]);
                $( self.$field.write(&mut message.0[$fields::$range_name]); )*
                message
            }
        }

        impl Default for $name {
            /// All zeros.
            fn default() -> Self {
                Self::decode(&Message([0; MESSAGE_BYTES]))
            }
        }
    };
}
use message_type;

message_type! {
    /// The answer to [`kind::CPU_CALIBRATE`].
    Calibrated, calibrated {
        /// [`kind::CPU_CALIBRATE`].
        kind, KIND: u32 = word(0);
        /// 0.
        errno, ERRNO: u32 = word(1);
        /// How fast a CPU counts. From `/proc/stat` it is always 100.
        cpu_rate, CPU_RATE: f32 = body_word(0);
        /// CPUs of the server.
        cpus, CPUS: u32 = body_word(1);
        /// What stands behind it.
        rest, REST: [u8; 640] = 16..656;
    }
}

/// The text at the beginning of a field, up to the first 0.
#[must_use]
pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// A text for a field, cut so that a 0 follows it.
#[must_use]
pub fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let length = text.len().min(N.saturating_sub(1));
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

/// The phrase of a message of [`kind::PASSPHRASE`].
#[must_use]
pub fn passphrase(message: &Message) -> String {
    text(&message.0[BODY])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_every_type_follow_each_other_without_a_gap_and_fill_the_message() {
        for fields in [
            calibrated::ALL,
            omni::request::ALL,
            omni::response::ALL,
            omni::results::ALL,
            tcp_stream::request::ALL,
            tcp_stream::response::ALL,
            tcp_stream::results::ALL,
        ] {
            let mut at = 0;
            for (name, range) in fields {
                assert_eq!(range.start, at, "{name}");
                at = range.end;
            }
            assert_eq!(at, MESSAGE_BYTES);
        }
    }

    #[test]
    fn texts_end_at_zero_and_fit() {
        assert_eq!(text(b"cubic\0x"), "cubic");
        assert_eq!(text(b"full"), "full");
        assert_eq!(text_field::<4>("cubic"), *b"cub\0");
        let mut message = Message::new(kind::PASSPHRASE);
        message.0[8..14].copy_from_slice(b"sesame");
        assert_eq!(passphrase(&message), "sesame");
    }

    #[test]
    fn methods_have_the_letters_of_netperf() {
        assert_eq!(cpu_method_letter(CPU_METHOD_PROC_STAT), 'S');
        assert_eq!(cpu_method_letter(0), 'U');
        assert_eq!(cpu_method_letter(7), 'K');
        assert_eq!(cpu_method_letter(12), 'O');
        assert_eq!(cpu_method_letter(13), '?');
        assert_eq!(cpu_method_letter(u32::MAX), '?');
    }
}
