//! `perpacket sink` in a namespace of the test's own: frames with known faults arrive over a veth pair.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{Child, Stdio};

use linux::netns::Netns;
use linux::route::{RouteSocket, VethEnd};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use traffic::mark::{Mark, Marker};
use traffic::{Backend, Frames, Mmsg, MmsgSpec};

#[test]
fn a_sink_tells_what_happened_to_marked_packets() {
    if !linux::privilege::test_may_run("a_sink_tells_what_happened_to_marked_packets") {
        return;
    }
    for by in ["packet-ring", "af-xdp"] {
        in_pair(|near| {
            // Swapped, nothing else.
            let swapped = Sink::start(&["far", "--by", by, "--mark", "--sent", "4", "--count", "4"]);
            send(near, &[0, 2, 1, 3]);
            let (code, json) = swapped.end();
            assert_eq!(code, 0, "{json}");
            assert_eq!((&json["marks"]["lost"], &json["marks"]["received"]), (&0.into(), &4.into()));
            assert_eq!(json["marks"]["streams"][0]["reordered"], 1);
            assert_eq!((&json["l2_bytes"], &json["payload_bytes"]), (&240.into(), &Value::Null));

            // One lost in between, one twice, two lost at the end.
            let faulty = Sink::start(&["far", "--by", by, "--mark", "--sent", "6", "--count", "4"]);
            send(near, &[0, 1, 1, 3]);
            let (code, json) = faulty.end();
            assert_eq!(code, 1, "{json}");
            let stream = &json["marks"]["streams"][0];
            assert_eq!((&stream["lost"], &stream["duplicates"]), (&1.into(), &1.into()), "{json}");
            assert_eq!((&json["marks"]["lost"], &json["ended"]), (&3.into(), &"count".into()), "{json}");
            assert!(json["losses"].as_array().unwrap().iter().all(|loss| loss["frames"] == 0), "{json}");

            let silent = Sink::start(&["far", "--by", by, "--mark", "--time", "50ms"]);
            let (code, json) = silent.end();
            assert_eq!((code, &json["frames"], &json["active_s"]), (3, &0.into(), &Value::Null), "{json}");
        });
    }
}

#[test]
fn a_program_counts_flows_until_a_signal() {
    if !linux::privilege::test_may_run("a_program_counts_flows_until_a_signal") {
        return;
    }
    in_pair(|near| {
        let sink = Sink::start(&["far", "--by", "xdp"]);
        send(near, &[0, 1, 2]);
        sink.signal(Signal::INT);
        let (code, json) = sink.end();
        assert_eq!((code, &json["ended"], &json["frames"]), (0, &"signal".into(), &3.into()), "{json}");
        assert_eq!((&json["receiver"], &json["xdp_mode"]), (&"xdp".into(), &"native".into()));
        let flow = &json["flows"][0];
        assert_eq!((&flow["source"], &flow["destination_port"]), (&"10.0.0.1".into(), &9.into()), "{json}");
        assert_eq!((&flow["frames"], &flow["l2_bytes"]), (&3.into(), &180.into()), "{json}");
        assert_eq!(json["cpus"].as_array().unwrap().len(), 1, "{json}");
        assert!(json["marks"].is_null());
    });
}

#[test]
fn a_socket_counts_datagrams() {
    if !linux::privilege::test_may_run("a_socket_counts_datagrams") {
        return;
    }
    in_pair(|_| {
        let sink = Sink::start(&["--udp", "127.0.0.1:7007", "--count", "2"]);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..2 {
            sender.send_to(&[0; 100], "127.0.0.1:7007").unwrap();
        }
        let (code, json) = sink.end();
        assert_eq!((code, &json["frames"], &json["payload_bytes"]), (0, &2.into(), &200.into()), "{json}");
        assert_eq!(
            (&json["l2_bytes"], &json["queues"], &json["cpus"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
        assert_eq!(json["flows"][0]["source_port"], sender.local_addr().unwrap().port());
    });
}

#[test]
fn a_device_with_a_default_route_is_only_listened_to() {
    if !linux::privilege::test_may_run("a_device_with_a_default_route_is_only_listened_to") {
        return;
    }
    in_pair(|_| {
        let mut route = RouteSocket::open().unwrap();
        let far = route.link_by_name("far").unwrap().unwrap().ifindex;
        let next_hop: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        route.add_address(far, Ipv4Addr::new(10, 0, 0, 2).into(), 24).unwrap();
        route.add_route((Ipv4Addr::UNSPECIFIED.into(), 0), Some(next_hop), far).unwrap();
        for by in ["xdp", "af-xdp"] {
            let output = common::command(&["sink", "far", "--by", by]).output().unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{message}");
            assert!(message.contains("default route") && message.contains("packet-ring"), "{message}");
        }
        let (code, _) = Sink::start(&["far", "--time", "50ms"]).end();
        assert_eq!(code, 0);
    });
}

/// A sink that listens.
struct Sink {
    child: Child,
    messages: BufReader<std::process::ChildStderr>,
}

impl Sink {
    fn start(args: &[&str]) -> Self {
        let mut child = common::command(&["sink"])
            .args(args)
            .args(["--json", "-"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        assert!(line.starts_with("sink: "), "{line}");
        Self { child, messages }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code and its result.
    fn end(mut self) -> (i32, Value) {
        let (mut text, mut messages) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.messages.read_to_string(&mut messages).unwrap();
        let status = self.child.wait().unwrap();
        let json: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{messages}"));
        assert_eq!(json["schema"], "perpacket.arrivals/1");
        (status.code().unwrap(), json)
    }
}

/// Sends marked 64-byte frames with these numbers out of a device.
fn send(ifindex: u32, numbers: &[u64]) {
    let frames = numbers.iter().map(|&number| marked(number)).collect();
    let mut backend = Mmsg::new(&MmsgSpec::new(ifindex), Frames::cycle(frames).unwrap()).unwrap();
    assert_eq!(backend.send(numbers.len() as u64).unwrap().confirmed, numbers.len() as u64);
}

/// UDP from 10.0.0.1 to 10.0.0.2.
fn marked(number: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0];
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 26, 0, 0]);
    frame.extend([0; 18]);
    Marker::locate(&frame).unwrap().write(&mut frame, Mark { stream: 0, sequence: number });
    frame
}

/// A namespace with a veth pair, of which `far` is the end that receives; gets the index of the other.
fn in_pair(test: impl FnOnce(u32) + Send) {
    let netns = Netns::unnamed().unwrap();
    netns
        .run(|| {
            let mut route = RouteSocket::open().unwrap();
            route.create_veth(&VethEnd::new("near"), &VethEnd::new("far")).unwrap();
            let [near, far] = ["near", "far"].map(|name| route.link_by_name(name).unwrap().unwrap().ifindex);
            for ifindex in [1, near, far] {
                route.set_no_link_local(ifindex).unwrap();
                route.set_up(ifindex).unwrap();
            }
            assert!(route.wait_until_carrying(&[near, far], std::time::Duration::from_secs(10)).unwrap());
            test(near);
        })
        .unwrap();
}
