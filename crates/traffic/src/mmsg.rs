//! A packet socket and sendmmsg(2): prebuilt frames, many in one system call.
//!
//! The way that works nearly everywhere, also inside a user namespace. Confirmed are the frames that the kernel
//! took: they were handed to the driver (or, without bypass, to the queueing discipline), which did not report a drop.
//!
//! Nearly all of the cost is the kernel's. CPU time of a frame against batches of 64, in interleaved runs
//! with other settings: batches of 16 +7 %, of 256 and 1024 the same, through the queueing discipline
//! (veth has none) the same, frames written one by one the same.

use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::packet::{FrameBatch, PROTOCOL_NONE, PacketSocket};

use crate::backend::{Backend, BackendKind, STALL, SendError, Sent};
use crate::frames::Frames;

/// The kernel takes at most 1024 messages in a call (UIO_MAXIOV, net/socket.c, 6.18).
const BATCH_MAX: usize = 1024;

/// How to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmsgSpec {
    /// The device, in the calling thread's namespace.
    pub ifindex: u32,
    /// Frames in a call, at most 1024.
    pub batch: usize,
    /// Past the queueing discipline.
    pub qdisc_bypass: bool,
}

impl MmsgSpec {
    /// 64 frames a call, past the queueing discipline.
    pub fn new(ifindex: u32) -> Self {
        Self { ifindex, batch: 64, qdisc_bypass: true }
    }
}

/// Sends through a packet socket, in batches.
#[derive(Debug)]
pub struct Mmsg {
    socket: PacketSocket,
    batch: FrameBatch,
    frames: Frames,
    /// The most frames in one call.
    per_call: usize,
    /// Whether each slot always holds the same frame, written once.
    fixed: bool,
    /// The slot that is sent next.
    next: usize,
    /// Slots from `next` on that hold frames not yet taken.
    filled: usize,
    /// Number of the frame that is written next.
    sequence: u64,
}

impl Mmsg {
    /// Opens a socket on the device.
    pub fn new(spec: &MmsgSpec, mut frames: Frames) -> Result<Self, SyscallError> {
        let socket = PacketSocket::open(spec.ifindex, PROTOCOL_NONE)?;
        socket.set_qdisc_bypass(spec.qdisc_bypass)?;
        let per_call = spec.batch.clamp(1, BATCH_MAX);
        // A multiple of a call, so that the end of the slots cuts none short.
        let fixed = frames.fixed_slots(per_call, per_call, BATCH_MAX);
        let mut batch = FrameBatch::new(fixed.unwrap_or(per_call), frames.l2_bytes_max())?;
        if fixed.is_some() {
            (0..batch.len()).for_each(|slot| _ = write_slot(&mut batch, &mut frames, slot, slot as u64));
        }
        Ok(Self { socket, batch, frames, per_call, fixed: fixed.is_some(), next: 0, filled: 0, sequence: 0 })
    }

    /// Makes up to `wanted` frames ready from slot `next` on; how many are. 0 when the frames have come to an end.
    fn prepare(&mut self, wanted: u64) -> usize {
        let most = self.per_call.min(self.batch.len() - self.next);
        let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(most);
        if self.fixed {
            return count;
        }
        while self.filled < count {
            let slot = self.next + self.filled;
            if !write_slot(&mut self.batch, &mut self.frames, slot, self.sequence) {
                break;
            }
            self.sequence += 1;
            self.filled += 1;
        }
        self.filled.min(count)
    }

    /// The kernel took so many, from slot `next` on.
    fn advance(&mut self, taken: usize) {
        self.next = (self.next + taken) % self.batch.len();
        self.filled = self.filled.saturating_sub(taken);
    }
}

impl Backend for Mmsg {
    fn kind(&self) -> BackendKind {
        BackendKind::Mmsg
    }

    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        const WAIT: Duration = Duration::from_millis(1);
        let mut sent = Sent::default();
        let mut stalled_since: Option<Instant> = None;
        while sent.offered < packets {
            let count = self.prepare(packets - sent.offered);
            if count == 0 {
                break;
            }
            let failed = |source| SendError::Syscall { backend: BackendKind::Mmsg, sent, source };
            let taken = self.socket.send_batch(&mut self.batch, self.next, count).map_err(failed)?;
            if taken == 0 {
                if stalled_since.get_or_insert_with(Instant::now).elapsed() > STALL {
                    break;
                }
                self.socket.wait_writable(WAIT).map_err(failed)?;
            } else {
                stalled_since = None;
            }
            self.advance(taken);
            sent += Sent { offered: taken as u64, confirmed: taken as u64, calls: 1 };
        }
        Ok(sent)
    }

    fn ended(&self) -> bool {
        self.frames.ended() && self.filled == 0
    }

    /// Nothing is ever open: what the kernel took is confirmed.
    fn flush(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }
}

/// Whether there was a frame to write.
fn write_slot(batch: &mut FrameBatch, frames: &mut Frames, slot: usize, sequence: u64) -> bool {
    let written = frames.write(sequence, batch.frame_mut(slot));
    if let Some(l2_bytes) = written {
        batch.set_len(slot, l2_bytes);
    }
    written.is_some()
}
