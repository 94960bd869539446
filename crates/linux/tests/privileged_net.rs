//! Namespaces, links, routes, packet-filter rules and device settings against the running kernel.
//!
//! Everything happens in namespaces made here, without names. Needs root; says so where it is not.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linux::ethtool::EthtoolSocket;
use linux::netns::Netns;
use linux::nft::{
    BaseChain, Batch, Count, Counted, Family, Hook, Match, NftSocket, PRIORITY_RAW, Rule, Verdict,
    filler_rules,
};
use linux::privilege::test_may_run;
use linux::route::{Link, RouteSocket, VethEnd};
use linux::sysctl;

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const ADDRESS_A: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const ADDRESS_B: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

/// Two namespaces joined by a veth pair `va`-`vb`, with addresses, neighbours and no IPv6.
struct Pair {
    a: Netns,
    b: Netns,
    in_a: RouteSocket,
    in_b: RouteSocket,
    va: u32,
    vb: u32,
}

impl Pair {
    fn new() -> Self {
        let (a, b) = (Netns::unnamed().unwrap(), Netns::unnamed().unwrap());
        for netns in [&a, &b] {
            netns.run(|| sysctl::write("net.ipv6.conf.default.disable_ipv6", "1")).unwrap().unwrap();
        }
        let open = |netns: &Netns| netns.run(RouteSocket::open).unwrap().unwrap();
        let (mut in_a, mut in_b) = (open(&a), open(&b));
        let end_a = VethEnd {
            mac: Some(MAC_A),
            mtu: Some(1400),
            tx_queues: Some(3),
            rx_queues: Some(2),
            ..VethEnd::new("va")
        };
        let end_b = VethEnd { mac: Some(MAC_B), netns: Some(b.as_fd()), ..VethEnd::new("vb") };
        in_a.create_veth(&end_a, &end_b).unwrap();
        let va = in_a.link_by_name("va").unwrap().unwrap().ifindex;
        let vb = in_b.link_by_name("vb").unwrap().unwrap().ifindex;
        for (socket, index, own, other, mac) in
            [(&mut in_a, va, ADDRESS_A, ADDRESS_B, MAC_B), (&mut in_b, vb, ADDRESS_B, ADDRESS_A, MAC_A)]
        {
            socket.add_address(index, own, 24).unwrap();
            socket.set_up(index).unwrap();
            socket.add_neighbour(index, other, mac).unwrap();
        }
        // Until the kernel has noticed that the peer is on, a device drops what it is given.
        for (socket, name) in [(&mut in_a, "va"), (&mut in_b, "vb")] {
            let operational = |link: Link| (link.oper_state == Some(6)).then_some(());
            wait_for("an operational device", || operational(socket.link_by_name(name).unwrap().unwrap()));
        }
        Self { a, b, in_a, in_b, va, vb }
    }

    /// Sends UDP datagrams of 18 bytes (frames of 64 with FCS) from A to port 9 of B.
    fn send(&self, datagrams: usize) {
        self.a
            .run(|| {
                let socket = UdpSocket::bind(SocketAddr::new(ADDRESS_A, 0)).unwrap();
                for _ in 0..datagrams {
                    socket.send_to(&[0; 18], SocketAddr::new(ADDRESS_B, 9)).unwrap();
                }
            })
            .unwrap();
    }
}

/// Waits until `found` gives a value, at most five seconds.
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn namespaces_are_apart_and_have_numbers() {
    if !test_may_run("namespaces_are_apart_and_have_numbers") {
        return;
    }
    let host = Netns::current().unwrap();
    let (a, b) = (Netns::unnamed().unwrap(), Netns::unnamed().unwrap());
    let inums: HashSet<u64> = [&host, &a, &b].map(|netns| netns.inum().unwrap()).into();
    let cookies: HashSet<u64> = [&host, &a, &b].map(|netns| netns.net_cookie().unwrap()).into();
    assert_eq!((inums.len(), cookies.len()), (3, 3));
    let inside = a.run(|| Netns::current().unwrap().inum().unwrap()).unwrap();
    assert_eq!(inside, a.inum().unwrap());
    assert_eq!(
        Netns::current().unwrap().inum().unwrap(),
        host.inum().unwrap(),
        "the caller stays where it is"
    );
    let panic = std::panic::catch_unwind(|| a.run(|| panic!("as asked")));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"as asked"));
}

#[test]
fn a_queueing_discipline_is_installed_and_counts() {
    if !test_may_run("a_queueing_discipline_is_installed_and_counts") {
        return;
    }
    let mut pair = Pair::new();
    assert_eq!(pair.in_a.root_qdisc_stats(pair.va).unwrap().unwrap().kind, "noqueue");
    pair.in_a.set_root_qdisc(pair.va, "pfifo").unwrap();
    pair.send(10);
    let stats = pair.in_a.root_qdisc_stats(pair.va).unwrap().unwrap();
    assert_eq!((stats.kind.as_str(), stats.packets, stats.drops, stats.queued), ("pfifo", 10, 0, 0));
    let error = pair.in_b.set_root_qdisc(pair.vb, "no_such").unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("CONFIG_NET_SCH_NO_SUCH"), "{error}");
    // It drops all that it gets, and the sender is not told.
    pair.in_b.set_root_qdisc(pair.vb, "blackhole").unwrap();
    pair.b
        .run(|| {
            UdpSocket::bind(SocketAddr::new(ADDRESS_B, 0)).unwrap().send_to(&[0; 18], (ADDRESS_A, 9)).unwrap()
        })
        .unwrap();
    let stats = pair.in_b.root_qdisc_stats(pair.vb).unwrap().unwrap();
    assert_eq!((stats.packets, stats.drops), (0, 1));
}

#[test]
fn a_veth_pair_is_made_as_asked() {
    if !test_may_run("a_veth_pair_is_made_as_asked") {
        return;
    }
    let mut pair = Pair::new();
    let va = pair.in_a.link_by_name("va").unwrap().unwrap();
    let vb = pair.in_b.link_by_name("vb").unwrap().unwrap();
    assert_eq!((va.mac, va.mtu, va.tx_queues, va.rx_queues), (Some(MAC_A), 1400, Some(3), Some(2)));
    assert_eq!((va.kind.as_deref(), va.xdp, va.up), (Some("veth"), None, true));
    assert_eq!((va.peer_ifindex, vb.peer_ifindex), (Some(vb.ifindex), Some(va.ifindex)));
    assert!(va.peer_in_other_netns && vb.peer_in_other_netns);
    assert_eq!(
        pair.in_a.links().unwrap().iter().map(|link| link.name.as_str()).collect::<Vec<_>>(),
        ["lo", "va"]
    );

    let again = pair.in_a.create_veth(&VethEnd::new("va"), &VethEnd::new("vc")).unwrap_err();
    assert_eq!(again.errno(), Some(libc::EEXIST));
    let long = pair.in_a.create_bridge("a-name-of-16-byte").unwrap_err();
    assert!(long.detail.is_some(), "the kernel explains a name that is too long: {long}");
    assert_eq!(pair.in_a.link_by_name("vb").unwrap(), None);

    pair.in_a.set_down(va.ifindex).unwrap();
    pair.in_a.set_mac(va.ifindex, [2, 0, 0, 0, 0, 0xc]).unwrap();
    pair.in_a.set_mtu(va.ifindex, 1300).unwrap();
    let va = pair.in_a.link_by_name("va").unwrap().unwrap();
    assert_eq!((va.up, va.mac, va.mtu), (false, Some([2, 0, 0, 0, 0, 0xc]), 1300));
    pair.in_a.delete_link(va.ifindex).unwrap();
    assert_eq!(pair.in_b.link_by_name("vb").unwrap(), None, "a veth takes its peer with it");
    assert_eq!(pair.in_a.link_stats(va.ifindex).unwrap_err().errno(), Some(libc::ENODEV));
}

#[test]
fn default_routes_name_their_devices() {
    if !test_may_run("default_routes_name_their_devices") {
        return;
    }
    let mut pair = Pair::new();
    assert_eq!(pair.in_a.default_route_ifindexes().unwrap(), []);
    pair.in_a.add_route((IpAddr::V4(Ipv4Addr::new(198, 19, 0, 0)), 16), Some(ADDRESS_B), pair.va).unwrap();
    assert_eq!(pair.in_a.default_route_ifindexes().unwrap(), [], "a route to a network is no default route");
    pair.in_a.add_route((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), Some(ADDRESS_B), pair.va).unwrap();
    assert_eq!(pair.in_a.default_route_ifindexes().unwrap(), [pair.va]);
    let far = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let refused =
        pair.in_b.add_route((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), Some(far), pair.vb).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ENETUNREACH));
}

#[test]
fn ipv6_can_be_set_up_as_well() {
    if !test_may_run("ipv6_can_be_set_up_as_well") {
        return;
    }
    let netns = Netns::unnamed().unwrap();
    let mut socket = netns.run(RouteSocket::open).unwrap().unwrap();
    socket.create_veth(&VethEnd::new("va"), &VethEnd::new("vb")).unwrap();
    let index = |socket: &mut RouteSocket, name| socket.link_by_name(name).unwrap().unwrap().ifindex;
    let (va, vb) = (index(&mut socket, "va"), index(&mut socket, "vb"));
    let far = "2001:2::2".parse().unwrap();
    socket.set_no_link_local(va).unwrap();
    socket.add_address(va, "2001:2::1".parse().unwrap(), 64).unwrap();
    socket.set_up(va).unwrap();
    socket.set_up(vb).unwrap();
    socket.add_neighbour(va, far, MAC_B).unwrap();
    socket.add_route(("2001:2:0:1::".parse().unwrap(), 64), Some(far), va).unwrap();
    assert_eq!(socket.default_route_ifindexes().unwrap(), []);
    socket.add_route(("::".parse().unwrap(), 0), Some(far), va).unwrap();
    assert_eq!(socket.default_route_ifindexes().unwrap(), [va]);
}

#[test]
fn a_bridge_learns_what_it_is_told() {
    if !test_may_run("a_bridge_learns_what_it_is_told") {
        return;
    }
    let mut pair = Pair::new();
    let station = [2, 0, 0, 0, 0, 0x77];
    assert!(pair.in_b.add_fdb(pair.vb, station).is_err(), "not a port yet");
    pair.in_b.create_bridge("br").unwrap();
    let bridge = pair.in_b.link_by_name("br").unwrap().unwrap();
    assert_eq!(bridge.kind.as_deref(), Some("bridge"));
    pair.in_b.set_master(pair.vb, bridge.ifindex).unwrap();
    pair.in_b.add_fdb(pair.vb, station).unwrap();
    assert_eq!(pair.in_b.link_by_name("vb").unwrap().unwrap().master_ifindex, Some(bridge.ifindex));
    assert_eq!(pair.in_b.add_fdb(pair.vb, station).unwrap_err().errno(), Some(libc::EEXIST));
}

/// A table whose chain drops what goes to port 9 behind `fillers` rules, and counts it by name and by rule.
fn raw_drop(fillers: usize) -> Batch {
    let mut batch = Batch::new();
    batch.add_table(Family::Ip, "t").add_counter(Family::Ip, "t", "arrived").add_base_chain(&BaseChain {
        family: Family::Ip,
        table: "t",
        name: "pre",
        hook: Hook::Prerouting,
        priority: PRIORITY_RAW,
        device: None,
        policy: Verdict::Accept,
    });
    for rule in filler_rules(fillers) {
        batch.add_rule(Family::Ip, "t", "pre", &rule);
    }
    let counted = Rule { count: Some(Count::Named("arrived".to_owned())), ..Rule::default() };
    let dropped =
        Rule::count_and_drop().matching(Match::Destination(ADDRESS_B)).matching(Match::UdpDestinationPort(9));
    batch.add_rule(Family::Ip, "t", "pre", &counted).add_rule(Family::Ip, "t", "pre", &dropped);
    batch
}

#[test]
fn rules_drop_and_count_every_packet() {
    if !test_may_run("rules_drop_and_count_every_packet") {
        return;
    }
    let mut pair = Pair::new();
    let mut nft = pair.b.run(NftSocket::open).unwrap().unwrap();
    nft.commit(raw_drop(50)).unwrap();
    let before = pair.in_b.link_stats(pair.vb).unwrap();
    pair.send(100);
    // 18 bytes of payload, 8 of UDP, 20 of IPv4.
    let expected = Counted { packets: 100, bytes: 100 * 46 };
    wait_for("100 packets in the named counter", || {
        (nft.named_counter(Family::Ip, "t", "arrived").unwrap() == expected).then_some(())
    });
    let counters = nft.counters(Family::Ip, "t", "pre").unwrap();
    assert_eq!(counters.iter().map(|counter| counter.counted).collect::<Vec<_>>(), [expected]);
    let after = pair.in_b.link_stats(pair.vb).unwrap();
    assert_eq!(after.rx_packets - before.rx_packets, 100);
    assert_eq!(after.rx_bytes - before.rx_bytes, 100 * 60);

    nft.delete_table(Family::Ip, "t").unwrap();
    let gone = nft.named_counter(Family::Ip, "t", "arrived").unwrap_err();
    assert_eq!(gone.errno(), Some(libc::ENOENT));
}

#[test]
fn a_batch_happens_whole_or_not_at_all() {
    if !test_may_run("a_batch_happens_whole_or_not_at_all") {
        return;
    }
    let netns = Netns::unnamed().unwrap();
    let mut nft = netns.run(NftSocket::open).unwrap().unwrap();
    let mut batch = raw_drop(0);
    batch.add_rule(Family::Ip, "t", "missing", &Rule::count_and_drop());
    let error = nft.commit(batch).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("in ip t missing"), "{error}");
    nft.commit(raw_drop(0)).expect("the failed batch left no table behind");
    assert_eq!(nft.commit(raw_drop(0)).unwrap_err().errno(), Some(libc::EEXIST));

    let mut batch = Batch::new();
    batch.add_rule(Family::Ip6, "t", "c", &Rule::default().matching(Match::Source(ADDRESS_A)));
    assert_eq!(nft.commit(batch).unwrap_err().errno(), Some(libc::EINVAL));
    nft.commit(Batch::new()).expect("an empty batch is no error");
}

#[test]
fn thousands_of_rules_fit_one_batch() {
    if !test_may_run("thousands_of_rules_fit_one_batch") {
        return;
    }
    let netns = Netns::unnamed().unwrap();
    let mut nft = netns.run(NftSocket::open).unwrap().unwrap();
    nft.commit(raw_drop(5_000)).unwrap();
    assert_eq!(nft.counters(Family::Ip, "t", "pre").unwrap().len(), 1);
}

#[test]
fn a_device_can_be_a_sink_that_counts() {
    if !test_may_run("a_device_can_be_a_sink_that_counts") {
        return;
    }
    let pair = Pair::new();
    let mut nft = pair.b.run(NftSocket::open).unwrap().unwrap();
    let mut batch = Batch::new();
    batch.add_table(Family::Netdev, "t").add_counter(Family::Netdev, "t", "sunk").add_base_chain(
        &BaseChain {
            family: Family::Netdev,
            table: "t",
            name: "in",
            hook: Hook::Ingress,
            priority: 0,
            device: Some("vb"),
            policy: Verdict::Drop,
        },
    );
    batch.add_chain(Family::Netdev, "t", "udp");
    let jump = Rule { verdict: Some(Verdict::Jump("udp".to_owned())), ..Rule::default() }
        .matching(Match::EtherType(0x0800))
        .matching(Match::Source(ADDRESS_A));
    batch.add_rule(Family::Netdev, "t", "in", &jump);
    batch.add_rule(Family::Netdev, "t", "udp", &Rule::count_and_drop().counting_into("sunk"));
    nft.commit(batch).unwrap();
    pair.send(10);
    wait_for("ten packets in the sink", || {
        (nft.named_counter(Family::Netdev, "t", "sunk").unwrap().packets == 10).then_some(())
    });
}

#[test]
fn device_settings_are_read_and_written() {
    if !test_may_run("device_settings_are_read_and_written") {
        return;
    }
    let pair = Pair::new();
    let socket = pair.b.run(EthtoolSocket::open).unwrap().unwrap();
    assert_eq!(socket.driver("vb").unwrap().driver, "veth");
    for on in [true, false] {
        socket.set_gro("vb", on).unwrap();
        socket.set_tso("vb", on).unwrap();
        assert_eq!((socket.gro("vb").unwrap(), socket.tso("vb").unwrap()), (on, on));
    }
    assert!(socket.statistics("vb").unwrap().contains(&("peer_ifindex".to_owned(), u64::from(pair.va))));
    let channels = socket.channels("vb").unwrap();
    assert!(channels.rx >= 1 && channels.rx_max >= channels.rx, "{channels:?}");
    assert_eq!(socket.rings("vb").unwrap_err().errno(), Some(libc::EOPNOTSUPP));
    let features = socket.features("vb").unwrap();
    assert!(features.iter().any(|feature| feature.name == "rx-gro" && !feature.active && feature.changeable));
    assert_eq!(socket.gro("va").unwrap_err().errno(), Some(libc::ENODEV), "va is in the other namespace");
}

#[test]
fn an_ordinary_user_gets_a_network_of_its_own() {
    const NAME: &str = "an_ordinary_user_gets_a_network_of_its_own";
    if !test_may_run(NAME) {
        return;
    }
    if let Some(obstacle) = linux::netns::user_namespace_obstacle(sysctl::read_opt) {
        let line = format!("SKIPPED {NAME}: {obstacle}\n");
        drop(std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()));
        return;
    }
    // SAFETY: the child runs on the one thread that fork leaves it, and ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(as_an_ordinary_user).is_ok();
        // SAFETY: ends the child without the exit handlers of the test program.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    assert!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status to a live integer.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child says why on standard error");
}

fn as_an_ordinary_user() {
    const NOBODY: u32 = 65_534;
    // SAFETY: changes the identity of the forked child only; no memory is involved.
    assert_eq!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    // After a change of identity /proc/self belongs to root (prctl(2), PR_SET_DUMPABLE). A program that an
    // ordinary user starts never meets this. SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
    linux::netns::enter_user_namespace().unwrap();
    assert!(!linux::privilege::in_initial_user_namespace());
    let pair = Pair::new();
    let mut nft = pair.b.run(NftSocket::open).unwrap().unwrap();
    nft.commit(raw_drop(3)).unwrap();
    pair.send(5);
    wait_for("five packets", || {
        (nft.named_counter(Family::Ip, "t", "arrived").unwrap().packets == 5).then_some(())
    });
}
