//! A file that a result goes to, opened before the work, so that a wrong name is not found out after it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::write_stdout;
use crate::device::is_same_file;

/// An open file, or standard output for `-`. What is in it stays until it is written; a file that was made for it and
/// never written goes again.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// None for standard output.
    file: Option<File>,
    made: bool,
}

impl OutputFile {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// Where it can be neither opened for writing nor made.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (mut file, mut made) = (None, false);
        if path.as_os_str() != "-" {
            made = !path.exists();
            let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            file = Some(
                opened
                    .with_context(|| format!("open {} for the result; name another file", path.display()))?,
            );
        }
        Ok(Self { path: path.to_owned(), file, made })
    }

    /// Writes the whole content, in place of what was there.
    ///
    /// # Errors
    /// Where it cannot be written, or does not reach the disk.
    pub(crate) fn write(mut self, text: &str) -> Result<()> {
        let Some(file) = &mut self.file else { return write_stdout(text) };
        let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_regular { file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
        let done = if is_regular { written.and_then(|()| file.sync_all()) } else { written };
        done.with_context(|| format!("write {}", self.path.display()))?;
        self.made = false;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.made {
            drop(fs::remove_file(&self.path)); // empty or half written; the error is on its way already
        }
    }
}

/// Refuses two results that would be written to one file, each over the other. Devices are no files in this sense, but standard
/// output is.
///
/// # Errors
/// Where two of them are one; which.
pub(crate) fn each_its_own_file(named: &[(&str, Option<&Path>)]) -> Result<()> {
    let given: Vec<_> = named.iter().filter_map(|(flag, path)| path.map(|path| (flag, path))).collect();
    for (at, (flag, path)) in given.iter().enumerate() {
        let is_device = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        if let Some((other, _)) =
            given[..at].iter().find(|(_, before)| !is_device && is_same_file(before, path))
        {
            bail!(
                "{other} and {flag} both name {}, and one would be lost; name another file",
                path.display()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_results_have_two_files() {
        let path = |name: &'static str| Some(Path::new(name));
        for (json, svg, fits) in [
            (path("/tmp/perpacket-a"), path("/tmp/perpacket-b"), true),
            (path("/tmp/perpacket-a"), path("/tmp/./perpacket-a"), false),
            (path("-"), path("-"), false),
            (path("/dev/null"), path("/dev/null"), true),
            (path("/tmp/perpacket-a"), None, true),
        ] {
            let result = each_its_own_file(&[("--json", json), ("--svg", svg)]);
            assert_eq!(result.is_ok(), fits, "{json:?} {svg:?}");
            assert!(result.err().is_none_or(|error| error.to_string().contains("--json and --svg")));
        }
    }

    #[test]
    fn a_file_that_is_not_written_is_as_it_was() {
        let folder = std::env::temp_dir().join(format!("perpacket-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (new, old) = (folder.join("new"), folder.join("old"));
        fs::write(&old, "a longer text").unwrap();
        drop(OutputFile::open(&new).unwrap());
        drop(OutputFile::open(&old).unwrap());
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "a longer text");
        for path in [&new, &old] {
            OutputFile::open(path).unwrap().write("text").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "text");
        }
        let error = OutputFile::open(&folder.join("missing/x")).unwrap_err();
        assert!(error.to_string().contains("missing/x"), "{error}");
        let error = OutputFile::open(Path::new("/dev/full")).unwrap().write("text").unwrap_err();
        assert!(error.to_string().contains("write /dev/full"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
