//! Two hosts joined by `perpacket datapath`: unmodified programs talk through it, over each kind of device.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{Done, wait_for};
use linux::netns::Netns;
use linux::route::{RouteSocket, VethEnd};
use measure::record::{self, Datapath, Record};
use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto, recvfrom, socket, sockopt};
use rustix::process::{Pid, Signal, kill_process};

/// Time for whatever must come.
const SOON: Duration = Duration::from_secs(10);
/// Bytes of a TCP stream in each direction.
const STREAM_BYTES: usize = 4 << 20;

#[test]
fn hosts_talk_through_a_router_of_packet_sockets() {
    if !linux::privilege::test_may_run("hosts_talk_through_a_router_of_packet_sockets") {
        return;
    }
    talk_through(&["--port", "af-packet:p0", "--port", "af-packet:p1"]);
}

#[test]
fn hosts_talk_through_a_router_of_af_xdp_sockets() {
    if !linux::privilege::test_may_run("hosts_talk_through_a_router_of_af_xdp_sockets") {
        return;
    }
    for receive in ["copy-break", "page-pool", "copy"] {
        talk_through(&["--port", "af-xdp:p0", "--port", "af-xdp:p1", "--receive", receive]);
    }
}

#[test]
fn kinds_of_devices_mix() {
    if !linux::privilege::test_may_run("kinds_of_devices_mix") {
        return;
    }
    talk_through(&["--port", "af-packet:p0", "--port", "af-xdp:p1", "--busy"]);
}

/// Everything that two hosts do, and the account of it.
fn talk_through(ports: &[&str]) {
    let lab = Lab::new();
    let router = Router::start(&lab, ports);
    for version in [4, 6] {
        let (near, far) = addresses(version);
        lab.near.run(|| ping(far)).unwrap();
        stream(&lab, far);
        datagrams(&lab, near, far);
        time_exceeded(&lab, version);
    }
    let (record, results) = router.end();
    let book = record.ledgers().next().unwrap();
    assert!(book.sent.packets > 2 * (STREAM_BYTES / 1500) as u64, "{book:?}");
    let event =
        |name: &str| results.events.iter().find(|event| event.event == name).map_or(0, |event| event.count);
    for name in ["sent: time exceeded", "arp answered", "neighbour discovery answered", "neighbour learnt"] {
        assert!(event(name) > 0, "{name}: {:?}", results.events);
    }
    for port in &results.ports {
        // A stream may be faster than it, and then knows by its losses.
        assert!(port.packets > 1000 && (port.direction == "tx" || port.missed.is_some()), "{port:?}");
    }
    // Neither program nor socket stays behind.
    let link = |name: &str| RouteSocket::open().unwrap().link_by_name(name).unwrap().unwrap();
    lab.middle.run(|| assert!(link("p0").xdp.is_none() && link("p1").xdp.is_none())).unwrap();
}

#[test]
fn a_tap_device_is_a_host_of_its_own() {
    if !linux::privilege::test_may_run("a_tap_device_is_a_host_of_its_own") {
        return;
    }
    let lab = Lab::new();
    // Not by a packet socket, beside which this namespace would take the answers itself.
    let router = Router::start(&lab, &["--port", "tap:t0", "--port", "af-xdp:p1"]);
    lab.middle
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            let tap = route.link_by_name("t0").unwrap().unwrap().ifindex;
            route.add_address(tap, Ipv4Addr::new(10, 0, 0, 2).into(), 24).unwrap();
            route.add_route((Ipv4Addr::new(10, 0, 1, 0).into(), 24), Some(GATEWAY4[0].into()), tap).unwrap();
            ping(FAR4.into());
        })
        .unwrap();
    router.end();
    lab.middle
        .run(|| {
            assert!(RouteSocket::open().unwrap().link_by_name("t0").unwrap().is_none(), "the device stays")
        })
        .unwrap();
}

#[test]
fn datagrams_are_read_and_others_are_answered() {
    if !linux::privilege::test_may_run("datagrams_are_read_and_others_are_answered") {
        return;
    }
    let lab = Lab::new();
    let router = Router::start_stage(
        &lab,
        "udp",
        &["--port", "af-packet:p0", "--ports", "7000-7001", "--address", "0=10.0.0.1/24"],
    );
    lab.near
        .run(|| {
            ping(GATEWAY4[0].into());
            let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
            for port in [7000, 7001, 7001] {
                socket.send_to(b"twelve bytes", (GATEWAY4[0], port)).unwrap();
            }
            // A port that nobody has: the answer is this socket's error.
            socket.connect((GATEWAY4[0], 7002)).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket.send(b"nobody").unwrap();
            let refused = socket.recv(&mut [0; 9]).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
        })
        .unwrap();
    let (_, results) = router.end();
    let read: Vec<(u32, u64, Option<u64>)> =
        results.queues.iter().map(|queue| (queue.number, queue.packets, queue.l2_bytes)).collect();
    assert_eq!(read, [(7000, 1, Some(12)), (7001, 2, Some(24))], "{results:?}");
}

#[test]
fn devices_of_others_are_left_alone() {
    if !linux::privilege::test_may_run("devices_of_others_are_left_alone") {
        return;
    }
    let lab = Lab::new();
    lab.middle
        .run(|| {
            let refused = |args: &[&str]| common::refused(&[&["datapath", "drop"], args].concat());
            for device in ["af-packet:p0", "af-xdp:p0"] {
                assert!(refused(&["--rx", device]).contains("--allow-device p0"));
                let many = refused(&["--rx", "af-xdp:p0:7", "--allow-device", "p0"]);
                assert!(many.contains("there is no queue 7"), "{many}");
            }
            let taken = refused(&["--rx", "tap:p0"]);
            assert!(taken.contains("is there already"), "{taken}");
            let mut route = RouteSocket::open().unwrap();
            let port = route.link_by_name("p0").unwrap().unwrap().ifindex;
            route.add_address(port, GATEWAY4[0].into(), 24).unwrap();
            let next_hop: IpAddr = Ipv4Addr::new(10, 0, 0, 2).into();
            route.add_route((Ipv4Addr::UNSPECIFIED.into(), 0), Some(next_hop), port).unwrap();
            for device in ["af-packet:p0", "af-xdp:p0"] {
                let message = refused(&["--rx", device, "--allow-device", "p0"]);
                assert!(message.contains("default route"), "{message}");
            }
        })
        .unwrap();
}

/// Addresses of the router's ports, and of the hosts behind them.
const GATEWAY4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 1, 1)];
const FAR4: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);

fn addresses(version: u8) -> (IpAddr, IpAddr) {
    match version {
        4 => (Ipv4Addr::new(10, 0, 0, 2).into(), FAR4.into()),
        _ => (host6(0, 2), host6(1, 2)),
    }
}

fn gateway(version: u8, port: usize) -> IpAddr {
    if version == 4 { GATEWAY4[port].into() } else { host6(port as u16, 1) }
}

fn host6(network: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, network, 0, 0, 0, 0, 0, host).into()
}

/// Two hosts, and a namespace between them that has one end of a pair to each, without addresses.
struct Lab {
    near: Netns,
    middle: Netns,
    far: Netns,
}

impl Lab {
    fn new() -> Self {
        let lab = Self {
            near: Netns::unnamed().unwrap(),
            middle: Netns::unnamed().unwrap(),
            far: Netns::unnamed().unwrap(),
        };
        for (port, host) in [(0, &lab.near), (1, &lab.far)] {
            let (name, end) = (format!("p{port}"), format!("h{port}"));
            lab.middle
                .run(|| {
                    let mut route = RouteSocket::open().unwrap();
                    let far = VethEnd { netns: Some(host.as_fd()), ..VethEnd::new(&end) };
                    route.create_veth(&VethEnd::new(&name), &far).unwrap();
                    let own = route.link_by_name(&name).unwrap().unwrap().ifindex;
                    // This namespace's own stack stays silent.
                    route.set_no_link_local(own).unwrap();
                    route.set_up(own).unwrap();
                })
                .unwrap();
            host.run(|| be_host(&end, port)).unwrap();
        }
        lab
    }
}

/// A host with addresses of both versions, and the router as its way to the other.
fn be_host(device: &str, port: usize) {
    let mut route = RouteSocket::open().unwrap();
    let ifindex = route.link_by_name(device).unwrap().unwrap().ifindex;
    // No waiting until it is known that nobody else has the address (RFC 4862).
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/accept_dad"), "0").unwrap();
    for ifindex in [1, ifindex] {
        route.set_up(ifindex).unwrap();
    }
    assert!(route.wait_until_carrying(&[ifindex], Duration::from_secs(10)).unwrap());
    for (version, bits) in [(4, 24), (6, 64)] {
        let (near, far) = addresses(version);
        let (own, other) = if port == 0 { (near, far) } else { (far, near) };
        route.add_address(ifindex, own, bits).unwrap();
        let network = match other {
            IpAddr::V4(other) => Ipv4Addr::from_bits(other.to_bits() & !0xff).into(),
            IpAddr::V6(other) => Ipv6Addr::from_bits(other.to_bits() & !0xffff).into(),
        };
        route.add_route((network, bits), Some(gateway(version, port)), ifindex).unwrap();
    }
}

/// `perpacket datapath` in the namespace in the middle.
struct Router {
    child: Child,
    messages: BufReader<ChildStderr>,
}

impl Router {
    /// One that forwards between these ports.
    fn start(lab: &Lab, ports: &[&str]) -> Self {
        let addresses = ["0=10.0.0.1/24", "1=10.0.1.1/24", "0=fd00:0::1/64", "1=fd00:1::1/64"]
            .map(|word| ["--address", word]);
        Self::start_stage(lab, "forward", &[ports, addresses.as_flattened()].concat())
    }

    fn start_stage(lab: &Lab, stage: &str, args: &[&str]) -> Self {
        let mut command = common::command(&["datapath", stage, "--json", "-", "--no-save"]);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in
            ["p0", "p1"].iter().filter(|name| args.iter().any(|arg| arg.ends_with(&format!(":{name}"))))
        {
            command.args(["--allow-device", name]);
        }
        // A child starts in the namespace of the thread that starts it.
        let mut child = lab.middle.run(|| command.spawn().unwrap()).unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("datapath ") {
            line.clear();
            let more = messages.read_line(&mut line).unwrap();
            assert!(more > 0, "the device under test ended: {:?}", child.wait());
            assert!(!line.starts_with("perpacket: "), "{line}");
        }
        Self { child, messages }
    }

    /// Ends it as a person does. Its ledger must close.
    fn end(mut self) -> (Record, Datapath) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let status = wait_for("the end of the device under test", || self.child.try_wait().unwrap());
        let (mut text, mut said) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.messages.read_to_string(&mut said).unwrap();
        let record = record::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}{said}"));
        for book in record.ledgers() {
            assert_eq!(book.unaccounted(), 0, "{book:?}");
            assert!(book.drops.iter().all(|drop| drop.reason != "held at the end"), "{book:?}");
        }
        assert_eq!(status.code(), Some(0), "{said}{text}");
        let results = record.summary.as_ref().unwrap().datapath.clone().unwrap();
        (record, results)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// The program, where it is installed; its first answer may be late, as nobody knows anybody yet.
fn ping(to: IpAddr) {
    let done = Command::new("ping").args(["-c", "3", "-i", "0.05", "-W", "5", &to.to_string()]).output();
    let Ok(output) = done else { return common::skipped("ping", "the program ping") };
    let done = Done::from(output);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("3 received"), "{}", done.stdout);
}

/// A TCP connection on which both sides send.
fn stream(lab: &Lab, to: IpAddr) {
    let listener = lab.far.run(|| TcpListener::bind((to, 0)).unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..STREAM_BYTES).map(|index| (index % 251) as u8).collect();
    thread::scope(|scope| {
        let answer = scope.spawn(|| {
            let (socket, _) = listener.accept().unwrap();
            exchange(socket, &sent)
        });
        let socket = lab.near.run(|| TcpStream::connect_timeout(&at, SOON).unwrap()).unwrap();
        assert!(exchange(socket, &sent) == sent, "the bytes have changed on the way back");
        assert!(answer.join().unwrap() == sent, "the bytes have changed on their way");
    });
}

/// Sends all bytes, and returns those that came.
fn exchange(socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    for time in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        time(&socket, Some(SOON)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            (&socket).write_all(bytes).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut came = Vec::new();
        (&socket).read_to_end(&mut came).unwrap();
        came
    })
}

/// Datagrams there and back, of which some are large.
fn datagrams(lab: &Lab, near: IpAddr, far: IpAddr) {
    let bind = |host: &Netns, address| {
        let socket = host.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    };
    let (one, other) = (bind(&lab.near, near), bind(&lab.far, far));
    for bytes in [0, 1, 1400] {
        let sent = vec![bytes as u8; bytes];
        one.send_to(&sent, other.local_addr().unwrap()).unwrap();
        let mut room = vec![0; 2000];
        let (length, from) = other.recv_from(&mut room).unwrap();
        assert_eq!((&room[..length], from), (&sent[..], one.local_addr().unwrap()));
        other.send_to(&sent, from).unwrap();
        assert_eq!(one.recv(&mut room).unwrap(), bytes);
    }
}

/// As traceroute does it: a packet that may go one hop only is answered by the port that it came in by.
fn time_exceeded(lab: &Lab, version: u8) {
    let (near, far) = addresses(version);
    let (family, protocol, kind, header_bytes) = match version {
        4 => (AddressFamily::INET, ipproto::ICMP, 11, 20),
        _ => (AddressFamily::INET6, ipproto::ICMPV6, 3, 0),
    };
    lab.near
        .run(|| {
            let errors = socket(family, SocketType::RAW, Some(protocol)).unwrap();
            sockopt::set_socket_timeout(&errors, sockopt::Timeout::Recv, Some(SOON)).unwrap();
            let probe = UdpSocket::bind((near, 0)).unwrap();
            match version {
                4 => probe.set_ttl(1).unwrap(),
                _ => sockopt::set_ipv6_unicast_hops(&probe, Some(1)).unwrap(),
            }
            // What has been answered by then (a closed connection's port) comes here too.
            probe.send_to(b"probe", (far, 33_434)).unwrap();
            let mut message = [0; 512];
            loop {
                let (bytes, _, from) = recvfrom(&errors, &mut message[..], RecvFlags::empty()).unwrap();
                if bytes > header_bytes && message[header_bytes] == kind {
                    let from: SocketAddr = from.unwrap().try_into().unwrap();
                    break assert_eq!(from.ip(), gateway(version, 0));
                }
            }
        })
        .unwrap();
}
