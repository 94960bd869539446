//! eBPF instructions as plain data, and a small assembler for them.
//!
//! The programs of a measurement are short, and every instruction in them is part of the cost that is
//! measured. They are therefore written instruction by instruction in Rust: no compiler, no object files, and no
//! build dependency stands between the source that a reader sees and what the kernel runs.
//!
//! The crate is pure: it makes bytes. Loading them is `linux::bpf`'s part. It has no verifier and no
//! interpreter; the kernel's verifier is the judge, and its log is what a failed load shows.
//!
//! ```
//! use ebpf::{Assembler, Reg};
//!
//! let mut asm = Assembler::new();
//! asm.mov_imm(Reg::R0, 2); // XDP_PASS
//! asm.exit();
//! assert_eq!(asm.finish().unwrap().len(), 2);
//! ```
//!
//! Encoding: Documentation/bpf/standardization/instruction-set.rst (Linux 6.18), RFC 9669.

mod assembler;
mod insn;

pub use assembler::{AssembleError, Assembler, Label};
pub use insn::{AluOp, AtomicOp, Condition, Insn, Reg, Size};
