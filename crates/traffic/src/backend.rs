//! The trait of everything that sends, and the names of its kinds.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::str::FromStr;
use std::time::Duration;

use linux::SyscallError;
use thiserror::Error;

/// A way to hand frames over.
///
/// What cuts across all ways (capture, pacing, fault injection) wraps a backend and is one.
pub trait Backend: Send + fmt::Debug {
    /// Which way this is.
    fn kind(&self) -> BackendKind;

    /// Hands over up to `packets` frames, the next ones of the backend's [`crate::Frames`] or program; fewer when these
    /// come to an end.
    ///
    /// A kernel that has no room for a while is waited for; one that makes no progress at all for a second ends
    /// the call early with fewer frames, which is no error. Where frames are queued, the call may return before they left:
    /// [`Self::flush`] sees to that. Confirmations may be of frames offered in earlier calls.
    fn send(&mut self, packets: u64) -> Result<Sent, SendError>;

    /// Makes what is queued leave now, without waiting for it, and returns what was confirmed meanwhile. Where nothing
    /// stays queued there is nothing to do.
    ///
    /// # Errors
    /// As [`Self::send`].
    fn push_out(&mut self) -> Result<Sent, SendError> {
        Ok(Sent::default())
    }

    /// Whether the frames have come to an end and all of them were offered. It is known when a call has asked for one more.
    fn ended(&self) -> bool {
        false
    }

    /// Waits until everything offered is confirmed, and returns the confirmations that were open.
    ///
    /// # Errors
    /// [`SendError::Stalled`] when some are still open after a second without progress.
    fn flush(&mut self) -> Result<Sent, SendError>;

    /// CPU time in ns that threads of this backend other than the calling one have used for it so far: what a clock of the
    /// calling thread does not see. Only differences mean something. A backend that wraps another one passes it on.
    fn other_threads_cpu_ns(&self) -> u64 {
        0
    }
}

/// What became of frames, in one call or in several: results of calls are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Frames handed over or queued.
    pub offered: u64,
    /// Frames that the kernel confirmed, each backend says in which sense. It may differ from what arrives: no
    /// backend sees drops behind the point of its confirmation.
    pub confirmed: u64,
    /// System calls that sent, those that found no room included. More than usual for the same number of frames
    /// means that a signal or a full queue came in between.
    pub calls: u32,
}

impl Add for Sent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            offered: self.offered + other.offered,
            confirmed: self.confirmed + other.confirmed,
            calls: self.calls.saturating_add(other.calls),
        }
    }
}

impl AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Why sending ended. What was sent in the same call until then is kept, for the ledger.
#[derive(Debug, Error)]
pub enum SendError {
    /// The kernel refused.
    #[error("{backend}: {source}")]
    Syscall {
        /// Which backend.
        backend: BackendKind,
        /// What the call had sent before.
        sent: Sent,
        /// The call and the kernel's answer.
        source: SyscallError,
    },
    /// The kernel keeps frames and makes no progress.
    #[error("{backend}: {outstanding} frames were not confirmed, and none in the last {waited:?}")]
    Stalled {
        /// Which backend.
        backend: BackendKind,
        /// What the call had sent before.
        sent: Sent,
        /// Frames offered and not confirmed.
        outstanding: u64,
        /// How long nothing had happened.
        waited: Duration,
    },
    /// This way cannot send such a frame.
    #[error("{backend}: {reason}")]
    Refused {
        /// Which backend.
        backend: BackendKind,
        /// What the call had sent before.
        sent: Sent,
        /// Which frame, and why.
        reason: String,
    },
}

impl SendError {
    /// What the call had sent before it failed.
    pub fn sent(&self) -> Sent {
        match self {
            Self::Syscall { sent, .. } | Self::Stalled { sent, .. } | Self::Refused { sent, .. } => *sent,
        }
    }

    /// The same, of a call that had sent `earlier` before the part that failed.
    pub(crate) fn after(mut self, earlier: Sent) -> Self {
        let (Self::Syscall { sent, .. } | Self::Stalled { sent, .. } | Self::Refused { sent, .. }) =
            &mut self;
        *sent += earlier;
        self
    }

    /// The same error of a call that had sent something else, such as one that others had a part in.
    pub(crate) fn having_sent(mut self, all: Sent) -> Self {
        match &mut self {
            Self::Syscall { sent, .. } | Self::Stalled { sent, .. } | Self::Refused { sent, .. } => {
                *sent = all
            }
        }
        self
    }
}

/// How long a backend waits for a kernel that makes no progress.
pub(crate) const STALL: Duration = Duration::from_secs(1);

/// The ways to hand frames over, with the names that commands and records use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendKind {
    /// A program run on live frames, into the receive path of a device.
    Inject,
    /// The same, redirected out of a device.
    XdpLive,
    /// An AF_XDP socket.
    AfXdp,
    /// A packet socket's transmit ring.
    TxRing,
    /// A packet socket and batched system calls.
    Mmsg,
    /// UDP sockets and batched system calls.
    Udp,
    /// The kernel's packet generator.
    Pktgen,
    /// No kernel: frames end in memory.
    Memory,
}

impl BackendKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Inject,
        Self::XdpLive,
        Self::AfXdp,
        Self::TxRing,
        Self::Mmsg,
        Self::Udp,
        Self::Pktgen,
        Self::Memory,
    ];

    /// The name: `inject`, `xdp-live`, `af-xdp`, `tx-ring`, `mmsg`, `udp`, `pktgen`, `memory`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inject => "inject",
            Self::XdpLive => "xdp-live",
            Self::AfXdp => "af-xdp",
            Self::TxRing => "tx-ring",
            Self::Mmsg => "mmsg",
            Self::Udp => "udp",
            Self::Pktgen => "pktgen",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownBackend(name.to_owned()))
    }
}

/// A name that no backend has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "no backend is called {0:?}; there are inject, xdp-live, af-xdp, tx-ring, mmsg, udp, pktgen and memory"
)]
pub struct UnknownBackend(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let message = "AF-XDP".parse::<BackendKind>().unwrap_err().to_string();
        assert!(BackendKind::ALL.iter().all(|kind| message.contains(kind.name())), "{message}");
    }

    #[test]
    fn results_of_calls_are_added() {
        let one = Sent { offered: 5, confirmed: 3, calls: 2 };
        let other = Sent { offered: 1, confirmed: 4, calls: u32::MAX };
        assert_eq!(one + one, Sent { offered: 10, confirmed: 6, calls: 4 });
        assert_eq!(one + other, Sent { offered: 6, confirmed: 7, calls: u32::MAX });
        assert_eq!(Sent::default() + one, one);
    }
}
