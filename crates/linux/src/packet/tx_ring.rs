//! The transmit ring of a packet socket (`PACKET_TX_RING`, TPACKET_V2; net/packet/af_packet.c, 6.18).
//!
//! Memory shared with the kernel holds slots, each a header and room for a frame. This side fills a slot and sets
//! its status to "send"; one system call then makes the kernel walk the slots in order. The kernel sets a slot to
//! "available" again when the frame's socket buffer is gone, which is the moment that counts as sent here.
//!
//! The kernel does not change a frame's bytes, so a slot filled once may be sent again and again
//! ([`TxRing::push_as_is`]).
//!
//! By itself the kernel copies only the Ethernet header and lets the socket buffer point into the slot for the rest.
//! A veth pair (and every device that hands frames on to the stack) then has to copy that rest into a page of its
//! own, which costs more than it saved. With [`RingSpec::linear`] each slot begins with a `virtio_net_hdr` whose
//! header length is the whole frame's, and the kernel copies all of it at once.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::mapping::Mapping;
use super::{PacketSocket, sockopt};
use crate::SyscallError;

/// `struct tpacket2_hdr`: the status, the frame's length, and where the frame begins when the kernel is told
/// nothing else (`tpacket_parse_header`: TPACKET2_HDRLEN less the `sockaddr_ll`).
const STATUS_AT: usize = 0;
const LENGTH_AT: usize = 4;
const FRAME_AT: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();

/// `struct virtio_net_hdr`, and its field `hdr_len`, in the byte order of the machine (include/uapi/linux/virtio_net.h).
const OFFLOAD_BYTES: usize = 10;
const OFFLOAD_HEADER_LENGTH: std::ops::Range<usize> = 2..4;

const AVAILABLE: u32 = 0;
const SEND_REQUEST: u32 = 1;
const WRONG_FORMAT: u32 = 4;
/// Bits that only say how a time stamp was taken.
const TIME_STAMP_BITS: u32 = 0b111 << 29;

/// The shape of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSpec {
    /// How many frames it should hold; rounded up to whole blocks.
    pub frames: usize,
    /// The longest frame, without FCS.
    pub l2_bytes: usize,
    /// What the kernel does with a frame that it cannot send, for instance one above the MTU (`PACKET_LOSS`).
    /// With true it skips the slot and makes it look sent; with false it stops there and reports it.
    pub skip_malformed: bool,
    /// Frames are copied whole into the linear part of their socket buffer (`PACKET_VNET_HDR`). It pays for short
    /// frames; [`TxRing::is_linear`] says whether it is so: the kernel does not check the MTU then, so it is not
    /// done where `l2_bytes` is above it.
    pub linear: bool,
}

/// What became of the frames put into a ring, since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingState {
    /// Frames put into slots.
    pub queued: u64,
    /// Frames whose slot the kernel gave back. Their buffers went through the device; see the module
    /// [`super`] on what may still happen to them.
    pub completed: u64,
}

impl RingState {
    /// Frames that the kernel still has.
    pub fn outstanding(&self) -> u64 {
        self.queued - self.completed
    }
}

/// A transmit ring and its socket.
#[derive(Debug)]
pub struct TxRing {
    memory: Mapping,
    socket: PacketSocket,
    slots: usize,
    slot_bytes: usize,
    /// Bytes between the place where the kernel looks and the frame.
    offload_bytes: usize,
    /// The slot that is filled next.
    next: usize,
    state: RingState,
}

impl TxRing {
    /// Turns a socket into a ring.
    ///
    /// # Errors
    /// ENOMEM when the kernel has no contiguous blocks; EINVAL for a frame longer than a block can be.
    pub fn new(socket: PacketSocket, spec: &RingSpec) -> Result<Self, SyscallError> {
        let linear = spec.linear && spec.l2_bytes <= socket.l2_bytes_max()?;
        let offload_bytes = if linear { OFFLOAD_BYTES } else { 0 };
        let (slot_bytes, block_bytes) = layout(spec.l2_bytes.saturating_add(offload_bytes));
        let slots = spec.frames.max(1).next_multiple_of(block_bytes / slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: (slots * slot_bytes / block_bytes) as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        socket.set_option(libc::PACKET_VERSION, &version, "set PACKET_VERSION")?;
        let loss = libc::c_int::from(spec.skip_malformed);
        socket.set_option(libc::PACKET_LOSS, &loss, "set PACKET_LOSS")?;
        socket.set_option(libc::PACKET_VNET_HDR, &libc::c_int::from(linear), "set PACKET_VNET_HDR")?;
        sockopt::set(&socket.fd, libc::SOL_PACKET, libc::PACKET_TX_RING, &request).map_err(|error| {
            socket
                .failed("set PACKET_TX_RING", error)
                .with_detail(format!("{slots} slots of {slot_bytes} bytes"))
        })?;
        let memory = Mapping::shared(socket.as_fd(), 0, slots * slot_bytes)
            .map_err(|error| socket.failed("mmap PACKET_TX_RING", error))?;
        Ok(Self { memory, socket, slots, slot_bytes, offload_bytes, next: 0, state: RingState::default() })
    }

    /// How many slots there are; they are used in turn, from the first.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The longest frame that fits a slot, without FCS.
    pub fn l2_bytes_max(&self) -> usize {
        self.slot_bytes - FRAME_AT - self.offload_bytes
    }

    /// Whether frames are copied whole when sent.
    pub fn is_linear(&self) -> bool {
        self.offload_bytes > 0
    }

    /// The socket.
    pub fn socket(&self) -> &PacketSocket {
        &self.socket
    }

    /// What became of the frames so far. Completions are noticed when slots are used again, and by
    /// [`Self::reap`] and [`Self::flush`].
    pub fn state(&self) -> RingState {
        self.state
    }

    /// Puts a frame into the next slot; false when the ring is full or there is no frame. `fill` gets the slot's whole
    /// room and returns how long the frame is, or `None` when there is none.
    ///
    /// Nothing is sent before [`Self::kick`].
    ///
    /// # Errors
    /// EMSGSIZE when the kernel stopped at a frame that it cannot send.
    pub fn push(&mut self, fill: impl FnOnce(&mut [u8]) -> Option<usize>) -> Result<bool, SyscallError> {
        if !self.next_is_free()? {
            return Ok(false);
        }
        let (slot, room) = (self.next * self.slot_bytes, self.l2_bytes_max());
        let (offload, frame) = self
            .memory
            .bytes_mut(slot + FRAME_AT, self.offload_bytes + room)
            .split_at_mut(self.offload_bytes);
        let Some(len) = fill(frame).map(|len| len.min(room)) else { return Ok(false) };
        if let Some(header_length) = offload.get_mut(OFFLOAD_HEADER_LENGTH) {
            header_length.copy_from_slice(&(len as u16).to_ne_bytes());
        }
        let handed = (self.offload_bytes + len) as u32;
        self.memory.word32(slot + LENGTH_AT).store(handed, Ordering::Relaxed);
        self.hand_over();
        Ok(true)
    }

    /// Sends what the next slot already holds, from when it was last pushed; false when the ring is full.
    ///
    /// A slot that was never pushed holds a frame of no bytes, which the kernel refuses.
    pub fn push_as_is(&mut self) -> Result<bool, SyscallError> {
        let free = self.next_is_free()?;
        if free {
            self.hand_over();
        }
        Ok(free)
    }

    /// Makes the kernel send what is queued; returns at once or when all of it went through the device, as the
    /// driver does it. Lack of room is no error.
    pub fn kick(&self) -> Result<(), SyscallError> {
        let (fd, flags) = (self.socket.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: a null buffer of length 0 is what the ring interface takes; no address is given.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if sent >= 0 {
            return Ok(());
        }
        self.socket.fewer(std::io::Error::last_os_error()).map(|_| ())
    }

    /// Notices completions, in order, and returns the state.
    ///
    /// # Errors
    /// EMSGSIZE when the kernel stopped at a frame that it cannot send.
    pub fn reap(&mut self) -> Result<RingState, SyscallError> {
        while self.state.outstanding() > 0 && self.oldest_is_back()? {
            self.state.completed += 1;
        }
        Ok(self.state)
    }

    /// Sends what is queued and waits until the kernel gave back every slot, at most for `timeout`.
    /// What is still outstanding then is in the state returned.
    pub fn flush(&mut self, timeout: Duration) -> Result<RingState, SyscallError> {
        const POLL: Duration = Duration::from_millis(1);
        let deadline = Instant::now() + timeout;
        loop {
            self.kick()?;
            let state = self.reap()?;
            if state.outstanding() == 0 || Instant::now() >= deadline {
                return Ok(state);
            }
            self.socket.wait_writable(POLL)?;
        }
    }

    fn next_is_free(&mut self) -> Result<bool, SyscallError> {
        if self.state.outstanding() < self.slots as u64 {
            return Ok(true);
        }
        // The ring is full, so the next slot is also the oldest.
        let free = self.oldest_is_back()?;
        self.state.completed += u64::from(free);
        Ok(free)
    }

    fn hand_over(&mut self) {
        // Release: the frame and its length are in memory before the kernel can see the status.
        self.memory.word32(self.next * self.slot_bytes + STATUS_AT).store(SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        self.state.queued += 1;
    }

    fn oldest_is_back(&self) -> Result<bool, SyscallError> {
        let behind = self.state.outstanding() as usize % self.slots;
        let oldest = (self.next + self.slots - behind) % self.slots;
        // Acquire: the kernel is done with the frame once its status is seen.
        let status = self.memory.word32(oldest * self.slot_bytes + STATUS_AT).load(Ordering::Acquire);
        if status & WRONG_FORMAT != 0 {
            let error = std::io::Error::from_raw_os_error(libc::EMSGSIZE);
            return Err(self.socket.failed("send frame from PACKET_TX_RING", error));
        }
        Ok(status & !TIME_STAMP_BITS == AVAILABLE)
    }
}

/// Bytes of a slot and of a block. Both are powers of two, so that slots lie one after the other; small slots
/// keep the ring in the cache.
fn layout(l2_bytes: usize) -> (usize, usize) {
    let slot = l2_bytes.min(1 << 20).saturating_add(FRAME_AT).max(libc::TPACKET2_HDRLEN).next_power_of_two();
    (slot, slot.max(rustix::param::page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_the_frame_and_fill_blocks() {
        for l2_bytes in [0, 14, 60, 64, 96, 97, 268, 1514, 2048, 9000, 65_535, usize::MAX] {
            let (slot, block) = layout(l2_bytes);
            assert!(slot >= l2_bytes.min(1 << 20) + FRAME_AT && slot >= libc::TPACKET2_HDRLEN);
            assert!(block % slot == 0 && block % rustix::param::page_size() == 0, "{l2_bytes}");
        }
        assert_eq!(layout(60), (128, 4096));
    }

    #[test]
    fn the_frame_starts_where_the_kernel_looks() {
        assert_eq!(FRAME_AT, 32);
    }
}
