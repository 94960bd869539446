//! Counting what is loaded: how a test finds out that nothing was left behind.

use std::io;

use super::sys::{self, Command, NextId};
use crate::SyscallError;

/// BPF objects of the whole system, whoever made them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Loaded programs.
    pub programs: usize,
    /// Maps.
    pub maps: usize,
    /// Attachments held by a descriptor.
    pub links: usize,
}

/// Counts the programs, maps and links of the system (needs CAP_SYS_ADMIN).
///
/// The kernel frees programs and maps a grace period after their last descriptor closed, so a count right
/// after may be too high: wait for the expected one with a deadline.
pub fn count_objects() -> Result<ObjectCounts, SyscallError> {
    Ok(ObjectCounts {
        programs: count(Command::ProgNextId, "programs")?,
        maps: count(Command::MapNextId, "maps")?,
        links: count(Command::LinkNextId, "links")?,
    })
}

fn count(command: Command, object: &'static str) -> Result<usize, SyscallError> {
    let mut attr = NextId::default();
    let mut count = 0;
    loop {
        // SAFETY: the structure belongs to these three commands and holds no address.
        match unsafe { sys::bpf(command, &mut attr) } {
            Ok(_) => count += 1,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(SyscallError::new("list BPF objects", object, error)),
        }
        attr.start_id = attr.next_id;
    }
}
