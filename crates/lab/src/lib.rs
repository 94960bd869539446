//! Networks to measure in: made before a run, counted around it, gone after it.
//!
//! A lab is planned as data ([`Plan`]), which can be printed and checked without privilege, and then built
//! ([`Lab::build`]). Its namespaces have no names and are held by descriptors only, so they die with the
//! process, however it ends. What belongs to the host and not to a lab, such as `/sys/kernel/rcu_expedited`,
//! goes through a journal ([`HostSettings`]), which a later start can undo. [`counters`] read what a
//! namespace counted.
//!
//! Deliberately not here: traffic, timing, and any decision about what a run needs.
//!
//! ```
//! use lab::{Plan, Port};
//!
//! let mut plan = Plan::new();
//! plan.namespace("gen").namespace("sys");
//! plan.veth(Port::new("gen", "g0").queues(1), Port::new("sys", "s0").mac([2, 0, 0, 0, 0, 2]));
//! plan.address("sys", "s0", "198.18.0.2".parse().unwrap(), 24);
//! plan.check().unwrap();
//! assert!(plan.to_string().contains("in sys, give s0 the address 198.18.0.2/24"));
//! // As root: let lab = lab::Lab::build(&plan)?;
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod counters;
pub mod journal;
mod named;
pub mod plan;
pub mod steering;

pub use apply::{Device, Lab, LabError};
pub use journal::HostSettings;
pub use named::{NamedDeviceError, named_device};
pub use plan::{Plan, PlanError, Port};
