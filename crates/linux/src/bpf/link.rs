//! Attaching programs. The attachment lasts as long as its descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::program::{AttachType, Program};
use super::sys::{self, Command, LinkCreate, RawTracepointOpen};
use crate::SyscallError;

/// How an XDP program runs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum XdpMode {
    /// In the stack, after a socket buffer was made: works on every device, and is not what XDP costs.
    Generic = 1 << 1,
    /// In the driver.
    Native = 1 << 2,
}

/// A program attached somewhere. Dropping it detaches the program.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches an XDP program to a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// EBUSY when the device has one already, EOPNOTSUPP when the driver has no native mode.
    pub fn attach_xdp(program: &Program, ifindex: u32, mode: XdpMode) -> Result<Self, SyscallError> {
        Self::create("attach XDP program", program, ifindex, AttachType::Xdp, mode as u32)
    }

    /// Attaches a program to a device's traffic-control ingress (TCX, Linux 6.6), after those already there.
    pub fn attach_tcx_ingress(program: &Program, ifindex: u32) -> Result<Self, SyscallError> {
        Self::create("attach TCX ingress program", program, ifindex, AttachType::TcxIngress, 0)
    }

    /// Attaches a raw tracepoint program to the tracepoint of this name, such as `kfree_skb`.
    ///
    /// It then runs for the whole system, not for one namespace: the program must filter.
    pub fn attach_raw_tracepoint(program: &Program, tracepoint: &str) -> Result<Self, SyscallError> {
        let name = CString::new(tracepoint).map_err(|_| {
            SyscallError::new("attach to tracepoint", tracepoint, io::ErrorKind::InvalidInput.into())
        })?;
        Self::open_tracepoint(program, name.as_ptr() as u64, tracepoint)
    }

    /// Attaches a [`super::ProgramKind::Tracing`] program to what it was loaded for.
    pub fn attach_tracing(program: &Program) -> Result<Self, SyscallError> {
        Self::open_tracepoint(program, 0, program.name())
    }

    fn create(
        call: &'static str,
        program: &Program,
        ifindex: u32,
        attach: AttachType,
        flags: u32,
    ) -> Result<Self, SyscallError> {
        let mut attr = LinkCreate {
            prog_fd: program.raw_fd(),
            target_ifindex: ifindex,
            attach_type: attach as u32,
            flags,
            ..LinkCreate::default()
        };
        // SAFETY: the structure belongs to the command and holds no address; the result is a descriptor.
        let fd = unsafe { sys::bpf_fd(Command::LinkCreate, &mut attr) }.map_err(|error| {
            SyscallError::new(call, format!("interface {ifindex} ({})", program.name()), error)
        })?;
        Ok(Self { fd })
    }

    /// `name` is 0 or the address of a string that ends with NUL and outlives the call.
    fn open_tracepoint(program: &Program, name: u64, object: &str) -> Result<Self, SyscallError> {
        let mut attr = RawTracepointOpen { name, prog_fd: program.raw_fd(), pad: 0 };
        // SAFETY: both callers pass 0 or a string's address as said above; the result is a descriptor.
        let fd = unsafe { sys::bpf_fd(Command::RawTracepointOpen, &mut attr) }
            .map_err(|error| SyscallError::new("attach to tracepoint", object, error))?;
        Ok(Self { fd })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
