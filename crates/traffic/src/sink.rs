//! Where frames that a BPF program ended are counted.

use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::bpf::Map;

/// The map of a program made by [`crate::programs::counter`], and what stands in it.
#[derive(Debug)]
pub struct ProgramSink {
    map: Map,
}

impl ProgramSink {
    /// Makes the map, with nothing counted yet.
    pub fn new() -> Result<Self, SyscallError> {
        Ok(Self { map: Map::percpu_array(8, 1)? })
    }

    /// The map's descriptor, for the program.
    pub fn map_fd(&self) -> i32 {
        self.map.fd()
    }

    /// Frames that the program counted, on all CPUs, since the map was made.
    pub fn received(&self) -> Result<u64, SyscallError> {
        self.map.percpu_sum(0)
    }

    /// Waits until `expected` frames have been counted in all, or `timeout` is over; how many were.
    pub fn wait_until(&self, expected: u64, timeout: Duration) -> Result<u64, SyscallError> {
        let deadline = Instant::now() + timeout;
        loop {
            let received = self.received()?;
            if received >= expected || Instant::now() >= deadline {
                return Ok(received);
            }
            std::thread::yield_now();
        }
    }
}
