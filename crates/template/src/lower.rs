//! A frame as eBPF instructions that write it.
//!
//! Frames that an XDP program injects are recycled with whatever the path did to them: a forwarded frame
//! comes back with its TTL and addresses changed (net/bpf/test_run.c, xdp_test_run_batch, 6.18). So every
//! header byte is written anew for every frame. The payload is not: it is handed over once with the run.

use std::ops::Range;

use ebpf::{AluOp, Assembler, Condition, Reg, Size};

use crate::checksum;
use crate::stamp;
use crate::udp::{CheckedFrame, IPV4_CHECKSUM, IPV4_SOURCE, Sources, StampField};

/// `bpf_ktime_get_ns` (enum bpf_func_id): `CLOCK_MONOTONIC` (kernel/bpf/helpers.c, 6.18).
const HELPER_KTIME_GET_NS: i32 = 5;

impl CheckedFrame {
    /// Bytes from the start of the frame that [`lower`](Self::lower) and [`lower_packet`](Self::lower_packet) write; the
    /// program must have checked that the packet is at least that long. A stamp is among them.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Emits the writes of every header byte to the packet that `packet` points to.
    ///
    /// `flow` holds the number of the flow, 0 to flows − 1; it is kept. `scratch` is overwritten. About 20
    /// instructions for IPv4; no division, no call.
    ///
    /// # Panics
    /// If the frame has several sources or a stamp: these need the packet's number, and so
    /// [`lower_packet`](Self::lower_packet).
    pub fn lower(&self, asm: &mut Assembler, packet: Reg, flow: Reg, scratch: [Reg; 2]) {
        assert!(self.sources.is_none() && self.stamp.is_none(), "a frame that needs the packet's number");
        self.lower_fixed(asm, packet);
        self.lower_port(asm, packet, flow, scratch);
    }

    /// Emits the instructions that write every header byte and the stamp of the packet whose number is in `index`, as
    /// [`write`](Self::write) does, to what `packet` points to.
    ///
    /// Both registers are kept, and the five of `scratch` overwritten. A stamp calls `bpf_ktime_get_ns`, so that R0 to R5 are lost
    /// and `packet` and `index` must be of R6 to R9. No loop and no memory beside the packet.
    ///
    /// A flow costs a division unless there is one or a power of two, and several sources likewise. The UDP checksum is
    /// always there, although over IPv4 it could be left out: it takes about 25 instructions without a wait, and
    /// without it the kernel neither coalesces datagrams (net/ipv4/udp_offload.c, `udp_gro_receive_segment`, read in patches
    /// from 5.4 to 6.10) nor checks them, so that packets with and without a stamp would not cost the same on their way.
    pub fn lower_packet(&self, asm: &mut Assembler, packet: Reg, index: Reg, scratch: [Reg; 5]) {
        if self.period() == Some(1) {
            return self.lower_whole(asm, packet);
        }
        let [time, sum, a, b, c] = scratch;
        if self.stamp.is_some() {
            asm.call(HELPER_KTIME_GET_NS);
            asm.mov(time, Reg::R0);
        }
        self.lower_fixed(asm, packet);
        let Some(udp) = &self.udp else { return };
        let mut lower = LowerPacket { asm, packet, index, time, sum, a, b, c };
        let stream = self.stamp.map_or(0, |stamp| stamp.stream);
        let constants = [checksum::to_number(udp.partial_sum), self.first_port, stream];
        let constants = constants.iter().map(|&part| u64::from(part)).sum();
        lower.asm.mov_imm(sum, i32::from(!checksum::finish(checksum::fold(constants))));
        lower.port(self, udp.destination_port.start);
        if let Some(sources) = &self.sources {
            lower.source(sources, self.flows);
        }
        if let Some(field) = &self.stamp {
            lower.stamp(field);
        }
        lower.checksum(udp.checksum.start);
    }

    /// Packets that are all the same.
    fn lower_whole(&self, asm: &mut Assembler, packet: Reg) {
        store_bytes(asm, packet, &self.to_vec(0)[..self.header_bytes], |_| false);
    }

    /// What does not vary.
    fn lower_fixed(&self, asm: &mut Assembler, packet: Reg) {
        let mut skip: Vec<Range<usize>> = Vec::new();
        skip.extend(self.udp.iter().flat_map(|udp| [udp.destination_port.clone(), udp.checksum.clone()]));
        skip.extend(self.sources.iter().flat_map(|_| [IPV4_CHECKSUM, IPV4_SOURCE]));
        skip.extend(self.stamp.map(|stamp| stamp.at + stamp::NUMBER_AT..stamp.at + stamp::BYTES));
        store_bytes(asm, packet, &self.bytes[..self.header_bytes], |at| {
            skip.iter().any(|range| range.contains(&at))
        });
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

/// Emits stores of those bytes that do not vary, two or four at once.
fn store_bytes(asm: &mut Assembler, packet: Reg, bytes: &[u8], varies: impl Fn(usize) -> bool) {
    let mut at = 0;
    while at < bytes.len() {
        if varies(at) {
            at += 2;
            continue;
        }
        let whole = at + 4 <= bytes.len() && !varies(at + 2);
        let part = &bytes[at..at + if whole { 4 } else { 2 }];
        let (size, imm) = match *part {
            [a, b, c, d] => (Size::W, i32::from_ne_bytes([a, b, c, d])),
            [a, b] => (Size::H, i32::from(u16::from_ne_bytes([a, b]))),
            _ => unreachable!("headers have an even length"),
        };
        asm.store_imm(size, packet, at as i16, imm);
        at += part.len();
    }
}

/// The fields of a packet that follow from its number.
struct LowerPacket<'a> {
    asm: &'a mut Assembler,
    packet: Reg,
    index: Reg,
    /// When the packet is written.
    time: Reg,
    /// What the UDP checksum covers, as a number: 16-bit words, and what stands at an even place, add up in any grouping
    /// (RFC 1071 section 2). A number below 2⁴⁸, a time below 2⁶³ and the rest do not overflow.
    sum: Reg,
    a: Reg,
    b: Reg,
    c: Reg,
}

impl LowerPacket<'_> {
    /// Writes the port; leaves the packet's number within its flow in `b` if there are several flows.
    fn port(&mut self, frame: &CheckedFrame, at: usize) {
        let &mut Self { packet, index, sum, a, b, c, .. } = self;
        let flows = i32::from(frame.flows);
        let asm = &mut *self.asm;
        if flows == 1 {
            let port = i32::from(frame.first_port.to_be());
            return asm.store_imm(Size::H, packet, at as i16, port);
        }
        asm.mov(a, index);
        asm.mov(b, index);
        if frame.flows.is_power_of_two() {
            asm.alu_imm(AluOp::And, a, flows - 1);
            asm.alu_imm(AluOp::Rsh, b, flows.trailing_zeros() as i32);
        } else {
            asm.alu_imm(AluOp::Div, b, flows);
            asm.mov(c, b);
            asm.alu_imm(AluOp::Mul, c, flows);
            asm.alu(AluOp::Sub, a, c);
        }
        asm.alu(AluOp::Add, sum, a);
        asm.alu_imm(AluOp::Add, a, i32::from(frame.first_port));
        asm.to_big_endian(a, 16);
        asm.store(Size::H, packet, at as i16, a);
    }

    /// Writes the source address and the IPv4 header's checksum.
    fn source(&mut self, sources: &Sources, flows: u16) {
        let &mut Self { packet, index, sum, a, b, c, .. } = self;
        if flows == 1 {
            self.asm.mov(b, index);
        }
        if sources.count.is_power_of_two() {
            self.with_number(AluOp::And, b, sources.count - 1);
        } else {
            self.with_number(AluOp::Mod, b, sources.count);
        }
        self.with_number(AluOp::Add, b, sources.first);
        self.asm.alu(AluOp::Add, sum, b);
        self.asm.mov(a, b);
        self.asm.alu_imm(AluOp::Add, a, i32::from(sources.header_sum));
        // At most 2³² + 2¹⁶ − 2, of which two times leave 16 bits.
        self.fold(a, c);
        self.fold(a, c);
        self.asm.alu_imm(AluOp::Xor, a, 0xffff);
        self.asm.to_big_endian(a, 16);
        self.asm.store(Size::H, packet, IPV4_CHECKSUM.start as i16, a);
        self.asm.to_big_endian(b, 32);
        self.asm.store(Size::W, packet, IPV4_SOURCE.start as i16, b);
    }

    /// Writes the stamp behind its first two bytes. The stream is in the sum already.
    fn stamp(&mut self, field: &StampField) {
        let &mut Self { packet, index, time, sum, a, b, .. } = self;
        let asm = &mut *self.asm;
        asm.alu(AluOp::Add, sum, index);
        asm.alu(AluOp::Add, sum, time);
        asm.mov(a, index);
        if field.stream != 0 {
            asm.mov_imm(b, i32::from(field.stream));
            asm.alu_imm(AluOp::Lsh, b, stamp::SEQUENCE_BITS as i32);
            asm.alu(AluOp::Add, a, b);
        }
        asm.to_big_endian(a, 64);
        asm.store(Size::DW, packet, (field.at + stamp::NUMBER_AT) as i16, a);
        asm.to_big_endian(time, 64);
        asm.store(Size::DW, packet, (field.at + stamp::SENT_AT) as i16, time);
    }

    /// Writes the UDP checksum of what was summed up.
    fn checksum(&mut self, at: usize) {
        let &mut Self { packet, sum, a, .. } = self;
        self.asm.mov(a, sum);
        self.asm.alu_imm(AluOp::Rsh, a, 32);
        self.asm.alu_imm(AluOp::Lsh, sum, 32);
        self.asm.alu_imm(AluOp::Rsh, sum, 32);
        self.asm.alu(AluOp::Add, sum, a);
        for _ in 0..3 {
            self.fold(sum, a);
        }
        let not_zero = self.asm.label();
        self.asm.alu_imm(AluOp::Xor, sum, 0xffff);
        self.asm.jump_if_imm(Condition::Ne, sum, 0, not_zero);
        self.asm.mov_imm(sum, 0xffff);
        self.asm.bind(not_zero);
        self.asm.to_big_endian(sum, 16);
        self.asm.store(Size::H, packet, at as i16, sum);
    }

    /// An operation with an unsigned number; overwrites `c` if it is large, since an instruction extends the sign of its
    /// number.
    fn with_number(&mut self, op: AluOp, reg: Reg, number: u32) {
        match i32::try_from(number) {
            Ok(small) => self.asm.alu_imm(op, reg, small),
            Err(_) => {
                self.asm.mov32_imm(self.c, number);
                self.asm.alu(op, reg, self.c);
            }
        }
    }

    /// Adds what is above 16 bits to what is below.
    fn fold(&mut self, sum: Reg, scratch: Reg) {
        self.asm.mov(scratch, sum);
        self.asm.alu_imm(AluOp::Rsh, scratch, 16);
        self.asm.alu_imm(AluOp::And, sum, 0xffff);
        self.asm.alu(AluOp::Add, sum, scratch);
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
