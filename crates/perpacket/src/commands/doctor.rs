//! `perpacket doctor`: what this host can do, what makes it noisy, what to change.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use lab::HostSettings;
use linux::ethtool::EthtoolSocket;
use linux::{SyscallError, cpu, privilege};
use measure::record::{CapabilityProbe, Device, Environment, Warning};
use serde::Serialize;

use crate::cell::PathName;
use crate::cli::DoctorArgs;
use crate::environment::{self, KernelConfig};
use crate::host::Abilities;
use crate::report::{self, Outcome};
use crate::session::{CounterSet, enter_own_network};
use crate::{doctor, paths};

/// Kernel options that a path or a way in needs.
const NEEDED: [(&str, &str); 9] = [
    ("CONFIG_VETH", "every lab"),
    ("CONFIG_NET_NS", "every lab"),
    ("CONFIG_NF_TABLES", "raw-drop, and the counters of forward and bridge"),
    ("CONFIG_NF_TABLES_NETDEV", "the counters of forward and bridge"),
    ("CONFIG_BPF_SYSCALL", "inject, xdp-live, xdp-drop, tc-drop"),
    ("CONFIG_NET_XGRESS", "tc-drop"),
    ("CONFIG_XDP_SOCKETS", "af-xdp"),
    ("CONFIG_BRIDGE", "bridge"),
    ("CONFIG_RPS", "rps"),
];

#[derive(Serialize)]
struct Report {
    privilege: String,
    environment: Environment,
    abilities: Vec<CapabilityProbe>,
    kernel_options: Vec<CapabilityProbe>,
    warnings: Vec<Warning>,
    remarks: Vec<Warning>,
    put_back: Vec<String>,
    /// What a run that was killed has left changed.
    left_behind: Option<String>,
    device: Option<Device>,
}

/// Looks, puts back what `--clean` asks for, and prints.
pub(crate) fn run(args: &DoctorArgs) -> Result<Outcome> {
    let put_back = if args.clean { clean()? } else { Vec::new() };
    let device = args.device.as_deref().map(device).transpose()?;
    let measuring = cpu::allowed()?.last().copied().unwrap_or(0);
    let environment = environment::read(measuring);
    // What the host's own network tells is known by now. What can be measured is probed where it would be measured.
    let (privilege, network) = (privilege::full(), enter_own_network());
    let mut abilities = vec![network_probe(privilege, &network)];
    abilities.extend(Abilities::probe().as_probes());
    abilities.extend(CounterSet::open(measuring).as_probes());
    let borrowed = lab::journal::look();
    let report = Report {
        left_behind: borrowed.is_left_behind().then(|| doctor::borrowed_text(&borrowed)),
        privilege: privilege_text(privilege, &network),
        warnings: doctor::warnings(&environment),
        remarks: doctor::remarks(&environment),
        kernel_options: kernel_options(),
        abilities,
        put_back,
        device,
        environment,
    };
    if let Some(file) = &args.json {
        report::write_json(file, &report)?;
    }
    if report::prints_text(args.json.as_deref()) {
        report::write_stdout(&text(&report, args.clean))?;
    }
    Ok(Outcome::Good)
}

/// A device that test traffic may be sent to.
fn device(name: &str) -> Result<Device> {
    let link = lab::named_device(name)?;
    ensure!(
        !link.loopback,
        "device {name}: it is the loopback, from which no frame leaves; name an Ethernet device"
    );
    ensure!(
        link.mac.is_some(),
        "device {name}: it has no Ethernet address, so Ethernet frames cannot be sent to it; name an Ethernet device"
    );
    let driver = EthtoolSocket::open().and_then(|socket| socket.driver(name)).ok();
    Ok(Device {
        name: link.name,
        driver: driver.as_ref().map(|info| info.driver.clone()),
        driver_version: driver.as_ref().map(|info| info.version.clone()),
        mtu: Some(link.mtu),
        receive_queues: link.rx_queues,
        transmit_queues: link.tx_queues,
        ..Device::default()
    })
}

fn clean() -> Result<Vec<String>> {
    let settings = HostSettings::open_default().context("open the journal of host settings")?;
    let done = settings.clean().context("put back what a killed run left")?;
    if let Some(failed) = done.failed.into_iter().next() {
        return Err(failed).context("put back what a killed run left");
    }
    Ok(done
        .restored
        .iter()
        .map(|setting| format!("{} = {}", setting.path.display(), setting.value))
        .collect())
}

fn kernel_options() -> Vec<CapabilityProbe> {
    let Some(config) = KernelConfig::read() else { return Vec::new() };
    let option = |&(name, what): &(&str, &str)| CapabilityProbe {
        name: name.into(),
        available: config.value(name).is_some(),
        detail: Some(format!("{} ({what})", config.value(name).unwrap_or("not set"))),
        ..CapabilityProbe::default()
    };
    NEEDED.iter().map(option).collect()
}

fn text(report: &Report, cleaned: bool) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}"); // writing to a String cannot fail
    };
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    if cleaned {
        line("host settings".into());
        if report.put_back.is_empty() {
            line("  nothing was left behind".into());
        }
        for setting in &report.put_back {
            line(format!("  put back: {setting}"));
        }
        line(String::new());
    }
    if let Some(left) = &report.left_behind {
        line(format!(
            "host settings\n  a run that was killed left them changed: {left}\n  perpacket doctor --clean, as root, puts them back\n"
        ));
    }
    if let Some(device) = &report.device {
        line(format!(
            "device {}\n  driver {}, MTU {}, queues {} in, {} out; no default route: test traffic may be sent to it\n",
            device.name,
            known(&device.driver),
            device.mtu.map_or("?".into(), |mtu| mtu.to_string()),
            device.receive_queues.map_or("?".into(), |queues| queues.to_string()),
            device.transmit_queues.map_or("?".into(), |queues| queues.to_string()),
        ));
    }
    let e = &report.environment;
    line(format!("kernel       {} ({})", known(&e.kernel_release), known(&e.architecture)));
    line(format!(
        "CPU          {}, {} online",
        known(&e.cpu_model),
        e.cores.map_or("?".into(), |n| n.to_string())
    ));
    line(format!("privilege    {}", report.privilege));
    line(format!("clock        {}, governor {}", known(&e.clocksource), known(&e.governor)));
    line("\nways in and counters".into());
    for probe in &report.abilities {
        line(probe_line(probe));
    }
    line("\nkernel options".into());
    if report.kernel_options.is_empty() {
        line("  unknown: neither /proc/config.gz nor /boot/config-RELEASE can be read".into());
    }
    for probe in &report.kernel_options {
        line(probe_line(probe));
    }
    line("\npaths".into());
    for path in PathName::ALL {
        line(format!("  {path:<16} {}", paths::about(path)));
    }
    line("\nwhat makes results noisy or different here".into());
    if report.warnings.is_empty() && report.remarks.is_empty() {
        line("  nothing was found".into());
    }
    for warning in report.warnings.iter().chain(&report.remarks) {
        line(format!("  {} ({})\n      {}", warning.what, warning.fact, warning.next_step));
    }
    out
}

/// Whether networks to measure in can be made, and how.
fn network_probe(privileged: bool, network: &Result<(), SyscallError>) -> CapabilityProbe {
    let how = (!privileged).then(|| "in a user namespace".to_owned());
    CapabilityProbe {
        name: "networks of its own".into(),
        available: network.is_ok(),
        detail: network.as_ref().err().map(ToString::to_string).or(how),
        ..CapabilityProbe::default()
    }
}

fn privilege_text(privileged: bool, network: &Result<(), SyscallError>) -> String {
    match network {
        _ if privileged => "all that is needed".into(),
        Ok(()) => "ordinary user: raw-drop, forward, forward6, bridge, udp and udp-noport, by mmsg, tx-ring or af-xdp, \
                   in a user namespace; root adds BPF, and with it inject, xdp-live, floor and the XDP and tc paths"
            .into(),
        Err(why) => format!(
            "ordinary user who may not make a user namespace: nothing can be measured ({why}); allow them, or run as \
             root: root adds all ways in and paths"
        ),
    }
}

fn probe_line(probe: &CapabilityProbe) -> String {
    let detail = probe.detail.as_deref().map_or(String::new(), |detail| format!(": {detail}"));
    format!("  {} {}{detail}", if probe.available { "yes" } else { "no " }, probe.name)
}
