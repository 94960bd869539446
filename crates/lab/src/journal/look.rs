//! What is borrowed, for those who may only look.

use std::path::{Path, PathBuf};

use super::files::Directory;
use super::{DEFAULT_DIRECTORY, DIRECTORY_VARIABLE};

/// Settings of the host that are not as they were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Borrowed {
    /// Each setting, and what it was before.
    pub settings: Vec<(PathBuf, String)>,
    /// Processes that hold some of them and that there still are, as far as this process can see: those of another PID namespace
    /// it cannot.
    pub living: Vec<u32>,
}

impl Borrowed {
    /// Whether nobody is there any more to put them back.
    pub fn is_left_behind(&self) -> bool {
        !self.settings.is_empty() && self.living.is_empty()
    }
}

/// What is borrowed now, without changing anything. Nothing where there is no journal, or none that this user may read.
pub fn look() -> Borrowed {
    let directory = std::env::var_os(DIRECTORY_VARIABLE);
    look_at(directory.as_deref().map_or(Path::new(DEFAULT_DIRECTORY), Path::new))
}

/// The same of the journal in a directory.
pub(super) fn look_at(root: &Path) -> Borrowed {
    let directory = Directory::at(root);
    let Ok(originals) = directory.read_originals() else { return Borrowed::default() };
    let is_there = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
    let text = |value: String| value.trim_end().to_owned();
    Borrowed {
        settings: originals.into_iter().map(|(path, value)| (path, text(value))).collect(),
        living: directory.holder_pids().into_iter().filter(is_there).collect(),
    }
}
