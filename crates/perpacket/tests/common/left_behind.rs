//! What a run holds while it lives, and whether that is gone when it has ended.
//!
//! Other runs may go on beside a test, so nothing is counted for the whole machine: what is looked for afterwards is
//! what this run was seen to hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lab::journal::DEFAULT_DIRECTORY;
use linux::bpf::{ObjectIds, object_ids};

use super::wait_for;

const RCU_EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// What a process was seen to hold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    namespaces: BTreeSet<String>,
    bpf: ObjectIds,
    pid: u32,
}

impl Held {
    /// Looks at the descriptors of a running process.
    pub(crate) fn by(pid: u32) -> Self {
        let bpf = ObjectIds {
            programs: object_numbers(pid, "prog_id:"),
            maps: object_numbers(pid, "map_id:"),
            links: object_numbers(pid, "link_id:"),
        };
        Self { namespaces: namespaces(pid), bpf, pid }
    }

    /// Network namespaces and BPF programs that are held. A map may be held by its program alone.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.namespaces.len(), self.bpf.programs.len())
    }

    /// Waits until all of it is gone, now that the process is.
    pub(crate) fn wait_until_gone(&self) {
        assert!(!Path::new(&format!("/proc/{}", self.pid)).exists(), "the run has not ended");
        wait_for("the BPF objects of the run are gone", || {
            let now = object_ids().unwrap();
            let left = |had: &BTreeSet<u32>, now: &BTreeSet<u32>| had.intersection(now).count();
            let left = left(&self.bpf.programs, &now.programs)
                + left(&self.bpf.maps, &now.maps)
                + left(&self.bpf.links, &now.links);
            (left == 0).then_some(())
        });
        wait_for("nobody holds a namespace of the run", || {
            let held: BTreeSet<String> = other_processes().flat_map(namespaces).collect();
            self.namespaces.is_disjoint(&held).then_some(())
        });
    }
}

/// The setting that a run borrows, now.
pub(crate) fn rcu_expedited() -> String {
    fs::read_to_string(RCU_EXPEDITED).unwrap().trim().to_owned()
}

/// The setting as it is when nobody borrows it.
pub(crate) fn rcu_original() -> String {
    let journal = fs::read_to_string(format!("{DEFAULT_DIRECTORY}/originals.json"));
    let journal: Option<serde_json::Value> = journal.ok().and_then(|text| serde_json::from_str(&text).ok());
    let setting = |journal: &serde_json::Value| {
        let settings = journal["settings"].as_array()?;
        let setting = settings.iter().find(|setting| setting["path"] == RCU_EXPEDITED)?;
        Some(setting["value"].as_str()?.trim().to_owned())
    };
    journal.as_ref().and_then(setting).unwrap_or_else(rcu_expedited)
}

/// Waits until none of these processes borrows a setting of the host, and the setting is as it was unless somebody else
/// borrows it.
pub(crate) fn wait_until_put_back(original: &str, pids: &[u32]) {
    wait_for("the settings of the host are put back", || {
        let holders: Vec<String> = match fs::read_dir(format!("{DEFAULT_DIRECTORY}/holders")) {
            Ok(entries) => {
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
            Err(_) => Vec::new(),
        };
        let ours = |name: &String| pids.iter().any(|pid| name.starts_with(&format!("{pid}-")));
        let others = holders.iter().any(|name| !ours(name));
        (!holders.iter().any(ours) && (others || rcu_expedited() == original)).then_some(())
    });
}

/// The numbers that a process's descriptors name with `key` (`/proc/PID/fdinfo`, kernel/bpf/syscall.c, 6.18). A link's
/// names its program too.
fn object_numbers(pid: u32, key: &str) -> BTreeSet<u32> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let number = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    };
    descriptors.filter_map(number).collect()
}

/// The network namespaces that a process's threads are in or that it holds, without the one of this test.
fn namespaces(pid: u32) -> BTreeSet<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = threads.map(|task| task.path().join("ns/net")).chain(descriptors.map(|fd| fd.path()));
    let names = links.filter_map(|link| fs::read_link(link).ok()?.into_os_string().into_string().ok());
    let own = fs::read_link("/proc/self/ns/net").unwrap().into_os_string().into_string().unwrap();
    names.filter(|name| name.starts_with("net:[") && *name != own).collect()
}

/// Every process but other runs of the program: the kernel may have given the number of a namespace to one of theirs.
fn other_processes() -> impl Iterator<Item = u32> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() != "perpacket")
    })
}
