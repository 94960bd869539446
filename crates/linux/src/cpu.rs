//! Which CPU a thread runs on, and with which priority.

use std::fs;
use std::io;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::SyscallError;

/// The CPUs that the calling thread may run on, ascending.
///
/// This is the thread's affinity mask: container limits by cpuset are in it, limits by quota are not.
pub fn allowed() -> Result<Vec<usize>, SyscallError> {
    let set = sched_getaffinity(None)
        .map_err(|error| SyscallError::new("sched_getaffinity", "calling thread", error.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// EINVAL when the CPU does not exist, is offline, or the thread's cpuset excludes it.
pub fn pin(cpu: usize) -> Result<(), SyscallError> {
    allow_only(&[cpu])
}

/// Lets the calling thread run on these CPUs only: how a pin is undone.
pub fn allow_only(cpus: &[usize]) -> Result<(), SyscallError> {
    let failed = |error| SyscallError::new("sched_setaffinity", format!("CPUs {cpus:?}"), error);
    if cpus.iter().any(|&cpu| cpu >= CpuSet::MAX_CPU) {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).map_err(|error| failed(error.into()))
}

/// The CPU that the calling thread runs on now; unless it is pinned, the answer may be old when it arrives.
pub fn current() -> usize {
    sched_getcpu()
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The thread that takes over a CPU's softirqs when there are too many, found once so that reading it is cheap.
///
/// Growth of its CPU time during a slice means that packet work was moved out of the measured thread.
#[derive(Debug, Clone)]
pub struct Ksoftirqd {
    schedstat: String,
}

impl Ksoftirqd {
    /// Looks for `ksoftirqd/CPU` among the processes. `None` when the kernel shows no such thread (a container's
    /// `/proc`).
    pub fn find(cpu: usize) -> Option<Self> {
        let name = format!("ksoftirqd/{cpu}");
        let process = fs::read_dir("/proc").ok()?.flatten().find(|entry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        })?;
        Some(Self { schedstat: process.path().join("schedstat").to_str()?.to_owned() })
    }

    /// Its CPU time since boot in ns; `None` without `schedstat` (`CONFIG_SCHED_INFO`).
    pub fn cpu_ns(&self) -> Option<u64> {
        first_number(&fs::read_to_string(&self.schedstat).ok()?)
    }
}

/// The first field of `/proc/PID/schedstat` is the time on a CPU in ns (fs/proc/base.c, `proc_pid_schedstat`).
pub(crate) fn first_number(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Sets the calling thread's nice value, from -20 (first) to 19, and returns the one before.
///
/// # Errors
/// EACCES for a lower value than allowed (CAP_SYS_NICE, RLIMIT_NICE).
pub fn set_nice(nice: i32) -> Result<i32, SyscallError> {
    let failed = |error: rustix::io::Errno| {
        SyscallError::new("setpriority", format!("calling thread, nice {nice}"), error.into())
    };
    // Linux takes a thread's number here and changes that thread alone (kernel/sys.c, PRIO_PROCESS).
    let thread = Some(gettid());
    let before = getpriority_process(thread).map_err(failed)?;
    setpriority_process(thread, nice).map_err(failed)?;
    Ok(before)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_where_it_should() {
        let before = allowed().unwrap();
        for &cpu in &before {
            pin(cpu).unwrap();
            assert_eq!((current(), allowed().unwrap()), (cpu, vec![cpu]));
        }
        allow_only(&before).unwrap();
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        assert!(pin(CpuSet::MAX_CPU).is_err());
        assert!(pin(CpuSet::MAX_CPU - 1).is_err());
        assert!(Ksoftirqd::find(usize::MAX).is_none());
    }

    #[test]
    fn a_thread_may_always_step_back() {
        std::thread::spawn(|| {
            let before = set_nice(19).unwrap();
            assert!((-20..=19).contains(&before));
            assert_eq!(set_nice(19).unwrap(), 19);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn schedstat_line() {
        assert_eq!(first_number("27151403 1386010 512\n"), Some(27_151_403));
        assert_eq!(first_number(""), None);
    }
}
