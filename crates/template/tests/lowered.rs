//! A plan's instructions write the same packets as `emit`, byte for byte.
//!
//! They start from a packet whose first bytes are garbage, as a recycled one's are.

#![allow(clippy::unwrap_used)]

mod common;

use common::machine::Machine;
use common::{corpus, parse};
use ebpf::{Assembler, Insn, Reg};
use template::{Emitter, LowerError, LoweredLength};

const SCRATCH: [Reg; 5] = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, Reg::R7];

/// Runs the instructions on a packet. Register 1 stands for the packet, register 2 holds the index. Returns the registers.
fn run(insns: &[Insn], index: u64, packet: &mut [u8]) -> [u64; 11] {
    let regs = Machine { packet: Reg::R1, now: 0 }.run(insns, (Reg::R2, index), packet);
    assert_eq!(regs[2], index, "the index must be kept");
    regs
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
