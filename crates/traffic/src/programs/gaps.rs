//! Into which bucket of a histogram a gap belongs, as instructions and in Rust.
//!
//! Up to 256 ns each ns has a bucket; above, each doubling has 128 of equal width, so that a bucket is narrower than
//! a hundredth of what is in it. Every 64-bit number has its bucket, so nothing is clamped.

use ebpf::{AluOp, Assembler, Reg};

/// Buckets of a doubling, as a power of two.
const BITS: u32 = 7;

/// How many buckets there are.
pub const GAP_BUCKETS: usize = ((64 - BITS as usize) << BITS) + (1 << BITS);

/// The bucket of a gap.
pub fn gap_bucket(ns: u64) -> usize {
    // What is shifted out, so that between 128 and 255 are left; nothing of a shorter gap.
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (ns >> shift) as usize
}

/// The shortest gap of a bucket, and how many ns the bucket is wide.
pub fn gap_bucket_range(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> BITS).saturating_sub(1);
    let kept = bucket - (shift << BITS);
    ((kept as u64) << shift, 1 << shift)
}

/// Emits the instructions that turn the gap in `ns` into its bucket. `shift` and `work` are overwritten.
///
/// There is no branch in it: the verifier would follow every way through the six steps on to the end of the program.
pub fn lower_gap_bucket(asm: &mut Assembler, ns: Reg, shift: Reg, work: Reg) {
    asm.mov_imm(shift, 0);
    for step in (0..6).rev() {
        // 1 if 128 or more are left after a shift by 2^step: then 127 less that is negative.
        asm.mov(work, ns);
        asm.alu_imm(AluOp::Rsh, work, 1 << step);
        asm.alu_imm(AluOp::Sub, work, 1 << BITS);
        asm.alu_imm(AluOp::Rsh, work, 63);
        asm.alu_imm(AluOp::Xor, work, 1);
        asm.alu_imm(AluOp::Lsh, work, step);
        asm.alu(AluOp::Rsh, ns, work);
        asm.alu(AluOp::Add, shift, work);
    }
    asm.alu_imm(AluOp::Lsh, shift, BITS as i32);
    asm.alu(AluOp::Add, ns, shift);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gap_is_inside_its_bucket_and_buckets_meet() {
        let mut next = 0;
        for bucket in 0..GAP_BUCKETS {
            let (low, width) = gap_bucket_range(bucket);
            assert_eq!(low, next, "bucket {bucket}");
            assert!(width == 1 || width * 128 <= low, "bucket {bucket}");
            assert_eq!((gap_bucket(low), gap_bucket(low + (width - 1))), (bucket, bucket));
            next = low.wrapping_add(width);
        }
        assert_eq!(next, 0, "the last bucket ends with the last number");
    }
}
