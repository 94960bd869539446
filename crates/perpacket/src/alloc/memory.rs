//! What is resident for what is in use. Memory that an allocator has taken it seldom gives back, so that every figure is of a
//! process of its own.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::kind::{Allocator, Threads, build};
use super::load::{Load, Sizes};
use crate::scenario::Allocate;

/// The memory of one allocator in the middle of its work: a burst is alive, and what is held long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Bytes of the buffers that are alive.
    pub(crate) in_use_bytes: u64,
    /// By how much the memory of the process has grown; none where the kernel does not tell.
    pub(crate) resident_bytes: Option<u64>,
    /// What the allocator keeps by its own account; none where it has none.
    pub(crate) pinned_bytes: Option<u64>,
}

/// Buffers that are taken before memory is looked at, at least.
const WARM_UP: u64 = 1 << 17;

/// Works for a while in this process, and looks.
pub(crate) fn here(allocator: Allocator, sizes: &Sizes, scenario: &Allocate) -> Result<Memory> {
    let s = scenario;
    let load = Load::new(sizes, s.live, s.hold, s.hold_for, s.measurement.seed);
    // Twice, so that what is held has come and gone.
    let buffers = if s.hold > 0.0 { WARM_UP.max(2 * s.hold_for) } else { WARM_UP };
    let before = resident_bytes();
    let mut bench = build(allocator, Threads::One, &load).context("it is not built in")?;
    bench.slice(buffers.div_ceil(s.live as u64), None)?;
    let (in_use, pinned) = bench.hold_burst()?;
    let grown = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    bench.close();
    Ok(Memory {
        in_use_bytes: in_use as u64,
        resident_bytes: grown,
        pinned_bytes: pinned.map(|bytes| bytes as u64),
    })
}

/// The same in a process of its own.
pub(crate) fn of(allocator: Allocator, sizes: &Sizes, scenario: &Allocate) -> Result<Memory> {
    let program = std::env::current_exe().context("find this program, to run it once more")?;
    let s = scenario;
    let mut command = Command::new(program);
    command.args(["alloc", allocator.name(), "--memory-only", "--pattern", &sizes.to_string()]);
    command.args(["--live", &s.live.to_string(), "--seed", &s.measurement.seed.to_string()]);
    if s.hold > 0.0 {
        command.args(["--hold", &format!("{}%", s.hold * 100.0), "--hold-for", &s.hold_for.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output().context("run this program once more")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "look at the memory of {allocator}: {}", said.trim());
    serde_json::from_slice(&output.stdout).context("read what the second process has found")
}

/// The memory of this process, exactly; the kernel's quicker counts are some pages behind (Documentation/filesystems/proc.rst,
/// 6.18).
fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_resident() {
        let before = resident_bytes().unwrap();
        let touched = vec![1_u8; 8 << 20];
        let after = resident_bytes().unwrap();
        // Less than all of it, as other tests may give memory back at the same time.
        assert!(after > before + (4 << 20), "{before} {after} {}", touched.len());
    }
}
