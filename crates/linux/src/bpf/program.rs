//! Loading programs.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::sys::{self, Command, ProgLoad};
use crate::SyscallError;

/// Room for the verifier's log. It grows with the program; the end, where the reason stands, is what is kept.
const LOG_BYTES: usize = 1 << 20;
/// How often loading is tried again after a signal.
const RETRIES: u32 = 5;
/// How much of the log's end goes into an error.
const LOG_BYTES_SHOWN: usize = 4096;

/// What a program is for, `enum bpf_prog_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Runs for each packet at a device's traffic-control hook.
    SchedCls = 3,
    /// Runs for each frame as a driver receives it.
    Xdp = 6,
    /// Runs at a tracepoint, with its raw arguments.
    RawTracepoint = 17,
    /// Runs at a typed tracepoint or at the entry or exit of a kernel function.
    Tracing = 26,
}

/// Where a program may be attached, where the kind alone does not say it (`enum bpf_attach_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AttachType {
    /// A typed tracepoint (`BPF_TRACE_RAW_TP`).
    TraceRawTracepoint = 23,
    /// The entry of a kernel function.
    TraceFunctionEntry = 24,
    /// The exit of a kernel function.
    TraceFunctionExit = 25,
    /// A device's XDP hook.
    Xdp = 37,
    /// A device's TCX ingress hook.
    TcxIngress = 46,
}

/// All that loading a program needs.
#[derive(Debug, Clone)]
pub struct ProgramSpec<'a> {
    /// What it is for.
    pub kind: ProgramKind,
    /// Its name in the kernel's lists; cut to 15 bytes.
    pub name: &'a str,
    /// The encoded instructions, `struct bpf_insn`.
    pub insns: &'a [[u8; 8]],
    /// Where it will be attached; `None` where the kind says it.
    pub expected_attach: Option<AttachType>,
    /// For [`ProgramKind::Tracing`]: the BTF id of the function or of the tracepoint's type
    /// ([`crate::btf::Btf`]).
    pub attach_btf_id: Option<u32>,
    /// For XDP: it copes with frames in several buffers (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    pub has_frags: bool,
    /// Its licence as the kernel asks for it; many helpers are refused to others than GPL-compatible ones.
    pub license: &'a CStr,
}

impl<'a> ProgramSpec<'a> {
    /// A program of this kind with nothing special about it, licence `Dual MIT/GPL`.
    pub fn new(kind: ProgramKind, name: &'a str, insns: &'a [[u8; 8]]) -> Self {
        Self {
            kind,
            name,
            insns,
            expected_attach: None,
            attach_btf_id: None,
            has_frags: false,
            license: c"Dual MIT/GPL",
        }
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    kind: ProgramKind,
    name: String,
}

impl Program {
    /// Verifies and loads a program.
    ///
    /// # Errors
    /// When the verifier refuses it, the end of its log is in [`SyscallError::detail`]. The log is asked for in
    /// a second attempt only, since writing it makes loading slower.
    pub fn load(spec: &ProgramSpec<'_>) -> Result<Self, SyscallError> {
        // A signal interrupts the verifier (EAGAIN; bpf_check, kernel/bpf/verifier.c, 6.18).
        let mut first = try_load(spec, &mut []);
        for _ in 0..RETRIES {
            match &first {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => first = try_load(spec, &mut []),
                _ => break,
            }
        }
        let loaded = first.or_else(|first| {
            let mut log = vec![0; LOG_BYTES];
            try_load(spec, &mut log).map_err(|_| {
                let error = SyscallError::new("load BPF program", spec.name, first);
                match log_end(&log) {
                    Some(text) => error.with_detail(text),
                    None => error,
                }
            })
        });
        Ok(Self { fd: loaded?, kind: spec.kind, name: spec.name.to_owned() })
    }

    /// What the program is for.
    pub fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor's number, unsigned as bpf(2) takes it.
    pub(super) fn raw_fd(&self) -> u32 {
        self.fd.as_raw_fd().cast_unsigned()
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn try_load(spec: &ProgramSpec<'_>, log: &mut [u8]) -> std::io::Result<OwnedFd> {
    const HAS_FRAGS: u32 = 1 << 5;
    let mut attr = ProgLoad {
        prog_type: spec.kind as u32,
        insn_count: u32::try_from(spec.insns.len()).unwrap_or(u32::MAX),
        insns: sys::address(spec.insns),
        license: spec.license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log_buf: if log.is_empty() { 0 } else { sys::address_mut(log) },
        flags: if spec.has_frags { HAS_FRAGS } else { 0 },
        name: sys::object_name(spec.name),
        expected_attach_type: spec.expected_attach.map_or(0, |attach| attach as u32),
        attach_btf_id: spec.attach_btf_id.unwrap_or(0),
        ..ProgLoad::default()
    };
    // SAFETY: instructions and log have the stated lengths, the licence ends with NUL; all outlive the call.
    unsafe { sys::bpf_fd(Command::ProgLoad, &mut attr) }
}

/// The last lines of a log that ends at its first NUL; `None` when it is empty.
fn log_end(log: &[u8]) -> Option<String> {
    let written = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let start = written.len().saturating_sub(LOG_BYTES_SHOWN);
    let text = String::from_utf8_lossy(&written[start..]);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let mut log = vec![b'x'; 10_000];
        log.extend_from_slice(b"\nreason\n\0garbage");
        let text = log_end(&log).unwrap_or_default();
        assert!(text.ends_with("reason") && text.len() <= LOG_BYTES_SHOWN);
        assert_eq!(log_end(&[0; 16]), None);
        assert_eq!(log_end(&[]), None);
    }
}
