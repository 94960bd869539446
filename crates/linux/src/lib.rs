//! The Linux kernel as safe, typed calls.
//!
//! One function a call, no policy: what a call is used for, in which order and with which defaults is decided
//! by the crates above (`lab` builds networks, `traffic` moves frames). This is the only crate of the packet
//! path in which `unsafe` is allowed; every public function is safe, takes no raw address, and reports a
//! failure as a [`SyscallError`] that names the call, the object it was made on, and the kernel's answer.
//!
//! Everything works on the calling thread's network namespace unless a function says otherwise.
#![allow(unsafe_code)]

pub mod bpf;
pub mod btf;
pub mod clock;
pub mod cpu;
pub mod cpumask;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod limits;
pub mod memory;
pub mod napi;
pub mod netns;
pub mod netsysfs;
pub mod nft;
pub mod offload;
pub mod packet;
pub mod perf;
pub mod privilege;
pub mod process;
pub mod procfs;
pub mod route;
pub mod sysctl;
pub mod tap;
pub mod udp;
pub mod xsk;

pub use error::SyscallError;
