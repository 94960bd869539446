//! Frames of several sources and with stamps: their order, their checksums, and both their forms.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use common::machine::Machine;
use common::{hex, sum};
use ebpf::{Assembler, Reg};
use proptest::prelude::*;
use template::stamp::{self, Stamp};
use template::{Addresses, Audit, CheckedFrame, FrameError, UdpFrame};

const SCRATCH: [Reg; 5] = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R1];
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 250);
const NOW: u64 = 0x0123_4567_89ab_cdef;

fn v4(frame_bytes: u32, flows: u16, sources: u32, stamp: bool) -> UdpFrame {
    UdpFrame {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        addresses: Addresses::V4 { source: SOURCE, destination: [10, 0, 1, 1].into() },
        source_port: 1024,
        destination_port: 9,
        flows,
        sources,
        stamp,
        frame_bytes,
    }
}

fn v6(frame_bytes: u32, flows: u16, stamp: bool) -> UdpFrame {
    let source = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);
    let destination = Ipv6Addr::new(0xfd00, 0, 0, 2, 0, 0, 0, 1);
    UdpFrame { addresses: Addresses::V6 { source, destination }, ..v4(frame_bytes, flows, 1, stamp) }
}

/// A frame's bytes, written over garbage at a time.
fn written(frame: &CheckedFrame, sequence: u64, now: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; frame.l2_bytes()];
    frame.write(sequence, &mut bytes, || now);
    bytes
}

/// The same by the instructions, over a packet whose headers came back changed.
fn run(frame: &CheckedFrame, sequence: u64, now: u64) -> Vec<u8> {
    let mut asm = Assembler::new();
    frame.lower_packet(&mut asm, Reg::R6, Reg::R8, SCRATCH);
    let insns = asm.finish().unwrap();
    let mut packet = frame.to_vec(77);
    packet[..frame.header_bytes()].fill(0xee);
    let regs = Machine { packet: Reg::R6, now }.run(&insns, (Reg::R8, sequence), &mut packet);
    assert_eq!(regs[8], sequence, "the index must be kept");
    packet
}

/// What a receiver checks: lengths, and that the sums over the header and the datagram are all ones (RFC 1071 section 1). Adds up
/// by code apart from the crate's own.
fn check(bytes: &[u8]) {
    let (addresses, start) = if bytes[12] == 0x08 { (26..34, 34) } else { (22..54, 54) };
    if start == 34 {
        assert_eq!(sum(&[&bytes[14..34]]), 0xffff, "IPv4 header: {}", hex(bytes));
    }
    assert_ne!(bytes[start + 6..start + 8], [0, 0], "no checksum: {}", hex(bytes));
    let datagram = &bytes[start..];
    let length = (datagram.len() as u32).to_be_bytes();
    let sum = sum(&[&bytes[addresses], &length, &[0, 17], datagram]);
    assert_eq!(sum, 0xffff, "UDP: {}", hex(bytes));
}

fn source(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[26..30].try_into().unwrap())
}

fn port(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[36..38].try_into().unwrap())
}

#[test]
fn flows_take_turns_and_each_visits_all_sources() {
    for (flows, sources) in [(1, 1), (1, 7), (8, 1), (8, 5), (3, 16), (5, 1000)] {
        for stamp in [false, true] {
            let frame = v4(64, flows, sources, stamp).check().unwrap();
            assert_eq!((frame.flows(), frame.sources(), frame.has_stamp()), (flows, sources, stamp));
            let period = u64::from(flows) * u64::from(sources);
            assert_eq!(frame.period(), (!stamp).then_some(period));
            for sequence in 0..2 * period + 3 {
                let bytes = written(&frame, sequence, NOW);
                let round = sequence / u64::from(flows);
                assert_eq!(u64::from(port(&bytes)), 9 + sequence % u64::from(flows));
                assert_eq!(u64::from(source(&bytes) - SOURCE.to_bits()), round % u64::from(sources));
                check(&bytes);
                if !stamp {
                    assert_eq!(bytes, frame.to_vec(sequence % period));
                }
            }
        }
    }
}

#[test]
fn a_million_sources_are_a_million_addresses() {
    let frame = v4(64, 1, 1_000_000, false).check().unwrap();
    let mut seen = HashSet::new();
    let mut bytes = vec![0; frame.l2_bytes()];
    for sequence in 0..1_000_000 {
        frame.write(sequence, &mut bytes, || unreachable!("no stamp"));
        assert!(seen.insert(source(&bytes)), "{sequence}");
        check(&bytes);
    }
    assert_eq!(seen.iter().min().copied(), Some(SOURCE.to_bits()));
    assert_eq!(seen.iter().max().copied(), Some(SOURCE.to_bits() + 999_999));
    frame.write(1_000_000, &mut bytes, || unreachable!("no stamp"));
    assert_eq!(bytes, frame.to_vec(0));
}

#[test]
fn a_stamp_says_number_and_time() {
    for frame in
        [v4(64, 3, 10, true), v4(65, 1, 1, true), v4(1518, 8, 1, true), v6(84, 1, true), v6(1280, 5, true)]
    {
        let checked = frame.check().unwrap().with_stream(513);
        let payload = checked.header_bytes() - stamp::BYTES;
        for (sequence, now) in [(0, 0), (1, u64::MAX), (77, NOW), ((1 << 48) - 1, NOW + 1)] {
            let bytes = written(&checked, sequence, now);
            assert_eq!(bytes.len(), frame.frame_bytes as usize - 4);
            let stamp = Stamp { stream: 513, sequence, sent_ns: now };
            assert_eq!(stamp::read(&bytes[payload..]), Some(stamp));
            check(&bytes);
        }
        let plain = UdpFrame { stamp: false, ..frame }.check().unwrap();
        assert_eq!(stamp::read(&plain.to_vec(0)[payload..]), None);
        assert_eq!(plain.header_bytes(), payload);
    }
}

#[test]
fn an_audit_finds_nothing_wrong() {
    let mut audit = Audit::new();
    let frame = v4(272, 8, 100, true).check().unwrap();
    (0..1600).for_each(|sequence| audit.add(&written(&frame, sequence, NOW + sequence)));
    assert_eq!((audit.problems().count(), audit.without_udp_checksum()), (0, 0));
    let flows = audit.flows();
    assert_eq!((flows.distinct, flows.smallest, flows.largest), (800, 2, 2));
}

#[cfg(target_endian = "little")] // the interpreter's memory is
#[test]
fn instructions_write_the_same_packets_as_the_bytes() {
    let shapes = [1, 2, 3, 8, 1000, 32_768, 60_000]
        .into_iter()
        .flat_map(|flows| [1, 2, 3, 16, 1_000_000, 1 << 24].map(|sources| (flows, sources)));
    for (flows, sources) in shapes {
        for frame in [v4(64, flows, sources, false), v4(67, flows, sources, true), v6(272, flows, true)] {
            let checked = frame.check().unwrap().with_stream(flows.wrapping_mul(40_503));
            let near = (0..50).chain([65_535, 65_536, 999_999, 1_000_000, 7_999_999, u64::from(u32::MAX)]);
            for sequence in near.chain([1 << 32, 1 << 40, (1 << 48) - 1]) {
                let now = NOW.wrapping_mul(sequence | 1) >> 1;
                let bytes = written(&checked, sequence, now);
                check(&bytes);
                assert_eq!(hex(&run(&checked, sequence, now)), hex(&bytes), "{frame:?} {sequence}");
            }
        }
    }
    // The highest addresses, and a frame without a UDP header.
    let addresses = Addresses::V4 { source: Ipv4Addr::new(255, 255, 255, 1), destination: [255; 4].into() };
    for frame in [UdpFrame { addresses, ..v4(64, 1, 255, true) }, v6(64, 1, false)] {
        let checked = frame.check().unwrap();
        for sequence in 0..300 {
            assert_eq!(run(&checked, sequence, NOW), written(&checked, sequence, NOW));
        }
    }
}

/// All sums that may come out, among them 0, which is sent as 0xffff (RFC 768).
#[cfg(target_endian = "little")]
#[test]
fn every_checksum_comes_out_right_in_both_forms() {
    let frame = v4(64, 1, 1, true).check().unwrap();
    let mut all_ones = 0;
    for sequence in 0..70_000 {
        let bytes = run(&frame, sequence, NOW);
        assert_eq!(bytes, written(&frame, sequence, NOW));
        check(&bytes);
        all_ones += u32::from(bytes[40..42] == [0xff, 0xff]);
    }
    assert!(all_ones > 0);
}

/// Room matters: a program on live frames runs for every packet.
#[test]
fn the_instructions_are_few() {
    let count = |frame: UdpFrame| {
        let mut asm = Assembler::new();
        frame.check().unwrap().lower_packet(&mut asm, Reg::R6, Reg::R8, SCRATCH);
        asm.finish().unwrap().len()
    };
    let counts =
        [v4(64, 1, 1, false), v4(64, 8, 1, false), v4(64, 1, 1, true), v4(64, 8, 1_000_000, true)].map(count);
    assert!(counts.iter().zip([11, 50, 50, 90]).all(|(&count, most)| count <= most), "{counts:?}");
}

#[test]
fn what_cannot_be_made_is_refused_with_what_it_lacks() {
    let error = |frame: UdpFrame| frame.check().unwrap_err();
    let stamp = |frame_bytes, missing_bytes| FrameError::Stamp { frame_bytes, missing_bytes };
    assert_eq!(error(v6(64, 1, true)), stamp(64, 20));
    assert_eq!(error(v6(83, 1, true)), stamp(83, 1));
    assert!(v6(84, 1, true).check().is_ok() && v4(64, 1, 1, true).check().is_ok());
    assert!(error(v6(64, 1, true)).to_string().contains("20 bytes longer"));
    let sources = |sources| FrameError::Sources { sources, first: SOURCE };
    assert_eq!(error(v4(64, 1, 0, false)), sources(0));
    assert_eq!(error(v4(64, 1, u32::MAX, false)), sources(u32::MAX));
    assert_eq!(
        error(v4(64, 1, u32::MAX - SOURCE.to_bits() + 2, false)),
        sources(u32::MAX - SOURCE.to_bits() + 2)
    );
    assert!(v4(64, 1, u32::MAX - SOURCE.to_bits() + 1, false).check().is_ok());
    let v6 = UdpFrame { sources: 2, ..v6(272, 1, false) };
    assert_eq!(error(v6), FrameError::SourcesOverIpv6(2));
}

proptest! {
    #[cfg(target_endian = "little")]
    #[test]
    fn any_frame_is_the_same_in_both_forms_and_right(
        first: u32, flows in 1..=65_527_u16, sources: u32, stamp: bool, frame_bytes in 64..200_u32,
        sequence in 0..1_u64 << 48, now in 0..1_u64 << 63, stream: u16,
    ) {
        let addresses = Addresses::V4 { source: first.into(), destination: [10, 0, 1, 1].into() };
        let sources = sources.clamp(1, (u32::MAX - first).saturating_add(1));
        let frame = UdpFrame { addresses, ..v4(frame_bytes, flows, sources, stamp) };
        let checked = frame.check().unwrap().with_stream(stream);
        let bytes = written(&checked, sequence, now);
        check(&bytes);
        prop_assert_eq!(run(&checked, sequence, now), bytes);
    }
}
