//! Labs on the running kernel: what is planned is there, is silent, works, and is gone afterwards.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use lab::counters::{Key, Place, Reader, RuleCounter, diff};
use lab::plan::{Chain, Offload, Table};
use lab::{Lab, LabError, Plan, Port};
use linux::nft::{Family, Hook, Match, NftSocket, PRIORITY_RAW, Rule, filler_rules};
use linux::privilege::test_may_run;
use linux::route::{LinkStats, RouteSocket};

const GEN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SYS_NEAR: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SYS_FAR: [u8; 6] = [2, 0, 0, 0, 0, 3];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 4];

/// Addresses of generator, system (near and far side) and sink: IPv4 or IPv6.
fn addresses(v6: bool) -> [IpAddr; 4] {
    let texts = if v6 {
        ["2001:2:0:1::1", "2001:2:0:1::2", "2001:2:0:2::1", "2001:2:0:2::2"]
    } else {
        ["198.18.0.1", "198.18.0.2", "198.18.1.1", "198.18.1.2"]
    };
    texts.map(|text| text.parse().unwrap())
}

/// gen — sys — far, where sys forwards and far counts and drops what arrives at its device.
fn three_namespaces(v6: bool) -> Plan {
    let [gen_ip, near_ip, far_side_ip, far_ip] = addresses(v6);
    let bits = if v6 { 64 } else { 24 };
    let mut plan = Plan::new();
    for role in ["gen", "sys", "far"] {
        if v6 {
            plan.namespace_with_ipv6(role)
        } else {
            plan.namespace(role)
        };
    }
    plan.veth(Port::new("gen", "g0").mac(GEN), Port::new("sys", "s0").mac(SYS_NEAR).queues(1));
    plan.veth(Port::new("sys", "s1").mac(SYS_FAR), Port::new("far", "f0").mac(FAR));
    plan.address("gen", "g0", gen_ip, bits).address("sys", "s0", near_ip, bits);
    plan.address("sys", "s1", far_side_ip, bits).address("far", "f0", far_ip, bits);
    plan.neighbour("gen", "g0", near_ip, SYS_NEAR).neighbour("sys", "s1", far_ip, FAR);
    plan.neighbour("sys", "s0", gen_ip, GEN);
    plan.route("gen", (far_ip, if v6 { 128 } else { 32 }), Some(near_ip), "g0");
    if v6 {
        plan.forwarding6("sys")
    } else {
        plan.forwarding("sys")
    };
    plan.offload("far", "f0", Offload::Gro, true);
    plan.offload("gen", "g0", Offload::UdpSegmentation, false);
    let counted = Rule::count_and_drop().matching(Match::Destination(far_ip)).counting_into("arrived");
    plan.table(
        "far",
        Table::new(Family::Netdev, "sink")
            .counter("arrived")
            .chain(Chain::at_device("in", "f0").rule(counted)),
    );
    let family = if v6 { Family::Ip6 } else { Family::Ip };
    let fillers = if v6 { 0 } else { 50 };
    let chain = Chain::at("pre", Hook::Prerouting, PRIORITY_RAW).rules(filler_rules(fillers));
    plan.table("sys", Table::new(family, "rules").chain(chain));
    plan
}

fn all_stats(lab: &Lab) -> Vec<(String, LinkStats)> {
    lab.devices()
        .iter()
        .map(|device| {
            let mut socket = lab.netns(&device.role).run(RouteSocket::open).unwrap().unwrap();
            (device.name.clone(), socket.link_stats(device.ifindex).unwrap())
        })
        .collect()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every packet sent from gen crosses sys and is counted in far.
fn forwards_everything(v6: bool) {
    let lab = Lab::build(&three_namespaces(v6)).unwrap();
    let [gen_ip, _, _, far_ip] = addresses(v6);
    lab.netns("gen")
        .run(|| {
            let socket = UdpSocket::bind(SocketAddr::new(gen_ip, 0)).unwrap();
            for _ in 0..100 {
                socket.send_to(&[0; 18], SocketAddr::new(far_ip, 9)).unwrap();
            }
        })
        .unwrap();
    let mut nft = lab.netns("far").run(NftSocket::open).unwrap().unwrap();
    wait_for("100 packets at the far end", || {
        nft.named_counter(Family::Netdev, "sink", "arrived").unwrap().packets == 100
    });
    for (device, stats) in all_stats(&lab) {
        let (tx, rx) = if device == "g0" || device == "s1" { (100, 0) } else { (0, 100) };
        assert_eq!((stats.tx_packets, stats.rx_packets), (tx, rx), "{device}: nothing but the 100");
    }
}

#[test]
fn an_ipv4_lab_forwards_everything() {
    if test_may_run("an_ipv4_lab_forwards_everything") {
        forwards_everything(false);
    }
}

#[test]
fn an_ipv6_lab_forwards_everything() {
    if test_may_run("an_ipv6_lab_forwards_everything") {
        forwards_everything(true);
    }
}

#[test]
fn counters_show_where_packets_went() {
    if !test_may_run("counters_show_where_packets_went") {
        return;
    }
    let mut plan = three_namespaces(false);
    let [gen_ip, near_ip, _, far_ip] = addresses(false);
    plan.route("gen", ("198.18.9.9".parse().unwrap(), 32), Some(near_ip), "g0");
    let lab = Lab::build(&plan).unwrap();
    let arrived = RuleCounter::new(Family::Netdev, "sink", "arrived");
    let mut sys = Reader::open(&lab, "sys", &[]).unwrap();
    let mut far = Reader::open(&lab, "far", std::slice::from_ref(&arrived)).unwrap();
    let before = (sys.read().unwrap(), far.read().unwrap());
    lab.netns("gen")
        .run(|| {
            let socket = UdpSocket::bind(SocketAddr::new(gen_ip, 0)).unwrap();
            // Ten that are forwarded, three for which sys has no route, two for a port of sys where nobody
            // listens.
            for (count, to) in [(10, far_ip), (3, "198.18.9.9".parse().unwrap()), (2, near_ip)] {
                for _ in 0..count {
                    // A second datagram to the closed port may be told of the first one's fate instead.
                    let _ = socket.send_to(&[0; 18], SocketAddr::new(to, 9));
                }
            }
        })
        .unwrap();
    let mut after = before.clone();
    wait_for("ten packets at the far end", || {
        after = (sys.read().unwrap(), far.read().unwrap());
        after.1.get(arrived.place(), "packets") == Some(10)
    });
    let (in_sys, in_far) = (diff(&before.0, &after.0), diff(&before.1, &after.1));
    let grown = |name: &str| in_sys.get(&Key::new(Place::Protocol, name)).copied();
    assert_eq!(grown("Ip.InReceives"), Some(15), "{in_sys:?}");
    assert_eq!((grown("IpExt.InNoRoutes"), grown("Udp.NoPorts")), (Some(3), Some(2)), "{in_sys:?}");
    let link = |name: &str| in_far.get(&Key::new(Place::Link("f0".to_owned()), name)).copied();
    assert_eq!(
        (link("rx_packets"), link("rx_bytes"), link("tx_packets")),
        (Some(10), Some(600), None),
        "{in_far:?}"
    );
    assert!(after.1.get(Place::Driver("f0".to_owned()), "rx_queue_0_xdp_drops") == Some(0), "{in_far:?}");
    assert!(after.1.iter().any(|(key, _)| key.place == Place::Softnet(0)));
}

/// Polls for a while: a packet of its own accord would come soon after the devices are on.
fn stays_silent(plan: &Plan, watch: Duration) {
    let lab = Lab::build(plan).unwrap();
    let end = Instant::now() + watch;
    while Instant::now() < end {
        for (device, stats) in all_stats(&lab) {
            assert_eq!(
                stats,
                LinkStats { rx_otherhost_dropped: Some(0), ..LinkStats::default() },
                "{device}"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_lab_sends_nothing() {
    if !test_may_run("an_idle_lab_sends_nothing") {
        return;
    }
    let mut bridged = Plan::new();
    bridged.namespace("gen").namespace("sys").namespace("far");
    bridged.veth(Port::new("gen", "g0"), Port::new("sys", "s0"));
    bridged.veth(Port::new("sys", "s1"), Port::new("far", "f0"));
    bridged.bridge("sys", "br", &["s0", "s1"]).station("sys", "s1", FAR);
    bridged.address("gen", "g0", addresses(false)[0], 24).address("far", "f0", addresses(false)[1], 24);
    std::thread::scope(|scope| {
        for plan in [three_namespaces(false), three_namespaces(true), bridged] {
            scope.spawn(move || stays_silent(&plan, Duration::from_millis(400)));
        }
    });
}

#[test]
fn a_setting_reaches_the_devices_made_after_it() {
    if !test_may_run("a_setting_reaches_the_devices_made_after_it") {
        return;
    }
    let mut plan = Plan::new();
    plan.namespace("gen").namespace("sys").rps_mask("sys", "1");
    plan.veth(Port::new("gen", "g0"), Port::new("sys", "s0").queues(2));
    plan.late_setting("sys", "net/ipv4/conf/s0/rp_filter", "1");
    let lab = Lab::build(&plan).unwrap();
    let (queues, filter) = lab
        .netns("sys")
        .run(|| {
            // sysfs shows the namespace it was mounted in, so the mask is asked for where it was set.
            (
                linux::sysctl::read("net.core.rps_default_mask"),
                linux::sysctl::read("net/ipv4/conf/s0/rp_filter"),
            )
        })
        .unwrap();
    assert_eq!((queues.unwrap().as_str(), filter.unwrap().as_str()), ("1", "1"));
    assert_eq!(lab.device("sys", "s0").rx_queues, Some(2));
}

#[test]
fn a_step_that_the_kernel_refuses_is_named() {
    if !test_may_run("a_step_that_the_kernel_refuses_is_named") {
        return;
    }
    let mut plan = three_namespaces(false);
    plan.late_setting("sys", "net/ipv4/no_such_setting", "1");
    let error = Lab::build(&plan).unwrap_err();
    assert!(
        matches!(&error, LabError::Step { cause, .. } if cause.object.contains("no_such_setting")),
        "{error}"
    );
    assert!(error.to_string().contains("in sys, set net/ipv4/no_such_setting to 1"), "{error}");
}

/// The network namespaces that any process of the machine is in or holds a descriptor of.
fn namespaces() -> HashSet<u64> {
    let mut found = HashSet::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let tasks = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        found.extend(tasks.filter_map(|task| Some(fs::metadata(task.path().join("ns/net")).ok()?.ino())));
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        found.extend(descriptors.filter_map(|fd| {
            let target = fs::read_link(fd.path()).ok()?;
            target.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse::<u64>().ok()
        }));
    }
    found
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn host_links() -> Vec<String> {
    RouteSocket::open().unwrap().links().unwrap().into_iter().map(|link| link.name).collect()
}

/// Run alone in its process (see below), so that no other test's labs are counted.
#[test]
fn fifty_labs_leave_nothing() {
    const ALONE: &str = "PERPACKET_TEST_ALONE";
    const NAME: &str = "fifty_labs_leave_nothing";
    if !test_may_run(NAME) {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().unwrap();
        let arguments = [NAME, "--exact", "--nocapture", "--test-threads=1"];
        let output = std::process::Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let plan = three_namespaces(false);
    drop(Lab::build(&plan).unwrap());
    let (fds, links, before) = (descriptors(), host_links(), namespaces());
    let mut made = HashSet::new();
    for _ in 0..50 {
        let lab = Lab::build(&plan).unwrap();
        made.extend(["gen", "sys", "far"].map(|role| lab.netns(role).inum().unwrap()));
    }
    assert!(made.len() > 2, "the labs had namespaces of their own");
    wait_for("descriptors as before", || descriptors() == fds);
    assert_eq!(host_links(), links);
    // Other processes may make namespaces meanwhile; none of ours may be left in anyone's hands.
    wait_for("no namespace of the labs is held", || {
        namespaces().difference(&before).all(|inum| !made.contains(inum))
    });
}

#[test]
fn a_device_with_a_default_route_is_refused() {
    if !linux::privilege::test_may_run("a_device_with_a_default_route_is_refused") {
        return;
    }
    let mut plan = Plan::new();
    plan.namespace("a").namespace("b");
    plan.veth(Port::new("a", "outside"), Port::new("b", "there"));
    plan.address("a", "outside", "198.18.0.1".parse().unwrap(), 24);
    plan.neighbour("a", "outside", "198.18.0.2".parse().unwrap(), [2, 0, 0, 0, 0, 2]);
    let lab = Lab::build(&plan).unwrap();
    let named = |name: &'static str| lab.netns("a").run(|| lab::named_device(name)).unwrap();
    assert_eq!(named("outside").unwrap().name, "outside");
    assert!(named("missing").unwrap_err().to_string().contains("outside"));

    plan.route("a", ("0.0.0.0".parse().unwrap(), 0), Some("198.18.0.2".parse().unwrap()), "outside");
    let lab = Lab::build(&plan).unwrap();
    let refused = lab.netns("a").run(|| lab::named_device("outside")).unwrap().unwrap_err();
    assert!(matches!(refused, lab::NamedDeviceError::DefaultRoute { .. }), "{refused}");
}

#[test]
fn a_device_that_shares_a_wire_with_a_default_route_is_refused() {
    if !test_may_run("a_device_that_shares_a_wire_with_a_default_route_is_refused") {
        return;
    }
    let (near, far): (IpAddr, IpAddr) = ("198.18.0.1".parse().unwrap(), "198.18.0.2".parse().unwrap());
    let mut plan = Plan::new();
    plan.namespace("a").namespace("b");
    plan.veth(Port::new("a", "port"), Port::new("b", "there"));
    plan.veth(Port::new("a", "pair0"), Port::new("a", "pair1"));
    let lab = Lab::build(&plan).unwrap();
    let netns = lab.netns("a");
    let named = |name: &'static str| netns.run(|| lab::named_device(name)).unwrap();
    let carrier = |name| match named(name) {
        Err(lab::NamedDeviceError::DefaultRoute { carrier, .. }) => Some(carrier),
        other => {
            assert_eq!(other.unwrap().name, name);
            None
        }
    };
    let mut socket = netns.run(RouteSocket::open).unwrap().unwrap();
    let index = |socket: &mut RouteSocket, name: &str| socket.link_by_name(name).unwrap().unwrap().ifindex;

    socket.create_bridge("br").unwrap();
    let (port, br, pair0) =
        (index(&mut socket, "port"), index(&mut socket, "br"), index(&mut socket, "pair0"));
    socket.set_up(br).unwrap();
    socket.set_master(port, br).unwrap();
    socket.add_address(br, near, 24).unwrap();
    assert_eq!(carrier("port"), None);
    socket.add_route(("0.0.0.0".parse().unwrap(), 0), Some(far), br).unwrap();
    assert_eq!((carrier("br").as_deref(), carrier("port").as_deref()), (Some("br"), Some("br")));
    assert_eq!((carrier("pair0"), carrier("lo")), (None, None));
    socket.delete_link(br).unwrap();

    // The other end of a pair is a wire of its own, though its number stands where a VLAN's lower device does.
    let halves = [("0.0.0.0".parse().unwrap(), 1), ("128.0.0.0".parse().unwrap(), 1)];
    socket.add_address(pair0, near, 24).unwrap();
    for half in halves {
        socket.add_route(half, Some(far), pair0).unwrap();
    }
    assert_eq!((carrier("pair0").as_deref(), carrier("pair1")), (Some("pair0"), None));

    for (above, kind) in [("mv0", "macvlan"), ("vl0", "vlan")] {
        let mut ip = std::process::Command::new("ip");
        ip.args(["link", "add", "link", "pair0", "name", above, "type", kind]);
        if kind == "vlan" {
            ip.args(["id", "5"]);
        }
        match netns.run(|| ip.output()).unwrap() {
            Ok(output) if output.status.success() => assert_eq!(carrier(above).as_deref(), Some("pair0")),
            other => eprintln!("SKIPPED: no {kind} can be made here: {other:?}"),
        }
    }
}
