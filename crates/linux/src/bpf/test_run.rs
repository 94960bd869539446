//! Running a program on frames from memory (`BPF_PROG_TEST_RUN`, net/bpf/test_run.c, 6.18).
//!
//! A *live* run makes real frames out of its input, in batches, and the program's verdict is carried out:
//! `XDP_PASS` hands the frame to the stack as if the device named in the context had received it (entering at
//! `netif_receive_skb_list`), a redirect sends it out of a device, `XDP_DROP` gives it back, `XDP_TX` is turned
//! into a redirect to the same device. It happens in the calling thread with softirqs off during each batch.
//!
//! Frames come from a pool and go back to it with whatever the path did to them: the input is copied into a page
//! only when the page is new. A program must write every byte that the path may change, in each run.

use std::io;

use super::program::Program;
use super::sys::{self, Command, TestRun};
use crate::SyscallError;

/// Largest batch that the kernel takes (`TEST_XDP_MAX_BATCH`).
pub const LIVE_BATCH_MAX: u32 = 256;

/// Longest frame of a live run that is sure to fit (without FCS): a page less the frame's bookkeeping, 256
/// bytes of headroom and the shared info at its end. The exact limit depends on the kernel's configuration
/// and is a little above; more is refused with EINVAL.
pub const LIVE_FRAME_BYTES_MAX: usize = 3300;

/// What an XDP program answered, `enum xdp_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpAction {
    /// 0: the program failed; the frame is dropped and `xdp:xdp_exception` fires.
    Aborted,
    /// 1: drop.
    Drop,
    /// 2: to the stack.
    Pass,
    /// 3: back out of the device.
    Tx,
    /// 4: to another device, CPU or socket.
    Redirect,
    /// Any other value; treated as aborted.
    Unknown(u32),
}

impl From<u32> for XdpAction {
    fn from(value: u32) -> Self {
        match value {
            0 => Self::Aborted,
            1 => Self::Drop,
            2 => Self::Pass,
            3 => Self::Tx,
            4 => Self::Redirect,
            other => Self::Unknown(other),
        }
    }
}

/// The parameters of a live run.
#[derive(Debug, Clone, Copy)]
pub struct LiveRun<'a> {
    /// The frame without FCS, at least 14 bytes and at most about [`LIVE_FRAME_BYTES_MAX`].
    pub frame: &'a [u8],
    /// The device that is to have received the frames, in the calling thread's network namespace.
    pub ingress_ifindex: u32,
    /// Its receive queue.
    pub rx_queue: u32,
    /// How many frames; the kernel takes 0 as 1.
    pub repeat: u32,
    /// How many frames go through the program before they are handed on together, at most [`LIVE_BATCH_MAX`];
    /// 0 means 64. 16 to 64 cost least: less makes more entries into the stack, more leaves the cache.
    pub batch: u32,
}

/// How a live run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveEnd {
    /// All frames went through the program.
    Complete,
    /// A signal was pending after a batch (EINTR): some frames, in whole batches and at least one batch, went
    /// through and were handed on. The kernel does not say how many: only the program's own counter does.
    Interrupted,
}

/// The result of [`Program::run_plain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainRun {
    /// What the program returned; [`XdpAction`] for XDP.
    pub retval: u32,
    /// The frame as the program left it.
    pub data: Vec<u8>,
}

impl Program {
    /// Runs an XDP program on `repeat` real frames and carries out what it says; see the module.
    ///
    /// What "complete" does not mean: a frame counted here may still have been lost, because a redirect found no
    /// room, because no socket buffer could be had (the whole batch is then dropped silently), or later on its path.
    /// Only a count at the far end tells.
    ///
    /// A call has a fixed cost: 20 to 30 ms of waiting for a grace period when its page pool goes, and 0.2 to
    /// 0.4 ms of CPU time (measured on 6.18, two cores); with `/sys/kernel/rcu_expedited` set, 0.09 ms in all.
    ///
    /// # Errors
    /// ENODEV: no such device here. EINVAL: frame too short or too long, no such queue, or a kernel before 5.18.
    /// E2BIG: batch too large. ENOMEM: no page for a frame; like a signal it may come after some batches.
    pub fn run_xdp_live(&self, run: &LiveRun<'_>) -> Result<LiveEnd, SyscallError> {
        const LIVE_FRAMES: u32 = 1 << 1;
        let frame_bytes = u32::try_from(run.frame.len()).unwrap_or(u32::MAX);
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        let context = [0, frame_bytes, 0, run.ingress_ifindex, run.rx_queue, 0];
        let mut attr = TestRun {
            prog_fd: self.raw_fd(),
            data_size_in: frame_bytes,
            data_in: sys::address(run.frame),
            repeat: run.repeat,
            ctx_size_in: size_of_val(&context) as u32,
            ctx_in: sys::address(&context),
            flags: LIVE_FRAMES,
            batch_size: run.batch,
            ..TestRun::default()
        };
        // SAFETY: frame and context have the stated lengths and outlive the call.
        match unsafe { sys::bpf(Command::ProgTestRun, &mut attr) } {
            Ok(_) => Ok(LiveEnd::Complete),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(LiveEnd::Interrupted),
            Err(error) => Err(self.run_failed(error, format!("interface {}", run.ingress_ifindex))),
        }
    }

    /// Runs a program once on a copy of `data`, and returns its answer and the changed copy. Nothing is sent.
    pub fn run_plain(&self, data: &[u8]) -> Result<PlainRun, SyscallError> {
        // Room for what a program may add in front and behind.
        let mut out = vec![0; data.len() + 512];
        let mut attr = TestRun {
            prog_fd: self.raw_fd(),
            data_size_in: u32::try_from(data.len()).unwrap_or(u32::MAX),
            data_size_out: u32::try_from(out.len()).unwrap_or(u32::MAX),
            data_in: sys::address(data),
            data_out: sys::address_mut(&mut out),
            repeat: 1,
            ..TestRun::default()
        };
        // SAFETY: input and output have the stated lengths and outlive the call.
        unsafe { sys::bpf(Command::ProgTestRun, &mut attr) }
            .map_err(|error| self.run_failed(error, format!("{} bytes", data.len())))?;
        out.truncate(attr.data_size_out as usize);
        Ok(PlainRun { retval: attr.retval, data: out })
    }

    fn run_failed(&self, error: io::Error, object: String) -> SyscallError {
        SyscallError::new("run BPF program", format!("{object} ({})", self.name()), error)
    }
}
