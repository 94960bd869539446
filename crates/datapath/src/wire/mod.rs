//! Headers: read, checked and changed where they lie.
//!
//! [`parse`] tells what a frame is in one pass, without looking at payload: what a forwarder needs is in [`Parsed`],
//! and a frame whose network header contradicts itself is refused as [`Malformed`], with a reason that can be counted.
//! Transport headers are looked at only where they are delivered ([`udp`], [`icmp`], [`neighbour`]): a router has no
//! business refusing what it only passes on (RFC 1812 section 5.2.2).
//!
//! Everything works on plain slices. No function panics on any bytes, none allocates, and none needs a clock.
//!
//! | module | what it knows |
//! |---|---|
//! | [`ethernet`] | addresses, types |
//! | [`arp`] | IPv4 addresses to Ethernet addresses |
//! | [`ipv4`], [`ipv6`] | network headers, time to live |
//! | [`udp`] | the one transport that is delivered here |
//! | [`icmp`] | echo, and errors: when one may be sent, and what is in it |
//! | [`neighbour`] | the same as ARP for IPv6 |
//! | [`checksum`] | all of it, or only the difference |
//!
//! ```
//! use datapath::wire::{self, Frame};
//!
//! let mut frame = [0u8; 42];
//! frame[12..14].copy_from_slice(&[0x08, 0x00]);
//! let header = wire::ipv4::Header {
//!     source: 0x0a00_0001,
//!     destination: 0x0a00_0102,
//!     protocol: wire::protocol::UDP,
//!     ttl: 64,
//!     ..wire::ipv4::Header::default()
//! };
//! header.write(&mut frame[14..], 8).unwrap();
//!
//! let Ok(Frame::Ip(packet)) = wire::parse(&frame) else { panic!("this is IPv4") };
//! assert_eq!(packet.ttl, 64);
//! assert_eq!(wire::decrement_ttl(&mut frame, &packet), Some(63));
//! assert!(wire::parse(&frame).is_ok(), "the checksum went along");
//! ```

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod neighbour;
pub mod udp;

mod field;
mod malformed;
mod parsed;

pub use malformed::Malformed;
pub use parsed::{
    Addresses, Family, Fragment, Frame, Parsed, PassedBy, Ports, decrement_ttl, parse, parse_head,
};

/// Protocol numbers (IANA), those of extension headers of IPv6 included.
pub mod protocol {
    /// Hop-by-hop options (RFC 8200 section 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// Routing header (RFC 8200 section 4.4).
    pub const ROUTING: u8 = 43;
    /// Fragment header (RFC 8200 section 4.5).
    pub const FRAGMENT: u8 = 44;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// Nothing follows (RFC 8200 section 4.7).
    pub const NO_NEXT: u8 = 59;
    /// Destination options (RFC 8200 section 4.6).
    pub const DESTINATION: u8 = 60;
    /// DCCP (RFC 4340).
    pub const DCCP: u8 = 33;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
    /// Mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
    /// Host Identity Protocol (RFC 7401).
    pub const HOST_IDENTITY: u8 = 139;
    /// Shim6 (RFC 5533).
    pub const SHIM6: u8 = 140;
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: u8 = 136;
}

/// What was to be written is longer than the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {what} of {needed_bytes} bytes: the buffer has {room_bytes}; give it a larger one")]
pub struct NoRoom {
    /// What was to be written.
    pub what: &'static str,
    /// How long that is.
    pub needed_bytes: usize,
    /// How long the buffer is.
    pub room_bytes: usize,
}

/// The first `bytes` of a buffer, to write `what` there.
fn room<'a>(buffer: &'a mut [u8], bytes: usize, what: &'static str) -> Result<&'a mut [u8], NoRoom> {
    let room_bytes = buffer.len();
    buffer.get_mut(..bytes).ok_or(NoRoom { what, needed_bytes: bytes, room_bytes })
}
