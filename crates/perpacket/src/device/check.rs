//! What a path in user space cannot take, and what one through the kernel cannot: refused, with what would work.

use anyhow::{Result, ensure};
use datapath::BUDGET;
use traffic::BackendKind;

use crate::cell::{Cell, Factor, PathName, Setting};

/// Refuses what the packets of a path in user space do not meet.
pub(crate) fn check(cell: &Cell) -> Result<()> {
    let Cell { path, setting, .. } = cell;
    let usual = Setting::default();
    let kernel_only = "that is the kernel's, and its packets never are there; use raw-drop, forward or udp";
    ensure!(
        setting.backend.is_none_or(|kind| kind == BackendKind::Memory),
        "backend = {} on {path}: its frames come from a synthetic device in memory, and by no other way; leave --backend out",
        setting.backend.map_or("", BackendKind::name)
    );
    ensure!(setting.rules == usual.rules, "rules = {} on {path}: {kernel_only}", setting.rules);
    ensure!(setting.gro == usual.gro, "gro = on on {path}: {kernel_only}");
    ensure!(setting.gso == usual.gso, "gso = on on {path}: {kernel_only}");
    ensure!(setting.rps_mask()? == 0, "rps = {} on {path}: {kernel_only}", setting.rps);
    ensure!(
        !setting.has_qdisc(),
        "qdisc = {} on {path}: {kernel_only}; what sends here waits for a lock, see --lock",
        setting.qdisc
    );
    ensure!(
        setting.spin == usual.spin,
        "spin = {} on {path}: the added work is in the kernel's injecting program; use raw-drop, forward or udp",
        setting.spin
    );
    ensure!(
        setting.batch <= BUDGET as u32,
        "batch = {} on {path}: one poll takes {BUDGET} packets at most; use --batch {BUDGET}",
        setting.batch
    );
    check_sending(*path, setting)?;
    ensure!(
        setting.prefixes == usual.prefixes || *path == PathName::DatapathForward,
        "prefixes = {} on {path}: its packets are not routed; use datapath:forward",
        setting.prefixes
    );
    Ok(())
}

/// Locks and queues are met only by what is sent.
fn check_sending(path: PathName, setting: &Setting) -> Result<()> {
    let sends = sends(path);
    let nothing_sent = "its packets end before anything is sent; use datapath:dummy or datapath:forward";
    ensure!(
        sends || setting.lock == Setting::default().lock,
        "lock = {} on {path}: {nothing_sent}",
        setting.lock
    );
    ensure!(
        sends || setting.queues.is_none(),
        "queues = {} on {path}: {nothing_sent}",
        setting.device_queues()
    );
    ensure!(
        setting.lock != super::Lock::None || setting.device_queues() >= setting.threads,
        "lock = none with queues = {} and threads = {}: nothing would keep threads apart that share a queue; use --queues {}, \
         or --lock queue",
        setting.device_queues(),
        setting.threads,
        setting.threads
    );
    Ok(())
}

fn sends(path: PathName) -> bool {
    matches!(path, PathName::DatapathDummy | PathName::DatapathForward)
}

/// Refuses an allocator that no buffer of these cells comes from.
pub(crate) fn check_memory(cells: &[Cell], vary: Factor) -> Result<()> {
    let asked = |cell: &&Cell| vary == Factor::Alloc || cell.setting.alloc != Setting::default().alloc;
    let Some(cell) = cells.iter().filter(|cell| cell.path.is_datapath()).find(asked) else { return Ok(()) };
    ensure!(
        cells.iter().any(|cell| cell.setting.rx.copies()),
        "alloc = {} with rx = {}: no frame is copied, so no buffer is needed for one; use --rx copy or --rx copy-break",
        cell.setting.alloc,
        cell.setting.rx
    );
    Ok(())
}

/// Refuses two locks that nobody contends for: a lone thread does the same with both.
pub(crate) fn check_contention(cells: &[Cell], vary: Factor) -> Result<()> {
    let locks_one = |cell: &Cell| cell.setting.threads == 1 && cell.setting.lock != super::Lock::None;
    ensure!(
        vary != Factor::Lock || !cells.iter().all(|cell| sends(cell.path) && locks_one(cell)),
        "lock = device against queue with threads = 1: a lone thread finds either of them free, and does the same with both; use \
         --threads 2, or --vary lock=none,queue for what a free lock costs"
    );
    Ok(())
}

/// Refuses what only a device in user space has, for a path through the kernel.
pub(crate) fn refuse_in_the_kernel(path: PathName, setting: &Setting) -> Result<()> {
    let all = setting.changed();
    let of_device = |(name, _): &&(&str, String)| {
        let factors = [Factor::Alloc, Factor::Rx, Factor::Lock, Factor::Queues, Factor::Prefixes];
        factors.iter().any(|factor| factor.name() == *name)
    };
    if let Some((name, value)) = all.iter().find(of_device) {
        let instead = match *name {
            "prefixes" => "datapath:forward",
            "lock" | "queues" => "datapath:dummy or datapath:forward",
            _ => "datapath:drop, datapath:forward or datapath:udp",
        };
        anyhow::bail!("{name} = {value} on {path}: that is chosen for a device in user space; use {instead}");
    }
    Ok(())
}
