//! The one error of this crate: which call, on what, and the kernel's answer.

use std::fmt;
use std::io;

/// A call to the kernel that failed.
///
/// Displays as `bind AF_XDP socket on veth0 queue 3: Device or resource busy (os error 16)`.
#[derive(Debug)]
pub struct SyscallError {
    /// What was being done, in words, beginning with the name of the call: `bind AF_XDP socket`.
    pub call: &'static str,
    /// What it was done on: a device, a file, a program. Empty where the call has no object.
    pub object: String,
    /// The kernel's answer.
    pub source: io::Error,
    /// What the kernel said beside the number: the verifier's log, a netlink extended acknowledgement.
    pub detail: Option<String>,
}

impl SyscallError {
    /// An error from the number that the kernel returned.
    pub fn new(call: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self { call, object: object.into(), source, detail: None }
    }

    /// An error from `errno` as the last call on this thread left it.
    pub fn last(call: &'static str, object: impl Into<String>) -> Self {
        Self::new(call, object, io::Error::last_os_error())
    }

    /// The same error with the kernel's own words added.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The kernel's error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for SyscallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if !self.object.is_empty() {
            write!(f, " on {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
        if let Some(detail) = &self.detail {
            write!(f, " ({})", detail.trim())?;
        }
        Ok(())
    }
}

impl std::error::Error for SyscallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
