//! Steering on the running kernel: what is set is there, packets go where they are sent, and what belongs to the host is put
//! back, whatever becomes of the process.
//!
//! The settings of the host are touched through the journal that every run uses, since these may go on beside the tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::journal::{DEFAULT_DIRECTORY, DIRECTORY_VARIABLE, Guard, JournalError};
use lab::plan::{Chain, Offload, Table};
use lab::steering::{CpuMask, DeviceSteering, HostSteering, QueueMasks, SteeringError};
use lab::{HostSettings, Lab, Plan, Port};
use linux::cpumask;
use linux::netns::Netns;
use linux::netsysfs::{Attribute, NetSysfs};
use linux::nft::{Family, Hook, PRIORITY_RAW, filler_rules};
use linux::packet::{FrameBatch, PROTOCOL_NONE, PacketSocket};
use linux::privilege::test_may_run;
use linux::procfs::{self, SoftnetCpu};
use linux::route::RouteSocket;

const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// gen — sys over a veth with so many queues, s0 with GRO (and so with NAPI) or without.
fn pair(queues: u32, gro: bool) -> Lab {
    Lab::build(&pair_plan(queues, gro)).unwrap()
}

fn pair_plan(queues: u32, gro: bool) -> Plan {
    let [near, far] = ["198.18.0.1", "198.18.0.2"].map(|text| text.parse().unwrap());
    let mut plan = Plan::new();
    plan.namespace("gen").namespace("sys");
    plan.veth(
        Port::new("gen", "g0").mac(NEAR).queues(queues),
        Port::new("sys", "s0").mac(FAR).queues(queues),
    );
    plan.address("gen", "g0", near, 24).address("sys", "s0", far, 24);
    plan.neighbour("gen", "g0", far, FAR).neighbour("sys", "s0", near, NEAR);
    plan.offload("sys", "s0", Offload::Gro, gro);
    plan
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_labs_device_takes_every_setting() {
    if !test_may_run("a_labs_device_takes_every_setting") {
        return;
    }
    let lab = pair(2, true);
    let steering = DeviceSteering {
        rps_cpus: Some(CpuMask::of([0]).into()),
        xps_cpus: Some(QueueMasks::Each(vec![CpuMask::of([0]), CpuMask::none()])),
        rps_flow_cnt: Some(100),
        threaded: Some(true),
        gro_flush_timeout_ns: Some(20_000),
        napi_defer_hard_irqs: Some(2),
    };
    let applied = steering.apply(&lab, "sys", "s0").unwrap();
    assert_eq!(applied.settings.len(), 9, "{applied:?}");

    // Asked again, by another mount of sysfs.
    let sysfs = NetSysfs::of(lab.netns("sys")).unwrap();
    let read = |attribute| sysfs.read("s0", attribute).unwrap();
    for queue in [0, 1] {
        assert_eq!(read(Attribute::RpsFlowCnt { queue }), "128", "rounded up");
        assert_eq!(read(Attribute::RpsCpus { queue }).parse(), Ok(CpuMask::of([0])));
        let expected = if queue == 0 { CpuMask::of([0]) } else { CpuMask::none() };
        assert_eq!(read(Attribute::XpsCpus { queue }).parse(), Ok(expected));
    }
    assert_eq!(read(Attribute::Threaded), "1");
    assert_eq!(
        (read(Attribute::GroFlushTimeout), read(Attribute::NapiDeferHardIrqs)),
        ("20000".into(), "2".into())
    );

    // A thread a queue, which can be told where to run.
    assert_eq!(applied.napi_threads.len(), 2, "{applied:?}");
    for thread in &applied.napi_threads {
        thread.pin(0).unwrap();
        assert!(thread.cpu_ns().is_some());
        let status = fs::read_to_string(format!("/proc/{}/status", thread.pid)).unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }

    // The other end, in another namespace, knows nothing of it; and neither has what it was not given.
    let other = NetSysfs::of(lab.netns("gen")).unwrap();
    assert_eq!(other.read("g0", Attribute::RpsFlowCnt { queue: 0 }).unwrap(), "0");
    assert!(other.read("s0", Attribute::Threaded).is_err() && sysfs.read("g0", Attribute::Threaded).is_err());

    let off = DeviceSteering {
        rps_cpus: Some("off".parse().unwrap()),
        rps_flow_cnt: Some(0),
        threaded: Some(false),
        ..DeviceSteering::default()
    };
    assert!(off.apply(&lab, "sys", "s0").unwrap().napi_threads.is_empty());
    assert_eq!(read(Attribute::RpsFlowCnt { queue: 1 }), "0");
}

#[test]
fn what_a_device_cannot_have_is_explained() {
    if !test_may_run("what_a_device_cannot_have_is_explained") {
        return;
    }
    let lab = pair(1, false);
    let refused = |steering: DeviceSteering| steering.apply(&lab, "sys", "s0").unwrap_err();
    let none = DeviceSteering::default;

    let error = refused(DeviceSteering { xps_cpus: Some("1".parse().unwrap()), ..none() });
    assert!(matches!(&error, SteeringError::Kernel { .. }), "{error}");
    assert!(error.to_string().contains("chooses among transmit queues"), "{error}");

    DeviceSteering { threaded: Some(false), ..none() }.apply(&lab, "sys", "s0").unwrap();
    let error = refused(DeviceSteering { threaded: Some(true), ..none() });
    assert!(error.to_string().contains("s0") && error.to_string().contains("GRO"), "{error}");

    let absent = cpumask::possible().unwrap().cpus().last().unwrap() + 1;
    let error = refused(DeviceSteering { rps_cpus: Some(CpuMask::of([absent]).into()), ..none() });
    assert!(matches!(&error, SteeringError::NoSuchCpu { .. }), "{error}");

    let any = DeviceSteering { rps_flow_cnt: Some(1), ..none() };
    let error = any.apply(&lab, "sys", "missing").unwrap_err();
    assert!(error.to_string().contains("missing") && error.to_string().contains("Name a device"), "{error}");
}

const FRAMES: u32 = 300;

fn softnet(cpu: usize) -> SoftnetCpu {
    let all = procfs::softnet_stat(&procfs::read_net("softnet_stat").unwrap());
    all.into_iter().find(|line| line.cpu as usize == cpu).unwrap()
}

/// What the frames did.
struct Went {
    /// The CPU that put the last of them into the socket.
    cpu: u32,
    /// By how much the counters of the other CPU grew: packets, and times that it was asked to take some. Other work on the machine
    /// adds to them.
    packets: u32,
    asked: u32,
}

/// Sends frames one by one from the CPU `here`, and awaits each.
fn send_from(lab: &Lab, here: usize, there: usize) -> Went {
    let (from, to): (SocketAddr, SocketAddr) =
        ("198.18.0.1:9".parse().unwrap(), "198.18.0.2:9".parse().unwrap());
    let receiver = lab.netns("sys").run(|| UdpSocket::bind(to).unwrap()).unwrap();
    // Only a connected socket notes the CPU (`__udp_queue_rcv_skb`, net/ipv4/udp.c, 6.18).
    receiver.connect(from).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let before = softnet(there);
    lab.netns("gen")
        .run(|| {
            linux::cpu::pin(here).unwrap();
            let sender = UdpSocket::bind(from).unwrap();
            for _ in 0..FRAMES {
                sender.send_to(&[0; 18], to).unwrap();
                receiver.recv(&mut [0; 64]).unwrap();
            }
        })
        .unwrap();
    let after = softnet(there);
    Went {
        cpu: rustix::net::sockopt::socket_incoming_cpu(&receiver).unwrap(),
        packets: after.processed.wrapping_sub(before.processed),
        asked: after.received_rps.unwrap().wrapping_sub(before.received_rps.unwrap()),
    }
}

#[test]
fn rps_hands_packets_to_the_other_cpu() {
    if !test_may_run("rps_hands_packets_to_the_other_cpu") {
        return;
    }
    let cpus = linux::cpu::allowed().unwrap();
    assert!(cpus.len() > 1, "receive packet steering needs two CPUs to be seen");
    let lab = pair(1, false);
    for (here, there) in [(cpus[0], cpus[1]), (cpus[1], cpus[0])] {
        let to = |mask| DeviceSteering { rps_cpus: Some(QueueMasks::All(mask)), ..DeviceSteering::default() };
        to(CpuMask::none()).apply(&lab, "sys", "s0").unwrap();
        assert_eq!(send_from(&lab, here, there).cpu as usize, here);
        to(CpuMask::of([there])).apply(&lab, "sys", "s0").unwrap();
        let went = send_from(&lab, here, there);
        assert_eq!(went.cpu as usize, there);
        assert!(went.packets >= FRAMES, "{} packets on CPU {there}", went.packets);
        assert!(went.asked > 0, "CPU {there} was never asked");
    }
}

/// An Ethernet frame with a UDP datagram of one flow, for s0.
fn frame() -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&FAR);
    frame[6..12].copy_from_slice(&NEAR);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    let sum: u32 =
        frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..42].copy_from_slice(&[0, 9, 0, 9, 0, 26, 0, 0]);
    frame
}

/// Where the flow limit counts: at the CPU that hands over, and as a drop at the one that would have been handed to, and at the
/// device. The first of these is gone when the limit is put back.
#[test]
fn the_flow_limit_counts_where_packets_come_from() {
    if !test_may_run("the_flow_limit_counts_where_packets_come_from") {
        return;
    }
    const BURST: usize = 200;
    let cpus = linux::cpu::allowed().unwrap();
    let [here, there] = [cpus[0], cpus[1]];
    // Many rules, so that the other CPU falls behind.
    let mut plan = pair_plan(1, false);
    let chain = Chain::at("pre", Hook::Prerouting, PRIORITY_RAW).rules(filler_rules(2000));
    plan.table("sys", Table::new(Family::Ip, "rules").chain(chain));
    let lab = Lab::build(&plan).unwrap();
    let to_there =
        DeviceSteering { rps_cpus: Some(CpuMask::of([there]).into()), ..DeviceSteering::default() };
    to_there.apply(&lab, "sys", "s0").unwrap();
    let settings = HostSettings::open_default().unwrap();
    originals();
    let limit = HostSteering { flow_limit_cpus: Some(CpuMask::of([here])), ..HostSteering::default() };
    let guards = limit.hold(&settings).unwrap();
    let before = (softnet(here), softnet(there));
    lab.netns("gen")
        .run(|| {
            linux::cpu::pin(here).unwrap();
            let ifindex = lab.device("gen", "g0").ifindex;
            // What waits in the other CPU's backlog still counts as what its socket sends, so one socket would be held back by its
            // send buffer long before the backlog is half full.
            let sockets: Vec<PacketSocket> =
                (0..16).map(|_| PacketSocket::open(ifindex, PROTOCOL_NONE).unwrap()).collect();
            let mut batch = FrameBatch::new(BURST, 60).unwrap();
            (0..BURST).for_each(|index| batch.frame_mut(index).copy_from_slice(&frame()));
            let mut bursts = 0;
            wait_for("a packet of a flow that has too many in the backlog", || {
                assert!(bursts < 100, "the backlog was never half full");
                bursts += 1;
                for socket in &sockets {
                    socket.send_batch(&mut batch, 0, BURST).unwrap();
                }
                (softnet(here).flow_limited > before.0.flow_limited).then_some(())
            });
        })
        .unwrap();
    let after = (softnet(here), softnet(there));
    let limited = after.0.flow_limited.unwrap() - before.0.flow_limited.unwrap();
    let dropped = after.1.dropped.wrapping_sub(before.1.dropped);
    assert_eq!(after.1.flow_limited, before.1.flow_limited, "the CPU that was to take them");
    assert!(dropped >= limited, "{dropped} dropped there, {limited} by the flow limit");
    let stats = |role: &str, device: &str| {
        let mut socket = lab.netns(role).run(RouteSocket::open).unwrap().unwrap();
        socket.link_stats(lab.device(role, device).ifindex).unwrap()
    };
    let (rx_dropped, tx_dropped) = (stats("sys", "s0").rx_dropped, stats("gen", "g0").tx_dropped);
    assert!(rx_dropped >= u64::from(limited), "{rx_dropped} by the device, {limited} by the flow limit");
    assert_eq!(tx_dropped, rx_dropped, "the same packets, once more at the sending end of a veth");
    drop(guards);
    assert_eq!(softnet(here).flow_limited, Some(0), "the counter goes with the limit");
}

/// What all of this is: values that nobody has by accident.
fn everything() -> (HostSteering, DeviceSteering) {
    let host = HostSteering {
        rps_sock_flow_entries: Some(3000),
        flow_limit_cpus: Some(CpuMask::of([0])),
        flow_limit_table_len: Some(2048),
        netdev_max_backlog: Some(1234),
        netdev_budget: Some(321),
        netdev_budget_usecs: Some(23_456),
    };
    // Of the loopback, on which nothing depends: it has no NAPI, and the masks move its packets for a moment.
    let device = DeviceSteering {
        rps_cpus: Some(CpuMask::of([0]).into()),
        rps_flow_cnt: Some(64),
        gro_flush_timeout_ns: Some(4321),
        napi_defer_hard_irqs: Some(3),
        ..DeviceSteering::default()
    };
    (host, device)
}

const FILES: [(&str, &str); 10] = [
    ("/proc/sys/net/core/rps_sock_flow_entries", "4096"),
    ("/proc/sys/net/core/flow_limit_cpu_bitmap", "1"),
    ("/proc/sys/net/core/flow_limit_table_len", "2048"),
    ("/proc/sys/net/core/netdev_max_backlog", "1234"),
    ("/proc/sys/net/core/netdev_budget", "321"),
    ("/proc/sys/net/core/netdev_budget_usecs", "23456"),
    ("/sys/class/net/lo/queues/rx-0/rps_cpus", "1"),
    ("/sys/class/net/lo/queues/rx-0/rps_flow_cnt", "64"),
    ("/sys/class/net/lo/gro_flush_timeout", "4321"),
    ("/sys/class/net/lo/napi_defer_hard_irqs", "3"),
];

fn values() -> Vec<String> {
    FILES.iter().map(|(path, _)| fs::read_to_string(path).unwrap()).collect()
}

fn is_in_place(values: &[String]) -> bool {
    let digits = |text: &str| text.trim().trim_start_matches(['0', ',']).to_owned();
    values.iter().zip(FILES).all(|(value, (_, held))| digits(value) == held)
}

fn journal() -> std::path::PathBuf {
    std::env::var_os(DIRECTORY_VARIABLE).map_or(DEFAULT_DIRECTORY.into(), Into::into)
}

/// The values while nobody has borrowed one of these settings.
fn originals() -> Vec<String> {
    wait_for("the host's steering is nobody's", || {
        let borrowed = || {
            let text = fs::read_to_string(journal().join("originals.json")).unwrap_or_default();
            FILES.iter().any(|(path, _)| text.contains(path))
        };
        let before = borrowed();
        let values = values();
        (!before && !borrowed()).then_some(values)
    })
}

fn hold(settings: &HostSettings) -> Result<Vec<Guard>, SteeringError> {
    let (host, device) = everything();
    let mut guards = host.hold(settings)?;
    guards.extend(device.hold(settings, "lo")?);
    Ok(guards)
}

#[test]
fn the_hosts_settings_are_held_and_put_back() {
    if !test_may_run("the_hosts_settings_are_held_and_put_back") {
        return;
    }
    let elsewhere = Netns::unnamed().unwrap();
    let settings = HostSettings::open_default().unwrap();
    settings.clean().unwrap();
    let before = originals();
    // From the thread that opened the journal, and from one that is where these settings are not to be seen.
    let here = || {
        let guards = hold(&settings).unwrap();
        assert!(is_in_place(&values()), "{:?}", values());
        let other = HostSteering { netdev_max_backlog: Some(4321), ..HostSteering::default() };
        let error = other.hold(&settings).unwrap_err();
        assert!(matches!(&error, SteeringError::Journal(JournalError::Conflict { .. })), "{error}");
        let read = HostSteering::read(&settings);
        assert_eq!(read, HostSteering { rps_sock_flow_entries: Some(4096), ..everything().0 });
        drop(guards);
    };
    here();
    assert_eq!(values(), before);
    let there = || {
        assert!(!Path::new(FILES[3].0).exists(), "a namespace of its own has a backlog length");
        let guards = hold(&settings).unwrap();
        let held: Vec<String> = FILES.iter().map(|(path, _)| settings.read(path).unwrap()).collect();
        assert!(is_in_place(&held), "{held:?}");
        drop(guards);
    };
    elsewhere.run(there).unwrap();
    assert_eq!(values(), before, "given back on the thread in the other namespace");

    // The kernel has a least value that depends on its clock. What had been changed before it is put back.
    let short =
        HostSteering { netdev_budget_usecs: Some(1), netdev_budget: Some(321), ..HostSteering::default() };
    let error = short.hold(&settings).unwrap_err();
    assert!(matches!(&error, SteeringError::Value { .. }) && error.to_string().contains("ticks"), "{error}");
    assert_eq!(values(), before);

    // Opened there, it cannot reach them, and says what to do.
    let lost = elsewhere.run(|| hold(&HostSettings::open_default().unwrap()).unwrap_err()).unwrap();
    assert!(lost.to_string().contains("network namespace of the host"), "{lost}");
    assert_eq!(values(), before);
}

const CHILD: &str = "PERPACKET_TEST_HOLD_STEERING";

#[test]
fn a_kill_leaves_what_the_next_start_puts_back() {
    const NAME: &str = "a_kill_leaves_what_the_next_start_puts_back";
    if !test_may_run(NAME) {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        hold_until_killed();
    }
    let elsewhere = Netns::unnamed().unwrap();
    let settings = HostSettings::open_default().unwrap();
    settings.clean().unwrap();
    let before = originals();
    assert!(!is_in_place(&before));
    let found_changed = (0..10).any(|_| {
        let mut child = start(NAME);
        wait_for("the child holds everything", || {
            assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
            is_in_place(&values()).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let left = values();
        if is_in_place(&left) {
            // A start in another namespace puts back what it can, and does not take the rest for gone.
            let report = elsewhere.run(|| HostSettings::open_default().unwrap().clean().unwrap()).unwrap();
            assert!(report.gone.is_empty(), "{report:?}");
        }
        let report = settings.clean().unwrap();
        assert!(report.failed.is_empty() && report.gone.is_empty(), "{report:?}");
        assert_eq!(values(), before, "all of them, to the byte");
        // Another start may have been faster; then this was no trial.
        let seen =
            report.restored.iter().filter(|restored| restored.path.starts_with("/proc/sys/net/core")).count();
        is_in_place(&left) && seen == 6
    });
    assert!(found_changed, "the kill never left a setting changed: nothing was tried");
}

fn start(name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Ends itself should who started it end without killing it: its standard input ends then.
fn hold_until_killed() -> ! {
    let settings = HostSettings::open_default().unwrap();
    let guards = hold(&settings).unwrap();
    let end = std::io::stdin().read_to_end(&mut Vec::new());
    drop(guards);
    drop(end);
    std::process::exit(0);
}
