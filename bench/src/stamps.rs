//! When every packet arrived, and how evenly that was.

use anyhow::{Context, Result};
use ebpf::{AluOp, Assembler, Condition, Reg, Size};
use linux::bpf::{Map, MappedArray};
use measure::gaps::{Figures, Gaps};

/// `bpf_ktime_get_ns` (enum bpf_func_id); its clock is CLOCK_MONOTONIC.
const HELPER_KTIME: i32 = 5;
const XDP_DROP: i32 = 1;

/// Bounds of the printed histogram, in intervals: a gap is in the bin of the last bound that it reaches.
pub const BINS: [f64; 8] = [0.0, 0.25, TWICE, 0.9, 1.1, 1.5, 3.0, 10.0];
/// Catching up at twice the rate has gaps of half an interval, give or take what the receiver is late: what is shorter is faster.
pub const TWICE: f64 = 0.45;
/// Packets closer than this, in intervals, are of one burst.
const BURST: f64 = 0.25;

/// The clock at each arrival, written by a program in XDP that drops the packet then.
pub struct Stamps {
    map: Map,
    /// How many arrived, and then when.
    words: MappedArray,
    slots: u32,
}

impl Stamps {
    /// Room for so many packets.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(slots: u32) -> Result<Self> {
        // One element, so that the program finds a slot by adding up.
        let map = Map::array(8 * (slots as usize + 1), 1, true).context("make the map for the stamps")?;
        let words = map.mmap_array()?;
        Ok(Self { map, words, slots })
    }

    /// The program. It must not run on two CPUs at once: the device has one queue.
    ///
    /// # Errors
    /// None that is known.
    pub fn program(&self) -> Result<Vec<[u8; 8]>> {
        let mut asm = Assembler::new();
        let full = asm.label();
        asm.call(HELPER_KTIME);
        asm.load_map_value(Reg::R1, self.map.fd(), 0);
        asm.load(Size::DW, Reg::R2, Reg::R1, 0);
        asm.alu_imm(AluOp::Add, Reg::R2, 1);
        asm.store(Size::DW, Reg::R1, 0, Reg::R2);
        asm.jump_if_imm(Condition::Gt, Reg::R2, self.slots as i32, full);
        asm.alu_imm(AluOp::Lsh, Reg::R2, 3);
        asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        asm.store(Size::DW, Reg::R1, 0, Reg::R0);
        asm.bind(full);
        asm.mov_imm(Reg::R0, XDP_DROP);
        asm.exit();
        Ok(asm.finish()?.into_iter().map(ebpf::Insn::to_bytes).collect())
    }

    /// Forgets all that arrived.
    pub fn clear(&self) {
        self.words.store(0, 0);
    }

    /// How many arrived.
    pub fn arrived(&self) -> u64 {
        self.words.load(0)
    }

    /// When each arrived, in ns, as far as there was room.
    pub fn times(&self) -> impl Iterator<Item = u64> + '_ {
        let count = self.arrived().min(u64::from(self.slots)) as usize;
        (1..=count).map(|slot| self.words.load(slot))
    }
}

/// How evenly packets arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Spacing {
    /// Packets per second from the first to the last.
    pub achieved_pps: f64,
    /// Quantiles of the gaps.
    pub figures: Figures,
    /// The share of the gaps in each of [`BINS`].
    pub shares: [f64; BINS.len()],
    /// The most packets in a row that were less than a quarter of the interval apart; 1: there were no two.
    pub longest_burst: u64,
}

impl Spacing {
    /// Of packets that should be `interval_ns` apart. None of fewer than two.
    pub fn of(times: impl IntoIterator<Item = u64>, interval_ns: f64) -> Option<Self> {
        let mut times = times.into_iter();
        let first = times.next()?;
        let (mut last, mut gaps, mut bins) = (first, Gaps::new(), [0_u64; BINS.len()]);
        let (mut burst, mut longest_burst) = (1, 1);
        for time in times {
            let gap_ns = time.saturating_sub(last);
            last = time;
            gaps.record(gap_ns);
            let intervals = gap_ns as f64 / interval_ns;
            bins[BINS.partition_point(|&bound| bound <= intervals) - 1] += 1;
            burst = if intervals < BURST { burst + 1 } else { 1 };
            longest_burst = longest_burst.max(burst);
        }
        let count = gaps.count() as f64;
        Some(Self {
            achieved_pps: count * 1e9 / last.saturating_sub(first).max(1) as f64,
            figures: gaps.figures()?,
            shares: bins.map(|bin| bin as f64 / count),
            longest_burst,
        })
    }

    /// The share of gaps that are shorter than twice the rate has.
    pub fn too_fast(&self) -> f64 {
        self.shares.iter().zip(BINS).filter(|(_, low)| *low < TWICE).map(|(share, _)| share).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_packets_have_one_gap_and_no_burst() {
        let spacing = Spacing::of((0..101).map(|index| 5 + index * 1000), 1000.0).unwrap();
        assert_eq!((spacing.achieved_pps, spacing.longest_burst, spacing.too_fast()), (1e6, 1, 0.0));
        assert_eq!(spacing.shares, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn bursts_are_counted_in_packets() {
        // 3 together, then 2, at the same rate on the whole.
        let times = [0, 10, 20, 3000, 3010, 5000];
        let spacing = Spacing::of(times, 1000.0).unwrap();
        assert_eq!((spacing.longest_burst, spacing.achieved_pps), (3, 1e6));
        assert!((spacing.too_fast() - 0.6).abs() < 1e-9, "{spacing:?}");
        assert_eq!((spacing.figures.shortest_ns, spacing.shares[5]), (10, 0.4));
    }

    #[test]
    fn fewer_than_two_have_no_gap() {
        assert_eq!((Spacing::of([], 1.0), Spacing::of([7], 1.0)), (None, None));
    }
}
