//! What this process may do: capabilities, and the rule for tests that need them.

use std::fs;

/// A capability, by its bit in the effective set (include/uapi/linux/capability.h, 6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Configure interfaces, namespaces' networks, attach network programs.
    NetAdmin = 12,
    /// Open raw and packet sockets.
    NetRaw = 13,
    /// Enter and make namespaces, mount file systems.
    SysAdmin = 21,
    /// Real-time scheduling and negative nice values.
    SysNice = 23,
    /// Read performance counters of the system.
    Perfmon = 38,
    /// Load BPF programs and make BPF maps.
    Bpf = 39,
}

impl Capability {
    /// The name as `capabilities(7)` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// Whether the calling thread has the capability in its effective set (`/proc/thread-self/status`, CapEff).
///
/// Inside a user namespace the answer is about that namespace: CAP_BPF there does not load programs. See
/// [`in_initial_user_namespace`].
pub fn has(capability: Capability) -> bool {
    fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|status| {
            let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim();
            u64::from_str_radix(hex, 16).ok()
        })
        .is_some_and(|set| set & (1 << capability as u8) != 0)
}

/// Whether the process is in the user namespace that the system started with: its map is the identity
/// over all of the 32-bit range (user_namespaces(7)).
pub fn in_initial_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        let fields: Vec<&str> = map.split_whitespace().collect();
        fields == ["0", "0", "4294967295"]
    })
}

/// Whether BPF programs can be loaded and networks be made: what the privileged tests need.
pub fn full() -> bool {
    in_initial_user_namespace()
        && [Capability::NetAdmin, Capability::NetRaw, Capability::SysAdmin, Capability::Bpf]
            .into_iter()
            .all(|capability| has(capability) || has(Capability::SysAdmin))
}

/// The gate of every privileged test: true to go on, false to return.
///
/// A test that cannot run says so on standard error; with `PERPACKET_REQUIRE_PRIVILEGED=1` (as in CI) it panics instead, so
/// that a missing privilege can never pass as a success.
pub fn test_may_run(name: &str) -> bool {
    if full() {
        return true;
    }
    let needed = "CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN and CAP_BPF in the initial user namespace";
    assert!(
        std::env::var_os("PERPACKET_REQUIRE_PRIVILEGED").is_none(),
        "{name} needs {needed}, and PERPACKET_REQUIRE_PRIVILEGED is set"
    );
    let line = format!("SKIPPED {name}: needs {needed}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()));
    false
}
