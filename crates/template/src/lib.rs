//! Frames described once, then emitted as bytes or lowered to eBPF instructions.
//!
//! A measurement sends the same frame many times, through backends that differ in where the frame is written:
//! a ring or buffer in memory, or an eBPF program that writes into a page of the kernel's. Both must send the
//! same bytes, so both come from one description. The crate is pure: it knows no socket, no device and no clock.
//!
//! It holds what the kernel paths need today: Ethernet, IPv4 or IPv6, and UDP, with the destination port varying
//! over a number of flows.
//!
//! ```
//! use template::{Addresses, UdpFrame};
//!
//! let frame = UdpFrame {
//!     source_mac: [2, 0, 0, 0, 0, 1],
//!     destination_mac: [2, 0, 0, 0, 0, 2],
//!     addresses: Addresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 1, 1].into() },
//!     source_port: 1024,
//!     destination_port: 9,
//!     flows: 8,
//!     frame_bytes: 64,
//! };
//! let mut bytes = vec![0; frame.l2_bytes()];
//! frame.check().unwrap().write(3, &mut bytes);
//! assert_eq!(bytes[36..38], 12u16.to_be_bytes()); // the fourth flow: port 9 + 3
//! ```

mod checksum;
mod lower;
mod udp;

pub use udp::{Addresses, CheckedFrame, FrameError, UdpFrame};
