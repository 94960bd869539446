//! Waiting for a queue that is still taken.

use std::time::{Duration, Instant};

use crate::SyscallError;

/// Calls `open` again as long as it answers EBUSY, for a time at most: the kernel frees a queue, and the device's XDP hook with it, some
/// time after the socket before was closed (a work item; `xp_put_pool`, net/xdp/xsk_buff_pool.c, 6.18).
///
/// # Errors
/// That of the last call.
pub fn when_free<T>(
    patience: Duration,
    mut open: impl FnMut() -> Result<T, SyscallError>,
) -> Result<T, SyscallError> {
    const PAUSE: Duration = Duration::from_millis(1);
    let start = Instant::now();
    loop {
        match open() {
            Err(error) if error.errno() == Some(libc::EBUSY) && start.elapsed() < patience => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
