//! The threads of the kernel that poll a device in threaded NAPI mode.

use std::fs;
use std::path::PathBuf;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::SyscallError;

/// A thread `napi/DEVICE-ID` (`napi_kthread_create`, net/core/dev.c, 6.18).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NapiThread {
    /// Its process number.
    pub pid: u32,
    /// The number of what it polls, unique on the whole host.
    pub napi_id: u32,
}

impl NapiThread {
    /// The threads of all devices of this name, in whatever namespace they are: the name of a thread does not tell that. Who wants
    /// those of one device compares what was there before its `threaded` was switched on. In the order of their numbers.
    pub fn of_devices_named(device: &str) -> Vec<Self> {
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let mut threads: Vec<Self> = processes
            .flatten()
            .filter_map(|process| {
                let pid = process.file_name().to_str()?.parse().ok()?;
                let name = fs::read_to_string(process.path().join("comm")).ok()?;
                Some(Self { pid, napi_id: napi_id(name.trim_end(), device)? })
            })
            .collect();
        threads.sort_by_key(|thread| thread.napi_id);
        threads
    }

    /// Its CPU time so far in ns. None without `schedstat` (CONFIG_SCHED_INFO), and when it is gone.
    pub fn cpu_ns(&self) -> Option<u64> {
        let path = PathBuf::from(format!("/proc/{}/schedstat", self.pid));
        crate::cpu::first_number(&fs::read_to_string(path).ok()?)
    }

    /// Keeps it on one CPU.
    ///
    /// # Errors
    /// ESRCH: it is gone. EINVAL: no such CPU is online. EPERM without CAP_SYS_NICE on the host.
    pub fn pin(&self, cpu: usize) -> Result<(), SyscallError> {
        let failed = |error| {
            SyscallError::new("sched_setaffinity", format!("NAPI thread {} to CPU {cpu}", self.pid), error)
        };
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let (Some(pid), true) = (pid, cpu < CpuSet::MAX_CPU) else {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        };
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(Some(pid), &set).map_err(|error| failed(error.into()))
    }
}

/// The number in the name of a thread that polls a device of this name. The whole name since Linux 5.17 (kthread.c,
/// `get_kthread_comm`); before, 15 letters of it, in which the number may be missing.
fn napi_id(thread: &str, device: &str) -> Option<u32> {
    let number = thread.strip_prefix("napi/")?.strip_prefix(device)?.strip_prefix('-')?;
    // No sign and no space, which parse() would take.
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_threads_of_the_device_are_its_own() {
        assert_eq!(napi_id("napi/veth0-258", "veth0"), Some(258));
        assert_eq!(napi_id("napi/lan0-8193", "lan0"), Some(8193));
        for (thread, device) in [
            ("napi/veth01-2", "veth0"),
            ("napi/veth0-1-2", "veth0"),
            ("napi/veth0-", "veth0"),
            ("veth0-2", "veth0"),
        ] {
            assert_eq!(napi_id(thread, device), None, "{thread}");
        }
        assert_eq!(napi_id("napi/veth0-1-2", "veth0-1"), Some(2));
    }

    #[test]
    fn a_thread_that_is_gone_is_an_error() {
        let gone = NapiThread { pid: i32::MAX as u32, napi_id: 0 };
        assert_eq!((gone.pin(0).unwrap_err().errno(), gone.cpu_ns()), (Some(libc::ESRCH), None));
        assert!(gone.pin(usize::MAX).is_err());
    }
}
