//! Several datagrams in a call, on any datagram socket.

use std::io;
use std::os::fd::AsFd;

use crate::SyscallError;
use crate::packet::messages::Messages;
use crate::udp::segment_bytes;

/// What sendmmsg(2) sends on a connected socket: slots of one size, built once.
///
/// Where the socket has `UDP_SEGMENT` set ([`set_segment_bytes`](super::set_segment_bytes)), a slot is one buffer that the kernel
/// cuts into datagrams.
#[derive(Debug)]
pub struct SendBatch {
    messages: Messages,
}

impl SendBatch {
    /// `slots` slots of `slot_bytes` bytes, zeroed, all of which are sent.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for them.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Self, SyscallError> {
        let messages =
            Messages::new(slots, slot_bytes).map_err(|error| no_memory(slots, slot_bytes, error))?;
        Ok(Self { messages })
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.messages.slots()
    }

    /// The bytes of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        self.messages.slot_mut(slot)
    }

    /// How much of a slot is sent.
    ///
    /// # Panics
    /// When it has fewer bytes.
    pub fn set_len(&mut self, slot: usize, bytes: usize) {
        self.messages.set_len(slot, bytes);
    }

    /// Sends slots `first..first + count` in one call; how many the kernel took.
    ///
    /// # Errors
    /// EAGAIN: the socket has no room, and does not wait (any longer). ENOBUFS: the queueing discipline or the device dropped the
    /// datagram. Otherwise as sendmmsg(2).
    ///
    /// # Panics
    /// When there are no such slots.
    pub fn send(&mut self, socket: impl AsFd, first: usize, count: usize) -> io::Result<usize> {
        self.messages.send(socket.as_fd(), first, count, libc::MSG_NOSIGNAL)
    }
}

/// Where recvmmsg(2) puts what has come.
#[derive(Debug)]
pub struct ReceiveBatch {
    messages: Messages,
    joined: bool,
}

impl ReceiveBatch {
    /// `slots` slots of `slot_bytes` bytes. `joined`: the socket has `UDP_GRO` set, so that a slot may hold several datagrams.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for them.
    pub fn new(slots: usize, slot_bytes: usize, joined: bool) -> Result<Self, SyscallError> {
        let messages = Messages::new(slots, slot_bytes)
            .and_then(|messages| if joined { messages.with_controls() } else { Ok(messages) })
            .map_err(|error| no_memory(slots, slot_bytes, error))?;
        Ok(Self { messages, joined })
    }

    /// Takes what is there, up to all slots; how many were filled. Unless the socket does not wait, it waits for the first.
    ///
    /// # Errors
    /// EAGAIN: there is nothing. Otherwise as recvmmsg(2), among it what ICMP said of datagrams that were sent.
    pub fn receive(&mut self, socket: impl AsFd, wait: bool) -> io::Result<usize> {
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        self.messages.receive(socket.as_fd(), flags)
    }

    /// As [`Self::receive`], without keeping anything: what each slot held is only counted.
    ///
    /// # Errors
    /// See there.
    pub fn receive_lengths(&mut self, socket: impl AsFd, wait: bool) -> io::Result<usize> {
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        self.messages.receive(socket.as_fd(), flags | libc::MSG_TRUNC)
    }

    /// Bytes that a slot got; after [`Self::receive_lengths`] of the whole datagram.
    pub fn bytes(&self, slot: usize) -> usize {
        self.messages.transferred(slot)
    }

    /// How many datagrams a slot holds.
    pub fn datagrams(&mut self, slot: usize) -> usize {
        if !self.joined {
            return 1;
        }
        self.bytes(slot).div_ceil(self.segment_bytes(slot)).max(1)
    }

    /// The size of the datagrams in a slot; the last may be shorter.
    fn segment_bytes(&mut self, slot: usize) -> usize {
        let joined = if self.joined { segment_bytes(self.messages.control(slot)) } else { None };
        joined.unwrap_or_else(|| self.bytes(slot)).max(1)
    }

    /// The datagrams in a slot, as far as stored.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn segments(&mut self, slot: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = self.segment_bytes(slot);
        let stored = self.bytes(slot).min(self.messages.slot_bytes());
        let stored = &self.messages.slot_mut(slot)[..stored];
        // An empty datagram is one too.
        let empty = stored.is_empty().then_some(stored);
        stored.chunks(bytes).chain(empty)
    }
}

fn no_memory(slots: usize, slot_bytes: usize, error: io::Error) -> SyscallError {
    SyscallError::new("allocate buffers", format!("{slots} slots of {slot_bytes} bytes"), error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::socket::{set_receive_joined, set_segment_bytes};

    fn pair() -> (UdpSocket, UdpSocket) {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        (near, far)
    }

    #[test]
    fn a_buffer_is_cut_and_read_joined_or_not() {
        for joined in [false, true] {
            let (near, far) = pair();
            set_segment_bytes(&near, 100).unwrap();
            if joined {
                set_receive_joined(&far, true).unwrap();
            }
            let mut out = SendBatch::new(2, 1000).unwrap();
            out.set_len(1, 250);
            out.slot_mut(0)[100] = 9;
            assert_eq!(out.send(&near, 0, 2).unwrap(), 2);
            let mut input = ReceiveBatch::new(20, 65536, joined).unwrap();
            let slots = input.receive(&far, true).unwrap();
            assert_eq!(slots, if joined { 2 } else { 13 });
            let sizes: Vec<usize> = (0..slots)
                .flat_map(|slot| input.segments(slot).map(<[u8]>::len).collect::<Vec<_>>())
                .collect();
            assert_eq!(sizes, [vec![100; 12], vec![50]].concat());
            assert_eq!((0..slots).map(|slot| input.datagrams(slot)).sum::<usize>(), 13);
            let second = if joined {
                input.segments(0).nth(1).unwrap()[0]
            } else {
                input.segments(1).next().unwrap()[0]
            };
            assert_eq!(second, 9);
        }
    }

    #[test]
    fn lengths_are_whole_although_nothing_is_stored() {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.send(&[1; 500]).unwrap();
        let mut input = ReceiveBatch::new(2, 0, false).unwrap();
        assert_eq!((input.receive_lengths(&far, true).unwrap(), input.bytes(0)), (1, 500));
        assert_eq!(input.receive_lengths(&far, false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
