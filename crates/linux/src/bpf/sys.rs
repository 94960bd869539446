//! The system call bpf(2) and the parts of `union bpf_attr` that this crate fills
//! (include/uapi/linux/bpf.h, 6.18).
//!
//! Each part is a `repr(C)` structure without implicit padding, as long as this crate needs it: the kernel
//! takes any length, and reads what is missing as zero (kernel/bpf/syscall.c, `__sys_bpf`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Commands of bpf(2), `enum bpf_cmd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapNextKey = 4,
    ProgLoad = 5,
    ProgTestRun = 10,
    ProgNextId = 11,
    MapNextId = 12,
    RawTracepointOpen = 17,
    LinkCreate = 28,
    LinkNextId = 31,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct MapCreate {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
    pub(super) inner_map_fd: u32,
    pub(super) numa_node: u32,
    pub(super) name: [u8; 16],
    pub(super) ifindex: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct MapElement {
    pub(super) map_fd: u32,
    pub(super) pad: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct ProgLoad {
    pub(super) prog_type: u32,
    pub(super) insn_count: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) flags: u32,
    pub(super) name: [u8; 16],
    pub(super) ifindex: u32,
    pub(super) expected_attach_type: u32,
    pub(super) btf_fd: u32,
    pub(super) func_info_rec_size: u32,
    pub(super) func_info: u64,
    pub(super) func_info_count: u32,
    pub(super) line_info_rec_size: u32,
    pub(super) line_info: u64,
    pub(super) line_info_count: u32,
    pub(super) attach_btf_id: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct TestRun {
    pub(super) prog_fd: u32,
    pub(super) retval: u32,
    pub(super) data_size_in: u32,
    pub(super) data_size_out: u32,
    pub(super) data_in: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration: u32,
    pub(super) ctx_size_in: u32,
    pub(super) ctx_size_out: u32,
    pub(super) ctx_in: u64,
    pub(super) ctx_out: u64,
    pub(super) flags: u32,
    pub(super) cpu: u32,
    pub(super) batch_size: u32,
    pub(super) pad: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct NextId {
    pub(super) start_id: u32,
    pub(super) next_id: u32,
    pub(super) open_flags: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct RawTracepointOpen {
    pub(super) name: u64,
    pub(super) prog_fd: u32,
    pub(super) pad: u32,
}

/// `link_create` with the part of its union that TCX uses; all of it zero means "no special position".
#[repr(C)]
#[derive(Default)]
pub(super) struct LinkCreate {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) tcx_relative_fd: u32,
    pub(super) pad: u32,
    pub(super) tcx_expected_revision: u64,
}

/// Calls bpf(2) and returns its non-negative result.
///
/// # Safety
/// `attr` must be the structure that belongs to `command`, and every address in it must point to memory of the
/// stated length that the kernel may read (inputs) or write (outputs) during the call.
pub(super) unsafe fn bpf<T>(command: Command, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is valid for its size; the caller vouches for the addresses inside.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as u32, std::ptr::from_mut(attr), size_of::<T>() as u32)
    };
    i32::try_from(result).ok().filter(|&result| result >= 0).ok_or_else(io::Error::last_os_error)
}

/// As [`bpf`], for commands whose result is a new descriptor.
///
/// # Safety
/// As for [`bpf`]; and `command` must be one that returns a new descriptor.
pub(super) unsafe fn bpf_fd<T>(command: Command, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: passed on to the caller.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec, as all of bpf's), nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of a slice as bpf(2) wants it.
pub(super) fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

/// As [`address`], for memory that the kernel writes.
pub(super) fn address_mut<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

/// A name as the kernel takes it: at most 15 bytes of letters, digits, `_` and `.`
/// (kernel/bpf/syscall.c, `bpf_obj_name_cpy`); other characters become `_`.
pub(super) fn object_name(name: &str) -> [u8; 16] {
    let mut fixed = [0; 16];
    for (to, from) in fixed.iter_mut().take(15).zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || from == b'.' { from } else { b'_' };
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(&object_name("raw-drop 64"), b"raw_drop_64\0\0\0\0\0");
        assert_eq!(&object_name("a_name_longer_than_fifteen"), b"a_name_longer_t\0");
    }

    #[test]
    fn structures_have_the_kernels_layout() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(MapCreate, ifindex), 44);
        assert_eq!(offset_of!(MapElement, key), 8);
        assert_eq!(offset_of!(ProgLoad, name), 48);
        assert_eq!(offset_of!(ProgLoad, expected_attach_type), 68);
        assert_eq!(offset_of!(ProgLoad, attach_btf_id), 108);
        assert_eq!(offset_of!(TestRun, ctx_in), 48);
        assert_eq!(offset_of!(TestRun, batch_size), 72);
        assert_eq!(offset_of!(LinkCreate, tcx_expected_revision), 24);
        assert_eq!((size_of::<ProgLoad>(), size_of::<TestRun>()), (112, 80));
    }
}
