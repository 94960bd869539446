//! What one call sends: payloads in slots, each with its destination, and the messages that the kernel is given.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::control::{self, SEGMENT_BYTES};
use crate::SyscallError;
use crate::packet::mapping::Mapping;
use crate::packet::messages::{SOURCE_BYTES, header, write_ip_address};

/// The most datagrams in one message with GSO. Newer kernels take 128 (UDP_MAX_SEGMENTS, include/linux/udp.h, 6.18), all
/// since 4.18 take 64.
pub const GSO_SEGMENTS_MAX: usize = 64;
/// The most payload bytes in one message: what an IPv4 packet of 65,535 bytes holds.
pub const GSO_BYTES_MAX: usize = 65_507;
/// The kernel takes at most 1024 messages in a call (UIO_MAXIOV, net/socket.c, 6.18).
const MESSAGES_MAX: usize = 1024;

/// Slots start on cache lines of their own.
const SLOT_ALIGN: usize = 64;
const NAME_STRIDE: usize = 32;
const CONTROL_STRIDE: usize = 32;
const _: () = assert!(SOURCE_BYTES <= NAME_STRIDE && SEGMENT_BYTES <= CONTROL_STRIDE);

/// Slots for [`UdpSender`](super::UdpSender): each a piece of memory in which a payload lies, and where it is to go.
pub struct DatagramBatch {
    memory: Mapping,
    slot_bytes: usize,
    stride: usize,
    /// Of each slot, its destination as the kernel reads it.
    names: Mapping,
    slots: Box<[Slot]>,
    /// Of each message, the size of its datagrams as the kernel reads it.
    controls: Mapping,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Of each message, how many datagrams it stands for.
    datagrams: Box<[u16]>,
}

/// What a slot holds.
#[derive(Debug, Clone, Copy)]
struct Slot {
    start: usize,
    bytes: usize,
    destination: SocketAddr,
    name_bytes: usize,
}

// SAFETY: the raw pointers inside lead to `memory`, `names`, `controls` and `vectors`, which move between threads with this
// value and keep their addresses; nothing else points there.
unsafe impl Send for DatagramBatch {}

impl DatagramBatch {
    /// `slots` slots of `slot_bytes` bytes, zeroed, each an empty datagram to nowhere.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for it.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Self, SyscallError> {
        Self::allocate(slots, slot_bytes).map_err(|error| {
            SyscallError::new(
                "allocate datagram batch",
                format!("{slots} slots of {slot_bytes} bytes"),
                error,
            )
        })
    }

    fn allocate(slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
        let stride = slot_bytes.checked_next_multiple_of(SLOT_ALIGN).ok_or_else(too_large)?.max(SLOT_ALIGN);
        let room = slots.max(1);
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut vectors: Box<[_]> = vec![nothing; slots].into();
        let headers = vectors.iter_mut().map(header).collect();
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Ok(Self {
            memory: Mapping::anonymous(stride.checked_mul(room).ok_or_else(too_large)?)?,
            slot_bytes,
            stride,
            names: Mapping::anonymous(NAME_STRIDE * room)?,
            slots: vec![Slot { start: 0, bytes: 0, destination: nowhere, name_bytes: 0 }; slots].into(),
            controls: Mapping::anonymous(CONTROL_STRIDE * room)?,
            vectors,
            headers,
            datagrams: vec![0; slots].into(),
        })
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The bytes of a slot, its full size.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        self.memory.bytes_mut(slot * self.stride, self.slot_bytes)
    }

    /// Which bytes of a slot are the payload, and where it is to go.
    ///
    /// # Panics
    /// When there is no such slot, or no such bytes in it.
    pub fn set(&mut self, slot: usize, payload: Range<usize>, destination: SocketAddr) {
        let inside = payload.start <= payload.end && payload.end <= self.slot_bytes;
        assert!(inside, "bytes {payload:?} of a slot of {}", self.slot_bytes);
        let held = &mut self.slots[slot];
        if held.name_bytes == 0 || held.destination != destination {
            let mut name = [0; SOURCE_BYTES];
            held.name_bytes = write_ip_address(destination, &mut name);
            held.destination = destination;
            self.names.bytes_mut(slot * NAME_STRIDE, SOURCE_BYTES).copy_from_slice(&name);
        }
        held.start = payload.start;
        held.bytes = payload.len();
    }

    /// Where the datagram in a slot is to go.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn destination(&self, slot: usize) -> SocketAddr {
        self.slots[slot].destination
    }

    /// Makes messages of the slots in `order`, as many as fit into a call: one each, or, with `gso`, one for consecutive
    /// datagrams of one size to one destination. How many messages there are.
    fn compose(&mut self, order: &[usize], gso: bool) -> usize {
        let (mut messages, mut at) = (0, 0);
        let end = order.len().min(self.len());
        while at < end && messages < MESSAGES_MAX {
            let run = if gso { self.run(&order[at..end]) } else { 1 };
            for (vector, &slot) in self.vectors[at..at + run].iter_mut().zip(&order[at..]) {
                let held = self.slots[slot];
                let place = self.memory.at(slot * self.stride + held.start, held.bytes, 1);
                *vector = libc::iovec { iov_base: place.cast(), iov_len: held.bytes };
            }
            let (slot, message) = (order[at], &mut self.headers[messages].msg_hdr);
            message.msg_name = self.names.at(slot * NAME_STRIDE, SOURCE_BYTES, 1).cast();
            message.msg_namelen = self.slots[slot].name_bytes as libc::socklen_t;
            message.msg_iov = &raw mut self.vectors[at];
            message.msg_iovlen = run as _;
            if run > 1 {
                let room = self.controls.bytes_mut(messages * CONTROL_STRIDE, CONTROL_STRIDE);
                control::write_segment_bytes(self.slots[slot].bytes as u16, room);
                message.msg_control = self.controls.at(messages * CONTROL_STRIDE, SEGMENT_BYTES, 1).cast();
                message.msg_controllen = SEGMENT_BYTES as _;
            } else {
                message.msg_control = std::ptr::null_mut();
                message.msg_controllen = 0;
            }
            self.datagrams[messages] = run as u16;
            messages += 1;
            at += run;
        }
        messages
    }

    /// How many slots from the first of `order` on may become one message.
    fn run(&self, order: &[usize]) -> usize {
        let first = self.slots[order[0]];
        let most = GSO_BYTES_MAX.checked_div(first.bytes).unwrap_or(1).clamp(1, GSO_SEGMENTS_MAX);
        let same = |&&slot: &&usize| {
            self.slots[slot].bytes == first.bytes && self.slots[slot].destination == first.destination
        };
        order.iter().take(most).take_while(same).count()
    }

    /// Sends the slots in `order` in one call; how many datagrams the kernel took, from the first of `order` on.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        order: &[usize],
        gso: bool,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let messages = self.compose(order, gso);
        let headers = &mut self.headers[..messages];
        let (fd, count) = (socket.as_raw_fd(), messages as libc::c_uint);
        // SAFETY: `compose` made every header lead to memory of the stated lengths that lives as long as `self`, which is
        // borrowed exclusively: the kernel may read it and write the lengths.
        let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, flags) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(self.datagrams[..sent.min(messages)].iter().map(|&datagrams| usize::from(datagrams)).sum())
    }
}

impl fmt::Debug for DatagramBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramBatch({} slots of {} bytes)", self.len(), self.slot_bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn consecutive_datagrams_of_one_size_to_one_place_are_one_message() {
        let mut batch = DatagramBatch::new(8, 100).unwrap();
        let held = [(10, 7), (10, 7), (11, 7), (11, 8), (11, 8), (11, 8), (0, 8), (0, 8)];
        for (slot, (bytes, port)) in held.into_iter().enumerate() {
            batch.set(slot, 0..bytes, to(port));
        }
        let order: Vec<usize> = (0..8).collect();
        let messages = batch.compose(&order, true);
        // Nothing cannot be cut into segments.
        assert_eq!(batch.datagrams[..messages], [2, 1, 3, 1, 1]);
        assert_eq!(batch.compose(&order, false), 8);
        let order = [4, 5, 0];
        let messages = batch.compose(&order, true);
        assert_eq!(batch.datagrams[..messages], [2, 1]);
    }

    #[test]
    fn a_message_has_bounds() {
        let mut batch = DatagramBatch::new(100, 1472).unwrap();
        let order: Vec<usize> = (0..100).collect();
        (0..100).for_each(|slot| batch.set(slot, 0..1, to(7)));
        let messages = batch.compose(&order, true);
        assert_eq!(batch.datagrams[..messages], [64, 36]);
        (0..100).for_each(|slot| batch.set(slot, 0..1472, to(7)));
        let messages = batch.compose(&order, true);
        assert_eq!(batch.datagrams[..messages], [44, 44, 12]);
    }
}
