//! Clocks of the process and the machine, in nanoseconds.
//!
//! Thread CPU time is what most figures rest on: it leaves out the time in which this thread did not run, and
//! includes what the kernel did on its behalf in system calls and in softirqs that ran on top of it (unless the
//! kernel accounts interrupts apart, `CONFIG_IRQ_TIME_ACCOUNTING`). Reading it costs a system call; the
//! monotonic clock is read without one where the clock source allows.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CPU time that the calling thread has used, user and system, in ns (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time that all threads of this process have used, in ns (`CLOCK_PROCESS_CPUTIME_ID`).
pub fn process_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Time since an arbitrary start, never set back, in ns (`CLOCK_MONOTONIC`; stops in system suspend).
///
/// The same clock as `bpf_ktime_get_ns` in a BPF program.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn nanoseconds(time: Timespec) -> u64 {
    // These three clocks count up from a start in the past: both fields are never negative.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_never_go_back_and_do_advance() {
        for clock in [thread_cpu_ns, process_cpu_ns, monotonic_ns] {
            let start = clock();
            let mut last = start;
            // CPU clocks advance while this loop runs, so it ends.
            while last == start {
                let now = clock();
                assert!(now >= last);
                last = now;
            }
        }
    }

    #[test]
    fn the_process_used_at_least_what_this_thread_used() {
        let thread = thread_cpu_ns();
        assert!(process_cpu_ns() >= thread);
    }
}
