//! bpf(2): maps, programs, links, and runs of programs on frames.
//!
//! Programs come as encoded instructions, eight bytes each, so that this crate depends on no assembler and no
//! object file. A program names a map by its descriptor ([`Map::fd`]) in a 64-bit immediate load.
//!
//! Maps, programs and links are descriptors: when the last descriptor of one closes, also because the process
//! died, the kernel takes it down. Nothing is pinned. [`count_objects`] tells whether something was left.
//!
//! Needs CAP_BPF and CAP_NET_ADMIN in the initial user namespace (CAP_PERFMON too for tracing), or
//! CAP_SYS_ADMIN there. Kernel 5.18 for [`Program::run_xdp_live`], 6.6 for [`Link::attach_tcx_ingress`].

mod hash;
mod link;
mod map;
mod objects;
mod program;
mod sys;
mod test_run;

pub use hash::PerCpuHash;
pub use link::{Link, XdpMode};
pub use map::{Map, MappedArray};
pub use objects::{ObjectCounts, ObjectIds, count_objects, object_ids};
pub use program::{AttachType, Program, ProgramKind, ProgramSpec};
pub use test_run::{LIVE_BATCH_MAX, LIVE_FRAME_BYTES_MAX, LiveEnd, LiveRun, PlainRun, XdpAction};
