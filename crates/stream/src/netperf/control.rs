//! A control connection: whole messages in and out, in bounded time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use thiserror::Error;

use super::wire::{MESSAGE_BYTES, Message};

/// How long a call waits before it is looked whether to go on.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// Why a control connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No whole message came.
    #[error("{peer} sent {bytes} of 656 bytes of a control message within {} s, and then nothing; it is gone, or does not speak netperf's protocol", within.as_secs_f64())]
    Silent {
        /// The other end.
        peer: SocketAddr,
        /// What came.
        bytes: usize,
        /// How long was waited.
        within: Duration,
    },
    /// The connection ended inside a message.
    #[error(
        "{peer} ended the control connection after {bytes} of 656 bytes of a message; it does not speak netperf's protocol, or died"
    )]
    Truncated {
        /// The other end.
        peer: SocketAddr,
        /// What came.
        bytes: usize,
    },
    /// The other end closed where a message was due.
    #[error(
        "{peer} closed the control connection instead of saying {what}; is its netserver of the same version?"
    )]
    Closed {
        /// The other end.
        peer: SocketAddr,
        /// What was due.
        what: &'static str,
    },
    /// A call failed.
    #[error("{doing} the control connection with {peer} failed: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The other end.
        peer: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The program is ending.
    #[error("the control connection with {peer} was given up because this program is ending")]
    Halted {
        /// The other end.
        peer: SocketAddr,
    },
}

/// A control connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    patience: Duration,
}

impl Connection {
    /// `patience`: how long a message may take, in or out.
    pub(super) fn new(stream: TcpStream, patience: Duration) -> Result<Self, ControlError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let peer = stream.peer_addr().map_err(|source| ControlError::Io {
            doing: "asking for the address at the other end of",
            peer: unknown,
            source,
        })?;
        let io = |doing| move |source| ControlError::Io { doing, peer, source };
        let local = stream.local_addr().map_err(io("asking for the own address of"))?;
        stream.set_nonblocking(false).map_err(io("setting up"))?;
        stream.set_nodelay(true).map_err(io("setting up"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io("setting up"))?;
        stream.set_write_timeout(Some(patience.max(Duration::from_millis(1)))).map_err(io("setting up"))?;
        Ok(Self { stream, peer, local, patience })
    }

    /// The next message, within `within`; `None` where the other end has closed.
    pub(super) fn receive(
        &mut self,
        within: Duration,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Option<Message>, ControlError> {
        let peer = self.peer;
        let begin = Instant::now();
        let mut bytes = [0; MESSAGE_BYTES];
        let mut got = 0;
        while got < MESSAGE_BYTES {
            if give_up() {
                return Err(ControlError::Halted { peer });
            }
            if begin.elapsed() >= within {
                return Err(ControlError::Silent { peer, bytes: got, within });
            }
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) if got == 0 => return Ok(None),
                Ok(0) => return Err(ControlError::Truncated { peer, bytes: got }),
                Ok(more) => got += more,
                Err(error) if is_not_now(&error) => {}
                Err(error) if got == 0 && error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(source) => return Err(ControlError::Io { doing: "reading from", peer, source }),
            }
        }
        Ok(Some(Message(bytes)))
    }

    /// The message that is due now.
    pub(super) fn expect(
        &mut self,
        what: &'static str,
        within: Duration,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Message, ControlError> {
        self.receive(within, give_up)?.ok_or(ControlError::Closed { peer: self.peer, what })
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), ControlError> {
        // A socket with room takes 656 bytes at once; one without has SO_SNDTIMEO.
        self.stream.write_all(&message.0).map_err(|source| {
            if is_not_now(&source) {
                ControlError::Silent { peer: self.peer, bytes: 0, within: self.patience }
            } else {
                ControlError::Io { doing: "writing to", peer: self.peer, source }
            }
        })
    }

    /// Whether the other end has closed, or the connection broke. A message that waits to be read is left there.
    pub(super) fn is_gone(&self) -> bool {
        if !readable(&self.stream, Duration::ZERO) {
            return false;
        }
        match self.stream.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !is_not_now(&error),
        }
    }
}

/// Whether a call should be made once more.
pub(super) fn is_not_now(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Whether something is there to read or accept, waiting for it a while.
pub(super) fn readable(socket: &impl AsFd, within: Duration) -> bool {
    ready(socket, PollFlags::IN, within)
}

/// Whether a connection that is being opened is open, or failed, waiting for it a while.
pub(super) fn writable(socket: &impl AsFd, within: Duration) -> bool {
    ready(socket, PollFlags::OUT, within)
}

fn ready(socket: &impl AsFd, what: PollFlags, within: Duration) -> bool {
    let mut sockets = [PollFd::new(socket, what)];
    let timeout = Timespec {
        tv_sec: within.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    // An interrupted wait is a short one.
    matches!(poll(&mut sockets, Some(&timeout)), Ok(1))
}
