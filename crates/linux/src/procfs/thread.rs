//! What the calling thread used, and how often it was interrupted.

use crate::SyscallError;

/// What the calling thread used since it was started (getrusage(2), RUSAGE_THREAD).
///
/// For use around every slice: one system call, no text. Times have the resolution that the kernel's
/// accounting has: exact sums split between user and system by sampling, unless the kernel accounts at every
/// switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadUsage {
    /// Time in the program, in ns.
    pub user_ns: u64,
    /// Time in the kernel, in ns.
    pub system_ns: u64,
    /// Page faults served without a disk.
    pub minor_faults: u64,
    /// Page faults that had to wait for a disk.
    pub major_faults: u64,
    /// Switches because the thread waited for something.
    pub voluntary_switches: u64,
    /// Switches because another task was to run.
    pub involuntary_switches: u64,
}

/// What the calling thread used so far.
pub fn thread_usage() -> ThreadUsage {
    // SAFETY: rusage is integers only, for which zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage to `usage`, which outlives the call. RUSAGE_THREAD is always
    // valid, so the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ThreadUsage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

/// What is of interest in a thread's `status` file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThreadStatus {
    /// Switches because the thread waited for something.
    pub voluntary_switches: Option<u64>,
    /// Switches because another task was to run.
    pub involuntary_switches: Option<u64>,
    /// CPUs that the thread may run on, as a list ("0-3,7").
    pub cpus_allowed: Option<String>,
}

/// Reads the text of a `status` file.
pub fn thread_status(text: &str) -> ThreadStatus {
    let value = |wanted: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(wanted)?.strip_prefix(':')?.trim()))
    };
    let number = |wanted: &str| value(wanted).and_then(|text| text.parse().ok());
    ThreadStatus {
        voluntary_switches: number("voluntary_ctxt_switches"),
        involuntary_switches: number("nonvoluntary_ctxt_switches"),
        cpus_allowed: value("Cpus_allowed_list").map(str::to_owned),
    }
}

/// A line of `schedstat` (kernel/sched/stats.c, 6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU, in ns.
    pub running_ns: u64,
    /// Time ready to run but waiting for a CPU, in ns.
    pub waiting_ns: u64,
    /// Times that it was put on a CPU.
    pub runs: u64,
}

/// Reads the text of a `schedstat` file; `None` where it is not three numbers.
pub fn sched_stat(text: &str) -> Option<SchedStat> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let mut number = || words.next()?;
    Some(SchedStat { running_ns: number()?, waiting_ns: number()?, runs: number()? })
}

/// The calling thread's `status`.
///
/// # Errors
/// Where /proc is not mounted.
pub fn own_status() -> Result<ThreadStatus, SyscallError> {
    super::read("/proc/thread-self/status").map(|text| thread_status(&text))
}

/// The calling thread's `schedstat`; `None` where the kernel has none (CONFIG_SCHED_INFO).
pub fn own_sched_stat() -> Option<SchedStat> {
    super::read("/proc/thread-self/schedstat").ok().and_then(|text| sched_stat(&text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn status_is_read() {
        let text = "Name:\tcat\nCpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        let status = thread_status(text);
        assert_eq!((status.voluntary_switches, status.involuntary_switches), (Some(7), Some(3)));
        assert_eq!(status.cpus_allowed.as_deref(), Some("0-1"));
        assert_eq!(thread_status(""), ThreadStatus::default());
    }

    #[test]
    fn schedstat_is_read() {
        assert_eq!(
            sched_stat("863296 63524 2\n"),
            Some(SchedStat { running_ns: 863_296, waiting_ns: 63_524, runs: 2 })
        );
        assert_eq!(sched_stat("1 2\n"), None);
    }

    #[test]
    fn usage_grows_with_work_and_with_waiting() {
        let before = thread_usage();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        // Blocks until the other thread has run: at least one voluntary switch.
        std::thread::spawn(std::thread::yield_now).join().unwrap();
        loop {
            let after = thread_usage();
            let worked = after.user_ns + after.system_ns > before.user_ns + before.system_ns;
            if worked && after.voluntary_switches > before.voluntary_switches {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{before:?} {after:?}");
            std::thread::spawn(std::thread::yield_now).join().unwrap();
        }
        let status = own_status().unwrap();
        assert!(status.voluntary_switches > Some(0));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "[A-Za-z_0-9:\\n\\t ]{0,200}|\\PC{0,100}") {
            let _ = (thread_status(&text), sched_stat(&text));
        }
    }
}
