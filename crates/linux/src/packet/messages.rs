//! Buffers and headers for sendmmsg(2) and recvmmsg(2), built once and used again without allocation.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::mapping::Mapping;

/// Slots start on cache lines of their own.
const SLOT_ALIGN: usize = 64;
/// Room for `struct sockaddr_in6`, the longer one of the two that are read.
pub(crate) const SOURCE_BYTES: usize = size_of::<libc::sockaddr_in6>();
const SOURCE_STRIDE: usize = 32;
/// Room for control data of a message: one small item is asked for at a time.
const CONTROL_BYTES: usize = 64;

/// A fixed number of message slots of the same size.
pub(crate) struct Messages {
    memory: Mapping,
    slot_bytes: usize,
    stride: usize,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Room for the address that each message came from, where it is asked for.
    sources: Option<Mapping>,
    /// Room for control data of each message, where it is asked for.
    controls: Option<Mapping>,
}

// SAFETY: the raw pointers inside lead to `memory`, `vectors`, `sources` and `controls`, which move between threads with
// this value and keep their addresses; nothing else points there.
unsafe impl Send for Messages {}

impl Messages {
    /// `slots` slots of `slot_bytes` bytes, zeroed, each message as long as its slot.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
        let stride = slot_bytes.checked_next_multiple_of(SLOT_ALIGN).ok_or_else(too_large)?.max(SLOT_ALIGN);
        let memory = Mapping::anonymous(stride.checked_mul(slots.max(1)).ok_or_else(too_large)?)?;
        let vector = |slot| libc::iovec {
            iov_base: memory.at(slot * stride, slot_bytes, 1).cast(),
            iov_len: slot_bytes,
        };
        let mut vectors: Box<[_]> = (0..slots).map(vector).collect();
        let headers = vectors.iter_mut().map(header).collect();
        Ok(Self { memory, slot_bytes, stride, vectors, headers, sources: None, controls: None })
    }

    /// Asks for the address that each message came from.
    pub(crate) fn with_sources(mut self) -> io::Result<Self> {
        let sources = Mapping::anonymous(SOURCE_STRIDE * self.slots().max(1))?;
        for (slot, header) in self.headers.iter_mut().enumerate() {
            header.msg_hdr.msg_name = sources.at(slot * SOURCE_STRIDE, SOURCE_BYTES, 1).cast();
        }
        self.sources = Some(sources);
        Ok(self)
    }

    /// Asks for the control data of each message.
    pub(crate) fn with_controls(mut self) -> io::Result<Self> {
        let controls = Mapping::anonymous(CONTROL_BYTES * self.slots().max(1))?;
        for (slot, header) in self.headers.iter_mut().enumerate() {
            header.msg_hdr.msg_control = controls.at(slot * CONTROL_BYTES, CONTROL_BYTES, 1).cast();
        }
        self.controls = Some(controls);
        Ok(self)
    }

    pub(crate) fn slots(&self) -> usize {
        self.headers.len()
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The bytes of a slot, its full size.
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.slots(), "slot {slot} of {}", self.slots());
        self.memory.bytes_mut(slot * self.stride, self.slot_bytes)
    }

    /// How much of a slot is to be sent.
    pub(crate) fn set_len(&mut self, slot: usize, bytes: usize) {
        assert!(bytes <= self.slot_bytes, "{bytes} bytes in a slot of {}", self.slot_bytes);
        self.vectors[slot].iov_len = bytes;
    }

    /// How much the last transfer moved through a slot.
    pub(crate) fn transferred(&self, slot: usize) -> usize {
        self.headers[slot].msg_len as usize
    }

    /// Where the message in a slot came from, if that was asked for and is an IP address.
    pub(crate) fn source(&mut self, slot: usize) -> Option<SocketAddr> {
        let bytes = self.sources.as_mut()?.bytes_mut(slot * SOURCE_STRIDE, SOURCE_BYTES);
        ip_address(bytes)
    }

    /// The control data that came with the message in a slot; empty where it was not asked for.
    pub(crate) fn control(&mut self, slot: usize) -> &[u8] {
        // A type of its own on musl, where it has 32 bits.
        #[allow(clippy::unnecessary_cast)]
        let bytes = (self.headers[slot].msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        match &mut self.controls {
            Some(controls) => controls.bytes_mut(slot * CONTROL_BYTES, bytes),
            None => &[],
        }
    }

    /// Sends slots `first..first + count`; how many the kernel took.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        first: usize,
        count: usize,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let headers = &mut self.headers[first..first + count];
        let (fd, count) = (socket.as_raw_fd(), headers.len() as libc::c_uint);
        // SAFETY: the headers are valid and lead to memory of the stated lengths that lives as long as `self`,
        // which is borrowed exclusively: the kernel may read it and write the lengths.
        let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives into the slots from the first on; how many messages came.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<usize> {
        let (fd, count) = (socket.as_raw_fd(), self.headers.len() as libc::c_uint);
        if self.sources.is_some() {
            // The kernel leaves the length of the address there.
            self.headers.iter_mut().for_each(|header| header.msg_hdr.msg_namelen = SOURCE_BYTES as u32);
        }
        if self.controls.is_some() {
            self.headers.iter_mut().for_each(|header| header.msg_hdr.msg_controllen = CONTROL_BYTES as _);
        }
        // SAFETY: as in `send`; the kernel also writes into the slots, and addresses and control data where `with_sources`
        // and `with_controls` made room.
        let received =
            unsafe { libc::recvmmsg(fd, self.headers.as_mut_ptr(), count, flags, ptr::null_mut()) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Messages({} slots of {} bytes)", self.slots(), self.slot_bytes)
    }
}

/// A message without address and control data, of one vector.
pub(crate) fn header(vector: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: `msghdr` consists of integers and pointers, for which all zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    libc::mmsghdr { msg_hdr: message, msg_len: 0 }
}

/// An address as the kernel takes it, at the start of `room`; how long it is. The counterpart of [`ip_address`].
pub(crate) fn write_ip_address(address: SocketAddr, room: &mut [u8; SOURCE_BYTES]) -> usize {
    room.fill(0);
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    room[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    room[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            room[4..8].copy_from_slice(&address.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            room[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
            room[8..24].copy_from_slice(&address.ip().octets());
            room[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            size_of::<libc::sockaddr_in6>()
        }
    }
}

/// The address in a `sockaddr_in` or `sockaddr_in6`: family in the byte order of the machine, port, and the address at
/// byte 4 or 8 (include/uapi/linux/in.h, in6.h). An IPv4 address in IPv6 form becomes itself.
fn ip_address(bytes: &[u8]) -> Option<SocketAddr> {
    let pair = |at: usize| bytes.get(at..)?.first_chunk::<2>().copied();
    let port = u16::from_be_bytes(pair(2)?);
    let address: IpAddr = match libc::c_int::from(u16::from_ne_bytes(pair(0)?)) {
        libc::AF_INET => (*bytes.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        for text in ["198.18.0.1:7", "[2001:2::1]:65535", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut room = [0xff; SOURCE_BYTES];
            let bytes = write_ip_address(address, &mut room);
            assert_eq!(bytes, if address.is_ipv4() { 16 } else { 28 });
            let read = ip_address(&room[..bytes]).unwrap();
            assert_eq!((read.ip(), read.port()), (address.ip(), address.port()));
        }
    }

    #[test]
    fn messages_arrive_as_filled() {
        let (left, right) = UnixDatagram::pair().unwrap();
        let (mut out, mut input) = (Messages::new(4, 100).unwrap(), Messages::new(8, 100).unwrap());
        for slot in 0..4 {
            out.slot_mut(slot).fill(slot as u8);
            out.set_len(slot, 10 + slot);
        }
        assert_eq!(out.send(left.as_fd(), 1, 3, libc::MSG_DONTWAIT).unwrap(), 3);
        assert_eq!(input.receive(right.as_fd(), libc::MSG_DONTWAIT).unwrap(), 3);
        for message in 0..3 {
            let slot = message + 1;
            assert_eq!(input.transferred(message), 10 + slot);
            assert!(input.slot_mut(message)[..10 + slot].iter().all(|&byte| byte == slot as u8));
        }
        let empty = input.receive(right.as_fd(), libc::MSG_DONTWAIT).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }
}
