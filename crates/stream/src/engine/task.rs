//! One flow as its thread sees it: a step at a time.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError};

use linux::SyscallError;
use linux::socket::{ReceiveBatch, SendBatch};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::control::{Budget, Control};
use super::counters::{Account, Counters, Found};
use super::{EngineError, Marks};
use crate::latency::Recorder;
use crate::plan::{Giving, Plan, SocketOptions, Taking, Until, Work};

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something moved; the next step may follow at once.
    Moved,
    /// The socket had nothing, or no room: where calls do not wait, the next step follows when that has changed.
    Blocked,
    /// Nothing is due before this time (`CLOCK_MONOTONIC`), unless the socket has something.
    Until(u64),
    /// The flow has ended.
    Over,
}

/// A flow: what it does between two looks at the flags.
pub(super) trait Task {
    /// One call of the kernel, or few.
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Step, EngineError>;

    /// The run was stopped: takes what is there already.
    fn stop(&mut self, _tools: &mut Tools<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    /// The flow is over: tells what it found out.
    fn finish(&mut self, _tools: &mut Tools<'_>) {}

    /// Counting begins now: what was found out so far does not count.
    fn restart(&mut self, _tools: &mut Tools<'_>) {}

    /// What is waited for. None while there is no socket.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// Changes whenever [`Self::socket`] is another one.
    fn generation(&self) -> u64 {
        0
    }
}

/// What all flows of an end share.
#[derive(Debug)]
pub(super) struct Common<'a> {
    pub(super) plan: &'a Plan,
    pub(super) options: &'a SocketOptions,
    pub(super) control: &'a Control,
    /// Where an amount was asked for: of bulk in bytes, else in units.
    pub(super) budget: Option<Budget>,
}

/// What a thread lends to the flow whose turn it is.
pub(super) struct Tools<'a> {
    pub(super) common: &'a Common<'a>,
    pub(super) account: &'a Account,
    /// Of the phase that it is.
    pub(super) counters: &'a Counters,
    pub(super) counting: bool,
    /// The time is up for those who send.
    pub(super) enough: bool,
    /// Whether calls wait.
    pub(super) waits: bool,
    pub(super) buffers: &'a mut Buffers,
}

/// What the flows of a thread use in turn: its content means nothing between two steps.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) send: Vec<u8>,
    pub(super) receive: Vec<u8>,
    /// The bytes of `send` once more.
    pub(super) file: Option<File>,
    pub(super) pipe: Option<Pipe>,
    /// Takes everything.
    pub(super) nothing: Option<File>,
    pub(super) send_batch: Option<SendBatch>,
    pub(super) receive_batch: Option<ReceiveBatch>,
    /// Of a thread with so many flows that each cannot have one of its own.
    pub(super) latency: Option<Recorder>,
}

/// Both ends of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    /// Bytes that are in it.
    pub(super) held: usize,
}

impl Buffers {
    pub(super) fn new(plan: &Plan, send_bytes: usize, receive_bytes: usize) -> Result<Self, EngineError> {
        // Nothing that a link could compress.
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        };
        let mut buffers = Self {
            send: (0..send_bytes).map(|_| next()).collect(),
            receive: vec![0; receive_bytes],
            file: None,
            pipe: None,
            nothing: None,
            send_batch: None,
            receive_batch: None,
            latency: None,
        };
        let Work::Bulk { giving, taking, .. } = plan.work else { return Ok(buffers) };
        if matches!(giving, Giving::Sendfile | Giving::Splice) {
            let mut file = linux::process::memory_file("perpacket-stream")?;
            let written = file.write_all(&buffers.send);
            written.map_err(|error| SyscallError::new("write", "a file in memory", error))?;
            buffers.file = Some(file);
        }
        if giving == Giving::Splice || taking == Taking::Splice {
            let failed = |call| move |error: Errno| SyscallError::new(call, "a pipe", error.into());
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe2"))?;
            let room = send_bytes.max(receive_bytes).max(1 << 16);
            // Beyond fs.pipe-max-size it stays as it is: then more calls are needed.
            let _ = fcntl_setpipe_size(&write, room);
            buffers.pipe = Some(Pipe { read, write, held: 0 });
            let nothing = File::options().write(true).open("/dev/null");
            let nothing = nothing.map_err(|error| SyscallError::new("open", "/dev/null", error))?;
            buffers.nothing = Some(nothing);
        }
        Ok(buffers)
    }
}

impl Tools<'_> {
    /// How much of `wanted` may be sent now; 0: the flow has sent what it should.
    pub(super) fn claim(&self, wanted: u64) -> u64 {
        if self.enough {
            return 0;
        }
        match &self.common.budget {
            Some(budget) if self.counting => budget.claim(wanted),
            _ => wanted,
        }
    }

    /// Whether nothing more is to be begun: then a pace is not waited for, which may be hours.
    pub(super) fn is_done(&self) -> bool {
        self.enough || self.counting && self.common.budget.as_ref().is_some_and(Budget::is_spent)
    }

    /// What was claimed and could not be used.
    pub(super) fn give_back(&self, amount: u64) {
        if let Some(budget) = &self.common.budget
            && self.counting
            && amount > 0
        {
            budget.give_back(amount);
        }
    }
}

impl Common<'_> {
    pub(super) fn budget(plan: &Plan) -> Option<Budget> {
        let bulk = matches!(plan.work, Work::Bulk { .. });
        match plan.until {
            Until::Time(_) => None,
            Until::Bytes(bytes) => Some(Budget::new(bytes)),
            Until::Units(units) if bulk => {
                Some(Budget::new(units.saturating_mul(u64::from(plan.send_bytes.max(1)))))
            }
            Until::Units(units) => Some(Budget::new(units)),
        }
    }
}

/// What an error number of a call that moves bytes means.
pub(super) fn step_of(call: &'static str, error: Errno) -> Result<Step, EngineError> {
    match error {
        Errno::AGAIN => Ok(Step::Blocked),
        Errno::INTR => Ok(Step::Moved),
        _ => Err(failed(call, error.into())),
    }
}

pub(super) fn failed(call: &'static str, error: io::Error) -> EngineError {
    SyscallError::new(call, "a data socket", error).into()
}

/// Whether the peer, or the way to it, went away: this ends a flow, not the run.
pub(super) fn is_peer_gone(error: &EngineError) -> bool {
    const GONE: [Errno; 9] = [
        Errno::CONNRESET,
        Errno::PIPE,
        Errno::TIMEDOUT,
        Errno::CONNABORTED,
        Errno::CONNREFUSED,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::NETDOWN,
        Errno::NOTCONN,
    ];
    let EngineError::Kernel(error) = error else { return false };
    error.errno().is_some_and(|number| GONE.iter().any(|gone| gone.raw_os_error() == number))
}

/// Something that the report should say of a flow.
pub(super) fn warn(account: &Account, text: String) {
    found(account).warnings.push(text);
}

pub(super) fn found(account: &Account) -> MutexGuard<'_, Found> {
    account.found.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sizes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) request_bytes: usize,
    pub(super) response_bytes: usize,
    /// How many may be on their way at once, at least 1.
    pub(super) outstanding: usize,
}

impl Exchange {
    /// Whether both messages have room for marks of one's own; with others nothing can be told apart.
    pub(super) fn is_marked(self, marks: Marks) -> bool {
        matches!(marks, Marks::Own { .. }) && self.request_bytes.min(self.response_bytes) >= marks.bytes()
    }
}

/// Where the latencies of a flow are recorded.
#[derive(Debug)]
pub(super) struct Lap {
    /// None: with those of the other flows of the thread.
    own: Option<Recorder>,
}

impl Lap {
    pub(super) fn new(own: Option<Recorder>) -> Self {
        Self { own }
    }

    #[inline]
    pub(super) fn record(&mut self, tools: &mut Tools<'_>, begin_ns: u64, end_ns: u64) {
        if tools.counting
            && let Some(recorder) = self.own.as_mut().or(tools.buffers.latency.as_mut())
        {
            recorder.record(begin_ns, end_ns);
        }
    }

    pub(super) fn tell(&mut self, tools: &Tools<'_>) {
        if let Some(recorder) = &self.own {
            found(tools.account).latency = Some(recorder.latency());
        }
    }

    /// The peer closed while requests waited.
    pub(super) fn lost_peer(&self, tools: &Tools<'_>, waiting: usize) {
        warn(
            tools.account,
            format!("the peer closed the connection while {waiting} requests waited for their response"),
        );
    }
}
