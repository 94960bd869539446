//! Who works on a flow: its hash, the queue or CPU that the hash leads to, and when a queue takes no more of one flow.
//!
//! [`Toeplitz`] is the hash of receive-side scaling, as network devices compute it. From there either an
//! [`Indirection`] table leads to a queue, as in a device, or a [`CpuMap`] to a CPU, as in receive packet steering.
//! Where what waits at the other end fills up, a [`FlowLimit`] keeps one flow from taking all the room.
//!
//! ```
//! use datapath::steering::{CpuMap, Key, Toeplitz};
//! use datapath::wire::{Addresses, Ports};
//!
//! let toeplitz = Toeplitz::new(&Key::MICROSOFT);
//! let addresses = Addresses::V4 { source: 0x4209_95bb, destination: 0xa18e_6450 };
//! let hash = toeplitz.hash(&addresses, Some(Ports { source: 2794, destination: 1766 }));
//! assert_eq!(hash, 0x51cc_c178);
//! let cpus: CpuMap = "3".parse()?;
//! assert_eq!(cpus.of(hash), 0);
//! # Ok::<(), datapath::steering::SteeringError>(())
//! ```

mod flow_limit;
mod targets;
mod toeplitz;

pub use flow_limit::FlowLimit;
pub use targets::{CpuMap, Indirection, SteeringError};
pub use toeplitz::{Key, Toeplitz, toeplitz};
