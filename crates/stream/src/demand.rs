//! What moving something costs: CPU time for each KB or transaction, netperf's "service demand".
//!
//! It is the time that CPUs were busy, divided by what the end in question moved itself: the sender by what it gave to the kernel,
//! the receiver by what it got. KB is 1024 bytes here, as in netperf's columns, and nowhere else.
//!
//! netperf 2.7.1 computes it from the share of all CPUs that was busy (src/netlib.c, `calc_service_demand`), which
//! [`classic`] does too. It differs in two cases, which are faults: where the remote share is exactly 0 it takes the local one,
//! and the remote figure of UDP_STREAM is divided by what was *sent*. Here zero is zero, and what was lost was not
//! received.

use std::time::Duration;

/// Bytes of a KB.
pub const KB: f64 = 1024.0;

/// µs of CPU time for each KB that an end moved. None where it moved nothing.
pub fn us_per_kb(busy_ns: u64, bytes: u64) -> Option<f64> {
    us_per_transaction(busy_ns, bytes).map(|us_per_byte| us_per_byte * KB)
}

/// µs of CPU time for each transaction. None where there was none.
pub fn us_per_transaction(busy_ns: u64, transactions: u64) -> Option<f64> {
    (transactions > 0).then(|| busy_ns as f64 / 1000.0 / transactions as f64)
}

/// The same as netperf writes it: `util/100 · CPUs · elapsed µs / units`. `units` are KB or transactions. None where there are
/// none.
pub fn classic(util_percent: f64, cpus: u32, elapsed: Duration, units: f64) -> Option<f64> {
    let us = util_percent / 100.0 * f64::from(cpus) * elapsed.as_secs_f64() * 1e6;
    (units > 0.0).then(|| us / units)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of netperf's of 2019, on 8 CPUs: 10⁶ bit/s, and of sender and receiver CPU in % and service demand in µs/KB.
    #[allow(clippy::type_complexity)] // as the table has it
    const TABLE: [(&str, f64, [(f64, f64); 2]); 6] = [
        ("TCP_SENDFILE 16384", 9132.37, [(6.13, 0.440), (11.79, 0.846)]),
        ("TCP_STREAM 16384", 9041.21, [(3.20, 0.232), (11.75, 0.852)]),
        ("UDP_STREAM 65507", 5997.0, [(12.55, 1.371), (8.12, 0.887)]),
        ("UDP_STREAM 64", 205.4, [(12.51, 39.918), (7.99, 25.482)]),
        ("UDP_STREAM 128", 404.4, [(12.50, 20.255), (7.70, 12.485)]),
        ("UDP_STREAM 1024", 2838.8, [(12.50, 2.886), (7.39, 1.707)]),
    ];

    /// All twelve figures follow from the columns beside them, as exactly as those are printed: shares in hundredths of a
    /// percent, throughput of UDP in tenths of 10⁶ bit/s.
    #[test]
    fn a_published_table_is_reproduced_within_its_rounding() {
        for (name, megabits, ends) in TABLE {
            let step = if name.starts_with("TCP") { 0.01 } else { 0.1 };
            for (util, published) in ends {
                let second = Duration::from_secs(1);
                let demand =
                    |util: f64, megabits: f64| classic(util, 8, second, megabits * 1e6 / 8.0 / KB).unwrap();
                let least = demand(util - 0.005, megabits + step / 2.0) - 0.0005;
                let most = demand(util + 0.005, megabits - step / 2.0) + 0.0005;
                assert!((least..=most).contains(&published), "{name}: {least} to {most}, not {published}");
                // And the range is narrow enough to tell a KB of 1024 bytes from one of 1000, and 8 CPUs from 7.
                assert!(most / least < 1.01, "{name}: {least} to {most}");
            }
        }
    }

    #[test]
    fn busy_time_and_share_say_the_same() {
        // 2 of 8 CPUs for 10 s, 5 GiB.
        let (busy_ns, bytes) = (20_000_000_000, 5 << 30);
        let own = us_per_kb(busy_ns, bytes).unwrap();
        let classic = classic(25.0, 8, Duration::from_secs(10), bytes as f64 / KB).unwrap();
        assert!((own - classic).abs() < 1e-9 && (own - 3.814_697_265_625).abs() < 1e-9, "{own} {classic}");
    }

    #[test]
    fn zero_is_zero_and_nothing_moved_has_no_demand() {
        // netperf takes the local share for a remote one of 0 (src/netlib.c).
        assert_eq!((us_per_kb(0, 1024), us_per_transaction(0, 7)), (Some(0.0), Some(0.0)));
        assert_eq!(classic(0.0, 8, Duration::from_secs(10), 1.0), Some(0.0));
        assert_eq!((us_per_kb(5, 0), us_per_transaction(5, 0)), (None, None));
        assert_eq!(classic(5.0, 8, Duration::from_secs(10), 0.0), None);
        assert_eq!(us_per_transaction(3_000, 2), Some(1.5));
    }
}
