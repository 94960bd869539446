//! What is loaded: how a test finds out that nothing was left behind.

use std::collections::BTreeSet;
use std::io;

use super::sys::{self, Command, NextId};
use crate::SyscallError;

/// BPF objects of the whole system, whoever made them, by the numbers that `bpftool` and `/proc/PID/fdinfo` show too.
/// A number is not given again until the kernel has gone through all 2³¹ (kernel/bpf/syscall.c, `idr_alloc_cyclic`, 6.18).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectIds {
    /// Loaded programs (`prog_id`).
    pub programs: BTreeSet<u32>,
    /// Maps (`map_id`).
    pub maps: BTreeSet<u32>,
    /// Attachments held by a descriptor (`link_id`).
    pub links: BTreeSet<u32>,
}

/// How many BPF objects the whole system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Loaded programs.
    pub programs: usize,
    /// Maps.
    pub maps: usize,
    /// Attachments held by a descriptor.
    pub links: usize,
}

/// Lists the programs, maps and links of the system.
///
/// The kernel frees programs and maps a grace period after their last descriptor closed, so one may still be in the
/// list right after: wait with a deadline.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN in the initial user namespace.
pub fn object_ids() -> Result<ObjectIds, SyscallError> {
    Ok(ObjectIds {
        programs: ids(Command::ProgNextId, "programs")?,
        maps: ids(Command::MapNextId, "maps")?,
        links: ids(Command::LinkNextId, "links")?,
    })
}

/// Counts the programs, maps and links of the system; see [`object_ids`].
///
/// # Errors
/// As [`object_ids`].
pub fn count_objects() -> Result<ObjectCounts, SyscallError> {
    let ids = object_ids()?;
    Ok(ObjectCounts { programs: ids.programs.len(), maps: ids.maps.len(), links: ids.links.len() })
}

fn ids(command: Command, object: &'static str) -> Result<BTreeSet<u32>, SyscallError> {
    let mut attr = NextId::default();
    let mut found = BTreeSet::new();
    loop {
        // SAFETY: the structure belongs to these three commands and holds no address.
        match unsafe { sys::bpf(command, &mut attr) } {
            Ok(_) => found.insert(attr.next_id),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(SyscallError::new("list BPF objects", object, error)),
        };
        attr.start_id = attr.next_id;
    }
}
