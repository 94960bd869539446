//! What can go wrong in a run.

use linux::SyscallError;

/// Why a run could not be made, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The kernel refused a call.
    #[error(transparent)]
    Kernel(#[from] SyscallError),
    /// What is asked for does not exist for this kind of socket.
    #[error("{what} does not exist over {over}: {instead}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The kind of socket.
        over: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// The flow's role and the plan's work, or the socket, do not belong together.
    #[error("a flow cannot {role} with {with}: {why}")]
    Mismatch {
        /// The role.
        role: &'static str,
        /// The socket or the work.
        with: &'static str,
        /// What would.
        why: &'static str,
    },
    /// A message size that cannot be.
    #[error("messages of {bytes} bytes: {why}")]
    Size {
        /// The size that was asked for.
        bytes: u64,
        /// Why not, and what would do.
        why: &'static str,
    },
    /// A thread could not be started.
    #[error(
        "starting a thread for flows failed: {0}; fewer threads, or a higher limit of processes (ulimit -u), may help"
    )]
    Thread(#[source] std::io::Error),
    /// A thread of the engine ended by a panic, which is a fault of this program.
    #[error("a thread of the engine panicked; its message is on standard error")]
    Panicked,
}
