//! A frame as eBPF instructions that write it.
//!
//! Frames that an XDP program injects are recycled with whatever the path did to them: a forwarded frame
//! comes back with its TTL and addresses changed (net/bpf/test_run.c, xdp_test_run_batch, 6.18). So every
//! header byte is written anew for every frame. The payload is not: it is handed over once with the run.

use ebpf::{AluOp, Assembler, Condition, Reg, Size};

use crate::udp::CheckedFrame;

impl CheckedFrame {
    /// Bytes from the start of the frame that [`lower`](Self::lower) writes; the program must have checked
    /// that the packet is at least that long.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Emits the writes of every header byte to the packet that `packet` points to.
    ///
    /// `flow` holds the number of the flow, 0 to flows − 1; it is kept. `scratch` is overwritten. About 20
    /// instructions for IPv4; no division, no call.
    pub fn lower(&self, asm: &mut Assembler, packet: Reg, flow: Reg, scratch: [Reg; 2]) {
        let skip = self.udp.as_ref().map(|udp| [udp.destination_port.clone(), udp.checksum.clone()]);
        let varies = |at: usize| skip.as_ref().is_some_and(|s| s.iter().any(|range| range.contains(&at)));
        let mut at = 0;
        while at < self.header_bytes {
            if varies(at) {
                at += 2;
                continue;
            }
            let whole = at + 4 <= self.header_bytes && !varies(at + 2);
            let part = &self.bytes[at..at + if whole { 4 } else { 2 }];
            let (size, imm) = match *part {
                [a, b, c, d] => (Size::W, i32::from_ne_bytes([a, b, c, d])),
                [a, b] => (Size::H, i32::from(u16::from_ne_bytes([a, b]))),
                _ => unreachable!("headers have an even length"),
            };
            asm.store_imm(size, packet, at as i16, imm);
            at += part.len();
        }
        self.lower_port(asm, packet, flow, scratch);
    }

    fn lower_port(&self, asm: &mut Assembler, packet: Reg, flow: Reg, [port, sum]: [Reg; 2]) {
        let Some(udp) = &self.udp else { return };
        asm.mov(port, flow);
        asm.alu_imm(AluOp::Add, port, i32::from(self.first_port));
        asm.to_big_endian(port, 16);
        asm.store(Size::H, packet, udp.destination_port.start as i16, port);
        asm.alu_imm(AluOp::Add, port, udp.partial_sum as i32);
        for _ in 0..2 {
            asm.mov(sum, port);
            asm.alu_imm(AluOp::Rsh, sum, 16);
            asm.alu_imm(AluOp::And, port, 0xffff);
            asm.alu(AluOp::Add, port, sum);
        }
        asm.alu_imm(AluOp::Xor, port, 0xffff);
        let not_zero = asm.label();
        asm.jump_if_imm(Condition::Ne, port, 0, not_zero);
        asm.mov_imm(port, 0xffff);
        asm.bind(not_zero);
        asm.store(Size::H, packet, udp.checksum.start as i16, port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::tests::{v4, v6};

    /// Runs the straight-line subset of eBPF that `lower` uses on a frame of zeros.
    fn run(frame: &CheckedFrame, flow: u64) -> Vec<u8> {
        let mut asm = Assembler::new();
        frame.lower(&mut asm, Reg::R1, Reg::R2, [Reg::R3, Reg::R4]);
        let insns = asm.finish().unwrap();
        let mut out = vec![0u8; frame.l2_bytes()];
        let mut regs = [0u64, 0, flow, 0, 0];
        let mut pc = 0;
        while pc < insns.len() {
            let insn = insns[pc];
            let (dst, src) = (usize::from(insn.regs & 15), usize::from(insn.regs >> 4));
            let off = insn.off as usize;
            let imm = insn.imm as i64 as u64;
            match insn.code {
                0x62 => out[off..off + 4].copy_from_slice(&insn.imm.to_ne_bytes()),
                0x6a => out[off..off + 2].copy_from_slice(&(insn.imm as u16).to_ne_bytes()),
                0x6b => out[off..off + 2].copy_from_slice(&(regs[src] as u16).to_ne_bytes()),
                0xbf => regs[dst] = regs[src],
                0xb7 => regs[dst] = imm,
                0x07 => regs[dst] = regs[dst].wrapping_add(imm),
                0x0f => regs[dst] = regs[dst].wrapping_add(regs[src]),
                0x57 => regs[dst] &= imm,
                0x77 => regs[dst] >>= imm,
                0xa7 => regs[dst] ^= imm,
                0xdc => regs[dst] = u64::from((regs[dst] as u16).to_be()),
                0x55 => pc += if regs[dst] == imm { 0 } else { insn.off as usize },
                other => panic!("the interpreter of this test does not know {other:#x}"),
            }
            pc += 1;
        }
        out
    }

    #[test]
    fn the_program_writes_the_same_headers_as_the_bytes() {
        for frame in [v4(64, 1), v4(272, 1000), v4(67, 56_000), v6(64, 1), v6(66, 60_000), v6(272, 8)] {
            let frame = frame.check().unwrap();
            for flow in (0..frame.flows()).step_by(1.max(usize::from(frame.flows()) / 5_000)) {
                let wanted = frame.to_vec(u64::from(flow));
                let written = run(&frame, u64::from(flow));
                assert_eq!(written[..frame.header_bytes()], wanted[..frame.header_bytes()], "flow {flow}");
            }
        }
    }
}
