//! The conversation with a netlink socket: one request, its answers, and the kernel's verdict in its own
//! words.
//!
//! Shared by [`super`] (NETLINK_ROUTE) and [`crate::nft`] (NETLINK_NETFILTER). The kernel works on a request
//! within `sendmsg`, so an answer is there when the call returns, and nothing here ever waits for a peer.
//!
//! Layouts: include/uapi/linux/netlink.h, 6.18. All fields are in the byte order of the machine.

use std::io;

use netlink_sys::{Socket, SocketAddr};

use crate::SyscallError;

/// Bytes before the payload of a message: `struct nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;
/// Where a message carries its sequence number.
const SEQUENCE: std::ops::Range<usize> = 8..12;
/// A dump arrives in datagrams of at most 32 KiB (`netlink_dump`, net/netlink/af_netlink.c).
const BUFFER_BYTES: usize = 1 << 16;

const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;
const FLAG_CAPPED: u16 = 0x100;
const FLAG_ACK_TLVS: u16 = 0x200;
const ERROR_ATTRIBUTE_TEXT: u16 = 1;
/// NLA_F_NESTED and NLA_F_NET_BYTEORDER are no part of an attribute's type.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;
/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// What ends the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// An acknowledgement: the request has NLM_F_ACK.
    Acknowledged,
    /// The end of a dump: the request has NLM_F_DUMP.
    Done,
    /// The first message: a request for one object without NLM_F_ACK.
    FirstAnswer,
}

/// One netlink socket, bound to the network namespace of the thread that opened it, for good.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The kernel's refusal: the error and, where it gave one, its explanation (extended acknowledgement).
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: io::Error,
    pub(crate) text: Option<String>,
    /// Sequence number of the message that was refused.
    pub(crate) sequence: Option<u32>,
}

impl Refusal {
    /// The refusal as an error about `call` on `object`.
    pub(crate) fn about(self, call: &'static str, object: impl Into<String>) -> SyscallError {
        let error = SyscallError::new(call, object, self.error);
        match self.text {
            Some(text) => error.with_detail(text),
            None => error,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { error, text: None, sequence: None }
    }
}

impl Channel {
    pub(crate) fn open(protocol: isize, call: &'static str) -> Result<Self, SyscallError> {
        let fail = |error| SyscallError::new(call, "", error);
        let mut socket = Socket::new(protocol).map_err(fail)?;
        socket.bind_auto().map_err(fail)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(fail)?;
        // Explanations instead of copies of the request. Kernels before 4.12 have neither, and do without.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends one request and hands each answer (type, payload) to `on_answer`.
    pub(crate) fn ask(
        &mut self,
        request: &mut [u8],
        until: Until,
        mut on_answer: impl FnMut(u16, &[u8]),
    ) -> Result<(), Refusal> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        request[SEQUENCE].copy_from_slice(&sequence.to_ne_bytes());
        self.socket.send(request, 0)?;
        let mut interrupted = false;
        loop {
            let received = self.receive(0)?;
            for message in Messages(&self.buffer[..received]) {
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & FLAG_DUMP_INTERRUPTED != 0;
                match message.kind {
                    TYPE_ERROR | TYPE_DONE => {
                        message.verdict()?;
                        return if interrupted { Err(changed_while_read()) } else { Ok(()) };
                    }
                    kind => on_answer(kind, message.payload),
                }
                if until == Until::FirstAnswer {
                    return Ok(());
                }
            }
        }
    }

    /// Sends a batch of messages that already carry their sequence numbers, and waits for nothing: answers to
    /// a batch are all queued when `sendmsg` returns. Returns the sequence numbers that were acknowledged.
    pub(crate) fn send_batch(&mut self, batch: &[u8]) -> Result<Vec<u32>, Refusal> {
        self.make_room(batch.len());
        self.socket.send(batch, 0)?;
        let mut acknowledged = Vec::new();
        let mut refusal = None;
        loop {
            let received = match self.receive(libc::MSG_DONTWAIT) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            for message in Messages(&self.buffer[..received]) {
                if message.kind != TYPE_ERROR {
                    continue;
                }
                match message.verdict() {
                    Ok(()) => acknowledged.push(message.sequence),
                    Err(first) => refusal = refusal.or(Some(first)),
                }
            }
        }
        refusal.map_or(Ok(acknowledged), Err)
    }

    /// Numbers for `count` messages of a batch: the first of them.
    pub(crate) fn reserve(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    fn receive(&mut self, flags: libc::c_int) -> io::Result<usize> {
        loop {
            let mut space = &mut self.buffer[..];
            match self.socket.recv(&mut space, flags | libc::MSG_TRUNC) {
                Ok(bytes) if bytes > BUFFER_BYTES => {
                    return Err(io::Error::other(format!("an answer of {bytes} bytes was cut off")));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// A netlink message must fit the socket's send buffer whole (`netlink_sendmsg`).
    fn make_room(&self, bytes: usize) {
        if bytes <= 64 * 1024 {
            return;
        }
        let bytes = bytes.saturating_mul(2);
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, bytes).is_err() {
            // Without privilege the limit is net.core.wmem_max; a batch that is still too long gets EMSGSIZE.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&self.socket, bytes);
        }
    }
}

fn changed_while_read() -> Refusal {
    Refusal {
        error: io::Error::from_raw_os_error(libc::EINTR),
        text: Some("the list changed while it was read".to_owned()),
        sequence: None,
    }
}

/// One message of a datagram.
struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl Message<'_> {
    /// What an NLMSG_ERROR or NLMSG_DONE says.
    fn verdict(&self) -> Result<(), Refusal> {
        let code = i32_at(self.payload, 0).unwrap_or(0);
        if code == 0 || (self.kind == TYPE_DONE && code > 0) {
            return Ok(());
        }
        Err(Refusal {
            error: io::Error::from_raw_os_error(code.wrapping_neg()),
            text: self.explanation(),
            sequence: Some(self.sequence),
        })
    }

    fn explanation(&self) -> Option<String> {
        if self.flags & FLAG_ACK_TLVS == 0 {
            return None;
        }
        let mut skip = 4;
        if self.kind == TYPE_ERROR {
            let copied =
                if self.flags & FLAG_CAPPED == 0 { u32_at(self.payload, 4)? as usize } else { HEADER_BYTES };
            skip += align(copied.max(HEADER_BYTES));
        }
        let text = attribute(self.payload.get(skip..)?, ERROR_ATTRIBUTE_TEXT)?;
        Some(text_of(text))
    }
}

/// The messages of a datagram; ends at the first one that is not whole.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32_at(self.0, 0)? as usize;
        let message = self.0.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some(Message {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            payload: &message[HEADER_BYTES..],
        })
    }
}

/// The attributes (type, value) of a payload or of a nested attribute; ends at the first one that is not
/// whole.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = u16_at(rest, 0)? as usize;
        let kind = u16_at(rest, 2)? & ATTRIBUTE_TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a type.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// A text attribute without the zero at its end.
pub(crate) fn text_of(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A message under construction.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A message of a type with NLM_F_* flags and the fixed part of its payload.
    pub(crate) fn new(kind: u16, flags: i32, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        Self { bytes }
    }

    /// Adds an attribute. A value longer than an attribute can be (64 KiB) is a mistake of the caller in this
    /// crate and shows as an error of the kernel.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad()
    }

    /// Adds a text attribute with the zero that ends it.
    pub(crate) fn put_text(&mut self, kind: u16, text: &str) -> &mut Self {
        self.put(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that holds attributes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.put(kind | NESTED, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Sets the sequence number: needed within a batch, done by [`Channel::ask`] otherwise.
    pub(crate) fn set_sequence(&mut self, sequence: u32) {
        self.bytes[SEQUENCE].copy_from_slice(&sequence.to_ne_bytes());
    }

    /// Adds NLM_F_* flags.
    pub(crate) fn add_flags(&mut self, flags: i32) {
        let old = u16_at(&self.bytes, 6).unwrap_or_default();
        self.bytes[6..8].copy_from_slice(&(old | flags as u16).to_ne_bytes());
    }

    /// The finished message.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        &mut self.bytes
    }

    fn pad(&mut self) -> &mut Self {
        self.bytes.resize(align(self.bytes.len()), 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An NLMSG_ERROR as the kernel sends it with NETLINK_CAP_ACK and NETLINK_EXT_ACK.
    fn refusal(code: i32, text: &str) -> Vec<u8> {
        let mut message = Request::new(TYPE_ERROR, 0, &code.to_ne_bytes());
        message.add_flags(i32::from(FLAG_CAPPED | FLAG_ACK_TLVS));
        message.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        message.put_text(ERROR_ATTRIBUTE_TEXT, text);
        message.bytes().to_vec()
    }

    #[test]
    fn a_refusal_keeps_the_kernels_words() {
        let bytes = refusal(-libc::EEXIST, "Name already in use");
        let message = Messages(&bytes).next().unwrap();
        let error = message.verdict().unwrap_err().about("create veth", "a");
        assert_eq!(error.errno(), Some(libc::EEXIST));
        assert_eq!(error.detail.as_deref(), Some("Name already in use"));
        assert!(error.to_string().starts_with("create veth on a: File exists"), "{error}");
    }

    #[test]
    fn nested_attributes_are_read_back() {
        let mut request = Request::new(0, 0, &[]);
        request.put(7, &[1, 2, 3]).nest(9, |inner| {
            inner.put_text(1, "veth").put(2, &5_u32.to_ne_bytes());
        });
        let payload = &request.bytes()[HEADER_BYTES..];
        assert_eq!(attribute(payload, 7), Some(&[1, 2, 3][..]));
        let inner = attribute(payload, 9).unwrap();
        assert_eq!(attribute(inner, 1).map(text_of).as_deref(), Some("veth"));
        assert_eq!(attribute(inner, 2).and_then(|value| u32_at(value, 0)), Some(5));
        assert_eq!(attribute(inner, 3), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in Messages(&bytes) {
                let _ = message.verdict();
                let _ = attributes(message.payload).count();
            }
            let _ = attributes(&bytes).count();
        }
    }
}
