//! Live frames of a BPF program: into a device's receive path, or out of a device by redirect.
//!
//! The program makes the frames: it must write every byte that the path may change, for every frame
//! ([`linux::bpf::Program::run_xdp_live`] says why), count them in word 0 of its control map, and return XDP_PASS
//! ([`BackendKind::Inject`]) or redirect ([`BackendKind::XdpLive`]). Confirmed is what the program counted: the frames
//! that it made. A redirect into a device that cannot take them loses them after that, at full speed and without a
//! sign here.

use linux::SyscallError;
use linux::bpf::{LiveEnd, LiveRun, MappedArray, Program};

use crate::backend::{Backend, BackendKind, SendError, Sent};

/// Word of the control map in which the program counts the frames that it made.
const PRODUCED: usize = 0;

/// All that injecting needs.
#[derive(Debug)]
pub struct InjectSpec {
    /// [`BackendKind::Inject`] or [`BackendKind::XdpLive`]: the mechanism is the same, the program decides.
    pub kind: BackendKind,
    /// The XDP program.
    pub program: Program,
    /// Its control map; word 0 counts the frames made, the others are the program's own.
    pub control: MappedArray,
    /// A frame of the right length, without FCS; where the program writes all of it, its bytes do not matter.
    pub frame: Vec<u8>,
    /// The device that is to have received the frames, in the sending thread's namespace.
    pub ingress_ifindex: u32,
    /// Its receive queue.
    pub rx_queue: u32,
    /// Frames that go through the program before they are handed on together, up to 256; 0 means 64. Thread CPU time
    /// of a frame was least from 16 to 64.
    pub batch: u32,
}

/// Runs a program on live frames, in the calling thread.
#[derive(Debug)]
pub struct Inject {
    spec: InjectSpec,
}

impl Inject {
    /// Takes over the program. Nothing is run yet.
    pub fn new(spec: InjectSpec) -> Self {
        Self { spec }
    }

    /// One system call.
    fn run(&self, repeat: u32) -> Result<LiveEnd, SyscallError> {
        let InjectSpec { program, frame, ingress_ifindex, rx_queue, batch, .. } = &self.spec;
        program.run_xdp_live(&LiveRun {
            frame,
            ingress_ifindex: *ingress_ifindex,
            rx_queue: *rx_queue,
            repeat,
            batch: *batch,
        })
    }
}

impl Backend for Inject {
    fn kind(&self) -> BackendKind {
        self.spec.kind
    }

    /// One call for up to 2³² frames. A signal ends a call between batches: the rest is then sent by another call,
    /// with its own fixed cost, so that [`Sent::calls`] above one means an interrupted slice. A program that does not
    /// count ends the call with fewer confirmed than offered.
    fn send(&mut self, packets: u64) -> Result<Sent, SendError> {
        let mut sent = Sent::default();
        while sent.offered < packets {
            let repeat = u32::try_from(packets - sent.offered).unwrap_or(u32::MAX);
            let before = self.spec.control.load(PRODUCED);
            let end = self.run(repeat);
            let produced = self.spec.control.load(PRODUCED).wrapping_sub(before);
            sent.confirmed += produced;
            sent.calls += 1;
            match end {
                Ok(LiveEnd::Complete) => sent.offered += u64::from(repeat),
                // Without a count the progress is unknown, and going on could last for ever.
                Ok(LiveEnd::Interrupted) if produced == 0 => break,
                Ok(LiveEnd::Interrupted) => sent.offered += produced,
                Err(source) => {
                    sent.offered += produced;
                    return Err(SendError::Syscall { backend: self.kind(), sent, source });
                }
            }
        }
        Ok(sent)
    }

    /// Nothing is ever open: a call returns after its last frame was handed on.
    fn flush(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }
}
