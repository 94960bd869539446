//! TAP devices: an Ethernet device of the kernel whose other end is a file (/dev/net/tun; drivers/net/tun.c, 6.18).
//!
//! One system call a frame, in either direction: there is no ring. The device is gone when its last queue is closed.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::SyscallError;
use crate::offload::{self, Offload};

const PATH: &str = "/dev/net/tun";

/// How a device is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TapSpec {
    /// Several queues: each further [`Tap::open`] of the same name is one more (`IFF_MULTI_QUEUE`).
    pub multi_queue: bool,
    /// The stack leaves checksums, and the cutting of TCP streams, to the reader (`TUNSETOFFLOAD`): fewer and longer frames.
    /// Otherwise the kernel does it before.
    pub offloads: bool,
}

/// One queue of a TAP device.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Makes a device in the calling thread's network namespace, or opens one that is there: without a queue in use, or
    /// one more of several. The kernel fills in a number for `%d` in the name. A new device is down.
    ///
    /// # Errors
    /// ENOENT without `CONFIG_TUN`, EPERM without CAP_NET_ADMIN, EBUSY when the device has a user and not several queues,
    /// EINVAL for a name that is no device's or that belongs to another kind of device.
    pub fn open(name: &str, spec: TapSpec) -> Result<Self, SyscallError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(PATH)
            .map_err(|error| SyscallError::new("open", PATH, error))?;
        let failed = |call, error| SyscallError::new(call, format!("TAP device {name}"), error);
        let refused = || failed("ioctl TUNSETIFF", io::ErrorKind::InvalidInput.into());
        // SAFETY: the structure consists of integers and a union of such and a pointer; all zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(refused());
        }
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte.cast_signed();
        }
        let queues = if spec.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the request reads and writes one `ifreq`, which is valid during the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if made < 0 {
            return Err(failed("ioctl TUNSETIFF", io::Error::last_os_error()));
        }
        let end = request.ifr_name.iter().position(|&byte| byte == 0).unwrap_or(request.ifr_name.len());
        let bytes: Vec<u8> = request.ifr_name[..end].iter().map(|byte| byte.cast_unsigned()).collect();
        let tap = Self { file, name: String::from_utf8_lossy(&bytes).into_owned() };
        tap.set_offloads(spec.offloads)?;
        Ok(tap)
    }

    fn set_offloads(&self, on: bool) -> Result<(), SyscallError> {
        let wanted = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let features = libc::c_ulong::from(if on { wanted } else { 0 });
        // SAFETY: the request takes plain integers.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD, features) };
        if done < 0 {
            return Err(self.failed("ioctl TUNSETOFFLOAD", io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next frame that the stack sent into `frame`, if there is one: its bytes without FCS, and what was left undone.
    /// What is longer is cut, and counted in no place: with offloads, frames may have 64 KiB and a header.
    ///
    /// # Errors
    /// EBADFD when the device was deleted.
    pub fn receive(&self, frame: &mut [u8]) -> Result<Option<(usize, Offload)>, SyscallError> {
        let mut header = [0; offload::HEADER_BYTES];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
        match (&self.file).read_vectored(&mut parts) {
            Ok(bytes) => {
                let frame_bytes = bytes.saturating_sub(offload::HEADER_BYTES);
                Ok(Some((frame_bytes, Offload::read(&header))))
            }
            Err(error) if is_for_now(&error) => Ok(None),
            Err(error) => Err(self.failed("read from", error)),
        }
    }

    /// Hands a frame to the stack; whether it was taken. Between the parts, bytes are not copied before.
    ///
    /// # Errors
    /// EBADFD when the device was deleted; EIO when it is down; EINVAL for less than an Ethernet header.
    pub fn send<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Result<bool, SyscallError> {
        /// A packet of more pieces is rare, and sent as it would be received: not at all.
        const PARTS_MAX: usize = 20;
        const NOTHING_LEFT_TO_DO: [u8; offload::HEADER_BYTES] = [0; offload::HEADER_BYTES];
        let mut vector = [io::IoSlice::new(&NOTHING_LEFT_TO_DO); PARTS_MAX];
        let mut used = 1;
        for part in parts {
            let Some(place) = vector.get_mut(used) else {
                return Err(self.failed("write to", io::Error::from_raw_os_error(libc::EMSGSIZE)));
            };
            *place = io::IoSlice::new(part);
            used += 1;
        }
        match (&self.file).write_vectored(&vector[..used]) {
            Ok(_) => Ok(true),
            Err(error) if is_for_now(&error) || error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(error) => Err(self.failed("write to", error)),
        }
    }

    /// Waits until there is a frame, or the time is over; whether there is one, or an error to be told by
    /// [`Self::receive`].
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool, SyscallError> {
        let time = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], time.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.failed("poll", error.into())),
        }
    }

    fn failed(&self, call: &'static str, error: io::Error) -> SyscallError {
        let down = error.raw_os_error() == Some(libc::EIO);
        let error = SyscallError::new(call, format!("TAP device {}", self.name), error);
        if down { error.with_detail("the device is down: set it up") } else { error }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
