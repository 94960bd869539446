//! The choices in a driver's receiving side, by name, and the driver that they make.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use datapath::device::{Land, Lend, Synthetic, TxLock};
use datapath::receive::{
    AnyContext, Buffers, Copying, Handing, Paged, Poll, PollDropped, Pool, Receive, System,
};
use pagefrag::{Mutex, PagePool, PoolConfig, Source, SpinLock, buffer_bytes};
use serde::{Deserialize, Serialize};

use crate::words::nearest;

/// Bytes up to which copy-break copies a frame whole where nothing else is said: those of igb and ixgbe
/// (IGB_RX_HDR_LEN, IXGBE_RX_HDR_SIZE, Linux 6.18).
pub(crate) const COPY_BREAK_BYTES: usize = 256;

/// The longest frame that can be named as a limit of copy-break.
const MOST_COPY_BREAK_BYTES: usize = 65_535;

/// Where the buffers come from that frames are copied into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Alloc {
    /// The page-fragment cache of the poll loop; what ended is given back to it, without an atomic operation.
    #[default]
    Poll,
    /// The same cache, but packets end as they do elsewhere: each by an atomic operation of its own.
    PollDropped,
    /// A page-fragment cache that any context may use, behind a spin lock. Packets end by an atomic operation.
    AnyContext,
    /// The same behind a mutex.
    AnyContextMutex,
    /// A whole page from a page pool for each packet.
    PagePool,
    /// Fragments of a page pool's pages.
    PagePoolFrag,
    /// The system's allocator, zeroed.
    System,
}

impl Alloc {
    /// All of them, with their names.
    const NAMES: [(&'static str, Self); 7] = [
        ("poll", Self::Poll),
        ("poll-drop", Self::PollDropped),
        ("any-context", Self::AnyContext),
        ("any-context-mutex", Self::AnyContextMutex),
        ("page-pool", Self::PagePool),
        ("page-pool-frag", Self::PagePoolFrag),
        ("system", Self::System),
    ];
}

/// How a frame gets into a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum RxMode {
    /// Copied, whatever its size.
    Copy,
    /// Copied whole up to so many bytes (without FCS); of longer ones the headers, and the rest stays in its page.
    CopyBreak(usize),
    /// Handed up in the page that it came in; the page comes back to its pool.
    PagePool,
    /// The same, but several frames share a page.
    Fragment,
}

impl Default for RxMode {
    /// As the drivers of Intel do.
    fn default() -> Self {
        Self::CopyBreak(COPY_BREAK_BYTES)
    }
}

impl RxMode {
    /// The names that stand alone.
    const NAMES: [(&'static str, Self); 4] = [
        ("copy", Self::Copy),
        ("copy-break", Self::CopyBreak(COPY_BREAK_BYTES)),
        ("page-pool", Self::PagePool),
        ("fragment", Self::Fragment),
    ];

    /// Whether it takes buffers from an [`Alloc`] at all.
    pub(crate) fn copies(self) -> bool {
        matches!(self, Self::Copy | Self::CopyBreak(_))
    }

    fn handing(self) -> Handing {
        match self {
            Self::Copy => Handing::Copy,
            Self::CopyBreak(bytes) => Handing::CopyBreak(bytes),
            Self::PagePool => Handing::Page,
            Self::Fragment => Handing::Fragment,
        }
    }
}

/// What keeps threads apart that send through one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Lock {
    /// One lock for the device.
    Device,
    /// One for each queue.
    #[default]
    Queue,
    /// None: each queue has one user.
    None,
}

impl Lock {
    const NAMES: [(&'static str, Self); 3] =
        [("device", Self::Device), ("queue", Self::Queue), ("none", Self::None)];
}

impl From<Lock> for TxLock {
    fn from(lock: Lock) -> Self {
        match lock {
            Lock::Device => Self::Device,
            Lock::Queue => Self::Queue,
            Lock::None => Self::None,
        }
    }
}

/// A receiving queue of a device, by what it can do.
pub(crate) enum RxQueue {
    /// It lends its frames: they must be copied.
    Lends(Box<dyn Lend>),
    /// It writes its frames into pages of the driver.
    Lands(Box<dyn Land>),
    /// The same, into pages of this pool only.
    LandsIn(Box<dyn Land>, Box<PagePool>),
}

impl RxQueue {
    /// A synthetic queue as this mode takes it: what is copied whole is copied from the wire's own memory.
    pub(crate) fn synthetic(queue: Synthetic, rx: RxMode) -> Self {
        match rx {
            RxMode::Copy => Self::Lends(Box::new(queue)),
            _ => Self::Lands(Box::new(queue)),
        }
    }
}

/// The driver of a receiving queue, with memory of its own. `longest`: bytes of the longest frame, without FCS.
///
/// # Errors
/// Where the queue cannot do what `rx` asks for.
pub(crate) fn receiver(queue: RxQueue, alloc: Alloc, rx: RxMode, longest: usize) -> Result<Box<dyn Receive>> {
    let source = Source::default().share();
    match alloc {
        Alloc::Poll => driver(queue, Poll::new(source), rx, longest),
        Alloc::PollDropped => driver(queue, PollDropped::new(source), rx, longest),
        Alloc::AnyContext => driver(queue, AnyContext::<SpinLock>::alone(source), rx, longest),
        Alloc::AnyContextMutex => driver(queue, AnyContext::<Mutex>::alone(source), rx, longest),
        Alloc::PagePool => driver(queue, Pool::new(page_pool(longest), true), rx, longest),
        Alloc::PagePoolFrag => driver(queue, Pool::new(page_pool(longest), false), rx, longest),
        Alloc::System => driver(queue, System, rx, longest),
    }
}

/// One driver for each kind of buffers: all that differs between two of them is this parameter.
fn driver<B: Buffers + 'static>(
    queue: RxQueue,
    buffers: B,
    rx: RxMode,
    longest: usize,
) -> Result<Box<dyn Receive>> {
    Ok(match queue {
        RxQueue::Lends(queue) if rx == RxMode::Copy => Box::new(Copying::new(queue, buffers)),
        RxQueue::Lends(_) => bail!(
            "rx = {rx}: this device keeps its frames, so they must be copied; use rx copy, or a device that writes into \
             pages of ours (synthetic, af-xdp)"
        ),
        RxQueue::Lands(queue) => {
            Box::new(Paged::new(queue, page_pool(longest), buffers, rx.handing(), longest))
        }
        RxQueue::LandsIn(..) if rx == RxMode::Fragment => bail!(
            "rx = {rx}: this device writes each frame into a page of its own; use rx page-pool, copy-break or copy"
        ),
        RxQueue::LandsIn(queue, pool) => Box::new(Paged::new(queue, *pool, buffers, rx.handing(), longest)),
    })
}

/// A pool of pages that such a frame fits into with all that surrounds it. Of 4 KiB, unless that is too little.
pub(crate) fn page_pool(longest: usize) -> PagePool {
    PagePool::new(PoolConfig::default().with_page_bytes(buffer_bytes(longest)))
}

macro_rules! named {
    ($type:ident, $what:literal) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        impl $type {
            /// The value of this name.
            fn find(text: &str) -> Result<Self, String> {
                let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
                found.ok_or_else(|| nearest($what, text, Self::NAMES.iter().map(|(name, _)| *name)))
            }

            /// The name of this value.
            fn name(self) -> &'static str {
                Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
            }
        }
    };
}

named!(Alloc, "allocator");
named!(RxMode, "way to receive");
named!(Lock, "lock");

impl FromStr for Alloc {
    type Err = String;

    /// Of older records and scenarios: `poll-dropped`.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::find(if text == "poll-dropped" { "poll-drop" } else { text })
    }
}

impl FromStr for RxMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(bytes) = text.strip_prefix("copy-break:") else { return Self::find(text) };
        let limit = bytes.parse().ok().filter(|limit| (1..=MOST_COPY_BREAK_BYTES).contains(limit));
        limit.map(Self::CopyBreak).ok_or_else(|| {
            format!("copy-break:{bytes}: a number of bytes from 1 to {MOST_COPY_BREAK_BYTES} is needed, for example copy-break:256")
        })
    }
}

impl FromStr for Lock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::find(text)
    }
}

impl fmt::Display for Alloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for RxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopyBreak(bytes) => f.pad(&format!("copy-break:{bytes}")),
            other => f.pad(other.name()),
        }
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, alloc) in Alloc::NAMES {
            assert_eq!((name.parse(), alloc.to_string().as_str()), (Ok(alloc), name));
        }
        assert_eq!("poll-dropped".parse(), Ok(Alloc::PollDropped), "as it was called before");
        for (name, lock) in Lock::NAMES {
            assert_eq!((name.parse(), lock.to_string().as_str()), (Ok(lock), name));
        }
        for (_, rx) in RxMode::NAMES {
            assert_eq!(rx.to_string().parse(), Ok(rx));
        }
        assert_eq!("copy-break".parse(), Ok(RxMode::CopyBreak(256)));
        assert_eq!("copy-break:100".parse(), Ok(RxMode::CopyBreak(100)));
    }

    #[test]
    fn what_is_no_name_names_the_nearest() {
        assert!("any-contxt".parse::<Alloc>().unwrap_err().contains("`any-context` is near"));
        assert!("page-pol".parse::<RxMode>().unwrap_err().contains("`page-pool` is near"));
        assert!("copy-break:0".parse::<RxMode>().unwrap_err().contains("from 1 to 65535"));
        assert!("qeue".parse::<Lock>().unwrap_err().contains("known: device, queue, none"));
    }
}
