//! What can be compared: allocators, on how many threads, and which go together.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pagefrag::{Guard, SpinLock};
use serde::{Deserialize, Serialize};

use super::arm::{Arm, Worker};
use super::arms::fragments::{DROP, DROP_ALL, GIVE_BACK, GIVE_BACK_ALL, LEAVE, Poll, Shared};
#[cfg(feature = "jemalloc")]
use super::arms::general::OfJemalloc;
use super::arms::general::{General, OfMimalloc, OfSystem, OneBytesMut, SplitBytesMut};
use super::arms::plain::{FreeList, Ready};
use super::arms::pool::{FAST, FRAGMENTS, Pool, RING, SLOW};
use super::bench::{Across, Apart, Bench, One, Ring, Step, Two};
use super::load::{Load, Sizes};
use crate::words::nearest;

/// An allocator, and how its buffers end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Allocator {
    Loop,
    Poll,
    PollMany,
    PollLeave,
    PollDrop,
    PollDropAll,
    Spin,
    SpinMany,
    Mutex,
    PoolFast,
    PoolRing,
    PoolSlow,
    PoolFrag,
    FreeList,
    System,
    Mimalloc,
    Jemalloc,
    Bytes,
    BytesSplit,
}

impl Allocator {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Self; 19] = [
        Self::Loop,
        Self::Poll,
        Self::PollMany,
        Self::PollLeave,
        Self::PollDrop,
        Self::PollDropAll,
        Self::Spin,
        Self::SpinMany,
        Self::Mutex,
        Self::PoolFast,
        Self::PoolRing,
        Self::PoolSlow,
        Self::PoolFrag,
        Self::FreeList,
        Self::System,
        Self::Mimalloc,
        Self::Jemalloc,
        Self::Bytes,
        Self::BytesSplit,
    ];

    /// Its name on the command line and in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Poll => "poll",
            Self::PollMany => "poll-many",
            Self::PollLeave => "poll-leave",
            Self::PollDrop => "poll-drop",
            Self::PollDropAll => "poll-drop-all",
            Self::Spin => "spin",
            Self::SpinMany => "spin-many",
            Self::Mutex => "mutex",
            Self::PoolFast => "pool-fast",
            Self::PoolRing => "pool-ring",
            Self::PoolSlow => "pool-slow",
            Self::PoolFrag => "pool-frag",
            Self::FreeList => "free-list",
            Self::System => "system",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Bytes => "bytes",
            Self::BytesSplit => "bytes-split",
        }
    }

    /// What it is, for the table.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Loop => "the loop alone",
            Self::Poll => "poll cache, given back",
            Self::PollMany => "the same, a burst at once",
            Self::PollLeave => "poll cache, no block waits",
            Self::PollDrop => "poll cache, dropped",
            Self::PollDropAll => "poll cache, dropped together",
            Self::Spin => "any-context cache, spin lock",
            Self::SpinMany => "the same, a burst at once",
            Self::Mutex => "any-context cache, mutex",
            Self::PoolFast => "page pool, recycled (fast)",
            Self::PoolRing => "page pool, through its ring",
            Self::PoolSlow => "page pool, to the source (slow)",
            Self::PoolFrag => "page pool, fragments, recycled",
            Self::FreeList => "free list",
            Self::System => "system allocator",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Bytes => "BytesMut",
            Self::BytesSplit => "BytesMut, split off a block",
        }
    }

    /// Why it is not in this program; none where it is.
    pub(crate) fn lacking(self) -> Option<&'static str> {
        (self == Self::Jemalloc && !cfg!(feature = "jemalloc")).then_some("not built in: --features jemalloc")
    }

    /// Why it has no figure under this load on these threads; none where it has.
    pub(crate) fn refuses(self, threads: Threads, sizes: &Sizes, hold: f64) -> Option<&'static str> {
        let is_mixed = hold > 0.0 || !matches!(sizes, Sizes::One(_));
        match self {
            Self::Poll | Self::PollMany | Self::PollLeave if threads == Threads::Across => {
                Some("only its owner can give back")
            }
            Self::PoolFast | Self::PoolSlow | Self::PoolFrag if threads == Threads::Across => {
                Some("only its owner can recycle")
            }
            Self::FreeList if threads == Threads::Across => Some("has one owner"),
            Self::SpinMany if is_mixed => Some("takes a burst of one size"),
            _ => None,
        }
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Allocator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|allocator| allocator.name() == text);
        found.ok_or_else(|| nearest("allocator", text, Self::ALL.map(Self::name).into_iter()))
    }
}

impl TryFrom<String> for Allocator {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Allocator> for String {
    fn from(allocator: Allocator) -> Self {
        allocator.name().into()
    }
}

/// Who takes and who ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threads {
    /// One thread takes and ends.
    One,
    /// Two threads at once, of which each takes and ends its own.
    Two,
    /// One thread takes, another one ends.
    Across,
}

impl Threads {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
            Self::Across => "across",
        }
    }
}

/// Steps that are measured beside the allocators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Baseline {
    /// A loop in which nothing is done.
    Nothing,
    /// An increment of a number that only this thread uses, but atomic.
    Atomic,
    /// The spin lock of the any-context cache, free, taken and left.
    SpinLock,
    /// The mutex, likewise.
    Mutex,
}

impl Baseline {
    pub(crate) const ALL: [Self; 4] = [Self::Nothing, Self::Atomic, Self::SpinLock, Self::Mutex];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "empty-loop",
            Self::Atomic => "atomic-increment",
            Self::SpinLock => "spin-lock",
            Self::Mutex => "mutex-lock",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Nothing => "empty loop",
            Self::Atomic => "atomic increment",
            Self::SpinLock => "spin lock and unlock",
            Self::Mutex => "mutex lock and unlock",
        }
    }

    pub(crate) fn build(self) -> Box<dyn Bench> {
        match self {
            Self::Nothing => Box::new(Step(|| ())),
            Self::Atomic => {
                let number = AtomicU64::new(0);
                Box::new(Step(move || {
                    number.fetch_add(1, Ordering::Relaxed);
                }))
            }
            Self::SpinLock => locked(SpinLock::default()),
            Self::Mutex => locked(pagefrag::Mutex::default()),
        }
    }
}

fn locked(guard: impl Guard + 'static) -> Box<dyn Bench> {
    Box::new(Step(move || guard.enter(|| ())))
}

/// What is measured in one row of a table: an allocator under a load on some threads, or a step to hold it against.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Allocator { allocator: Allocator, sizes: Sizes, threads: Threads },
    Baseline(Baseline),
}

impl Cell {
    /// Its name, which no other cell of a run has.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Allocator { allocator, sizes, threads } => {
                format!("{allocator}/{sizes}/{}", threads.name())
            }
            Self::Baseline(baseline) => baseline.name().into(),
        }
    }
}

/// Makes an allocator and its threads' work; none where it is not in this program.
pub(crate) fn build(allocator: Allocator, threads: Threads, load: &Load) -> Option<Box<dyn Bench>> {
    let bytes = load.largest;
    Some(match allocator {
        Allocator::Loop => place(threads, load, || Ready::new(load.live, bytes)),
        Allocator::Poll => place(threads, load, Poll::<GIVE_BACK>::new),
        Allocator::PollMany => place(threads, load, Poll::<GIVE_BACK_ALL>::new),
        Allocator::PollLeave => place(threads, load, Poll::<LEAVE>::new),
        Allocator::PollDrop => place(threads, load, Poll::<DROP>::new),
        Allocator::PollDropAll => place(threads, load, Poll::<DROP_ALL>::new),
        Allocator::Spin => shared::<SpinLock, false>(threads, load),
        Allocator::SpinMany => shared::<SpinLock, true>(threads, load),
        Allocator::Mutex => shared::<pagefrag::Mutex, false>(threads, load),
        Allocator::PoolFast => place(threads, load, Pool::<FAST>::new),
        Allocator::PoolRing => place(threads, load, Pool::<RING>::new),
        Allocator::PoolSlow => place(threads, load, Pool::<SLOW>::new),
        Allocator::PoolFrag => place(threads, load, Pool::<FRAGMENTS>::new),
        Allocator::FreeList => place(threads, load, || FreeList::new(bytes)),
        Allocator::System => place(threads, load, General::<OfSystem>::new),
        Allocator::Mimalloc => place(threads, load, General::<OfMimalloc>::new),
        #[cfg(feature = "jemalloc")]
        Allocator::Jemalloc => place(threads, load, General::<OfJemalloc>::new),
        #[cfg(not(feature = "jemalloc"))]
        Allocator::Jemalloc => return None,
        Allocator::Bytes => place(threads, load, || OneBytesMut),
        Allocator::BytesSplit => place(threads, load, SplitBytesMut::new),
    })
}

/// One cache for all threads that take.
fn shared<G: Guard + Send + Sync + 'static, const MANY: bool>(
    threads: Threads,
    load: &Load,
) -> Box<dyn Bench> {
    let first = Shared::<G, MANY>::new();
    place(threads, load, move || first.again())
}

/// An arm for each thread that takes.
fn place<A: Arm>(threads: Threads, load: &Load, arm: impl Fn() -> A) -> Box<dyn Bench> {
    let live = load.live as u64;
    let worker = || Worker::new(arm(), load.clone());
    match threads {
        Threads::One => Box::new(One { worker: worker(), live }),
        Threads::Two => {
            Box::new(Two { here: Apart(worker()), there: Arc::new(Mutex::new(Apart(worker()))), live })
        }
        Threads::Across => Box::new(Across { worker: worker(), ring: Ring::new(load.live), live }),
    }
}
