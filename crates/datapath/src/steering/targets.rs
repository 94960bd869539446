//! From a hash to who does the work.

use std::str::FromStr;

/// Why there is no such table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteeringError {
    /// The size is no power of two up to 65536.
    #[error(
        "make an indirection table of {entries} entries: give a power of two up to 65536 (devices have 128)"
    )]
    Entries {
        /// What was asked for.
        entries: usize,
    },
    /// The number of buckets is no power of two from 2 to 65536.
    #[error("limit flows with {buckets} buckets: give a power of two from 2 to 65536 (the kernel has 4096)")]
    Buckets {
        /// What was asked for.
        buckets: usize,
    },
    /// Nobody to lead to.
    #[error("steer flows: there is no queue and no CPU to steer to; give at least one")]
    NoTarget,
    /// Not a mask of CPUs.
    #[error(
        "read a mask of CPUs from {text:?}: give hexadecimal digits, in groups by commas, as in \"f\" or \"3,00000000\""
    )]
    Mask {
        /// What was given.
        text: String,
    },
}

/// The indirection table of a device: the lowest bits of the hash choose an entry, and this names a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indirection {
    queues: Vec<u16>,
}

impl Indirection {
    /// What devices have.
    pub const ENTRIES: usize = 128;

    /// All queues in turn, as the kernel fills it at first (`ethtool_rxfh_indir_default`, include/linux/ethtool.h,
    /// 6.18).
    pub fn even(entries: usize, queues: u16) -> Result<Indirection, SteeringError> {
        Indirection::weighted(entries, &vec![1; usize::from(queues)])
    }

    /// Each queue has as many entries in a row as its weight, again and again; with 0 it gets none.
    pub fn weighted(entries: usize, weights: &[u16]) -> Result<Indirection, SteeringError> {
        if !entries.is_power_of_two() || entries > 1 << 16 {
            return Err(SteeringError::Entries { entries });
        }
        let round: Vec<u16> = (0..=u16::MAX)
            .zip(weights)
            .flat_map(|(queue, weight)| std::iter::repeat_n(queue, usize::from(*weight)))
            .collect();
        if round.is_empty() {
            return Err(SteeringError::NoTarget);
        }
        Ok(Indirection { queues: round.into_iter().cycle().take(entries).collect() })
    }

    /// The queue of a flow.
    #[inline]
    pub fn of(&self, hash: u32) -> u16 {
        self.queues[hash as usize & (self.queues.len() - 1)]
    }

    /// All entries.
    pub fn entries(&self) -> &[u16] {
        &self.queues
    }
}

/// The CPUs that work is spread over, as receive packet steering does (`rps_cpus`; `get_rps_cpu`, net/core/dev.c,
/// 6.18): the hash as a fraction of its range chooses, so that the highest bits count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMap {
    cpus: Vec<u16>,
}

impl CpuMap {
    /// These CPUs; one that is named twice gets twice the share.
    pub fn new(cpus: Vec<u16>) -> Result<CpuMap, SteeringError> {
        if cpus.is_empty() { Err(SteeringError::NoTarget) } else { Ok(CpuMap { cpus }) }
    }

    /// The CPU of a flow.
    #[inline]
    pub fn of(&self, hash: u32) -> u16 {
        // reciprocal_scale, include/linux/kernel.h.
        self.cpus[((u64::from(hash) * self.cpus.len() as u64) >> 32) as usize]
    }

    /// All of them.
    pub fn cpus(&self) -> &[u16] {
        &self.cpus
    }
}

/// A mask as in `rps_cpus`: hexadecimal, in groups of 32 bits, the highest first. The kernel shows groups with all
/// their digits, and reads shorter ones.
impl FromStr for CpuMap {
    type Err = SteeringError;

    fn from_str(text: &str) -> Result<CpuMap, SteeringError> {
        let wrong = || SteeringError::Mask { text: text.to_owned() };
        let groups: Vec<&str> = text.trim().split(',').collect();
        // CPUs beyond 65535 have no number here.
        if groups.len() > 2048 {
            return Err(wrong());
        }
        let mut cpus = Vec::new();
        for (at, group) in groups.iter().rev().enumerate() {
            if group.len() > 8 || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            let mask = u32::from_str_radix(group, 16).map_err(|_| wrong())?;
            cpus.extend((0..32).filter(|bit| mask >> bit & 1 != 0).map(|bit| (at * 32 + bit) as u16));
        }
        CpuMap::new(cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_in_turn() {
        let table = Indirection::even(8, 3).unwrap();
        assert_eq!(table.entries(), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!((table.of(0), table.of(7), table.of(0xffff_fff8 | 2)), (0, 1, 2));
    }

    #[test]
    fn by_weight() {
        let table = Indirection::weighted(8, &[1, 0, 3]).unwrap();
        assert_eq!(table.entries(), [0, 2, 2, 2, 0, 2, 2, 2]);
    }

    #[test]
    fn every_hash_leads_somewhere() {
        let table = Indirection::even(1, 1).unwrap();
        let map = CpuMap::new(vec![4, 9, 2]).unwrap();
        for hash in [0, 1, 0x5555_5555, 0x5555_5556, 0xaaaa_aaab, u32::MAX] {
            assert_eq!(table.of(hash), 0);
            assert!(map.cpus().contains(&map.of(hash)));
        }
        assert_eq!([map.of(0), map.of(0x5555_5556), map.of(u32::MAX)], [4, 9, 2]);
    }

    #[test]
    fn what_makes_no_table() {
        for entries in [0, 3, 1 << 17] {
            assert_eq!(Indirection::even(entries, 2), Err(SteeringError::Entries { entries }));
        }
        assert_eq!(Indirection::even(8, 0), Err(SteeringError::NoTarget));
        assert_eq!(Indirection::weighted(8, &[0, 0]), Err(SteeringError::NoTarget));
        assert_eq!(CpuMap::new(Vec::new()), Err(SteeringError::NoTarget));
    }

    #[test]
    fn masks_as_the_kernel_writes_them() {
        let cpus = |text: &str| text.parse::<CpuMap>().map(|map| map.cpus().to_vec());
        assert_eq!(cpus("f"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(cpus("00000001,80000002\n"), Ok(vec![1, 31, 32]));
        assert_eq!(cpus("0"), Err(SteeringError::NoTarget));
        for wrong in ["", "g", "0x3", "3,", "123456789", "-1", "+1", &"0,".repeat(3000)] {
            assert_eq!(cpus(wrong), Err(SteeringError::Mask { text: wrong.to_owned() }));
        }
    }
}
