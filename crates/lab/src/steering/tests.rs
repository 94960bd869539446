//! Steering of devices and of a host that are not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use linux::netsysfs::{Attribute, Queues};
use rustix::io::Errno;

use super::device::{Files, next_step};
use super::*;
use crate::journal::HostSettings;

/// A device of three receive and two transmit queues that remembers what was written, and has CPUs 0 to 3, of which 3 is offline.
#[derive(Default)]
struct Device {
    written: Vec<(Attribute, String)>,
    settings: BTreeMap<Attribute, String>,
    /// As for an ordinary user.
    read_only: bool,
}

impl Files for Device {
    fn queues(&self, _: &str) -> Result<Queues, SteeringError> {
        Ok(Queues { rx: 3, tx: 2 })
    }

    fn set(&mut self, _: &str, attribute: Attribute, value: &str) -> Result<(), SteeringError> {
        if self.read_only {
            let source = SyscallError::new("write setting", "s0", Errno::PERM.into());
            let next = next_step(Some(attribute), Some(Errno::PERM));
            return Err(SteeringError::Kernel { device: "s0".to_owned(), source, next });
        }
        self.written.push((attribute, value.to_owned()));
        let kept = match attribute {
            Attribute::RpsCpus { .. } | Attribute::XpsCpus { .. } => {
                let mask: CpuMask = value.parse().unwrap();
                format!(
                    "00000000,{:08x}\n",
                    mask.cpus().filter(|&cpu| cpu != 3).map(|cpu| 1 << cpu).sum::<u32>()
                )
            }
            _ => format!("{value}\n"),
        };
        self.settings.insert(attribute, kept);
        Ok(())
    }

    fn read(&self, _: &str, attribute: Attribute) -> Result<String, SteeringError> {
        Ok(self.settings[&attribute].clone())
    }
}

fn mask(text: &str) -> CpuMask {
    text.parse().unwrap()
}

fn carry_out(steering: &DeviceSteering, device: &mut Device) -> Result<Vec<Taken>, SteeringError> {
    steering.carry_out(device, "s0", &mask("f"))
}

#[test]
fn every_queue_gets_its_settings_and_they_are_read_back() {
    let steering = DeviceSteering {
        rps_cpus: Some("0x2".parse().unwrap()),
        xps_cpus: Some("1/off".parse().unwrap()),
        rps_flow_cnt: Some(100),
        threaded: Some(false),
        gro_flush_timeout_ns: Some(20_000),
        napi_defer_hard_irqs: Some(2),
    };
    let mut device = Device::default();
    let taken = carry_out(&steering, &mut device).unwrap();
    let written: Vec<String> =
        device.written.iter().map(|(attribute, value)| format!("{attribute} {value}")).collect();
    let expected = [
        "threaded 0",
        "napi_defer_hard_irqs 2",
        "gro_flush_timeout 20000",
        "queues/rx-0/rps_flow_cnt 128",
        "queues/rx-1/rps_flow_cnt 128",
        "queues/rx-2/rps_flow_cnt 128",
        "queues/rx-0/rps_cpus 2",
        "queues/rx-1/rps_cpus 2",
        "queues/rx-2/rps_cpus 2",
        "queues/tx-0/xps_cpus 1",
        "queues/tx-1/xps_cpus 0",
    ];
    assert_eq!(written, expected);
    assert_eq!(taken.len(), expected.len());
    let last = Taken { name: "queues/tx-1/xps_cpus".into(), value: "00000000,00000000".into() };
    assert_eq!(taken.last(), Some(&last));

    let mut untouched = Device::default();
    assert_eq!(carry_out(&DeviceSteering::default(), &mut untouched).unwrap(), []);
    assert!(DeviceSteering::default().is_empty() && !steering.is_empty() && untouched.written.is_empty());
}

#[test]
fn what_the_kernel_left_out_is_an_error() {
    let steering = DeviceSteering { rps_cpus: Some("0xa".parse().unwrap()), ..DeviceSteering::default() };
    let error = carry_out(&steering, &mut Device::default()).unwrap_err();
    assert!(
        matches!(&error, SteeringError::NotTaken { asked, found, .. } if asked == "a" && found == "00000000,00000002"),
        "{error}"
    );
    assert!(error.to_string().contains("queues/rx-0/rps_cpus of s0"), "{error}");
}

#[test]
fn what_is_so_already_need_not_be_written() {
    let steering = DeviceSteering { rps_cpus: Some("0x2".parse().unwrap()), ..DeviceSteering::default() };
    let mut device = Device::default();
    carry_out(&steering, &mut device).unwrap();
    device.read_only = true;
    assert_eq!(carry_out(&steering, &mut device).unwrap().len(), 3);
    let other = DeviceSteering { rps_cpus: Some("0x1".parse().unwrap()), ..DeviceSteering::default() };
    let error = carry_out(&other, &mut device).unwrap_err();
    assert!(error.to_string().contains("net.core.rps_default_mask"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let beyond = DeviceSteering { rps_cpus: Some("0x12".parse().unwrap()), ..DeviceSteering::default() };
    let uneven = DeviceSteering { rps_cpus: Some("1/2".parse().unwrap()), ..DeviceSteering::default() };
    let long = DeviceSteering { rps_flow_cnt: Some((1 << 29) + 1), ..DeviceSteering::default() };
    let mut device = Device::default();
    let texts = [beyond, uneven, long].map(|steering| {
        let steering = DeviceSteering { threaded: Some(true), ..steering };
        carry_out(&steering, &mut device).unwrap_err().to_string()
    });
    assert!(texts[0].contains("CPU 4 is not in this machine, which has 0, 1, 2, 3"), "{texts:?}");
    assert!(texts[1].contains("2 masks are given, and it has 3 such queues"), "{texts:?}");
    assert!(texts[2].contains("2^29"), "{texts:?}");
    assert!(device.written.is_empty());
}

#[test]
fn the_kernels_answers_are_explained() {
    let rps = Some(Attribute::RpsCpus { queue: 0 });
    assert!(next_step(rps, Some(Errno::ACCESS)).contains("net.core.rps_default_mask"));
    assert!(next_step(Some(Attribute::XpsCpus { queue: 0 }), Some(Errno::NOENT)).contains("one"));
    assert!(next_step(Some(Attribute::Threaded), Some(Errno::OPNOTSUPP)).contains("GRO"));
    assert!(next_step(None, Some(Errno::NOENT)).contains("device"));
}

#[test]
fn masks_of_queues_are_read_and_displayed() {
    for text in ["2", "0", "1/2", "1/0/ff,00000000"] {
        assert_eq!(text.parse::<QueueMasks>().unwrap().to_string(), text);
    }
    assert_eq!("off".parse::<QueueMasks>().unwrap(), QueueMasks::from(CpuMask::none()));
    for text in ["", "1/", "/1", "x"] {
        assert!(text.parse::<QueueMasks>().is_err(), "{text}");
    }
}

/// A folder of settings as a kernel has them after it was started, and a journal beside it.
struct Place {
    root: PathBuf,
}

const DEFAULTS: [(&str, &str); 6] = [
    ("rps_sock_flow_entries", "0\n"),
    ("flow_limit_cpu_bitmap", "0\n"),
    ("flow_limit_table_len", "4096\n"),
    ("netdev_max_backlog", "1000\n"),
    ("netdev_budget", "300\n"),
    ("netdev_budget_usecs", "8000\n"),
];

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("perpacket-steering-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        for (name, value) in DEFAULTS {
            fs::write(root.join(name), value).unwrap();
        }
        Self { root }
    }

    fn settings(&self) -> HostSettings {
        HostSettings::open(self.root.join("run")).unwrap()
    }

    fn values(&self) -> Vec<(&'static str, String)> {
        let value = |(name, _)| (name, fs::read_to_string(self.root.join(name)).unwrap());
        DEFAULTS.map(value).to_vec()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn defaults() -> Vec<(&'static str, String)> {
    DEFAULTS.map(|(name, value)| (name, value.to_owned())).to_vec()
}

fn everything() -> HostSteering {
    HostSteering {
        rps_sock_flow_entries: Some(5000),
        flow_limit_cpus: Some(mask("1")),
        flow_limit_table_len: Some(8192),
        netdev_max_backlog: Some(5000),
        netdev_budget: Some(600),
        netdev_budget_usecs: Some(4000),
    }
}

fn hold(place: &Place, steering: &HostSteering) -> Result<Vec<crate::journal::Guard>, SteeringError> {
    steering.hold_below(&place.settings(), &place.root)
}

#[test]
fn the_host_is_set_and_put_back() {
    let place = Place::new("host");
    let guards = hold(&place, &everything()).unwrap();
    let values: Vec<String> = place.values().into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["8192", "1", "8192", "5000", "600", "4000"], "rounded up to a power of two");
    let read = HostSteering::read_below(&place.settings(), &place.root);
    assert_eq!(read, HostSteering { rps_sock_flow_entries: Some(8192), ..everything() });
    drop(guards);
    assert_eq!(place.values(), defaults());
    assert!(hold(&place, &HostSteering::default()).unwrap().is_empty());
}

#[test]
fn the_flow_limit_is_held_with_its_length() {
    let place = Place::new("limit");
    let only_cpus = HostSteering { flow_limit_cpus: Some(mask("1")), ..HostSteering::default() };
    let guards = hold(&place, &only_cpus).unwrap();
    assert_eq!(guards.len(), 2);
    // Another length would need the tables made anew, under the run that uses them.
    let other = HostSteering { flow_limit_table_len: Some(64), ..HostSteering::default() };
    let error = hold(&place, &other).unwrap_err();
    assert!(matches!(&error, SteeringError::Journal(JournalError::Conflict { .. })), "{error}");
    let shared = hold(&place, &only_cpus).unwrap();
    drop(guards);
    assert_eq!(fs::read_to_string(place.root.join("flow_limit_cpu_bitmap")).unwrap(), "1");
    drop(shared);
    assert_eq!(place.values(), defaults());
}

#[test]
fn what_fails_halfway_is_put_back() {
    let place = Place::new("halfway");
    // The last to be written.
    fs::remove_file(place.root.join("flow_limit_cpu_bitmap")).unwrap();
    assert!(matches!(hold(&place, &everything()), Err(SteeringError::Journal(JournalError::File { .. }))));
    fs::write(place.root.join("flow_limit_cpu_bitmap"), "0\n").unwrap();
    assert_eq!(place.values(), defaults());

    // It takes what is written, and has nothing.
    fs::remove_file(place.root.join("rps_sock_flow_entries")).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.root.join("rps_sock_flow_entries")).unwrap();
    let error = hold(&place, &everything()).unwrap_err();
    assert!(
        matches!(&error, SteeringError::NotTaken { setting, .. } if setting.ends_with("rps_sock_flow_entries")),
        "{error}"
    );
    fs::remove_file(place.root.join("rps_sock_flow_entries")).unwrap();
    fs::write(place.root.join("rps_sock_flow_entries"), "0\n").unwrap();
    assert_eq!(place.values(), defaults());
}

#[test]
fn values_that_no_kernel_takes_are_refused() {
    let place = Place::new("values");
    let bad = [
        HostSteering { rps_sock_flow_entries: Some(u32::MAX), ..HostSteering::default() },
        HostSteering { flow_limit_table_len: Some(100), ..HostSteering::default() },
        HostSteering { flow_limit_table_len: Some(1 << 21), ..HostSteering::default() },
        HostSteering { netdev_max_backlog: Some(1 << 31), ..HostSteering::default() },
        HostSteering { netdev_budget: Some(0), ..HostSteering::default() },
    ];
    for steering in bad {
        let steering = HostSteering { netdev_budget_usecs: Some(1), ..steering };
        let error = hold(&place, &steering).unwrap_err();
        assert!(matches!(error, SteeringError::Value { .. }), "{error}");
    }
    let nowhere = HostSteering { flow_limit_cpus: Some(CpuMask::of([8191])), ..HostSteering::default() };
    assert!(matches!(hold(&place, &nowhere), Err(SteeringError::NoSuchCpu { .. })));
    assert_eq!(place.values(), defaults());
    let missing = HostSteering::read_below(&place.settings(), Path::new("/proc/sys/net/no_such_folder"));
    assert!(missing.is_empty(), "what is not there is not zero");
}
