//! Frames described once, then emitted as bytes or lowered to eBPF instructions.
//!
//! A measurement sends the same frames many times, through backends that differ in where the frame is written:
//! a ring or buffer in memory, or an eBPF program that writes into a page of the kernel's. All must send the
//! same bytes, so all come from one description. The crate is pure: it knows no socket, no device, no file and no
//! clock.
//!
//! There are two descriptions. A [`UdpFrame`] is a structure: the frames of the kernel paths. A [`Program`] is a
//! text in the language that trafgen's users write, described in `docs/language.md`.
//!
//! ```
//! use template::{ParseOptions, Program};
//!
//! let text = b"{ eth(da=02:00:00:00:00:02), ipv4(ttl=64, sa=10.0.0.1, da=10.0.1.1),
//!                udp(sp=1024, dp=dinc(9, 16)), \"payload\" }";
//! let program = Program::parse(text, &ParseOptions::default()).unwrap();
//! let emitter = program.plan.emitter(0, 1, 42).unwrap();
//! let mut bytes = vec![0; program.plan.longest_l2_bytes()];
//! let len = emitter.emit(3, &mut bytes);
//! assert_eq!(bytes[36..38], 12u16.to_be_bytes()); // the fourth packet: port 9 + 3
//! assert_eq!(len, 14 + 20 + 8 + 7);
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `language` | text to tree: sources, errors, lexer, preprocessor, expressions, parser |
//! | `proto` | the headers as tables |
//! | `compile` | tree to plan: fields, missing headers, lengths, checksums |
//! | `plan` | the plan and its packets; `counter` and `random` are its sources, `schedule` their order, `step` the fast form |
//! | `flags` | a handful of values to the text of a program |
//! | `layers` | the headers of any frame |
//! | `explain` | bytes to text, field by field |
//! | `audit` | what frames hold, and what is wrong with them |
//! | `lower_plan` | the plan's packets as eBPF instructions |
//! | `udp`, `lower` | [`UdpFrame`], its bytes and its instructions |
//! | [`stamp`] | number and time at the start of a payload |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod audit;
mod checksum;
mod compile;
mod counter;
mod explain;
mod flags;
mod language;
mod layers;
mod lower;
mod lower_plan;
mod plan;
mod proto;
mod random;
mod schedule;
pub mod stamp;
mod step;
mod udp;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use audit::{Audit, FlowCounts, Occurrences, Problem};
pub use explain::explain;
pub use flags::{
    AddressRange, FlagError, Flags, Mac, PortRange, Protocol, Sizes, ValueError, VlanTag, parse_switch,
};
pub use language::error::{Error, Warning, WarningKind};
pub use language::source::Place;
pub use lower_plan::{LowerError, LoweredLength};
pub use plan::{Emitter, Plan, WorkerError};
pub use udp::{Addresses, CheckedFrame, FrameError, UdpFrame};

/// The entry to the language.
#[derive(Debug, Clone, Copy)]
pub struct Program;

/// A program that was understood.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// What it sends.
    pub plan: Plan,
    /// Where it is understood differently from trafgen, or probably not as meant; each kind once.
    pub warnings: Vec<Warning>,
}

impl Program {
    /// Reads and compiles a program.
    ///
    /// The work is bounded by the length of the text; texts of more than 16 MiB, with all that they include, are
    /// refused at once.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(source: impl AsRef<[u8]>, options: &ParseOptions<'_>) -> Result<Compiled, Error> {
        let parsed = language::parse(source.as_ref(), options)?;
        compile::compile(parsed, options)
    }
}

/// What a program may refer to.
pub struct ParseOptions<'a> {
    /// Name of the text in messages.
    pub name: String,
    /// Definitions as on a command line: `NAME`, which stands for 1, or `NAME=VALUE`.
    pub definitions: Vec<String>,
    /// Finds what `#include` names; without it nothing can be included.
    pub includes: Option<&'a dyn Includes>,
    /// Where default addresses come from.
    pub device: Device,
    /// Seed of `rnd()`, which is drawn once when the program is compiled.
    pub seed: u64,
}

impl Default for ParseOptions<'_> {
    fn default() -> Self {
        Self {
            name: "(program)".to_owned(),
            definitions: Vec::new(),
            includes: None,
            device: Device::default(),
            seed: 0,
        }
    }
}

/// Addresses of the device that the packets leave by. They are the default of source addresses; what is missing is
/// all zeros in the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Device {
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

/// Finds the texts that a program includes. This crate opens no files.
pub trait Includes {
    /// The text that `include` names, or why there is none, as part of a sentence.
    fn read(&self, include: &Include<'_>) -> Result<Included, String>;
}

/// A request to include a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Include<'a> {
    /// What stands between the quotes or angle brackets.
    pub name: &'a str,
    /// In quotes: relative to the text that includes it.
    pub quoted: bool,
    /// Name of the text that includes it.
    pub from: &'a str,
}

/// A text that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Included {
    /// Its name in messages, and in what it includes itself.
    pub name: String,
    /// Its bytes.
    pub text: Vec<u8>,
}
