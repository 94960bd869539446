//! What the calling thread or the process used, and how often it was interrupted.

/// What a thread or a process used since it was started (getrusage(2), RUSAGE_THREAD and RUSAGE_SELF).
///
/// For use around every slice: one system call, no text. Times have the resolution that the kernel's
/// accounting has: exact sums split between user and system by sampling, unless the kernel accounts at every
/// switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
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
pub fn thread_usage() -> Usage {
    usage(libc::RUSAGE_THREAD)
}

/// What all threads of this process used so far, those included that have ended.
pub fn process_usage() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// `who` is RUSAGE_SELF or RUSAGE_THREAD: both are always valid, so the call cannot fail.
fn usage(who: libc::c_int) -> Usage {
    // SAFETY: rusage is integers only, for which zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage to `usage`, which outlives the call.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    Usage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
    #[test]
    fn a_process_used_what_its_threads_did() {
        let before = process_usage();
        let thread = std::thread::spawn(|| {
            while thread_usage().user_ns < 20_000_000 {
                std::hint::spin_loop();
            }
        });
        thread.join().unwrap();
        let after = process_usage();
        // The split into user and system may move: its sum does not go back.
        assert!(after.user_ns + after.system_ns >= before.user_ns + before.system_ns + 15_000_000);
    }
}
