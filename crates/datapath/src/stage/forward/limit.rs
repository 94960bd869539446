//! How many ICMP errors are sent.

/// A token bucket that begins full: `icmp_global_allow` (net/ipv4/icmp.c, 6.18), with a finer clock.
///
/// The kernel's further limit for each receiver (`icmp_ratelimit`) is left out: all that sends here is one generator.
#[derive(Debug)]
pub(super) struct TokenBucket {
    ns_per_token: u64,
    full_ns: u64,
    /// Tokens in hand, in the time that they take to come.
    credit_ns: u64,
    seen_ns: Option<u64>,
}

/// How many ICMP errors may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpLimit {
    /// Messages a second, in the long run. 0: none at all.
    pub per_second: u32,
    /// Messages at once.
    pub burst: u32,
}

impl Default for IcmpLimit {
    /// As `icmp_msgs_per_sec` and `icmp_msgs_burst` (`icmp_sk_init`, net/ipv4/icmp.c, 6.18).
    fn default() -> Self {
        Self { per_second: 1_000, burst: 50 }
    }
}

impl TokenBucket {
    pub(super) fn new(limit: IcmpLimit) -> Self {
        let ns_per_token = 1_000_000_000 / u64::from(limit.per_second.max(1));
        let full_ns = if limit.per_second == 0 { 0 } else { ns_per_token * u64::from(limit.burst) };
        Self { ns_per_token, full_ns, credit_ns: full_ns, seen_ns: None }
    }

    /// Takes a token, if there is one.
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let since = now_ns.saturating_sub(self.seen_ns.unwrap_or(now_ns));
        self.seen_ns = Some(now_ns.max(self.seen_ns.unwrap_or(0)));
        self.credit_ns = self.credit_ns.saturating_add(since).min(self.full_ns);
        match self.credit_ns.checked_sub(self.ns_per_token) {
            Some(left) => {
                self.credit_ns = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(bucket: &mut TokenBucket, asked: usize, now_ns: u64) -> usize {
        (0..asked).filter(|_| bucket.allows(now_ns)).count()
    }

    #[test]
    fn a_burst_and_then_one_each_millisecond() {
        let mut bucket = TokenBucket::new(IcmpLimit::default());
        assert_eq!(allowed(&mut bucket, 200, 5), 50);
        assert_eq!(allowed(&mut bucket, 200, 5 + 999_999), 0);
        assert_eq!(allowed(&mut bucket, 200, 5 + 1_000_000), 1);
        assert_eq!(allowed(&mut bucket, 200, 5 + 11_500_000), 10);
        // The half millisecond was kept.
        assert_eq!(allowed(&mut bucket, 200, 5 + 12_000_000), 1);
        assert_eq!(allowed(&mut bucket, 200, 3_600_000_000_000), 50, "no more is kept than a burst");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_and_takes_nothing() {
        let mut bucket = TokenBucket::new(IcmpLimit { per_second: 10, burst: 1 });
        assert!(bucket.allows(1_000_000_000));
        assert!(!bucket.allows(0));
        assert!(!bucket.allows(1_099_999_999));
        assert!(bucket.allows(1_100_000_000));
    }

    #[test]
    fn none_means_none() {
        let mut bucket = TokenBucket::new(IcmpLimit { per_second: 0, burst: 50 });
        assert_eq!(allowed(&mut bucket, 10, 0) + allowed(&mut bucket, 10, u64::MAX), 0);
    }
}
