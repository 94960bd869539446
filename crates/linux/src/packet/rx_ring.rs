//! The receive ring of a packet socket (`PACKET_RX_RING`, TPACKET_V3; net/packet/af_packet.c, 6.18).
//!
//! Memory shared with the kernel is divided into blocks. The kernel fills one block after the other with frames of any
//! length, and hands a block over when it is full or when it has been open for a while. This side reads its frames and
//! gives it back. When the next block has not been given back, frames are dropped and counted.
//!
//! The stack takes the outer VLAN tag out of a frame before packet sockets see it; it is counted in the length all the
//! same. With GRO or segmentation offload several packets of a stream may come as one long frame.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::sockopt::socket_error;

use super::mapping::Mapping;
use super::{PROTOCOL_ALL, PROTOCOL_NONE, PacketSocket, PacketStatistics, sockopt};
use crate::SyscallError;

/// Fields of `struct tpacket_block_desc` and of the `struct tpacket_hdr_v1` in it (include/uapi/linux/if_packet.h).
mod block {
    pub(super) const STATUS: usize = 8;
    pub(super) const FRAMES: usize = 12;
    pub(super) const FIRST_FRAME: usize = 16;
}

/// Fields of `struct tpacket3_hdr`.
mod header {
    pub(super) const NEXT: usize = 0;
    pub(super) const STORED_BYTES: usize = 12;
    pub(super) const BYTES: usize = 16;
    pub(super) const STATUS: usize = 20;
    pub(super) const MAC: usize = 24;
}

const VLAN_TAG_BYTES: u32 = 4;

/// The shape of a receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxRingSpec {
    /// Bytes of a block: a multiple of the page size, and room for the longest frame.
    pub block_bytes: usize,
    /// How many blocks.
    pub blocks: usize,
    /// How long a block with frames in it stays open at most, in ms.
    pub block_open_ms: u32,
}

impl Default for RxRingSpec {
    /// 128 blocks of 256 KiB: about 230,000 short frames. A block is open for 10 ms at most.
    fn default() -> Self {
        Self { block_bytes: 256 << 10, blocks: 128, block_open_ms: 10 }
    }
}

/// A frame in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxFrame<'a> {
    /// What is stored of it, without FCS and without the outer VLAN tag.
    pub bytes: &'a [u8],
    /// Its length without FCS, with the VLAN tag.
    pub l2_bytes: u32,
}

/// A receive ring and its socket.
#[derive(Debug)]
pub struct RxRing {
    memory: Mapping,
    socket: PacketSocket,
    spec: RxRingSpec,
    /// The block that is handed over next.
    next: usize,
    dropped: u64,
}

impl RxRing {
    /// Opens a ring that receives what arrives on a device of the calling thread's namespace, and not what it sends.
    ///
    /// # Errors
    /// Those of [`PacketSocket::open`]; ENOMEM when there is no memory; EINVAL for sizes that the kernel does not take;
    /// ENOPROTOOPT before Linux 4.20.
    pub fn open(ifindex: u32, spec: &RxRingSpec) -> Result<Self, SyscallError> {
        /// The kernel wants a frame size, which means nothing in this version but must divide a block.
        const FRAME_BYTES: usize = 2048;
        let socket = PacketSocket::open(ifindex, PROTOCOL_NONE)?;
        socket.set_option(libc::PACKET_IGNORE_OUTGOING, &1_i32, "set PACKET_IGNORE_OUTGOING")?;
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        socket.set_option(libc::PACKET_VERSION, &version, "set PACKET_VERSION")?;
        let ring_bytes = spec.block_bytes.saturating_mul(spec.blocks);
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let request = libc::tpacket_req3 {
            tp_block_size: number(spec.block_bytes),
            tp_block_nr: number(spec.blocks),
            tp_frame_size: number(FRAME_BYTES),
            tp_frame_nr: number(ring_bytes / FRAME_BYTES),
            tp_retire_blk_tov: spec.block_open_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        sockopt::set(&socket.fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|error| {
            let shape = format!("{} blocks of {} bytes", spec.blocks, spec.block_bytes);
            socket.failed("set PACKET_RX_RING", error).with_detail(shape)
        })?;
        let memory = Mapping::shared(socket.as_fd(), 0, ring_bytes)
            .map_err(|error| socket.failed("mmap PACKET_RX_RING", error))?;
        // Only now, so that nothing went to the socket's queue before there was a ring.
        socket.bind(PROTOCOL_ALL)?;
        Ok(Self { memory, socket, spec: *spec, next: 0, dropped: 0 })
    }

    /// Its shape.
    pub fn spec(&self) -> &RxRingSpec {
        &self.spec
    }

    /// Takes the next block, if there is one, and shows each of its frames in the order of their arrival; how many there
    /// were.
    pub fn take_block(&mut self, frame: impl FnMut(RxFrame<'_>)) -> Option<u32> {
        let start = self.next * self.spec.block_bytes;
        if !self.is_block_ready() {
            return None;
        }
        let frames = walk(self.memory.bytes_mut(start, self.spec.block_bytes), frame);
        // Release: everything was read before the kernel may write to the block again.
        self.memory.word32(start + block::STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.spec.blocks;
        Some(frames)
    }

    /// Waits until a block can be taken, or the time is over; whether one can.
    ///
    /// # Errors
    /// ENETDOWN when the device went down or away.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SyscallError> {
        if self.is_block_ready() {
            return Ok(true);
        }
        let woken = self.socket.wait_readable(timeout)?;
        if self.is_block_ready() {
            return Ok(true);
        }
        if woken {
            match socket_error(&self.socket.fd) {
                Ok(Err(error)) | Err(error) => {
                    return Err(self.socket.failed("receive from PACKET_RX_RING", error.into()));
                }
                Ok(Ok(())) => {}
            }
        }
        Ok(false)
    }

    /// Receives nothing more. What is in the ring stays there; the block that is open is handed over within
    /// [`RxRingSpec::block_open_ms`].
    pub fn stop(&self) -> Result<(), SyscallError> {
        self.socket.bind(PROTOCOL_NONE)
    }

    /// Frames dropped since the ring was opened, because no block was free.
    ///
    /// The kernel counts them in 32 bits and from 0 after each call: ask at least once in four thousand million drops.
    pub fn dropped(&mut self) -> Result<u64, SyscallError> {
        let PacketStatistics { dropped, .. } = self.socket.statistics()?;
        self.dropped += u64::from(dropped);
        Ok(self.dropped)
    }

    fn is_block_ready(&self) -> bool {
        // Acquire: the block's content is read after the status that hands it over.
        let status = self.memory.word32(self.next * self.spec.block_bytes + block::STATUS);
        status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }
}

/// Shows the frames of a block; how many. The last one has no next; offsets that lead out of the block end it too.
fn walk(memory: &[u8], mut frame: impl FnMut(RxFrame<'_>)) -> u32 {
    let word = |at: usize| -> Option<u32> {
        let bytes = memory.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let mut one = |at: usize| -> Option<usize> {
        let mac = memory.get(at + header::MAC..)?.first_chunk::<2>()?;
        let start = at + usize::from(u16::from_ne_bytes(*mac));
        let stored_bytes = word(at + header::STORED_BYTES)? as usize;
        let bytes = memory.get(start..)?.get(..stored_bytes)?;
        let has_tag = word(at + header::STATUS)? & libc::TP_STATUS_VLAN_VALID != 0;
        let l2_bytes = word(at + header::BYTES)?.saturating_add(if has_tag { VLAN_TAG_BYTES } else { 0 });
        frame(RxFrame { bytes, l2_bytes });
        Some(word(at + header::NEXT)? as usize)
    };
    let frames = word(block::FRAMES).unwrap_or(0);
    let mut at = word(block::FIRST_FRAME).unwrap_or(0) as usize;
    for seen in 0..frames {
        match one(at) {
            None => return seen,
            Some(0) => return seen + 1,
            Some(next) => at += next,
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn put(memory: &mut [u8], at: usize, value: u32) {
        memory[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// A block of two frames, of 3 and 5 bytes.
    fn two_frames() -> Vec<u8> {
        let mut memory = vec![0; 512];
        put(&mut memory, block::FRAMES, 2);
        put(&mut memory, block::FIRST_FRAME, 48);
        for (at, bytes, next) in [(48, 3_u8, 144), (192, 5, 0)] {
            put(&mut memory, at + header::NEXT, next);
            put(&mut memory, at + header::STORED_BYTES, u32::from(bytes));
            put(&mut memory, at + header::BYTES, u32::from(bytes));
            memory[at + header::MAC..at + header::MAC + 2].copy_from_slice(&82_u16.to_ne_bytes());
            memory[at + 82..at + 82 + usize::from(bytes)].fill(bytes);
        }
        memory
    }

    fn walked(memory: &[u8]) -> Vec<(Vec<u8>, u32)> {
        let mut frames = Vec::new();
        let count = walk(memory, |frame| frames.push((frame.bytes.to_vec(), frame.l2_bytes)));
        assert_eq!(count as usize, frames.len());
        frames
    }

    #[test]
    fn the_frames_of_a_block_are_shown() {
        let mut memory = two_frames();
        put(&mut memory, 192 + header::STATUS, libc::TP_STATUS_USER | libc::TP_STATUS_VLAN_VALID);
        assert_eq!(walked(&memory), [(vec![3; 3], 3), (vec![5; 5], 9)]);
    }

    #[test]
    fn offsets_out_of_the_block_end_it() {
        for (at, value, left) in [
            (block::FRAMES, u32::MAX, 2),
            (block::FRAMES, 1, 1),
            (block::FIRST_FRAME, 600, 0),
            (block::FIRST_FRAME, u32::MAX, 0),
            (48 + header::NEXT, 0, 1),
            (48 + header::NEXT, u32::MAX, 1),
            (48 + header::STORED_BYTES, u32::MAX, 0),
            (192 + header::MAC, u32::MAX, 1),
        ] {
            let mut memory = two_frames();
            put(&mut memory, at, value);
            assert_eq!(walked(&memory).len(), left, "{value} at {at}");
        }
    }

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        use libc::{tpacket_hdr_v1, tpacket3_hdr};
        assert_eq!(block::STATUS, 8 + offset_of!(tpacket_hdr_v1, block_status));
        assert_eq!(block::FRAMES, 8 + offset_of!(tpacket_hdr_v1, num_pkts));
        assert_eq!(block::FIRST_FRAME, 8 + offset_of!(tpacket_hdr_v1, offset_to_first_pkt));
        assert_eq!(header::NEXT, offset_of!(tpacket3_hdr, tp_next_offset));
        assert_eq!(header::STORED_BYTES, offset_of!(tpacket3_hdr, tp_snaplen));
        assert_eq!(header::BYTES, offset_of!(tpacket3_hdr, tp_len));
        assert_eq!(header::STATUS, offset_of!(tpacket3_hdr, tp_status));
        assert_eq!(header::MAC, offset_of!(tpacket3_hdr, tp_mac));
    }
}
