//! A list of instructions with labels that are resolved at the end.

use thiserror::Error;

use crate::insn::{AluOp, AtomicOp, Condition, Insn, Reg, Size};

const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU32: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_ALU64: u8 = 0x07;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SOURCE_REG: u8 = 0x08;
const LD_IMM64: u8 = 0x18;
const OP_CALL: u8 = 0x80;
const OP_EXIT: u8 = 0x90;
const OP_END: u8 = 0xd0;
/// Source register of a 64-bit load that names a map by descriptor (BPF_PSEUDO_MAP_FD).
const PSEUDO_MAP_FD: u8 = 1;
/// The same for an address inside the map's first value (BPF_PSEUDO_MAP_VALUE).
const PSEUDO_MAP_VALUE: u8 = 2;

/// A place in the program that jumps can name before it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// What stops a list of instructions from being a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// A jump names a label that was never bound.
    #[error("the jump at instruction {at} goes to a label that was never bound")]
    Unbound {
        /// Index of the jump.
        at: usize,
    },
    /// A jump spans more than a 16-bit offset can say.
    #[error("the jump at instruction {at} spans {distance} instructions; 32,767 is the limit")]
    TooFar {
        /// Index of the jump.
        at: usize,
        /// Its length in instructions.
        distance: i64,
    },
}

/// Collects instructions; [`finish`](Self::finish) resolves the jumps.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// `dst = imm`, sign-extended to 64 bits.
    pub fn mov_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(AluOp::Mov, dst, imm);
    }

    /// `dst = src`, 64 bits.
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.alu(AluOp::Mov, dst, src);
    }

    /// `dst = dst OP imm`, 64 bits.
    pub fn alu_imm(&mut self, op: AluOp, dst: Reg, imm: i32) {
        self.push(Insn::new(CLASS_ALU64 | op as u8, dst, Reg::R0, 0, imm));
    }

    /// `dst = dst OP src`, 64 bits.
    pub fn alu(&mut self, op: AluOp, dst: Reg, src: Reg) {
        self.push(Insn::new(CLASS_ALU64 | SOURCE_REG | op as u8, dst, src, 0, 0));
    }

    /// `dst = imm` as an unsigned 32-bit number; the upper half becomes 0.
    pub fn mov32_imm(&mut self, dst: Reg, imm: u32) {
        self.push(Insn::new(CLASS_ALU32 | AluOp::Mov as u8, dst, Reg::R0, 0, imm as i32));
    }

    /// Converts the low `bits` (16, 32 or 64) of `dst` between host and network order.
    pub fn to_big_endian(&mut self, dst: Reg, bits: i32) {
        self.push(Insn::new(CLASS_ALU32 | SOURCE_REG | OP_END, dst, Reg::R0, 0, bits));
    }

    /// `dst = *(size *)(src + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.push(Insn::new(CLASS_LDX | MODE_MEM | size as u8, dst, src, off, 0));
    }

    /// `*(size *)(dst + off) = src`.
    pub fn store(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        self.push(Insn::new(CLASS_STX | MODE_MEM | size as u8, dst, src, off, 0));
    }

    /// `*(size *)(dst + off) = imm`, in the host's byte order.
    pub fn store_imm(&mut self, size: Size, dst: Reg, off: i16, imm: i32) {
        self.push(Insn::new(CLASS_ST | MODE_MEM | size as u8, dst, Reg::R0, off, imm));
    }

    /// The atomic operation on `*(u64 *)(dst + off)`; `src` is its operand and receives the old value.
    pub fn atomic(&mut self, op: AtomicOp, dst: Reg, off: i16, src: Reg) {
        self.push(Insn::new(CLASS_STX | MODE_ATOMIC | Size::DW as u8, dst, src, off, op as i32));
    }

    /// `dst` = the map behind the descriptor, as helpers take it.
    pub fn load_map(&mut self, dst: Reg, map_fd: i32) {
        self.load_imm64(dst, PSEUDO_MAP_FD, map_fd, 0);
    }

    /// `dst` = the address `offset` bytes into the first value of an array map.
    pub fn load_map_value(&mut self, dst: Reg, map_fd: i32, offset: i32) {
        self.load_imm64(dst, PSEUDO_MAP_VALUE, map_fd, offset);
    }

    /// Calls a helper by its number (enum bpf_func_id). R1 to R5 are lost, R0 is the result.
    pub fn call(&mut self, helper: i32) {
        self.push(Insn::new(CLASS_JMP | OP_CALL, Reg::R0, Reg::R0, 0, helper));
    }

    /// Ends the program with R0 as the result.
    pub fn exit(&mut self) {
        self.push(Insn::new(CLASS_JMP | OP_EXIT, Reg::R0, Reg::R0, 0, 0));
    }

    /// A label to jump to, bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds the label to the next instruction. The last binding counts.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.insns.len());
    }

    /// Jumps always.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(Insn::new(CLASS_JMP, Reg::R0, Reg::R0, 0, 0));
    }

    /// Jumps if `left CONDITION imm` (64 bits, unsigned).
    pub fn jump_if_imm(&mut self, condition: Condition, left: Reg, imm: i32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(Insn::new(CLASS_JMP | condition as u8, left, Reg::R0, 0, imm));
    }

    /// Jumps if `left CONDITION right` (64 bits, unsigned).
    pub fn jump_if(&mut self, condition: Condition, left: Reg, right: Reg, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(Insn::new(CLASS_JMP | SOURCE_REG | condition as u8, left, right, 0, 0));
    }

    /// The program with every jump resolved.
    pub fn finish(mut self) -> Result<Vec<Insn>, AssembleError> {
        for &(at, Label(label)) in &self.jumps {
            let target = self.labels[label].ok_or(AssembleError::Unbound { at })?;
            let distance = target as i64 - at as i64 - 1;
            self.insns[at].off =
                i16::try_from(distance).map_err(|_| AssembleError::TooFar { at, distance })?;
        }
        Ok(self.insns)
    }

    fn load_imm64(&mut self, dst: Reg, kind: u8, low: i32, high: i32) {
        self.push(Insn { code: LD_IMM64, regs: kind << 4 | dst as u8, off: 0, imm: low });
        self.push(Insn { code: 0, regs: 0, off: 0, imm: high });
    }

    fn push(&mut self, insn: Insn) {
        self.insns.push(insn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as `llvm-mc --triple=bpfel` prints them for the same source.
    #[test]
    fn encodes_as_the_standard_says() {
        let mut asm = Assembler::new();
        asm.mov_imm(Reg::R0, 2);
        asm.load(Size::W, Reg::R2, Reg::R1, 4);
        asm.store_imm(Size::H, Reg::R2, 12, 8);
        asm.store(Size::DW, Reg::R10, -8, Reg::R3);
        asm.atomic(AtomicOp::Exchange, Reg::R9, 16, Reg::R2);
        asm.to_big_endian(Reg::R4, 16);
        asm.exit();
        let bytes: Vec<[u8; 8]> = asm.finish().unwrap().into_iter().map(Insn::to_bytes).collect();
        assert_eq!(
            bytes,
            [
                [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
                [0x61, 0x12, 4, 0, 0, 0, 0, 0],
                [0x6a, 0x02, 12, 0, 8, 0, 0, 0],
                [0x7b, 0x3a, 0xf8, 0xff, 0, 0, 0, 0],
                [0xdb, 0x29, 16, 0, 0xe1, 0, 0, 0],
                [0xdc, 0x04, 0, 0, 16, 0, 0, 0],
                [0x95, 0x00, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn jumps_go_forward_and_back() {
        let mut asm = Assembler::new();
        let (top, out) = (asm.label(), asm.label());
        asm.bind(top);
        asm.jump_if_imm(Condition::Eq, Reg::R1, 0, out);
        asm.alu_imm(AluOp::Sub, Reg::R1, 1);
        asm.jump(top);
        asm.bind(out);
        asm.exit();
        let insns = asm.finish().unwrap();
        assert_eq!((insns[0].off, insns[2].off), (2, -3));
    }

    #[test]
    fn a_label_left_open_is_an_error() {
        let mut asm = Assembler::new();
        let open = asm.label();
        asm.jump(open);
        assert_eq!(asm.finish(), Err(AssembleError::Unbound { at: 0 }));
    }

    #[test]
    fn a_jump_too_far_is_an_error() {
        let mut asm = Assembler::new();
        let end = asm.label();
        asm.jump(end);
        for _ in 0..40_000 {
            asm.exit();
        }
        asm.bind(end);
        assert_eq!(asm.finish(), Err(AssembleError::TooFar { at: 0, distance: 40_000 }));
    }
}
