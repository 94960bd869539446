//! Ways to receive, behind one trait: what arrives on a device or at a socket is counted by flow, queue and CPU, and marked
//! packets are checked.
//!
//! | module | receives by | sees bytes | knows queue | knows CPU | what it does to the device |
//! |---|---|---|---|---|---|
//! | `xdp` | a program that counts in the kernel | no | yes | yes | every frame ends there |
//! | `packet_ring` | a packet socket's receive ring | yes | no | no | listens only |
//! | `af_xdp` | AF_XDP sockets, one a queue | yes | yes | no | every frame of these queues ends there |
//! | `udp` | a UDP socket | payload | no | no | is a receiver like any other |
//!
//! Each counts what reached it. What was dropped between the device and it for lack of room is told by
//! [`Receiver::losses`]; what was lost before it came so far, only marks tell ([`crate::mark`]).

mod af_xdp;
mod packet_ring;
mod program;
mod tally;
mod udp;
mod xdp;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ebpf::AssembleError;
use linux::SyscallError;
use linux::bpf::{Link, Program, XdpMode};
use thiserror::Error;

pub use af_xdp::{AfXdpReceiver, AfXdpReceiverSpec};
pub use packet_ring::PacketRing;
pub use tally::{Count, FLOWS_MAX, Marks, STREAMS_MAX, Tally};
pub use udp::Udp;
pub use xdp::Xdp;

/// A way to receive.
pub trait Receiver: Send + fmt::Debug {
    /// Which way this is.
    fn kind(&self) -> ReceiverKind;

    /// Adds what has arrived to the tally; if nothing has, waits up to `timeout` for it. How many frames were added.
    ///
    /// Always the same tally: ways that count in the kernel set its totals.
    ///
    /// # Errors
    /// ENETDOWN where the device went down or away and the kernel says so.
    fn poll(&mut self, timeout: Duration, tally: &mut Tally) -> Result<u64, ReceiveError>;

    /// Receives nothing more, and adds what had arrived and was not added yet; flows that are counted in the kernel are added
    /// here. To be called once, at the end.
    fn finish(&mut self, tally: &mut Tally) -> Result<(), ReceiveError>;

    /// Frames that came as far as this receiver and were dropped there, by reason, since it was opened. Empty where
    /// none can be.
    fn losses(&mut self) -> Result<Vec<Loss>, ReceiveError>;
}

/// Frames dropped for one reason at a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Why, in words.
    pub reason: &'static str,
    /// Where the kernel counts it.
    pub counter: &'static str,
    /// How many.
    pub frames: u64,
}

/// Why receiving failed.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The kernel refused.
    #[error("receive by {kind}")]
    Syscall {
        /// Which way.
        kind: ReceiverKind,
        /// The call and the kernel's answer.
        source: SyscallError,
    },
    /// The program that counts or hands over is no program.
    #[error("assemble the program for {kind}")]
    Program {
        /// Which way.
        kind: ReceiverKind,
        /// What is wrong with it.
        source: AssembleError,
    },
}

/// The ways to receive, with the names that commands and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiverKind {
    /// A program counts in the kernel.
    Xdp,
    /// A packet socket's receive ring.
    PacketRing,
    /// AF_XDP sockets.
    AfXdp,
    /// A UDP socket.
    Udp,
}

impl ReceiverKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Xdp, Self::PacketRing, Self::AfXdp, Self::Udp];

    /// The name: `xdp`, `packet-ring`, `af-xdp`, `udp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::PacketRing => "packet-ring",
            Self::AfXdp => "af-xdp",
            Self::Udp => "udp",
        }
    }

    /// Whether what it receives reaches nobody else.
    pub fn takes_frames_away(self) -> bool {
        matches!(self, Self::Xdp | Self::AfXdp)
    }

    /// Whether it sees what is in a packet, as checking marks needs.
    pub fn sees_bytes(self) -> bool {
        self != Self::Xdp
    }

    /// Whether its bytes are those of UDP payloads, and not of frames.
    pub fn counts_payload(self) -> bool {
        self == Self::Udp
    }
}

impl fmt::Display for ReceiverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReceiverKind {
    type Err = UnknownReceiver;

    fn from_str(name: &str) -> Result<Self, UnknownReceiver> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownReceiver(name.to_owned()))
    }
}

/// A name that no way to receive has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no way to receive is called {0:?}; there are xdp, packet-ring, af-xdp and udp")]
pub struct UnknownReceiver(pub String);

/// Makes an error out of the kernel's.
fn failed(kind: ReceiverKind) -> impl Fn(SyscallError) -> ReceiveError {
    move |source| ReceiveError::Syscall { kind, source }
}

/// Attaches an XDP program in the driver, or in the stack where the driver cannot run it.
fn attach(program: &Program, ifindex: u32) -> Result<(Link, XdpMode), SyscallError> {
    match Link::attach_xdp(program, ifindex, XdpMode::Native) {
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {
            Link::attach_xdp(program, ifindex, XdpMode::Generic).map(|link| (link, XdpMode::Generic))
        }
        attached => attached.map(|link| (link, XdpMode::Native)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in ReceiverKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let message = "pcap".parse::<ReceiverKind>().unwrap_err().to_string();
        assert!(ReceiverKind::ALL.iter().all(|kind| message.contains(kind.name())), "{message}");
    }
}
