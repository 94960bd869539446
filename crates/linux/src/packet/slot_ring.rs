//! A receive ring of a packet socket with a slot for each frame (`PACKET_RX_RING`, TPACKET_V2; net/packet/af_packet.c,
//! 6.18).
//!
//! A frame can be taken as soon as the kernel has written it. In the ring of blocks ([`super::RxRing`], TPACKET_V3) it waits
//! until its block is full or a timer of at least 1 ms closes it, which is no matter for counting and much for
//! forwarding: each frame of a ping would wait that long.
//!
//! A frame comes as the sender's stack left it, with what was left to the device ([`Offload`], `PACKET_VNET_HDR`). The outer
//! VLAN tag, which the stack takes out before packet sockets see a frame, is put back. A frame longer than a slot, as
//! segmentation offload makes them, is fetched from the socket by a call of its own (`PACKET_COPY_THRESH`).

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::sockopt::socket_error;

use super::mapping::Mapping;
use super::{PROTOCOL_ALL, PROTOCOL_NONE, PacketSocket, PacketStatistics, sockopt};
use crate::SyscallError;
use crate::offload::{self, Offload};

/// Fields of `struct tpacket2_hdr` (include/uapi/linux/if_packet.h).
mod header {
    pub(super) const STATUS: usize = 0;
    pub(super) const BYTES: usize = 4;
    pub(super) const STORED_BYTES: usize = 8;
    pub(super) const MAC: usize = 12;
    pub(super) const VLAN_TCI: usize = 24;
    pub(super) const VLAN_TYPE: usize = 26;
    pub(super) const END: usize = 32;
}

/// Where the kernel puts the frame: behind the header and an address, so that what follows the Ethernet header is aligned,
/// and behind the offload header (`tpacket_rcv`).
const FRAME_AT: usize = (libc::TPACKET2_HDRLEN + 16).next_multiple_of(16) + offload::HEADER_BYTES - 14;
const MAC_ADDRESSES_BYTES: usize = 12;
const TAG_BYTES: usize = 4;
const TAG_TYPE: u16 = 0x8100;
/// The longest frame that a stack hands over with segmentation offload by default (GSO_LEGACY_MAX_SIZE), with headers.
const LONG_BYTES: usize = (64 << 10) + 256;

/// The shape of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRingSpec {
    /// How many slots, rounded up to whole blocks.
    pub slots: usize,
    /// The longest frame that lies in a slot, without FCS.
    pub l2_bytes: usize,
    /// Receives frames for other MAC addresses too, where the device would not (`PACKET_MR_PROMISC`).
    pub promiscuous: bool,
}

impl Default for SlotRingSpec {
    /// 2048 slots for Ethernet frames with the usual MTU.
    fn default() -> Self {
        Self { slots: 2048, l2_bytes: 1514, promiscuous: false }
    }
}

/// A frame at the front of the ring.
#[derive(Debug)]
pub struct SlotFrame<'a> {
    /// Its bytes without FCS; they may be changed.
    pub bytes: &'a mut [u8],
    /// What the sender left undone.
    pub offload: Offload,
}

/// A receive ring and its socket.
#[derive(Debug)]
pub struct SlotRing {
    memory: Mapping,
    socket: PacketSocket,
    layout: Layout,
    slots: usize,
    /// The slot that is handed over next.
    next: usize,
    /// What is known of the frame in it, once it was looked at.
    front: Option<Front>,
    /// A frame that was longer than its slot.
    long: Box<[u8]>,
    dropped: u64,
    cut: u64,
}

/// The frame at the front.
#[derive(Debug, Clone, Copy)]
struct Front {
    is_long: bool,
    /// Where it begins, in its slot or in `long`.
    start: usize,
    bytes: usize,
    offload: Offload,
}

impl SlotRing {
    /// Opens a ring that receives what arrives on a device of the calling thread's namespace, and not what it sends.
    ///
    /// # Errors
    /// Those of [`PacketSocket::open`]; ENOMEM when there is no memory; EINVAL for sizes that the kernel does not take;
    /// ENOPROTOOPT before Linux 4.20.
    pub fn open(ifindex: u32, spec: &SlotRingSpec) -> Result<Self, SyscallError> {
        let socket = PacketSocket::open(ifindex, PROTOCOL_NONE)?;
        socket.set_option(libc::PACKET_IGNORE_OUTGOING, &1_i32, "set PACKET_IGNORE_OUTGOING")?;
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        socket.set_option(libc::PACKET_VERSION, &version, "set PACKET_VERSION")?;
        socket.set_option(libc::PACKET_VNET_HDR, &1_i32, "set PACKET_VNET_HDR")?;
        socket.set_option(libc::PACKET_COPY_THRESH, &1_i32, "set PACKET_COPY_THRESH")?;
        make_room_for_long_frames(&socket)?;
        let layout = Layout::of(spec.l2_bytes);
        let blocks = spec.slots.max(1).div_ceil(layout.slots_per_block);
        let slots = blocks * layout.slots_per_block;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let request = libc::tpacket_req {
            tp_block_size: number(layout.block_bytes),
            tp_block_nr: number(blocks),
            tp_frame_size: number(layout.slot_bytes),
            tp_frame_nr: number(slots),
        };
        sockopt::set(&socket.fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|error| {
            let shape = format!("{slots} slots of {} bytes", layout.slot_bytes);
            socket.failed("set PACKET_RX_RING", error).with_detail(shape)
        })?;
        let memory = Mapping::shared(socket.as_fd(), 0, blocks * layout.block_bytes)
            .map_err(|error| socket.failed("mmap PACKET_RX_RING", error))?;
        if spec.promiscuous {
            socket.set_promiscuous()?;
        }
        // Only now, so that nothing went to the socket's queue before there was a ring.
        socket.bind(PROTOCOL_ALL)?;
        let long = vec![0; LONG_BYTES].into();
        Ok(Self { memory, socket, layout, slots, next: 0, front: None, long, dropped: 0, cut: 0 })
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The frame at the front, if there is one. It stays there until [`Self::release`].
    ///
    /// # Errors
    /// ENETDOWN when the device went down, noticed here only by way of a long frame; see [`Self::check`].
    #[inline]
    pub fn front(&mut self) -> Result<Option<SlotFrame<'_>>, SyscallError> {
        while self.front.is_none() {
            if !self.is_ready() {
                return Ok(None);
            }
            self.front = self.look()?;
            if self.front.is_none() {
                self.cut += 1;
                self.release();
            }
        }
        let Some(Front { is_long, start, bytes, offload }) = self.front else { return Ok(None) };
        let bytes = if is_long {
            &mut self.long[start..start + bytes]
        } else {
            self.memory.bytes_mut(self.layout.offset(self.next) + start, bytes)
        };
        Ok(Some(SlotFrame { bytes, offload }))
    }

    /// Gives the slot at the front back to the kernel. Does nothing if there is no frame in it.
    #[inline]
    pub fn release(&mut self) {
        if !self.is_ready() {
            return;
        }
        self.front = None;
        let status = self.memory.word32(self.layout.offset(self.next) + header::STATUS);
        // Release: everything was read before the kernel may write to the slot again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
    }

    /// Waits until there is a frame, or the time is over; whether there is one.
    ///
    /// # Errors
    /// ENETDOWN when the device went down or away.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SyscallError> {
        if self.is_ready() {
            return Ok(true);
        }
        let woken = self.socket.wait_readable(timeout)?;
        if self.is_ready() {
            return Ok(true);
        }
        if woken {
            self.check()?;
        }
        Ok(false)
    }

    /// Whether the device is still there: to be asked now and then by who never waits. The kernel tells it once.
    ///
    /// # Errors
    /// ENETDOWN when it went down or away.
    pub fn check(&self) -> Result<(), SyscallError> {
        match socket_error(&self.socket.fd) {
            Ok(Err(error)) | Err(error) => {
                Err(self.socket.failed("receive from PACKET_RX_RING", error.into()))
            }
            Ok(Ok(())) => Ok(()),
        }
    }

    /// Frames lost since the ring was opened: because no slot was free, and long ones for which the socket had no room.
    ///
    /// The kernel counts the first in 32 bits and from 0 after each call: ask at least once in four thousand million.
    pub fn dropped(&mut self) -> Result<u64, SyscallError> {
        let PacketStatistics { dropped, .. } = self.socket.statistics()?;
        self.dropped += u64::from(dropped);
        Ok(self.dropped + self.cut)
    }

    #[inline]
    fn is_ready(&self) -> bool {
        // Acquire: the slot's content is read after the status that hands it over.
        let status = self.memory.word32(self.layout.offset(self.next) + header::STATUS);
        status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Finds the frame in a slot that is ready; None if a part of it is lost.
    fn look(&mut self) -> Result<Option<Front>, SyscallError> {
        let slot = self.memory.bytes_mut(self.layout.offset(self.next), self.layout.slot_bytes);
        let Some(Stored { mac, bytes, stored_bytes, tag, is_copied }) = Stored::read(slot) else {
            return Ok(None);
        };
        if stored_bytes == bytes {
            return Ok(found(slot, mac, bytes, tag, false));
        }
        if !is_copied {
            return Ok(None);
        }
        // The offload header comes first.
        match self.socket.receive(&mut self.long)? {
            Some(received) if received == bytes + offload::HEADER_BYTES => {
                Ok(found(&mut self.long, offload::HEADER_BYTES, bytes, tag, true))
            }
            _ => Ok(None),
        }
    }
}

/// What the header of a slot says.
struct Stored {
    mac: usize,
    bytes: usize,
    stored_bytes: usize,
    tag: Option<[u8; TAG_BYTES]>,
    is_copied: bool,
}

impl Stored {
    fn read(slot: &[u8]) -> Option<Self> {
        let fields = slot.first_chunk::<{ header::END }>()?;
        let word =
            |at: usize| u32::from_ne_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let short = |at: usize| u16::from_ne_bytes([fields[at], fields[at + 1]]);
        let status = word(header::STATUS);
        let has_type = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let tag_type = if has_type { short(header::VLAN_TYPE) } else { TAG_TYPE };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let ([t0, t1], [c0, c1]) = (tag_type.to_be_bytes(), short(header::VLAN_TCI).to_be_bytes());
            [t0, t1, c0, c1]
        });
        Some(Self {
            mac: usize::from(short(header::MAC)),
            bytes: word(header::BYTES) as usize,
            stored_bytes: word(header::STORED_BYTES) as usize,
            tag,
            is_copied: status & libc::TP_STATUS_COPY != 0,
        })
    }
}

/// The frame at `mac`, behind its offload header, over which its MAC addresses move if a tag is to be put back.
#[inline]
fn found(
    memory: &mut [u8],
    mac: usize,
    bytes: usize,
    tag: Option<[u8; TAG_BYTES]>,
    is_long: bool,
) -> Option<Front> {
    let begin = mac.checked_sub(offload::HEADER_BYTES)?;
    let (header, frame) = memory.get_mut(begin..mac.checked_add(bytes)?)?.split_at(offload::HEADER_BYTES);
    let offload = Offload::read(header);
    let Some(tag) = tag.filter(|_| frame.len() >= MAC_ADDRESSES_BYTES) else {
        return Some(Front { is_long, start: mac, bytes, offload });
    };
    let start = mac - TAG_BYTES;
    memory.copy_within(mac..mac + MAC_ADDRESSES_BYTES, start);
    memory[start + MAC_ADDRESSES_BYTES..][..TAG_BYTES].copy_from_slice(&tag);
    Some(Front { is_long, start, bytes: bytes + TAG_BYTES, offload: offload.moved_by(TAG_BYTES) })
}

/// Room for some dozen long frames; the system's limit holds where the process may not exceed it.
fn make_room_for_long_frames(socket: &PacketSocket) -> Result<(), SyscallError> {
    const ROOM_BYTES: libc::c_int = 16 << 20;
    let forced = sockopt::set(&socket.fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM_BYTES);
    forced
        .or_else(|_| sockopt::set(&socket.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &ROOM_BYTES))
        .map_err(|error| socket.failed("set SO_RCVBUF", error))
}

/// Where slots lie. A block has a whole number of them, and some bytes behind that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    slot_bytes: usize,
    block_bytes: usize,
    slots_per_block: usize,
}

impl Layout {
    /// An odd number of cache lines a slot: with a power of two, all headers would fall into the same few sets of the cache.
    fn of(l2_bytes: usize) -> Self {
        const LINE: usize = 64;
        const BLOCK_BYTES: usize = 64 << 10;
        let lines = (FRAME_AT + l2_bytes.min(LONG_BYTES)).div_ceil(LINE) | 1;
        let slot_bytes = lines * LINE;
        let block_bytes = BLOCK_BYTES.max(slot_bytes.next_multiple_of(rustix::param::page_size()));
        Self { slot_bytes, block_bytes, slots_per_block: block_bytes / slot_bytes }
    }

    #[inline]
    fn offset(&self, slot: usize) -> usize {
        slot / self.slots_per_block * self.block_bytes + slot % self.slots_per_block * self.slot_bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// A slot with a frame of 20 bytes, numbered, at 76.
    fn slot(status: u32, bytes: u32, stored_bytes: u32) -> Vec<u8> {
        let mut memory = vec![0; 192];
        for (at, value) in
            [(header::STATUS, status), (header::BYTES, bytes), (header::STORED_BYTES, stored_bytes)]
        {
            memory[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(header::MAC, 76_u16), (header::VLAN_TCI, 0x0123), (header::VLAN_TYPE, 0x88a8)] {
            memory[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in (0..20).enumerate() {
            memory[76 + at] = value;
        }
        memory
    }

    fn taken(memory: &mut [u8]) -> Option<(Vec<u8>, Offload)> {
        let stored = Stored::read(memory)?;
        let front = found(memory, stored.mac, stored.bytes, stored.tag, false)?;
        Some((memory[front.start..front.start + front.bytes].to_vec(), front.offload))
    }

    #[test]
    fn a_frame_without_tag_stays_where_it_is() {
        let (bytes, offload) = taken(&mut slot(libc::TP_STATUS_USER, 20, 20)).unwrap();
        assert_eq!(bytes, (0..20).collect::<Vec<u8>>());
        assert!(offload.is_none());
    }

    #[test]
    fn a_tag_is_put_back_and_what_is_left_to_do_moves_with_it() {
        let valid = libc::TP_STATUS_USER | libc::TP_STATUS_VLAN_VALID;
        for (status, tag_type) in [(valid, 0x8100_u16), (valid | libc::TP_STATUS_VLAN_TPID_VALID, 0x88a8)] {
            let mut memory = slot(status, 20, 20);
            memory[66] = 1; // a checksum, to be summed from 14
            memory[66 + 6] = 14;
            let (bytes, offload) = taken(&mut memory).unwrap();
            let tag = [tag_type.to_be_bytes(), [0x01, 0x23]].concat();
            let expected = [(0..12).collect(), tag, (12..20).collect::<Vec<u8>>()].concat();
            assert_eq!(bytes, expected);
            assert_eq!(offload.checksum.map(|sum| sum.start), Some(18));
        }
    }

    #[test]
    fn lengths_out_of_the_slot_are_no_frame() {
        for (bytes, mac) in [(200, 76_u16), (u32::MAX, 76), (20, 9), (20, u16::MAX)] {
            let mut memory = slot(libc::TP_STATUS_USER | libc::TP_STATUS_VLAN_VALID, bytes, bytes);
            memory[header::MAC..header::MAC + 2].copy_from_slice(&mac.to_ne_bytes());
            assert!(taken(&mut memory).is_none(), "{bytes} at {mac}");
        }
        assert!(taken(&mut [0; 31]).is_none());
    }

    #[test]
    fn slots_hold_the_frame_and_do_not_overlap() {
        for l2_bytes in [0, 60, 1514, 1518, 9014, 70_000, usize::MAX] {
            let layout = Layout::of(l2_bytes);
            assert!(layout.slot_bytes >= l2_bytes.min(LONG_BYTES) + FRAME_AT);
            assert!(layout.slot_bytes / 64 % 2 == 1 && layout.slot_bytes.is_multiple_of(64));
            let (last, first) = (layout.slots_per_block - 1, layout.slots_per_block);
            assert!(layout.offset(last) + layout.slot_bytes <= layout.offset(first));
            assert_eq!(layout.offset(first), layout.block_bytes);
        }
        assert_eq!(Layout::of(1514).slot_bytes, 1600);
    }

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        use libc::tpacket2_hdr;
        assert_eq!(header::STATUS, offset_of!(tpacket2_hdr, tp_status));
        assert_eq!(header::BYTES, offset_of!(tpacket2_hdr, tp_len));
        assert_eq!(header::STORED_BYTES, offset_of!(tpacket2_hdr, tp_snaplen));
        assert_eq!(header::MAC, offset_of!(tpacket2_hdr, tp_mac));
        assert_eq!(header::VLAN_TCI, offset_of!(tpacket2_hdr, tp_vlan_tci));
        assert_eq!(header::VLAN_TYPE, offset_of!(tpacket2_hdr, tp_vlan_tpid));
        assert_eq!(header::END, size_of::<tpacket2_hdr>());
    }
}
