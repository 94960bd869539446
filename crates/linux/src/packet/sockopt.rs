//! Socket options that no library has as safe calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option to the bytes of `value`, which must be the plain structure that the option takes.
pub(crate) fn set<T: Copy>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` is valid for its own size during the call; the kernel only reads it.
    let result = unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option that is `N` words of 32 bits. What an older kernel does not know stays 0; the second value
/// is how many bytes the kernel wrote.
pub(crate) fn words32<const N: usize>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<([u32; N], usize)> {
    let mut words = [0_u32; N];
    let mut len = size_of_val(&words) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `words` is valid for `len` bytes, and any bytes are valid integers.
    let result = unsafe { libc::getsockopt(fd, level, name, words.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 { Ok((words, len as usize)) } else { Err(io::Error::last_os_error()) }
}

/// As [`words32`], for words of 64 bits.
pub(crate) fn words64<const N: usize>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<([u64; N], usize)> {
    let mut words = [0_u64; N];
    let mut len = size_of_val(&words) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `words` is valid for `len` bytes, and any bytes are valid integers.
    let result = unsafe { libc::getsockopt(fd, level, name, words.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 { Ok((words, len as usize)) } else { Err(io::Error::last_os_error()) }
}
