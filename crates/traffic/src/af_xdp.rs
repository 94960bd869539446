//! An AF_XDP socket.
//!
//! Frames lie in chunks of memory that the kernel knows; what is sent is their address. In copy mode the kernel makes
//! a socket buffer for each and copies the frame into it. Confirmed are the frames of the completion ring: their
//! buffer is gone, or the device has sent them. A driver that drops a frame completes it as well.
//!
//! CPU time of a frame in copy mode over a veth pair, in interleaved runs with other
//! settings: rings of 32 entries +6 % against 512, of 64 to 256 +0 to 3 %, of 2048 less by up to 7 %; frames written one
//! by one +1 %. A socket sends as many frames per call as its ring holds where the kernel allows that (Linux 6.17).

use std::collections::VecDeque;
use std::time::Instant;

use linux::SyscallError;
use linux::xsk::{BindMode, Descriptor, XskSocket, XskSpec, when_free};

use crate::backend::{Backend, BackendKind, STALL, SendError, Sent};
use crate::frames::Frames;

/// How to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AfXdpSpec {
    /// The device, in the calling thread's namespace.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// Entries of the transmit ring, a power of two.
    pub entries: u32,
    /// Copy or zero copy.
    pub mode: BindMode,
}

impl AfXdpSpec {
    /// Copy mode on queue 0, 512 entries.
    pub fn new(ifindex: u32) -> Self {
        Self { ifindex, queue: 0, entries: 512, mode: BindMode::Copy }
    }
}

/// Sends through an AF_XDP socket.
#[derive(Debug)]
pub struct AfXdp {
    socket: XskSocket,
    frames: Frames,
    chunks: Chunks,
    /// Entries put into the ring per system call.
    burst: u32,
    outstanding: u64,
    /// Whether the last call left entries in the ring.
    left_over: bool,
}

/// Which chunk holds the next frame.
#[derive(Debug)]
enum Chunks {
    /// Each frame of the cycle has a chunk of its own, written once; the kernel only reads them, so that one may
    /// stand in the ring many times.
    Fixed { lengths: Vec<u32>, next: usize },
    /// Frames are written into chunks that the kernel has given back, and stand in `ready` until they are in the ring.
    Written { free: Vec<u32>, ready: VecDeque<Descriptor>, sequence: u64 },
}

impl AfXdp {
    /// Opens a socket on a queue of the device.
    ///
    /// # Errors
    /// Those of [`XskSocket::open`], EBUSY only when the queue stays taken for a second; EINVAL for frames longer than a
    /// chunk (a page at most).
    pub fn new(spec: &AfXdpSpec, mut frames: Frames) -> Result<Self, SyscallError> {
        /// More distinct frames than this are not kept in chunks of their own.
        const FIXED_MAX: usize = 4096;
        const CHUNK_BYTES_MIN: usize = 2048;
        let chunk_bytes = frames.l2_bytes_max().next_power_of_two().max(CHUNK_BYTES_MIN) as u32;
        let fixed = frames.fixed_slots(1, 1, FIXED_MAX);
        let chunks = fixed.map_or(spec.entries, |count| count as u32);
        let shape = XskSpec {
            chunk_bytes,
            mode: spec.mode,
            ..XskSpec::sender(spec.ifindex, spec.queue, chunks, spec.entries)
        };
        let mut socket = when_free(STALL, || XskSocket::open(&shape))?;
        let burst =
            if socket.set_tx_budget(spec.entries.max(32))? { spec.entries } else { spec.entries.min(32) };
        let chunks = match fixed {
            Some(_) => {
                let length =
                    |chunk| frames.write(u64::from(chunk), socket.chunk_mut(chunk)).unwrap_or(0) as u32;
                Chunks::Fixed { lengths: (0..chunks).map(length).collect(), next: 0 }
            }
            None => {
                let ready = VecDeque::with_capacity(chunks as usize);
                Chunks::Written { free: (0..chunks).rev().collect(), ready, sequence: 0 }
            }
        };
        Ok(Self { socket, frames, chunks, burst, outstanding: 0, left_over: false })
    }

    /// Puts up to `wanted` frames into the ring; how many.
    fn queue(&mut self, wanted: u32) -> u32 {
        let queued = match &mut self.chunks {
            Chunks::Fixed { lengths, next } => {
                let period = lengths.len();
                let queued = self.socket.submit(wanted, |index| {
                    let chunk = (*next + index as usize) % period;
                    Descriptor { chunk: chunk as u32, offset: 0, bytes: lengths[chunk], options: 0 }
                });
                *next = (*next + queued as usize) % period;
                queued
            }
            Chunks::Written { free, ready, sequence } => {
                while let Some(&chunk) = free.last().filter(|_| ready.len() < wanted as usize) {
                    let written = self.frames.write(*sequence, self.socket.chunk_mut(chunk));
                    let Some(l2_bytes) = written else { break };
                    free.pop();
                    ready.push_back(Descriptor { chunk, offset: 0, bytes: l2_bytes as u32, options: 0 });
                    *sequence += 1;
                }
                let count = wanted.min(ready.len() as u32);
                let queued = self.socket.submit(count, |index| ready[index as usize]);
                ready.drain(..queued as usize);
                queued
            }
        };
        self.outstanding += u64::from(queued);
        queued
    }

    /// Takes completions; how many.
    fn complete(&mut self) -> u64 {
        let completed = match &mut self.chunks {
            Chunks::Fixed { .. } => self.socket.complete(|_| ()),
            Chunks::Written { free, .. } => self.socket.complete(|chunk| free.push(chunk)),
        };
        self.outstanding = self.outstanding.saturating_sub(u64::from(completed));
        u64::from(completed)
    }

    /// Makes the kernel send, and adds what it confirmed.
    fn kick(&mut self, sent: &mut Sent) -> Result<bool, SendError> {
        if self.socket.needs_kick() {
            sent.calls += 1;
            let failed = |source| SendError::Syscall { backend: BackendKind::AfXdp, sent: *sent, source };
            self.left_over = !self.socket.kick().map_err(failed)?;
        }
        let completed = self.complete();
        sent.confirmed += completed;
        Ok(completed > 0)
    }
}

impl Backend for AfXdp {
    fn kind(&self) -> BackendKind {
        BackendKind::AfXdp
    }

    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        let mut stalled_since: Option<Instant> = None;
        while sent.offered < packets {
            let wanted = u32::try_from(packets - sent.offered).unwrap_or(u32::MAX).min(self.burst);
            let queued = self.queue(wanted);
            sent.offered += u64::from(queued);
            if self.kick(&mut sent)? || queued > 0 {
                stalled_since = None;
            } else if self.ended() || stalled_since.get_or_insert_with(Instant::now).elapsed() > STALL {
                break;
            }
        }
        Ok(sent)
    }

    /// Sending calls the kernel already: this does so again when it left frames in the ring.
    fn push_out(&mut self) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        if self.left_over {
            self.kick(&mut sent)?;
        }
        Ok(sent)
    }

    fn ended(&self) -> bool {
        let nothing_ready = match &self.chunks {
            Chunks::Fixed { .. } => true,
            Chunks::Written { ready, .. } => ready.is_empty(),
        };
        nothing_ready && self.frames.ended()
    }

    fn flush(&mut self) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        let mut stalled_since: Option<Instant> = None;
        while self.outstanding > 0 {
            if self.kick(&mut sent)? {
                stalled_since = None;
            } else if stalled_since.get_or_insert_with(Instant::now).elapsed() > STALL {
                let (backend, outstanding) = (BackendKind::AfXdp, self.outstanding);
                return Err(SendError::Stalled { backend, sent, outstanding, waited: STALL });
            }
        }
        Ok(sent)
    }
}
