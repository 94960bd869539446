//! What the files of pktgen say.

/// What a device's file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    /// Packets that the driver has taken.
    pub(super) sent: u64,
    /// Packets that it has not.
    pub(super) errors: u64,
    /// The line behind `Result: `: the answer to what was written last, or the first line of what a run came to.
    pub(super) result: String,
    /// What the run came to, once it is over.
    pub(super) end: Option<End>,
}

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) elapsed_us: u64,
    /// The part of it that was not spent waiting.
    pub(super) busy_us: u64,
    pub(super) sent: u64,
    pub(super) errors: u64,
}

impl Status {
    /// Reads the text of a device's file (net/core/pktgen.c, `pktgen_if_show` and `show_results`, 6.1 to 6.12). None where it
    /// is another text. The kernel writes a result while it may be read: half of one is no end yet.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let counts = lines.by_ref().skip_while(|&line| line != "Current:").nth(1)?;
        let (sent, errors) = counts.trim().strip_prefix("pkts-sofar: ")?.split_once("  errors: ")?;
        let (sent, errors) = (sent.parse().ok()?, errors.parse().ok()?);
        let result = lines.find_map(|line| line.strip_prefix("Result: "))?;
        let end = lines.next().and_then(|rates| End::parse(result, rates));
        // All of the same run.
        let end = end.filter(|end| (end.sent, end.errors) == (sent, errors));
        Some(Self { sent, errors, result: result.to_owned(), end })
    }
}

impl End {
    /// `OK: 1186(c1000+d186) usec, 10000 (60byte,0frags)` and `  8431703pps 4047Mb/sec (4047217440bps) errors: 0`.
    fn parse(first: &str, second: &str) -> Option<Self> {
        let (elapsed, rest) = first.strip_prefix("OK: ")?.split_once("(c")?;
        let (busy, rest) = rest.split_once("+d")?;
        let (idle, rest) = rest.split_once(") usec, ")?;
        let (sent, rest) = rest.split_once(" (")?;
        let (bytes, frags) = rest.strip_suffix("frags)")?.split_once("byte,")?;
        let (rates, errors) = second.trim().split_once(" errors: ")?;
        let _: (u64, u64, i64) = (idle.parse().ok()?, bytes.parse().ok()?, frags.parse().ok()?);
        rates.split_once("pps ")?.1.split_once("Mb/sec (")?.1.strip_suffix("bps)")?;
        Some(Self {
            elapsed_us: elapsed.parse().ok()?,
            busy_us: busy.parse().ok()?,
            sent: sent.parse().ok()?,
            errors: errors.parse().ok()?,
        })
    }
}

/// The devices that a thread's file names (`pktgen_thread_show`); none where it is another text.
pub(super) fn devices(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines();
    let running = lines.next()?.strip_prefix("Running:")?;
    let stopped = lines.next()?.strip_prefix("Stopped:")?;
    Some(running.split_whitespace().chain(stopped.split_whitespace()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 6.12 prints it; 6.1 lacks the flag SHARED.
    fn text(flags: &str, sofar: &str, result: &str) -> String {
        format!(
            "Params: count 10000  min_pkt_size: 60  max_pkt_size: 60\n     frags: 0  delay: 0  clone_skb: 0  ifname: v0@0\n     \
             flows: 0 flowlen: 0\n     queue_map_min: 0  queue_map_max: 0\n     dst_min: 198.18.0.2  dst_max: 198.18.0.2\n     \
             src_min: 198.18.0.1  src_max: 198.18.0.1\n     src_mac: 02:00:00:00:01:01 dst_mac: 02:00:00:00:01:02\n     \
             udp_src_min: 1024  udp_src_max: 1024  udp_dst_min: 5000  udp_dst_max: 5008\n     src_mac_count: 0  dst_mac_count: 0\n     \
             Flags: {flags}\nCurrent:\n     {sofar}\n     started: 87654us  stopped: 98765us idle: 12us\n     \
             seq_num: 10001  cur_dst_mac_offset: 0  cur_src_mac_offset: 0\n     cur_saddr: 198.18.0.1  cur_daddr: 198.18.0.2\n     \
             cur_udp_dst: 5000  cur_udp_src: 1024\n     cur_queue_map: 0\n     flows: 0\nResult: {result}\n"
        )
    }

    const RESULT: &str =
        "OK: 11111(c11099+d12) usec, 10000 (60byte,0frags)\n  900009pps 432Mb/sec (432004320bps) errors: 0";

    #[test]
    fn a_run_is_read_of_either_kernel() {
        for flags in ["UDPCSUM  QUEUE_MAP_CPU  ", "UDPCSUM  QUEUE_MAP_CPU  SHARED  "] {
            let status = Status::parse(&text(flags, "pkts-sofar: 10000  errors: 0", RESULT)).unwrap();
            let end = End { elapsed_us: 11_111, busy_us: 11_099, sent: 10_000, errors: 0 };
            assert_eq!((status.sent, status.errors, status.end), (10_000, 0, Some(end)));
        }
        let without = RESULT.replace("0frags", "-1frags");
        assert!(Status::parse(&text("", "pkts-sofar: 10000  errors: 0", &without)).unwrap().end.is_some());
    }

    #[test]
    fn what_is_no_end_is_none() {
        for result in
            ["Idle", "Starting", "OK: count=10000", "OK: 11111(c11099+d12) usec, 10000 (60byte,0frags)"]
        {
            let status = Status::parse(&text("", "pkts-sofar: 7  errors: 0", result)).unwrap();
            assert_eq!((status.end, status.sent, status.result.as_str()), (None, 7, result));
        }
        for cut in 0..RESULT.len() {
            let status = Status::parse(&text("", "pkts-sofar: 10000  errors: 0", &RESULT[..cut])).unwrap();
            assert_eq!(status.end, None, "{cut}");
        }
        // Of an earlier run.
        assert_eq!(Status::parse(&text("", "pkts-sofar: 3  errors: 0", RESULT)).unwrap().end, None);
    }

    #[test]
    fn other_texts_are_refused() {
        let whole = text("", "pkts-sofar: 10000  errors: 0", "Idle");
        for text in
            ["", "Current:", "Current:\n", &whole.replace("pkts-sofar: 1", "pkts-sofar: x"), "Result: OK"]
        {
            assert_eq!(Status::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_devices_of_a_thread() {
        let none: [&str; 0] = [];
        assert_eq!(devices("Running: \nStopped: \nResult: NA\n").unwrap(), none);
        assert_eq!(devices("Running: a@0 \nStopped: b c@1 \nResult: OK: x\n").unwrap(), ["a@0", "b", "c@1"]);
        assert_eq!(devices("Result: NA\n"), None);
    }
}
