//! An interpreter of the few eBPF instructions that write packets (RFC 9669).

use ebpf::{Insn, Reg};

const GARBAGE: u64 = 0x5555_5555_5555_5555;

/// What the instructions work on.
pub(crate) struct Machine {
    /// The register that stands for the packet.
    pub(crate) packet: Reg,
    /// What `bpf_ktime_get_ns` returns.
    pub(crate) now: u64,
}

impl Machine {
    /// Runs the instructions on a packet, with a number in a register and garbage in the others. Returns the registers.
    pub(crate) fn run(&self, insns: &[Insn], (reg, number): (Reg, u64), packet: &mut [u8]) -> [u64; 11] {
        let mut regs = [GARBAGE; 11];
        regs[reg as usize] = number;
        let own = self.packet as usize;
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
                5 if insn.code == 0x85 => {
                    assert_eq!(insn.imm, 5, "bpf_ktime_get_ns");
                    regs[..6].fill(GARBAGE);
                    regs[0] = self.now;
                }
                1 if src == own => regs[dst] = load(insn.code, &packet[place..]),
                2 if dst == own => store(insn.code, &mut packet[place..], imm),
                3 if dst == own => store(insn.code, &mut packet[place..], regs[src]),
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
        regs
    }
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
