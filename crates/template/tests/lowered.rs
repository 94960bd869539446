//! A plan's instructions write the same packets as `emit`, byte for byte.
//!
//! They are run by an interpreter of the few instructions that they use (RFC 9669). It starts from a packet whose first
//! bytes are garbage, as a recycled one's are.

#![allow(clippy::unwrap_used)]

mod common;

use common::{corpus, parse};
use ebpf::{Assembler, Insn, Reg};
use template::{Emitter, LowerError, LoweredLength};

const SCRATCH: [Reg; 5] = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R7];

/// Runs the instructions on a packet. Register 1 stands for the packet, register 2 holds the index. Returns the registers.
fn run(insns: &[Insn], index: u64, packet: &mut [u8]) -> [u64; 11] {
    let mut regs = [0x5555_5555_5555_5555_u64; 11];
    regs[2] = index;
    let mut at = 0;
    while at < insns.len() {
        let insn = insns[at];
        let (dst, src) = (usize::from(insn.regs & 15), usize::from(insn.regs >> 4));
        let imm = i64::from(insn.imm) as u64;
        let operand = if insn.code & 8 == 0 { imm } else { regs[src] };
        let place = insn.off as usize;
        at += 1;
        match insn.code & 7 {
            7 => regs[dst] = alu(insn.code, regs[dst], operand),
            4 if insn.code == 0xdc => regs[dst] = to_big_endian(regs[dst], insn.imm),
            4 if insn.code == 0xb4 => regs[dst] = u64::from(insn.imm as u32),
            1 if src == 1 => regs[dst] = load(insn.code, &packet[place..]),
            2 if dst == 1 => store(insn.code, &mut packet[place..], imm),
            3 if dst == 1 => store(insn.code, &mut packet[place..], regs[src]),
            5 => {
                let taken = match insn.code & 0xf0 {
                    0x00 => true,
                    0x50 => regs[dst] != operand,
                    0xa0 => regs[dst] < operand,
                    _ => panic!("condition {:#x}", insn.code),
                };
                at = at.checked_add_signed(if taken { insn.off.into() } else { 0 }).unwrap();
            }
            _ => panic!("instruction {:#x} with registers {:#x}", insn.code, insn.regs),
        }
    }
    assert_eq!(regs[2], index, "the index must be kept");
    regs
}

fn alu(code: u8, left: u64, right: u64) -> u64 {
    match code & 0xf0 {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        0x30 => left / right,
        0x40 => left | right,
        0x50 => left & right,
        0x60 => left << right,
        0x70 => left >> right,
        0x90 => left % right,
        0xa0 => left ^ right,
        0xb0 => right,
        _ => panic!("operation {code:#x}"),
    }
}

fn to_big_endian(value: u64, bits: i32) -> u64 {
    match bits {
        16 => (value as u16).to_be().into(),
        32 => (value as u32).to_be().into(),
        _ => value.to_be(),
    }
}

fn size(code: u8) -> usize {
    match code & 0x18 {
        0x10 => 1,
        0x08 => 2,
        0x00 => 4,
        _ => 8,
    }
}

fn load(code: u8, from: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..size(code)].copy_from_slice(&from[..size(code)]);
    u64::from_le_bytes(bytes)
}

fn store(code: u8, to: &mut [u8], value: u64) {
    to[..size(code)].copy_from_slice(&value.to_le_bytes()[..size(code)]);
}

fn lower(emitter: &Emitter) -> Result<Vec<Insn>, LowerError> {
    let mut asm = Assembler::new();
    emitter.lower(&mut asm, Reg::R1, Reg::R2, SCRATCH)?;
    Ok(asm.finish().unwrap())
}

fn lower_with_length(emitter: &Emitter) -> Result<(Vec<Insn>, LoweredLength), LowerError> {
    let mut asm = Assembler::new();
    let length = emitter.lower_with_length(&mut asm, Reg::R1, Reg::R2, SCRATCH)?;
    Ok((asm.finish().unwrap(), length))
}

/// Holds both forms against each other; whether there are instructions.
fn compare(text: &[u8], name: &str) -> Result<(), LowerError> {
    let compiled = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (worker, workers) in [(0, 1), (0, 3), (2, 3)] {
        let Ok(emitter) = compiled.plan.emitter(worker, workers, 77) else { continue };
        let (insns, length) = lower_with_length(&emitter)?;
        let given = emitter.longest();
        for index in (0..150).chain([65_535, 65_536, 4_294_967_295, 4_294_967_296, 1 << 40]) {
            let mut packet = given.clone();
            packet[..emitter.lowered_bytes()].fill(0xee);
            let regs = run(&insns, index, &mut packet);
            match length {
                LoweredLength::Fixed(bytes) => assert_eq!(bytes, packet.len()),
                LoweredLength::InRegister(reg) => packet.truncate(regs[reg as usize] as usize),
            }
            assert_eq!(
                common::hex(&packet),
                common::hex(&emitter.to_vec(index)),
                "{name} {worker}/{workers} {index}"
            );
        }
    }
    Ok(())
}

#[cfg(target_endian = "little")] // the interpreter's memory is
#[test]
fn instructions_write_what_emit_writes() {
    let mut lowered = 0;
    for case in corpus() {
        match compare(&case.text, &case.name) {
            Ok(()) => lowered += 1,
            Err(error) => assert!(matches!(error, LowerError::Wide(_)), "{}: {error}", case.name),
        }
    }
    assert!(lowered >= 90, "{lowered}");
}

#[cfg(target_endian = "little")]
#[test]
fn generated_programs_are_the_same_in_both_forms() {
    let fields =
        ["sp=drnd()", "sp=drnd(7, 1000)", "dp=dinc(9, 16)", "dp=ddec()", "sp=dinc(1, 10, 4)", "sp[1]=drnd()"];
    let network = [
        "ipv4(ttl=drnd(1, 255), sa=drnd())",
        "ipv4(sa=dinc(10.0.0.1, 10.0.0.9), da=drnd(0, 0xffffffff), frag=dinc(), dscp=drnd())",
        "eth(da=dinc(), sa=drnd()), vlan(id=drnd(), pcp=dinc(1, 6)), ipv6(sa=drnd(), fl=dinc(), hl=ddec(3, 9))",
        "mpls(label=dinc(5, 90000, 7), tc=drnd()), ipv4(id=dinc(3), sa[1:2]=drnd(3, 70))",
    ];
    let payloads =
        ["", "drnd(1)", "1, drnd(13)", "fill(7, 100), dinc(0, 9)", "c16(1), ddec(3, 77, 5), \"odd\""];
    for network in network {
        for field in fields {
            for payload in payloads {
                let text = format!("{{ {network}, udp({field}), {payload} }}");
                compare(text.as_bytes(), &text).unwrap();
            }
        }
    }
}

#[cfg(target_endian = "little")]
#[test]
fn weights_sizes_and_held_counters_are_the_same_in_both_forms() {
    let programs = [
        "weight(7): size(64): { F } weight(4): size(594): { F } weight(1): size(1518): { F }",
        "size(1518): { F, 1 } size(64): { F, 2 } { F, drnd(40) } { F }",
        "weight(500): { F } { F, 1 } weight(1): { F, 2 } weight(500): { F, fill(3, 100) }",
        "size(64-127): { F }",
        "weight(3): size(100-104): { F, \"ab\" } cpu(0): size(99): { F }",
        "{ ipv4(ttl=1), udp(sp=dinc(1, 5, 2, 3), dp=ddec(7, 9, 1, 15, 22)), dinc(3, 5, 1, 4294967296) }",
        "{ ipv4(ttl=dinc(1, 3, 1, 1, 5), sa=dinc(10.0.0.1, 10.0.0.9, 1, 2)), udp(sp=1, dp=2) }",
    ];
    for text in programs {
        let fields = "ipv4(ttl=1, sa=10.0.0.1), udp(sp=dinc(1, 3), dp=dinc(9, 16, 1, 3))";
        let text = format!("#define F {fields}\n{text}");
        compare(text.as_bytes(), &text).unwrap();
    }
}

#[test]
fn what_differs_behind_the_headers_is_not_written() {
    let bytes = |text: &str| parse(text).unwrap().plan.emitter(0, 1, 1).unwrap().lowered_bytes();
    assert_eq!(bytes("size(64-127): { udp(dp=dinc(1, 9)) }"), 42);
    assert_eq!(bytes("size(1518): { udp() } { udp(), 0, 0 }"), 42);
    assert_eq!(bytes("size(1518): { udp() } { udp(), 0, 1 }"), 44);
}

#[test]
fn what_has_no_instructions_says_why() {
    let reason = |text: &str| lower(&parse(text).unwrap().plan.emitter(0, 1, 1).unwrap()).err();
    assert_eq!(reason("{ 1 } { 2, 3 }"), Some(LowerError::Lengths));
    assert_eq!(reason("{ drnd(9000) }"), Some(LowerError::Random(9000)));
    assert_eq!(reason("{ fill(0, 5000), dinc(1, 2) }"), Some(LowerError::Bytes(5001)));
    assert_eq!(reason("{ ipv6(sa=dinc()) }"), Some(LowerError::Wide(22)));
    assert_eq!(reason(&"{ 1 }".repeat(65)), Some(LowerError::Packets(65)));
    assert_eq!(reason("{ fill(0, 5000) }"), None);
    let with_length =
        |text: &str| lower_with_length(&parse(text).unwrap().plan.emitter(0, 1, 1).unwrap()).err();
    assert_eq!(with_length("{ 1 } { 2, 3 }"), None);
    assert_eq!(with_length("size(64-1518): { udp() }"), Some(LowerError::Packets(1455)));
    assert_eq!(with_length("weight(1024): { 1 } { 2 }"), Some(LowerError::Weights(1025)));
    assert_eq!(with_length("weight(1023): { 1 } { 2 }"), None);
}
