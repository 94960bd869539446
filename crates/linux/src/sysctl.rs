//! Kernel settings below `/proc/sys`.
//!
//! What stands below `/proc/sys/net` belongs to the calling thread's network namespace (net/sysctl_net.c,
//! `net_ctl_header_lookup`, 6.18), so the calls are made on a thread that is in the right one.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::SyscallError;

/// The value of a setting, without the newline at its end.
///
/// `name` is written with dots (`net.ipv4.ip_forward`) or with slashes (`net/ipv4/conf/eth0.7/forwarding`);
/// with slashes a dot is part of a name, as in sysctl(8).
///
/// # Errors
/// ENOENT where this kernel or namespace has no such setting.
pub fn read(name: &str) -> Result<String, SyscallError> {
    let path = path(name)?;
    fs::read_to_string(&path)
        .map(|text| text.trim_end_matches('\n').to_owned())
        .map_err(|error| SyscallError::new("read setting", path.display().to_string(), error))
}

/// The value of a setting, `None` where it cannot be read.
pub fn read_opt(name: &str) -> Option<String> {
    read(name).ok()
}

/// Sets a setting. `name` as in [`read`].
///
/// # Errors
/// ENOENT (no such setting), EPERM and EACCES (not allowed), EINVAL (the kernel refuses the value).
pub fn write(name: &str, value: &str) -> Result<(), SyscallError> {
    let path = path(name)?;
    // No O_CREAT and no O_TRUNC: these are no ordinary files.
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|error| {
            SyscallError::new("write setting", path.display().to_string(), error)
                .with_detail(format!("value {value:?}"))
        })
}

/// Where a setting stands in the file system.
///
/// # Errors
/// EINVAL for a name that is empty or would leave `/proc/sys`.
pub fn path(name: &str) -> Result<PathBuf, SyscallError> {
    let slashed = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let sound = slashed.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !sound {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(SyscallError::new("name a setting", name, error)
            .with_detail("expected a name like net.ipv4.ip_forward or net/ipv4/ip_forward"));
    }
    Ok(PathBuf::from("/proc/sys").join(slashed))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_become_paths() {
        let of = |name| path(name).unwrap();
        assert_eq!(of("net.ipv4.ip_forward"), Path::new("/proc/sys/net/ipv4/ip_forward"));
        assert_eq!(of("net/ipv4/conf/a.7/forwarding"), Path::new("/proc/sys/net/ipv4/conf/a.7/forwarding"));
    }

    #[test]
    fn names_that_leave_the_tree_are_refused() {
        for name in ["", "..", "net/../../../etc/passwd", "/etc/passwd", "net//x", "net.ipv4."] {
            assert_eq!(path(name).unwrap_err().errno(), Some(libc::EINVAL), "{name}");
        }
    }

    #[test]
    fn a_missing_setting_names_its_path() {
        let error = read("net.core.no_such_setting").unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOENT));
        assert!(error.to_string().contains("/proc/sys/net/core/no_such_setting"), "{error}");
        assert!(write("net.core.no_such_setting", "1").is_err());
    }
}
