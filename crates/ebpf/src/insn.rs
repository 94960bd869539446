//! One instruction: eight bytes, as RFC 9669 section 3 lays them out.

/// A register. R0 is the result, R1 to R5 the arguments of a call (lost by it), R6 to R9 survive calls, R10 is the
/// read-only frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a memory access, as its bits in the opcode (RFC 9669 section 5, table 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// One byte.
    B = 0x10,
    /// Two bytes.
    H = 0x08,
    /// Four bytes.
    W = 0x00,
    /// Eight bytes.
    DW = 0x18,
}

/// Arithmetic operations, as their bits in the opcode (RFC 9669 section 4.1, table 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum AluOp {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Conditions of a jump, unsigned, as their bits in the opcode (RFC 9669 section 4.3, table 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// Equal.
    Eq = 0x10,
    /// Greater.
    Gt = 0x20,
    /// Greater or equal.
    Ge = 0x30,
    /// Not equal.
    Ne = 0x50,
    /// Less.
    Lt = 0xa0,
    /// Less or equal.
    Le = 0xb0,
}

/// Atomic operations that return the old value in the source register (RFC 9669 section 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum AtomicOp {
    /// `old = *p; *p = old + source`.
    FetchAdd = 0x01,
    /// `old = *p; *p = source`.
    Exchange = 0xe1,
}

/// One instruction. A 64-bit immediate takes two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Opcode: class, operation or size, source or mode.
    pub code: u8,
    /// Destination register in the low four bits, source in the high four.
    pub regs: u8,
    /// Offset of a memory access in bytes, or of a jump in instructions.
    pub off: i16,
    /// Immediate operand.
    pub imm: i32,
}

impl Insn {
    /// An instruction from its parts.
    pub fn new(code: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Self {
        Self { code, regs: (src as u8) << 4 | dst as u8, off, imm }
    }

    /// The eight bytes that the kernel takes, in the host's byte order (struct bpf_insn, include/uapi/linux/bpf.h).
    pub fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[0] = self.code;
        bytes[1] = self.regs;
        bytes[2..4].copy_from_slice(&self.off.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.imm.to_ne_bytes());
        bytes
    }
}
