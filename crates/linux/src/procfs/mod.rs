//! Counters and facts that the kernel gives as text below `/proc`.
//!
//! Reading and understanding are apart: each file has a parser over `&str`, tried on recorded text and on any
//! text at all. A figure that a kernel does not print is not there; it is never 0.
//!
//! `/proc/net` is a link to `/proc/self/net`, and that shows the namespace of the process's *first* thread.
//! These functions read `/proc/thread-self/net`, which is the calling thread's.

mod host;
mod net;
mod thread;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::SyscallError;

pub use host::{CpuTimes, cpu_times, cpuinfo_model, load_average};
pub use net::{Counters, SoftnetCpu, paired_counters, snmp6_counters, softnet_stat};
pub use thread::{Usage, process_usage, thread_usage};

/// The whole text of a file below `/proc`, such as `/proc/stat`.
///
/// # Errors
/// ENOENT where the kernel has no such file, EACCES.
pub fn read(path: &str) -> Result<String, SyscallError> {
    fs::read_to_string(path).map_err(|error| SyscallError::new("read", path, error))
}

/// The whole text of a file of the calling thread's namespace: `snmp`, `snmp6`, `netstat`, `softnet_stat`,
/// `dev`.
///
/// # Errors
/// As [`read`].
pub fn read_net(name: &str) -> Result<String, SyscallError> {
    read(&format!("{NET}/{name}"))
}

const NET: &str = "/proc/thread-self/net";

/// A file of one namespace, held open: read again at will, from any thread, at a fraction of the cost of
/// opening it. It keeps its namespace alive.
#[derive(Debug)]
pub struct NetFile {
    file: File,
    path: String,
    buffer: Vec<u8>,
}

impl NetFile {
    /// Opens `name` (as in [`read_net`]) of the calling thread's namespace.
    ///
    /// # Errors
    /// ENOENT where the kernel has no such file.
    pub fn open(name: &str) -> Result<Self, SyscallError> {
        let path = format!("{NET}/{name}");
        let file = File::open(&path).map_err(|error| SyscallError::new("open", &path, error))?;
        Ok(Self { file, path, buffer: vec![0; 16 * 1024] })
    }

    /// The text as it is now.
    ///
    /// # Errors
    /// Passes on what `pread` says; EILSEQ for what is not text.
    pub fn read(&mut self) -> Result<&str, SyscallError> {
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                self.buffer.resize(2 * length, 0);
            }
            match self.file.read_at(&mut self.buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(bytes) => length += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SyscallError::new("read", &self.path, error)),
            }
        }
        std::str::from_utf8(&self.buffer[..length]).map_err(|_| {
            SyscallError::new("read", &self.path, std::io::Error::from_raw_os_error(libc::EILSEQ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_read_again_whole() {
        let mut file = NetFile::open("snmp").unwrap();
        let first = paired_counters(file.read().unwrap());
        let second = paired_counters(file.read().unwrap());
        assert!(first.contains_key("Ip.InReceives"));
        assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
        assert_eq!(first.len(), paired_counters(&read_net("snmp").unwrap()).len());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_net("no_such_file").unwrap_err();
        assert!(error.to_string().contains("/proc/thread-self/net/no_such_file"), "{error}");
    }
}
