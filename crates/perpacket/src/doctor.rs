//! What makes results of this host noisy or wrong, each with what to do about it.

use lab::journal::CleanReport;
use measure::record::{Environment, Warning};

use crate::environment;

/// What deserves a line before a measurement: only what changes figures.
pub(crate) fn warnings(environment: &Environment) -> Vec<Warning> {
    let checks = [debug_options, irq_time, governor, load, clocksource, jit, bpf_hardening];
    checks.iter().filter_map(|check| check(environment)).collect()
}

/// What a measurement is without injection, and what it would be with. `lacking` is why there is none.
pub(crate) fn without_injection(lacking: &str) -> Option<Warning> {
    warning(
        "frames are sent through a device, and what that costs is in every figure",
        format!("no injection: {lacking}"),
        "root adds inject and the floor, which take the sender's cost out, and xdp-drop, xdp-tx and tc-drop",
    )
}

/// What the journal of host settings had to do for runs that were killed.
pub(crate) fn left_behind(report: &CleanReport) -> Vec<Warning> {
    let restored = report.restored.iter().filter_map(|setting| {
        warning(
            "a run that was killed had left a setting of the host changed",
            format!("{} = {} was put back", setting.path.display(), setting.value),
            "nothing is left to do",
        )
    });
    let failed = report.failed.iter().filter_map(|error| {
        warning(
            "a setting of the host that a killed run left changed could not be put back",
            error.to_string(),
            "remove the cause and run perpacket doctor --clean, or write the value back",
        )
    });
    restored.chain(failed).chain(left_by_root()).collect()
}

/// What an ordinary user can only be told: that a run of root was killed, and the host is not as it was.
fn left_by_root() -> Option<Warning> {
    let borrowed = lab::journal::look();
    if linux::privilege::full() || !borrowed.is_left_behind() {
        return None;
    }
    warning(
        "a run of root that was killed has left settings of the host changed",
        borrowed_text(&borrowed),
        "as root: perpacket doctor --clean puts them back",
    )
}

/// The settings, and what they were before.
pub(crate) fn borrowed_text(borrowed: &lab::journal::Borrowed) -> String {
    let settings = borrowed.settings.iter();
    let settings: Vec<String> =
        settings.map(|(path, before)| format!("{} was {before}", path.display())).collect();
    settings.join("; ")
}

/// What is worth knowing, but no reason to warn before every run.
pub(crate) fn remarks(environment: &Environment) -> Vec<Warning> {
    let checks = [virtualisation, container, quota, smt, mitigations, steering];
    checks.iter().filter_map(|check| check(environment)).collect()
}

fn warning(what: &str, fact: String, next_step: &str) -> Option<Warning> {
    Some(Warning { what: what.into(), fact, next_step: next_step.into(), ..Warning::default() })
}

fn debug_options(environment: &Environment) -> Option<Warning> {
    let options = environment.debug_options.as_ref().filter(|options| !options.is_empty())?;
    warning(
        "this is a debug kernel: its checks cost more than packets do",
        options.join(", "),
        "measure on a kernel without these options",
    )
}

fn irq_time(environment: &Environment) -> Option<Warning> {
    environment.irq_time_accounting.filter(|&apart| apart)?;
    warning(
        "time in softirqs is in no thread's time: what a veth receives is not in the clock `thread`",
        "CONFIG_IRQ_TIME_ACCOUNTING=y".into(),
        "use --clock machine for paths over a device, or boot with tsc=noirqtime",
    )
}

fn governor(environment: &Environment) -> Option<Warning> {
    let governor = environment.governor.as_ref().filter(|name| *name != "performance")?;
    warning(
        "the CPU changes its frequency",
        format!("governor {governor}"),
        "write `performance` to scaling_governor of the measuring CPU (cpupower frequency-set -g performance)",
    )
}

fn load(environment: &Environment) -> Option<Warning> {
    let ([one, ..], cores) = (environment.load_average?, environment.cores?);
    (one > f64::from(cores) * 0.5).then_some(())?;
    warning(
        "other work runs on this machine",
        format!("load average {one:.2} on {cores} CPUs"),
        "comparisons hold (they are interleaved); for absolute figures wait until it is over",
    )
}

fn clocksource(environment: &Environment) -> Option<Warning> {
    let source = environment
        .clocksource
        .as_ref()
        .filter(|name| !matches!(name.as_str(), "tsc" | "kvm-clock" | "arch_sys_counter"))?;
    warning(
        "reading the clock is slow",
        format!("clocksource {source}"),
        "use the TSC where it is stable (clocksource=tsc)",
    )
}

fn jit(environment: &Environment) -> Option<Warning> {
    let value = environment.sysctls.as_ref()?.get("net.core.bpf_jit_enable").filter(|value| *value == "0")?;
    warning(
        "BPF programs are interpreted",
        format!("net.core.bpf_jit_enable = {value}"),
        "sysctl net.core.bpf_jit_enable=1",
    )
}

fn bpf_hardening(environment: &Environment) -> Option<Warning> {
    let value = environment.sysctls.as_ref()?.get("net.core.bpf_jit_harden").filter(|value| *value == "2")?;
    warning(
        "constants in BPF programs are blinded, which costs instructions",
        format!("net.core.bpf_jit_harden = {value}"),
        "sysctl net.core.bpf_jit_harden=1",
    )
}

/// Settings of the host's receive path that somebody has changed.
fn steering(environment: &Environment) -> Option<Warning> {
    // net/core/dev.c and net/core/hotdata.c, 6.18.
    const DEFAULTS: [(&str, &str); 5] = [
        ("net.core.flow_limit_cpu_bitmap", "0"),
        ("net.core.flow_limit_table_len", "4096"),
        ("net.core.netdev_budget", "300"),
        ("net.core.netdev_max_backlog", "1000"),
        ("net.core.rps_sock_flow_entries", "0"),
    ];
    let sysctls = environment.sysctls.as_ref()?;
    let changed = |(name, default): (&str, &str)| {
        let value = sysctls.get(name)?;
        // Masks are as wide as the machine has CPUs.
        let is_default =
            value == default || value.bytes().all(|byte| matches!(byte, b'0' | b',')) && default == "0";
        (!is_default).then(|| format!("{name} = {value} instead of {default}"))
    };
    let changed: Vec<String> = DEFAULTS.into_iter().filter_map(changed).collect();
    (!changed.is_empty()).then_some(())?;
    warning(
        "how this host spreads and holds back received packets is not the kernel's default",
        changed.join(", "),
        "compare with hosts that have the same, or set them back (sysctl); where a run is going on, it may have borrowed them",
    )
}

fn virtualisation(environment: &Environment) -> Option<Warning> {
    let name = environment.virtualisation.as_ref().filter(|name| *name != "none")?;
    let steal =
        environment.steal_ticks.map_or(String::new(), |ticks| format!(", {ticks} steal ticks since boot"));
    warning(
        "this is a virtual machine: neighbours take time that no clock here shows",
        format!("{name}{steal}"),
        "trust comparisons made in one run; distrust absolute figures between runs",
    )
}

fn container(environment: &Environment) -> Option<Warning> {
    let name = environment.container.as_ref().filter(|name| *name != "none")?;
    warning(
        "this is a container: its CPU quota can stop the measuring thread",
        name.clone(),
        "give it whole CPUs (cpuset), no quota",
    )
}

/// A limit on CPU time stops every thread of the group for the rest of a period once it is used up (cpu.max of
/// cgroup v2, cpu.cfs_quota_us of v1).
fn quota(_environment: &Environment) -> Option<Warning> {
    let groups = environment::text("/proc/self/cgroup")?;
    let limit = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        if controllers.is_empty() {
            let max = environment::text(&format!("/sys/fs/cgroup{path}/cpu.max"))?;
            (!max.starts_with("max")).then_some(format!("cpu.max = {max}"))
        } else if controllers.split(',').any(|name| name == "cpu") {
            let quota = environment::text(&format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us"))?;
            (!quota.starts_with('-')).then_some(format!("cpu.cfs_quota_us = {quota}"))
        } else {
            None
        }
    })?;
    warning(
        "the control group of this process limits its CPU time: slices are stopped in the middle",
        limit,
        "run outside of the group, or lift its limit",
    )
}

fn smt(environment: &Environment) -> Option<Warning> {
    environment.smt.filter(|&active| active)?;
    warning(
        "SMT is on: the sibling of the measuring CPU shares its units",
        "/sys/devices/system/cpu/smt/active = 1".into(),
        "keep the sibling idle, or write `off` to /sys/devices/system/cpu/smt/control",
    )
}

fn mitigations(environment: &Environment) -> Option<Warning> {
    let all = environment.mitigations.as_ref()?;
    let active: Vec<String> = all
        .iter()
        .filter(|(_, state)| state.starts_with("Mitigation"))
        .map(|(name, _)| name.clone())
        .collect();
    if active.is_empty() {
        return None;
    }
    warning(
        "mitigations are part of what a packet costs here",
        active.join(", "),
        "compare with kernels that have the same ones",
    )
}

#[cfg(test)]
mod tests {
    use lab::journal::{JournalError, Restored};

    use super::*;

    #[test]
    fn a_quiet_host_has_no_warnings() {
        let quiet = Environment {
            governor: Some("performance".into()),
            load_average: Some([0.1, 0.1, 0.1]),
            cores: Some(2),
            clocksource: Some("tsc".into()),
            debug_options: Some(vec![]),
            irq_time_accounting: Some(false),
            ..Environment::default()
        };
        assert_eq!(warnings(&quiet), []);
        assert_eq!(warnings(&Environment::default()), []);
    }

    #[test]
    fn each_cause_is_named() {
        let noisy = Environment {
            governor: Some("powersave".into()),
            load_average: Some([3.0, 1.0, 1.0]),
            cores: Some(2),
            clocksource: Some("hpet".into()),
            debug_options: Some(vec!["CONFIG_KASAN".into()]),
            irq_time_accounting: Some(true),
            sysctls: Some([("net.core.bpf_jit_enable".into(), "0".into())].into()),
            ..Environment::default()
        };
        let facts: Vec<String> = warnings(&noisy).into_iter().map(|warning| warning.fact).collect();
        assert_eq!(facts.len(), 6, "{facts:?}");
        assert!(facts.iter().any(|fact| fact.contains("KASAN")));
    }

    #[test]
    fn steering_that_was_changed_is_remarked() {
        let host = |values: &[(&str, &str)]| Environment {
            sysctls: Some(values.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()),
            ..Environment::default()
        };
        let wide = ("net.core.flow_limit_cpu_bitmap", "00000000,00000000");
        assert_eq!(steering(&host(&[wide, ("net.core.netdev_max_backlog", "1000")])), None);
        let changed = host(&[("net.core.flow_limit_cpu_bitmap", "3"), ("net.core.netdev_budget", "600")]);
        let fact = steering(&changed).unwrap().fact;
        assert!(fact.contains("flow_limit_cpu_bitmap = 3") && fact.contains("netdev_budget = 600"), "{fact}");
        assert_eq!(steering(&Environment::default()), None);
    }

    #[test]
    fn what_was_left_behind_is_told_whether_it_was_put_back_or_not() {
        let path = std::path::PathBuf::from("/sys/kernel/rcu_expedited");
        let report = CleanReport {
            restored: vec![Restored { path: path.clone(), value: "0".into() }],
            failed: vec![JournalError::Busy { path, waited_s: 3 }],
            ..CleanReport::default()
        };
        let told = left_behind(&report);
        assert_eq!(told.len(), 2);
        assert!(told[0].fact.contains("rcu_expedited = 0 was put back"), "{told:?}");
        assert!(told[1].next_step.contains("doctor --clean"), "{told:?}");
        assert_eq!(left_behind(&CleanReport::default()), []);
    }
}
