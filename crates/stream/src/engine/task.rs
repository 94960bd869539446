//! One flow as its thread sees it: a step at a time.

use std::io;
use std::os::fd::BorrowedFd;

use linux::SyscallError;
use rustix::io::Errno;

use super::control::{Budget, Control};
use super::counters::{Account, Counters};
use super::{EngineError, Marks};
use crate::plan::{Plan, SocketOptions, Until};

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
    fn restart(&mut self) {}

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

/// Memory that the flows of a thread use in turn: its content means nothing between two steps.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) send: Vec<u8>,
    pub(super) receive: Vec<u8>,
}

impl Buffers {
    pub(super) fn new(send_bytes: usize, receive_bytes: usize) -> Self {
        // Nothing that a link could compress.
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        };
        Self { send: (0..send_bytes).map(|_| next()).collect(), receive: vec![0; receive_bytes] }
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
        let bulk = matches!(plan.work, crate::plan::Work::Bulk { .. });
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

/// Bytes that a mark takes.
pub(super) fn mark_bytes(marks: Marks) -> usize {
    match marks {
        Marks::None => 0,
        Marks::Own { .. } => 32,
        Marks::Iperf3 { wide: false } => 12,
        Marks::Iperf3 { wide: true } => 16,
    }
}
