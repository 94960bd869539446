//! Child processes and what they write; how exactly a thread is woken.

use std::fs::File;
use std::num::NonZeroU64;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::SyscallError;

/// A file in memory, for what a child writes: unlike a pipe it is at its end when the child is, whoever else holds it.
pub fn memory_file(name: &str) -> Result<File, SyscallError> {
    memfd_create(name, MemfdFlags::CLOEXEC)
        .map(File::from)
        .map_err(|error| SyscallError::new("memfd_create", name, error.into()))
}

/// How much later than asked the kernel may wake the calling thread from a timed sleep, so as to join it with others
/// (`PR_SET_TIMERSLACK`); 50 µs unless set. Real-time threads have none.
pub fn set_timer_slack(ns: NonZeroU64) -> Result<(), SyscallError> {
    rustix::thread::set_current_timer_slack(Some(ns))
        .map_err(|error| SyscallError::new("prctl PR_SET_TIMERSLACK", format!("{ns} ns"), error.into()))
}

/// Memory of this process that is in RAM, in bytes (`/proc/self/statm`, second field: proc_pid_statm(5)). None where it cannot
/// be read.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Ends all processes of a group at once (SIGKILL).
///
/// # Errors
/// ESRCH: there is none. EPERM: not allowed to.
pub fn kill_group(group: u32) -> Result<(), SyscallError> {
    let failed = |error| SyscallError::new("kill", format!("process group {group}"), error);
    let pid = i32::try_from(group).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(std::io::ErrorKind::InvalidInput.into()))?;
    kill_process_group(pid, Signal::KILL).map_err(|error| failed(error.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory() {
        let page = rustix::param::page_size() as u64;
        assert!(resident_bytes().unwrap() >= page);
    }

    #[test]
    fn the_timer_slack_is_the_threads_own() {
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let before = slack();
        std::thread::spawn(move || {
            set_timer_slack(NonZeroU64::MIN).unwrap();
            assert_eq!(slack(), 1);
        })
        .join()
        .unwrap();
        assert_eq!(slack(), before);
    }
}
