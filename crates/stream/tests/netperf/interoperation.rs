//! With netperf and netserver themselves, where they are in PATH.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stream::engine::Control;
use stream::netperf::client::{How, Session};
use stream::plan::Plan;

use crate::{PATIENCE, Served, limits, plan_of};

const TESTS: [&str; 7] =
    ["TCP_STREAM", "TCP_MAERTS", "TCP_SENDFILE", "UDP_STREAM", "TCP_RR", "UDP_RR", "TCP_CRR"];

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {program} is not in PATH; the exchanges recorded from it are tested in any case");
    }
    found
}

/// A netserver on a port of its own, over loopback only.
struct Netserver {
    child: Child,
    at: SocketAddr,
}

impl Netserver {
    fn start(program: &OsStr, ip: &str) -> Self {
        let at = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
        let family = if at.is_ipv4() { "-4" } else { "-6" };
        let child = Command::new(program)
            .args(["-D", "-N", family, "-L", ip, "-p", &at.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self { child, at };
        let begin = Instant::now();
        while TcpStream::connect(at).is_err() {
            assert!(begin.elapsed() < PATIENCE, "netserver does not listen at {at}");
            std::thread::yield_now();
        }
        started
    }
}

impl Drop for Netserver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_within_one_percent(what: &str, here: f64, there: f64) {
    assert!(here > 0.0 && (here - there).abs() <= here.max(there) * 0.01, "{what}: {here} and {there}");
}

fn netserver_answers_our_client(ip: &str) {
    let Some(program) = in_path("netserver") else { return };
    let netserver = Netserver::start(program.as_os_str(), ip);
    for test in TESTS {
        let mut session = Session::connect(netserver.at, Duration::from_secs(5)).unwrap();
        // Twice over one control connection, as confidence needs.
        for cpu in [true, false] {
            let control = Control::new();
            let how =
                How { cpu, interval: None, on_interval: None, give_up_after: PATIENCE, control: &control };
            let run = session.run(&plan_of(test), &how).unwrap_or_else(|error| panic!("{test}: {error}"));
            let client = &run.exchanged.client.flows[0];
            let server = &run.exchanged.server.flows[0];
            assert_eq!(run.exchanged.server.cpu.is_some(), cpu, "{test}");
            match (client.transactions, server.transactions) {
                (Some(here), Some(there)) => assert_within_one_percent(test, here as f64, there as f64),
                (None, None) if test == "TCP_MAERTS" => {
                    let (here, there) = (client.received.unwrap().bytes, server.sent.unwrap().bytes);
                    assert_within_one_percent(test, here as f64, there as f64);
                }
                (None, None) if test == "UDP_STREAM" => {
                    let (sent, received) = (client.sent.unwrap(), server.received.unwrap());
                    assert!(received.bytes <= sent.bytes && received.messages > 0, "{sent:?} {received:?}");
                }
                (None, None) => {
                    let (here, there) = (client.sent.unwrap().bytes, server.received.unwrap().bytes);
                    assert_within_one_percent(test, here as f64, there as f64);
                }
                other => panic!("{test}: {other:?}"),
            }
        }
    }
}

#[test]
fn netserver_answers_our_client_over_ipv4() {
    netserver_answers_our_client("127.0.0.1");
}

#[test]
fn netserver_answers_our_client_over_ipv6() {
    netserver_answers_our_client("::1");
}

/// Runs netperf against our server; what it printed.
fn netperf(program: &OsStr, ip: &str, test: &str, global: &[&str], local: &[&str]) -> String {
    let served = Served::new(ip, limits());
    let family = if served.at.is_ipv4() { "-4" } else { "-6" };
    let port = served.at.port().to_string();
    let output = Command::new(program)
        .args(["-H", ip, family, "-p", &port, "-l", "1", "-t", test])
        .args(global)
        .arg("--")
        .args(local)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{test} {global:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    served.ended().unwrap_or_else(|error| panic!("{test}: {error}\n{text}"));
    text
}

fn our_server_answers_netperf(ip: &str) {
    let Some(program) = in_path("netperf") else { return };
    let program = program.as_os_str();
    const OUTPUT: &str = "LOCAL_BYTES_SENT,REMOTE_BYTES_RECVD,LOCAL_BYTES_RECVD,REMOTE_BYTES_SENT";
    for (test, columns) in [
        ("TCP_STREAM", [0, 1]),
        ("TCP_MAERTS", [2, 3]),
        ("TCP_RR", [0, 1]),
        ("UDP_RR", [0, 1]),
        ("TCP_CRR", [0, 1]),
    ] {
        let text = netperf(program, ip, test, &["-P", "0"], &["-o", OUTPUT]);
        let figures: Vec<f64> = text.trim().split(',').map(|word| word.parse().unwrap()).collect();
        let [here, there] = columns.map(|column| figures[column]);
        // A client that stops receiving leaves what is on its way, up to what both buffers hold.
        if test == "TCP_MAERTS" {
            assert!(here > 0.0 && there >= here && there - here < 32e6, "{test}: {here} of {there}");
        } else {
            assert_within_one_percent(test, here, there);
        }
    }
    let text = netperf(program, ip, "UDP_STREAM", &["-P", "0"], &["-m", "1024", "-R", "1"]);
    let received: f64 = text.split_whitespace().last().unwrap().parse().unwrap();
    assert!(received > 0.0, "{text}");
    let text = netperf(program, ip, "TCP_SENDFILE", &["-P", "0", "-v", "0"], &[]);
    assert!(text.trim().parse::<f64>().unwrap() > 0.0, "{text}");
}

#[test]
fn our_server_answers_netperf_over_ipv4() {
    our_server_answers_netperf("127.0.0.1");
}

#[test]
fn our_server_answers_netperf_over_ipv6() {
    our_server_answers_netperf("::1");
}

#[test]
fn our_server_tells_netperf_cpu_time_and_repeats_for_confidence() {
    let Some(program) = in_path("netperf") else { return };
    for test in TESTS {
        let text = netperf(
            program.as_os_str(),
            "127.0.0.1",
            test,
            &["-c", "-C", "-I", "95,50", "-i", "3,3", "-P", "0"],
            &[],
        );
        let line = text.lines().rfind(|line| line.split_whitespace().count() > 3).unwrap();
        assert!(!line.contains("-1.00"), "{test}: {text}");
    }
}

#[test]
fn our_client_and_our_server_agree() {
    for test in TESTS {
        let served = Served::new("127.0.0.1", limits());
        let mut session = Session::connect(served.at, Duration::from_secs(5)).unwrap();
        let control = Control::new();
        let how =
            How { cpu: false, interval: None, on_interval: None, give_up_after: PATIENCE, control: &control };
        let plan: Plan = plan_of(test);
        let run = session.run(&plan, &how).unwrap_or_else(|error| panic!("{test}: {error}"));
        drop(session);
        served.ended().unwrap();
        let (client, server) = (&run.exchanged.client.flows[0], &run.exchanged.server.flows[0]);
        if let (Some(here), Some(there)) = (client.transactions, server.transactions) {
            assert_within_one_percent(test, here as f64, there as f64);
        } else if test != "UDP_STREAM" {
            let bytes = |flow: &stream::outcome::Flow| flow.sent.or(flow.received).unwrap().bytes as f64;
            assert_within_one_percent(test, bytes(client), bytes(server));
        }
    }
}
