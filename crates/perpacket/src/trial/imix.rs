//! A mix of frame sizes in place of one: the simple IMIX, 7 frames of 64 bytes, 4 of 594 and 1 of 1518.

use anyhow::Result;
use ebpf::{AluOp, Assembler, Condition, Reg};
use template::{CheckedFrame, UdpFrame};
use traffic::programs::GeneratorProgram;

/// The sizes, with FCS, each with its number of frames in twelve.
pub(crate) const SIZES: [(u32, u32); 3] = [(64, 7), (594, 4), (1_518, 1)];
/// The size of each of twelve packets in turn, as an index into [`SIZES`]: no size comes in a burst.
const ORDER: [usize; 12] = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1];

/// The longest frame, with FCS.
pub(crate) const LONGEST: u32 = SIZES[2].0;

/// Frames that differ in nothing but their size.
#[derive(Debug, Clone)]
pub(crate) struct Imix {
    frames: [CheckedFrame; 3],
}

impl Imix {
    /// Of the sizes of the mix.
    ///
    /// # Errors
    /// Where one of them has no room for what is in the frame.
    pub(crate) fn of(frame: &UdpFrame) -> Result<Self> {
        let [a, b, c] = SIZES.map(|(frame_bytes, _)| UdpFrame { frame_bytes, ..frame.clone() }.check());
        Ok(Self { frames: [a?, b?, c?] })
    }

    /// Mean bytes of a frame, with FCS.
    pub(crate) fn mean_bytes() -> f64 {
        let sum: u32 = SIZES.iter().map(|(bytes, frames)| bytes * frames).sum();
        f64::from(sum) / ORDER.len() as f64
    }

    /// After how many packets the sizes come again in the same order.
    pub(crate) fn period() -> u64 {
        ORDER.len() as u64
    }

    /// The bytes of packet `packet`, which is frame number `number`.
    pub(crate) fn to_vec(&self, packet: u64, number: u64) -> Vec<u8> {
        self.at(packet).to_vec(number)
    }

    /// Writes packet `packet`, which is frame number `number`, and returns its length.
    pub(crate) fn write(&self, packet: u64, number: u64, out: &mut [u8], now: fn() -> u64) -> usize {
        let frame = self.at(packet);
        let bytes = frame.l2_bytes();
        frame.write(number, &mut out[..bytes], now);
        bytes
    }

    fn at(&self, packet: u64) -> &CheckedFrame {
        &self.frames[ORDER[(packet % ORDER.len() as u64) as usize]]
    }

    /// The instructions that write packet number `index`, and leave its length in [`GeneratorProgram::LENGTH`]. `write` writes
    /// one of the frames.
    pub(crate) fn lower(
        &self,
        asm: &mut Assembler,
        index: Reg,
        scratch: Reg,
        mut write: impl FnMut(&CheckedFrame, &mut Assembler),
    ) {
        let (middle, long, done) = (asm.label(), asm.label(), asm.label());
        asm.mov(scratch, index);
        asm.alu_imm(AluOp::Mod, scratch, ORDER.len() as i32);
        for (place, _) in ORDER.iter().enumerate().filter(|(_, size)| **size == 1) {
            asm.jump_if_imm(Condition::Eq, scratch, place as i32, middle);
        }
        for (place, _) in ORDER.iter().enumerate().filter(|(_, size)| **size == 2) {
            asm.jump_if_imm(Condition::Eq, scratch, place as i32, long);
        }
        let mut one = |frame: &CheckedFrame, asm: &mut Assembler| {
            write(frame, asm);
            let length = GeneratorProgram::<std::convert::Infallible>::LENGTH;
            asm.mov_imm(length, frame.l2_bytes() as i32);
        };
        one(&self.frames[0], asm);
        asm.jump(done);
        asm.bind(middle);
        one(&self.frames[1], asm);
        asm.jump(done);
        asm.bind(long);
        one(&self.frames[2], asm);
        asm.bind(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_packets_have_the_sizes_of_the_mix() {
        for (index, (_, frames)) in SIZES.iter().enumerate() {
            assert_eq!(ORDER.iter().filter(|&&size| size == index).count() as u32, *frames);
        }
        assert!((Imix::mean_bytes() - (7.0 * 64.0 + 4.0 * 594.0 + 1_518.0) / 12.0).abs() < 1e-9);
    }
}
