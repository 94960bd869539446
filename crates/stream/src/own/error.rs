//! Why a run over perpacket's own protocol did not come about, or was not finished.

use std::io;
use std::time::Duration;

use linux::SyscallError;
use thiserror::Error;

use super::key::KeyError;
use super::wire::{Answer, VERSION, WireError};
use crate::engine::EngineError;
use crate::limits::LimitError;

/// Of either end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OwnError {
    /// The control connection could not be used.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, and on what.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A call of the kernel failed.
    #[error(transparent)]
    Kernel(#[from] SyscallError),
    /// The other end sent what is no message.
    #[error("the other end sent {0}")]
    Wire(WireError),
    /// What is to be sent is too long.
    #[error("cannot send {0}")]
    TooLong(WireError),
    /// It speaks something else.
    #[error(
        "what answers there does not speak perpacket's protocol; is it `perpacket serve`, and its port for this protocol?"
    )]
    NotOurs,
    /// It speaks another version.
    #[error(
        "the other end speaks version {theirs} of perpacket's protocol, and this one {VERSION}; use the same perpacket on both hosts"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// The server does not want to go on.
    #[error("the server does not go on: {}", answer_words(*.0))]
    TurnedAway(Answer),
    /// The client was turned away.
    #[error("turned away: {}", answer_words(*.0))]
    Turned(Answer),
    /// The two ends have different keys.
    #[error("the two ends do not have the same key")]
    WrongKey,
    /// What came was not encrypted with the keys of this connection.
    #[error("the control connection was tampered with, or is broken: {0}")]
    Cipher(snow::Error),
    /// What was given as a key is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It closed the control connection.
    #[error("the other end closed the control connection while {until} was waited for")]
    Closed {
        /// What for.
        until: &'static str,
    },
    /// It says nothing.
    #[error("the other end said nothing for {} s while {until} was waited for; it has vanished, or a packet filter is in between", after.as_secs_f64())]
    Silent {
        /// How long.
        after: Duration,
        /// What for.
        until: &'static str,
    },
    /// It does not read.
    #[error("the other end did not take what was sent to it for {} s", after.as_secs_f64())]
    SlowReader {
        /// How long.
        after: Duration,
    },
    /// It said something that does not belong here.
    #[error("the other end sent `{got}` where {wanted} belongs")]
    Unexpected {
        /// What came.
        got: &'static str,
        /// What was waited for.
        wanted: &'static str,
    },
    /// It said why it goes no further.
    #[error("the other end says: {0}")]
    Peer(String),
    /// More than the server grants.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// What two hosts cannot do, or not over this protocol.
    #[error("{0}")]
    Plan(String),
    /// Data connections did not come.
    #[error("{there} of {wanted} data connections came within {} s; what is between the hosts must let the port through that the server names", after.as_secs_f64())]
    Missing {
        /// Those that came.
        there: usize,
        /// All.
        wanted: usize,
        /// How long they were waited for.
        after: Duration,
    },
    /// The engine could not move the bytes.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// This process is ending.
    #[error("this end was told to stop")]
    Halted,
}

impl OwnError {
    pub(super) fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }
}

fn answer_words(answer: Answer) -> &'static str {
    match answer {
        Answer::Welcome => "it said welcome",
        Answer::OtherVersion => "another version of the protocol",
        Answer::KeyNeeded => "it takes clients with a key only; give --key FILE",
        Answer::NoKeyHere => {
            "it was started without a key; start it with --key FILE, or leave the key out here"
        }
        Answer::Busy => "as many clients as it takes are there already; try again later",
        Answer::UnknownWay => "a way of speaking that it does not know",
    }
}

/// Text from the other end as it can be shown: nothing that steers a terminal, and not too much of it.
pub(super) fn readable(text: &str) -> String {
    const MOST: usize = 500;
    text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_says_cannot_steer_a_terminal() {
        assert_eq!(readable("a\u{1b}[2J\nb\u{9b}"), "a [2J b ");
        assert_eq!(readable(&"é".repeat(10_000)).chars().count(), 500);
    }
}
