//! How sockets are read: by which threads, and what these do when there is nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::setting::FlowSetting;

/// Which threads read the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reader {
    /// One for all sockets of a CPU where there are more sockets than CPUs, unless receivers poll their device.
    #[default]
    Auto,
    /// One for each socket, which waits in the receiving call.
    Threads,
    /// One for all sockets of a CPU, which waits for them by epoll(7) and takes a batch of each that has something.
    Epoll,
}

impl Reader {
    /// [`Reader::Threads`] or [`Reader::Epoll`], with so many CPUs for receivers.
    pub(crate) fn of(self, setting: &FlowSetting, cpus: usize) -> Self {
        let sockets = setting.port_count().saturating_mul(setting.sockets_per_port) as usize;
        match self {
            Self::Auto if sockets > cpus && setting.busy_poll == 0 => Self::Epoll,
            Self::Auto => Self::Threads,
            own => own,
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Threads => "threads",
            Self::Epoll => "epoll",
        })
    }
}

impl FromStr for Reader {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "threads" => Ok(Self::Threads),
            "epoll" => Ok(Self::Epoll),
            other => Err(format!("reader = {other}: use threads, epoll or auto")),
        }
    }
}

/// What a receiver does when there is nothing to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wait {
    /// Sleeps in the receiving call: whoever delivers a packet wakes it up.
    #[default]
    Sleep,
    /// Sleeps some 100 µs after every call that was not full: it is never woken up, and takes what has come meanwhile.
    Nap,
    /// Asks again, and lets other threads run in between: it is never woken up, and its CPU never idle.
    Spin,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sleep => "sleep",
            Self::Nap => "nap",
            Self::Spin => "spin",
        })
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sleep" => Ok(Self::Sleep),
            "nap" => Ok(Self::Nap),
            "spin" => Ok(Self::Spin),
            other => Err(format!("wait = {other}: use sleep, nap or spin")),
        }
    }
}
