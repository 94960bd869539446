//! Child processes and what they write.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::SyscallError;

/// A file in memory, for what a child writes: unlike a pipe it is at its end when the child is, whoever else holds it.
pub fn memory_file(name: &str) -> Result<File, SyscallError> {
    memfd_create(name, MemfdFlags::CLOEXEC)
        .map(File::from)
        .map_err(|error| SyscallError::new("memfd_create", name, error.into()))
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
