//! What a backlog that fills up does not take: more of the flow that fills it.

use super::SteeringError;

/// Which flows the last 128 packets of a filling backlog were of (`skb_flow_limit` and `sd_flow_limit`,
/// net/core/dev.c and dev.h, 6.18). Flows are told apart by a hash with 4096 values: two may share one, and then
/// their limit.
#[derive(Clone, Debug)]
pub struct FlowLimit {
    /// How many of the history are of each.
    buckets: Box<[u8]>,
    history: [u16; FlowLimit::HISTORY],
    head: usize,
    exceeded: u64,
}

impl Default for FlowLimit {
    fn default() -> FlowLimit {
        FlowLimit::with(FlowLimit::BUCKETS)
    }
}

impl FlowLimit {
    /// How many packets are remembered.
    pub const HISTORY: usize = 128;
    /// How many flows are told apart (`net.core.flow_limit_table_len`).
    pub const BUCKETS: usize = 4096;

    /// Another number of buckets: a power of two from 2 to 65536.
    pub fn with_buckets(buckets: usize) -> Result<FlowLimit, SteeringError> {
        if !buckets.is_power_of_two() || !(2..=1 << 16).contains(&buckets) {
            return Err(SteeringError::Buckets { buckets });
        }
        Ok(FlowLimit::with(buckets))
    }

    fn with(buckets: usize) -> FlowLimit {
        FlowLimit { buckets: vec![0; buckets].into(), history: [0; FlowLimit::HISTORY], head: 0, exceeded: 0 }
    }

    /// Remembers a packet, and says whether its flow has more than half of what is remembered.
    #[inline]
    pub fn is_exceeded(&mut self, hash: u32) -> bool {
        let new = self.bucket(hash);
        let old = std::mem::replace(&mut self.history[self.head], new);
        self.head = (self.head + 1) % FlowLimit::HISTORY;
        let old = &mut self.buckets[usize::from(old)];
        *old = old.saturating_sub(1);
        let count = &mut self.buckets[usize::from(new)];
        // At most as many as are remembered, which fits; as in the kernel nothing was remembered at first.
        *count = count.saturating_add(1);
        let is_exceeded = usize::from(*count) > FlowLimit::HISTORY / 2;
        self.exceeded += u64::from(is_exceeded);
        is_exceeded
    }

    /// Whether a backlog with this limit, in which `waiting` packets are, takes no more of the flow with this hash
    /// (`skb_flow_limit`): that is asked, and the packet remembered, only where half of it is taken.
    #[inline]
    pub fn stops(&mut self, hash: u32, waiting: usize, limit: usize) -> bool {
        waiting >= limit / 2 && self.is_exceeded(hash)
    }

    /// How often it was exceeded: column 11 of `/proc/net/softnet_stat`.
    pub fn exceeded(&self) -> u64 {
        self.exceeded
    }

    /// `hash_32`, include/linux/hash.h.
    #[inline]
    fn bucket(&self, hash: u32) -> u16 {
        (hash.wrapping_mul(0x61c8_8647) >> (32 - self.buckets.len().trailing_zeros())) as u16
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_single_flow_is_stopped_after_half_the_history() {
        let mut limit = FlowLimit::default();
        let exceeded: Vec<bool> = (0..200).map(|_| limit.is_exceeded(0xdead_beef)).collect();
        assert_eq!(exceeded.iter().position(|e| *e), Some(64));
        assert!(exceeded[64..].iter().all(|e| *e));
        assert_eq!(limit.exceeded(), 136);
    }

    #[test]
    fn a_small_flow_beside_a_large_one_goes_through() {
        let mut limit = FlowLimit::default();
        let mut small_stopped = 0;
        let mut large_stopped = 0;
        for packet in 0..10_000 {
            if packet % 10 == 0 {
                small_stopped += u32::from(limit.is_exceeded(77));
            } else {
                large_stopped += u32::from(limit.is_exceeded(1_000_003));
            }
        }
        assert_eq!(small_stopped, 0);
        assert!(large_stopped > 8_900, "{large_stopped}");
    }

    #[test]
    fn two_equal_flows_are_not_stopped() {
        let mut limit = FlowLimit::default();
        assert!((0..10_000u32).all(|packet| !limit.is_exceeded([5, 1_000_003][packet as usize % 2])));
    }

    #[test]
    fn a_flow_that_has_calmed_down_is_forgotten() {
        let mut limit = FlowLimit::default();
        while !limit.is_exceeded(9) {}
        for other in 0..128 {
            limit.is_exceeded(other << 20);
        }
        assert!(!limit.is_exceeded(9));
    }

    #[test]
    fn it_is_asked_only_when_half_is_taken() {
        let mut limit = FlowLimit::default();
        while !limit.is_exceeded(9) {}
        assert!(!limit.stops(9, 499, 1000));
        assert!(limit.stops(9, 500, 1000));
        assert!(!limit.stops(10, 500, 1000));
    }

    #[test]
    fn other_sizes() {
        assert!(FlowLimit::with_buckets(2).is_ok() && FlowLimit::with_buckets(1 << 16).is_ok());
        for buckets in [0, 1, 3, 1 << 17] {
            assert!(FlowLimit::with_buckets(buckets).is_err());
        }
    }

    proptest! {
        /// Once the history is full, the counts are what it holds.
        #[test]
        fn as_a_plain_history(hashes in proptest::collection::vec(0u32..6, 129..600)) {
            // None of these is in bucket 0, which the empty history is counted for.
            let mut limit = FlowLimit::default();
            let mut last = VecDeque::new();
            for hash in hashes {
                let hash = (hash + 1) << 8;
                last.push_back(hash);
                if last.len() > FlowLimit::HISTORY {
                    last.pop_front();
                }
                let wanted = last.iter().filter(|h| **h == hash).count() > FlowLimit::HISTORY / 2;
                prop_assert_eq!(limit.is_exceeded(hash), wanted);
            }
        }
    }
}
