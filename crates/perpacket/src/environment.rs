//! The machine as it stands in a record: everything that may explain a figure.
//!
//! All of it is read from files, none of it is required: what cannot be read is null.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use linux::procfs;
use measure::record::Environment;

/// sysctls that change what a packet costs or where it is counted.
const SYSCTLS: [&str; 12] = [
    "kernel.timer_migration",
    "net.core.bpf_jit_enable",
    "net.core.bpf_jit_harden",
    "net.core.dev_weight",
    "net.core.flow_limit_cpu_bitmap",
    "net.core.flow_limit_table_len",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.rmem_default",
    "net.core.rps_sock_flow_entries",
    "net.core.skb_defer_max",
];

/// Kernel options that multiply the cost of a packet: the figures of such a kernel are about its checks.
const DEBUG_OPTIONS: [&str; 9] = [
    "CONFIG_DEBUG_KMEMLEAK",
    "CONFIG_DEBUG_LOCK_ALLOC",
    "CONFIG_DEBUG_NET",
    "CONFIG_DEBUG_PAGEALLOC_ENABLE_DEFAULT",
    "CONFIG_KASAN",
    "CONFIG_KCSAN",
    "CONFIG_KMSAN",
    "CONFIG_PROVE_LOCKING",
    "CONFIG_SLUB_DEBUG_ON",
];

/// Reads the machine. `cpu` is the one that measures.
pub(crate) fn read(cpu: usize) -> Environment {
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    let config = KernelConfig::read();
    Environment {
        kernel_release: text("/proc/sys/kernel/osrelease"),
        kernel_version: text("/proc/sys/kernel/version"),
        kernel_command_line: text("/proc/cmdline"),
        architecture: text("/proc/sys/kernel/arch").or_else(|| Some(std::env::consts::ARCH.into())),
        cpu_model: procfs::cpuinfo_model(&cpuinfo),
        cores: u32::try_from(cpuinfo.lines().filter(|line| line.starts_with("processor")).count())
            .ok()
            .filter(|&cores| cores > 0),
        smt: text("/sys/devices/system/cpu/smt/active").map(|active| active == "1"),
        governor: text(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")),
        clocksource: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        virtualisation: virtualisation(&cpuinfo_field(&cpuinfo, "flags").unwrap_or_default()),
        container: container(),
        mitigations: mitigations(),
        debug_options: config.as_ref().map(KernelConfig::debug_options),
        irq_time_accounting: config.as_ref().map(KernelConfig::irq_time_accounting),
        load_average: load_average(),
        steal_ticks: steal_ticks(),
        rcu_expedited: text("/sys/kernel/rcu_expedited").map(|value| value == "1"),
        sysctls: Some(sysctls()),
        ..Environment::default()
    }
}

/// Whether the running kernel keeps time in interrupts and softirqs apart, so that no thread's clock sees it; none where it
/// does not say.
pub(crate) fn irq_time_accounting() -> Option<bool> {
    KernelConfig::read().as_ref().map(KernelConfig::irq_time_accounting)
}

/// The options that the running kernel was built with.
#[derive(Debug)]
pub(crate) struct KernelConfig(String);

impl KernelConfig {
    /// From `/proc/config.gz` or `/boot/config-RELEASE`; none where the kernel shows neither.
    pub(crate) fn read() -> Option<Self> {
        let packed = fs::read("/proc/config.gz").ok().and_then(|bytes| {
            let mut text = String::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).ok()?;
            Some(text)
        });
        let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
        packed.or_else(|| fs::read_to_string(format!("/boot/config-{release}")).ok()).map(Self)
    }

    /// `y`, `m`, or another value of an option; none where it is not set.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='))
    }

    /// Built in, and not switched off at boot (arch/x86/kernel/tsc.c, 6.18).
    fn irq_time_accounting(&self) -> bool {
        let command_line = text("/proc/cmdline").unwrap_or_default();
        self.value("CONFIG_IRQ_TIME_ACCOUNTING") == Some("y")
            && !command_line.split_whitespace().any(|word| word == "tsc=noirqtime")
    }

    fn debug_options(&self) -> Vec<String> {
        let on = |option: &&str| self.value(option) == Some("y");
        DEBUG_OPTIONS.iter().filter(|option| on(option)).map(|&option| option.into()).collect()
    }
}

/// Steal ticks of all CPUs since boot (USER_HZ), from the first line of /proc/stat (proc_stat(5)).
pub(crate) fn steal_ticks() -> Option<u64> {
    procfs::cpu_times(&text("/proc/stat")?).first()?.steal
}

/// Steal ticks since an earlier reading.
pub(crate) fn steal_since(before: Option<u64>) -> Option<u32> {
    u32::try_from(steal_ticks()?.checked_sub(before?)?).ok()
}

/// The three load averages.
pub(crate) fn load_average() -> Option<[f64; 3]> {
    procfs::load_average(&text("/proc/loadavg")?)
}

/// A file's content without the white space around it; none where it cannot be read or is empty.
pub(crate) fn text(path: &str) -> Option<String> {
    let content = fs::read_to_string(path).ok()?;
    let trimmed = content.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

fn cpuinfo_field(cpuinfo: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(value)
}

/// The hypervisor by the name that the firmware gives, `unknown hypervisor` where only the CPU tells that there
/// is one.
fn virtualisation(cpu_flags: &str) -> Option<String> {
    if cpu_flags.is_empty() {
        return None;
    }
    if !cpu_flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return Some("none".into());
    }
    let named = text("/sys/hypervisor/type").or_else(|| text("/sys/class/dmi/id/sys_vendor"));
    Some(named.unwrap_or_else(|| "unknown hypervisor".into()))
}

fn container() -> Option<String> {
    for (mark, name) in [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")] {
        if Path::new(mark).exists() {
            return Some(name.into());
        }
    }
    let environ = fs::read("/proc/1/environ").ok()?;
    let value = environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(b"container="));
    Some(value.map_or("none".into(), |name| String::from_utf8_lossy(name).into_owned()))
}

fn mitigations() -> Option<BTreeMap<String, String>> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let state = text(&format!("{folder}/{name}"))?;
        Some((name, state))
    };
    Some(fs::read_dir(folder).ok()?.filter_map(entry).collect())
}

fn sysctls() -> BTreeMap<String, String> {
    let value = |name: &&str| Some(((*name).to_owned(), linux::sysctl::read_opt(name)?));
    SYSCTLS.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_whole() {
        let config = KernelConfig(
            "CONFIG_KASAN_STACK=y\n# CONFIG_KASAN is not set\nCONFIG_DEBUG_NET=y\nCONFIG_HZ=250".into(),
        );
        assert_eq!(config.value("CONFIG_KASAN"), None);
        assert_eq!(config.value("CONFIG_HZ"), Some("250"));
        assert_eq!(config.debug_options(), ["CONFIG_DEBUG_NET"]);
    }

    #[test]
    fn softirq_time_is_apart_where_that_is_built_in() {
        let config = |text: &str| KernelConfig(text.into());
        assert!(config("CONFIG_IRQ_TIME_ACCOUNTING=y").irq_time_accounting());
        assert!(!config("CONFIG_HAVE_IRQ_TIME_ACCOUNTING=y").irq_time_accounting());
    }

    #[test]
    fn the_hypervisor_flag_is_a_word() {
        assert_eq!(virtualisation("fpu vme"), Some("none".into()));
        assert_ne!(virtualisation("fpu hypervisor"), Some("none".into()));
        assert_eq!(virtualisation(""), None);
    }

    #[test]
    fn fields_of_cpuinfo() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU\n";
        assert_eq!(cpuinfo_field(cpuinfo, "model name").as_deref(), Some("Some CPU"));
    }
}
