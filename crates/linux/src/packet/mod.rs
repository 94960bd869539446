//! AF_PACKET: raw frames out of and into a device, one by one, in batches, or through a ring.
//!
//! All of it works inside a user namespace with CAP_NET_RAW there. Frames are Ethernet frames without FCS.
//! Nothing here blocks: where the kernel has no room, fewer frames are taken, and the caller decides whether to
//! wait ([`PacketSocket::wait_writable`]).
//!
//! What "taken" means: the frame was handed to the device's queue or driver, and neither reported a drop. The
//! device may still lose it: a veth pair drops at its peer without telling the sender.

pub(crate) mod mapping;
pub(crate) mod messages;
mod rx_ring;
mod slot_ring;
pub(crate) mod sockopt;
mod tx_ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::messages::Messages;
use crate::SyscallError;

pub use rx_ring::{RxFrame, RxRing, RxRingSpec};
pub use slot_ring::{SlotFrame, SlotRing, SlotRingSpec};
pub use tx_ring::{RingSpec, RingState, TxRing};

/// Every protocol, for a socket that receives (`ETH_P_ALL`): what the device sends is seen as well.
pub const PROTOCOL_ALL: u16 = 3;
/// For a socket that only sends: nothing is queued for it.
pub const PROTOCOL_NONE: u16 = 0;

const ETHERNET_HEADER_BYTES: usize = 14;

/// A raw packet socket bound to one device.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

/// What a receiving packet socket counted since it was last asked (`PACKET_STATISTICS`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketStatistics {
    /// Frames that passed the socket's filter, those dropped included.
    pub seen: u32,
    /// Frames dropped for lack of room in the socket.
    pub dropped: u32,
}

impl PacketSocket {
    /// Opens a socket on a device of the calling thread's network namespace.
    ///
    /// `protocol` is an EtherType (host byte order), [`PROTOCOL_ALL`] or [`PROTOCOL_NONE`].
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, EAFNOSUPPORT without `CONFIG_PACKET`, ENODEV for an unknown device.
    pub fn open(ifindex: u32, protocol: u16) -> Result<Self, SyscallError> {
        // Opened with protocol 0, so that no frame of another device is queued before the socket is bound.
        // SAFETY: takes plain integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(SyscallError::last("open AF_PACKET socket", format!("interface {ifindex}")));
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self { fd, ifindex };
        socket.bind(protocol)?;
        Ok(socket)
    }

    fn bind(&self, protocol: u16) -> Result<(), SyscallError> {
        // SAFETY: the structure consists of integers, for which all zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.ifindex.cast_signed();
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is valid for its length during the call.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if result == 0 { Ok(()) } else { Err(self.failed_last("bind AF_PACKET socket")) }
    }

    /// The longest frame that the device takes now, without FCS: its MTU and an Ethernet header.
    pub fn l2_bytes_max(&self) -> Result<usize, SyscallError> {
        // SAFETY: the structure consists of integers and a union of such and a pointer; all zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.ifindex.cast_signed();
        self.interface_request(libc::SIOCGIFNAME, &mut request, "ioctl SIOCGIFNAME")?;
        self.interface_request(libc::SIOCGIFMTU, &mut request, "ioctl SIOCGIFMTU")?;
        // SAFETY: the kernel has just written this member of the union.
        let mtu_bytes = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(usize::try_from(mtu_bytes).unwrap_or(0) + ETHERNET_HEADER_BYTES)
    }

    fn interface_request(
        &self,
        number: libc::Ioctl,
        request: &mut libc::ifreq,
        call: &'static str,
    ) -> Result<(), SyscallError> {
        // SAFETY: both callers pass requests that read and write one `ifreq`, which is valid during the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), number, std::ptr::from_mut(request)) };
        if result == 0 { Ok(()) } else { Err(self.failed_last(call)) }
    }

    /// Hands frames to the driver directly, past the queueing discipline (`PACKET_QDISC_BYPASS`).
    ///
    /// Without a queue a busy driver means a lost frame, which [`Self::send`] then reports as not taken.
    pub fn set_qdisc_bypass(&self, bypass: bool) -> Result<(), SyscallError> {
        self.set_option(libc::PACKET_QDISC_BYPASS, &libc::c_int::from(bypass), "set PACKET_QDISC_BYPASS")
    }

    /// Receives frames for any MAC address while the socket is open, where the device would filter them (`PACKET_MR_PROMISC`).
    pub fn set_promiscuous(&self) -> Result<(), SyscallError> {
        let request = libc::packet_mreq {
            mr_ifindex: self.ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set_option(libc::PACKET_ADD_MEMBERSHIP, &request, "set PACKET_ADD_MEMBERSHIP")
    }

    /// Sends one frame; whether it was taken.
    pub fn send(&self, frame: &[u8]) -> Result<bool, SyscallError> {
        let (fd, start) = (self.fd.as_raw_fd(), frame.as_ptr().cast());
        // SAFETY: `frame` is valid for its length during the call.
        let sent = unsafe { libc::send(fd, start, frame.len(), libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(true);
        }
        self.fewer(io::Error::last_os_error()).map(|_| false)
    }

    /// Sends frames `first..first + count` of a batch in one call; how many were taken, from the first on.
    ///
    /// # Panics
    /// When the batch has no such frames.
    pub fn send_batch(
        &self,
        batch: &mut FrameBatch,
        first: usize,
        count: usize,
    ) -> Result<usize, SyscallError> {
        match batch.messages.send(self.fd.as_fd(), first, count, libc::MSG_DONTWAIT) {
            Ok(sent) => Ok(sent),
            Err(error) => self.fewer(error),
        }
    }

    /// Receives one frame into `buffer`, if there is one. A longer frame is cut; the length is what was stored.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, SyscallError> {
        let (fd, start) = (self.fd.as_raw_fd(), buffer.as_mut_ptr().cast());
        // SAFETY: `buffer` is valid for its length during the call.
        let received = unsafe { libc::recv(fd, start, buffer.len(), libc::MSG_DONTWAIT) };
        if let Ok(len) = usize::try_from(received) {
            return Ok(Some(len));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(self.failed("receive frame", error)),
        }
    }

    /// Waits until the kernel has room for more, or the time is over; whether it has.
    pub fn wait_writable(&self, timeout: Duration) -> Result<bool, SyscallError> {
        self.wait(PollFlags::OUT, timeout)
    }

    /// Waits until a frame can be received, or the time is over; whether one can.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool, SyscallError> {
        self.wait(PollFlags::IN, timeout)
    }

    fn wait(&self, flags: PollFlags, timeout: Duration) -> Result<bool, SyscallError> {
        let time = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.fd, flags)], time.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.failed("poll AF_PACKET socket", error.into())),
        }
    }

    /// What the socket received and dropped since the last call: the kernel sets both to 0 when read.
    pub fn statistics(&self) -> Result<PacketStatistics, SyscallError> {
        let ([seen, dropped], _) = sockopt::words32(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
            .map_err(|error| self.failed("read PACKET_STATISTICS", error))?;
        Ok(PacketStatistics { seen, dropped })
    }

    /// Lack of room is no error: nothing was taken.
    ///
    /// ENOBUFS is what the queueing discipline or driver answers when it drops (net/packet/af_packet.c,
    /// `packet_snd`: NET_XMIT_DROP), EAGAIN what the socket answers when its own memory is used up.
    fn fewer(&self, error: io::Error) -> Result<usize, SyscallError> {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(0),
            _ => Err(self.failed("send frames", error)),
        }
    }

    fn set_option<T: Copy>(
        &self,
        name: libc::c_int,
        value: &T,
        call: &'static str,
    ) -> Result<(), SyscallError> {
        sockopt::set(&self.fd, libc::SOL_PACKET, name, value).map_err(|error| self.failed(call, error))
    }

    fn failed(&self, call: &'static str, error: io::Error) -> SyscallError {
        SyscallError::new(call, format!("interface {}", self.ifindex), error)
    }

    fn failed_last(&self, call: &'static str) -> SyscallError {
        self.failed(call, io::Error::last_os_error())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Frames for [`PacketSocket::send_batch`], with everything that the call needs built once.
#[derive(Debug)]
pub struct FrameBatch {
    messages: Messages,
}

impl FrameBatch {
    /// `frames` frames of at most `l2_bytes` bytes, zeroed and of full length.
    ///
    /// # Errors
    /// ENOMEM when there is no memory for it.
    pub fn new(frames: usize, l2_bytes: usize) -> Result<Self, SyscallError> {
        let messages = Messages::new(frames, l2_bytes).map_err(|error| {
            SyscallError::new("allocate frame batch", format!("{frames} frames of {l2_bytes} bytes"), error)
        })?;
        Ok(Self { messages })
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.messages.slots()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a frame, at full length.
    ///
    /// # Panics
    /// When there is no such frame, as with a slice.
    pub fn frame_mut(&mut self, frame: usize) -> &mut [u8] {
        self.messages.slot_mut(frame)
    }

    /// How many bytes of a frame are sent.
    ///
    /// # Panics
    /// When there is no such frame, or `l2_bytes` is more than it holds.
    pub fn set_len(&mut self, frame: usize, l2_bytes: usize) {
        self.messages.set_len(frame, l2_bytes);
    }
}
