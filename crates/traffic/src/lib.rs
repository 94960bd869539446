//! Ways to hand frames to the kernel, behind one trait, and the BPF programs that make, end and count them.
//!
//! A [`Backend`] sends a number of frames and says two things about them: how many it handed over, and how many the
//! kernel confirmed. Neither is delivery: a device, a queue or a hook may still drop a frame, and only a counter further
//! on, such as a [`ProgramSink`], knows. Comparing the two sides is the caller's ledger, not done here.
//!
//! What this crate does not do: it makes no devices or namespaces, it does not know what is in a frame (frames are
//! [`Frames`], given or written by a closure), and it takes no times. A backend sends as fast as it can in the calling
//! thread, which must be in the network namespace in which the backend was made; [`Paced`] makes it keep a rate, and
//! [`Threads`] adds others to it.
//!
//! What the ways cost differs by a factor of ten. Over a veth pair whose peer drops in XDP, beside other work on a
//! two-core virtual machine (kernel 6.18), a frame of 60 bytes took, in CPU time of the sender, with trafgen 0.6.8 and
//! its transmit ring as 1: `xdp-live` 0.10, `af-xdp` 0.60, `tx-ring` 0.73, `mmsg` 1.02. `bench/backends` measures it; the
//! whole table, with wall time, is in `docs/method.md`.
//!
//! | module | holds |
//! |---|---|
//! | `backend` | the trait, the kinds, what was sent |
//! | `frames` | what is sent: the same, a cycle, or written one by one |
//! | `generator` | the trait of what sends at a rate |
//! | `pace` | a backend that sends each packet when it is due: at a rate, or as in a recording |
//! | `ability` | what this host can do, and what is lacking |
//! | `live` | what sends at a rate from inside the kernel |
//! | `pktgen` | the kernel's own generator |
//! | `inject`, `af_xdp`, `tx_ring`, `mmsg`, `udp`, `memory` | the backends |
//! | `threads` | several backends as one, each on a thread and a CPU of its own |
//! | [`programs`] | the eBPF programs that make frames, and those that count and end them |
//! | [`capture`] | capture files, read and written as a stream |
//! | `sink` | what a counting program counted |
//! | [`receive`] | the ways to receive and count |
//! | [`mark`] | numbers in payloads, by which a receiver tells what was lost, came twice, or was changed |
//!
//! ```
//! use traffic::{Backend, Frames, Memory};
//!
//! let frames = Frames::generated(60, |sequence, frame| frame[14] = sequence as u8)?;
//! let mut backend = Memory::new(frames, 4);
//! let sent = backend.send(3)? + backend.flush()?;
//! assert_eq!((sent.offered, sent.confirmed), (3, 3));
//! assert_eq!(backend.kept().map(|frame| frame[14]).collect::<Vec<_>>(), [0, 1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ability;
mod af_xdp;
mod backend;
pub mod capture;
mod frames;
mod generator;
mod headers;
mod inject;
mod live;
pub mod mark;
mod memory;
mod mmsg;
mod pace;
mod pktgen;
pub mod programs;
pub mod receive;
mod sink;
mod threads;
mod tx_ring;
mod udp;

pub use ability::{Ability, Lack, probe};
pub use af_xdp::{AfXdp, AfXdpSpec};
pub use backend::{Backend, BackendKind, SendError, Sent, UnknownBackend};
pub use frames::{FrameError, Frames};
pub use generator::{Generator, Pace, Spent};
pub use headers::Flow;
pub use inject::{Inject, InjectSpec};
pub use linux::xsk::BindMode;
pub use live::{LiveError, LiveGenerator, LiveSpec};
pub use memory::Memory;
pub use mmsg::{Mmsg, MmsgSpec};
pub use pace::{Paced, Recorded, Timeline, Timing, recording};
pub use pktgen::{Pktgen, PktgenAddresses, PktgenError, PktgenPackets, PktgenSpec, PktgenTags};
pub use sink::ProgramSink;
pub use threads::Threads;
pub use tx_ring::{TxRingBackend, TxRingSpec};
pub use udp::{UdpError, UdpSockets, UdpSpec};
