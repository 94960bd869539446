//! Frames to test with, and what tests do with them.
#![allow(dead_code, reason = "each test file has its own copy")]

use datapath::wire::{self, Frame, Parsed, checksum::Sum};

/// Where the network header begins.
pub(crate) const L3: usize = 14;

/// A frame that the kernel made (data/frames-linux-6.18.txt).
pub(crate) fn kernel_frame(name: &str) -> Vec<u8> {
    kernel_frames().into_iter().find(|(n, _)| *n == name).map(|(_, frame)| frame).expect(name)
}

/// All of them.
pub(crate) fn kernel_frames() -> Vec<(&'static str, Vec<u8>)> {
    include_str!("../data/frames-linux-6.18.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("a name and bytes");
            (name, from_hex(hex))
        })
        .collect()
}

pub(crate) fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}

/// An IP packet, or the test fails.
pub(crate) fn ip(frame: &[u8]) -> Parsed {
    match wire::parse(frame) {
        Ok(Frame::Ip(packet)) => packet,
        other => panic!("{other:?} of {frame:02x?}"),
    }
}

/// Makes the checksum of an IPv4 header right, whatever else is wrong.
pub(crate) fn repair_ipv4(frame: &mut [u8]) {
    let header_bytes = (usize::from(frame[L3] & 15) * 4).max(20).min(frame.len() - L3);
    frame[L3 + 10..L3 + 12].fill(0);
    let checksum = Sum::ZERO.bytes(&frame[L3..L3 + header_bytes]).finish();
    frame[L3 + 10..L3 + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// Makes the checksum of an ICMPv6 message right that follows a fixed header.
pub(crate) fn repair_icmpv6(frame: &mut [u8]) {
    let message = L3 + 40;
    frame[message + 2..message + 4].fill(0);
    let bytes = (frame.len() - message) as u32;
    let sum = Sum::ZERO.bytes(&frame[L3 + 8..L3 + 40]).bytes(&bytes.to_be_bytes()).word(58);
    let checksum = sum.bytes(&frame[message..]).finish();
    frame[message + 2..message + 4].copy_from_slice(&checksum.to_be_bytes());
}
