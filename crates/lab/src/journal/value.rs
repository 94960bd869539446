//! The files that are settings: how they are read and written, and in which order they are put back.

use std::fs;
use std::path::{Path, PathBuf};

use linux::cpumask::CpuMask;

use super::JournalError;

/// Which CPUs limit flows. Writing it allocates a table for each CPU that has none, of the length that is set at that moment,
/// and leaves the tables that are there (`flow_limit_cpu_sysctl`, net/core/sysctl_net_core.c, 6.18). So it is written after the
/// length, and emptied first: then every table has the length that is set.
const FLOW_LIMIT_CPUS: &str = "flow_limit_cpu_bitmap";

pub(super) fn read(path: &Path) -> Result<String, JournalError> {
    fs::read_to_string(path).map_err(|source| JournalError::File {
        doing: "read setting",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn write(path: &Path, value: &str) -> Result<(), JournalError> {
    // Not created if it is missing; cut off first, which the files of the kernel ignore.
    let write = |value: &str| {
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        std::io::Write::write_all(&mut file, value.as_bytes())
    };
    texts(path, value).into_iter().try_for_each(write).map_err(|source| JournalError::File {
        doing: "write setting",
        path: path.to_owned(),
        source,
    })
}

/// What is written, one after the other, so that the setting has the value.
fn texts<'a>(path: &Path, value: &'a str) -> Vec<&'a str> {
    if is_made_anew(path, value) { vec!["0", value] } else { vec![value] }
}

/// Whether the setting is more than its text: made of another setting too, when it is written.
pub(super) fn is_made_anew(path: &Path, value: &str) -> bool {
    is_flow_limit(path) && !value.parse::<CpuMask>().is_ok_and(|mask| mask.is_empty())
}

/// Whether two texts are the same value: the kernel puts zeros in front of masks. Numbers that are the same in decimal are so in
/// hexadecimal.
pub(super) fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.trim_end(), other.trim_end());
    one == other || one.parse::<CpuMask>().is_ok_and(|one| Ok(one) == other.parse())
}

/// Settings in the order in which they are put back: what is made of others after them.
pub(super) fn in_order(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let mut paths: Vec<&PathBuf> = paths.iter().collect();
    paths.sort_by_key(|path| (is_flow_limit(path), *path));
    paths
}

/// Whether the file is another one in each network namespace (net/sysctl_net.c, 6.18).
pub(super) fn is_of_a_namespace(path: &Path) -> bool {
    path.starts_with("/proc/sys/net")
}

fn is_flow_limit(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == FLOW_LIMIT_CPUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_limit_is_made_anew_after_its_length() {
        let path = |name: &str| Path::new("/proc/sys/net/core").join(name);
        let paths = ["flow_limit_cpu_bitmap", "flow_limit_table_len", "netdev_budget"].map(path).to_vec();
        let names: Vec<_> = in_order(&paths).into_iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["flow_limit_table_len", "netdev_budget", "flow_limit_cpu_bitmap"]);
        assert_eq!(texts(&paths[0], "00000000,00000003\n"), ["0", "00000000,00000003\n"]);
        assert_eq!(texts(&paths[0], "0\n"), ["0\n"], "switching off frees all tables");
        assert_eq!(texts(&paths[1], "4096\n"), ["4096\n"]);
    }

    #[test]
    fn values_are_compared_as_values() {
        assert!(same("1\n", "1") && same("00000000,00000003\n", "3") && same("text", "text\n"));
        assert!(!same("1", "2") && !same("10", "1") && !same("text", "other") && !same("", "0"));
    }
}
